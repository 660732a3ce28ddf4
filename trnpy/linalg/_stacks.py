"""Stacks of small matrices through NumPy's generalized ufuncs: SciPy's results without its loop in Python.

The arrays are float64 or complex128; a stack a is (..., m, n) with at least one matrix that is not empty.
Whatever SciPy would warn of or raise for is Unsupported,
so that SciPy itself runs.  Results are SciPy's: one array, or a list of several, batch dimensions first.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

# NumPy's own, bound before anything is patched.
from numpy.linalg import LinAlgError
from numpy.linalg import cholesky as _cholesky
from numpy.linalg import eigh as _eigh
from numpy.linalg import eigvalsh as _eigvalsh
from numpy.linalg import inv as _inv
from numpy.linalg import qr as _qr
from numpy.linalg import solve as _solve
from numpy.linalg import svd as _svd

from trnpy import _guards
from trnpy._dispatch import Reason, Unsupported

# Condition up to which two backward stable routes agree to half the digits, and SciPy has nothing to warn of.
WELL = 1e8
NEAR = 2.0  # for singular values against n eps of the largest, which are right to about eps of it

CHUNK = 2**16  # elements: half a megabyte, so that a handful of temporaries stay in a core's cache

Result = np.ndarray | list[np.ndarray]


def guarded(function: Callable[..., Result]) -> Callable[..., Result]:
    """``function`` of arrays first, then options; Unsupported for what is not finite or fails, at either end."""

    @functools.wraps(function)
    def run(*args: Any) -> Result:
        _guards.finite(*[a for a in args if isinstance(a, np.ndarray)])
        try:
            with np.errstate(all="ignore"):  # overflow shows in the result, and SciPy then says what it says
                result = function(*args)
        except LinAlgError as why:
            raise Unsupported(Reason.VALUE, str(why)) from why
        _guards.finite(*(result if isinstance(result, list) else (result,)))
        return result

    return run


def adjoint(a: np.ndarray) -> np.ndarray:
    """A^H of every matrix of the stack; of real ones a view."""
    return (a.conj() if a.dtype.kind == "c" else a).swapaxes(-2, -1)


def in_chunks(run: Callable[..., Result], arrays: tuple[np.ndarray, ...], *options: Any) -> Result:
    """``run(*arrays, *options)`` a cacheful of the stacks at a time, where their batch dimensions are equal."""
    a, batch = arrays[0], arrays[0].shape[:-2]
    step = max(CHUNK // (a.shape[-2] * a.shape[-1]), 1)
    if a.ndim < 3 or a.size <= CHUNK or any(x.ndim > 2 and x.shape[:-2] != batch for x in arrays):
        return run(*arrays, *options)
    flat = [x.reshape(-1, *x.shape[-2:]) if x.ndim > 2 else x for x in arrays]
    parts = [run(*[x[i : i + step] if x.ndim > 2 else x for x in flat], *options) for i in range(0, len(flat[0]), step)]

    def joined(pieces: tuple[Any, ...]) -> np.ndarray:
        return np.concatenate(pieces).reshape(*batch, *pieces[0].shape[1:])

    if isinstance(parts[0], list):
        return [joined(pieces) for pieces in zip(*parts, strict=True)]
    return joined(tuple(parts))


@guarded
def cholesky(a: np.ndarray, lower: bool) -> Result:
    return _cholesky(a, upper=not lower)


@guarded
def qr(a: np.ndarray, mode: str) -> Result:
    """``mode``: SciPy's; its R has m rows where NumPy's "r" has min(m, n)."""
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


def _unstructured(a: np.ndarray) -> None:
    """Refuse triangular and banded matrices: SciPy finds them and its results keep their zeros."""
    if not (a[..., 0, -1].all() and a[..., -1, 0].all()):
        raise Unsupported(Reason.LAYOUT, "a corner is zero: the matrix may be triangular or banded")


def _frobenius(a: np.ndarray) -> np.ndarray:
    return np.asarray(np.sqrt(np.einsum("...ij,...ij->...", a, a.conj()).real))


def _well_conditioned(a: np.ndarray, inverse: np.ndarray) -> None:
    """Refuse matrices for which SciPy might warn: its estimate of rcond is never below the true value.

    sqrt(n) |A|_F is at least |A|_1, so that the bound here is on the safe side.
    """
    condition = a.shape[-1] * float((_frobenius(a) * _frobenius(inverse)).max())
    if not condition < WELL:
        raise Unsupported(Reason.VALUE, f"condition number up to {condition:.1e}")


@guarded
def inv(a: np.ndarray) -> Result:
    """Exactly Hermitian where a is, as SciPy's."""
    _unstructured(a)
    x = _inv(a)
    _well_conditioned(a, x)
    if (a[..., 0, -1] == a[..., -1, 0].conj()).any():
        hermitian = (a == adjoint(a)).all(axis=(-2, -1))
        x[hermitian] = (x[hermitian] + adjoint(x[hermitian])) / 2
    return x


