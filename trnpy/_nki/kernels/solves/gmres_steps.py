"""One cycle of GMRES in one launch: ``most`` steps without a loop, with basis, residual and solution on the chip.

Simpler GMRES with an adaptive basis (Jiranek, Rozloznik & Gutknecht, SIAM J. Matrix Anal. 30 (2008) 1483): the
orthogonal vectors span A times the Krylov space. Each is subtracted from the residual, whose norm therefore needs no
rotations. A new direction is the residual if it shrinks, and the last orthogonal vector if it stagnates. Directions are
updated so that A p = q, and the solution needs no triangular system. Gram-Schmidt is applied twice, without square
roots: vectors are not normalised. Steps after convergence change nothing. All arithmetic is float32; the host computes
residuals in float64 between cycles.
"""

import nki
import nki.isa as nisa
import nki.language as nl

from . import krylov

TILE = 128
SHRINKS = 0.81  # of r . r, the square of the paper's 0.9: above it the residual is too near to what was
SMALLEST = 1e-35  # replaces a square of zero as a divisor


@nki.jit
def gmres_steps(
    tiles, column_of, row_of, first_row, r, limit, m_tiles=None, m_column_of=None, m_row_of=None, m_first_row=None,
    most=20,
):  # fmt: skip
    """(x, r, history) of M A x = r after ``most`` steps; once r . r is at most ``limit`` they do nothing.

    tiles, column_of, row_of and first_row as for cg_iterations, of a square matrix; so is M. r (128, R): element
    R i + c is [i, c]; limit (128, 1), all elements equal. history (1, most): r . r after each step.
    """
    plan = krylov.operator(tiles=tiles, column_of=column_of, row_of=row_of, first_row=first_row, blocks=r.shape[1])
    inverse = krylov.beside(plan=plan, tiles=m_tiles, column_of=m_column_of, row_of=m_row_of, first_row=m_first_row)
    rs, least = krylov.on_chip(source=r), krylov.on_chip(source=limit)
    x, change = _vector(like=r), _vector(like=r)
    nisa.memset(dst=x, value=0.0, engine=nisa.engine.vector)
    images, directions = [], []
    scalars = []
    for columns in (most, most, most, 1, 1, 1, 1):
        scalars.append(nl.ndarray((TILE, columns), dtype=nl.float32, buffer=nl.sbuf))
    inverses, all_parts, all_shares, size, before, share, shrinks = scalars
    history = nl.ndarray((1, most), dtype=nl.float32, buffer=nl.sbuf)
    krylov.dot(plan=plan, x=rs, y=rs, out=size)
    for step in range(most):
        more, _ = krylov.going(size=size, limit=least)
        direction, image = _vector(like=r), _vector(like=r)
        if step == 0:
            nisa.tensor_copy(dst=direction, src=rs, engine=nisa.engine.vector)
        else:
            last = images[step - 1]
            nisa.tensor_tensor(dst=change, data1=rs, data2=last, op=nl.subtract)
            nisa.scalar_tensor_tensor(
                dst=direction, data=change, op0=nl.multiply, operand0=shrinks, op1=nl.add, operand1=last
            )
        krylov.times(plan=plan, x=direction, out=image)
        krylov.preconditioned(inverse=inverse, x=image, out=image)
        for _ in range(2 if step > 0 else 0):
            parts, shares = all_parts[:, 0:step], all_shares[:, 0:step]
            for i in range(step):
                nisa.tensor_tensor(dst=change, data1=images[i], data2=image, op=nl.multiply)
                nisa.tensor_reduce(dst=parts[:, i : i + 1], op=nl.add, data=change, axis=1)
            krylov.total(plan=plan, parts=parts, out=shares)
            nisa.scalar_tensor_tensor(
                dst=shares, data=shares, op0=nl.multiply, operand0=-1.0, op1=nl.multiply, operand1=inverses[:, 0:step]
            )
            for i in range(step):
                krylov.add_multiple(x=images[i], factor=shares[:, i : i + 1], y=image)
                krylov.add_multiple(x=directions[i], factor=shares[:, i : i + 1], y=direction)
        length = inverses[:, step : step + 1]
        krylov.dot(plan=plan, x=image, y=image, out=length)
        nisa.tensor_scalar(dst=length, data=length, op0=nl.maximum, operand0=SMALLEST)
        nisa.reciprocal(dst=length, data=length)
        krylov.dot(plan=plan, x=image, y=rs, out=share)
        nisa.tensor_tensor(dst=share, data1=share, data2=length, op=nl.multiply)
        nisa.tensor_tensor(dst=share, data1=share, data2=more, op=nl.multiply)
        krylov.add_multiple(x=direction, factor=share, y=x)
        nisa.tensor_scalar(dst=share, data=share, op0=nl.multiply, operand0=-1.0)
        krylov.add_multiple(x=image, factor=share, y=rs)
        images.append(image)
        directions.append(direction)
        nisa.tensor_scalar(dst=before, data=size, op0=nl.multiply, operand0=SHRINKS)
        krylov.dot(plan=plan, x=rs, y=rs, out=size)
        nisa.tensor_tensor(dst=shrinks, data1=before, data2=size, op=nl.greater)
        nisa.tensor_copy(dst=history[:, step : step + 1], src=size[0:1, :], engine=nisa.engine.vector)
    outs = krylov.returned(sources=(x, rs, history))
    return (outs[0], outs[1], outs[2])


def _vector(like):
    return nl.ndarray(like.shape, dtype=nl.float32, buffer=nl.sbuf)
