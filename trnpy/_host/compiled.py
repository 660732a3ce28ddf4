"""Stacks of small matrices, computed in the loops of ``_stacks.c``, which are missing if there was no C compiler.

A stack a is (..., m, n), float64 or complex128. A function returns what SciPy returns, as one array or as a list of
several, batch dimensions first. It raises Unsupported if SciPy would raise or warn, or if a number is not finite. SciPy
also computes the matrices that a loop marks: structured ones, and ones whose condition number is above WELL.
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from trnpy._base import conventions
from trnpy._base.conventions import uncounted
from trnpy._engine import lapack
from trnpy._host.integer import without_lapack
from trnpy._host.stacks import FIRST, MOST, Result, scipys_inv
from trnpy._report.reasons import Reason, Unsupported
from trnpy._settings.host_rates import STACK_SIZES

# SciPy's time divided by the loop's time at the sizes STACK_SIZES (AMD EPYC, 2026-11, Haswell kernels, one thread),
# rounded down. Both run on one thread at these sizes, so ratios carry over to other machines better than times.
GAINS: Mapping[str, tuple[float, float, float]] = MappingProxyType(
    {
        "cholesky": (40.0, 7.0, 2.0), "det": (7.0, 2.5, 1.2), "eig": (5.0, 1.5, 1.05),
        "eigvals": (5.0, 1.5, 1.05), "expm": (9.0, 1.0, 0.2), "inv": (6.0, 1.6, 1.25),
        "lu": (10.0, 2.0, 1.4), "solve": (6.0, 2.6, 1.4),
    }
)  # fmt: skip
# The same over the compiled loops of SciPy 1.18 (SkylakeX kernels).
GAINS_OVER_LOOPS: Mapping[str, tuple[float, float, float]] = MappingProxyType(
    {"det": (1.6, 1.5, 1.0), "expm": (4.0, 0.3, 0.1), "lu": (1.6, 1.5, 0.95)}
)


@functools.cache
def loops() -> Any:
    """The compiled loops, which use SciPy's LAPACK; None if not compiled, or if LAPACK's integers are longer."""
    found = without_lapack()
    try:
        if found is not None:
            found.use(importlib.import_module("scipy.linalg.cython_lapack").__pyx_capi__)
    except ImportError:
        return None
    return found


@functools.cache
def scipy_loops() -> bool:
    """Whether SciPy's cholesky, det, eig, expm and lu are compiled loops over a stack, as from 1.18."""
    return not conventions.loops(lapack.linalg.cholesky)


def _flat(a: np.ndarray, dtype: np.dtype) -> np.ndarray:
    return a.reshape(-1, *a.shape[-2:]).astype(dtype, copy=False)


# Why SciPy computes the stack, by the status of a loop.
REFUSALS = (
    "infs or NaNs, or numbers near the ends of the range",
    "a matrix is not positive definite",
    "the eigenvalues of a matrix do not converge",
)


def _refused(status: int) -> None:
    if status:
        raise Unsupported(Reason.VALUE, REFUSALS[status - 1])


def _marked(run: Callable[[slice, np.ndarray, np.ndarray], int], results: np.ndarray) -> np.ndarray:
    """Fill ``results`` (count, ...) with ``run(matrices, results, marks)`` and return the marks (count,).

    Unsupported if so many of the first matrices, or of all, are marked that SciPy should compute the whole stack.
    """
    count = len(results)
    marks = np.empty(count, bool)
    start = FIRST if count > 2 * FIRST else 0
    for part in (slice(0, start), slice(start, count)) if start else (slice(0, count),):
        _refused(run(part, results[part], marks[part]))
        if np.count_nonzero(marks[part]) > MOST * (part.stop - part.start):
            raise Unsupported(Reason.VALUE, "ill-conditioned, or triangular or banded")
    return marks


def det(a: np.ndarray) -> Result:
    flat = _flat(a, np.result_type(a, np.float64))
    out = np.empty(len(flat), flat.dtype)
    _refused(loops().det(flat, out))
    return out.reshape(a.shape[:-2])


def cholesky(a: np.ndarray, lower: bool) -> Result:
    flat = _flat(a, np.result_type(a, np.float64))
    out = np.empty(flat.shape, flat.dtype)
    _refused(loops().cholesky(flat, out, lower))
    return out.reshape(a.shape).swapaxes(-2, -1)


