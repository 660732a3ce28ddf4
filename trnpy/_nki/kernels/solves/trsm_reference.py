"""The NumPy reference implementation of trsm.py, and the limits of its operands."""

from __future__ import annotations

import numpy as np

LARGEST = 2**29  # elements of one operand: 2 GiB, the limit of 32-bit byte offsets
BLOCKS = 2048  # of 1024 right-hand sides, and before and after a solve from the right 2048 x 1024 of them


def check(a: np.ndarray, b: np.ndarray, right: bool, unit: bool) -> None:
    """Raise ValueError, with the reason, for operands that the kernel does not support, such as a zero diagonal."""
    if a.ndim != 2 or b.ndim != 2 or a.shape[0] != a.shape[1] or b.shape[int(right)] != a.shape[0]:
        raise ValueError(f"operands {a.shape} and {b.shape}: expected a square matrix and sides of its order")
    if a.dtype != np.float32 or b.dtype != np.float32:
        raise ValueError(f"operands {a.dtype} and {b.dtype}: expected float32")
    if 0 in (a.size, b.size):
        raise ValueError(f"operands {a.shape} and {b.shape}: expected non-empty matrices")
    sides = b.shape[1 - int(right)]
    if max(a.size, b.size) > LARGEST or -(-sides // 1024) * (-(-a.shape[0] // 1024) if right else 1) > BLOCKS:
        raise ValueError(f"operands {a.shape} and {b.shape}: expected at most {BLOCKS} blocks of sides: split them")
    if not unit and not np.diagonal(a).all():
        raise ValueError("a is singular: expected a diagonal without zeros")


def trsm(a, b, alpha=None, right=False, lower=True, transposed=False, unit=False):  # type: ignore[no-untyped-def]
    """X with op(A) X = alpha b, or X op(A) = alpha b if ``right``, by substitution in the dtype of a and b."""
    check(a.astype(np.float32), b.astype(np.float32), right, unit)
    triangle = np.tril(a) if lower else np.triu(a)
    if unit:
        triangle[np.diag_indices(len(a))] = 1
    triangle = triangle.T if transposed != right else triangle
    x = (b.T if right else b) * (1 if alpha is None else alpha[0, 0])
    order = range(len(a)) if lower == (transposed == right) else range(len(a) - 1, -1, -1)
    for i in order:
        x[i] = (x[i] - triangle[i, :i] @ x[:i] - triangle[i, i + 1 :] @ x[i + 1 :]) / triangle[i, i]
    return x.T if right else x
