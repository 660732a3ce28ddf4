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


def prepare_cholesky(a: Any, lower: Any = False, overwrite_a: Any = False, check_finite: Any = True) -> Problem:
    a = matrices(a, square=True)
    dtype, n = guards.floating(a), a.shape[-1]
    return Problem((a,), dtype, useful("cholesky", n, n**3 / 3, (a,), dtype, a.size), (bool(lower),))


def prepare_scipy_cholesky(a: Any, lower: Any = False, overwrite_a: Any = False, check_finite: Any = True) -> Problem:
    if _routes.is_stack(a) and a.shape[-1] <= BLOCK:
        return _routes.stack("cholesky", (a,), stacks.cholesky, bool(lower))
    return prepare_cholesky(a, lower)


def prepare_numpy_cholesky(a: Any, /, *, upper: Any = False) -> Problem:
    return prepare_cholesky(a, lower=not upper)


def run_cholesky(problem: Problem, engine: Engine) -> np.ndarray:
    (a,), (lower, *_) = problem.arrays, problem.params
    guards.finite(a)
    a = a.astype(problem.dtype, copy=False)
    try:
        l = _cholesky.cholesky(a if lower else adjoint(a), engine)
    except lapack.LinAlgError as why:
        raise Unsupported(Reason.VALUE, "not positive definite") from why
    return l if lower else adjoint(l)


def cholesky_error(problem: Problem, result: np.ndarray) -> float:
    (a,), (lower, *_) = problem.arrays, problem.params
    l, a = (result, a) if lower else (adjoint(result), adjoint(a))
    v = probe(a.shape[-1], problem.dtype)
    below = np.tril(a, -1)
    av = below @ v + adjoint(below) @ v + np.diagonal(a, axis1=-2, axis2=-1).real[..., np.newaxis] * v
    return worst(l @ (adjoint(l) @ v) - av, sizes(np.tril(a)), v)


def prepare_cho_factor(a: Any, lower: Any = False, overwrite_a: Any = False, check_finite: Any = True) -> Problem:
    problem = prepare_cholesky(square(a), lower)
    return Problem(problem.arrays, problem.dtype, problem.cost, (bool(lower), lower))


def run_cho_factor(problem: Problem, engine: Engine) -> tuple[np.ndarray, Any]:
    """The other triangle is a's, as LAPACK leaves it, where it is in SciPy's, too."""
    (a,), (lower, given) = problem.arrays, problem.params
    factor = run_cholesky(problem, engine)
    return beside(factor, a, lower) if conventions.leaves_triangle(lapack.linalg.cho_factor) else factor, given


def beside(factor: np.ndarray, a: np.ndarray, lower: bool) -> np.ndarray:
    """``factor`` with the other triangle of a, which LAPACK does not write."""
    both: np.ndarray = factor + (np.triu(a, 1) if lower else np.tril(a, -1))
    return both


def cho_factor_error(problem: Problem, result: tuple[np.ndarray, Any]) -> float:
    c, _ = result
    return cholesky_error(problem, np.tril(c) if problem.params[0] else np.triu(c))


def prepare_cho_solve(c_and_lower: Any, b: Any, overwrite_b: Any = False, check_finite: Any = True) -> Problem:
    c, lower = c_and_lower
    c = _factor(c)
    b = right_hand_sides(c, b)
    dtype, n, k = guards.floating(c, b), len(c), b.size // len(c)
    return Problem((c, b), dtype, useful("trsm", n, 2.0 * n * n * k, (c, b), dtype, b.size), (bool(lower),))


def _factor(a: Any) -> np.ndarray:
    """One square matrix, but no lists: some versions of SciPy take none here."""
    if type(a) is not np.ndarray:
        raise Unsupported(Reason.SUBCLASS, f"a factor of type {type(a).__name__}")
    return square(a)


def run_cho_solve(problem: Problem, engine: Engine) -> np.ndarray:
    (c, b), (lower,) = problem.arrays, problem.params
    guards.finite(c, b)
    _nonzero(c)
    c, columns = (x.astype(problem.dtype, copy=False) for x in (c, b.reshape(len(b), -1)))
    return _cholesky.solve(c, columns, lower, engine).reshape(b.shape)


def cho_solve_error(problem: Problem, x: np.ndarray) -> float:
    (c, b), (lower,) = problem.arrays, problem.params
    u = adjoint(np.tril(c)) if lower else np.triu(c)
    return norm(adjoint(u) @ (u @ x) - b) / (norm(u) ** 2 * norm(x) + norm(b) or 1.0)


