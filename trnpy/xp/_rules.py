"""The shape and the dtype of a result before it is computed, and the errors that NumPy would raise then.

A dtype is what NumPy returns for arrays of one element; an error is what it raises for arrays of the same shapes that
have no memory of their own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_index, normalize_axis_tuple

from trnpy._einsum import rows as products
from trnpy.xp._graph import SCALARS, Node, compute, leaf, record

Shape = tuple[int, ...]


@functools.lru_cache(maxsize=65536)
def _zero(dtype: np.dtype) -> np.ndarray:
    return np.zeros((), dtype)


def outline(node: Node) -> np.ndarray:
    """An array of the node's shape and dtype in which all elements are one."""
    return np.broadcast_to(_zero(node.dtype), node.shape)


@functools.lru_cache(maxsize=65536)
def _probed(function: Callable[..., Any], kinds: tuple[Any, ...], options: tuple[Any, ...]) -> Any:
    """What ``function`` returns for arrays of one element: a dtype, or a tuple of them.

    A kind is a dtype and a number of dimensions, or a type of Python's scalars.
    """
    ones = [kind(1) if isinstance(kind, type) else np.ones((1,) * kind[1], kind[0]) for kind in kinds]
    with np.errstate(all="ignore"):
        found = function(*ones, **dict(options))
    return tuple([np.asarray(x).dtype for x in found]) if isinstance(found, tuple) else np.asarray(found).dtype


def probed(function: Callable[..., Any], /, *inputs: Any, **options: Any) -> Any:
    """The dtype, or the dtypes, of ``function`` of nodes and scalars; raises what NumPy raises for it."""
    kinds = tuple([(x.dtype, len(x.shape)) if isinstance(x, Node) else type(x) for x in inputs])
    return _probed(function, kinds, tuple(options.items()))


@functools.lru_cache(maxsize=65536)
def _elementwise(function: Callable[..., Any], dtypes: tuple[Any, ...], options: tuple[Any, ...]) -> np.dtype:
    found: np.dtype = _probed(function, tuple([d if isinstance(d, type) else (d, 0) for d in dtypes]), options)
    return found


SMALL_INTEGERS = range(128)  # those that every dtype holds


def elementwise(function: Callable[..., Any], *inputs: Any, caller: int = 3, **options: Any) -> Node:
    """Broadcast operands, one element of each for one of the result."""
    shape: Shape | None = None
    kinds: list[Any] = []
    for x in inputs:
        if isinstance(x, Node):
            kinds.append(x.dtype)
            shape = x.shape if shape is None or x.shape == shape else np.broadcast_shapes(shape, x.shape)
        else:
            kinds.append(type(x))
            if type(x) is int and x not in SMALL_INTEGERS:
                _fits(function, inputs, options)
    dtype = _elementwise(function, tuple(kinds), tuple(options.items()) if options else ())
    assert shape is not None
    return record(function, inputs, options, shape, dtype, caller)


def _fits(function: Callable[..., Any], inputs: tuple[Any, ...], options: dict[str, Any]) -> None:
    """Raise what NumPy raises for a scalar that the dtype does not hold, or that the function does not take."""
    ones = [np.ones((), n.dtype) if isinstance(n, Node) else n for n in inputs]
    with np.errstate(all="ignore"):
        function(*ones, **options)


def cast(x: Node, dtype: np.dtype, *, caller: int = 3) -> Node:
    if x.dtype.kind == "c" and dtype.kind not in "cb":
        raise ValueError(f"{x.dtype} has no {dtype}: take the real part")
    return record(_cast, (x,), {"dtype": dtype}, x.shape, dtype, caller)


def _cast(x: np.ndarray, *, dtype: np.dtype) -> np.ndarray:
    return x.astype(dtype)


def at_once(function: Callable[..., Any], /, *inputs: Any, **options: Any) -> Any:
    """The result of a function whose shape depends on values: computed now, as a node or a tuple of nodes."""
    values = [compute(x) if isinstance(x, Node) else x for x in inputs]
    found = function(*values, **options)
    if isinstance(found, (tuple, list)):
        return tuple([leaf(np.asarray(x), copy=False) for x in found])
    return leaf(np.asarray(found), copy=False)


def same_shape(function: Callable[..., Any], x: Node, /, *, caller: int = 3, **options: Any) -> Node:
    """A result as long as x along each axis."""
    if not x.shape or 0 in x.shape:
        return at_once(function, x, **options)  # type: ignore[no-any-return]
    return record(function, (x,), options, x.shape, probed(function, x, **options), caller)


