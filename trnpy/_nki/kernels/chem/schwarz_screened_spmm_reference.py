"""The NumPy reference implementation of schwarz_screened_spmm.py, and the limits of its operands."""

from __future__ import annotations

import numpy as np

from trnpy._nki.kernels.products import float64_matmul_reference as product
from trnpy._nki.kernels.shared.parameters import TILE

LARGEST = product.LARGEST // 2  # elements of 4 bytes
LONGEST_K = 2**15  # a block of the result is written out, 40,000 instructions


def check(a: np.ndarray, b: np.ndarray, counts: np.ndarray, words: int) -> None:
    """Raise ValueError, with the reason, for operands that the kernel does not support."""
    form = "float32" if a.ndim == 2 else "bfloat16"
    if a.ndim != b.ndim or a.shape[:-2] != b.shape[:-2] or a.shape[-2] > b.shape[-2] or 0 in a.shape + b.shape:
        raise ValueError(f"a {a.shape} and b {b.shape}: expected one number of digits, b with all rows of K, none zero")
    if a.dtype.name != form or b.dtype != a.dtype:
        raise ValueError(f"{a.dtype} and {b.dtype}: expected {form}")
    k, m = a.shape[-2:]
    if k % TILE or k > LONGEST_K:
        raise ValueError(f"K = {k}: expected a multiple of {TILE}, at most {LONGEST_K}")
    if counts.shape != (1, m) or counts.dtype != np.float32:
        raise ValueError(f"counts {counts.dtype}{counts.shape}: expected float32 (1, {m})")
    if a.ndim == 3:
        product.check(a, b[:, :k], False, words)
    if max(a.size, b.size, m * b.shape[-1] * (words if a.ndim == 3 else 1)) > LARGEST:
        raise ValueError(f"a {a.shape} and b {b.shape}: at most {LARGEST} elements each")


def schwarz_screened_spmm(a, b, counts, words=3):  # type: ignore[no-untyped-def]
    """A^T B of a (K, M) and b (K, N) with column i of a kept to its first counts[i] rows; of digits its words."""
    check(a, b, counts, words)
    k = a.shape[-2]
    kept = np.arange(k)[:, None] < counts
    if a.ndim == 2:
        return np.where(kept, a, 0).astype(np.float64).T @ b[:k].astype(np.float64)
    x, y = np.where(kept, a.astype(np.float64), 0), b[:, :k].astype(np.float64)
    sums = [sum(x[i].T @ y[d - i] for i in range(d + 1)).astype(np.int64) for d in range(len(a) - 1, -1, -1)]
    return product.to_words(sums, words)
