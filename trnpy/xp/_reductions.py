"""Sums, extrema and other functions along axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from trnpy.xp import _rules
from trnpy.xp._array import Array
from trnpy.xp._common import array, direct, like, node_of

Dtype = Any

NAMES = ("prepend", "append")


@direct(np.sum, 1, "axis", "keepdims", "dtype")
@like(np.sum)
def sum(x: Array, /, *, axis: Any = None, dtype: Dtype = None, keepdims: bool = False) -> Array:
    return array(_rules.reduced(np.sum, node_of(x), axis, keepdims, dtype=dtype))


@direct(np.prod, 1, "axis", "keepdims", "dtype")
@like(np.prod)
def prod(x: Array, /, *, axis: Any = None, dtype: Dtype = None, keepdims: bool = False) -> Array:
    return array(_rules.reduced(np.prod, node_of(x), axis, keepdims, dtype=dtype))


@direct(np.max, 1, "axis", "keepdims")
@like(np.max)
def max(x: Array, /, *, axis: Any = None, keepdims: bool = False) -> Array:
    return array(_rules.reduced(np.max, node_of(x), axis, keepdims))


@direct(np.min, 1, "axis", "keepdims")
@like(np.min)
def min(x: Array, /, *, axis: Any = None, keepdims: bool = False) -> Array:
    return array(_rules.reduced(np.min, node_of(x), axis, keepdims))


@direct(np.mean, 1, "axis", "keepdims")
@like(np.mean)
def mean(x: Array, /, *, axis: Any = None, keepdims: bool = False) -> Array:
    return array(_rules.reduced(np.mean, node_of(x), axis, keepdims))


@direct(np.std, 1, "axis", "keepdims", "correction")
@like(np.std)
def std(x: Array, /, *, axis: Any = None, correction: float = 0.0, keepdims: bool = False) -> Array:
    return array(_rules.reduced(np.std, node_of(x), axis, keepdims, ddof=correction))


@direct(np.var, 1, "axis", "keepdims", "correction")
@like(np.var)
def var(x: Array, /, *, axis: Any = None, correction: float = 0.0, keepdims: bool = False) -> Array:
    return array(_rules.reduced(np.var, node_of(x), axis, keepdims, ddof=correction))


@direct(np.all, 1, "axis", "keepdims")
@like(np.all)
def all(x: Array, /, *, axis: Any = None, keepdims: bool = False) -> Array:
    return array(_rules.reduced(np.all, node_of(x), axis, keepdims))


@direct(np.any, 1, "axis", "keepdims")
@like(np.any)
def any(x: Array, /, *, axis: Any = None, keepdims: bool = False) -> Array:
    return array(_rules.reduced(np.any, node_of(x), axis, keepdims))


@direct(np.argmax, 1, "axis", "keepdims")
@like(np.argmax)
def argmax(x: Array, /, *, axis: int | None = None, keepdims: bool = False) -> Array:
    return array(_rules.reduced(np.argmax, node_of(x), axis, keepdims))


@direct(np.argmin, 1, "axis", "keepdims")
@like(np.argmin)
def argmin(x: Array, /, *, axis: int | None = None, keepdims: bool = False) -> Array:
    return array(_rules.reduced(np.argmin, node_of(x), axis, keepdims))


@direct(np.count_nonzero, 1, "axis", "keepdims")
@like(np.count_nonzero)
def count_nonzero(x: Array, /, *, axis: Any = None, keepdims: bool = False) -> Array:
    return array(_rules.reduced(np.count_nonzero, node_of(x), axis, keepdims))


def _cumulative(x: Array, function: Callable[..., Any], axis: int | None, dtype: Dtype, initial: bool) -> Array:
    node = node_of(x)
    if axis is None:
        if len(node.shape) > 1:
            raise ValueError("axis is needed for more than one dimension")
        axis = 0
    return array(_rules.at_once(_accumulated, node, function=function, axis=axis, dtype=dtype, initial=initial))


def _accumulated(x: np.ndarray, *, function: Callable[..., Any], axis: int, dtype: Dtype, initial: bool) -> np.ndarray:
    """np.cumsum or np.cumprod; with ``initial``, after a leading 0 or 1."""
    found: np.ndarray = function(x, axis=axis, dtype=dtype)
    if not initial:
        return found
    shape = list(found.shape)
    shape[axis] = 1  # also if x is a scalar, for which NumPy returns one dimension
    first = np.full(shape, 1 if function is np.cumprod else 0, found.dtype)
    return np.concatenate([first, found], axis=axis)


@like(np.cumsum)
def cumulative_sum(
    x: Array, /, *, axis: int | None = None, dtype: Dtype = None, include_initial: bool = False
) -> Array:
    return _cumulative(x, np.cumsum, axis, dtype, include_initial)


@like(np.cumprod)
def cumulative_prod(
    x: Array, /, *, axis: int | None = None, dtype: Dtype = None, include_initial: bool = False
) -> Array:
    return _cumulative(x, np.cumprod, axis, dtype, include_initial)


def _difference(x: np.ndarray, *ends: Any, given: tuple[bool, bool], axis: int, n: int) -> np.ndarray:
    left = iter(ends)
    before, after = (
        {name: next(left)} if there else {} for name, there in zip(("prepend", "append"), given, strict=True)
    )
    return np.diff(x, axis=axis, n=n, **before, **after)


@like(np.diff)
def diff(x: Array, /, n: int = 1, axis: int = -1, prepend: Array | None = None, append: Array | None = None) -> Array:
    ends = [node_of(e) for e in (prepend, append) if e is not None]
    given = (prepend is not None, append is not None)
    return array(_rules.at_once(_difference, node_of(x), *ends, given=given, axis=axis, n=n))


__all__ = [
    "all",
    "any",
    "argmax",
    "argmin",
    "count_nonzero",
    "cumulative_prod",
    "cumulative_sum",
    "diff",
    "max",
    "mean",
    "min",
    "prod",
    "std",
    "sum",
    "var",
]