def reduced(
    function: Callable[..., Any], x: Node, axis: Any, keepdims: bool, *, caller: int = 3, **options: Any
) -> Node:
    """One element for all along ``axis``; None: along all axes."""
    options = {"axis": axis, "keepdims": keepdims, **options}
    if not x.shape or 0 in x.shape:
        return at_once(function, x, **options)  # type: ignore[no-any-return]
    dtype = probed(function, x, **options)  # raises for a wrong axis
    axes = range(len(x.shape)) if axis is None else normalize_axis_tuple(axis, len(x.shape))
    if keepdims:
        shape = tuple([1 if i in axes else n for i, n in enumerate(x.shape)])
    else:
        shape = tuple([n for i, n in enumerate(x.shape) if i not in axes])
    return record(function, (x,), options, shape, dtype, caller)


def viewed(function: Callable[..., Any], x: Node, /, *, caller: int = 3, **options: Any) -> Node:
    """A result that NumPy makes as a view: the shape is found on one of an array without memory."""
    shape = function(outline(x), **options).shape
    return record(function, (x,), options, shape, x.dtype, caller)


def reshaped(x: Node, shape: Sequence[int], *, caller: int = 3) -> Node:
    wanted = tuple([int(n) for n in shape])
    size = _product(x.shape)
    if wanted.count(-1) == 1 and (known := -_product(wanted)) > 0 and size % known == 0:
        wanted = tuple([size // known if n == -1 else n for n in wanted])
    if _product(wanted) != size or min(wanted, default=0) < 0:
        np.reshape(outline(x), wanted)
        raise ValueError(f"cannot reshape array of size {size} into shape {wanted}")
    return record(np.reshape, (x,), {"shape" if _TAKES_SHAPE else "newshape": wanted}, wanted, x.dtype, caller)


_TAKES_SHAPE = np.lib.NumpyVersion(np.__version__) >= "2.1.0"  # 2.0 names this argument newshape


def _product(extents: Sequence[int]) -> int:
    size = 1
    for n in extents:
        size *= n
    return size


def _joined(*arrays: Any, join: Callable[..., Any], **options: Any) -> Any:
    return join(arrays, **options)


def joined(join: Callable[..., Any], nodes: Sequence[Node], axis: Any, *, caller: int = 3) -> Node:
    """np.concatenate or np.stack."""
    if not nodes or any(0 in node.shape for node in nodes):
        return at_once(_joined, *nodes, join=join, axis=axis)  # type: ignore[no-any-return]
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
    return record(_joined, tuple(nodes), {"join": join, "axis": axis}, shape, dtype, caller)


def product(
    function: Callable[..., Any], a: Node, b: Node, shape: Shape | None, *, caller: int = 3, **options: Any
) -> Node:
    """A product of two arrays; ``shape`` of the result is None if the operands do not match."""
    if shape is None or 0 in a.shape or 0 in b.shape:
        return at_once(function, a, b, **options)  # type: ignore[no-any-return]
    return record(function, (a, b), options, shape, np.result_type(a.dtype, b.dtype), caller)


def matmul_shape(a: Shape, b: Shape) -> Shape | None:
    if not a or not b or a[-1] != b[-2 if len(b) > 1 else -1]:
        return None
    try:
        stack = np.broadcast_shapes(a[:-2], b[:-2])
    except ValueError:
        return None
    return (*stack, *a[-2:-1], *(b[-1:] if len(b) > 1 else ()))


def matmul(a: Node, b: Node, *, caller: int = 3) -> Node:
    return product(products.matmul, a, b, matmul_shape(a.shape, b.shape), caller=caller + 1)


def members(
    function: Callable[..., Any], inputs: tuple[Any, ...], shapes: Sequence[Shape], dtypes: Sequence[np.dtype], *,
    caller: int = 3, **options: Any,
) -> tuple[Node, ...]:  # fmt: skip
    """The results of a function that has several."""
    whole = record(function, inputs, options, (), np.dtype(object), caller)
    return tuple([
        record(_member, (whole, i), {}, shape, dtype, caller)
        for i, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=True))
    ])  # fmt: skip


def _member(results: tuple[np.ndarray, ...], i: int) -> np.ndarray:
    return results[i]


def scalar(x: Any) -> bool:
    return type(x) in SCALARS
