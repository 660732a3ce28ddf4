"""``most`` iterations of conjugate gradients in one launch: A in HBM, vectors and scalars on the chip, no loop.

Steps after convergence of the residual change nothing; the host tests it between launches. All arithmetic is float32;
the host computes residuals in float64 (iterative refinement). A product with A is bound by the transfer of its tiles,
0.2 us each in the model; the rest of an iteration is ten passes over vectors by VectorE.
"""

import nki
import nki.isa as nisa
import nki.language as nl

from . import krylov


@nki.jit
def cg_iterations(
    tiles, column_of, row_of, first_row, x, r, p, rho, limit, m_tiles=None, m_column_of=None, m_row_of=None,
    m_first_row=None, most=32,
):  # fmt: skip
    """(x, r, p, rho, history) after ``most`` steps; once rho = r . M r is at most ``limit`` they do nothing.

    tiles (T 128, 16 128) float32: 16 tiles of a symmetric matrix side by side, K on the rows, sorted by block rows, in
    turns of 128 tiles, the last filled up with zeros. Of each turn: column_of (128, turns) int32: the block of the
    vector that a tile meets; row_of (128, turns) float32: its block row less that of the first, -1 of none; first_row
    (1, turns) int32. x, r, p (128, R) float32: element R i + c is [i, c]; p is the direction of the next step; rho,
    limit (128, 1), all elements equal. The preconditioner M, the identity if omitted, is stored as A is. history
    (1, most): rho after each step.
    """
    plan = krylov.operator(tiles=tiles, column_of=column_of, row_of=row_of, first_row=first_row, blocks=x.shape[1])
    inverse = krylov.beside(plan=plan, tiles=m_tiles, column_of=m_column_of, row_of=m_row_of, first_row=m_first_row)
    state = []
    for source in (x, r, p, rho):
        state.append(krylov.on_chip(source=source))
    xs, rs, ps, size = state
    least = krylov.on_chip(source=limit)
    product = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.sbuf)
    zs = rs
    if inverse != None:  # noqa: E711 - NKI has no `is`
        zs = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.sbuf)
    history = nl.ndarray((1, most), dtype=nl.float32, buffer=nl.sbuf)
    scalars = []
    for _ in range(3):
        scalars.append(nl.ndarray(rho.shape, dtype=nl.float32, buffer=nl.sbuf))
    curvature, factor, following = scalars
    for step in range(most):
        going = krylov.going(size=size, limit=least)
        krylov.times(plan=plan, x=ps, out=product)
        krylov.dot(plan=plan, x=ps, y=product, out=curvature)
        krylov.quotient(numerator=size, denominator=curvature, state=going, out=factor)
        krylov.add_multiple(x=ps, factor=factor, y=xs)
        nisa.tensor_scalar(dst=factor, data=factor, op0=nl.multiply, operand0=-1.0)
        krylov.add_multiple(x=product, factor=factor, y=rs)
        krylov.preconditioned(inverse=inverse, x=rs, out=zs)
        krylov.dot(plan=plan, x=rs, y=zs, out=following)
        krylov.quotient(numerator=following, denominator=size, state=going, out=factor)
        nisa.scalar_tensor_tensor(dst=ps, data=ps, op0=nl.multiply, operand0=factor, op1=nl.add, operand1=zs)
        nisa.tensor_copy(dst=size, src=following, engine=nisa.engine.vector)
        nisa.tensor_copy(dst=history[:, step : step + 1], src=size[0:1, :], engine=nisa.engine.vector)
    outs = krylov.returned(sources=(xs, rs, ps, size, history))
    return (outs[0], outs[1], outs[2], outs[3], outs[4])
