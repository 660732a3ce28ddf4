"""sqrtm and logm: functions of positive-definite matrices from eigenvectors, and a cheap test of definiteness."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.linalg import LinAlgError
from numpy.linalg import cholesky as _numpy_cholesky

from trnpy._base.records import record
from trnpy._call import guards
from trnpy._call.dispatch import Problem, Reason, Unsupported
from trnpy._engine import lapack as _lapack
from trnpy._engine.abstract_arrays import operations, priced, usual
from trnpy._engine.engines import Engine
from trnpy._engine.proof.weights import probe
from trnpy._settings.host_rates import FLOPS
from trnpy._settings.tile import length
from trnpy.linalg import _eigh, _refinement
from trnpy.linalg._lapack_panels import adjoint
from trnpy.linalg._matrices import MIRROR, SMALL, native, norm, refuse_options, useful
from trnpy.linalg._reference_forms import scipy_function

Function = Callable[[np.ndarray], np.ndarray]

LAST = length(32)  # rows and columns: factoring the last ones is cheap
ANY = (0.0, math.inf)  # norm
AMPLIFIED = 2.0  # eigenvalue errors are corrected if f magnifies them to more than this multiple of its own rounding
STEEP = 1 / 4  # fraction of the eigenvalues that cost estimates assume to need this correction
STEP = 1e-4  # relative step of a difference quotient that approximates a derivative


@record()
class MatrixFunction:
    """A function of matrices that SciPy computes through a Schur decomposition."""

    least: int  # rows: below, the definiteness test takes more than 5 % of the time of SciPy's Schur form
    dtypes: str  # for which SciPy's result has the dtype of the matrix and no warning
    norms: tuple[float, float] = ANY  # for which SciPy gives no warning


FUNCTIONS: Mapping[str, MatrixFunction] = {
    "sqrtm": MatrixFunction(64, "dfDF"),
    # SciPy warns if expm of its logarithm differs from the matrix by more than 1000 eps. Within these norms the
    # difference was at most 0.1 of that, for spectra of 1 to 1e-9 times the norm and n = 3 to 150. Outside, rounding
    # in expm reaches it.
    "logm": MatrixFunction(3, "dD", (math.exp(-2), math.exp(2))),
    "fractional_matrix_power": MatrixFunction(3, "dD"),
}


@record()
class _Kind:
    """Limits for a dtype, and SciPy's functions for it."""

    # Up to this condition both algorithms have forward errors of condition times eps, within a factor of three of each
    # other from 1e1 to 1e14 (docs/matfun.md#definite-matrices). Above it SciPy runs, with its own warnings.
    condition: float
    low: float  # from low to high, squares neither overflow nor vanish
    high: float
    potrf: Any
    syevd: Any
    rank_k: Any  # syrk, or herk for complex numbers
    dot: Any


@functools.cache
def _kind(char: str) -> _Kind:
    limits = (1e10, 1e-150, 1e150) if char in "dD" else (1e4, 1e-18, 1e18)
    names = "potrf", "heevd" if char in "FD" else "syevd"
    lapack = _lapack.lapack.get_lapack_funcs(names, dtype=char)
    products = ("herk", "dotc") if char in "FD" else ("syrk", "dot")
    return _Kind(*limits, *lapack, *_lapack.blas.get_blas_funcs(products, dtype=char))


def operand(name: str, a: Any) -> np.ndarray:
    """``a`` (..., n, n), if SciPy keeps its dtype."""
    m = guards.array(a)
    native(m)
    dtype = guards.floating(m)
    if m.ndim < 2 or m.shape[-1] != m.shape[-2] or m.size == 0:
        raise Unsupported(Reason.LAYOUT, f"shape {m.shape} is not of non-empty square matrices")
    if dtype.char not in FUNCTIONS[name].dtypes:
        raise Unsupported(Reason.DTYPE, f"{dtype}: SciPy's result has a dtype or a warning of its own")
    return m


