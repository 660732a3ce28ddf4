"""Functions of Hermitian positive-definite matrices through eigenvectors, and a cheap look at which matrices are."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.linalg import LinAlgError
from numpy.linalg import cholesky as _numpy_cholesky
from numpy.linalg import eigh as _numpy_eigh

from trnpy._call import guards
from trnpy._call.dispatch import Problem, Reason, Route, Unsupported
from trnpy._engine import lapack as _lapack
from trnpy._engine.engines import Engine
from trnpy._engine.precision import probe
from trnpy._engine.stand_ins import operations, priced, usual
from trnpy._host import tridiagonal
from trnpy._host.stacks import adjoint, in_chunks
from trnpy._settings.host_rates import FLOPS, HostRates
from trnpy.linalg import _eigh
from trnpy.linalg._matrices import MIRROR, mirror, norm, useful
from trnpy.linalg._routes import ROUTE_S, Look, real, seconds_of

Function = Callable[[np.ndarray], np.ndarray]

BY_STEPS = 400  # rows: from there ?syevd's workspace is more than half of SciPy's peak, and its steps are faster
LAST, SPREAD = 32, 8  # rows and columns whose factorization is lost in that of as many times more
ANY = (0.0, math.inf)  # norm


@dataclass(frozen=True, slots=True)
class MatrixFunction:
    """A function of matrices that SciPy computes by a Schur decomposition."""

    least: int  # rows: below, looking for what is positive definite takes more than 2 % of SciPy's Schur form
    dtypes: str  # where SciPy's result has the dtype of the matrix and no warning
    norms: tuple[float, float] = ANY  # where SciPy has no warning


FUNCTIONS: Mapping[str, MatrixFunction] = {
    "sqrtm": MatrixFunction(128, "dfDF"),
    # SciPy warns when expm of its logarithm is not the matrix to 1000 eps: within these norms it never is that far,
    # 0.1 of it at most over spectra of 1 to 1e-9 times the norm and n = 3 to 150; beyond, rounding in expm reaches it.
    "logm": MatrixFunction(3, "dD", (math.exp(-2), math.exp(2))),
    "fractional_matrix_power": MatrixFunction(3, "dD"),
}


@dataclass(frozen=True, slots=True)
class _Kind:
    """What a dtype allows, and SciPy's functions of it."""

    # Both routes then make forward errors of condition times eps, within a factor of three of each other from 1e1 to
    # 1e14 (docs/numerics.md#definite-matrices). Beyond, SciPy's warnings and its own rounding are the better judge.
    condition: float
    low: float  # from here to the next squares neither overflow nor vanish
    high: float
    potrf: Any
    syevd: Any
    rank_k: Any  # syrk, or herk of complex numbers
    dot: Any


@functools.cache
def _kind(char: str) -> _Kind:
    limits = (1e10, 1e-150, 1e150) if char in "dD" else (1e4, 1e-18, 1e18)
    names = "potrf", "heevd" if char in "FD" else "syevd"
    lapack = _lapack.lapack.get_lapack_funcs(names, dtype=char)
    products = ("herk", "dotc") if char in "FD" else ("syrk", "dot")
    return _Kind(*limits, *lapack, *_lapack.blas.get_blas_funcs(products, dtype=char))


