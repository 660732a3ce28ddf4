"""The rows of LAPACK's drivers as f2py passes their calls, over the algorithms of scipy.linalg's own rows."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.linalg import lapack as reference

from trnpy._call.dispatch import Op, Problem, Reason, Unsupported
from trnpy._engine.engines import Engine
from trnpy.linalg import _cholesky, _factor_rows, _lu
from trnpy.linalg._blas_rows import TYPES, flag, operand, placed
from trnpy.linalg._factor_rows import Factored
from trnpy.linalg._matrices import SMALL, norm, right_hand_sides, useful
from trnpy.linalg._ops import OPS
from trnpy.linalg._panels import adjoint

EIGH = next(row for row in OPS if row.name == "scipy.linalg.eigh")
Prepare = Callable[..., Problem]


def square(a: Any, dtype: np.dtype) -> np.ndarray:
    m = operand(a, dtype)
    if m.shape[0] != m.shape[1]:
        raise Unsupported(Reason.PARAM, f"shape {m.shape} is not square")
    return m


def _with(problem: Problem, *params: Any) -> Problem:
    """``problem`` without its host route, which returns what scipy.linalg's function does."""
    return replace(problem, params=params, route=None)


# --- Eigenproblems ----------------------------------------------------------------------------------------------------


def prepare_evd(
    dtype: np.dtype, a: Any, compute_v: Any = 1, lower: Any = 0, lwork: Any = None, liwork: Any = None,
    lrwork: Any = None, overwrite_a: Any = 0,
) -> Problem:  # fmt: skip
    """The order of the arguments that only complex routines have is theirs: they are refused, not read."""
    if not flag("compute_v", compute_v) or not lwork is liwork is lrwork is None:
        raise Unsupported(Reason.PARAM, f"compute_v={compute_v!r} or the size of a work array")
    problem = EIGH.prepare(square(a, dtype), lower=bool(flag("lower", lower)))
    return _with(problem, problem.params, flag("overwrite_a", overwrite_a))


def prepare_gvd(
    dtype: np.dtype, a: Any, b: Any, itype: Any = 1, jobz: Any = "V", uplo: Any = "L", *work: Any,
    overwrite_a: Any = 0, overwrite_b: Any = 0,
) -> Problem:  # fmt: skip
    if work or jobz not in ("V", b"V") or uplo not in ("L", "U", b"L", b"U") or itype not in (1, 2, 3):
        raise Unsupported(Reason.PARAM, f"itype={itype!r}, jobz={jobz!r}, uplo={uplo!r} or the size of a work array")
    a, b = square(a, dtype), square(b, dtype)
    problem = EIGH.prepare(a, b, lower=uplo in ("L", b"L"), type=int(itype))
    return _with(problem, problem.params, flag("overwrite_a", overwrite_a))


def run_eigen(problem: Problem, engine: Engine) -> Any:
    return EIGH.run(replace(problem, params=problem.params[0]), engine)


def eigen_error(problem: Problem, result: Any) -> float:
    return EIGH.error(replace(problem, params=problem.params[0]), result[:2])


def deliver_eigen(problem: Problem, result: Any) -> tuple[Any, ...]:
    w, v = result
    return w, placed(v, problem.arrays[0] if problem.params[1] else None), 0


# --- Cholesky ---------------------------------------------------------------------------------------------------------


def prepare_potrf(dtype: np.dtype, a: Any, lower: Any = 0, clean: Any = 1, overwrite_a: Any = 0) -> Problem:
    lower = bool(flag("lower", lower))
    problem = _factor_rows.prepare_cholesky(square(a, dtype), lower)
    return _with(problem, lower, flag("clean", clean), flag("overwrite_a", overwrite_a))


def run_potrf(problem: Problem, engine: Engine) -> np.ndarray:
    lower, clean, _ = problem.params
    factor = _factor_rows.run_cholesky(problem, engine)
    return factor if clean else _factor_rows.beside(factor, problem.arrays[0], lower)


def potrf_error(problem: Problem, result: Any) -> float:
    c = result[0] if isinstance(result, tuple) else result
    return _factor_rows.cholesky_error(problem, np.tril(c) if problem.params[0] else np.triu(c))


def deliver_potrf(problem: Problem, result: np.ndarray) -> tuple[np.ndarray, int]:
    return placed(result, problem.arrays[0] if problem.params[2] else None), 0


def prepare_posv(
    dtype: np.dtype, a: Any, b: Any, lower: Any = 0, overwrite_a: Any = 0, overwrite_b: Any = 0
) -> Problem:
    a, lower = square(a, dtype), bool(flag("lower", lower))
    b = _sides(a, b, dtype)
    cost = useful("solve", len(a), len(a) ** 3 / 3 + 2.0 * len(a) * b.size, (a, b), dtype, a.size + b.size)
    return Problem((a, b), dtype, cost, (lower, flag("overwrite_a", overwrite_a), flag("overwrite_b", overwrite_b)))


