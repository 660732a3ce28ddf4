"""Stacks of small matrices through NumPy's generalized ufuncs: SciPy's results without its loop in Python.

The arrays are float64 or complex128; a stack a is (..., m, n) with at least one matrix that is not empty. Where SciPy
would raise an error, these functions raise Unsupported, and SciPy runs. SciPy also computes the structured matrices of
a stack and the ill-conditioned ones, for which it may warn. A function returns what SciPy returns, as one array or as
a list of several, batch dimensions first.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

# NumPy's and SciPy's own, bound before anything is patched.
from numpy.linalg import LinAlgError
from numpy.linalg import cholesky as _cholesky
from numpy.linalg import eigh as _eigh
from numpy.linalg import eigvalsh as _eigvalsh
from numpy.linalg import inv as _inv
from numpy.linalg import qr as _qr
from numpy.linalg import svd as _svd

from trnpy._base.conventions import uncounted
from trnpy._call import guards
from trnpy._engine import lapack
from trnpy._report.reasons import Reason, Unsupported
from trnpy._settings.tile import area, length
from trnpy.linalg._lapack_panels import adjoint
from trnpy.linalg._matrices import NEAR

# Up to this condition number two backward stable algorithms agree to half the digits, and SciPy does not warn.
WELL = 1e8
# Relative places of the matrices that are sampled first: multiples of the golden ratio are even and never periodic.
SPREAD = tuple(k * (math.sqrt(5) - 1) / 2 % 1 for k in range(1, 17))
# Sampling ends if one kind leads by LEAD; a matrix that SciPy must compute counts twice. A stack of which SciPy must
# compute half passes once in eight times; if SciPy must compute a tenth, it passes 98 times in 100.
LEAD = 4
MOST = 1 / 3  # share of ill-conditioned matrices in a piece above which SciPy computes the rest of the stack
WHOLE = 0.8  # share that SciPy must compute above which it computes all: picking matrices costs it an eighth more
FIRST = length(64)  # matrices of the first piece, enough to tell a third from a half

CHUNK = area(2**16)  # elements: half a megabyte, so that a handful of temporaries stay in a core's cache
PIECE = area(2**14)  # elements computed between two counts of SciPy's share: a fiftieth of a stack that matters

EPS = float(np.finfo(np.float64).eps)

Result = np.ndarray | list[np.ndarray]
Look = Callable[[np.ndarray, list[float]], bool]

_GETRF = {"d": "dgetrf", "D": "zgetrf"}


def guarded(function: Callable[..., Result]) -> Callable[..., Result]:
    """``function`` (arrays, then options), raising Unsupported if it fails or if an operand or result is not finite."""

    def piece(*args: Any) -> Result:
        guards.finite(*[a for a in args if isinstance(a, np.ndarray)])
        result = function(*args)
        guards.finite(*(result if isinstance(result, list) else (result,)))
        return result

    @functools.wraps(function)
    def run(*args: Any) -> Result:
        arrays = tuple(a for a in args if isinstance(a, np.ndarray))
        try:
            with np.errstate(all="ignore"):  # an overflow shows in the result; SciPy then runs and warns
                return in_chunks(piece, arrays, *args[len(arrays) :])
        except LinAlgError as why:
            raise Unsupported(Reason.VALUE, str(why)) from why

    return run


def mended(scipys: Callable[..., Any]) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """Wrap a function of stacks whose last result marks matrices (count,) for which SciPy may decide differently.

    SciPy computes the marked matrices; once too many of a piece are marked, it also computes the rest of the stack.
    Batch dimensions of all stacks are equal. ``scipys(chosen, *arrays, *options)`` returns SciPy's results for the
    ``chosen`` matrices (count,) of stacks (count, m, n).
    """

    def decorated(function: Callable[..., Result]) -> Callable[..., Result]:
        @uncounted
        @functools.wraps(function)
        def run(*args: Any) -> Result:
            batch = args[0].shape[:-2]
            guards.finite(*[x for x in args if isinstance(x, np.ndarray)])
            flat = [x.reshape(-1, *x.shape[-2:]) if _is_stack(x) else x for x in args]
            results, theirs = _of_pieces(function, flat)
            if np.count_nonzero(theirs) > WHOLE * len(theirs):
                raise Unsupported(Reason.VALUE, "ill-conditioned, or triangular or banded")
            if theirs.any():
                _mend(results, scipys(theirs, *flat), theirs)
            shaped = [x.reshape(*batch, *x.shape[1:]) for x in results]
            return shaped[0] if len(shaped) == 1 else shaped

        return run

    return decorated


def _is_stack(x: Any) -> bool:
    return isinstance(x, np.ndarray) and x.ndim > 2


def _of_pieces(function: Callable[..., Result], args: list[Any]) -> tuple[list[np.ndarray], np.ndarray]:
    """Results of ``function`` over the stacks among ``args``, and which matrices (count,) SciPy must compute."""
    count, *shape = args[0].shape
    step = max(PIECE // math.prod(shape), 1)
    results: list[np.ndarray] = []
    theirs = np.ones(count, bool)
    for start, end in itertools.pairwise(_ends(count, step)):
        here = slice(start, end)
        try:
            with np.errstate(all="ignore"):  # an overflow shows in the result; SciPy then runs and warns
                *parts, doubtful = function(*[x[here] if _is_stack(x) else x for x in args])
        except LinAlgError as why:
            raise Unsupported(Reason.VALUE, str(why)) from why
        for part in parts:
            if not np.isfinite(part).all():
                doubtful |= ~np.isfinite(part).all(axis=tuple(range(1, part.ndim)))
        theirs[here] = doubtful
        if end - start == count:
            return parts, theirs
        results = results or [np.empty((count, *part.shape[1:]), part.dtype) for part in parts]
        for whole, part in zip(results, parts, strict=True):
            whole[here] = part
        if np.count_nonzero(doubtful) > MOST * len(doubtful):
            break
    return results, theirs


def _ends(count: int, step: int) -> list[int]:
    """The bounds of the pieces of a stack of ``count`` matrices; the first of several is small, to find losses early.

    A single piece loses time only if SciPy must compute two thirds of it; ``promising`` misses that once in 80 times.
    """
    return sorted({0, *range(min(FIRST, step), count, step), count}) if count > step else [0, count]


def promising(judge: Look, a: np.ndarray) -> bool:
    """Whether a sample of the matrices of a stack suggests that the route pays. It is tested before any decision.

    It uses SciPy's LAPACK on one matrix at a time. NumPy's LAPACK would take ten times as long right after SciPy's,
    until its code is in the caches.
    """
    if a.dtype.char not in _GETRF or not a.dtype.isnative:
        return True  # ``prepare`` will raise Unsupported
    getrf = getattr(lapack.lapack, _GETRF[a.dtype.char])
    flat = a if a.ndim == 3 else a.reshape(-1, *a.shape[-2:])
    lead = 0
    for at in SPREAD:
        one = flat[int(len(flat) * at)]
        lu = getrf(one.T)[0]  # in Fortran order without a copy
        lead += -2 if judge(one, list(map(abs, lu.diagonal().tolist()))) else 1
        if abs(lead) >= LEAD:
            break
    return lead > 0


def _mend(results: list[np.ndarray], theirs: Any, chosen: np.ndarray) -> None:
    """Replace the results of the chosen matrices by SciPy's."""
    for mine, other in zip(results, theirs if isinstance(theirs, (list, tuple)) else (theirs,), strict=True):
        if other.shape[1:] != mine.shape[1:]:  # lstsq returns no residues for a rank-deficient matrix
            raise Unsupported(Reason.VALUE, f"results of shapes {mine.shape} and {other.shape}")
        mine[chosen] = other


