"""Other shapes of Arrays, their order and sets of their elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from trnpy.xp import _rules
from trnpy.xp._array import Array, wrapped
from trnpy.xp._common import array, like, node_of, operand_of
from trnpy.xp._graph import compute

Dtype = Any


@like(np.reshape)
def reshape(x: Array, /, shape: Sequence[int], *, copy: bool | None = None) -> Array:
    return array(_rules.reshaped(node_of(x), (shape,) if isinstance(shape, int) else shape))


@like(np.permute_dims)
def permute_dims(x: Array, /, axes: Sequence[int]) -> Array:
    return array(_rules.viewed(np.transpose, node_of(x), axes=tuple(axes)))


@like(np.matrix_transpose)
def matrix_transpose(x: Array, /) -> Array:
    return array(_rules.viewed(np.matrix_transpose, node_of(x)))


@like(np.moveaxis)
def moveaxis(x: Array, source: Any, destination: Any, /) -> Array:
    return array(_rules.viewed(np.moveaxis, node_of(x), source=source, destination=destination))


@like(np.expand_dims)
def expand_dims(x: Array, /, axis: int) -> Array:
    return array(_rules.viewed(np.expand_dims, node_of(x), axis=axis))


@like(np.squeeze)
def squeeze(x: Array, /, axis: Any) -> Array:
    return array(_rules.viewed(np.squeeze, node_of(x), axis=axis))


@like(np.flip)
def flip(x: Array, /, *, axis: Any = None) -> Array:
    return array(_rules.viewed(np.flip, node_of(x), axis=axis))


@like(np.broadcast_to)
def broadcast_to(x: Array, /, shape: Sequence[int]) -> Array:
    return array(_rules.viewed(np.broadcast_to, node_of(x), shape=tuple(shape)))


@like(np.broadcast_arrays)
def broadcast_arrays(*arrays: Array) -> list[Array]:
    nodes = [node_of(x) for x in arrays]
    shape = np.broadcast_shapes(*[n.shape for n in nodes])
    return [array(_rules.viewed(np.broadcast_to, n, shape=shape)) for n in nodes]


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
    """Indices in ascending or descending order; equal elements stay in theirs."""
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
    return tuple([array(node) for node in _rules.at_once(np.nonzero, node_of(x))])


@like(np.searchsorted)
def searchsorted(x1: Array, x2: Array, /, *, side: str = "left", sorter: Array | None = None) -> Array:
    order = None if sorter is None else np.asarray(sorter)
    return array(_rules.at_once(np.searchsorted, node_of(x1), node_of(x2), side=side, sorter=order))


@like(np.take)
def take(x: Array, indices: Array, /, *, axis: int | None = None) -> Array:
    return array(_rules.at_once(np.take, node_of(x), node_of(indices), axis=axis))


@like(np.take_along_axis)
def take_along_axis(x: Array, indices: Array, /, *, axis: int = -1) -> Array:
    return array(_rules.at_once(np.take_along_axis, node_of(x), node_of(indices), axis=axis))


def _ascending(x: np.ndarray) -> np.ndarray:
    """The values of x in ascending order, once each. ``numpy.unique_values`` has them in no order since NumPy 2.3."""
    return np.unique(x, equal_nan=False)


def _unique(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @like(getattr(np, name))
    def unique(x: Array, /) -> Any:
        return wrapped(function(np.asarray(compute(node_of(x)))))

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
