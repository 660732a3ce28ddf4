"""Views: the functions that create them, their shapes, and whether a reshape is a view."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from trnpy.xp._evaluate import item
from trnpy.xp._graph import record
from trnpy.xp._nodes import Node

Step = tuple[Callable[..., Any], Any]  # a NumPy function that makes a view, and its options; or item, and an index
_TAKES_COPY = np.lib.NumpyVersion(np.__version__) >= "2.1.0"  # reshape of NumPy 2.0 has no copy=False


def real(a: np.ndarray) -> np.ndarray:
    return a.real


def imag(a: np.ndarray) -> np.ndarray:
    return a.imag


def as_dtype(a: np.ndarray, *, dtype: np.dtype) -> np.ndarray:
    return a.view(dtype)


def called(a: np.ndarray, *, function: Callable[..., Any], args: tuple[Any, ...], kwargs: tuple[Any, ...]) -> Any:
    return function(a, *args, **dict(kwargs))


def reshaped(a: np.ndarray, *, shape: tuple[int, ...]) -> np.ndarray:
    return np.reshape(a, shape)


@functools.lru_cache(maxsize=4096)
def _memory(dtype: np.dtype) -> np.ndarray:
    return np.zeros(1, dtype)


def pattern(shape: Sequence[int], dtype: np.dtype, steps: Sequence[Step]) -> np.ndarray:
    """The result of the steps on an array in C order. Only its shape, strides and flags are meaningful."""
    strides, step = [], dtype.itemsize
    for n in reversed(shape):
        strides.append(step)
        step *= max(n, 1)
    made: Any = np.lib.stride_tricks.as_strided(_memory(dtype), shape, strides[::-1])
    for function, options in steps:
        if function is item:
            made = made[options]
        else:
            made = without_copy(made, **options) if function is reshaped else function(made, **options)
    return made  # type: ignore[no-any-return]


def without_copy(a: np.ndarray, shape: tuple[int, ...]) -> np.ndarray | None:
    """The reshaped view, or None if NumPy would copy."""
    if _TAKES_COPY:
        try:
            return np.reshape(a, shape, copy=False)
        except ValueError:
            np.reshape(np.broadcast_to(_memory(a.dtype)[0], a.shape), shape)  # raises if there is no such shape
            return None
    view = a.view()
    try:
        view.shape = shape
    except AttributeError:
        return None
    return view


def as_options(function: Callable[..., Any], options: Any) -> dict[str, Any]:
    """The options of a recorded function that is a step."""
    return {"key": options} if function is item else options


def followed(node: Node, steps: Sequence[Step]) -> Node:
    """The node of a view of a node's values."""
    for step in steps:
        function, options = step
        made = pattern(node.shape, node.dtype, () if function is reshaped else (step,))
        shape = options["shape"] if function is reshaped else made.shape
        node = record(function, (node,), as_options(function, options), shape, made.dtype)
    return node
