"""The smallest positive element of A B for non-negative bfloat16 A and B, for the a-priori error bound of a product.

|A| and |B| are divided by the largest of each row and column. The sums are then (|A||B|)_ij / (a_i b_j), and the
reciprocal of the smallest is rho of the certificate (docs/digits.md#certificate). One bfloat16 pass; the product
never leaves the chip. Bound by VectorE below about K = 2300: four passes over each tile of sums.
8192^3 has 90,000 instructions, of which a device loop runs most (shared/blocks.walk).
"""

import nki
import nki.isa as nisa
import nki.language as nl

from ..shared import blocks

NOTHING = 2.0**100  # marks that no sum is positive: larger than any sum


@nki.jit
def abs_bound(a, b, a_rows=True, b_rows=True, m_tiles=8, n_tiles=2, k_tiles=8, batch=1):
    """(128, 1) float32 whose smallest element is the smallest positive element of A B, or NOTHING if there is none.

    a: (M, K) if a_rows, else (K, M); b: (K, N) if b_rows, else (N, K); non-negative bfloat16. batch: stacks of such
    matrices, one below the other; the smallest of all their products.
    """
    a_height, b_height = a.shape[0] // batch, b.shape[0] // batch
    m, k = (a_height, a.shape[1]) if a_rows else (a.shape[1], a_height)
    n = b.shape[1] if b_rows else b_height
    out = nl.ndarray((blocks.TILE, 1), dtype=nl.float32, buffer=nl.shared_hbm)
    tiles = (m_tiles, n_tiles, k_tiles)
    least = least_of(a=a, b=b, m=m, k=k, n=n, a_rows=a_rows, b_rows=b_rows, tiles=tiles, batch=batch)
    nisa.dma_copy(dst=out, src=least)
    return out


def least_of(a, b, m, k, n, a_rows, b_rows, tiles, walks=1, batch=1):
    """The same inside a kernel, on the chip."""
    least = nl.ndarray((blocks.TILE, 1), dtype=nl.float32, buffer=nl.sbuf)
    lowest = nl.ndarray((blocks.TILE, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=least, value=NOTHING, engine=nisa.engine.vector)
    blocks.product(
        job={"least": least, "lowest": lowest}, a=a, b=b, m=m, k=k, n=n, a_rows=a_rows, b_rows=b_rows, tiles=tiles,
        finish=_least, walks=walks, batch=batch, jumps=(m * k, k * n, 0),
    )  # fmt: skip
    return least


def _least(job, sums, at, n0):
    """Update ``least`` with the smallest positive sum of one block, for each partition."""
    columns = sums[0].shape[1]
    for i in range(len(sums)):
        rows = sums[i].shape[0]
        absent, lowest, least = job["pools"]["outs"][i % blocks.OUTS][0:rows, 0:columns], job["lowest"], job["least"]
        nisa.tensor_scalar(dst=absent, data=sums[i], op0=nl.equal, operand0=0.0, op1=nl.multiply, operand1=NOTHING)
        nisa.tensor_tensor(dst=absent, data1=absent, data2=sums[i], op=nl.maximum)
        nisa.tensor_reduce(dst=lowest[0:rows, :], op=nl.minimum, data=absent, axis=1)
        here = least[0:rows, :]
        nisa.tensor_tensor(dst=here, data1=here, data2=lowest[0:rows, :], op=nl.minimum)