def positive(name: str) -> Look:
    """A look for what may be positive definite."""
    least, dtypes, norms = FUNCTIONS[name].least, FUNCTIONS[name].dtypes, FUNCTIONS[name].norms

    def look(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        a = args[0] if args else kwargs.get("A")
        if type(a) is not np.ndarray or a.ndim < 2 or a.shape[-1] < least or a.dtype.char not in dtypes:
            return False
        # SciPy 1.17's sqrtm refuses other byte orders.
        if a.shape[-2] != a.shape[-1] or not a.size or not a.dtype.isnative:
            return False
        first = a if a.ndim == 2 else a[(0,) * (a.ndim - 2)]
        # In Python's numbers: beside a large call each function of NumPy's takes 2 us.
        diagonal = first.diagonal().real.tolist()
        ends = 0 < diagonal[0] <= norms[1] and 0 < diagonal[-1] <= norms[1]
        corner = first.item(0, -1) - first.item(-1, 0).conjugate()
        apart = math.hypot(corner.real, corner.imag)
        if not ends or (apart and not apart <= _rounding(first) * math.sqrt(diagonal[0] * diagonal[-1])):
            return False
        return first is not a or len(a) < SPREAD * LAST or _promising(a)

    return look


def operand(name: str, a: Any) -> np.ndarray:
    """``a`` (..., n, n) of a dtype that SciPy keeps."""
    m = guards.array(a)
    dtype = guards.floating(m)
    if m.ndim < 2 or m.shape[-1] != m.shape[-2] or m.size == 0:
        raise Unsupported(Reason.LAYOUT, f"shape {m.shape} is not of non-empty square matrices")
    if dtype.char not in FUNCTIONS[name].dtypes:
        raise Unsupported(Reason.DTYPE, f"{dtype}: SciPy's result has a dtype or a warning of its own")
    return m


def route(name: str, a: np.ndarray, function: Function) -> Route | None:
    """``function`` of the eigenvalues of positive-definite a (..., n, n) on the host; None below what it is for."""
    spec, n, dtype = FUNCTIONS[name], a.shape[-1], guards.floating(a)
    if n < spec.least:
        return None
    cube = real(dtype) * a.size * n  # n^3 a matrix
    whole = a.ndim == 2
    kind = ("eigh evd" if dtype.kind == "f" else "eigh") if whole else "gufunc eigh"

    def seconds(rates: HostRates) -> float:
        # The test of definiteness, the eigenpairs, their product.
        return (
            seconds_of(rates, "cholesky", n, cube / 3, dtype)
            + seconds_of(rates, kind, n, FLOPS["eigh"] * cube, dtype)
            + seconds_of(rates, "matmul", n, 2 * cube, dtype)
            + ROUTE_S
        )

    def again(a: np.ndarray, *options: Any, **named: Any) -> Any:
        return in_chunks(through_eigh, (a.astype(dtype, copy=False),), function, spec.norms)

    return Route("eigenvectors", seconds, functools.partial(again, a), again=again)


def through_eigh(a: np.ndarray, function: Function, norms: tuple[float, float]) -> np.ndarray:
    """Q f(w) Q^H for Hermitian positive-definite a (..., n, n) whose condition is below its limit; else Unsupported."""
    certify(a, norms)
    try:
        w, q = _eigenpairs(a)
    except (LinAlgError, tridiagonal.OutOfRange) as why:
        raise Unsupported(Reason.VALUE, str(why)) from why
    f = guards.QUIET.copy().run(function, w)
    guards.finite(f)  # then so is Q f Q^H, no entry of which exceeds the largest of f
    return np.asarray(_product(q, f), a.dtype)


def _eigenpairs(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """By the fastest way for Hermitian a (..., n, n), single or of a stack."""
    if a.ndim > 2:
        w, q = _numpy_eigh(a)
    elif a.dtype.kind == "c":
        # Of evr, as fast below 300 rows and 1.2 times as fast at 500, the vectors are 4 to 25 times less orthogonal.
        w, q = _lapack.eigh(a, driver="evd", check_finite=False)
    elif len(a) >= BY_STEPS:
        w, q = tridiagonal.eigh(a, not a.flags.c_contiguous, a.dtype)  # of a triangle that is copied in order
    else:
        w, q, failed = _kind(a.dtype.char).syevd(a.T, lower=1)
        if failed:
            raise LinAlgError(f"divide and conquer of {len(a)} rows failed: syevd gave {failed}")
    return w, q


def _product(q: np.ndarray, f: np.ndarray) -> np.ndarray:
    """Q diag(f) Q^H of q (..., n, n), which is overwritten, and f (..., n).

    A single matrix, and real stacks of one sign, take half the operations and come out exactly Hermitian.
    """
    negative = int(np.count_nonzero(f < 0))
    mixed = 0 < negative < f.size
    if mixed and f.ndim > 1:
        return np.asarray((q * f[..., np.newaxis, :]) @ adjoint(q))
    if mixed and not (f[:negative] < 0).all():
        ascending = np.argsort(f)
        q, f = q[:, ascending], f[ascending]
    q *= np.sqrt(np.abs(f))[..., np.newaxis, :]
    if not mixed:
        result = _gram(q)
        return np.negative(result, out=result) if negative else result
    result = _gram(q[:, negative:])
    result -= _gram(q[:, :negative])
    return result


def _gram(q: np.ndarray) -> np.ndarray:
    """Q Q^H of q (..., n, k), by the library whose LAPACK made it: of stacks NumPy, of one matrix SciPy.

    NumPy's and SciPy's OpenBLAS have threads of their own, and those of one wait for a processor as long as the other's
    spin: with two of each, on two processors, 8 to 16 ms.
    """
    if q.ndim > 2:
        return np.asarray(q @ adjoint(q))
    x = np.asarray(_kind(q.dtype.char).rank_k(1.0, q).T)
    mirror(x)
    return np.conjugate(x, out=x) if x.dtype.kind == "c" else x


@priced("cholesky", lambda a, *_: (operations(len(a) ** 3 / 3, a.dtype), (None,)))
def certify(a: np.ndarray, norms: tuple[float, float] = ANY) -> None:
    """Unsupported unless a (..., n, n) is Hermitian to rounding, its condition in its limit, its norm in ``norms``."""
    if not _bounded(a):
        limit = _kind(a.dtype.char).condition
        raise Unsupported(Reason.VALUE, f"not positive definite, or condition number above {limit:.0e}")
    if difference := _unlike(a, norms):
        raise Unsupported(Reason.VALUE, difference)


def _rounding(a: np.ndarray) -> float:
    """How far a_ij and conj(a_ji) of a (..., n, n) may be apart, over sqrt(a_ii a_jj), to differ by rounding only.

    A product X X^H is Hermitian to rounding: BLAS may sum the terms of a_ij and of a_ji in different orders, which
    depend on the processor. X has at least n columns where the product is positive definite, and n random rounding
    errors add up to about sqrt(n) eps: measured for n = 300 were 0.8 eps on Gaussian X and 11 eps on positive X.
    The function of one triangle then errs by the condition times sqrt(n) eps: ``_Kind.condition`` allows as much.
    """
    return math.sqrt(a.shape[-1]) * float(np.finfo(a.dtype).eps)


def _mirrors(a: np.ndarray, rows: slice) -> bool:
    """Whether ``rows`` of a (..., n, n), from their diagonal on, are to rounding what a Hermitian matrix has there."""
    there = (..., rows, slice(rows.start, None))
    mine, mirrored = a[there], adjoint(a)[there]
    if (mine == mirrored).all():
        return True
    sizes = np.sqrt(np.abs(np.einsum("...ii->...i", a)))
    with np.errstate(all="ignore"):
        allowed = _rounding(a) * sizes[..., rows, np.newaxis] * sizes[..., np.newaxis, rows.start :]
        return bool((np.abs(mine - mirrored) <= allowed).all())


def _promising(a: np.ndarray) -> bool:
    """Whether the first row and column of a (n, n) agree, and its last ones alone are as ``certify`` wants all.

    Their eigenvalues are no smaller: most graded matrices and kernels of neighbouring points end with them.
    """
    return _mirrors(a, slice(0, 1)) and _bounded(a[-LAST:, -LAST:])


def _unlike(a: np.ndarray, norms: tuple[float, float]) -> str:
    """What of a (..., n, n) besides its condition is not as ``certify`` wants it, "" if nothing."""
    if not all(_mirrors(a, slice(j, j + MIRROR)) for j in range(0, a.shape[-1], MIRROR)):
        return "not Hermitian"
    if norms == ANY:
        return ""
    if a.ndim == 2:  # by SciPy's BLAS, in Python's numbers: see _gram and _bounded
        flat = a.ravel("K")
        squares, trace = _kind(a.dtype.char).dot(flat, flat).real, sum(a.diagonal().real.tolist())
        low, high = squares < norms[0] * trace, squares > norms[1] ** 2
    else:
        squares, traces = np.einsum("...ij,...ij->...", a, a.conj()).real, a.trace(axis1=-2, axis2=-1).real
        low, high = bool((squares < norms[0] * traces).any()), bool((squares > norms[1] ** 2).any())
    # The sum of the squares of the eigenvalues is at most their sum times the largest.
    if low:
        return f"norm that may be below {norms[0]:.2g}"
    if high and not _definite(-a, np.full(a.shape[:-2], norms[1])):
        return f"norm above {norms[1]:.2g}"
    return ""


def _bounded(a: np.ndarray) -> bool:
    """Whether all eigenvalues of Hermitian a (..., n, n) exceed their sum over the condition.

    A - s I has a Cholesky factor exactly when all eigenvalues exceed s, up to n eps of its norm: one factorization
    decides before anything expensive, and costs a hundredth of it.  False where the square of the sum leaves the range
    of the dtype.
    """
    kind = _kind(a.dtype.char)
    if a.ndim > 2:
        with np.errstate(all="ignore"):
            traces = np.trace(a, axis1=-2, axis2=-1).real
        inside = bool(((kind.low < traces) & (traces < kind.high)).all())
        return inside and _definite(a.copy(), -traces / kind.condition)
    # In few pieces, and in Python's numbers: after a large call each function takes 2 to 5 us to come into cache.
    diagonal = a.diagonal().real.tolist()
    trace = sum(diagonal)
    shift = trace / kind.condition
    if not (kind.low < trace < kind.high and min(diagonal) > shift):  # the least eigenvalue is no larger
        return False
    if len(a) <= LAST:
        # The least eigenvalue is at most the last pivot, which is nearly as small in most of what is ill-conditioned.
        l, failed = kind.potrf(a.T, 1, 0)
        if failed or not abs(l.item(-1)) ** 2 > shift:
            return False
        shifted = a - _identity(len(a), a.dtype) * shift
    else:
        shifted = a.copy()
        shifted.reshape(-1)[:: len(a) + 1] -= shift
    # Of either triangle; from the lower one it is up to a third faster.
    l, failed = kind.potrf(shifted.T, 1, 0, 1)  # lower, clean, overwrite_a
    return not failed and _finite_pivots(l)


def _finite_pivots(l: np.ndarray) -> bool:
    """Whether a Cholesky factor l (n, n) is of a matrix without infs and NaNs.

    They show in the pivot of their row or column, not always in the last: OpenBLAS' kernels for processors without
    AVX2 (0.3.30) divide float32 columns by a pivot of NaN into zeros.
    """
    return math.isfinite(sum(l.diagonal().real.tolist()))  # in Python's numbers: see ``_bounded``


@functools.cache
def _identity(n: int, dtype: np.dtype) -> np.ndarray:
    return np.eye(n, dtype=dtype)


def _definite(a: np.ndarray, shift: Any) -> bool:
    """Whether a + shift I is positive definite for all of a (..., n, n), which is overwritten, and shifts (...).

    Diagonals are finite; infs and NaNs elsewhere are not positive definite.
    """
    np.einsum("...ii->...i", a)[...] += shift[..., np.newaxis]
    if a.ndim == 2:
        l, failed = _kind(a.dtype.char).potrf(a.T, lower=True, clean=False, overwrite_a=True)
        return not failed and _finite_pivots(l)
    with np.errstate(all="ignore"):
        try:
            l = _numpy_cholesky(a)
        except LinAlgError:
            return False
    return bool(np.isfinite(np.einsum("...ii->...i", l)).all())


@dataclass(frozen=True, slots=True)
class Through:
    """f(A) (n, n), and the eigenpairs w (n,) and q (n, n) of A it was made of."""

    value: np.ndarray
    w: np.ndarray
    q: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class OfPositive(Problem):
    """Q f(w) Q^H of one Hermitian positive-definite matrix."""

    function: Function
    norms: tuple[float, float]

    def run(self, engine: Engine) -> Through:
        (a,) = self.arrays
        a = a.astype(self.dtype, copy=False)
        certify(a, self.norms)
        try:
            w, q = _eigh.eigh(a, engine, self.method or "start")
        except _eigh.NotConverged as why:
            raise Unsupported(Reason.ACCURACY, str(why)) from why
        with np.errstate(all="ignore"):
            f = self.function(w)
            # Usually a root or a power: a product of a matrix with itself.
            result = engine.gram(q * np.sqrt(f)) if usual((f >= 0).all(), True) else engine.matmul(q * f, q.conj().T)
        guards.finite(result)
        return Through(result, w, q)

    def error(self, result: Any) -> float:
        """On probes: |A Q - Q W|, |Q^H Q - I| and |X - Q f(W) Q^H|; of the reference's X, that it commutes with A."""
        (a,) = self.arrays
        v = probe(len(a), self.dtype)
        width = math.sqrt(v.shape[1])
        if not isinstance(result, Through):
            return norm(a @ (result @ v) - result @ (a @ v)) / (norm(a) * max(norm(result), 1.0) * width)
        x, w, q = result.value, result.w[:, np.newaxis], result.q
        pairs = norm(a @ (q @ v) - q @ (w * v)) / (norm(a) * width)
        orthogonality = norm(q.conj().T @ (q @ v) - v) / math.sqrt(v.size)
        f = self.function(w)
        value = norm(x @ v - q @ (f * (q.conj().T @ v))) / (max(norm(f), np.finfo(f.dtype).tiny) * width)
        return float(max(pairs, orthogonality, value))

    def deliver(self, result: Through) -> np.ndarray:
        return result.value


def problem(name: str, a: Any, function: Function) -> Problem:
    """``function`` of the eigenvalues of positive-definite matrices a (..., n, n) for SciPy's ``name``."""
    a = operand(name, a)
    dtype, n = guards.floating(a), a.shape[-1]
    norms, found = FUNCTIONS[name].norms, route(name, a, function)
    of = functools.partial(OfPositive, (a,), dtype, function=function, norms=norms, route=found)
    cost = useful(name, n, FLOPS[name] * float(n) ** 3, (a,), dtype, a.size)
    if a.ndim > 2 or dtype.char not in "dD":
        if found is None:
            raise Unsupported(Reason.LAYOUT, f"shape {a.shape}, {dtype}: SciPy is done before a route is chosen")
        refusal = (Reason.LAYOUT, f"shape {a.shape}, {dtype}: no device path for functions of such matrices")
        return of(cost, on_device=False, refusal=refusal)
    return of(cost, methods=_eigh.methods(n, dtype))