@priced("cholesky", lambda a, *_: (operations(len(a) ** 3 / 3, a.dtype), (None,)))
def certify(a: np.ndarray, norms: tuple[float, float] = ANY) -> None:
    """Unsupported unless a (..., n, n) is Hermitian to rounding, with condition and norm within the limits."""
    if not _bounded(a):
        limit = _kind(a.dtype.char).condition
        raise Unsupported(Reason.VALUE, f"not positive definite, or condition number above {limit:.0e}")
    if difference := _unlike(a, norms):
        raise Unsupported(Reason.VALUE, difference)


def _rounding(a: np.ndarray) -> float:
    """How much a_ij and conj(a_ji) of a (..., n, n) may differ through rounding alone, relative to sqrt(a_ii a_jj).

    A product X X^H is Hermitian to rounding: BLAS may sum the terms of a_ij and of a_ji in different orders, depending
    on the processor. X has at least n columns if the product is positive definite, and n random rounding errors add up
    to about sqrt(n) eps: measured for n = 300 were 0.8 eps with Gaussian X and 11 eps with positive X. The function of
    one triangle then has an error of condition times sqrt(n) eps, which ``_Kind.condition`` allows.
    """
    return math.sqrt(a.shape[-1]) * float(np.finfo(a.dtype).eps)


def _mirrors(a: np.ndarray, rows: slice) -> bool:
    """Whether ``rows`` of a (..., n, n), from the diagonal on, equal those of a Hermitian matrix up to rounding."""
    mine, mirrored = a[..., rows, rows.start :], adjoint(a[..., rows.start :, rows])
    if (mine == mirrored).all():
        return True
    sizes = np.sqrt(np.abs(np.einsum("...ii->...i", a)))
    with np.errstate(all="ignore"):
        allowed = _rounding(a) * sizes[..., rows, np.newaxis] * sizes[..., np.newaxis, rows.start :]
        return bool((np.abs(mine - mirrored) <= allowed).all())


def _unlike(a: np.ndarray, norms: tuple[float, float]) -> str:
    """The property other than its condition for which ``certify`` rejects a (..., n, n), or "" if there is none."""
    if not all(_mirrors(a, slice(j, j + MIRROR)) for j in range(0, a.shape[-1], MIRROR)):
        return "not Hermitian"
    if norms == ANY:
        return ""
    if a.ndim == 2:  # with SciPy's BLAS and Python's numbers: see _gram and _bounded
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
    """Whether all eigenvalues of Hermitian a (..., n, n) exceed their sum divided by the condition.

    A - s I has a Cholesky factor exactly when all eigenvalues exceed s, up to n eps of its norm. One factorization
    decides before anything expensive runs, and costs a hundredth of it. False if the square of the sum is outside the
    range of the dtype.
    """
    kind = _kind(a.dtype.char)
    if a.ndim > 2:
        with np.errstate(all="ignore"):
            traces = np.trace(a, axis1=-2, axis2=-1).real
        inside = bool(((kind.low < traces) & (traces < kind.high)).all())
        return inside and _definite(a.copy(), -traces / kind.condition)
    # Few steps, with Python's numbers: after a large call each function takes 2 to 5 us to be loaded into cache.
    diagonal = a.diagonal().real.tolist()
    trace = sum(diagonal)
    shift = trace / kind.condition
    if not (kind.low < trace < kind.high and min(diagonal) > shift):  # the least eigenvalue is no larger
        return False
    if len(a) <= LAST:
        # The least eigenvalue is at most the last pivot, which is nearly as small for most ill-conditioned matrices.
        l, failed = kind.potrf(a.T, 1, 0)
        if failed or not abs(l.item(-1)) ** 2 > shift:
            return False
        shifted = a - _identity(len(a), a.dtype) * shift
    else:
        shifted = a.copy()
        shifted.reshape(-1)[:: len(a) + 1] -= shift
    # Either triangle gives the factor; from the lower one it is up to a third faster.
    l, failed = kind.potrf(shifted.T, 1, 0, 1)  # lower, clean, overwrite_a
    return not failed and _finite_pivots(l)


