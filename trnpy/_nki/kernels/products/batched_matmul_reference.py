"""The NumPy reference implementation of batched_matmul.py, and the limits of its operands."""

from __future__ import annotations

import numpy as np

DTYPES = ("float32", "bfloat16", "float16")
LARGEST = 2**29  # elements of one operand: 2 GiB, the limit of 32-bit byte offsets
SMALL = 512  # rows and columns up to which matrices pass in groups, whose number has no limit
BLOCKS = 2048  # of larger matrices, of the kernel's default size: their offsets are tables on the chip
ROWS, COLUMNS = 512, 1024  # of one such block of C


def check(a: np.ndarray, b: np.ndarray, a_rows: bool, b_rows: bool) -> tuple[int, int, int, int]:
    """(batch, m, k, n) of products that the kernel supports; raises ValueError for others."""
    if a.ndim != 3 or b.ndim != 3:
        raise ValueError(f"operands {a.shape} and {b.shape}: expected three dimensions each")
    batch = max(a.shape[0], b.shape[0])
    m, k = a.shape[1:] if a_rows else a.shape[:0:-1]
    depth, n = b.shape[1:] if b_rows else b.shape[:0:-1]
    if depth != k or 0 in (a.size, b.size) or not {a.shape[0], b.shape[0]} <= {1, batch}:
        raise ValueError(f"operands {a.shape} and {b.shape}: expected one positive K, and one batch or 1")
    if a.dtype != b.dtype or a.dtype.name not in DTYPES:
        raise ValueError(f"operands {a.dtype} and {b.dtype}: expected one of {', '.join(DTYPES)}")
    if max(a.size, b.size, batch * m * n) > LARGEST:
        raise ValueError(f"operands {a.shape} and {b.shape}: expected at most {LARGEST} elements each")
    one = b.shape[0] == 1 and a_rows  # the kernel makes it one product
    rows, times = (batch * m, 1) if one else (m, batch)
    blocks = times * -(-rows // ROWS) * -(-n // COLUMNS)
    if (one or max(m, k, n) > SMALL) and blocks > BLOCKS:
        raise ValueError(f"operands {a.shape} and {b.shape}: expected at most {BLOCKS} blocks of C: split the batch")
    return batch, m, k, n


def batched_matmul(a, b, a_rows=True, b_rows=True):  # type: ignore[no-untyped-def]
    """A[i] B[i] (batch, m, n) in float32; a (batch or 1, m, k) if a_rows, b (batch or 1, k, n) if b_rows."""
    check(a, b, a_rows, b_rows)
    left, right = a.astype(np.float32), b.astype(np.float32)
    return np.matmul(left if a_rows else left.transpose(0, 2, 1), right if b_rows else right.transpose(0, 2, 1))
