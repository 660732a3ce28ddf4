"""The NumPy reference implementation of abs_bound.py, and the limits of its operands."""

from __future__ import annotations

import numpy as np

from trnpy._nki.kernels.products import matmul_reference

NOTHING = np.float32(2.0**100)  # as in the kernel: no positive sum


def check(a: np.ndarray, b: np.ndarray, a_rows: bool, b_rows: bool) -> tuple[int, int, int]:
    """(m, k, n) of a call that the kernel supports; raises ValueError for others."""
    if a.dtype.name != "bfloat16":
        raise ValueError(f"magnitudes of {a.dtype}: expected bfloat16")
    return matmul_reference.check(a, b, a_rows, b_rows)


def abs_bound(a: np.ndarray, b: np.ndarray, a_rows: bool = True, b_rows: bool = True) -> np.ndarray:
    """The smallest positive element of A B, (1, 1) float32; a (m, k) if a_rows else (k, m), b likewise."""
    check(a, b, a_rows, b_rows)
    left, right = a.astype(np.float32), b.astype(np.float32)
    c = (left if a_rows else left.T) @ (right if b_rows else right.T)
    return np.array([[c.min(where=c > 0, initial=NOTHING)]], np.float32)
