"""Helpers of the functions of ``trnpy.xp``: docs, operands, devices, and calls of other libraries' functions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from trnpy.xp._array import DEVICE, Array, operand, wrapped
from trnpy.xp._fields import Direct
from trnpy.xp._nodes import SCALARS


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


def direct(fast: Callable[..., Any], operands: int, *names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: call NumPy's ``fast`` for small Arrays with positional operands and only options of these names."""

    def chosen(slow: Callable[..., Any]) -> Callable[..., Any]:
        keeps = isinstance(fast, np.ufunc) and ("d" * operands + "->d") in fast.types
        found = Direct(fast, slow, operands, keeps, names)
        return found if found is slow else functools.update_wrapper(found, slow)

    return chosen


def node_of(x: Any) -> Any:
    """The node of an Array, an array or a scalar, or the values if they are small."""
    found = operand(x)
    if found is None:
        raise TypeError(f"{type(x).__name__} is neither an Array nor an array of numbers")
    return np.asarray(found) if type(found) in SCALARS else found


def operand_of(x: Any) -> Any:
    """The node or the values of an Array or an array, or a scalar."""
    found = operand(x)
    return node_of(x) if found is None else found


def array(node: Any) -> Array:
    return Array._of(node)


def view(function: Callable[..., Any], x: Any, /, **options: Any) -> Array:
    """The view that NumPy's function makes of an Array."""
    return (x if isinstance(x, Array) else Array._made(np.array(x)))._part(function, options)


def check_device(device: Any) -> None:
    if device not in (None, DEVICE):
        raise ValueError(f"device {device!r}: expected {DEVICE!r}")


def made(function: Callable[..., Any], *args: Any, device: Any = None, **options: Any) -> Array:
    check_device(device)
    return Array._made(function(*args, **options))


def at_once(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of another library's function, as Arrays; NotImplemented if no argument is one."""
    if not any(type(x) is Array for x in (*args, *kwargs.values())):
        return NotImplemented
    return wrapped(function(*plain(args), **plain(kwargs)))


def plain(x: Any) -> Any:
    """The same object with NumPy arrays in place of Arrays."""
    if isinstance(x, Array):
        values = x._ready().view()
        values.flags.writeable = False
        return values
    if isinstance(x, (tuple, list)) and not hasattr(x, "_fields"):
        return type(x)([plain(item) for item in x])
    return {name: plain(item) for name, item in x.items()} if isinstance(x, dict) else x
