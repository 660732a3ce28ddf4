"""Functions of Hermitian positive-definite matrices through eigenvectors, and a cheap look at which matrices are."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.linalg import LinAlgError
from numpy.linalg import cholesky as _numpy_cholesky
from numpy.linalg import eigh as _numpy_eigh

from trnpy import _guards, _host
from trnpy._calibration import FLOPS, HostRates
from trnpy._dispatch import Problem, Reason, Route, Unsupported
from trnpy._engine import Engine
from trnpy._precision import probe
from trnpy.linalg import _eigh, _refine
from trnpy.linalg._matrices import norm
from trnpy.linalg._routes import ROUTE_S, Look, real, seconds_of
from trnpy.linalg._stacks import adjoint, in_chunks

Function = Callable[[np.ndarray], np.ndarray]
Driver = Literal["evd", "evr"]

# Both routes then make forward errors of condition times eps, within a factor three of each other (NUMERICS 3; measured
# from 1e1 to 1e14); beyond, SciPy's warnings and its own rounding are the better judge.
CONDITION = {"d": 1e10, "f": 1e4}


@dataclass(frozen=True, slots=True)
class MatrixFunction:
    """A function of matrices that SciPy computes by a Schur decomposition."""

    least: int  # rows: below, looking for what is positive definite takes more than 2 % of SciPy's Schur form
    dtypes: str  # where SciPy's result has the dtype of the matrix and no warning
    norms: tuple[float, float] = (0.0, math.inf)  # where SciPy has no warning
    frugal: float = math.inf  # rows from which divide and conquer's workspace is more than half of SciPy's peak


FUNCTIONS: Mapping[str, MatrixFunction] = {
    "sqrtm": MatrixFunction(128, "dfDF", frugal=400),
    # SciPy warns when expm of its logarithm is not the matrix to 1000 eps: within these norms it never is that far,
    # 0.1 of it at most over spectra of 1 to 1e-9 times the norm and n = 3 to 150; beyond, rounding in expm reaches it.
    "logm": MatrixFunction(3, "dD", (math.exp(-2), math.exp(2))),
    "fractional_matrix_power": MatrixFunction(3, "dD"),
}


def positive(name: str) -> Look:
    """A look for what is positive definite; of one matrix it decides, so that what is not costs SciPy's call only."""
    least, dtypes, norms = FUNCTIONS[name].least, FUNCTIONS[name].dtypes, FUNCTIONS[name].norms

    def look(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        a = args[0] if args else kwargs.get("A")
        if type(a) is not np.ndarray:
            return False
        if a.ndim < 2 or a.shape[-1] < least or a.shape[-2] != a.shape[-1] or a.dtype.char not in dtypes or a.size == 0:
            return False
        first = a[(0,) * (a.ndim - 2)] if a.ndim > 2 else a
        ends = 0 < first[0, 0].real <= norms[1] and 0 < first[-1, -1].real <= norms[1]
        if not ends or first[0, -1] != first[-1, 0].conjugate():
            return False
        return a.ndim > 2 or not _doubt(a, norms)

    return look


def operand(name: str, a: Any) -> np.ndarray:
    """``a`` (..., n, n) of a dtype that SciPy keeps."""
    m = _guards.array(a)
    dtype = _guards.floating(m)
    if m.ndim < 2 or m.shape[-1] != m.shape[-2] or m.size == 0:
        raise Unsupported(Reason.LAYOUT, f"shape {m.shape} is not of non-empty square matrices")
    if dtype.char not in FUNCTIONS[name].dtypes:
        raise Unsupported(Reason.DTYPE, f"{dtype}: SciPy's result has a dtype or a warning of its own")
    return m


def route(name: str, a: np.ndarray, function: Function) -> Route | None:
    """``function`` of the eigenvalues of positive-definite a (..., n, n) on the host; None below what it is for."""
    spec, n, dtype = FUNCTIONS[name], a.shape[-1], _guards.floating(a)
    if n < spec.least:
        return None
    cube = real(dtype) * a.size * n  # n^3 a matrix
    whole = a.ndim == 2
    driver = "evd" if dtype.kind == "f" and n < spec.frugal else "evr"
    kind = ("eigh evd" if driver == "evd" else "eigh") if whole else "gufunc eigh"

    def seconds(rates: HostRates) -> float:
        # The test of definiteness, the eigenpairs, their product.
        return (
            seconds_of(rates, "cholesky", n, cube / 3, dtype)
            + seconds_of(rates, kind, n, FLOPS["eigh"] * cube, dtype)
            + seconds_of(rates, "matmul", n, 2 * cube, dtype)
            + ROUTE_S
        )

    def run() -> Any:
        return in_chunks(_through_eigh, (a.astype(dtype, copy=False),), function, spec.norms, driver)

    return Route("eigenvectors", seconds, run)


def _through_eigh(a: np.ndarray, function: Function, norms: tuple[float, float], driver: Driver) -> np.ndarray:
    """Q f(w) Q^H for Hermitian positive-definite a (..., n, n) of condition below CONDITION; else Unsupported."""
    certify(a, norms)
    try:
        if a.ndim == 2:
            w, q = _host.eigh(a, driver=driver, check_finite=False)
        else:
            w, q = _numpy_eigh(a)
    except LinAlgError as why:
        raise Unsupported(Reason.VALUE, str(why)) from why
    with np.errstate(all="ignore"):  # overflow shows in the result
        f = function(w)[..., np.newaxis, :]
        if (f >= 0).all():  # half the operations, in place, and exactly Hermitian
            q *= np.sqrt(f)
            result = np.asarray(q @ adjoint(q), a.dtype)
        else:
            result = np.asarray((q * f) @ adjoint(q), a.dtype)
    _guards.finite(result)
    return result


def certify(a: np.ndarray, norms: tuple[float, float] = (0.0, math.inf)) -> None:
    """Unsupported unless a (..., n, n) is Hermitian, its condition certainly below CONDITION, its norm in ``norms``."""
    if doubt := _doubt(a, norms):
        raise Unsupported(Reason.VALUE, doubt)


def _doubt(a: np.ndarray, norms: tuple[float, float]) -> str:
    """What of a (..., n, n) is not as ``certify`` wants it, "" if nothing.

    A - s I has a Cholesky factor exactly when all eigenvalues exceed s, up to n eps of its norm: one factorization
    decides before anything expensive, and costs a hundredth of it.
    """
    # The first row against the first column: most matrices that are not Hermitian end here.
    if not ((a[..., 0, :] == adjoint(a[..., :, :1])[..., 0, :]).all() and (a == adjoint(a)).all()):
        return "not Hermitian"
    size = _frobenius(a)
    limit = CONDITION[a.real.dtype.char]
    if not (size > 0).all():
        return "zero, or too small to be squared"
    if not _definite(a, -size / limit):
        return f"not positive definite, or condition number above {limit:.0e}"
    # The sum of the squares of the eigenvalues is at most their sum times the largest.
    if norms[0] and (size**2 < norms[0] * np.trace(a, axis1=-2, axis2=-1).real).any():
        return f"norm that may be below {norms[0]:.2g}"
    if (size > norms[1]).any() and not _definite(-a, np.full_like(size, norms[1])):
        return f"norm above {norms[1]:.2g}"
    return ""


def _frobenius(a: np.ndarray) -> Any:
    """Norms (...) of a (..., n, n); infinite where their squares are."""
    with np.errstate(over="ignore", under="ignore"):
        if a.ndim == 2:
            return np.sqrt(np.vdot(a, a).real)
        return np.sqrt(np.einsum("...ij,...ij->...", a, a.conj()).real)


def _definite(a: np.ndarray, shift: Any) -> bool:
    """Whether a + shift I is positive definite for all of a (..., n, n), shifts (...); infs and NaNs are not."""
    n = a.shape[-1]
    if a.ndim == 2:
        moved = a.copy()
        with np.errstate(invalid="ignore"):  # infs of the diagonal
            moved.ravel()[:: n + 1] += shift
        (potrf,) = _factorizations(a.dtype.char)
        l, failed = potrf(moved.T, lower=False, clean=False, overwrite_a=True)
        return not failed and bool(np.isfinite(l[-1, -1]))
    with np.errstate(all="ignore"):
        try:
            l = _numpy_cholesky(a + shift[..., np.newaxis, np.newaxis] * np.eye(n, dtype=a.dtype))
        except LinAlgError:
            return False
    return bool(np.isfinite(l[..., -1, -1]).all())


@functools.cache
def _factorizations(char: str) -> Any:
    return _host.lapack.get_lapack_funcs(("potrf",), (np.empty(0, char),))


@dataclass(frozen=True, slots=True)
class Through:
    """f(A) (n, n), and the eigenpairs w (n,) and q (n, n) of A it was made of."""

    value: np.ndarray
    w: np.ndarray
    q: np.ndarray


def by_engine(problem: Problem, engine: Engine) -> Through:
    """Q f(w) Q^H of one Hermitian positive-definite matrix by products of the engine; params (function, norms)."""
    (a,), (function, norms) = problem.arrays, problem.params
    a = a.astype(problem.dtype, copy=False)
    certify(a, norms)
    try:
        w, q = _eigh.eigh(a, engine, problem.method or "start")
    except _refine.NotConverged as why:
        raise Unsupported(Reason.ACCURACY, str(why)) from why
    with np.errstate(all="ignore"):
        f = function(w)
        result = engine.gram(q * np.sqrt(f)) if (f >= 0).all() else engine.matmul(q * f, q.conj().T)
    _guards.finite(result)
    return Through(result, w, q)


def error(problem: Problem, result: Any) -> float:
    """On probes: |A Q - Q W|, |Q^H Q - I| and |X - Q f(W) Q^H|; of the reference's X, that it commutes with A."""
    (a,), (function, _) = problem.arrays, problem.params
    v = probe(len(a), problem.dtype)
    width = math.sqrt(v.shape[1])
    if not isinstance(result, Through):
        return norm(a @ (result @ v) - result @ (a @ v)) / (norm(a) * max(norm(result), 1.0) * width)
    x, w, q = result.value, result.w[:, np.newaxis], result.q
    pairs = norm(a @ (q @ v) - q @ (w * v)) / (norm(a) * width)
    orthogonality = norm(q.conj().T @ (q @ v) - v) / math.sqrt(v.size)
    f = function(w)
    value = norm(x @ v - q @ (f * (q.conj().T @ v))) / (max(norm(f), np.finfo(f.dtype).tiny) * width)
    return float(max(pairs, orthogonality, value))


def deliver(problem: Problem, result: Through) -> np.ndarray:
    return result.value