def _finite_pivots(l: np.ndarray) -> bool:
    """Whether a Cholesky factor l (n, n) belongs to a matrix without infs and NaNs.

    They reach the pivot of their row or column, but not always the last pivot: OpenBLAS kernels for processors without
    AVX2 (0.3.30) divide float32 columns by a NaN pivot and return zeros.
    """
    return math.isfinite(sum(l.diagonal().real.tolist()))  # with Python's numbers: see ``_bounded``


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


# --- Errors that a steep function amplifies ---------------------------------------------------------------------------


def with_slope(function: Function, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A function at w and the magnitude of its derivative, to a few digits: it multiplies rounding errors."""
    above, below = w * (1 + STEP), w * (1 - STEP)
    return function(w), (function(above) - function(below)) / (above - below)


def steep(w: np.ndarray, f: np.ndarray, slope: np.ndarray) -> np.ndarray:
    """Where f of ascending eigenvalues w (..., n) makes their errors larger than its own rounding."""
    found: np.ndarray = np.abs(slope) * w[..., -1:] > AMPLIFIED * np.abs(f).max(axis=-1, keepdims=True)
    return found


def correction(
    a: np.ndarray, w: np.ndarray, q: np.ndarray, f: np.ndarray, slope: np.ndarray, times: Callable[..., np.ndarray]
) -> np.ndarray:
    """The first-order correction of f(A) for the errors of eigenpairs w (..., k) and q (..., n, k).

    E = Q^H A Q - diag(w) is c u |A|. Where f is steep, E makes the error of f(A) many times as large as rounding, and
    often twice that of SciPy, whose Schur form is more accurate for single small eigenvalues. f(A) is
    Q (diag(f) + F E) Q^H, elementwise in F E, with F_ij = (f_i - f_j) / (w_i - w_j): Higham, Functions of Matrices,
    theorem 3.11. ``times`` multiplies; A Q is computed with twice the working precision. The remaining error is |E|^2
    over the least eigenvalue.
    """
    wide = np.result_type(a, np.float64)
    whole, vectors = a.astype(wide, copy=False), q.astype(wide)
    if a.dtype == wide:
        bits = (52 - math.ceil(math.log2(2 * a.shape[-1]))) // 2
        high, low = _split(whole, -1, bits)
        first, second = _split(vectors, -2, bits)
        image = times(high, first) + (times(high, second) + times(low, vectors))  # the first product is exact
    else:
        image = times(whole, vectors)
    e = _weighted(times(adjoint(vectors), image), w, f, slope)
    found = times(times(vectors, e), adjoint(vectors))
    half: np.ndarray = (found + adjoint(found)) / 2
    return half


@priced("", lambda e, *_: (4 * e.nbytes, ((e.shape, e.dtype),)))
def _weighted(e: np.ndarray, w: np.ndarray, f: np.ndarray, slope: np.ndarray) -> np.ndarray:
    """E - diag(w) times the divided differences of f, elementwise; overwrites e (..., k, k)."""
    np.einsum("...ii->...i", e)[...] -= w
    x, y = w[..., np.newaxis, :], w[..., np.newaxis]
    near = np.abs(x - y) <= STEP * np.maximum(x, y)
    quotients = (f[..., np.newaxis, :] - f[..., np.newaxis]) / np.where(near, 1, x - y)
    e *= np.where(near, slope[..., np.newaxis, :], quotients)
    return e


@priced("", lambda x, *_: (3 * x.nbytes, ((x.shape, x.dtype), (x.shape, x.dtype))))
def _split(x: np.ndarray, axis: int, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """x as a sum of two numbers; the first has ``bits`` bits below the largest part of a number along ``axis``."""
    if x.dtype.kind == "c":
        size = np.maximum(np.abs(x.real), np.abs(x.imag)).max(axis=axis, keepdims=True)
    else:
        size = np.abs(x).max(axis=axis, keepdims=True)
    rounding = np.ldexp(1.5, np.frexp(size)[1] + 52 - bits)
    high = np.empty_like(x)
    high.real = (x.real + rounding) - rounding
    if x.dtype.kind == "c":
        high.imag = (x.imag + rounding) - rounding
    return high, x - high


@record()
class Through:
    """f(A) (n, n), the eigenpairs w (n,) and q (n, n) of A, and the ``correction`` that f(A) contains."""

    value: np.ndarray
    w: np.ndarray
    q: np.ndarray
    taken_out: np.ndarray | None


@record(kw_only=True)
class OfPositive(Problem):
    """Q f(w) Q^H of one Hermitian positive-definite matrix."""

    function: Function
    norms: tuple[float, float]

    def run(self, engine: Engine) -> Through:
        (a,) = self.arrays
        a = a.astype(self.dtype, copy=False)
        certify(a, self.norms)
        try:
            w, q = _eigh.eigh(a, engine, self.method)
        except _refinement.NotConverged as why:
            raise Unsupported(Reason.ACCURACY, str(why)) from why
        with np.errstate(all="ignore"):
            f, slope = with_slope(self.function, w)
            # A square root or a power usually has f >= 0: then one symmetric product suffices.
            result = engine.gram(q * np.sqrt(f)) if usual((f >= 0).all(), True) else engine.matmul(q * f, q.conj().T)
            count = int(usual(steep(w, f, slope).sum(), math.ceil(STEEP * len(w))))
            taken_out = None
            if count:
                some = np.argsort(-np.abs(slope))[:count]
                taken_out = correction(a, w[some], q[:, some], f[some], slope[some], engine.matmul)
                result = result + taken_out
        guards.finite(result)
        return Through(result, w, q, taken_out)

    def error(self, result: Any) -> float:
        """|A Q - Q W|, |Q^H Q - I| and |X - Q f(W) Q^H| without the correction, and its size, on random test vectors.

        For the original function's X, whether it commutes with A.
        """
        (a,) = self.arrays
        v = probe(len(a), self.dtype)
        width = math.sqrt(v.shape[1])
        if not isinstance(result, Through):
            return norm(a @ (result @ v) - result @ (a @ v)) / (norm(a) * max(norm(result), 1.0) * width)
        x, w, q = result.value, result.w[:, np.newaxis], result.q
        pairs = norm(a @ (q @ v) - q @ (w * v)) / (norm(a) * width)
        orthogonality = norm(q.conj().T @ (q @ v) - v) / math.sqrt(v.size)
        f, slope = with_slope(self.function, w)
        left, amplified = x @ v - q @ (f * (q.conj().T @ v)), 0.0
        if result.taken_out is not None:
            left -= result.taken_out @ v
            amplified = norm(result.taken_out) / (float(np.abs(slope).max()) * norm(a))
        value = norm(left) / (max(norm(f), np.finfo(f.dtype).tiny) * width)
        return float(max(pairs, orthogonality, value, amplified))

    def deliver(self, result: Through) -> np.ndarray:
        return result.value


def problem(name: str, a: Any, function: Function) -> Problem:
    """``function`` of the eigenvalues of positive-definite matrices a (..., n, n) for SciPy's ``name``."""
    a = operand(name, a)
    dtype, n = guards.floating(a), a.shape[-1]
    of = functools.partial(OfPositive, (a,), dtype, function=function, norms=FUNCTIONS[name].norms)
    cost = useful(name, n, FLOPS[name] * float(n) ** 3, (a,), dtype, a.size)
    if a.ndim > 2:
        refusal = (Reason.LAYOUT, f"shape {a.shape}: no device path for functions of stacks")
        return of(cost, on_device=False, refusal=refusal)
    return of(cost, **_eigh.by_methods(n, dtype))


def prepare_sqrtm(A: Any, *options: Any, **named: Any) -> Problem:
    refuse_options(options, named)
    return problem("sqrtm", A, np.sqrt)


def prepare_logm(A: Any, *options: Any, **named: Any) -> Problem:
    refuse_options(options, named)
    return problem("logm", A, np.log)


OPS = (
    scipy_function("sqrtm", prepare_sqrtm, small=SMALL),
    scipy_function("logm", prepare_logm, small=SMALL, dtypes="dD"),
)
