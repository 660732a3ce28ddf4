"""What scale_combine.py computes, in NumPy, and the limits it is checked against."""

from __future__ import annotations

import numpy as np

LARGEST = 2**29  # elements: 2 GiB, as far as byte offsets of 32 bits reach
MOST_WORDS = 4  # 2^112 is the largest power of two that a word's half is scaled by


def check(x: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> tuple[int, int, int]:
    """(words, m, n) of a call the kernel takes; ValueError says what it does not."""
    words, m, n = x.shape
    if x.dtype != np.int32 or not 1 <= words <= MOST_WORDS or x.size == 0 or x.size > LARGEST:
        raise ValueError(f"words {x.dtype}{x.shape}: expected int32 (1 to {MOST_WORDS}, m, n)")
    if rows.shape != (m, 1) or columns.shape != (1, n) or rows.dtype != np.float32 or columns.dtype != np.float32:
        raise ValueError(f"scales {rows.shape} and {columns.shape}: expected float32 ({m}, 1) and (1, {n})")
    return words, m, n


def scale_combine(x, rows, columns):  # type: ignore[no-untyped-def]
    """rows (sum of x[w] 2^(32 w)) columns (m, n) float32; x (words, m, n) int32, two's complement, lowest first."""
    words, _, _ = check(x, rows, columns)
    value = x[-1].astype(np.longdouble)
    for w in range(words - 2, -1, -1):
        value = value * 2.0**32 + x[w].view(np.uint32)
    return (rows * value * columns).astype(np.float32)
