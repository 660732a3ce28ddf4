"""The NumPy reference implementation of polynomial_sign.py, and the limits of its operands."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

LONGEST = 8192  # rows: larger products are computed in blocks, which an iteration in one launch does not support
MOST_STEPS = 64


def check_coefficients(coefficients: np.ndarray) -> None:
    """Raise ValueError, with the reason, for coefficients that the kernels do not support."""
    steps = len(coefficients)
    if coefficients.shape != (steps, 3) or coefficients.dtype != np.float32 or not 0 < steps <= MOST_STEPS:
        raise ValueError(
            f"coefficients {coefficients.dtype} {coefficients.shape}: expected float32 (steps, 3), at most {MOST_STEPS}"
        )


def check(x: np.ndarray, coefficients: np.ndarray) -> None:
    """Raise ValueError, with the reason, for operands that the kernel does not support."""
    if x.ndim != 2 or x.dtype != np.float32 or not 0 < x.shape[1] <= len(x) <= LONGEST:
        raise ValueError(f"x is {x.dtype} {x.shape}: expected float32, at most {LONGEST} rows and as many columns")
    check_coefficients(coefficients)


def polynomials(x: np.ndarray, coefficients: np.ndarray, product: Callable[..., np.ndarray] = np.matmul) -> np.ndarray:
    """c0 X + X (c1 Y + c2 Y^2) with Y = X^T X, for each row of coefficients in turn; x (rows, columns)."""
    for a, b, c in coefficients:
        y = product(x.T, x)
        x = a * x + product(x, b * y + c * product(y, y))
    return x


def polynomial_sign(
    x: np.ndarray, coefficients: np.ndarray, product: Callable[..., np.ndarray] = np.matmul
) -> tuple[np.ndarray, np.ndarray]:
    """The composition of odd quintics of x (N, R); and (1, 2), trace and sum of squares if x is square, else zeros."""
    check(x, coefficients)
    s = polynomials(x, coefficients, product)
    return s, measure(s) if s.shape[0] == s.shape[1] else np.zeros((1, 2), np.float32)


def measure(x: np.ndarray) -> np.ndarray:
    """(1, 2) float32: the trace of x and the sum of its squares. The kernels return parts of both sums in 128 rows."""
    return np.array([[x.trace(dtype=np.float64), (x.astype(np.float64) ** 2).sum()]], np.float32)
