"""The NumPy reference implementation of axpby.py, and the limits of its operands."""

from __future__ import annotations

import ml_dtypes  # noqa: F401  # gives NumPy bfloat16
import numpy as np

DTYPES = ("float32", "bfloat16", "float16")
LARGEST = 2**29  # elements: 2 GiB, the limit of 32-bit byte offsets
BLOCKS = 2048  # of 1024 x 1024: their offsets are a table on the chip


def check(x: np.ndarray, y: np.ndarray | None, form: str) -> None:
    """Raise ValueError, with the reason, for operands that the kernel does not support."""
    for operand in (x,) if y is None else (x, y):
        if operand.ndim != 2 or operand.size == 0 or operand.dtype.name not in DTYPES:
            raise ValueError(f"{operand.dtype} of {operand.shape}: expected a non-empty matrix of {', '.join(DTYPES)}")
    if y is not None and y.shape != x.shape:
        raise ValueError(f"operands {x.shape} and {y.shape}: expected one shape")
    if form not in DTYPES:
        raise ValueError(f"form {form!r}: expected one of {', '.join(DTYPES)}")
    if x.size > LARGEST or -(-x.shape[0] // 1024) * -(-x.shape[1] // 1024) > BLOCKS:
        raise ValueError(f"shape {x.shape}: expected at most {LARGEST} elements in {BLOCKS} blocks: split it")


def axpby(x, y=None, alpha=None, beta=None, form="float32"):  # type: ignore[no-untyped-def]
    """alpha x + beta y (m, n), or alpha x, summed in float32 and rounded to ``form``."""
    check(x, y, form)
    total = x.astype(np.float32) * np.float32(1 if alpha is None else alpha[0, 0])
    if y is not None:
        total = y.astype(np.float32) * np.float32(1 if beta is None else beta[0, 0]) + total
    return total.astype(form)
