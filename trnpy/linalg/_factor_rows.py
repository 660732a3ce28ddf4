"""The rows of Cholesky and LU factors, of what is solved with them, and of determinants."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from trnpy._base import conventions
from trnpy._call import guards
from trnpy._call.dispatch import Op, Problem, Reason, Unsupported
from trnpy._engine import lapack
from trnpy._engine.engines import Engine
from trnpy._engine.precision import probe
from trnpy._engine.stand_ins import usual
from trnpy._host import stacks
from trnpy.linalg import _cholesky, _lu, _routes
from trnpy.linalg._matrices import SMALL, matrices, norm, right_hand_sides, sizes, square, useful, worst
from trnpy.linalg._panels import BLOCK, adjoint

SlogdetResult = type(np.linalg.slogdet(np.eye(1)))

# --- Cholesky ---------------------------------------------------------------------------------------------------------


def cholesky_factor(a: np.ndarray, lower: bool, dtype: np.dtype, engine: Engine) -> np.ndarray:
    guards.finite(a)
    a = a.astype(dtype, copy=False)
    try:
        l = _cholesky.cholesky(a if lower else adjoint(a), engine)
    except lapack.LinAlgError as why:
        raise Unsupported(Reason.VALUE, "not positive definite") from why
    return l if lower else adjoint(l)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cholesky(Problem):
    """The factor of Hermitian positive-definite matrices a (..., n, n), from the triangle that is read."""

    lower: bool
    clean: bool = True  # the other triangle is zero; else what a has there, as LAPACK leaves it

    def run(self, engine: Engine) -> np.ndarray:
        (a,) = self.arrays
        factor = cholesky_factor(a, self.lower, self.dtype, engine)
        return factor if self.clean else beside(factor, a, self.lower)

    def error(self, result: Any) -> float:
        (a,) = self.arrays
        c = result[0] if isinstance(result, tuple) else result
        if not self.clean:
            c = np.tril(c) if self.lower else np.triu(c)
        l, a = (c, a) if self.lower else (adjoint(c), adjoint(a))
        v = probe(a.shape[-1], self.dtype)
        below = np.tril(a, -1)
        av = below @ v + adjoint(below) @ v + np.diagonal(a, axis1=-2, axis2=-1).real[..., np.newaxis] * v
        return worst(l @ (adjoint(l) @ v) - av, sizes(np.tril(a)), v)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoFactor(Cholesky):
    """With ``lower`` as it was given."""

    given: Any

    def deliver(self, result: np.ndarray) -> tuple[np.ndarray, Any]:
        return result, self.given


def prepare_cholesky(a: Any, lower: Any = False, overwrite_a: Any = False, check_finite: Any = True) -> Problem:
    a = matrices(a, square=True)
    dtype, n = guards.floating(a), a.shape[-1]
    return Cholesky((a,), dtype, useful("cholesky", n, n**3 / 3, (a,), dtype, a.size), lower=bool(lower))


def prepare_scipy_cholesky(a: Any, lower: Any = False, overwrite_a: Any = False, check_finite: Any = True) -> Problem:
    if _routes.is_stack(a) and a.shape[-1] <= BLOCK:
        return _routes.stack("cholesky", (a,), stacks.cholesky, bool(lower))
    return prepare_cholesky(a, lower)


def prepare_numpy_cholesky(a: Any, /, *, upper: Any = False) -> Problem:
    return prepare_cholesky(a, lower=not upper)


def beside(factor: np.ndarray, a: np.ndarray, lower: bool) -> np.ndarray:
    """``factor`` with the other triangle of a, which LAPACK does not write."""
    both: np.ndarray = factor + (np.triu(a, 1) if lower else np.tril(a, -1))
    return both


def prepare_cho_factor(a: Any, lower: Any = False, overwrite_a: Any = False, check_finite: Any = True) -> Problem:
    clean = not conventions.leaves_triangle(lapack.linalg.cho_factor)
    return ChoFactor.of(prepare_cholesky(square(a), lower), clean=clean, given=lower)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoSolve(Problem):
    """A x = b for the factor of A."""

    lower: bool

    def run(self, engine: Engine) -> np.ndarray:
        c, b = self.arrays
        guards.finite(c, b)
        nonzero(c)
        c, columns = (x.astype(self.dtype, copy=False) for x in (c, b.reshape(len(b), -1)))
        return _cholesky.solve(c, columns, self.lower, engine).reshape(b.shape)

    def error(self, x: np.ndarray) -> float:
        c, b = self.arrays
        u = adjoint(np.tril(c)) if self.lower else np.triu(c)
        return norm(adjoint(u) @ (u @ x) - b) / (norm(u) ** 2 * norm(x) + norm(b) or 1.0)


def prepare_cho_solve(c_and_lower: Any, b: Any, overwrite_b: Any = False, check_finite: Any = True) -> Problem:
    c, lower = c_and_lower
    c = _factor(c)
    b = right_hand_sides(c, b)
    dtype, n, k = guards.floating(c, b), len(c), b.size // len(c)
    return ChoSolve((c, b), dtype, useful("trsm", n, 2.0 * n * n * k, (c, b), dtype, b.size), lower=bool(lower))


def _factor(a: Any) -> np.ndarray:
    """One square matrix, but no lists: some versions of SciPy take none here."""
    if type(a) is not np.ndarray:
        raise Unsupported(Reason.SUBCLASS, f"a factor of type {type(a).__name__}")
    return square(a)


def nonzero(a: np.ndarray) -> None:
    if not usual(np.diagonal(a, axis1=-2, axis2=-1).all(), True):
        raise Unsupported(Reason.VALUE, "singular: a zero on the diagonal")


# --- LU ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Factored:
    """A[p] = L U, before it is what the caller asked for: the backward error is measured here."""

    lu: np.ndarray
    pivots: np.ndarray


def lu_factored(a: np.ndarray, dtype: np.dtype, engine: Engine) -> Factored:
    guards.finite(a)
    return Factored(*_lu.factor(a.astype(dtype), engine))


@dataclass(frozen=True, slots=True, kw_only=True)
class Factorization(Problem):
    """Of matrices a (..., m, n) by partial pivoting."""

    singular: bool = True  # whether a pivot may be zero

    def run(self, engine: Engine) -> Factored:
        factored = lu_factored(self.arrays[0], self.dtype, engine)
        if not self.singular:
            nonzero(factored.lu)
        return factored

    def error(self, result: Any) -> float:
        """Of a Factored; the reference's own results are not measured."""
        if not isinstance(result, Factored):
            return 0.0
        (a,) = self.arrays
        lu, k = result.lu, min(a.shape[-2:])
        v = probe(a.shape[-1], self.dtype)
        uv = np.triu(lu[..., :k, :]) @ v
        luv = np.tril(lu[..., :k], -1) @ uv
        luv[..., :k, :] += uv
        av = _lu.rows(a @ v, _lu.order(result.pivots, a.shape[-2]))
        # What partial pivoting does to the size of U is LAPACK's as well.
        return worst(av - luv, np.maximum(sizes(a), sizes(np.triu(lu))), v)


