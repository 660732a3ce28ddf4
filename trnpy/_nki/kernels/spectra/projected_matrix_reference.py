"""The NumPy reference implementation of projected_matrix.py, and the limits of its operands."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from trnpy._nki.kernels.spectra.polynomial_sign_reference import LONGEST, measure


def check(h: np.ndarray, q: np.ndarray) -> None:
    """Raise ValueError, with the reason, for operands that the kernel does not support."""
    if h.ndim != 2 or h.shape[0] != h.shape[1] or q.ndim != 2 or len(q) != len(h) or not 0 < q.shape[1] <= len(h):
        raise ValueError(f"h {h.shape} and q {q.shape}: expected a square and at most as many columns of its rows")
    if h.dtype != np.float32 or q.dtype != np.float32 or len(h) > LONGEST:
        raise ValueError(f"h {h.dtype}{h.shape} and q {q.dtype}: expected float32 of at most {LONGEST} rows")


def projected_matrix(
    h: np.ndarray, q: np.ndarray, product: Callable[..., np.ndarray] = np.matmul
) -> tuple[np.ndarray, np.ndarray]:
    """Q^T h Q, and the measure of Q^T Q - I."""
    check(h, q)
    off = product(q.T, q) - np.eye(q.shape[1], dtype=q.dtype)
    return product(q.T, product(h, q)), measure(off)