def run_posv(problem: Problem, engine: Engine) -> tuple[np.ndarray, np.ndarray]:
    (a, b), (lower, *_) = problem.arrays, problem.params
    factor = _factor_rows.run_cholesky(replace(problem, arrays=(a,), params=(lower, lower)), engine)
    return _factor_rows.beside(factor, a, lower), _cholesky.solve(factor, b, lower, engine)


def posv_error(problem: Problem, result: Any) -> float:
    (a, b), (lower, *_) = problem.arrays, problem.params
    half = np.tril(a, -1) if lower else np.triu(a, 1)
    whole = half + adjoint(half) + np.diag(a.diagonal().real)
    return system_error(whole, result[1], b)


def deliver_posv(problem: Problem, result: tuple[np.ndarray, np.ndarray]) -> tuple[Any, ...]:
    (a, b), (_, in_a, in_b), (c, x) = problem.arrays, problem.params, result
    return placed(c, a if in_a else None), placed(x, b if in_b else None), 0


# --- LU ---------------------------------------------------------------------------------------------------------------


def prepare_getrf(dtype: np.dtype, a: Any, overwrite_a: Any = 0) -> Problem:
    return _with(_factor_rows.prepare_lu_factor(operand(a, dtype)), flag("overwrite_a", overwrite_a))


def deliver_getrf(problem: Problem, factored: Factored) -> tuple[Any, ...]:
    place = problem.arrays[0] if problem.params[0] else None
    return placed(factored.lu, place), factored.pivots.astype(np.int32), 0


def _sides(a: np.ndarray, b: Any, dtype: np.dtype) -> np.ndarray:
    return right_hand_sides(a, operand(b, dtype))


def prepare_gesv(dtype: np.dtype, a: Any, b: Any, overwrite_a: Any = 0, overwrite_b: Any = 0) -> Problem:
    a = square(a, dtype)
    b = _sides(a, b, dtype)
    n = len(a)
    cost = useful("solve", n, 2 / 3 * n**3 + 2.0 * n * b.size, (a, b), dtype, a.size + b.size)
    return Problem((a, b), dtype, cost, (flag("overwrite_a", overwrite_a), flag("overwrite_b", overwrite_b)))


def run_gesv(problem: Problem, engine: Engine) -> tuple[Factored, np.ndarray]:
    a, b = problem.arrays
    factored = _factor_rows.run_lu_factor(replace(problem, arrays=(a,)), engine)
    return factored, _lu.solve(factored.lu, factored.pivots, b, engine)


def gesv_error(problem: Problem, result: Any) -> float:
    a, b = problem.arrays
    return system_error(a, result[1] if len(result) == 2 else result[2], b)


def system_error(a: np.ndarray, x: np.ndarray, b: np.ndarray) -> float:
    return norm(a @ x - b) / (norm(a) * norm(x) + norm(b) or 1.0)


def deliver_gesv(problem: Problem, result: tuple[Factored, np.ndarray]) -> tuple[Any, ...]:
    (a, b), (in_a, in_b), (factored, x) = problem.arrays, problem.params, result
    pivots = factored.pivots.astype(np.int32)
    return placed(factored.lu, a if in_a else None), pivots, placed(x, b if in_b else None), 0


def _rows(kind: str, prefixes: str, prepare: Prepare, run: Any, error: Any, deliver: Any) -> tuple[Op, ...]:
    return tuple(
        Op(f"scipy.linalg.lapack.{prefix}{kind}", getattr(reference, prefix + kind),
           functools.partial(prepare, TYPES[prefix]), run, error, SMALL, deliver, dry=True)
        for prefix in prefixes
    )  # fmt: skip


LAPACK_OPS = (
    *_rows("syevd", "sd", prepare_evd, run_eigen, eigen_error, deliver_eigen),
    *_rows("heevd", "cz", prepare_evd, run_eigen, eigen_error, deliver_eigen),
    *_rows("sygvd", "sd", prepare_gvd, run_eigen, eigen_error, deliver_eigen),
    *_rows("hegvd", "cz", prepare_gvd, run_eigen, eigen_error, deliver_eigen),
    *_rows("potrf", "sdcz", prepare_potrf, run_potrf, potrf_error, deliver_potrf),
    *_rows("posv", "sdcz", prepare_posv, run_posv, posv_error, deliver_posv),
    *_rows("getrf", "sdcz", prepare_getrf, _factor_rows.run_lu_factor, _factor_rows.lu_error, deliver_getrf),
    *_rows("gesv", "sdcz", prepare_gesv, run_gesv, gesv_error, deliver_gesv),
)
