"""An orthonormal basis of an invariant subspace, and the matrix in it, from products only, in one launch.

A random block is projected and replaced by its polar factor, computed by a composition of odd quintics. Both steps are
repeated: the second time the rounding errors in the complement are not amplified.
"""

import nki
import nki.language as nl

from . import iterate


@nki.jit
def orthonormal_polar(h, operator, omega, coefficients, polish, complement=False):
    """Q (N, R), Q^T h Q (R, R), and (128, 2) whose second column sums to |Q^T Q - I|_F^2; all float32, in HBM.

    h: (N, N) symmetric; omega: (N, R), of norm below 1; coefficients, polish: (steps, 3), an even number of steps each.
    The subspace belongs to the eigenvalue 1 of operator (N, N), a matrix sign; or if ``complement``, it is orthogonal
    to the orthonormal columns of operator (N, C). Zero columns of omega remain zero, and add 1 each to the sum.
    """
    n, r = omega.shape
    assert coefficients.shape[0] % 2 == 0 and polish.shape[0] % 2 == 0
    q = nl.ndarray((n, r), dtype=nl.float32, buffer=nl.shared_hbm)
    x = nl.ndarray((n, r), dtype=nl.float32, buffer=nl.private_hbm)
    other = nl.ndarray((n, r), dtype=nl.float32, buffer=nl.private_hbm)
    y = nl.ndarray((r, r), dtype=nl.float32, buffer=nl.private_hbm)
    z = nl.ndarray((r, r), dtype=nl.float32, buffer=nl.private_hbm)
    walks = 3 * (coefficients.shape[0] + polish.shape[0]) + 7
    job = {"walks": walks, "operator": operator, "complement": complement}
    if complement:
        job["overlap"] = nl.ndarray((operator.shape[1], r), dtype=nl.float32, buffer=nl.private_hbm)
        job["scales"] = (iterate.constant(value=-1.0), iterate.constant(value=1.0))
    else:
        job["scales"] = (iterate.constant(value=0.5), iterate.constant(value=0.5))
    _project(job=job, x=omega, out=x)
    iterate.steps(walks=walks, x=x, to=x, other=other, y=y, z=z, coefficients=coefficients)
    _project(job=job, x=x, out=q)
    iterate.steps(walks=walks, x=q, to=q, other=other, y=y, z=z, coefficients=polish)
    inside, sums = iterate.close(walks=walks, h=h, q=q, other=other, y=y)
    return q, inside, sums


def _project(job, x, out):
    """out = (X + S X) / 2, or X - C (C^T X)."""
    alpha, beta = job["scales"]
    if not job["complement"]:
        iterate.multiply(
            walks=job["walks"], a=job["operator"], b=x, out=out, transposed=True, alpha=alpha, c0=x, beta=beta
        )
        return
    iterate.multiply(walks=job["walks"], a=job["operator"], b=x, out=job["overlap"], transposed=True)
    iterate.multiply(walks=job["walks"], a=job["operator"], b=job["overlap"], out=out, alpha=alpha, c0=x, beta=beta)
