"""NumPy's functions of Arrays: recorded where trnpy.xp has the function and the arguments, else computed at once."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from trnpy.xp._array import Array, wrapped
from trnpy.xp._common import plain


@functools.cache
def _ours() -> dict[Any, Callable[..., Any]]:
    """NumPy's functions that trnpy.xp has under the same name."""
    from trnpy import xp

    pairs = ((np, xp), (np.linalg, xp.linalg), (np.fft, xp.fft))
    found = {}
    for theirs, ours in pairs:
        for name in ours.__all__:
            function = getattr(theirs, name, None)
            if callable(function) and not isinstance(function, (type, np.ufunc)):
                found[function] = getattr(ours, name)
    return found


def call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``function`` of arguments some of which are Arrays."""
    ours = _ours().get(function)
    if ours is not None:
        bound = _arguments(function, ours, args, kwargs)
        if bound is not None:
            return ours(*bound.args, **bound.kwargs)
    if any(isinstance(x, Array) for x in (kwargs.get("out"),)):
        raise TypeError("out is an Array, which is not written in place")
    return wrapped(function(*plain(args), **plain(kwargs)))


def _arguments(
    function: Callable[..., Any], ours: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> inspect.BoundArguments | None:
    """The arguments as ``ours`` takes them: by position first, the rest by NumPy's names; None if it has not all."""
    try:
        given = inspect.signature(function).bind(*args, **kwargs).arguments
        signature = inspect.signature(ours)
        positional = [p for p in signature.parameters.values() if p.kind is not p.KEYWORD_ONLY]
        values = list(given.items())
        first = [value for _, value in values[: len(positional)]]
        return signature.bind(*first, **dict(values[len(positional) :]))
    except (TypeError, ValueError):
        return None
