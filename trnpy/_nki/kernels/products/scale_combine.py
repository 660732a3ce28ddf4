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
    _, m, n = x.shape
    out = nl.ndarray((m, n), dtype=nl.float32, buffer=nl.shared_hbm)
    for m_piece in blocks.pieces(extent=m, block=blocks.TILE):
        m0, m_size, m_count = m_piece
        for n_piece in blocks.pieces(extent=n, block=BLOCK):
            n0, n_size, n_count = n_piece
            x_at = blocks.offsets(pattern=[[n_size, n_count], [m_size * n, m_count]], start=m0 * n + n0)
            row_at = blocks.offsets(pattern=[[0, n_count], [m_size, m_count]], start=m0)
            column_at = blocks.offsets(pattern=[[n_size, n_count], [0, m_count]], start=n0)
            _blocks(
                x=x, rows=rows, columns=columns, out=out, tables=(x_at, row_at, column_at), count=m_count * n_count,
                m_size=m_size, n_size=n_size,
            )  # fmt: skip
    return out


def _blocks(x, rows, columns, out, tables, count, m_size, n_size):
    """Every block of one size: words from the lowest up, so that the large ones are added last."""
    words, m, n = x.shape

    def block(t):
        at = blocks.entry(table=tables[0], t=t)
        row_at, column_at = blocks.entry(table=tables[1], t=t), blocks.entry(table=tables[2], t=t)
        r = nl.ndarray((m_size, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=r, src=blocks.place(x=rows, at=row_at, offset=0, rows=m_size, columns=1))
        factor = nl.ndarray((m_size, n_size), dtype=nl.float32, buffer=nl.sbuf)
        source = blocks.flat(columns).ap(pattern=[[0, m_size], [1, n_size]], scalar_offset=column_at, indirect_dim=0)
        nisa.dma_copy(dst=factor, src=source)
        tiles = []
        for w in range(words):
            tiles.append(nl.ndarray((m_size, n_size), dtype=nl.int32, buffer=nl.sbuf))
            pattern = [[n, m_size], [1, n_size]]
            source = blocks.flat(x).ap(pattern=pattern, offset=w * m * n, scalar_offset=at, indirect_dim=0)
            nisa.dma_copy(dst=tiles[w], src=source)
        negative = nl.ndarray((m_size, n_size), dtype=nl.int32, buffer=nl.sbuf)
        mask = nl.ndarray((m_size, n_size), dtype=nl.int32, buffer=nl.sbuf)
        total = nl.ndarray((m_size, n_size), dtype=nl.float32, buffer=nl.sbuf)
        half = nl.ndarray((m_size, n_size), dtype=nl.int32, buffer=nl.sbuf)
        scaled = nl.ndarray((m_size, 2 * words), dtype=nl.float32, buffer=nl.sbuf)
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
                nisa.scalar_tensor_tensor(
                    dst=total, data=half, op0=nl.multiply, operand0=here, op1=nl.add, operand1=total
                )
        nisa.tensor_tensor(dst=total, data1=total, data2=factor, op=nl.multiply)
        nisa.tensor_scalar(dst=factor, data=negative, op0=nl.multiply, operand0=-2.0, op1=nl.add, operand1=1.0)
        nisa.tensor_tensor(dst=total, data1=total, data2=factor, op=nl.multiply)
        nisa.dma_copy(dst=blocks.place(x=out, at=at, offset=0, rows=m_size, columns=n_size), src=total)

    nl.fori_loop(0, nisa.register_alloc(count), block)
