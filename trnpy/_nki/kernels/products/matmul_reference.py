"""The NumPy reference implementation of matmul.py, and the limits of its operands."""

from __future__ import annotations

import numpy as np

DTYPES = ("float32", "bfloat16", "float16")
LARGEST = 2**29  # elements of one operand: 2 GiB, the limit of 32-bit byte offsets
BLOCKS = 2048  # of C, of the kernel's default 1024 x 1024: their offsets are tables on the chip


def check(a: np.ndarray, b: np.ndarray, a_rows: bool, b_rows: bool) -> tuple[int, int, int]:
    """(m, k, n) of a product that the kernel supports; raises ValueError for others."""
    m, k = a.shape if a_rows else a.shape[::-1]
    depth, n = b.shape if b_rows else b.shape[::-1]
    if depth != k or 0 in (m, k, n):
        raise ValueError(f"operands {a.shape} and {b.shape}: expected one positive K")
    if a.dtype != b.dtype or a.dtype.name not in DTYPES:
        raise ValueError(f"operands {a.dtype} and {b.dtype}: expected one of {', '.join(DTYPES)}")
    if max(a.size, b.size, m * n) > LARGEST:
        raise ValueError(f"operands {a.shape} and {b.shape}: at most {LARGEST} elements each")
    if -(-m // 1024) * -(-n // 1024) > BLOCKS:
        raise ValueError(f"operands {a.shape} and {b.shape}: expected at most {BLOCKS} blocks of C: split it")
    return m, k, n


def matmul(a, b, alpha=None, c0=None, beta=None, a_rows=True, b_rows=True):  # type: ignore[no-untyped-def]
    """alpha A B + beta c0 (m, n) in float32; a (m, k) if a_rows else (k, m), b (k, n) if b_rows else (n, k)."""
    check(a, b, a_rows, b_rows)
    left, right = a.astype(np.float32), b.astype(np.float32)
    c = (left if a_rows else left.T) @ (right if b_rows else right.T)
    if alpha is not None:
        c = c * np.float32(alpha[0, 0])
    if c0 is not None:
        c = c + np.float32(beta[0, 0]) * c0
    return c
