"""The shape and the dtype of a result before it is computed, and the errors that NumPy would raise.

The dtype comes from calling NumPy with arrays of one element; the error comes from calling it with broadcast arrays of
the same shapes.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_index, normalize_axis_tuple

from trnpy._einsum import rows as products
from trnpy.xp._graph import SCALARS, Node, compute, now, record
from trnpy.xp._nodes import Small, recorded, resting

Shape = tuple[int, ...]
Operand = Any  # a node, or an array whose values are known: functions of such arrays are computed at once


@functools.lru_cache(maxsize=65536)
def _zero(dtype: np.dtype) -> np.ndarray:
    return np.zeros((), dtype)


def outline(node: Operand) -> np.ndarray:
    """An array of the node's shape and dtype whose elements share one memory cell."""
    return np.broadcast_to(_zero(node.dtype), node.shape)


@functools.lru_cache(maxsize=65536)
def _probed(function: Callable[..., Any], kinds: tuple[Any, ...], options: tuple[Any, ...]) -> Any:
    """The dtype of ``function`` for arrays of one element, or a tuple of dtypes.

    A kind is a dtype and a number of dimensions, or the type of a Python scalar.
    """
    ones = [kind(1) if isinstance(kind, type) else np.ones((1,) * kind[1], kind[0]) for kind in kinds]
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings that only one element causes, such as "Degrees of freedom <= 0"
        found = function(*ones, **dict(options))
    return tuple([np.asarray(x).dtype for x in found]) if isinstance(found, tuple) else np.asarray(found).dtype


def probed(function: Callable[..., Any], /, *inputs: Any, **options: Any) -> Any:
    """The dtype, or the dtypes, of ``function`` of nodes and scalars; raises NumPy's error."""
    kinds = tuple([(x.dtype, len(x.shape)) if isinstance(x, (Node, np.ndarray)) else type(x) for x in inputs])
    return _probed(function, kinds, tuple(options.items()))


@functools.lru_cache(maxsize=65536)
def _elementwise(function: Callable[..., Any], dtypes: tuple[Any, ...], options: tuple[Any, ...]) -> np.dtype:
    found: np.dtype = _probed(function, tuple([d if isinstance(d, type) else (d, 0) for d in dtypes]), options)
    return found


SMALL_INTEGERS = range(128)  # every dtype can represent them


def elementwise(function: Callable[..., Any], *inputs: Any, **options: Any) -> Operand:
    """A function of broadcast operands: each element of the result depends on one element of each operand."""
    if not recorded(inputs):
        return now(function, inputs, options)
    kinds: list[Any] = []
    shapes: list[Shape] = []
    for x in inputs:
        if isinstance(x, (Node, np.ndarray)):
            kinds.append(x.dtype)
            shapes.append(x.shape)
        else:
            kinds.append(type(x))
            if type(x) is int and x not in SMALL_INTEGERS:
                _fits(function, inputs, options)
    dtype = _elementwise(function, tuple(kinds), tuple(options.items()) if options else ())
    shape = shapes[0] if shapes.count(shapes[0]) == len(shapes) else _broadcast(function, inputs, shapes, options)
    return record(function, inputs, options, shape, dtype)


def _broadcast(function: Callable[..., Any], inputs: tuple[Any, ...], shapes: list[Shape], options: Any) -> Shape:
    """The shape of the result; NumPy's error if there is none."""
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        function(*[outline(x) if isinstance(x, (Node, np.ndarray)) else x for x in inputs], **options)
        raise


def _fits(function: Callable[..., Any], inputs: tuple[Any, ...], options: dict[str, Any]) -> None:
    """Raise NumPy's error if the dtype cannot represent a scalar, or if the function does not accept it."""
    ones = [np.ones((), n.dtype) if isinstance(n, (Node, np.ndarray)) else n for n in inputs]
    with np.errstate(all="ignore"):
        function(*ones, **options)


def assignable(part: Any, shape: tuple[int, ...]) -> None:
    """Raise NumPy's error if values of this shape cannot be assigned to a part of an array."""
    if shape and type(part) is not np.ndarray:
        raise ValueError("setting an array element with a sequence.")
    while len(shape) > part.ndim and shape[0] == 1:  # broadcasting keeps such axes, assignment does not
        shape = shape[1:]
    try:
        fits = np.broadcast_shapes(shape, part.shape) == part.shape
    except ValueError:
        fits = False
    if not fits:
        shapes = f"shape {shape} into shape {part.shape}".replace(", ", ",")
        raise ValueError(f"could not broadcast input array from {shapes}")


def cast(x: Operand, dtype: np.dtype) -> Operand:
    if x.dtype.kind == "c" and dtype.kind not in "cb":
        raise ValueError(f"{x.dtype} has no {dtype}: take the real part")
    return record(_cast, (x,), {"dtype": dtype}, x.shape, dtype)


