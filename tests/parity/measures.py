"""Errors of results in eps: residuals in a wider type, and distances beside what data that move by one eps change."""

from __future__ import annotations

import functools
import math
import warnings

import numpy as np

EXTENDED = np.finfo(np.longdouble).maxexp > np.finfo(np.float64).maxexp  # not on ARM and Windows: float64 is widest
WIDER = {
    "f": np.float64, "e": np.float64, "F": np.complex128, "d": np.longdouble, "D": np.clongdouble, "G": np.clongdouble,
}  # fmt: skip


def wide(x):
    """``x`` in a type with more digits and more exponents than its own; integers, too."""
    x = np.asarray(x)
    return x.astype(WIDER.get(x.dtype.char, np.longdouble))


def t(a):
    return a.conj().swapaxes(-1, -2)


def unit(dtype):
    return np.finfo(dtype).eps if np.dtype(dtype).kind in "fc" else np.finfo(float).eps


def over(x, scale, dtype, terms=1):
    """The largest |x| over scale in eps of ``dtype``, less a few of the least subnormal numbers for each term."""
    x, scale = np.abs(wide(x)), np.abs(wide(scale))
    tiny = np.finfo(dtype if np.dtype(dtype).kind in "fc" else float).smallest_subnormal
    x = np.maximum(x - 4 * (terms + 1) * wide(tiny), 0)
    with np.errstate(all="ignore"):
        found = np.where(x == 0, 0, x / (scale * unit(dtype)))
    largest = float(np.max(found, initial=0.0))
    return largest if largest == largest else np.inf


def size(a):
    """The Frobenius norm (..., 1, 1) of matrices."""
    a = wide(a)
    return np.sqrt((np.abs(a) ** 2).sum(axis=(-2, -1), keepdims=True))


def lengths(a, axis=-1):
    return np.sqrt((np.abs(wide(a)) ** 2).sum(axis=axis, keepdims=True))


def holds(condition):
    """An error that is none or infinite, of what must hold exactly."""
    return 0.0 if np.all(condition) else np.inf


def orthonormal(q, dtype):
    """The distance of columns q (..., m, n) from orthonormal ones."""
    q = wide(q)
    return over(t(q) @ q - np.eye(q.shape[-1]), 1.0, dtype)


def half(a, lower):
    """The Hermitian matrix of which one triangle of ``a`` is read."""
    a = wide(a)
    strict = np.tril(a, -1) if lower else np.triu(a, 1)
    diagonal = np.where(np.eye(a.shape[-1], dtype=bool), a.real, 0)
    return strict + t(strict) + diagonal


def near(x, expected, scale=None):
    """The distance of x from another array, element by element, over ``scale`` or the largest element."""
    x, expected = np.asarray(x), np.asarray(expected)
    if expected.dtype.kind not in "fc":
        return holds(np.array_equal(x, expected))
    return over(wide(x) - wide(expected), np.abs(wide(expected)).max(initial=0) if scale is None else scale, x.dtype)


def members(result):
    """The parts of a result, as a list."""
    return list(result) if isinstance(result, (tuple, list)) else [result]


def change(function, args, options, expected, seed, like=None, dtype=None):
    """By how many eps of its norm a result moves if each entry of the data moves by an eps of its matrix's largest.

    ``like`` restores what a row's operands must keep: symmetry, or their grading. ``dtype``, by default the
    result's, has the eps by which the data move.
    """
    rng, largest = np.random.default_rng(seed), 0.0
    known = [x.dtype for x in expected if getattr(x, "dtype", np.dtype(int)).kind in "fc"]
    dtype = np.result_type(*known, np.float32) if dtype is None else dtype
    for _ in range(2):
        given = [_moved(a, rng, like, dtype) for a in args]
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            try:
                moved = members(function(*given, **options))
            except np.linalg.LinAlgError:
                return np.inf
        largest = max(largest, *(apart(x, y, dtype) for x, y in zip(moved, expected, strict=True)))
    return largest


def _moved(a, rng, like, dtype):
    """``a`` with each entry moved by up to an eps, of the result's ``dtype``, of the largest.

    At least by a subnormal number, to which entries are rounded.
    """
    if isinstance(a, (tuple, list)):
        return type(a)(_moved(x, rng, like, dtype) for x in a)
    if not isinstance(a, np.ndarray) or a.dtype.kind not in "fciub" or not a.size:
        return a
    a = a.astype(np.result_type(a, dtype if a.dtype.kind == "c" else np.empty(0, dtype).real))
    largest = np.abs(a).max(axis=(-2, -1) if a.ndim > 1 else -1, keepdims=True)
    by = np.where(largest > 0, np.maximum(largest * unit(a.dtype), np.finfo(a.dtype).smallest_subnormal), 0)
    signs = rng.uniform(-1, 1, a.shape)
    moved = (a + by * (signs + 1j * rng.uniform(-1, 1, a.shape) if a.dtype.kind == "c" else signs)).astype(a.dtype)
    return moved if like is None or a.ndim < 2 else like(moved, a)


def symmetric(moved, a):
    """``moved`` with the symmetry that ``a`` has."""
    return (moved + t(moved)) / 2 if a.shape[-1] == a.shape[-2] and np.array_equal(a, t(a)) else moved


def graded(moved, a):
    """``a`` with each entry moved by an eps of itself."""
    by = np.abs(a).max(axis=(-2, -1), keepdims=True)
    return (a + (moved - a) * np.where(by > 0, a / np.where(by > 0, by, 1), 0)).astype(a.dtype)


def apart(x, y, dtype=None):
    """The distance of two arrays over the norm of the second, in eps of ``dtype``; per matrix of a stack."""
    dtype = np.asarray(x).dtype if dtype is None else dtype
    x, y = np.atleast_2d(wide(x)), np.atleast_2d(wide(y))
    if x.shape != y.shape:
        return np.inf
    return over(size(x - y), size(y), dtype, math.sqrt(x.shape[-2] * x.shape[-1]))


def forward(which=slice(None), like=None):
    """Errors of a result that every accurate method gives: its distance from the reference's beside ``change``."""

    def errors(call, result, theirs):
        ours, expected = members(result)[which], members(theirs)[which]
        distance = max((apart(x, y) for x, y in zip(ours, expected, strict=True)), default=0.0)
        if distance <= 4:
            return {"forward": 0.0}
        narrowed = functools.partial(_members_of, call.reference, which)
        moved = change(narrowed, call.args, call.options, expected, call.case.seed, like)
        return {"forward": distance / (1 + moved)}

    return errors


def _members_of(function, which, *args, **options):
    return members(function(*args, **options))[which]
