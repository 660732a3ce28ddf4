"""The check of least squares: the residual is orthogonal to every column, and no smaller one exists in their span.

If there are several minima, x must be the shortest, a combination of rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from trnpy._engine.proof.checksums import lengths, max_nan
from trnpy._engine.proof.weights import PROBES, weights


def error(
    a: np.ndarray, b: np.ndarray, x: np.ndarray, inside: Callable[[np.ndarray], np.ndarray], condition: float
) -> float:
    """The error of x (n, k) as the minimum of |b - A x| for a (m, n) of this condition and b (m, k).

    ``inside`` multiplies by R^-H, where A = Q R.

    The larger of two errors, for combinations of right-hand sides with random weights: |a_j^H r| over
    |a_j| (|r| + sum |a_i| |x_i|), for each column a_j separately, so that short columns count; and the part of the
    residual in the span of A, |R^-H A^H r| over sum |a_i| |x_i| + condition |r|, which detects errors that the normal
    equations square.
    """
    a, b, x, sizes, least = _few(b, x, a)
    left = b - a @ x
    normal = a.conj().T @ left  # (n, k)
    columns = lengths(a.T)
    residual, terms = lengths(left.T), columns @ (sizes + least)
    scale = columns[:, np.newaxis] * (residual + terms)
    span = terms + condition * residual
    return max_nan(_largest(np.abs(normal), scale), _largest(lengths(inside(normal).T), span))


def shortest_error(a: np.ndarray, b: np.ndarray, x: np.ndarray, r: np.ndarray) -> float:
    """The error of x (n, k) as the shortest solution of A x = b, for a (m, n) of full rank m and R of A^H = Q R.

    The larger of two errors: |b_i - A_i x| of each row separately over |A_i| |x| + |b_i|, and the part of x that is no
    combination A^H y of rows, |x - A^H y| over |x| + sum |A_i| |y_i|, with y = R^-1 R^-H A x.
    """
    a, b, x, sizes, least = _few(b, x, a)
    # y is as small as x over the square of |A|, and must not underflow.
    unit = np.ldexp(1.0, -np.clip(np.frexp(np.abs(x).max(axis=0, initial=0.0))[1], -900, 900))
    b, x, sizes, least = b * unit, x * unit, sizes * unit, least * unit
    r, product, rows = r.astype(np.result_type(r, np.float64), copy=False), a @ x, lengths(a)
    y = np.linalg.solve(r, np.linalg.solve(r.conj().T, product))
    own = lengths(sizes.T) + math.sqrt(len(x)) * least
    residual = _largest(np.abs(b - product), rows[:, np.newaxis] * own + np.abs(b))
    return max_nan(residual, _largest(lengths((x - a.conj().T @ y).T), own + rows @ np.abs(y)))


def error_of_factors(b: np.ndarray, x: np.ndarray, u: np.ndarray, s: np.ndarray, v: np.ndarray) -> float:
    """The error of x (n, k) as V diag(1 / s) U^H b, for factors that are checked separately, s_1 the largest.

    The larger of two errors: |s_i v_i^H x - u_i^H b| of each value over s_1 |x| + |b|, and |x - V V^H x| over |x|.
    """
    u, b, x, sizes, least = _few(b, x, u)
    s, v = s.astype(np.float64, copy=False), v.astype(u.dtype, copy=False)
    inner, sides = v.conj().T @ x, lengths(b.T)
    own = lengths(sizes.T) + math.sqrt(len(x)) * least
    along = _largest(np.abs(s[:, np.newaxis] * inner - u.conj().T @ b), s.max() * own + sides)
    return max_nan(along, _largest(lengths((x - v @ inner).T), own))


def _few(b: np.ndarray, x: np.ndarray, a: np.ndarray) -> tuple[np.ndarray, ...]:
    """a, b and x in double precision; many right-hand sides are combined with random weights.

    Also the sizes of the elements of x, each at least that of its largest term, because terms may cancel but their
    errors do not; and the size, per column, below which underflow makes an element inexact.
    """
    info = np.finfo(x.dtype)
    least = np.full(x.shape[1], float(info.smallest_subnormal) / float(info.eps))
    a, b, x = (y.astype(np.result_type(y, np.float64), copy=False) for y in (a, b, x))
    sizes = np.abs(x)
    if b.shape[1] > PROBES:
        exponents, some = np.frexp(lengths(b.T))[1], sizes.any(axis=0)
        # Combinations of right-hand sides are about 1, or larger if those of solutions would underflow.
        solutions = (np.frexp(sizes.max(axis=0))[1] - exponents)[some]
        lift = min(max(-900 - int(solutions.max()), 0), 900) if some.any() else 0
        v = np.ldexp(weights(b.shape[1], PROBES), np.clip(lift - exponents, -900, 900)[:, np.newaxis])
        largest = np.stack([(sizes * column).max(axis=1) for column in np.abs(v).T], axis=1)
        b, x, least = b @ v, x @ v, least @ np.abs(v)
        sizes = np.maximum(np.abs(x), largest)
    return a, b, x, sizes, least


def _largest(x: np.ndarray, scale: np.ndarray) -> float:
    with np.errstate(all="ignore"):
        return float(np.max(np.where(x == 0, 0.0, x / scale), initial=0.0))