def _cast(x: np.ndarray, *, dtype: np.dtype) -> np.ndarray:
    return x.astype(dtype)


def known(x: Any) -> bool:
    """Whether recording a function of this operand that is not elementwise would gain nothing."""
    return not isinstance(x, Node) or (x.value is not None and Small.elements > 0 and resting())


def at_once(function: Callable[..., Any], /, *inputs: Any, **options: Any) -> Any:
    """The result of a function whose shape depends on values, as an array or a tuple of arrays."""
    found = now(function, tuple([compute(x) for x in inputs]), options)
    return tuple(found) if isinstance(found, list) else found


def same_shape(function: Callable[..., Any], x: Operand, /, **options: Any) -> Operand:
    """A result as long as x along each axis."""
    if known(x) or not x.shape or 0 in x.shape:
        return at_once(function, x, **options)
    return record(function, (x,), options, x.shape, probed(function, x, **options))


def reduced(function: Callable[..., Any], x: Operand, axis: Any, keepdims: bool, **options: Any) -> Operand:
    """A reduction along ``axis``; None: along all axes."""
    options = {"axis": axis, "keepdims": keepdims, **options}
    if known(x) or not x.shape or 0 in x.shape:
        return at_once(function, x, **options)
    dtype = probed(function, x, **options)  # raises for a wrong axis
    axes = range(len(x.shape)) if axis is None else normalize_axis_tuple(axis, len(x.shape))
    if keepdims:
        shape = tuple([1 if i in axes else n for i, n in enumerate(x.shape)])
    else:
        shape = tuple([n for i, n in enumerate(x.shape) if i not in axes])
    return record(function, (x,), options, shape, dtype)


def _product(extents: Sequence[int]) -> int:
    size = 1
    for n in extents:
        size *= n
    return size


def _joined(*arrays: Any, join: Callable[..., Any], **options: Any) -> Any:
    return join(arrays, **options)


def joined(join: Callable[..., Any], nodes: Sequence[Operand], axis: Any) -> Operand:
    """np.concatenate or np.stack."""
    if any(0 in node.shape for node in nodes) or all(map(known, nodes)):
        return at_once(_joined, *nodes, join=join, axis=axis)
    first = nodes[0].shape
    if axis is None and join is np.concatenate:
        shape: Shape = (sum(_product(node.shape) for node in nodes),)
        fits = True
    elif join is np.stack:
        axis = normalize_axis_index(axis, len(first) + 1)
        shape = (*first[:axis], len(nodes), *first[axis:])
        fits = all(node.shape == first for node in nodes)
    else:
        axis = normalize_axis_index(axis, len(first))
        shape = (*first[:axis], sum(node.shape[axis] for node in nodes if len(node.shape) > axis), *first[axis + 1 :])
        fits = all(
            len(n.shape) == len(first) and n.shape[:axis] + n.shape[axis + 1 :] == first[:axis] + first[axis + 1 :]
            for n in nodes
        )
    if not fits:
        join([np.broadcast_to(_zero(np.dtype(bool)), node.shape) for node in nodes], axis=axis)
    dtype = np.result_type(*[node.dtype for node in nodes])
    return record(_joined, tuple(nodes), {"join": join, "axis": axis}, shape, dtype)


def product(function: Callable[..., Any], a: Operand, b: Operand, shape: Shape | None, **options: Any) -> Operand:
    """A product of two arrays; ``shape`` of the result is None if the operands do not match."""
    if shape is None or 0 in a.shape or 0 in b.shape or (known(a) and known(b)):
        return at_once(function, a, b, **options)
    return record(function, (a, b), options, shape, np.result_type(a.dtype, b.dtype))


def matmul_shape(a: Shape, b: Shape) -> Shape | None:
    if not a or not b or a[-1] != b[-2 if len(b) > 1 else -1]:
        return None
    try:
        stack = np.broadcast_shapes(a[:-2], b[:-2])
    except ValueError:
        return None
    return (*stack, *a[-2:-1], *(b[-1:] if len(b) > 1 else ()))


def matmul(a: Operand, b: Operand) -> Operand:
    return product(products.matmul, a, b, matmul_shape(a.shape, b.shape))


def members(
    function: Callable[..., Any], inputs: tuple[Any, ...], shapes: Sequence[Shape], dtypes: Sequence[np.dtype],
    **options: Any,
) -> tuple[Operand, ...]:  # fmt: skip
    """The results of a function with several results."""
    if all(map(known, inputs)):
        return at_once(function, *inputs, **options)  # type: ignore[no-any-return]
    whole = record(function, inputs, options, (), np.dtype(object))
    return tuple([
        record(_member, (whole, i), {}, shape, dtype)
        for i, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=True))
    ])  # fmt: skip


def _member(results: tuple[np.ndarray, ...], i: int) -> np.ndarray:
    return results[i]


def scalar(x: Any) -> bool:
    return type(x) in SCALARS
