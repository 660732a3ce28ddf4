"""alpha X + beta Y of matrices in HBM, rounded once to the format that the next product multiplies.

For device-resident products: adds them, scales them, or rounds them for the next product.
Bound by DMA: two reads and one write of every element.
"""

import nki
import nki.isa as nisa
import nki.language as nl

from ..shared import blocks

COLUMNS = 1024  # of a tile: runs of 4 KiB in HBM at float32
TILES = 4  # of a block: the next block is loaded while this one is added


@nki.jit
def axpby(x, y=None, alpha=None, beta=None, form="float32"):
    """(M, N) in ``form`` (float32, bfloat16 or float16) from x and y (M, N), each of one of these dtypes.

    alpha, beta: (1, 1) float32; 1 if left out. Without y: alpha X.
    """
    m, n = x.shape
    out = nl.ndarray((m, n), dtype=_format(form=form), buffer=nl.shared_hbm)
    scales = (blocks.broadcast(scalar=alpha), blocks.broadcast(scalar=beta))
    job = {"operands": (x, y), "out": out, "scales": scales}
    for m_piece in blocks.pieces(extent=m, block=TILES * blocks.TILE):
        m0, m_size, m_count = m_piece
        for n_piece in blocks.pieces(extent=n, block=COLUMNS):
            n0, n_size, n_count = n_piece
            job["size"] = (m_size, n_size)
            spots = ([([[n_size, n_count], [m_size * n, m_count]], m0 * n + n0)],)
            blocks.walk(job=job, start=blocks.no_banks, body=_block, spots=spots, steps=5 * TILES)
    return out


def _block(job, at):
    """Some tiles: ScalarE scales the first term, VectorE adds the second."""
    m_size, columns = job["size"]
    x, y = job["operands"]
    alpha, beta = job["scales"]
    out = job["out"]
    for i in range(0, m_size, blocks.TILE):
        rows, offset = min(blocks.TILE, m_size - i), i * out.shape[1]
        left = blocks.tile(job=job, shape=(rows, columns), dtype=x.dtype)
        nisa.dma_copy(dst=left, src=blocks.place(x=x, at=at[0], offset=offset, rows=rows, columns=columns))
        result = blocks.tile(job=job, shape=(rows, columns), dtype=out.dtype)
        if y == None:  # noqa: E711 - NKI has no `is`
            _scale(dst=result, src=left, by=alpha)
        else:
            right = blocks.tile(job=job, shape=(rows, columns), dtype=y.dtype)
            nisa.dma_copy(dst=right, src=blocks.place(x=y, at=at[0], offset=offset, rows=rows, columns=columns))
            scaled = blocks.tile(job=job, shape=(rows, columns), dtype=nl.float32)
            _scale(dst=scaled, src=left, by=alpha)
            factor = 1.0 if beta == None else beta[0:rows, :]  # noqa: E711
            nisa.scalar_tensor_tensor(
                dst=result, data=right, op0=nl.multiply, operand0=factor, op1=nl.add, operand1=scaled
            )
        nisa.dma_copy(dst=blocks.place(x=out, at=at[0], offset=offset, rows=rows, columns=columns), src=result)


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
