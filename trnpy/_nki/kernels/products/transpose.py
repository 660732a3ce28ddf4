"""The transpose of a matrix in HBM, bit for bit, for float32, bfloat16, float16 and int32 of any shape.

128 x 128 tiles go through TensorE, whose transpose moves bits and computes nothing (trn2 and later); it
takes no integers, so int32 travels as float32. Rows arrive and leave in runs of 4 KiB, near the peak of DMA.
"""

import nki
import nki.isa as nisa
import nki.language as nl

from ..shared import blocks

BANK_BYTES = 2048  # one PSUM bank of a partition: as many tiles side by side leave it in one instruction
BANKS = 8
RUN_BYTES = 4096  # of a row, each way: 96 % of the peak of DMA (nki-dma-bandwidth-guide.rst)
HALVES = 2  # strips of a block are loaded while those before them are turned


@nki.jit
def transpose(x, m_tiles=None, n_tiles=None):
    """(N, M) from x (M, N), in the dtype of x; tiles of half a block, by default rows of 4 KiB."""
    m, n = x.shape
    out = nl.ndarray((n, m), dtype=x.dtype, buffer=nl.shared_hbm)
    dtype = nl.float32 if x.dtype == nl.int32 else x.dtype
    default = RUN_BYTES // (4 if dtype == nl.float32 else 2) // blocks.TILE
    turn(x=x.view(dtype), out=out.view(dtype), m_tiles=m_tiles or default, n_tiles=n_tiles or default)
    return out


def turn(x, out, m_tiles, n_tiles):
    """out (N, M) = x (M, N) transposed; both in HBM, of one dtype that TensorE takes."""
    m, n = x.shape
    dtype = x.dtype
    rows, columns = m_tiles * blocks.TILE, n_tiles * blocks.TILE
    strips, outs = [], []
    for _ in range(HALVES * m_tiles):
        strips.append(nl.ndarray((blocks.TILE, columns), dtype=dtype, buffer=nl.sbuf))
    for _ in range(n_tiles):
        outs.append(nl.ndarray((blocks.TILE, rows), dtype=dtype, buffer=nl.sbuf))
    for m_piece in blocks.pieces(extent=m, block=HALVES * rows):
        m0, m_size, m_count = m_piece
        for n_piece in blocks.pieces(extent=n, block=columns):
            n0, n_size, n_count = n_piece
            pattern = [[m_size * n, m_count], [n_size, n_count]]
            x_at = blocks.offsets(pattern=pattern, start=m0 * n + n0)
            pattern = [[m_size, m_count], [n_size * m, n_count]]
            out_at = blocks.offsets(pattern=pattern, start=n0 * m + m0)

            def block(t, x_at=x_at, out_at=out_at, m_size=m_size, n_size=n_size):
                x_here, out_here = blocks.entry(table=x_at, t=t), blocks.entry(table=out_at, t=t)
                banks = _banks(dtype=dtype)
                for row in range(0, m_size, rows):
                    _half(
                        x=x, x_at=x_here, out=out, out_at=out_here, row=row, height=min(rows, m_size - row),
                        width=n_size, strips=strips[row // blocks.TILE :], outs=outs, banks=banks,
                    )  # fmt: skip

            nl.fori_loop(0, nisa.register_alloc(m_count * n_count), block)


def _banks(dtype):
    """PSUM of one loop body."""
    banks = []
    for _ in range(BANKS):
        form = blocks.turned_format(dtype=dtype)
        shape = (blocks.TILE, BANK_BYTES // (4 if form == nl.float32 else 2))
        banks.append(nl.ndarray(shape, dtype=form, buffer=nl.psum))
    return banks


def _half(x, x_at, out, out_at, row, height, width, strips, outs, banks):
    """Turn ``height`` rows of one block from ``row`` on: into that many columns of the result."""
    n, m = x.shape[1], out.shape[1]
    for i in range(0, height, blocks.TILE):
        size = min(blocks.TILE, height - i)
        source = blocks.place(x=x, at=x_at, offset=(row + i) * n, rows=size, columns=width)
        nisa.dma_copy(dst=strips[i // blocks.TILE][0:size, 0:width], src=source)
    bank_width = banks[0].shape[1]
    used = 0
    for j in range(0, width, blocks.TILE):
        size = min(blocks.TILE, width - j)
        here = outs[j // blocks.TILE][0:size, 0:height]
        for i0 in range(0, height, bank_width):
            stop = min(height, i0 + bank_width)
            bank = banks[used % BANKS]
            for i in range(i0, stop, blocks.TILE):
                depth = min(blocks.TILE, height - i)
                nisa.nc_transpose(
                    dst=bank[0:size, i - i0 : i - i0 + depth],
                    data=strips[i // blocks.TILE][0:depth, j : j + size],
                    engine=nisa.engine.tensor,
                )
            nisa.tensor_copy(dst=here[:, i0:stop], src=bank[0:size, 0 : stop - i0], engine=nisa.engine.vector)
            used += 1
        nisa.dma_copy(dst=blocks.place(x=out, at=out_at, offset=j * m + row, rows=size, columns=height), src=here)
