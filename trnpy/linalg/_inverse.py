"""Inverses: of triangles by halves, of other matrices from their LU or Cholesky factors."""

from __future__ import annotations

import numpy as np

from trnpy._engine.engines import Engine
from trnpy.linalg import _lu, _panels, _triangular
from trnpy.linalg._panels import BLOCK, adjoint, split


def upper(u: np.ndarray, engine: Engine, block: int = BLOCK) -> np.ndarray:
    """The inverse of the upper triangle of u (..., n, n), zero below.

    Dividing by U22 on the right, not multiplying with its inverse: X U - I then is LAPACK's (Du Croz & Higham,
    IMA J. Numer. Anal. 12, 1 (1992)); products of inverses had six times its U X - I.
    """
    n = u.shape[-1]
    if n <= block:
        return _panels.upper_inverse(u)
    h = split(n, block)
    x = np.zeros_like(u)
    x[..., :h, :h] = upper(u[..., :h, :h], engine, block)
    x[..., h:, h:] = upper(u[..., h:, h:], engine, block)
    product = engine.matmul(x[..., :h, :h], u[..., :h, h:])
    x[..., :h, h:] = -_triangular.solve(u[..., h:, h:], product, engine, side="right", lower=False)
    return x


def general(lu: np.ndarray, pivots: np.ndarray, engine: Engine) -> np.ndarray:
    """A^-1 (..., n, n) from ``_lu.factor``: U^-1 first, then X L = U^-1, whose residual X A - I is LAPACK's.

    Higham, Accuracy and Stability, 2nd ed., sec. 14.3, method B.
    """
    x = _triangular.solve(lu, upper(lu, engine), engine, side="right", lower=True, unit=True)
    p = np.argsort(_lu.order(pivots, lu.shape[-1]), axis=-1)
    return x[:, p] if p.ndim == 1 else np.take_along_axis(x, p[..., np.newaxis, :], axis=-1)


def positive(l: np.ndarray, engine: Engine) -> np.ndarray:
    """A^-1 (..., n, n), exactly Hermitian, from the lower Cholesky factor of A."""
    half = np.tril(engine.gram(upper(adjoint(l), engine)))
    inverse: np.ndarray = half + adjoint(np.tril(half, -1))
    return inverse
