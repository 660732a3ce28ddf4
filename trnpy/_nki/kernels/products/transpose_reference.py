"""The NumPy reference implementation of transpose.py, and the limits of its operands."""

from __future__ import annotations

import numpy as np

DTYPES = ("float32", "bfloat16", "float16", "int32")
LARGEST = 2**29  # elements: 2 GiB, the limit of 32-bit byte offsets
BLOCKS = 2048  # of the kernel's default size: their offsets are tables on the chip
ROWS, COLUMNS = 2048, 1024  # of one block


def check(x: np.ndarray) -> None:
    """Raise ValueError, with the reason, for operands that the kernel does not support."""
    if x.ndim != 2 or x.size == 0 or x.dtype.name not in DTYPES:
        raise ValueError(f"{x.dtype} of shape {x.shape}: expected a non-empty matrix of {', '.join(DTYPES)}")
    blocks = -(-x.shape[0] // ROWS) * -(-x.shape[1] // COLUMNS)
    if x.size > LARGEST or blocks > BLOCKS:
        raise ValueError(f"shape {x.shape}: expected at most {LARGEST} elements in {BLOCKS} blocks: split it")


def transpose(x):  # type: ignore[no-untyped-def]
    """x (m, n) transposed, contiguous."""
    check(x)
    return np.ascontiguousarray(x.T)
