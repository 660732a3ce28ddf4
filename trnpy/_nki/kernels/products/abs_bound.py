"""The smallest positive element of A B for non-negative bfloat16 A and B: how much exponent range a product hides.

With |A| and |B| divided by the largest of each row and column, the sums are (|A||B|)_ij / (a_i b_j), and one
over the smallest is rho of the certificate (docs/numerics.md#certificate). One bfloat16 pass; the product
never leaves the chip. Bound by VectorE below K = 2300 or so: four passes over each tile of sums.
"""

import nki
import nki.isa as nisa
import nki.language as nl

from ..shared import blocks

NOTHING = 2.0**100  # stands for no positive sum: larger than any


@nki.jit
def abs_bound(a, b, a_rows=True, b_rows=True, m_tiles=8, n_tiles=2, k_tiles=8):
    """(128, 1) float32 whose smallest element is the smallest positive one of A B; NOTHING when there is none.

    a: (M, K) if a_rows, else (K, M); b: (K, N) if b_rows, else (N, K); non-negative bfloat16.
    """
    m, k = a.shape if a_rows else (a.shape[1], a.shape[0])
    n = b.shape[1] if b_rows else b.shape[0]
    out = nl.ndarray((blocks.TILE, 1), dtype=nl.float32, buffer=nl.shared_hbm)
    least = nl.ndarray((blocks.TILE, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=least, value=NOTHING, engine=nisa.engine.vector)
    m_block, n_block = m_tiles * blocks.TILE, n_tiles * blocks.TILE_N
    pools = blocks.pools_of(dtype=a.dtype, turned=a_rows or not b_rows, k_tiles=k_tiles, m_size=m_block, n_size=n_block)
    for m_piece in blocks.pieces(extent=m, block=m_block):
        m0, m_size, m_count = m_piece
        for n_piece in blocks.pieces(extent=n, block=n_block):
            n0, n_size, n_count = n_piece
            _blocks(
                a=a, b=b, least=least, a_rows=a_rows, b_rows=b_rows, k=k, k_tiles=k_tiles, m0=m0, m_size=m_size,
                m_count=m_count, n0=n0, n_size=n_size, n_count=n_count, pools=pools,
            )  # fmt: skip
    nisa.dma_copy(dst=out, src=least)
    return out


def _blocks(a, b, least, a_rows, b_rows, k, k_tiles, m0, m_size, m_count, n0, n_size, n_count, pools):
    """Every block of one size, as in matmul; what remains of a block is one number a partition."""
    a_step, b_step = a.shape[1] if a_rows else 1, 1 if b_rows else b.shape[1]
    a_at = blocks.offsets(pattern=[[0, n_count], [m_size * a_step, m_count]], start=m0 * a_step)
    b_at = blocks.offsets(pattern=[[n_size * b_step, n_count], [0, m_count]], start=n0 * b_step)
    lowest = nl.ndarray((blocks.TILE, 1), dtype=nl.float32, buffer=nl.sbuf)

    def block(t):
        sums = blocks.zeros(rows=m_size, columns=n_size)
        blocks.add_products(
            a=a, b=b, a_at=blocks.entry(table=a_at, t=t), b_at=blocks.entry(table=b_at, t=t), k=k, k_tiles=k_tiles,
            sums=sums, a_rows=a_rows, b_rows=b_rows, m_size=m_size, n_size=n_size, pools=pools,
            banks=blocks.banks_of(dtype=a.dtype),
        )  # fmt: skip
        for i in range(len(sums)):
            rows = sums[i].shape[0]
            absent = pools[1][i % blocks.OUTS][0:rows, 0:n_size]
            nisa.tensor_scalar(dst=absent, data=sums[i], op0=nl.equal, operand0=0.0, op1=nl.multiply, operand1=NOTHING)
            nisa.tensor_tensor(dst=absent, data1=absent, data2=sums[i], op=nl.maximum)
            nisa.tensor_reduce(dst=lowest[0:rows, :], op=nl.minimum, data=absent, axis=1)
            here = least[0:rows, :]
            nisa.tensor_tensor(dst=here, data1=here, data2=lowest[0:rows, :], op=nl.minimum)

    nl.fori_loop(0, nisa.register_alloc(m_count * n_count), block)
