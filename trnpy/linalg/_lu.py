"""LU with partial pivoting by recursion: the host factors panels, and the engine's products do all other work."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from trnpy._base.records import record
from trnpy._call import guards
from trnpy._call.dispatch import Problem, Reason, Unsupported
from trnpy._engine.abstract_arrays import usual
from trnpy._engine.engines import Engine
from trnpy._engine.proof.weights import probe
from trnpy.linalg import _lapack_panels, _triangular
from trnpy.linalg._lapack_panels import BLOCK, adjoint, split
from trnpy.linalg._matrices import (
    SMALL,
    given_factor,
    matrices,
    nonzero,
    norm,
    right_hand_sides,
    sizes,
    useful,
    worst,
)
from trnpy.linalg._reference_forms import scipy_function


def factor(a: np.ndarray, engine: Engine, block: int = BLOCK) -> tuple[np.ndarray, np.ndarray]:
    """Packed LU (..., m, n) of a (..., m, n) and LAPACK's pivots (..., min(m, n)), from 0.

    A zero pivot does not end the factorization, as in LAPACK: it is stored on the diagonal of U.
    Toledo, SIAM J. Matrix Anal. Appl. 18, 1065 (1997).
    """
    lu = a.copy()
    return lu, _factor(lu, engine, block)


def _factor(lu: np.ndarray, engine: Engine, block: int) -> np.ndarray:
    m, n = lu.shape[-2:]
    if min(m, n) <= block:
        lu[...], pivots = _lapack_panels.lu(lu)
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
    """The order p (..., m) of m rows after the swaps: A[p] = L U."""
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


# --- Rows -------------------------------------------------------------------------------------------------------------


@record()
class Factored:
    """A[p] = L U; its backward error is measured before the caller's result is built from it."""

    lu: np.ndarray
    pivots: np.ndarray


def nonzero_pivots(factored: Factored) -> None:
    nonzero(factored.lu)


def lu_factored(a: np.ndarray, dtype: np.dtype, engine: Engine) -> Factored:
    guards.finite(a)
    return Factored(*factor(a.astype(dtype), engine))


@record(kw_only=True)
class Factorization(Problem):
    """LU factors of matrices a (..., m, n)."""

    check: Callable[[Factored], None] | None = None  # raises Unsupported if the original function warns or raises

    def run(self, engine: Engine) -> Factored:
        factored = lu_factored(self.arrays[0], self.dtype, engine)
        if self.check is not None:
            self.check(factored)
        return factored

    def error(self, result: Any) -> float:
        """The backward error of a Factored; 0 for a result of the original function."""
        if not isinstance(result, Factored):
            return 0.0
        (a,) = self.arrays
        lu, k = result.lu, min(a.shape[-2:])
        v = probe(a.shape[-1], self.dtype)
        uv = np.triu(lu[..., :k, :]) @ v
        luv = np.tril(lu[..., :k], -1) @ uv
        luv[..., :k, :] += uv
        av = rows(a @ v, order(result.pivots, a.shape[-2]))
        # Relative to U if that is larger than A: with partial pivoting in LAPACK it may grow as much.
        return worst(av - luv, np.maximum(sizes(a), sizes(np.triu(lu))), v)


class LuFactor(Factorization):
    __slots__ = ()

    def deliver(self, factored: Factored) -> Any:
        return factored.lu, factored.pivots


@record(kw_only=True)
class Lu(Factorization):
    """L, U and the permutation, in one of three forms."""

    permute_l: bool
    p_indices: bool

    def deliver(self, factored: Factored) -> tuple[np.ndarray, ...]:
        lu = factored.lu
        m, n = lu.shape[-2:]
        k = min(m, n)
        l, u = np.tril(lu[..., :k], -1), np.triu(lu[..., :k, :])
        diagonal = np.arange(k)
        l[..., diagonal, diagonal] = 1
        p = np.argsort(order(factored.pivots, m), axis=-1)  # A = L[p] U
        if self.permute_l:
            return rows(l, p), u
        return (p.astype(np.int32) if self.p_indices else np.eye(m, dtype=lu.real.dtype)[p]), l, u


def prepare_lu_factor(a: Any, overwrite_a: Any = False, check_finite: Any = True) -> Problem:
    return LuFactor.of(lu_problem(a), check=nonzero_pivots)


def prepare_lu(
    a: Any, permute_l: Any = False, overwrite_a: Any = False, check_finite: Any = True, p_indices: Any = False
) -> Problem:
    return Lu.of(lu_problem(a), permute_l=bool(permute_l), p_indices=bool(p_indices))


def lu_problem(a: Any, square: bool = False) -> Factorization:
    a = matrices(a, square=square)
    dtype, (m, n) = guards.floating(a), a.shape[-2:]
    if m == n == 1:
        raise Unsupported(Reason.LAYOUT, "a number, not a matrix")
    k = min(m, n)
    flops = 1.0 * m * n * k - k**3 / 3
    return Factorization((a,), dtype, useful("lu", k, flops, (a,), dtype, a.size))


@record(kw_only=True)
class LuSolve(Problem):
    """A x = b or A^T x = b, from LU factors."""

    trans: str

    def run(self, engine: Engine) -> np.ndarray:
        lu, b, pivots = self.arrays
        guards.finite(lu, b)
        nonzero(lu)
        if usual(pivots.min() < 0, False) or usual(pivots.max() >= len(lu), False):
            raise Unsupported(Reason.VALUE, "pivots outside the matrix")
        lu, columns = (x.astype(self.dtype, copy=False) for x in (lu, b.reshape(len(b), -1)))
        return solve(lu, pivots, columns, engine, self.trans).reshape(b.shape)

    def error(self, x: np.ndarray) -> float:
        lu, b, pivots = self.arrays
        l, u = np.tril(lu, -1) + np.eye(len(lu), dtype=lu.dtype), np.triu(lu)
        p = order(pivots, len(lu))
        if self.trans == "N":
            residual = l @ (u @ x) - b[p]
        else:
            turned = (lambda m: m.T) if self.trans == "T" else adjoint
            residual = turned(u) @ (turned(l) @ x[p]) - b
        # Elements of x and of U x below the smallest normal number are zero or have an absolute error only.
        least = math.sqrt(x.size) * float(np.finfo(x.dtype).tiny)
        return norm(residual) / (norm(l) * (norm(u) * (norm(x) + least) + least) + norm(b) or 1.0)


def prepare_lu_solve(
    lu_and_piv: Any, b: Any, trans: Any = 0, overwrite_b: Any = False, check_finite: Any = True
) -> Problem:
    lu, pivots = lu_and_piv
    lu, pivots = given_factor(lu), guards.array(pivots)
    b = right_hand_sides(lu, b)
    if pivots.shape != lu.shape[:1] or pivots.dtype.kind != "i":
        raise Unsupported(Reason.PARAM, f"pivots {pivots.dtype} {pivots.shape} for a matrix {lu.shape}")
    if trans not in (0, 1, 2):
        raise Unsupported(Reason.PARAM, f"trans={trans!r}")
    dtype, n, k = guards.floating(lu, b), len(lu), b.size // len(lu)
    cost = useful("trsm", n, 2.0 * n * n * k, (lu, b), dtype, b.size)
    return LuSolve((lu, b, pivots), dtype, cost, trans="NTC"[int(trans)])


OPS = (
    scipy_function("lu", prepare_lu, small=SMALL),
    scipy_function("lu_factor", prepare_lu_factor, small=SMALL),
    scipy_function("lu_solve", prepare_lu_solve, small=SMALL),
)