def _nonzero(a: np.ndarray) -> None:
    if not usual(np.diagonal(a, axis1=-2, axis2=-1).all(), True):
        raise Unsupported(Reason.VALUE, "singular: a zero on the diagonal")


# --- LU ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Factored:
    """A[p] = L U, before it is what the caller asked for: the backward error is measured here."""

    lu: np.ndarray
    pivots: np.ndarray


def prepare_lu_factor(a: Any, overwrite_a: Any = False, check_finite: Any = True) -> Problem:
    return _lu_problem(a)


def prepare_lu(
    a: Any, permute_l: Any = False, overwrite_a: Any = False, check_finite: Any = True, p_indices: Any = False
) -> Problem:
    problem = _lu_problem(a)
    return Problem(problem.arrays, problem.dtype, problem.cost, (bool(permute_l), bool(p_indices)))


def _lu_problem(a: Any, square: bool = False) -> Problem:
    a = matrices(a, square=square)
    dtype, (m, n) = guards.floating(a), a.shape[-2:]
    if m == n == 1:
        raise Unsupported(Reason.LAYOUT, "a number, not a matrix")
    k = min(m, n)
    flops = 1.0 * m * n * k - k**3 / 3
    return Problem((a,), dtype, useful("lu", k, flops, (a,), dtype, a.size))


def run_lu(problem: Problem, engine: Engine) -> Factored:
    (a,) = problem.arrays
    guards.finite(a)
    return Factored(*_lu.factor(a.astype(problem.dtype), engine))


def run_lu_factor(problem: Problem, engine: Engine) -> Factored:
    factored = run_lu(problem, engine)
    _nonzero(factored.lu)
    return factored


def lu_error(problem: Problem, result: Any) -> float:
    """Of a Factored; the reference's own results are not measured."""
    if not isinstance(result, Factored):
        return 0.0
    (a,) = problem.arrays
    lu, k = result.lu, min(a.shape[-2:])
    v = probe(a.shape[-1], problem.dtype)
    uv = np.triu(lu[..., :k, :]) @ v
    luv = np.tril(lu[..., :k], -1) @ uv
    luv[..., :k, :] += uv
    av = _lu.rows(a @ v, _lu.order(result.pivots, a.shape[-2]))
    # What partial pivoting does to the size of U is LAPACK's as well.
    return worst(av - luv, np.maximum(sizes(a), sizes(np.triu(lu))), v)


def deliver_lu_factor(problem: Problem, factored: Factored) -> Any:
    return factored.lu, factored.pivots


def deliver_lu(problem: Problem, factored: Factored) -> tuple[np.ndarray, ...]:
    permute_l, p_indices = problem.params
    lu = factored.lu
    m, n = lu.shape[-2:]
    k = min(m, n)
    l, u = np.tril(lu[..., :k], -1), np.triu(lu[..., :k, :])
    diagonal = np.arange(k)
    l[..., diagonal, diagonal] = 1
    p = np.argsort(_lu.order(factored.pivots, m), axis=-1)  # A = L[p] U
    if permute_l:
        return _lu.rows(l, p), u
    return (p.astype(np.int32) if p_indices else np.eye(m, dtype=lu.real.dtype)[p]), l, u


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
    return Problem((lu, b, pivots), dtype, cost, ("NTC"[int(trans)],))


def run_lu_solve(problem: Problem, engine: Engine) -> np.ndarray:
    (lu, b, pivots), (trans,) = problem.arrays, problem.params
    guards.finite(lu, b)
    _nonzero(lu)
    if usual(pivots.min() < 0, False) or usual(pivots.max() >= len(lu), False):
        raise Unsupported(Reason.VALUE, "pivots outside the matrix")
    lu, columns = (x.astype(problem.dtype, copy=False) for x in (lu, b.reshape(len(b), -1)))
    return _lu.solve(lu, pivots, columns, engine, trans).reshape(b.shape)


