"""The routes of numpy.linalg.inv: Hermitian matrices by Cholesky, others by LAPACK's inverse of the factors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from trnpy._base.processors import threads
from trnpy._call import guards
from trnpy._call.decisions import Problem, Route
from trnpy._call.host_table import HostRoute
from trnpy._engine import lapack
from trnpy._host.stack_routes import ROUTE_S
from trnpy._report.reasons import Reason, Unsupported
from trnpy._settings.host_rates import HostRates
from trnpy._settings.tile import length
from trnpy.linalg._lu import order
from trnpy.linalg._matrices import SMALL, mirror

# Rows. With the Haswell kernels an indefinite matrix takes up to 1.6 times NumPy's time at 256 rows, 1.3 times at 400,
# and 1.0 times at 512, or 1.2 times if few eigenvalues are negative (docs/baselines.md#routes).
INVERSE_LEAST = length(512)


# Rows from which getrf and getri (2 n^3 operations) on one thread take 0.77 (Haswell kernels) and 0.68 (SkylakeX) of
# the time of NumPy, which solves for the identity (8/3 n^3). On two threads of a busy machine the ratio was 0.3 to 4,
# because each step of getri waits for all threads; NumPy therefore inverts these matrices unless there is one thread.
FACTORS_LEAST = length(384)


def look_inverse(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """One large matrix that may be Hermitian; on one thread, any large matrix."""
    a = args[0] if args else kwargs.get("a")
    if type(a) is not np.ndarray or a.ndim != 2 or a.dtype.char not in "dD" or a.shape[0] != a.shape[1]:
        return False
    return _may_be_hermitian(a) or (len(a) >= FACTORS_LEAST and threads() == 1)


def _may_be_hermitian(a: np.ndarray) -> bool:
    """Whether the corners agree and the ends of the diagonal are positive."""
    if len(a) < INVERSE_LEAST or not (a[0, 0].real > 0 and a[-1, -1].real > 0):
        return False
    return bool(a[0, -1] == a[-1, 0].conjugate())


def by_structure(problem: Problem) -> Route | None:
    """Cholesky needs n^3 operations, or 7/3 n^3 if a is not positive definite; NumPy's solve needs 8/3 n^3."""
    (a,), cost, dtype = problem.arrays, problem.cost, problem.dtype
    if a.ndim != 2 or a.dtype.char not in "dD" or not a.dtype.isnative:
        return None
    if not _may_be_hermitian(a):
        return _by_factors(problem)

    def seconds(rates: HostRates) -> float:
        # If definite matrices are as likely as others, the mean is 5/3 n^3, against 8/3 n^3 for NumPy's solve.
        return 5 / 8 * rates.seconds(cost.kind, cost.n, cost.flops, dtype, cost.bytes_in + cost.bytes_out) + ROUTE_S

    return Route("potri", seconds, lambda: _hermitian_inverse(a), import_s=lapack.import_s())


def _by_factors(problem: Problem) -> Route | None:
    """getrf and getri need 2 n^3 operations; NumPy's solve needs 8/3 n^3."""
    (a,), cost, dtype = problem.arrays, problem.cost, problem.dtype
    if len(a) < FACTORS_LEAST or threads() != 1:
        return None

    def seconds(rates: HostRates) -> float:
        return 3 / 4 * rates.seconds(cost.kind, cost.n, cost.flops, dtype, cost.bytes_in + cost.bytes_out) + ROUTE_S

    return Route("getri", seconds, lambda: _inverse(a), import_s=lapack.import_s())


def _inverse(a: np.ndarray) -> np.ndarray:
    """The inverse of any a (n, n). a.T is its transpose in Fortran order without a copy."""
    getrf, getri, space = lapack.lapack.get_lapack_funcs(("getrf", "getri", "getri_lwork"), (a,))
    lu, pivots, singular = getrf(a.T)
    if singular:
        raise Unsupported(Reason.VALUE, "singular: a pivot is zero")
    x = getri(lu, pivots, lwork=int(space(len(a))[0].real), overwrite_lu=1)[0].T
    if not guards.all_finite(x):
        raise Unsupported(Reason.VALUE, "infs or NaNs")
    return np.asarray(x)


def _hermitian_inverse(a: np.ndarray) -> np.ndarray:
    """The inverse of Hermitian a (n, n), with a residual A X - I as small as NumPy's."""
    if not (np.array_equal(a[0], a[:, 0].conj()) and np.array_equal(a, a.conj().T)):
        raise Unsupported(Reason.VALUE, "not Hermitian")
    # a.T is conj(A) in Fortran order without a copy, and transposed results are in C order again.
    potrf, potri, getrf, trtri = lapack.lapack.get_lapack_funcs(("potrf", "potri", "getrf", "trtri"), (a,))
    c, indefinite = potrf(a.T, lower=0, clean=0)
    if not indefinite:
        x = potri(c, lower=0, overwrite_c=1)[0].T
        mirror(x)
    else:
        lu, pivots, singular = getrf(a.T)
        if singular:
            raise Unsupported(Reason.VALUE, "singular: a pivot is zero")
        (trsm,) = lapack.blas.get_blas_funcs(("trsm",), (a,))
        y = trsm(1.0, lu, np.triu(trtri(lu)[0]), side=1, lower=1, diag=1, overwrite_b=1)
        columns = np.empty(len(a), np.intp)
        columns[order(pivots, len(a))] = np.arange(len(a))
        # Y conj(A) - I is small, so that A Y^T - I is.
        x = y.T[columns]
    guards.finite(x)
    return np.ascontiguousarray(x)


def prepare(row: Callable[..., Problem], a: Any) -> Problem:
    problem = row(a)
    return replace(problem, route=by_structure(problem))


def _too_small(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the applicability check reads no elements: a stack, or a matrix that is too small for every route."""
    a = args[0] if args else kwargs.get("a")
    if type(a) is not np.ndarray or a.ndim != 2 or a.dtype.char not in "dD":
        return True
    return len(a) < min(INVERSE_LEAST, FACTORS_LEAST)


# The applicability check is skipped for far fewer elements than a matrix of INVERSE_LEAST rows has.
ROUTES = {"numpy.linalg.inv": HostRoute(look_inverse, prepare, unseen=SMALL, fixed=_too_small)}
