"""Functions that reshape, join, sort and search Arrays, and sets of their elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from trnpy.xp import _rules
from trnpy.xp._array import Array, wrapped
from trnpy.xp._common import array, like, node_of, operand_of, plain, view
from trnpy.xp._graph import compute

Dtype = Any


@like(np.reshape)
def reshape(x: Array, /, shape: Sequence[int], *, copy: bool | None = None) -> Array:
    return _reshaped(x, (shape,) if isinstance(shape, int) else shape, copy)


def _reshaped(x: Any, shape: Sequence[int], copy: bool | None) -> Array:
    given = x if isinstance(x, Array) else array(node_of(x))
    found = given._reshaped(shape)
    if copy:
        return found.copy() if found._base is not None else found
    if copy is False and found._base is None:
        raise ValueError("this shape needs a copy")
    return found


@like(np.permute_dims)
def permute_dims(x: Array, /, axes: Sequence[int]) -> Array:
    return view(np.transpose, x, axes=tuple(axes))


@like(np.matrix_transpose)
def matrix_transpose(x: Array, /) -> Array:
    return view(np.matrix_transpose, x)


@like(np.moveaxis)
def moveaxis(x: Array, source: Any, destination: Any, /) -> Array:
    return view(np.moveaxis, x, source=source, destination=destination)


@like(np.expand_dims)
def expand_dims(x: Array, /, axis: int) -> Array:
    return view(np.expand_dims, x, axis=axis)


@like(np.squeeze)
def squeeze(x: Array, /, axis: Any) -> Array:
    return view(np.squeeze, x, axis=axis)


@like(np.flip)
def flip(x: Array, /, *, axis: Any = None) -> Array:
    return view(np.flip, x, axis=axis)


@like(np.broadcast_to)
def broadcast_to(x: Array, /, shape: Sequence[int]) -> Array:
    return view(np.broadcast_to, x, shape=tuple(shape))


@like(np.broadcast_arrays)
def broadcast_arrays(*arrays: Array) -> list[Array]:
    shape = np.broadcast_shapes(*[np.shape(x) for x in arrays])
    if all(np.shape(x) == shape for x in arrays):  # NumPy returns them unchanged and writable
        return [x if isinstance(x, Array) else array(node_of(x)) for x in arrays]
    return [view(np.broadcast_to, x, shape=shape) for x in arrays]


@like(np.roll)
def roll(x: Array, /, shift: Any, *, axis: Any = None) -> Array:
    return array(_rules.same_shape(np.roll, node_of(x), shift=shift, axis=axis))


@like(np.concatenate)
def concat(arrays: Sequence[Array], /, *, axis: int | None = 0) -> Array:
    return array(_rules.joined(np.concatenate, [node_of(x) for x in arrays], axis))


@like(np.stack)
def stack(arrays: Sequence[Array], /, *, axis: int = 0) -> Array:
    return array(_rules.joined(np.stack, [node_of(x) for x in arrays], axis))


def unstack(x: Array, /, *, axis: int = 0) -> tuple[Array, ...]:
    """The pieces of an Array along an axis."""
    if not x.ndim:
        raise ValueError("an array without dimensions has no pieces")
    return tuple(moveaxis(x, axis, 0))


@like(np.repeat)
def repeat(x: Array, repeats: Any, /, *, axis: int | None = None) -> Array:
    return array(_rules.at_once(np.repeat, node_of(x), operand_of(repeats), axis=axis))


@like(np.tile)
def tile(x: Array, repetitions: Sequence[int], /) -> Array:
    return array(_rules.at_once(np.tile, node_of(x), reps=tuple(repetitions)))


def _sorted(x: np.ndarray, *, axis: int, descending: bool, stable: bool) -> np.ndarray:
    found = np.sort(x, axis=axis, stable=stable)
    return np.flip(found, axis=axis) if descending else found


def _order(x: np.ndarray, *, axis: int, descending: bool, stable: bool) -> np.ndarray:
    """Indices that sort in ascending or descending order; equal elements keep their order."""
    if not descending:
        return np.argsort(x, axis=axis, stable=stable)
    turned = np.argsort(np.flip(x, axis=axis), axis=axis, stable=stable)
    return np.asarray(x.shape[axis] - 1 - np.flip(turned, axis=axis))


@like(np.sort)
def sort(x: Array, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Array:
    return array(_rules.same_shape(_sorted, node_of(x), axis=axis, descending=descending, stable=stable))


@like(np.argsort)
def argsort(x: Array, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Array:
    return array(_rules.same_shape(_order, node_of(x), axis=axis, descending=descending, stable=stable))


@like(np.nonzero)
def nonzero(x: Array, /) -> tuple[Array, ...]:
    if not node_of(x).shape:  # NumPy 2.0 only warns in this case
        raise ValueError("Calling nonzero on 0d arrays is not allowed. Use np.atleast_1d(scalar).nonzero() instead.")
    return tuple([array(node) for node in _rules.at_once(np.nonzero, node_of(x))])


@like(np.searchsorted)
def searchsorted(x1: Array, x2: Array, /, *, side: str = "left", sorter: Array | None = None) -> Array:
    order = None if sorter is None else plain(sorter)
    return array(_rules.at_once(np.searchsorted, node_of(x1), node_of(x2), side=side, sorter=order))


@like(np.take)
def take(x: Array, indices: Array, /, *, axis: int | None = None) -> Array:
    return array(_rules.at_once(np.take, node_of(x), node_of(indices), axis=axis))


@like(np.take_along_axis)
def take_along_axis(x: Array, indices: Array, /, axis: int = -1) -> Array:  # SciPy 1.15 passes axis by position
    return array(_rules.at_once(np.take_along_axis, node_of(x), node_of(indices), axis=axis))


def _ascending(x: np.ndarray) -> np.ndarray:
    """The distinct values of x in ascending order. ``numpy.unique_values`` does not sort since NumPy 2.3."""
    return np.unique(x, equal_nan=False)


def _unique(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @like(getattr(np, name))
    def unique(x: Array, /) -> Any:
        return wrapped(function(compute(node_of(x))))

    unique.__name__ = unique.__qualname__ = name
    return unique


unique_all = _unique("unique_all", np.unique_all)
unique_counts = _unique("unique_counts", np.unique_counts)
unique_inverse = _unique("unique_inverse", np.unique_inverse)
unique_values = _unique("unique_values", _ascending)


__all__ = [
    "argsort",
    "broadcast_arrays",
    "broadcast_to",
    "concat",
    "expand_dims",
    "flip",
    "matrix_transpose",
    "moveaxis",
    "nonzero",
    "permute_dims",
    "repeat",
    "reshape",
    "roll",
    "searchsorted",
    "sort",
    "squeeze",
    "stack",
    "take",
    "take_along_axis",
    "tile",
    "unique_all",
    "unique_counts",
    "unique_inverse",
    "unique_values",
    "unstack",
]
