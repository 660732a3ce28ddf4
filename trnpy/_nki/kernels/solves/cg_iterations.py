"""Up to ``most`` iterations of conjugate gradients in one launch: A in HBM, vectors and scalars on the chip.

A loop on the device ends when the residual is small enough, so no launch computes more than it must. float32
throughout: residuals of float64 are the host's, between launches (iterative refinement). A product with A is bound by
the transfer of its tiles, 0.33 us each in the model; the rest of an iteration is ten passes over vectors by VectorE.
"""

import nki
import nki.isa as nisa
import nki.language as nl

from . import krylov

TILE = 128


@nki.jit
def cg_iterations(tiles, left_at, column_of, bounds, x, r, p, rho, limit, most=32, unit=4):
    """(x, r, p, rho, history, done) after at most ``most`` steps, fewer once rho = r . r is at most ``limit``.

    tiles, left_at and bounds as for bsr_spmm, ordered, of a symmetric matrix of R block rows; column_of (1, slots)
    int32: the block of the vector that each tile meets. x, r, p (128, R) float32: element 128 c + i is [i, c]; p is
    the direction of the next step; rho, limit (128, 1), all elements equal. history (1, most): rho after each step,
    of the ``done`` (1, 1) int32 first.
    """
    plan = krylov.operator(tiles=tiles, left_at=left_at, column_of=column_of, bounds=bounds, unit=unit)
    shape = x.shape
    state = []
    for source in (x, r, p, rho):
        state.append(krylov.vector(source=source))
    xs, rs, ps, size = state
    least = krylov.vector(source=limit)
    product = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=product, value=0.0, engine=nisa.engine.vector)
    history = nl.ndarray((1, most), dtype=nl.float32, buffer=nl.shared_hbm)
    nothing = nl.ndarray((1, most), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=nothing, value=0.0, engine=nisa.engine.vector)
    nisa.dma_copy(dst=history, src=nothing)
    done = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
    one = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.memset(dst=done, value=0, engine=nisa.engine.vector)
    nisa.memset(dst=one, value=1, engine=nisa.engine.vector)
    scalars = []
    for _ in range(3):
        scalars.append(nl.ndarray((TILE, 1), dtype=nl.float32, buffer=nl.sbuf))
    curvature, factor, following = scalars
    flag = krylov.flags()
    more = nisa.register_alloc()
    krylov.proceed(size=size, limit=least, done=done, most=most, flag=flag, register=more)

    def step(condition):
        krylov.summing(plan=plan, columns=1)
        krylov.times(plan=plan, x=ps, out=product)
        krylov.dot(plan=plan, x=ps, y=product, out=curvature)
        krylov.quotient(numerator=size, denominator=curvature, out=factor)
        krylov.add_multiple(x=ps, factor=factor, y=xs)
        nisa.tensor_scalar(dst=factor, data=factor, op0=nl.multiply, operand0=-1.0)
        krylov.add_multiple(x=product, factor=factor, y=rs)
        krylov.dot(plan=plan, x=rs, y=rs, out=following)
        krylov.quotient(numerator=following, denominator=size, out=factor)
        nisa.scalar_tensor_tensor(dst=ps, data=ps, op0=nl.multiply, operand0=factor, op1=nl.add, operand1=rs)
        nisa.tensor_copy(dst=size, src=following, engine=nisa.engine.vector)
        place = history.ap(pattern=[[most, 1], [1, 1]], offset=0, scalar_offset=done, indirect_dim=1)
        nisa.dma_copy(dst=place, src=size[0:1, :])
        nisa.tensor_tensor(dst=done, data1=done, data2=one, op=nl.add)
        following_condition = nisa.register_alloc()
        krylov.proceed(size=size, limit=least, done=done, most=most, flag=flag, register=following_condition)
        return following_condition

    nl.while_loop(more, step)
    outs = []
    for source in (xs, rs, ps, size, done):
        out = nl.ndarray(source.shape, dtype=source.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=source)
        outs.append(out)
    return (outs[0], outs[1], outs[2], outs[3], history, outs[4])
