"""C = alpha A B + beta C0 for float32, bfloat16 or float16 operands of any size, in float32.

Blocks of (m_tiles x 128) by (n_tiles x 512) under one device loop; K in chunks of k_tiles x 128, two at
a time so that one is loaded while the other is multiplied. Edges are blocks of their own size. The
instruction count depends on the tile shape only.
"""

import nki
import nki.isa as nisa
import nki.language as nl

from . import blocks


@nki.jit
def matmul(a, b, alpha=None, c0=None, beta=None, a_rows=True, b_rows=True, m_tiles=8, n_tiles=2, k_tiles=8):
    """(M, N) float32 from a and b in HBM.

    a: (M, K) if a_rows, else (K, M); b: (K, N) if b_rows, else (N, K); of one dtype.
    alpha, beta: (1, 1) float32; c0: (M, N) float32. Without them C = A B.
    """
    m, k = a.shape if a_rows else (a.shape[1], a.shape[0])
    n = b.shape[1] if b_rows else b.shape[0]
    c = nl.ndarray((m, n), dtype=nl.float32, buffer=nl.shared_hbm)
    scales = (blocks.broadcast(scalar=alpha), blocks.broadcast(scalar=beta))
    m_block, n_block = m_tiles * blocks.TILE, n_tiles * blocks.TILE_N
    pools = blocks.pools_of(dtype=a.dtype, turned=a_rows or not b_rows, k_tiles=k_tiles, n_size=n_block)
    for m0, m_size, m_count in blocks.pieces(extent=m, block=m_block):
        for n0, n_size, n_count in blocks.pieces(extent=n, block=n_block):
            _blocks(
                a=a, b=b, c=c, c0=c0, scales=scales, a_rows=a_rows, b_rows=b_rows, k=k, k_tiles=k_tiles,
                m0=m0, m_size=m_size, m_count=m_count, n0=n0, n_size=n_size, n_count=n_count, pools=pools,
            )  # fmt: skip
    return c


def _blocks(a, b, c, c0, scales, a_rows, b_rows, k, k_tiles, m0, m_size, m_count, n0, n_size, n_count, pools):
    """Every block of one size: n outermost, so that a block of B stays while those of A pass."""
    a_step, b_step = a.shape[1] if a_rows else 1, 1 if b_rows else b.shape[1]  # from one row of C to the next
    a_at = blocks.offsets(pattern=[[0, n_count], [m_size * a_step, m_count]], start=m0 * a_step)
    b_at = blocks.offsets(pattern=[[n_size * b_step, n_count], [0, m_count]], start=n0 * b_step)
    c_at = blocks.offsets(pattern=[[n_size, n_count], [m_size * c.shape[1], m_count]], start=m0 * c.shape[1] + n0)
    tables = blocks.turn_tables(a=a, b=b, a_rows=a_rows, b_rows=b_rows, k=k, k_tiles=k_tiles)

    def block(t):
        sums = blocks.zeros(rows=m_size, columns=n_size)
        blocks.add_products(
            a=a, b=b, a_at=blocks.entry(table=a_at, t=t), b_at=blocks.entry(table=b_at, t=t), tables=tables, k=k,
            k_tiles=k_tiles, sums=sums, a_rows=a_rows, b_rows=b_rows, m_size=m_size, n_size=n_size, pools=pools,
        )  # fmt: skip
        c_here = blocks.entry(table=c_at, t=t)
        for i in range(len(sums)):
            rows, offset = sums[i].shape[0], i * blocks.TILE * c.shape[1]
            out = pools[3][i % blocks.OUTS][0:rows, 0:n_size]
            blocks.scale(c0=c0, scales=scales, at=c_here, offset=offset, tile=sums[i], out=out)
            nisa.dma_copy(dst=blocks.place(x=c, at=c_here, offset=offset, rows=rows, columns=n_size), src=out)

    nl.fori_loop(0, m_count * n_count, block)
