"""Cholesky factors by halves: panels on the host, everything else products of the engine."""

from __future__ import annotations

import numpy as np

from trnpy._engine.engines import Engine
from trnpy.linalg import _panels, _triangular
from trnpy.linalg._panels import BLOCK, split


def cholesky(a: np.ndarray, engine: Engine, block: int = BLOCK) -> np.ndarray:
    """Lower L with A = L L^H for Hermitian positive-definite a (..., n, n); lapack.LinAlgError when one is not.

    Only lower triangles of a are read.  Golub & Van Loan, 4th ed., sec. 4.2.6, halves instead of columns of blocks:
    the same products of larger matrices, a third as many bytes over the link (Gustavson, IBM J. Res. Dev. 41, 1997).
    """
    l = np.tril(a)
    _factor(l, engine, block)
    return l


def _factor(l: np.ndarray, engine: Engine, block: int) -> None:
    n = l.shape[-1]
    if n <= block:
        l[...] = _panels.cholesky(l)
        return
    h = split(n, block)
    _factor(l[..., :h, :h], engine, block)
    panel = _triangular.solve(l[..., :h, :h], l[..., h:, :h], engine, side="right", lower=True, trans="C")
    l[..., h:, :h] = panel
    l[..., h:, h:] -= np.tril(engine.gram(panel))
    _factor(l[..., h:, h:], engine, block)


def solve(c: np.ndarray, b: np.ndarray, lower: bool, engine: Engine) -> np.ndarray:
    """X (..., n, k) of A X = B from the factor c (..., n, n) of A: L L^H if ``lower``, else U^H U."""
    order = ("N", "C") if lower else ("C", "N")
    for trans in order:
        b = _triangular.solve(c, b, engine, lower=lower, trans=trans)
    return b
