"""Faster and equally accurate host routes to SciPy's results: what each costs, and when to look for it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy import ndarray

from trnpy._base import conventions
from trnpy._call import guards
from trnpy._call.dispatch import Cost, Problem, Reason, Route, Unsupported
from trnpy._engine import lapack
from trnpy._host import stacks, tridiagonal
from trnpy._settings.host_rates import FLOPS, HostRates
from trnpy.linalg._lu import order
from trnpy.linalg._matrices import mirror

Look = Callable[[tuple[Any, ...], dict[str, Any]], bool]

ROUTE_S = 10e-6  # of deciding and of the route's own checks, measured on 4 x 4 calls (benchmarks/linalg)


@functools.lru_cache(maxsize=1024)  # interpolating takes as long as a small call
def seconds_of(rates: HostRates, kind: str, n: float, flops: float, dtype: np.dtype) -> float:
    return rates.seconds(kind, n, flops, dtype)


def real(dtype: np.dtype) -> float:
    """Real operations behind one operation of ``dtype``."""
    return 4.0 if dtype.kind == "c" else 1.0


# --- Stacks -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Stacked:
    """A function whose stacks NumPy computes faster than SciPy; bounds measured by benchmarks/linalg, two-fold safe."""

    least: int  # elements of the stack: below, SciPy's loop is done before a route is chosen
    largest: int  # rows or columns: from there both spend their time in the same LAPACK
    matrices: int = 1  # of which one is looked at for its condition: that has to be a hundredth of the call
    compiled: bool = False  # worth it beside a compiled loop of SciPy's, too: 1.18 has more of them than 1.17

    def worth_a_look(self, a: np.ndarray) -> bool:
        enough = a.size >= self.least and max(a.shape[-2:]) <= self.largest
        return enough and a.size >= self.matrices * a.shape[-1] * a.shape[-2]


STACKED: Mapping[str, Stacked] = {
    "cholesky": Stacked(128, 32),
    "qr": Stacked(64, 32),
    "eigh": Stacked(64, 128),
    "eigvalsh": Stacked(64, 32),
    "inv": Stacked(16000, 4, compiled=True),
    "svd": Stacked(64, 12),
    "svdvals": Stacked(64, 32),
    "pinv": Stacked(64, 16, 128),
    "pinvh": Stacked(64, 128, 128),
    "lstsq": Stacked(64, 12, 192),
}


def is_stack(a: Any) -> bool:
    return type(a) is np.ndarray and a.ndim > 2


@functools.cache
def pays(name: str) -> bool:
    """Whether NumPy computes stacks faster than the installed SciPy."""
    return STACKED[name].compiled or conventions.loops(getattr(lapack.linalg, name))


def stacked(name: str) -> Look:
    """A look for a stack worth deciding about."""
    row, judge = STACKED[name], stacks.SAMPLED.get(name)

    def look(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        a = args[0] if args else kwargs.get("a")
        if type(a) is not np.ndarray or a.ndim < 3 or not pays(name) or not row.worth_a_look(a):
            return False
        return judge is None or stacks.promising(judge, a)

    return look


def stack(name: str, arrays: tuple[np.ndarray, ...], run: Callable[..., Any], *options: Any) -> Problem:
    """``name`` of a stack arrays[0] (..., m, n), with ``run(*arrays, *options)`` as the route; no device path."""
    arrays = tuple(guards.array(a) for a in arrays)
    a = arrays[0]
    if a.ndim < 3 or arrays[-1].size == 0 or not STACKED[name].worth_a_look(a) or not pays(name):
        raise Unsupported(Reason.LAYOUT, f"shape {a.shape} is not a stack of many small matrices")
    for array in arrays:  # one by one: an integer next to a float is SciPy's to convert
        if guards.floating(array).char not in "dD":  # NumPy computes float32 in float64: better, yet not what one
            raise Unsupported(Reason.DTYPE, f"stacks of {array.dtype}")  # matrix of the stack would give
        if not array.dtype.isnative:  # SciPy 1.17's own inv and solve misread it: theirs to answer
            raise Unsupported(Reason.DTYPE, f"byte order of {array.dtype.str}")
    dtype = guards.floating(*arrays)
    m, n = a.shape[-2:]
    if name not in ("qr", "svd", "svdvals", "pinv", "lstsq") and m != n:
        raise Unsupported(Reason.LAYOUT, f"matrices {m} by {n} are not square")
    flops = real(dtype) * FLOPS[name] * (a.size / min(m, n)) * min(m, n) ** 2
    size = (max(m, n) * min(m, n) ** 2) ** (1 / 3)
    cost = Cost(f"stacked {name}", size, flops, sum(x.nbytes for x in arrays), 0)

    def seconds(rates: HostRates) -> float:
        return seconds_of(rates, f"gufunc {name}", size, flops, dtype) + ROUTE_S

    route = Route("numpy.linalg over the stack", seconds, functools.partial(run, *arrays, *options))
    refusal = (Reason.LAYOUT, f"shape {a.shape} is not one matrix")
    return Problem(arrays, dtype, cost, route=route, on_device=False, refusal=refusal)


# --- Inverses of Hermitian matrices by numpy.linalg -------------------------------------------------------------------

INVERSE_LEAST = 256  # rows: below, Cholesky and LU of what is not definite take longer than solving (measured)


def look_hermitian_inverse(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """What may be Hermitian by its corners, with a positive diagonal by its ends; SciPy's own inv looks for itself."""
    a = args[0] if args else kwargs.get("a")
    if type(a) is not np.ndarray or a.ndim != 2 or a.dtype.char not in "dD" or a.shape[0] != a.shape[1]:
        return False
    if len(a) < INVERSE_LEAST or not (a[0, 0].real > 0 and a[-1, -1].real > 0):
        return False
    return bool(a[0, -1] == a[-1, 0].conjugate())