def lu(a: np.ndarray, permute_l: bool, p_indices: bool) -> Result:
    """P, L and U; P as int32 indices if ``p_indices``. If ``permute_l``, P L and U."""
    flat = _flat(a, np.result_type(a, np.float64))
    count, m, n = flat.shape
    k = min(m, n)
    l, u = np.empty((count, m, k), flat.dtype), np.empty((count, k, n), flat.dtype)
    p = None
    if not permute_l:
        p = np.empty((count, m), np.int32) if p_indices else np.empty((count, m, m))
    _refused(loops().lu(flat, p, l, u))
    return [x.reshape(*a.shape[:-2], *x.shape[1:]) for x in (p, l, u) if x is not None]


@uncounted
def inv(a: np.ndarray) -> Result:
    """The inverses; like SciPy's, each is exactly Hermitian if its matrix is."""
    flat = _flat(a, np.result_type(a, np.float64))
    out = np.empty(flat.shape, flat.dtype)
    marks = _marked(lambda part, x, marks: loops().inv(flat[part], x, marks), out)
    if marks.any():
        out[marks] = scipys_inv(marks, flat)
    return out.reshape(a.shape)


@uncounted
def _scipys_solutions(chosen: np.ndarray, a: np.ndarray, b: np.ndarray, assume: Any) -> np.ndarray:
    """SciPy's solutions for the chosen matrices. Identities stand for the others, as in ``scipys_inv``."""
    stack = np.zeros_like(a)
    stack[:, range(a.shape[-1]), range(a.shape[-1])] = 1
    stack[chosen] = a[chosen]
    return np.asarray(lapack.solve(stack, b, assume_a=assume)[chosen])


@uncounted
def solve(a: np.ndarray, b: np.ndarray, assume: Any) -> Result:
    """x of each A x = b, for b (n,), (n, k) or (..., n, k). ``assume``: None, "gen" or "general"."""
    dtype = np.result_type(a, b, np.float64)
    columns = b[:, np.newaxis] if b.ndim == 1 else b
    flat, count = _flat(a, dtype), math.prod(a.shape[:-2])
    shape = (count, *columns.shape[-2:])
    right = np.broadcast_to(columns, shape) if b.ndim < 3 else columns.reshape(shape)
    right = right.astype(dtype, copy=False)
    out = np.empty(shape, dtype)
    marks = _marked(lambda part, x, marks: loops().solve(flat[part], right[part], x, marks), out)
    if marks.any():
        out[marks] = _scipys_solutions(marks, flat, right, assume)
    x = out.reshape(*a.shape[:-2], *shape[1:])
    return x[..., 0] if b.ndim == 1 else x


@uncounted
def _scipys_expm(chosen: np.ndarray, a: np.ndarray) -> np.ndarray:
    return np.asarray(lapack.expm(a[chosen]))


@uncounted
def expm(a: np.ndarray) -> Result:
    flat = _flat(a, np.result_type(a, np.float64))
    out = np.empty(flat.shape, flat.dtype)
    marks = _marked(lambda part, x, marks: loops().expm(flat[part], x, marks), out)
    if marks.any():
        out[marks] = _scipys_expm(marks, flat)
    return out.reshape(a.shape)


def eig(a: np.ndarray, left: bool, right: bool) -> Result:
    """Eigenvalues (..., n), complex, and the vectors (..., n, n), which are real if all eigenvalues of a stack are."""
    flat = _flat(a, np.result_type(a, np.float64))
    w = np.empty(flat.shape[:2], complex)
    vectors = {name: np.empty(flat.shape, flat.dtype) for name, wanted in (("l", left), ("r", right)) if wanted}
    _refused(loops().eig(flat, w, vectors.get("l"), vectors.get("r")))
    if flat.dtype.kind == "f" and w.imag.any():
        for name, v in vectors.items():
            vectors[name] = np.empty(v.shape, complex)
            loops().paired(v, w, vectors[name])
    values = w.reshape(a.shape[:-1])
    return [values, *(v.reshape(a.shape).swapaxes(-2, -1) for v in vectors.values())] if vectors else values


RUN: Mapping[str, Callable[..., Result]] = MappingProxyType(
    {"cholesky": cholesky, "det": det, "eig": eig, "eigvals": eig, "expm": expm, "inv": inv, "lu": lu, "solve": solve}
)


@functools.lru_cache(maxsize=1024)  # interpolating takes as long as a small call
def gain(name: str, n: float) -> float:
    """SciPy's time divided by the loop's for matrices of size n, interpolated in the logarithms of ``GAINS``."""
    gains = GAINS_OVER_LOOPS.get(name, GAINS[name]) if scipy_loops() else GAINS[name]
    return math.exp(float(np.interp(math.log(n), np.log(STACK_SIZES), np.log(gains))))