def in_chunks(run: Callable[..., Result], arrays: tuple[np.ndarray, ...], *options: Any) -> Result:
    """``run(*arrays, *options)`` on chunks of the stacks that fit the cache, if their batch dimensions are equal."""
    a, batch = arrays[0], arrays[0].shape[:-2]
    step = max(CHUNK // (a.shape[-2] * a.shape[-1]), 1)
    if a.ndim < 3 or a.size <= CHUNK or any(x.ndim > 2 and x.shape[:-2] != batch for x in arrays):
        return run(*arrays, *options)
    flat = [x.reshape(-1, *x.shape[-2:]) if x.ndim > 2 else x for x in arrays]
    whole: list[np.ndarray] = []  # filled piece by piece: joining pieces would hold every result twice
    for i in range(0, len(flat[0]), step):
        part = run(*[x[i : i + step] if x.ndim > 2 else x for x in flat], *options)
        pieces = part if isinstance(part, list) else [part]
        whole = whole or [np.empty((len(flat[0]), *x.shape[1:]), x.dtype) for x in pieces]
        for kept, piece in zip(whole, pieces, strict=True):
            kept[i : i + step] = piece
    shaped = [x.reshape(*batch, *x.shape[1:]) for x in whole]
    return shaped if isinstance(part, list) else shaped[0]


@guarded
def cholesky(a: np.ndarray, lower: bool) -> Result:
    return _cholesky(a, upper=not lower)


@guarded
def qr(a: np.ndarray, mode: str) -> Result:
    """Q and R for SciPy's ``mode``. For mode "r" R has m rows; NumPy returns min(m, n)."""
    if mode == "r":
        r = np.asarray(_qr(a, "r"))
        below = np.zeros((*r.shape[:-2], a.shape[-2] - r.shape[-2], r.shape[-1]), r.dtype)
        return np.concatenate([r, below], axis=-2) if below.size else r
    return list(_qr(a, "reduced" if mode == "economic" else "complete"))


@guarded
def eigh(a: np.ndarray, lower: bool) -> Result:
    return list(_eigh(a, "L" if lower else "U"))


@guarded
def eigvalsh(a: np.ndarray, lower: bool) -> Result:
    return _eigvalsh(a, "L" if lower else "U")


def _well(a: np.ndarray, inverse: np.ndarray) -> np.ndarray:
    """Which matrices (count,) certainly have conditions below WELL.

    SciPy's rcond is never below the true value, and sqrt(n) |A|_F is at least |A|_1, so the test is on the safe side.
    """
    return np.asarray(_norm_2(a) * _norm_2(inverse) < (WELL / a.shape[-1]) ** 2)


def _norm_2(a: np.ndarray) -> np.ndarray:
    """The square of the Frobenius norm of each matrix."""
    return np.asarray(np.einsum("kij,kij->k", a, a.conj()).real)


# Tests of one matrix (m, n) from the sizes of its pivots. Its condition number is about n^2 times the ratio of the
# largest pivot to the smallest: with singular vectors u and v of the smallest singular value s, A^-1 is about
# u v^H / s, so the last pivot is s / (u_n v_n), about n s; the largest pivot is about s_max / n.


def _look_ill(a: np.ndarray, pivots: list[float]) -> bool:
    return not (a[0, -1] and a[-1, 0] and min(pivots) * WELL > len(pivots) ** 2 * max(pivots))


def _look_deficient(a: np.ndarray, pivots: list[float]) -> bool:
    return not min(pivots) * WELL > len(pivots) ** 2 * max(pivots)


def _look_near(a: np.ndarray, pivots: list[float]) -> bool:
    largest, threshold = len(pivots) ** 2 * max(pivots), max(a.shape) * EPS
    low, high = largest * threshold / NEAR, largest * max(threshold * NEAR, 1 / WELL)
    return any(low < x < high for x in pivots)


@uncounted
def scipys_inv(chosen: np.ndarray, a: np.ndarray) -> np.ndarray:
    """SciPy's inverses of the chosen matrices. Identities stand for the others, at a thirtieth of their time.

    SciPy's warnings name a matrix by its number, so the stack must keep its length.
    """
    stack = np.zeros_like(a)
    stack[:, range(a.shape[-1]), range(a.shape[-1])] = 1
    stack[chosen] = a[chosen]
    return np.asarray(lapack.inv(stack)[chosen])


@mended(scipys_inv)
def inv(a: np.ndarray) -> Result:
    """The inverses; like SciPy's, each is exactly Hermitian if its matrix is."""
    x = _inv(a)
    upper, lower = a[:, 0, -1], a[:, -1, 0]
    if (upper == lower.conj()).any():
        hermitian = (a == adjoint(a)).all(axis=(-2, -1))
        x[hermitian] = (x[hermitian] + adjoint(x[hermitian])) / 2
    full = np.logical_and(upper, lower)  # SciPy inverts triangular and banded matrices, because it keeps their zeros
    return [x, ~(full & _well(a, x))]


@guarded
def svd(a: np.ndarray, full: bool) -> Result:
    return list(_svd(a, full_matrices=full))


@guarded
def svdvals(a: np.ndarray) -> Result:
    return _svd(a, compute_uv=False)


def _threshold(s: np.ndarray, shape: tuple[int, ...], atol: float | None, rtol: float | None) -> np.ndarray:
    """SciPy's pinv and pinvh drop singular values s (..., k) of matrices of ``shape`` below this threshold (..., 1)."""
    relative = max(shape[-2:]) * np.finfo(s.dtype).eps if rtol is None else rtol
    return np.asarray((atol or 0.0) + s.max(axis=-1, keepdims=True) * relative)


def _near(s: np.ndarray, threshold: np.ndarray) -> np.ndarray:
    """Which matrices (...) have a singular value near the threshold, or one too small to keep half of its digits."""
    small = np.maximum(threshold * NEAR, s.max(axis=-1, keepdims=True) / WELL)
    return np.asarray(((s > threshold / NEAR) & (s < small)).any(axis=-1))


def _ranked(x: np.ndarray, kept: np.ndarray, near: np.ndarray, return_rank: bool) -> Result:
    return [x, kept.sum(axis=-1), near] if return_rank else [x, near]


@uncounted
def _scipys_pinv(chosen: np.ndarray, a: np.ndarray, atol: float | None, rtol: float | None, return_rank: bool) -> Any:
    options: dict[str, Any] = {"atol": atol, "rtol": rtol, "return_rank": return_rank}
    return lapack.pinv(a[chosen], **options)


@mended(_scipys_pinv)
def pinv(a: np.ndarray, atol: float | None, rtol: float | None, return_rank: bool) -> Result:
    u, s, vh = _svd(a, full_matrices=False)
    threshold = _threshold(s, a.shape, atol, rtol)
    kept = s > threshold
    inverse = np.where(kept, 1 / s, s.dtype.type(0))
    return _ranked(adjoint(vh) @ adjoint(u * inverse[..., np.newaxis, :]), kept, _near(s, threshold), return_rank)


@uncounted
def _scipys_pinvh(
    chosen: np.ndarray, a: np.ndarray, lower: bool, atol: float | None, rtol: float | None, return_rank: bool
) -> Any:
    options: dict[str, Any] = {"atol": atol, "rtol": rtol, "lower": lower, "return_rank": return_rank}
    return lapack.pinvh(a[chosen], **options)


@mended(_scipys_pinvh)
def pinvh(a: np.ndarray, lower: bool, atol: float | None, rtol: float | None, return_rank: bool) -> Result:
    w, u = _eigh(a, "L" if lower else "U")
    s = np.abs(w)
    threshold = _threshold(s, a.shape, atol, rtol)
    kept = s > threshold
    inverse = np.where(kept, 1 / w, w.dtype.type(0))
    return _ranked((u * inverse[..., np.newaxis, :]) @ adjoint(u), kept, _near(s, threshold), return_rank)


def _deficient(s: np.ndarray, cond: float | None) -> np.ndarray:
    """Which matrices (...) may be rank-deficient."""
    return np.asarray(~(s.min(axis=-1) > max(1 / WELL, NEAR * (cond or 0.0)) * s.max(axis=-1)))


@uncounted
def _scipys_lstsq(chosen: np.ndarray, a: np.ndarray, b: np.ndarray, cond: float | None) -> Any:
    return lapack.lstsq(a[chosen], b[chosen] if b.ndim > 2 else b, cond)


@mended(_scipys_lstsq)
def lstsq(a: np.ndarray, b: np.ndarray, cond: float | None) -> Result:
    """x, residues, rank and singular values for b (m,), (m, k) or (..., m, k) of full rank, as from gelsd."""
    m, n = a.shape[-2:]
    dtype = np.result_type(a, b)
    u, s, vh = _svd(a.astype(dtype, copy=False), full_matrices=False)
    columns = b[:, np.newaxis] if b.ndim == 1 else b
    coefficients = adjoint(u) @ columns
    x = adjoint(vh) @ (coefficients / s[..., np.newaxis])
    batch, rank = a.shape[:-2], min(m, n)
    residues = np.empty((*batch, 0), dtype)
    if m > n:
        left = columns - u @ coefficients
        residues = (np.abs(left) ** 2).sum(axis=-2)
        residues = residues[..., 0] if b.ndim == 1 else residues
    x = np.ascontiguousarray(x[..., 0]) if b.ndim == 1 else x
    return [x, residues, np.full(batch, rank), s, _deficient(s, cond)]


SAMPLED: Mapping[str, Look] = MappingProxyType(
    {"inv": _look_ill, "pinv": _look_near, "pinvh": _look_near, "lstsq": _look_deficient}
)
