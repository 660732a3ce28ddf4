"""The NumPy reference implementation of abs_bound.py, and the limits of its operands."""

from __future__ import annotations

import numpy as np

from trnpy._nki.kernels.products import matmul_reference

NOTHING = np.float32(2.0**100)  # as in the kernel: no positive sum


def check(a: np.ndarray, b: np.ndarray, a_rows: bool, b_rows: bool, batch: int = 1) -> tuple[int, int, int]:
    """(m, k, n) of a call that the kernel supports; raises ValueError for others."""
    if a.dtype.name != "bfloat16":
        raise ValueError(f"magnitudes of {a.dtype}: expected bfloat16")
    if len(a) % batch or len(b) % batch or max(a.size, b.size) > matmul_reference.LARGEST:
        raise ValueError(f"magnitudes {a.shape} and {b.shape}: expected {batch} matrices each, at most 2 GiB")
    return matmul_reference.check(a[: len(a) // batch], b[: len(b) // batch], a_rows, b_rows)


def abs_bound(a: np.ndarray, b: np.ndarray, a_rows: bool = True, b_rows: bool = True, batch: int = 1) -> np.ndarray:
    """The smallest positive element of A B, (1, 1) float32; a (m, k) if a_rows else (k, m), b likewise.

    batch: of all products of the matrices of two stacks, one below the other.
    """
    check(a, b, a_rows, b_rows, batch)
    left, right = (x.astype(np.float32).reshape(batch, -1, x.shape[1]) for x in (a, b))
    c = (left if a_rows else left.mT) @ (right if b_rows else right.mT)
    return np.array([[c.min(where=c > 0, initial=NOTHING)]], np.float32)