class LuFactor(Factorization):
    __slots__ = ()

    def deliver(self, factored: Factored) -> Any:
        return factored.lu, factored.pivots


@dataclass(frozen=True, slots=True, kw_only=True)
class Lu(Factorization):
    """The factors themselves, and what orders the rows."""

    permute_l: bool
    p_indices: bool

    def deliver(self, factored: Factored) -> tuple[np.ndarray, ...]:
        lu = factored.lu
        m, n = lu.shape[-2:]
        k = min(m, n)
        l, u = np.tril(lu[..., :k], -1), np.triu(lu[..., :k, :])
        diagonal = np.arange(k)
        l[..., diagonal, diagonal] = 1
        p = np.argsort(_lu.order(factored.pivots, m), axis=-1)  # A = L[p] U
        if self.permute_l:
            return _lu.rows(l, p), u
        return (p.astype(np.int32) if self.p_indices else np.eye(m, dtype=lu.real.dtype)[p]), l, u


def prepare_lu_factor(a: Any, overwrite_a: Any = False, check_finite: Any = True) -> Problem:
    return LuFactor.of(lu_problem(a), singular=False)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class LuSolve(Problem):
    """A x = b, or with the transpose of A, for its factors."""

    trans: str

    def run(self, engine: Engine) -> np.ndarray:
        lu, b, pivots = self.arrays
        guards.finite(lu, b)
        nonzero(lu)
        if usual(pivots.min() < 0, False) or usual(pivots.max() >= len(lu), False):
            raise Unsupported(Reason.VALUE, "pivots outside the matrix")
        lu, columns = (x.astype(self.dtype, copy=False) for x in (lu, b.reshape(len(b), -1)))
        return _lu.solve(lu, pivots, columns, engine, self.trans).reshape(b.shape)

    def error(self, x: np.ndarray) -> float:
        lu, b, pivots = self.arrays
        l, u = np.tril(lu, -1) + np.eye(len(lu), dtype=lu.dtype), np.triu(lu)
        p = _lu.order(pivots, len(lu))
        if self.trans == "N":
            residual = l @ (u @ x) - b[p]
        else:
            turned = (lambda m: m.T) if self.trans == "T" else adjoint
            residual = turned(u) @ (turned(l) @ x[p]) - b
        return norm(residual) / (norm(l) * norm(u) * norm(x) + norm(b) or 1.0)


