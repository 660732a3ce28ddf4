"""C = alpha A B + beta C0 for float32, bfloat16 or float16 operands of any size, in float32.

Blocks have (m_tiles x 128) rows, fewer if all of their K would not fit on the chip, and (n_tiles x 512) columns. K is
cut into chunks of k_tiles x 128; one is loaded while another is multiplied. Edges are blocks of their own size.
Up to 4096^3 there is no device loop; 8192^3 would have 107,000 instructions, and loops over its blocks
(shared/blocks.walk).
"""

import nki
import nki.language as nl

from ..shared import blocks


@nki.jit
def matmul(a, b, alpha=None, c0=None, beta=None, a_rows=True, b_rows=True, m_tiles=8, n_tiles=2, k_tiles=None):
    """(M, N) float32 from a and b in HBM.

    a: (M, K) if a_rows, else (K, M); b: (K, N) if b_rows, else (N, K); of one dtype.
    alpha, beta: (1, 1) float32; c0: (M, N) float32. Without them C = A B.
    k_tiles: None for as many as always fit on the chip.
    """
    m, k = a.shape if a_rows else (a.shape[1], a.shape[0])
    n = b.shape[1] if b_rows else b.shape[0]
    c = nl.ndarray((m, n), dtype=nl.float32, buffer=nl.shared_hbm)
    job = {"c": c, "c0": c0, "scales": (blocks.broadcast(scalar=alpha), blocks.broadcast(scalar=beta))}
    blocks.product(
        job=job, a=a, b=b, m=m, k=k, n=n, a_rows=a_rows, b_rows=b_rows, tiles=(m_tiles, n_tiles, k_tiles),
        finish=blocks.store,
    )  # fmt: skip
    return c
