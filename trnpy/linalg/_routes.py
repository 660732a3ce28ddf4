"""Faster and equally accurate host routes to SciPy's results: what each costs, and when to look for it."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.linalg import LinAlgError
from numpy.linalg import cholesky as _numpy_cholesky
from numpy.linalg import eigh as _numpy_eigh

from trnpy import _guards, _host
from trnpy._calibration import FLOPS, HostRates
from trnpy._dispatch import Cost, Problem, Reason, Route, Unsupported
from trnpy.linalg import _tridiagonal
from trnpy.linalg._stacks import adjoint, in_chunks

Look = Callable[[tuple[Any, ...], dict[str, Any]], bool]

ROUTE_S = 10e-6  # of deciding and of the route's own checks, measured on 4 x 4 calls (benchmarks/linalg)


def host_only(*call: Any) -> NoReturn:
    """What a row without a device path has instead of an algorithm and its error measure."""
    raise Unsupported(Reason.LAYOUT, "no device path")


@functools.lru_cache(maxsize=1024)  # interpolating takes as long as a small call
def _seconds(rates: HostRates, kind: str, n: float, flops: float, dtype: np.dtype) -> float:
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

    def worth_a_look(self, a: np.ndarray) -> bool:
        return a.size >= self.least and max(a.shape[-2:]) <= self.largest


STACKED: Mapping[str, Stacked] = {
    "cholesky": Stacked(128, 32),
    "qr": Stacked(64, 32),
    "eigh": Stacked(64, 128),
    "eigvalsh": Stacked(64, 32),
    "inv": Stacked(1024, 8),
    "solve": Stacked(1024, 6),
    "svd": Stacked(64, 12),
    "svdvals": Stacked(64, 32),
    "pinv": Stacked(64, 16),
    "pinvh": Stacked(64, 128),
    "lstsq": Stacked(64, 12),
}


def is_stack(a: Any) -> bool:
    return type(a) is np.ndarray and a.ndim > 2


def stacked(name: str) -> Look:
    """A look for a stack worth deciding about."""
    row = STACKED[name]

    def look(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        a = args[0] if args else kwargs.get("a")
        return type(a) is np.ndarray and a.ndim > 2 and row.worth_a_look(a)

    return look


def stack(name: str, arrays: tuple[np.ndarray, ...], run: Callable[..., Any], *options: Any) -> Problem:
    """``name`` of a stack arrays[0] (..., m, n), with ``run(*arrays, *options)`` as the route; no device path."""
    arrays = tuple(_guards.array(a) for a in arrays)
    a = arrays[0]
    if a.ndim < 3 or arrays[-1].size == 0 or not STACKED[name].worth_a_look(a):
        raise Unsupported(Reason.LAYOUT, f"shape {a.shape} is not a stack of many small matrices")
    for array in arrays:  # one by one: an integer next to a float is SciPy's to convert
        if _guards.floating(array).char not in "dD":  # NumPy computes float32 in float64: better, yet not what one
            raise Unsupported(Reason.DTYPE, f"stacks of {array.dtype}")  # matrix of the stack would give
        if not array.dtype.isnative:  # SciPy 1.17's own inv and solve misread it: theirs to answer
            raise Unsupported(Reason.DTYPE, f"byte order of {array.dtype.str}")
    dtype = _guards.floating(*arrays)
    m, n = a.shape[-2:]
    if name not in ("qr", "svd", "svdvals", "pinv", "lstsq") and m != n:
        raise Unsupported(Reason.LAYOUT, f"matrices {m} by {n} are not square")
    flops = real(dtype) * FLOPS[name] * (a.size / min(m, n)) * min(m, n) ** 2
    size = (max(m, n) * min(m, n) ** 2) ** (1 / 3)
    cost = Cost(f"stacked {name}", size, flops, sum(x.nbytes for x in arrays), 0)

    def seconds(rates: HostRates) -> float:
        return _seconds(rates, f"gufunc {name}", size, flops, dtype) + ROUTE_S

    route = Route("numpy.linalg over the stack", seconds, lambda: in_chunks(run, arrays, *options))
    refusal = (Reason.LAYOUT, f"shape {a.shape} is not one matrix")
    return Problem(arrays, dtype, cost, route=route, on_device=False, refusal=refusal)


# --- Whole real spectra -----------------------------------------------------------------------------------------------

# Rows: below, deciding and calling LAPACK step by step, some 25 us, are more than a hundredth of the call.
EVD_LEAST = 200


def look_eigh(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """A stack, or all of a real spectrum by nobody's special driver."""
    a = args[0] if args else kwargs.get("a")
    if type(a) is not np.ndarray:
        return False
    if a.ndim == 2:
        return a.shape[0] >= EVD_LEAST and a.dtype.char in "df" and len(args) < 2 and kwargs.keys() <= PLAIN
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
            return _tridiagonal.eigh(a, lower, dtype)
        except (_host.LinAlgError, _tridiagonal.OutOfRange) as why:
            raise Unsupported(Reason.VALUE, str(why)) from why

    return Route("evd", lambda rates: _seconds(rates, "eigh evd", n, FLOPS["eigh"] * n**3, dtype) + ROUTE_S, run)


# --- Functions of positive-definite matrices --------------------------------------------------------------------------

# Both routes then make forward errors of condition times eps, within a factor three of each other (NUMERICS 3; measured
# from 1e1 to 1e14); beyond, SciPy's warnings and its own rounding are the better judge.
CONDITION = {"d": 1e10, "f": 1e4}


