"""The NumPy reference implementation of syrk.py, and the limits of its operands."""

from __future__ import annotations

import numpy as np

DTYPES = ("float32", "bfloat16", "float16")
LARGEST = 2**29  # elements of one operand: 2 GiB, the limit of 32-bit byte offsets


def check(a: np.ndarray, a_rows: bool, mirrored: bool, c0: np.ndarray | None, beta: np.ndarray | None) -> int:
    """The order of the product of an operand that the kernel supports; raises ValueError for others."""
    if a.ndim != 2 or a.size == 0 or a.dtype.name not in DTYPES:
        raise ValueError(f"{a.dtype} of shape {a.shape}: expected a non-empty matrix of {', '.join(DTYPES)}")
    n: int = a.shape[0] if a_rows else a.shape[1]
    if max(a.size, n * n) > LARGEST:
        raise ValueError(f"operand {a.shape}: expected at most {LARGEST} elements, of the product too")
    if c0 is not None and (c0.shape != (n, n) or c0.dtype != np.float32):
        raise ValueError(f"c0 is {c0.dtype} of shape {c0.shape}: expected float32 of ({n}, {n})")
    if (c0 is None) != (beta is None):
        raise ValueError("one of c0 and beta is missing: expected both or neither")
    if c0 is None and not mirrored:
        raise ValueError("an upper triangle that is not the lower one's: expected c0, which has it")
    return n


def syrk(a, alpha=None, c0=None, beta=None, a_rows=True, mirrored=True):  # type: ignore[no-untyped-def]
    """alpha A A^T + beta c0 (n, n) in float32 for a (n, k) if a_rows, else (k, n), by the lower triangle.

    The upper triangle is its transpose if ``mirrored``, else that of c0.
    """
    check(a, a_rows, mirrored, c0, beta)
    x = a.astype(np.float32)
    c = x @ x.T if a_rows else x.T @ x
    if alpha is not None:
        c = c * np.float32(alpha[0, 0])
    if c0 is not None:
        c = c + np.float32(beta[0, 0]) * c0
    return np.tril(c) + (np.tril(c, -1).T if mirrored else np.triu(c0, 1))
