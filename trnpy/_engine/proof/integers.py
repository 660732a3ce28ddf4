"""The proof of a product of integers: sums of rows and of columns with random weights modulo the width, exactly."""

from __future__ import annotations

import numpy as np

UNIFORM = 3  # columns of uniform weights beside one of odd weights


def agree(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> bool:
    """Whether c (..., m, n) is a b modulo the width of its dtype, by sums of rows and of columns.

    Odd weights always see one wrong element of a row. Uniform weights see errors of a row that odd ones cancel, such as
    two of half the modulus, with probability 1/2 each.
    """
    unsigned = np.dtype(f"u{c.dtype.itemsize}")
    a, b, c = (np.ascontiguousarray(x).astype(c.dtype, copy=False).view(unsigned) for x in (a, b, c))
    return _side(a, b, c) and _side(b.swapaxes(-1, -2), a.swapaxes(-1, -2), c.swapaxes(-1, -2))


def _side(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> bool:
    width = np.iinfo(c.dtype)
    w = np.random.default_rng().integers(0, width.max, (c.shape[-1], 1 + UNIFORM), c.dtype, endpoint=True)
    w[:, 0] |= 1
    return bool(np.array_equal(c @ w, a @ (b @ w)))
