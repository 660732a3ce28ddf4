"""The check of an integer product: sums of rows and columns with random weights modulo the width, exactly."""

from __future__ import annotations

from typing import Any

import numpy as np

from trnpy._engine.abstract_arrays import priced
from trnpy._engine.proof.checksums import Wrong

UNIFORM = 3  # columns of uniform weights besides one of odd weights


def prove(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    """Raises Wrong unless c = a b exactly, modulo the width of its dtype."""
    if not agree(a, b, c):
        raise Wrong(f"the {c.dtype} product {' x '.join(map(str, c.shape))} is not exact")


def _price(*operands: Any) -> tuple[float, tuple[Any, ...]]:
    return float(sum(x.size for x in operands)), (True,)


@priced("integer proof", _price)
def agree(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> bool:
    """Whether c (..., m, n) is a b modulo the width of its dtype, from sums of rows and of columns.

    Odd weights always detect one wrong element of a row. Uniform weights detect errors of a row that odd ones cancel,
    such as two of half the modulus, with probability 1/2 each.
    """
    unsigned = np.dtype(f"u{c.dtype.itemsize}")
    a, b, c = (np.ascontiguousarray(x).astype(c.dtype, copy=False).view(unsigned) for x in (a, b, c))
    return _side(a, b, c) and _side(b.swapaxes(-1, -2), a.swapaxes(-1, -2), c.swapaxes(-1, -2))


def _side(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> bool:
    width = np.iinfo(c.dtype)
    w = np.random.default_rng().integers(0, width.max, (c.shape[-1], 1 + UNIFORM), c.dtype, endpoint=True)
    w[:, 0] |= 1
    return bool(np.array_equal(c @ w, a @ (b @ w)))