def prepare_lu_solve(
    lu_and_piv: Any, b: Any, trans: Any = 0, overwrite_b: Any = False, check_finite: Any = True
) -> Problem:
    lu, pivots = lu_and_piv
    lu, pivots = _factor(lu), guards.array(pivots)
    b = right_hand_sides(lu, b)
    if pivots.shape != lu.shape[:1] or pivots.dtype.kind != "i":
        raise Unsupported(Reason.PARAM, f"pivots {pivots.dtype} {pivots.shape} for a matrix {lu.shape}")
    if trans not in (0, 1, 2):
        raise Unsupported(Reason.PARAM, f"trans={trans!r}")
    dtype, n, k = guards.floating(lu, b), len(lu), b.size // len(lu)
    cost = useful("trsm", n, 2.0 * n * n * k, (lu, b), dtype, b.size)
    return LuSolve((lu, b, pivots), dtype, cost, trans="NTC"[int(trans)])


# --- Determinants -----------------------------------------------------------------------------------------------------


def _pivots_and_sign(factored: Factored, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """The diagonal of U (..., n) in ``dtype``, and the sign of the swaps (...)."""
    u = np.diagonal(factored.lu, axis1=-2, axis2=-1).astype(dtype)
    swaps = (factored.pivots != np.arange(u.shape[-1])).sum(axis=-1)
    return u, 1 - 2 * (swaps % 2)


def _slogdet(factored: Factored) -> tuple[Any, Any]:
    u, sign = _pivots_and_sign(factored, factored.lu.dtype)
    size = np.abs(u)
    with np.errstate(divide="ignore", invalid="ignore"):
        phase = np.where(size > 0, u / np.where(size > 0, size, 1), 0).prod(axis=-1) * sign
        return phase.astype(u.dtype)[()], np.log(size).sum(axis=-1)[()]


class Determinant(Factorization):
    __slots__ = ()

    def deliver(self, factored: Factored) -> Any:
        """One product of the pivots in double precision, as SciPy's."""
        u, sign = _pivots_and_sign(factored, np.result_type(factored.lu.dtype, np.float64))
        with np.errstate(all="ignore"):  # SciPy overflows in silence
            return (u.prod(axis=-1) * sign)[()]


class LogDeterminant(Factorization):
    __slots__ = ()

    def deliver(self, factored: Factored) -> Any:
        return SlogdetResult(*_slogdet(factored))


class NumpyDeterminant(Factorization):
    __slots__ = ()

    def run(self, engine: Engine) -> Factored:
        factored = Factorization.run(self, engine)
        if not usual(np.isfinite(self.deliver(factored)).all(), True):
            raise Unsupported(Reason.VALUE, "the determinant overflows")  # NumPy warns where its cast does
        return factored

    def deliver(self, factored: Factored) -> Any:
        """From the logarithm, as NumPy's: no overflow on the way."""
        phase, logarithm = _slogdet(factored)
        with np.errstate(over="ignore", under="ignore"):
            return (phase * np.exp(logarithm)).astype(factored.lu.dtype)[()]


def prepare_det(a: Any, overwrite_a: Any = False, check_finite: Any = True) -> Problem:
    return Determinant.of(lu_problem(a, square=True))


def prepare_slogdet(a: Any) -> Problem:
    return LogDeterminant.of(lu_problem(a, square=True))


def prepare_numpy_det(a: Any) -> Problem:
    return NumpyDeterminant.of(lu_problem(a, square=True))


def _op(name: str, prepare: Callable[..., Problem]) -> Op:
    module, _, attribute = name.rpartition(".")
    function = getattr(lapack.linalg if module == "scipy.linalg" else np.linalg, attribute)
    look = _routes.stacked(attribute) if name == "scipy.linalg.cholesky" else None
    return Op(name, function, prepare, small=SMALL, look=look, dry=True)


def factor_ops() -> tuple[Op, ...]:
    return (
        _op("scipy.linalg.cholesky", prepare_scipy_cholesky),
        _op("scipy.linalg.cho_factor", prepare_cho_factor),
        _op("scipy.linalg.cho_solve", prepare_cho_solve),
        _op("scipy.linalg.lu", prepare_lu),
        _op("scipy.linalg.lu_factor", prepare_lu_factor),
        _op("scipy.linalg.lu_solve", prepare_lu_solve),
        _op("scipy.linalg.det", prepare_det),
    )


NUMPY_FACTOR_OPS = (
    _op("numpy.linalg.cholesky", prepare_numpy_cholesky),
    _op("numpy.linalg.det", prepare_numpy_det),
    _op("numpy.linalg.slogdet", prepare_slogdet),
)
