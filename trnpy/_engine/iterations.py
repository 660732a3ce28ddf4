"""Iterations in few launches: polynomial signs, bases, Jacobi sweeps. Callers check the results."""

from __future__ import annotations

from typing import Any

import numpy as np

from trnpy._base.records import record
from trnpy._engine.abstract_arrays import usual
from trnpy._engine.engines import Engine, Handle
from trnpy._nki.kernels.spectra.jacobi_sweep_reference import order


@record()
class Sign:
    """S (n, n), its trace, and the sum of its squares."""

    matrix: Handle
    trace: float
    squares: float


@record()
class Subspace:
    """Q (n, r), the projected matrix Q^T h Q (r, r), and |Q^T Q - I|_F."""

    basis: Handle
    inside: np.ndarray
    defect: float


PROGRAM = 40_000  # instructions of a kernel without a loop, which compiles in 13 s
TILE_STEPS = 2.3 / (128 * 128 * 512)  # instructions per multiply-add, at most (test_polynomial_sign)


def sign(h: Handle, coefficients: np.ndarray, engine: Engine) -> Sign:
    """The sign of symmetric float32 h (n, n), |h| <= 1, from a composition of odd quintics (steps, 3)."""
    s, sums = _polynomials(h, coefficients, engine)
    # A dry run assumes that the shift halves the spectrum.
    trace, squares = usual(engine.get(sums).sum(axis=0, dtype=np.float64), (0.0, h.shape[0]))
    return Sign(s, float(trace), float(squares))


def _polynomials(x: Handle, coefficients: np.ndarray, engine: Engine) -> tuple[Handle, Any]:
    """The composition of odd quintics (steps, 3) of x (n, r), in as many launches as needed; and its measure."""
    rows, columns = x.shape
    each = max(int(PROGRAM // (3 * TILE_STEPS * rows * columns**2)), 1)
    for first in range(0, len(coefficients), each):
        found, sums = engine.kernel("polynomial_sign", x, coefficients[first : first + each])
        x = engine.matrix(found, (rows, columns))
    return x, sums


def subspace(
    h: Handle, operator: Handle, omega: np.ndarray, coefficients: np.ndarray, polish: np.ndarray, complement: bool,
    engine: Engine,
) -> Subspace:  # fmt: skip
    """An orthonormal basis (n, r) of the space in which the sign ``operator`` is 1.

    With ``complement``, a basis of the space orthogonal to the columns of ``operator``. It starts from random omega
    (n, r) of norm below 1 and composes odd quintics; all in float32, h (n, n) symmetric. One launch, if the kernel
    needs no loop.
    """
    n, r = omega.shape
    random = engine.put(omega.astype(omega.dtype, order="C", copy=False))
    products = 3 * (len(coefficients) + len(polish)) + 7
    if products * TILE_STEPS * n * n * r <= PROGRAM:
        found, inside, sums = engine.kernel(
            "orthonormal_polar", h, operator, random, coefficients, polish, complement=complement
        )
        basis = engine.matrix(found, (n, r))
    else:
        basis, _ = _polynomials(_projected(random, operator, complement, engine), coefficients, engine)
        basis, _ = _polynomials(_projected(basis, operator, complement, engine), polish, engine)
        inside, sums = engine.kernel("projected_matrix", h, basis)
    # The columns that pad omega stay zero: each adds 1 to |Q^T Q - I|_F^2.
    padding = random.padded[1] - r
    squares = float(usual(engine.get(sums)[:, 1].sum(dtype=np.float64), padding)) - padding
    return Subspace(basis, engine.get(inside)[:r, :r], float(np.sqrt(max(squares, 0.0))))


def _projected(x: Handle, operator: Handle, complement: bool, engine: Engine) -> Handle:
    """(X + S X) / 2, or X - C (C^T X)."""
    if complement:
        rest: Handle = engine.axpby(1.0, x, -1.0, engine.matmul(operator, engine.matmul(operator.T, x)))
        return rest
    found: Handle = engine.axpby(0.5, x, 0.5, engine.matmul(operator, x))
    return found


def jacobi_sweep(a: Handle, w: Handle, engine: Engine) -> tuple[Handle, Handle]:
    """(J^T a J, J^T w) of float32 a and w (n, n), n a multiple of 128, after a sweep of block Jacobi."""
    turned, vectors = engine.kernel("jacobi_sweep", a, w, order(a.padded[0]))
    shape = a.shape[0], a.shape[1]
    return engine.matrix(turned, shape), engine.matrix(vectors, shape)


__all__ = ["Sign", "Subspace", "jacobi_sweep", "sign", "subspace"]
