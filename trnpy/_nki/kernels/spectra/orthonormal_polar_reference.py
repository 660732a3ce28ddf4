"""The NumPy reference implementation of orthonormal_polar.py, and the limits of its operands."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from trnpy._nki.kernels.spectra import polynomial_sign_reference
from trnpy._nki.kernels.spectra.polynomial_sign_reference import LONGEST, check_coefficients, measure, polynomials


def check(
    h: np.ndarray, operator: np.ndarray, omega: np.ndarray, coefficients: np.ndarray, polish: np.ndarray,
    complement: bool,
) -> None:  # fmt: skip
    """Raise ValueError, with the reason, for operands that the kernel does not support."""
    polynomial_sign_reference.check(h, coefficients)
    check_coefficients(polish)
    if h.shape[0] != h.shape[1] or len(coefficients) % 2 or len(polish) % 2:
        raise ValueError(f"h {h.shape}, {len(coefficients)} and {len(polish)} steps: expected a square, even numbers")
    n = len(h)
    if any(m.ndim != 2 or m.dtype != np.float32 or len(m) != n for m in (operator, omega)):
        raise ValueError(f"operator {operator.shape} and omega {omega.shape}: expected float32 matrices of {n} rows")
    if not 0 < omega.shape[1] <= LONGEST or (operator.shape[1] != n and not complement):
        raise ValueError(f"operator {operator.shape}, omega {omega.shape}: expected columns, {n} of a projection")


def orthonormal_polar(
    h: np.ndarray, operator: np.ndarray, omega: np.ndarray, coefficients: np.ndarray, polish: np.ndarray,
    complement: bool = False, product: Callable[..., np.ndarray] = np.matmul,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # fmt: skip
    """Q (N, R), from omega projected, made orthonormal, and both again; Q^T h Q; and the measure of Q^T Q - I."""
    check(h, operator, omega, coefficients, polish, complement)

    def projected(x: np.ndarray) -> np.ndarray:
        if complement:
            return np.asarray(x - product(operator, product(operator.T, x)))
        return np.asarray((x + product(operator, x)) / 2)

    x = polynomials(projected(omega), coefficients, product)
    q = polynomials(projected(x), polish, product)
    off = product(q.T, q) - np.eye(q.shape[1], dtype=q.dtype)
    return q, product(q.T, product(h, q)), measure(off)
