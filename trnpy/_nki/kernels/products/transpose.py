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
COLUMN_TILES = 8  # with which strips of 16-bit numbers fit on trn1
HALVES = 2  # strips of a block are loaded while the previous ones are transposed


@nki.jit
def transpose(x, m_tiles=None, n_tiles=None):
    """(N, M) from x (M, N), in the dtype of x; m_tiles, n_tiles: of half a block, by default rows of 4 KiB."""
    m, n = x.shape
    out = nl.ndarray((n, m), dtype=x.dtype, buffer=nl.shared_hbm)
    dtype = nl.float32 if x.dtype == nl.int32 else x.dtype
    default = RUN_BYTES // (4 if dtype == nl.float32 else 2) // blocks.TILE
    n_tiles = n_tiles or min(default, COLUMN_TILES)
    turn(x=x.view(dtype), out=out.view(dtype), m_tiles=m_tiles or default, n_tiles=n_tiles)
    return out


def turn(x, out, m_tiles, n_tiles, fold=None):
    """out (N, M) = x (M, N) transposed; both in HBM, of one dtype that TensorE takes.

    fold: rows of x in one transpose; out (M / fold rounded up, N, fold) has one transpose after another.
    """
    m, n = x.shape
    fold = fold or m
    rows, columns = m_tiles * blocks.TILE, n_tiles * blocks.TILE
    job = {"x": x, "out": out, "fold": fold, "rows": rows, "strips": [], "outs": []}
    job["identity"] = blocks.identity_of(dtype=x.dtype)
    for _ in range(HALVES * m_tiles):
        job["strips"].append(nl.ndarray((blocks.TILE, columns), dtype=x.dtype, buffer=nl.sbuf))
    for _ in range(n_tiles):
        job["outs"].append(nl.ndarray((blocks.TILE, rows), dtype=x.dtype, buffer=nl.sbuf))
    for f in range(0, m, fold):
        for m_piece in blocks.pieces(extent=min(fold, m - f), block=HALVES * rows):
            m0, m_size, m_count = m_piece
            for n_piece in blocks.pieces(extent=n, block=columns):
                n0, n_size, n_count = n_piece
                job["size"] = (m_size, n_size)
                spots = (
                    [([[m_size * n, m_count], [n_size, n_count]], (f + m0) * n + n0)],
                    [([[m_size, m_count], [n_size * fold, n_count]], f * n + n0 * fold + m0)],
                )
                steps = HALVES * m_tiles * (1 + n_tiles) + HALVES * n_tiles * 2
                blocks.walk(job=job, start=_start, body=_block, spots=spots, steps=steps)


def _start(job):
    """PSUM of an iteration."""
    job["banks"] = []
    for _ in range(BANKS):
        form = blocks.turned_format(dtype=job["x"].dtype)
        shape = (blocks.TILE, BANK_BYTES // (4 if form == nl.float32 else 2))
        job["banks"].append(nl.ndarray(shape, dtype=form, buffer=nl.psum))


def _block(job, at):
    """One block, a half of its rows after the other."""
    m_size, n_size = job["size"]
    for row in range(0, m_size, job["rows"]):
        _half(job=job, at=at, row=row, height=min(job["rows"], m_size - row), width=n_size)


def _half(job, at, row, height, width):
    """Turn ``height`` rows of one block from ``row`` on: into that many columns of the result."""
    x, fold, banks, strips = job["x"], job["fold"], job["banks"], job["strips"][row // blocks.TILE :]
    for i in range(0, height, blocks.TILE):
        size = min(blocks.TILE, height - i)
        source = blocks.place(x=x, at=at[0], offset=(row + i) * x.shape[1], rows=size, columns=width)
        nisa.dma_copy(dst=strips[i // blocks.TILE][0:size, 0:width], src=source)
    bank_width = banks[0].shape[1]
    used = 0
    for j in range(0, width, blocks.TILE):
        size = min(blocks.TILE, width - j)
        here = job["outs"][j // blocks.TILE][0:size, 0:height]
        for i0 in range(0, height, bank_width):
            stop = min(height, i0 + bank_width)
            bank = banks[used % BANKS]
            for i in range(i0, stop, blocks.TILE):
                depth = min(blocks.TILE, height - i)
                blocks.turn(
                    dst=bank[0:size, i - i0 : i - i0 + depth],
                    data=strips[i // blocks.TILE][0:depth, j : j + size],
                    identity=job["identity"],
                )
            nisa.tensor_copy(dst=here[:, i0:stop], src=bank[0:size, 0 : stop - i0], engine=nisa.engine.vector)
            used += 1
        target = blocks.view(x=job["out"], at=at[1], pattern=[[fold, size], [1, height]], offset=j * fold + row)
        nisa.dma_copy(dst=target, src=here)
