"""LU with partial pivoting by halves of the columns: panels on the host, everything else products of the engine."""

from __future__ import annotations

import numpy as np

from trnpy._engine.engines import Engine
from trnpy._engine.stand_ins import usual
from trnpy.linalg import _panels, _triangular
from trnpy.linalg._panels import BLOCK, split


def factor(a: np.ndarray, engine: Engine, block: int = BLOCK) -> tuple[np.ndarray, np.ndarray]:
    """Packed LU (..., m, n) of a (..., m, n) and LAPACK's pivots (..., min(m, n)), from 0.

    A pivot that is zero ends nothing, as in LAPACK: U then has it on its diagonal.
    Toledo, SIAM J. Matrix Anal. Appl. 18, 1065 (1997).
    """
    lu = a.copy()
    return lu, _factor(lu, engine, block)


def _factor(lu: np.ndarray, engine: Engine, block: int) -> np.ndarray:
    m, n = lu.shape[-2:]
    if min(m, n) <= block:
        lu[...], pivots = _panels.lu(lu)
        return pivots
    h = split(min(m, n), block)
    left, right = lu[..., :h], lu[..., h:]
    above = _factor(left, engine, block)
    right[...] = rows(right, order(above, m))
    right[..., :h, :] = _triangular.solve(left[..., :h, :], right[..., :h, :], engine, lower=True, unit=True)
    right[..., h:, :] -= engine.matmul(left[..., h:, :], right[..., :h, :])
    below = _factor(right[..., h:, :], engine, block)
    left[..., h:, :] = rows(left[..., h:, :], order(below, m - h))
    return np.concatenate([above, below + h], axis=-1)


def order(pivots: np.ndarray, m: int) -> np.ndarray:
    """The order p (..., m) in which swaps leave m rows: A[p] = L U."""
    p = np.broadcast_to(np.arange(m), (*pivots.shape[:-1], m)).copy()
    pivots = usual(pivots, np.broadcast_to(np.arange(pivots.shape[-1]), pivots.shape))
    for swaps, rows_of_one in zip(pivots.reshape(-1, pivots.shape[-1]).tolist(), p.reshape(-1, m), strict=True):
        for i, swap in enumerate(swaps):
            if swap != i:
                rows_of_one[i], rows_of_one[swap] = rows_of_one[swap], rows_of_one[i]
    return p


def rows(a: np.ndarray, p: np.ndarray) -> np.ndarray:
    """Rows p (..., m) of a (..., m, n)."""
    return a[p] if p.ndim == 1 else np.take_along_axis(a, p[..., np.newaxis], axis=-2)


def solve(lu: np.ndarray, pivots: np.ndarray, b: np.ndarray, engine: Engine, trans: str = "N") -> np.ndarray:
    """X (..., n, k) of op(A) X = B from ``factor``."""
    p = order(pivots, lu.shape[-1])
    if trans == "N":
        y = _triangular.solve(lu, rows(b, p), engine, lower=True, unit=True)
        return _triangular.solve(lu, y, engine, lower=False)
    y = _triangular.solve(lu, b, engine, lower=False, trans=trans)
    x = _triangular.solve(lu, y, engine, lower=True, trans=trans, unit=True)
    return rows(x, np.argsort(p, axis=-1))
