"""A symmetric matrix in a basis, and the basis's distance from orthonormal, from products only, in one launch."""

import nki
import nki.language as nl

from . import iterate


@nki.jit
def projected_matrix(h, q):
    """Q^T h Q (R, R), and (128, 2) whose second column sums to |Q^T Q - I|_F^2; h (N, N) symmetric, q (N, R), float32.

    Columns of zeros in q count 1 each in the sum.
    """
    n, r = q.shape
    other = nl.ndarray((n, r), dtype=nl.float32, buffer=nl.private_hbm)
    y = nl.ndarray((r, r), dtype=nl.float32, buffer=nl.private_hbm)
    inside, sums = iterate.close(walks=3, h=h, q=q, other=other, y=y)
    return inside, sums
