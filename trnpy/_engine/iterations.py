"""Steps of iterations that are one launch each: polynomial signs, bases and sweeps. Callers check the results."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trnpy._engine.engines import Engine, Handle
from trnpy._engine.stand_ins import usual
from trnpy._nki.kernels.spectra.jacobi_sweep_reference import order


@dataclass(frozen=True, slots=True)
class Sign:
    """S (n, n), with its trace and the sum of its squares."""

    matrix: Handle
    trace: float
    squares: float


@dataclass(frozen=True, slots=True)
class Subspace:
    """Q (n, r), the projected matrix Q^T h Q (r, r), and |Q^T Q - I|_F."""

    basis: Handle
    inside: np.ndarray
    defect: float


def sign(h: Handle, coefficients: np.ndarray, engine: Engine) -> Sign:
    """The sign of symmetric float32 h (n, n), |h| <= 1, by a composition of odd quintics (steps, 3)."""
    s, sums = engine.kernel("polynomial_sign", h, coefficients)
    # A dry run assumes that the shift halves the spectrum.
    trace, squares = usual(engine.get(sums).sum(axis=0, dtype=np.float64), (0.0, h.shape[0]))
    return Sign(engine.matrix(s, (h.shape[0], h.shape[1])), float(trace), float(squares))


def subspace(
    h: Handle, operator: Handle, omega: np.ndarray, coefficients: np.ndarray, polish: np.ndarray, complement: bool,
    engine: Engine,
) -> Subspace:  # fmt: skip
    """An orthonormal basis (n, r) of the space where the sign ``operator`` is 1.

    With ``complement``, a basis of the space orthogonal to the columns of ``operator``. It starts from random omega
    (n, r) of norm below 1 and composes odd quintics; all in float32, h (n, n) symmetric.
    """
    n, r = omega.shape
    random = engine.put(omega.astype(omega.dtype, order="C", copy=False))
    basis, inside, sums = engine.kernel(
        "orthonormal_polar", h, operator, random, coefficients, polish, complement=complement
    )
    # The columns that pad omega stay zero: each adds 1 to |Q^T Q - I|_F^2.
    padding = random.padded[1] - r
    squares = float(usual(engine.get(sums)[:, 1].sum(dtype=np.float64), padding)) - padding
    return Subspace(engine.matrix(basis, (n, r)), engine.get(inside)[:r, :r], float(np.sqrt(max(squares, 0.0))))


def jacobi_sweep(a: Handle, w: Handle, engine: Engine) -> tuple[Handle, Handle]:
    """(J^T a J, J^T w) of float32 a and w (n, n), n a multiple of 128, by a sweep of block Jacobi."""
    turned, vectors = engine.kernel("jacobi_sweep", a, w, order(a.padded[0]))
    shape = a.shape[0], a.shape[1]
    return engine.matrix(turned, shape), engine.matrix(vectors, shape)


__all__ = ["Sign", "Subspace", "jacobi_sweep", "sign", "subspace"]
