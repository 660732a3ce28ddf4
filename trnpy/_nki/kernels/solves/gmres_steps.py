"""One cycle of GMRES in one launch: at most ``most`` steps, with basis, residual and solution on the chip.

Simpler GMRES with an adaptive basis (Jiranek, Rozloznik & Gutknecht, SIAM J. Matrix Anal. 30 (2008) 1483): the
orthogonal vectors span A times the Krylov space, so that the residual is what is left of it after each, and its norm
needs no rotations; a new direction is the residual where it shrinks, the last orthogonal vector where it stagnates.
Directions are carried along so that A p = q, and the solution needs no triangular system. Gram-Schmidt twice, no
square roots: vectors keep their lengths. float32; residuals of float64 are the host's, between cycles.
"""

import nki
import nki.isa as nisa
import nki.language as nl

from . import krylov

TILE = 128
SHRINKS = 0.81  # of r . r, the square of the paper's 0.9: above it the residual is too near to what was
SMALLEST = 1e-35  # stands for a square of zero where one divides by it


@nki.jit
def gmres_steps(tiles, left_at, column_of, bounds, r, limit, most=20, unit=4):
    """(x, r, history, done) of A x = r after at most ``most`` steps, fewer once r . r is at most ``limit``.

    tiles, left_at and bounds as for bsr_spmm, ordered, of a square matrix of R block rows; column_of (1, slots) int32:
    the block of the vector that each tile meets. r (128, R) float32: element 128 c + i is [i, c]; limit (128, 1), all
    elements equal. history (1, most): r . r after each step, of the ``done`` (1, 1) int32 first.
    """
    plan = krylov.operator(tiles=tiles, left_at=left_at, column_of=column_of, bounds=bounds, unit=unit)
    length = r.shape[1]
    rs, least = krylov.vector(source=r), krylov.vector(source=limit)
    vectors = []
    for _ in range(5):
        vectors.append(nl.ndarray(r.shape, dtype=nl.float32, buffer=nl.sbuf))
        nisa.memset(dst=vectors[-1], value=0.0, engine=nisa.engine.vector)
    x, direction, image, last, change = vectors
    basis, stored = [], []  # what a step adds to the basis goes to HBM, where places are dynamic, and comes back
    for columns in (most * length, most * length, most):
        basis.append(nl.ndarray((TILE, columns), dtype=nl.float32, buffer=nl.sbuf))
        nisa.memset(dst=basis[-1], value=0.0, engine=nisa.engine.vector)
        stored.append(nl.ndarray((TILE, columns), dtype=nl.float32, buffer=nl.private_hbm))
        nisa.dma_copy(dst=stored[-1], src=basis[-1])
    images, directions, inverses = basis
    parts = nl.ndarray((TILE, most), dtype=nl.float32, buffer=nl.sbuf)
    shares = nl.ndarray((TILE, most), dtype=nl.float32, buffer=nl.sbuf)
    history = nl.ndarray((1, most), dtype=nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=history, src=inverses[0:1, :])
    integers = []
    for value in (0, 1, 0, length):
        integers.append(nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf))
        nisa.memset(dst=integers[-1], value=value, engine=nisa.engine.vector)
    done, one, at, stride = integers
    scalars = []
    for _ in range(5):
        scalars.append(nl.ndarray((TILE, 1), dtype=nl.float32, buffer=nl.sbuf))
    size, before, inverse, share, shrinks = scalars
    nisa.memset(dst=shrinks, value=1.0, engine=nisa.engine.vector)
    krylov.summing(plan=plan, columns=1)
    krylov.dot(plan=plan, x=rs, y=rs, out=size)
    flag = krylov.flags()
    more = nisa.register_alloc()
    krylov.proceed(size=size, limit=least, done=done, most=most, flag=flag, register=more)

    def step(condition):
        krylov.summing(plan=plan, columns=most)
        nisa.tensor_tensor(dst=change, data1=rs, data2=last, op=nl.subtract)
        nisa.scalar_tensor_tensor(
            dst=direction, data=change, op0=nl.multiply, operand0=shrinks, op1=nl.add, operand1=last
        )
        krylov.times(plan=plan, x=direction, out=image)
        for _ in range(2):
            for i in range(most):
                nisa.tensor_tensor(
                    dst=change, data1=images[:, i * length : (i + 1) * length], data2=image, op=nl.multiply
                )
                nisa.tensor_reduce(dst=parts[:, i : i + 1], op=nl.add, data=change, axis=1)
            krylov.total(plan=plan, parts=parts, out=shares)
            nisa.scalar_tensor_tensor(
                dst=shares, data=shares, op0=nl.multiply, operand0=-1.0, op1=nl.multiply, operand1=inverses
            )
            for i in range(most):
                here = shares[:, i : i + 1]
                krylov.add_multiple(x=images[:, i * length : (i + 1) * length], factor=here, y=image)
                krylov.add_multiple(x=directions[:, i * length : (i + 1) * length], factor=here, y=direction)
        krylov.dot(plan=plan, x=image, y=image, out=inverse)
        nisa.tensor_scalar(dst=inverse, data=inverse, op0=nl.maximum, operand0=SMALLEST)
        nisa.reciprocal(dst=inverse, data=inverse)
        krylov.dot(plan=plan, x=image, y=rs, out=share)
        nisa.tensor_tensor(dst=share, data1=share, data2=inverse, op=nl.multiply)
        krylov.add_multiple(x=direction, factor=share, y=x)
        nisa.tensor_scalar(dst=share, data=share, op0=nl.multiply, operand0=-1.0)
        krylov.add_multiple(x=image, factor=share, y=rs)
        added, places, widths = (image, direction, inverse), (at, at, done), (length, length, 1)
        for k in range(3):
            pattern = [[stored[k].shape[1], TILE], [1, widths[k]]]
            target = stored[k].ap(pattern=pattern, offset=0, scalar_offset=places[k], indirect_dim=1)
            nisa.dma_copy(dst=target, src=added[k])
            nisa.dma_copy(dst=basis[k], src=stored[k])
        nisa.tensor_copy(dst=last, src=image, engine=nisa.engine.vector)
        nisa.tensor_scalar(dst=before, data=size, op0=nl.multiply, operand0=SHRINKS)
        krylov.dot(plan=plan, x=rs, y=rs, out=size)
        nisa.tensor_tensor(dst=shrinks, data1=before, data2=size, op=nl.greater)
        place = history.ap(pattern=[[most, 1], [1, 1]], offset=0, scalar_offset=done, indirect_dim=1)
        nisa.dma_copy(dst=place, src=size[0:1, :])
        nisa.tensor_tensor(dst=done, data1=done, data2=one, op=nl.add)
        nisa.tensor_tensor(dst=at, data1=at, data2=stride, op=nl.add)
        following = nisa.register_alloc()
        krylov.proceed(size=size, limit=least, done=done, most=most, flag=flag, register=following)
        return following

    nl.while_loop(more, step)
    outs = []
    for source in (x, rs, done):
        out = nl.ndarray(source.shape, dtype=source.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=source)
        outs.append(out)
    return (outs[0], outs[1], history, outs[2])