@guarded
def solve(a: np.ndarray, b: np.ndarray) -> Result:
    """b (n,) or (..., n, k).  The inverse is solved for as well, to know the condition."""
    _unstructured(a)
    columns = b[:, np.newaxis] if b.ndim == 1 else b
    batch = np.broadcast_shapes(a.shape[:-2], columns.shape[:-2])
    n, k = columns.shape[-2:]
    right = np.empty((*batch, n, k + n), np.result_type(a, b))
    right[..., :k], right[..., k:] = columns, np.eye(n)
    x = _solve(a, right)
    _well_conditioned(a, x[..., k:])
    return np.ascontiguousarray(x[..., 0] if b.ndim == 1 else x[..., :k])


@guarded
def svd(a: np.ndarray, full: bool) -> Result:
    return list(_svd(a, full_matrices=full))


@guarded
def svdvals(a: np.ndarray) -> Result:
    return _svd(a, compute_uv=False)


def _kept(s: np.ndarray, shape: tuple[int, ...], atol: float | None, rtol: float | None) -> np.ndarray:
    """Which singular values s (..., k) SciPy's pinv and pinvh keep; Unsupported when one is near the threshold."""
    relative = max(shape[-2:]) * np.finfo(s.dtype).eps if rtol is None else rtol
    largest = s.max(axis=-1, keepdims=True)
    threshold = (atol or 0.0) + largest * relative
    if ((s > threshold / NEAR) & (s < np.maximum(threshold * NEAR, largest / WELL))).any():
        raise Unsupported(Reason.VALUE, "a singular value near the threshold, or too small")
    return np.asarray(s > threshold)


def _ranked(x: np.ndarray, kept: np.ndarray, return_rank: bool) -> Result:
    return [x, kept.sum(axis=-1)] if return_rank else x


@guarded
def pinv(a: np.ndarray, atol: float | None, rtol: float | None, return_rank: bool) -> Result:
    u, s, vh = _svd(a, full_matrices=False)
    kept = _kept(s, a.shape, atol, rtol)
    inverse = np.where(kept, 1 / s, s.dtype.type(0))
    return _ranked(adjoint(vh) @ adjoint(u * inverse[..., np.newaxis, :]), kept, return_rank)


@guarded
def pinvh(a: np.ndarray, lower: bool, atol: float | None, rtol: float | None, return_rank: bool) -> Result:
    w, u = _eigh(a, "L" if lower else "U")
    kept = _kept(np.abs(w), a.shape, atol, rtol)
    inverse = np.where(kept, 1 / w, w.dtype.type(0))
    return _ranked((u * inverse[..., np.newaxis, :]) @ adjoint(u), kept, return_rank)


@guarded
def lstsq(a: np.ndarray, b: np.ndarray, cond: float | None) -> Result:
    """x, residues, rank and singular values for b (m,), (m, k) or (..., m, k) of full rank, as from gelsd."""
    m, n = a.shape[-2:]
    dtype = np.result_type(a, b)
    u, s, vh = _svd(a.astype(dtype, copy=False), full_matrices=False)
    if not (s.min(axis=-1) > max(1 / WELL, NEAR * (cond or 0.0)) * s.max(axis=-1)).all():
        raise Unsupported(Reason.VALUE, "not of full rank beyond doubt")
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
    return [x, residues, np.full(batch, rank), s]
