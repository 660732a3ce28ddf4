"""LAPACK drivers with f2py's arguments, computed with the algorithms of scipy.linalg's functions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.linalg import lapack as reference

from trnpy._base.records import record
from trnpy._call.dispatch import Op, Problem, Reason, Unsupported
from trnpy._engine.engines import Engine
from trnpy.linalg import _cholesky, _eigh, _lu
from trnpy.linalg._blas_rows import TYPES, flag, operand, placed
from trnpy.linalg._lapack_panels import adjoint
from trnpy.linalg._lu import Factored
from trnpy.linalg._matrices import SMALL, nonzero, norm, right_hand_sides, system_error, useful


def square(a: Any, dtype: np.dtype) -> np.ndarray:
    m = operand(a, dtype)
    if m.shape[0] != m.shape[1]:
        raise Unsupported(Reason.PARAM, f"shape {m.shape} is not square")
    return m


# --- Eigenproblems ----------------------------------------------------------------------------------------------------


@record(kw_only=True)
class Eigen(_eigh.Eigenpairs):
    """The same problem without the CPU fast path of scipy.linalg.eigh."""

    overwrite: bool

    def deliver(self, result: Any) -> tuple[Any, ...]:
        w, v = result
        return w, placed(v, self.arrays[0] if self.overwrite else None), 0


def prepare_evd(
    dtype: np.dtype, a: Any, compute_v: Any = 1, lower: Any = 0, lwork: Any = None, liwork: Any = None,
    lrwork: Any = None, overwrite_a: Any = 0,
) -> Problem:  # fmt: skip
    """Refuse work sizes, whose order differs between real and complex routines."""
    if not flag("compute_v", compute_v) or not lwork is liwork is lrwork is None:
        raise Unsupported(Reason.PARAM, f"compute_v={compute_v!r} or the size of a work array")
    problem = _eigh.prepare_eigh(square(a, dtype), lower=bool(flag("lower", lower)))
    return Eigen.of(problem, route=None, overwrite=bool(flag("overwrite_a", overwrite_a)))


def prepare_gvd(
    dtype: np.dtype, a: Any, b: Any, itype: Any = 1, jobz: Any = "V", uplo: Any = "L", *work: Any,
    overwrite_a: Any = 0, overwrite_b: Any = 0,
) -> Problem:  # fmt: skip
    if work or jobz not in ("V", b"V") or uplo not in ("L", "U", b"L", b"U") or itype not in (1, 2, 3):
        raise Unsupported(Reason.PARAM, f"itype={itype!r}, jobz={jobz!r}, uplo={uplo!r} or the size of a work array")
    a, b = square(a, dtype), square(b, dtype)
    problem = _eigh.prepare_eigh(a, b, lower=uplo in ("L", b"L"), type=int(itype))
    return Eigen.of(problem, overwrite=bool(flag("overwrite_a", overwrite_a)))


# --- Cholesky ---------------------------------------------------------------------------------------------------------


@record(kw_only=True)
class Potrf(_cholesky.Cholesky):
    overwrite: bool

    def deliver(self, result: np.ndarray) -> tuple[np.ndarray, int]:
        return placed(result, self.arrays[0] if self.overwrite else None), 0


def prepare_potrf(dtype: np.dtype, a: Any, lower: Any = 0, clean: Any = 1, overwrite_a: Any = 0) -> Problem:
    problem = _cholesky.prepare_cholesky(square(a, dtype), bool(flag("lower", lower)))
    return Potrf.of(problem, clean=bool(flag("clean", clean)), overwrite=bool(flag("overwrite_a", overwrite_a)))


@record(kw_only=True)
class Posv(Problem):
    """A x = b and the Cholesky factor of A."""

    lower: bool
    overwrite_a: bool
    overwrite_b: bool

    def run(self, engine: Engine) -> tuple[np.ndarray, np.ndarray]:
        a, b = self.arrays
        factor = _cholesky.cholesky_factor(a, self.lower, self.dtype, engine)
        return _cholesky.beside(factor, a, self.lower), _cholesky.solve(factor, b, self.lower, engine)

    def error(self, result: Any) -> float:
        a, b = self.arrays
        half = np.tril(a, -1) if self.lower else np.triu(a, 1)
        whole = half + adjoint(half) + np.diag(a.diagonal().real)
        return system_error(whole @ result[1] - b, norm(whole), result[1], b)

    def deliver(self, result: tuple[np.ndarray, np.ndarray]) -> tuple[Any, ...]:
        (a, b), (c, x) = self.arrays, result
        return placed(c, a if self.overwrite_a else None), placed(x, b if self.overwrite_b else None), 0

    def unique(self, result: tuple[Any, ...]) -> tuple[np.ndarray, np.ndarray]:
        c, x, _ = result
        return np.tril(c) if self.lower else np.triu(c), x


def prepare_posv(
    dtype: np.dtype, a: Any, b: Any, lower: Any = 0, overwrite_a: Any = 0, overwrite_b: Any = 0
) -> Problem:
    a, lower = square(a, dtype), bool(flag("lower", lower))
    b = _sides(a, b, dtype)
    cost = useful("solve", len(a), len(a) ** 3 / 3 + 2.0 * len(a) * b.size, (a, b), dtype, a.size + b.size)
    in_a, in_b = bool(flag("overwrite_a", overwrite_a)), bool(flag("overwrite_b", overwrite_b))
    return Posv((a, b), dtype, cost, lower=lower, overwrite_a=in_a, overwrite_b=in_b)


# --- LU ---------------------------------------------------------------------------------------------------------------


@record(kw_only=True)
class Getrf(_lu.Factorization):
    overwrite: bool

    def deliver(self, factored: Factored) -> tuple[Any, ...]:
        place = self.arrays[0] if self.overwrite else None
        return placed(factored.lu, place), factored.pivots.astype(np.int32), 0


def prepare_getrf(dtype: np.dtype, a: Any, overwrite_a: Any = 0) -> Problem:
    problem = _lu.lu_problem(operand(a, dtype))
    return Getrf.of(problem, check=_lu.nonzero_pivots, overwrite=bool(flag("overwrite_a", overwrite_a)))


def _sides(a: np.ndarray, b: Any, dtype: np.dtype) -> np.ndarray:
    return right_hand_sides(a, operand(b, dtype))


@record(kw_only=True)
class Gesv(Problem):
    """A x = b and the LU factors of A."""

    overwrite_a: bool
    overwrite_b: bool

    def run(self, engine: Engine) -> tuple[Factored, np.ndarray]:
        a, b = self.arrays
        factored = _lu.lu_factored(a, self.dtype, engine)
        nonzero(factored.lu)
        return factored, _lu.solve(factored.lu, factored.pivots, b, engine)

    def error(self, result: Any) -> float:
        a, b = self.arrays
        x = result[1] if len(result) == 2 else result[2]
        return system_error(a @ x - b, norm(a), x, b)

    def deliver(self, result: tuple[Factored, np.ndarray]) -> tuple[Any, ...]:
        (a, b), (factored, x) = self.arrays, result
        pivots = factored.pivots.astype(np.int32)
        return (
            placed(factored.lu, a if self.overwrite_a else None),
            pivots,
            placed(x, b if self.overwrite_b else None),
            0,
        )

    def unique(self, result: tuple[Any, ...]) -> Any:
        return result[2]  # the solution; two pivots of equal size may be exchanged


def prepare_gesv(dtype: np.dtype, a: Any, b: Any, overwrite_a: Any = 0, overwrite_b: Any = 0) -> Problem:
    a = square(a, dtype)
    b = _sides(a, b, dtype)
    n = len(a)
    cost = useful("solve", n, 2 / 3 * n**3 + 2.0 * n * b.size, (a, b), dtype, a.size + b.size)
    in_a, in_b = bool(flag("overwrite_a", overwrite_a)), bool(flag("overwrite_b", overwrite_b))
    return Gesv((a, b), dtype, cost, overwrite_a=in_a, overwrite_b=in_b)


def _rows(kind: str, prefixes: str, prepare: Callable[..., Problem]) -> tuple[Op, ...]:
    return tuple(
        Op(f"scipy.linalg.lapack.{prefix}{kind}", getattr(reference, prefix + kind),
           functools.partial(prepare, TYPES[prefix]), small=SMALL, dtypes="")
        for prefix in prefixes
    )  # fmt: skip


OPS = (
    *_rows("syevd", "sd", prepare_evd),
    *_rows("heevd", "cz", prepare_evd),
    *_rows("sygvd", "sd", prepare_gvd),
    *_rows("hegvd", "cz", prepare_gvd),
    *_rows("potrf", "sdcz", prepare_potrf),
    *_rows("posv", "sdcz", prepare_posv),
    *_rows("getrf", "sdcz", prepare_getrf),
    *_rows("gesv", "sdcz", prepare_gesv),
)
