"""What the functions of ``trnpy.xp`` have in common: docs, operands, devices; and those of others, called at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from trnpy.xp._array import DEVICE, Array, operand, wrapped
from trnpy.xp._graph import Node, leaf


def like(function: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: the summary of NumPy's ``function`` as the doc."""

    def documented(ours: Callable[..., Any]) -> Callable[..., Any]:
        summary = next((line.strip() for line in _text(function) if line.strip()), "")
        ours.__doc__ = f"{summary}\n\nRecorded, and computed when the result is read: ``numpy.{function.__name__}``."
        ours.__module__ = "trnpy.xp"
        return ours

    return documented


def _text(function: Callable[..., Any]) -> list[str]:
    """The doc of a function without the signatures that ufuncs begin with."""
    lines = (function.__doc__ or "").splitlines()
    return lines[2:] if isinstance(function, np.ufunc) else lines


def node_of(x: Any) -> Node:
    """The node of an Array or an array; a scalar becomes one."""
    found = operand(x)
    if found is None:
        raise TypeError(f"{type(x).__name__} is neither an Array nor an array of numbers")
    return found if isinstance(found, Node) else leaf(np.asarray(found), copy=False)


def operand_of(x: Any) -> Any:
    """The node of an Array or an array, or a scalar."""
    found = operand(x)
    return node_of(x) if found is None else found


def array(node: Node) -> Array:
    return Array._of(node)


def check_device(device: Any) -> None:
    if device not in (None, DEVICE):
        raise ValueError(f"device {device!r}: known is {DEVICE!r}")


def made(function: Callable[..., Any], *args: Any, device: Any = None, **options: Any) -> Array:
    check_device(device)
    return Array._of(leaf(function(*args, **options), copy=False))


def at_once(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of another library's function, as Arrays; NotImplemented if no argument is one."""
    if not any(type(x) is Array for x in (*args, *kwargs.values())):
        return NotImplemented
    return wrapped(function(*plain(args), **plain(kwargs)))


def plain(x: Any) -> Any:
    """The same with NumPy's arrays in the place of Arrays."""
    if isinstance(x, Array):
        return np.asarray(x)
    if isinstance(x, (tuple, list)) and not hasattr(x, "_fields"):
        return type(x)([plain(item) for item in x])
    return {name: plain(item) for name, item in x.items()} if isinstance(x, dict) else x