def hermitian_inverse(problem: Problem) -> Route | None:
    """By Cholesky, n^3 where NumPy solves for the identity, 8/3 n^3; 7/3 n^3 when a is not positive definite."""
    (a,), cost, dtype = problem.arrays, problem.cost, problem.dtype
    if a.ndim != 2 or a.dtype.char not in "dD" or len(a) < INVERSE_LEAST:
        return None

    def seconds(rates: HostRates) -> float:
        # As likely as not definite: 5/3 n^3 on an average, against the 8/3 that NumPy's solving takes.
        return 5 / 8 * rates.seconds(cost.kind, cost.n, cost.flops, dtype, cost.bytes_in + cost.bytes_out) + ROUTE_S

    return Route("potri", seconds, lambda: _hermitian_inverse(a), import_s=lapack.import_s())


def _hermitian_inverse(a: np.ndarray) -> np.ndarray:
    """Of Hermitian a (n, n), with a residual A X - I as small as NumPy's."""
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


# --- Whole real spectra -----------------------------------------------------------------------------------------------

# Rows: below, deciding and calling LAPACK step by step, some 25 us, are more than a hundredth of the call.
EVD_LEAST = 200


def look_eigh(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """A stack, or all of a real spectrum by nobody's special driver."""
    a = args[0] if args else kwargs.get("a")
    if type(a) is not ndarray:
        return False
    if a.ndim == 2:
        return len(a) >= EVD_LEAST and a.dtype.char in "df" and len(args) < 2 and kwargs.keys() <= PLAIN
    return _look_stacked_eigh(args, kwargs)


_look_stacked_eigh = stacked("eigh")
PLAIN = frozenset(
    {"a", "lower", "overwrite_a", "check_finite", "type"}
)  # leave the default driver and the whole spectrum


def evd(a: np.ndarray, lower: bool, dtype: np.dtype) -> Route | None:
    """All eigenpairs of a real symmetric (n, n) by divide and conquer; SciPy's default is MRRR, better for complex."""
    n = len(a)
    if dtype.kind == "c" or n < EVD_LEAST:
        return None

    def run() -> Any:
        try:
            return tridiagonal.eigh(a, lower, dtype)
        except (lapack.LinAlgError, tridiagonal.OutOfRange) as why:
            raise Unsupported(Reason.VALUE, str(why)) from why

    return Route("evd", lambda rates: seconds_of(rates, "eigh evd", n, FLOPS["eigh"] * n**3, dtype) + ROUTE_S, run)