@dataclass(frozen=True, slots=True)
class MatrixFunction:
    """A function of matrices that SciPy computes by a Schur decomposition."""

    least: int  # rows: below, SciPy's Schur form takes less than checking for symmetry and definiteness
    dtypes: str  # where SciPy's result has the dtype of the matrix and no warning
    norms: tuple[float, float] = (0.0, math.inf)  # where SciPy has no warning


FUNCTIONS: Mapping[str, MatrixFunction] = {
    "sqrtm": MatrixFunction(64, "dfDF"),
    # SciPy warns when expm of its logarithm is not the matrix to 1000 eps: within these norms it never is that far,
    # 0.1 of it at most over spectra of 1 to 1e-9 times the norm and n = 3 to 150; beyond, rounding in expm reaches it.
    "logm": MatrixFunction(3, "dD", (math.exp(-2), math.exp(2))),
    "fractional_matrix_power": MatrixFunction(3, "dD"),
}


def positive(name: str) -> Look:
    """A look for what may be positive definite: the diagonal's ends are positive and two corners agree."""
    least, dtypes, norm = FUNCTIONS[name].least, FUNCTIONS[name].dtypes, FUNCTIONS[name].norms[1]

    def look(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        a = args[0] if args else kwargs.get("A")
        if type(a) is not np.ndarray:
            return False
        if a.ndim < 2 or a.shape[-1] < least or a.shape[-2] != a.shape[-1] or a.dtype.char not in dtypes or a.size == 0:
            return False
        first = a[(0,) * (a.ndim - 2)] if a.ndim > 2 else a
        ends = 0 < first[0, 0].real <= norm and 0 < first[-1, -1].real <= norm
        return bool(ends and first[0, -1] == first[-1, 0].conjugate())

    return look


def of_positive(name: str, a: Any, function: Callable[[np.ndarray], np.ndarray]) -> Problem:
    """``function`` of the eigenvalues of positive-definite matrices a (..., n, n) as the route to SciPy's ``name``."""
    a = _guards.array(a)
    dtype = _guards.floating(a)
    spec = FUNCTIONS[name]
    if a.ndim < 2 or a.shape[-1] != a.shape[-2] or a.size == 0 or a.shape[-1] < spec.least:
        raise Unsupported(Reason.LAYOUT, f"shape {a.shape} is not of square matrices of {spec.least} rows or more")
    if dtype.char not in spec.dtypes:
        raise Unsupported(Reason.DTYPE, f"{dtype}: SciPy's result has a dtype or a warning of its own")
    n = a.shape[-1]
    cube = real(dtype) * a.size * n  # n^3 a matrix
    cost = Cost(name, n, FLOPS[name] * cube, a.nbytes, a.nbytes)
    whole = a.ndim == 2
    kind = "eigh evd" if whole and dtype.kind == "f" else "eigh" if whole else "gufunc eigh"

    def seconds(rates: HostRates) -> float:
        # Cholesky's test of definiteness, the eigenpairs, their product.
        return (
            _seconds(rates, "cholesky", n, cube / 3, dtype)
            + _seconds(rates, kind, n, FLOPS["eigh"] * cube, dtype)
            + _seconds(rates, "matmul", n, 2 * cube, dtype)
            + ROUTE_S
        )

    route = Route(
        "eigenvectors", seconds, lambda: in_chunks(_through_eigh, (a.astype(dtype, copy=False),), function, spec.norms)
    )
    refusal = (Reason.LAYOUT, "no device path for functions of matrices")
    return Problem((a,), dtype, cost, route=route, on_device=False, refusal=refusal)


def _through_eigh(
    a: np.ndarray, function: Callable[[np.ndarray], np.ndarray], norms: tuple[float, float]
) -> np.ndarray:
    """Q f(w) Q^H for Hermitian positive-definite a (..., n, n) of condition below CONDITION; else Unsupported."""
    if np.diagonal(a, axis1=-2, axis2=-1).real.max() > norms[1]:
        raise Unsupported(Reason.VALUE, f"norm above {norms[1]:.2g}")
    # The first row against the first column: most matrices that are not Hermitian end here.
    if not (np.array_equal(a[..., 0, :], a[..., :, 0].conj()) and np.array_equal(a, adjoint(a))):
        raise Unsupported(Reason.VALUE, "not Hermitian")
    _guards.finite(a)
    try:
        # A lower bound of the condition, before anything expensive.
        _conditioned(np.diagonal(_numpy_cholesky(a), axis1=-2, axis2=-1).real ** 2)
        if a.ndim == 2:
            w, q = _host.eigh(a, driver="evd" if a.dtype.kind == "f" else "evr", check_finite=False)
        else:
            w, q = _numpy_eigh(a)
    except LinAlgError as why:
        raise Unsupported(Reason.VALUE, f"not positive definite: {why}") from why
    _conditioned(w)
    if not norms[0] <= w[..., -1].min() <= w[..., -1].max() <= norms[1]:
        raise Unsupported(Reason.VALUE, f"norms outside {norms[0]:.2g} to {norms[1]:.2g}")
    with np.errstate(all="ignore"):  # overflow shows in the result
        f = np.asarray((q * function(w)[..., np.newaxis, :]) @ adjoint(q), a.dtype)
    _guards.finite(f)
    return f


def _conditioned(w: np.ndarray) -> None:
    limit = CONDITION[w.dtype.char]
    if not (w.min(axis=-1) * limit >= w.max(axis=-1)).all():
        raise Unsupported(Reason.VALUE, f"condition number above {limit:.0e}")
