"""One float32 matrix of the words of digits_matmul: R (sum of word_w 2^(32 w)) C, R and C diagonal.

For a product of digits that stays on the device or is asked for in float32: 4 bytes an element instead of
12. Words are read as exact halves of 16 bits, so a sum is rounded once for each half. Bound by VectorE.
"""

import nki
import nki.isa as nisa
import nki.language as nl

from ..shared import blocks

WORD = 32  # bits
HALF = 16
LOW = 2**16 - 1
BLOCK = 2048  # columns: runs of 8 KiB in HBM


@nki.jit
def scale_combine(x, rows, columns):
    """(M, N) float32 of x (W, M, N) int32 words, the lowest first, rows (M, 1) and columns (1, N) float32.

    rows should hold the powers of two that keep 2^(32 W) rows columns inside float32: it is applied first.
    """
    words, m, n = x.shape
    out = nl.ndarray((m, n), dtype=nl.float32, buffer=nl.shared_hbm)
    job = {"x": x, "rows": rows, "columns": columns, "out": out}
    for m_piece in blocks.pieces(extent=m, block=blocks.TILE):
        m0, m_size, m_count = m_piece
        for n_piece in blocks.pieces(extent=n, block=BLOCK):
            n0, n_size, n_count = n_piece
            job["size"] = (m_size, n_size)
            spots = (
                [([[n_size, n_count], [m_size * n, m_count]], m0 * n + n0)],
                [([[0, n_count], [m_size, m_count]], m0)],
                [([[n_size, n_count], [0, m_count]], n0)],
            )
            blocks.walk(job=job, start=blocks.no_banks, body=_block, spots=spots, steps=12 + 8 * words)
    return out


def _block(job, at):
    """One block: words from the lowest up, so that the large ones are added last."""
    words, m, n = job["x"].shape
    m_size, n_size = job["size"]
    r, factor = blocks.tile(job=job, shape=(m_size, 1), dtype=nl.float32), _tile(job=job, dtype=nl.float32)
    nisa.dma_copy(dst=r, src=blocks.place(x=job["rows"], at=at[1], offset=0, rows=m_size, columns=1))
    nisa.dma_copy(dst=factor, src=blocks.view(x=job["columns"], at=at[2], pattern=[[0, m_size], [1, n_size]]))
    tiles = []
    for w in range(words):
        tiles.append(_tile(job=job, dtype=nl.int32))
        source = blocks.view(x=job["x"], at=at[0], pattern=[[n, m_size], [1, n_size]], offset=w * m * n)
        nisa.dma_copy(dst=tiles[w], src=source)
    negative, mask = _tile(job=job, dtype=nl.int32), _tile(job=job, dtype=nl.int32)
    half, total = _tile(job=job, dtype=nl.int32), _tile(job=job, dtype=nl.float32)
    scaled = blocks.tile(job=job, shape=(m_size, 2 * words), dtype=nl.float32)
    # -V = ~V + 1: without it words of small negative sums would cancel in float32.
    nisa.tensor_scalar(dst=negative, data=tiles[-1], op0=nl.right_shift, operand0=WORD - 1)
    nisa.tensor_scalar(dst=mask, data=negative, op0=nl.multiply, operand0=-1.0)
    nisa.tensor_scalar(dst=total, data=negative, op0=nl.multiply, operand0=r)
    for w in range(words):
        nisa.tensor_tensor(dst=tiles[w], data1=tiles[w], data2=mask, op=nl.bitwise_xor)
        for upper in range(2):
            if upper == 0:
                nisa.tensor_scalar(dst=half, data=tiles[w], op0=nl.bitwise_and, operand0=LOW)
            else:
                nisa.tensor_scalar(dst=half, data=tiles[w], op0=nl.right_shift, operand0=HALF)
            here = scaled[:, 2 * w + upper : 2 * w + upper + 1]
            nisa.tensor_scalar(dst=here, data=r, op0=nl.multiply, operand0=float(2 ** (WORD * w + HALF * upper)))
            nisa.scalar_tensor_tensor(dst=total, data=half, op0=nl.multiply, operand0=here, op1=nl.add, operand1=total)
    nisa.tensor_tensor(dst=total, data1=total, data2=factor, op=nl.multiply)
    nisa.tensor_scalar(dst=factor, data=negative, op0=nl.multiply, operand0=-2.0, op1=nl.add, operand1=1.0)
    nisa.tensor_tensor(dst=total, data1=total, data2=factor, op=nl.multiply)
    nisa.dma_copy(dst=blocks.place(x=job["out"], at=at[0], offset=0, rows=m_size, columns=n_size), src=total)


def _tile(job, dtype):
    return blocks.tile(job=job, shape=job["size"], dtype=dtype)
