"""The proof of least squares: the residual is orthogonal to every column, and no smaller one is left in their span."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from trnpy._engine.proof.products import lengths, max_nan
from trnpy._engine.proof.weights import PROBES, weights


def error(
    a: np.ndarray, b: np.ndarray, x: np.ndarray, inside: Callable[[np.ndarray], np.ndarray], condition: float
) -> float:
    """The error of x (n, k) as the minimum of |b - A x| for a (m, n) of this condition and b (m, k).

    ``inside`` multiplies by R^-H, where A = Q R.

    The larger of two, for combinations of right-hand sides with random weights. |a_j^H r| over |a_j| (|r| + sum |a_i|
    |x_i|), for each column a_j by itself, so that short columns count. And the part of the residual in the span of A,
    |R^-H A^H r| over sum |a_i| |x_i| + condition |r|, which sees errors that the normal equations square.
    """
    a, b, x = (y.astype(np.result_type(y, np.float64), copy=False) for y in (a, b, x))
    if b.shape[1] > PROBES:
        exponents = np.frexp(lengths(b.T))[1]
        v = np.ldexp(weights(b.shape[1], PROBES), -np.clip(exponents, -900, 900)[:, np.newaxis])
        b, x = b @ v, x @ v
    left = b - a @ x
    normal = a.conj().T @ left  # (n, k)
    columns = lengths(a.T)
    residual, terms = lengths(left.T), columns @ np.abs(x)
    scale = columns[:, np.newaxis] * (residual + terms)
    span = terms + condition * residual
    return max_nan(_largest(np.abs(normal), scale), _largest(lengths(inside(normal).T), span))


def _largest(x: np.ndarray, scale: np.ndarray) -> float:
    with np.errstate(all="ignore"):
        return float(np.max(np.where(x == 0, 0.0, x / scale), initial=0.0))