def lu_solve_error(problem: Problem, x: np.ndarray) -> float:
    (lu, b, pivots), (trans,) = problem.arrays, problem.params
    l, u = np.tril(lu, -1) + np.eye(len(lu), dtype=lu.dtype), np.triu(lu)
    p = _lu.order(pivots, len(lu))
    if trans == "N":
        residual = l @ (u @ x) - b[p]
    else:
        turned = (lambda m: m.T) if trans == "T" else adjoint
        residual = turned(u) @ (turned(l) @ x[p]) - b
    return norm(residual) / (norm(l) * norm(u) * norm(x) + norm(b) or 1.0)


# --- Determinants -----------------------------------------------------------------------------------------------------


def prepare_det(a: Any, overwrite_a: Any = False, check_finite: Any = True) -> Problem:
    return _lu_problem(a, square=True)


def prepare_numpy_det(a: Any) -> Problem:
    return _lu_problem(a, square=True)


def _pivots_and_sign(factored: Factored, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """The diagonal of U (..., n) in ``dtype``, and the sign of the swaps (...)."""
    u = np.diagonal(factored.lu, axis1=-2, axis2=-1).astype(dtype)
    swaps = (factored.pivots != np.arange(u.shape[-1])).sum(axis=-1)
    return u, 1 - 2 * (swaps % 2)


def deliver_det(problem: Problem, factored: Factored) -> Any:
    """One product of the pivots in double precision, as SciPy's."""
    u, sign = _pivots_and_sign(factored, np.result_type(factored.lu.dtype, np.float64))
    with np.errstate(all="ignore"):  # SciPy overflows in silence
        return (u.prod(axis=-1) * sign)[()]


def _slogdet(factored: Factored) -> tuple[Any, Any]:
    u, sign = _pivots_and_sign(factored, factored.lu.dtype)
    size = np.abs(u)
    with np.errstate(divide="ignore", invalid="ignore"):
        phase = np.where(size > 0, u / np.where(size > 0, size, 1), 0).prod(axis=-1) * sign
        return phase.astype(u.dtype)[()], np.log(size).sum(axis=-1)[()]


def deliver_slogdet(problem: Problem, factored: Factored) -> Any:
    return SlogdetResult(*_slogdet(factored))


def deliver_numpy_det(problem: Problem, factored: Factored) -> Any:
    """From the logarithm, as NumPy's: no overflow on the way."""
    phase, logarithm = _slogdet(factored)
    with np.errstate(over="ignore", under="ignore"):
        return (phase * np.exp(logarithm)).astype(factored.lu.dtype)[()]


def run_numpy_det(problem: Problem, engine: Engine) -> Factored:
    factored = run_lu(problem, engine)
    if not usual(np.isfinite(deliver_numpy_det(problem, factored)).all(), True):
        raise Unsupported(Reason.VALUE, "the determinant overflows")  # NumPy warns where its cast does
    return factored


def _op(name: str, prepare: Any, run: Any, error: Any, deliver: Callable[[Problem, Any], Any] | None = None) -> Op:
    module, _, attribute = name.rpartition(".")
    function = getattr(lapack.linalg if module == "scipy.linalg" else np.linalg, attribute)
    look = _routes.stacked(attribute) if name == "scipy.linalg.cholesky" else None
    options: dict[str, Any] = {} if deliver is None else {"deliver": deliver}
    return Op(name, function, prepare, run, error, SMALL, look=look, dry=True, **options)


def factor_ops() -> tuple[Op, ...]:
    return (
        _op("scipy.linalg.cholesky", prepare_scipy_cholesky, run_cholesky, cholesky_error),
        _op("scipy.linalg.cho_factor", prepare_cho_factor, run_cho_factor, cho_factor_error),
        _op("scipy.linalg.cho_solve", prepare_cho_solve, run_cho_solve, cho_solve_error),
        _op("scipy.linalg.lu", prepare_lu, run_lu, lu_error, deliver_lu),
        _op("scipy.linalg.lu_factor", prepare_lu_factor, run_lu_factor, lu_error, deliver_lu_factor),
        _op("scipy.linalg.lu_solve", prepare_lu_solve, run_lu_solve, lu_solve_error),
        _op("scipy.linalg.det", prepare_det, run_lu, lu_error, deliver_det),
    )


NUMPY_FACTOR_OPS = (
    _op("numpy.linalg.cholesky", prepare_numpy_cholesky, run_cholesky, cholesky_error),
    _op("numpy.linalg.det", prepare_numpy_det, run_numpy_det, lu_error, deliver_numpy_det),
    _op("numpy.linalg.slogdet", prepare_numpy_det, run_lu, lu_error, deliver_slogdet),
)
