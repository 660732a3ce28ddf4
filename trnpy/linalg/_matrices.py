"""What rows of matrices share: one square operand, one triangle of it, its norm."""

from __future__ import annotations

from typing import Any

import numpy as np

from trnpy import _guards
from trnpy._dispatch import Reason, Unsupported

SMALL = 64 * 64  # elements: a 64 x 64 eigh takes less than a launch


def square(a: Any) -> np.ndarray:
    """``a`` as one non-empty square matrix (n, n) of a dtype with a device path."""
    m = _guards.array(a)
    _guards.floating(m)  # integers and halves: NumPy and SciPy convert them each in their own way
    if m.ndim != 2 or m.shape[0] != m.shape[1] or m.size == 0:
        raise Unsupported(Reason.LAYOUT, f"shape {m.shape} is not one non-empty square matrix")
    return m


def hermitian(a: np.ndarray, lower: bool, dtype: np.dtype) -> np.ndarray:
    """The matrix whose lower (upper) triangle is that of a; imaginary parts of the diagonal are not read."""
    triangle = np.tril(a, -1) if lower else np.triu(a, 1)
    diagonal = np.diag(a.diagonal().real)
    return np.asarray(triangle + triangle.conj().T + diagonal, dtype)


def norm(a: np.ndarray) -> float:
    """Frobenius."""
    return float(np.linalg.norm(a))
