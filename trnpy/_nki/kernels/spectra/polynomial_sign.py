"""A composition of odd quintics of a matrix, from products only; for a symmetric matrix, the matrix sign.

X alternates between two buffers in HBM. A step is three float32 products, bound by TensorE. A launch has as many steps
as fit a program without a loop (_engine/iterations).
"""

import nki
import nki.isa as nisa
import nki.language as nl

from ..shared import blocks
from . import iterate


@nki.jit
def polynomial_sign(x, coefficients):
    """p_last(... p_first(x)) (N, R) for x (N, R) float32 in HBM, of norm at most 1; and (128, 2), to be summed over
    rows: if x is square, the trace and the sum of squares of the result.

    coefficients: (steps, 3) float32, p(x) = c0 x + c1 x x^T x + c2 x (x^T x)^2 for each step.
    """
    n, r = x.shape
    found = nl.ndarray((n, r), dtype=nl.float32, buffer=nl.shared_hbm)
    sums = nl.ndarray((blocks.TILE, 2), dtype=nl.float32, buffer=nl.shared_hbm)
    other = found
    if coefficients.shape[0] > 1:
        other = nl.ndarray((n, r), dtype=nl.float32, buffer=nl.private_hbm)
    y = nl.ndarray((r, r), dtype=nl.float32, buffer=nl.private_hbm)
    z = nl.ndarray((r, r), dtype=nl.float32, buffer=nl.private_hbm)
    iterate.steps(walks=3 * coefficients.shape[0], x=x, to=found, other=other, y=y, z=z, coefficients=coefficients)
    if n == r:
        nisa.dma_copy(dst=sums, src=iterate.measure(x=found))
    else:
        nisa.dma_copy(dst=sums[:, 0:1], src=iterate.constant(value=0.0))
        nisa.dma_copy(dst=sums[:, 1:2], src=iterate.constant(value=0.0))
    return found, sums
