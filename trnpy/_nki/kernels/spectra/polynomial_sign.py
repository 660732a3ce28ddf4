"""The matrix sign of a symmetric matrix by a composition of odd quintics, from products only, in one launch.

X of HBM passes between two buffers there; three products of float32 a step, bound by TensorE.
"""

import nki
import nki.isa as nisa
import nki.language as nl

from ..shared import blocks
from . import iterate


@nki.jit
def polynomial_sign(x, coefficients):
    """p_last(... p_first(x)) (N, N) for symmetric x (N, N) float32 in HBM, |x| <= 1; and (128, 2), to be summed over
    rows: the trace and the sum of squares of the result.

    coefficients: (steps, 3) float32, p(x) = c0 x + c1 x^3 + c2 x^5 for each of an even number of steps.
    """
    n = x.shape[0]
    assert coefficients.shape[0] % 2 == 0
    sign = nl.ndarray((n, n), dtype=nl.float32, buffer=nl.shared_hbm)
    sums = nl.ndarray((blocks.TILE, 2), dtype=nl.float32, buffer=nl.shared_hbm)
    other = nl.ndarray((n, n), dtype=nl.float32, buffer=nl.private_hbm)
    y = nl.ndarray((n, n), dtype=nl.float32, buffer=nl.private_hbm)
    z = nl.ndarray((n, n), dtype=nl.float32, buffer=nl.private_hbm)
    nisa.dma_copy(dst=sign, src=x)
    iterate.steps(walks=3 * coefficients.shape[0], x=sign, other=other, y=y, z=z, coefficients=coefficients)
    nisa.dma_copy(dst=sums, src=iterate.measure(x=sign))
    return sign, sums
