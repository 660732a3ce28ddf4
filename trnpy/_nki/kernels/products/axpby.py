"""alpha X + beta Y of matrices in HBM, rounded once to the format that the next product multiplies.

What follows a product whose result stays on the device: a sum, a scale, or float32 as bfloat16 operand.
Bound by DMA: two reads and one write of every element.
"""

import nki
import nki.isa as nisa
import nki.language as nl

from ..shared import blocks

COLUMNS = 1024  # of a tile: runs of 4 KiB in HBM at float32
TURN = 8  # tiles of one turn of the loop: one moves while others are added


@nki.jit
def axpby(x, y=None, alpha=None, beta=None, form="float32"):
    """(M, N) in ``form`` (float32, bfloat16 or float16) from x and y (M, N), of one of these each.

    alpha, beta: (1, 1) float32, or 1 where they are left out; without y what is left is alpha X.
    """
    m, n = x.shape
    out = nl.ndarray((m, n), dtype=_format(form=form), buffer=nl.shared_hbm)
    scales = (blocks.broadcast(scalar=alpha), blocks.broadcast(scalar=beta))
    for m_piece in blocks.pieces(extent=m, block=TURN * blocks.TILE):
        m0, m_size, m_count = m_piece
        for n_piece in blocks.pieces(extent=n, block=COLUMNS):
            n0, n_size, n_count = n_piece
            table = blocks.offsets(pattern=[[n_size, n_count], [m_size * n, m_count]], start=m0 * n + n0)

            def block(t, table=table, m_size=m_size, n_size=n_size):
                at = blocks.entry(table=table, t=t)
                for i in range(0, m_size, blocks.TILE):
                    _tile(
                        operands=(x, y), out=out, scales=scales, at=at, offset=i * n, rows=min(blocks.TILE, m_size - i),
                        columns=n_size,
                    )  # fmt: skip

            nl.fori_loop(0, nisa.register_alloc(m_count * n_count), block)
    return out


def _tile(operands, out, scales, at, offset, rows, columns):
    """One tile: ScalarE scales the first term, VectorE adds the second."""
    x, y = operands
    left = nl.ndarray((rows, columns), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=left, src=blocks.place(x=x, at=at, offset=offset, rows=rows, columns=columns))
    result = nl.ndarray((rows, columns), dtype=out.dtype, buffer=nl.sbuf)
    if y == None:  # noqa: E711 - NKI has no `is`
        _scale(dst=result, src=left, by=scales[0])
    else:
        right = nl.ndarray((rows, columns), dtype=y.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=right, src=blocks.place(x=y, at=at, offset=offset, rows=rows, columns=columns))
        scaled = nl.ndarray((rows, columns), dtype=nl.float32, buffer=nl.sbuf)
        _scale(dst=scaled, src=left, by=scales[0])
        beta = 1.0 if scales[1] == None else scales[1][0:rows, :]  # noqa: E711
        nisa.scalar_tensor_tensor(dst=result, data=right, op0=nl.multiply, operand0=beta, op1=nl.add, operand1=scaled)
    nisa.dma_copy(dst=blocks.place(x=out, at=at, offset=offset, rows=rows, columns=columns), src=result)


def _format(form):
    if form == "bfloat16":
        return nl.bfloat16
    return nl.float16 if form == "float16" else nl.float32


def _scale(dst, src, by):
    """dst = by src."""
    if by == None:  # noqa: E711
        nisa.activation(dst=dst, op=nl.copy, data=src)  # trn1 has no tensor_copy on ScalarE
    else:
        nisa.activation(dst=dst, op=nl.copy, data=src, scale=by[0 : src.shape[0], :])
