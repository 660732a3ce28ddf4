"""NumPy functions of Arrays: recorded if trnpy.xp has the function and the arguments, else computed at once."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable
from inspect import Parameter
from typing import Any

import numpy as np

from trnpy.xp._array import Array, wrapped
from trnpy.xp._common import plain
from trnpy.xp._views import called

# Functions that return views of the first argument, and functions that return views if the memory layout allows it.
VIEWS = {
    np.transpose, np.swapaxes, np.moveaxis, np.rollaxis, np.squeeze, np.expand_dims, np.flip, np.flipud, np.fliplr,
    np.broadcast_to, np.diagonal, np.real, np.imag, np.permute_dims, np.matrix_transpose, np.linalg.diagonal,
    np.linalg.matrix_transpose,
}  # fmt: skip
OFTEN = {np.ravel, np.reshape, np.rot90}
OTHERWISE = ("clip", "linspace")  # unlike NumPy, these keep the dtype of x (clip) and accept only scalar limits


@functools.cache
def _ours() -> dict[Any, Callable[..., Any]]:
    """NumPy functions that trnpy.xp has under the same name. Functions of fft are computed at once in both."""
    from trnpy import xp

    found = {}
    for theirs, ours in ((np, xp), (np.linalg, xp.linalg)):
        for name in {*ours.__all__} - {*OTHERWISE}:
            function = getattr(theirs, name, None)
            if callable(function) and not isinstance(function, (type, np.ufunc)):
                found[function] = getattr(ours, name)
    return found


def call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of ``function`` if some arguments are Arrays."""
    if (function in VIEWS or function in OFTEN) and args and isinstance(args[0], Array):
        if function in OFTEN:
            args[0]._ready()
        return args[0]._part(called, {"function": function, "args": args[1:], "kwargs": tuple(kwargs.items())})
    ours = _ours().get(function)
    placed = None if ours is None else _placed(function, ours, len(args), tuple(kwargs))
    if ours is not None and placed is not None:
        given: dict[Any, Any] = dict(enumerate(args)) | kwargs
        with contextlib.suppress(TypeError, ValueError, IndexError):  # NumPy accepts more, or raises its own error
            return ours(*[given[x] for x in placed[0]], **{name: given[x] for name, x in placed[1].items()})
    if isinstance(kwargs.get("out"), Array):
        raise TypeError("out is an Array, which is not written in place")
    return wrapped(function(*plain(args), **plain(kwargs)))


@functools.lru_cache(maxsize=4096)
def _placed(
    function: Callable[..., Any], ours: Callable[..., Any], count: int, names: tuple[str, ...]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """The arguments of ``ours`` by position or name in NumPy's ``function``, for a call with ``count`` positional
    arguments and keywords ``names``. None if ``ours`` does not accept them.
    """
    try:
        theirs, signature = inspect.signature(function), inspect.signature(ours)
        kinds = [p.kind for p in signature.parameters.values()]
        room = count if Parameter.VAR_POSITIONAL in kinds else len(kinds) - kinds.count(Parameter.KEYWORD_ONLY)
        first: list[Any] = []
        rest: dict[str, Any] = {}
        for name, value in theirs.bind(*range(count), **dict(zip(names, names, strict=True))).arguments.items():
            kind = theirs.parameters[name].kind
            if kind is Parameter.VAR_POSITIONAL:
                first += value
            elif kind is Parameter.VAR_KEYWORD:
                rest |= value
            elif kind is Parameter.KEYWORD_ONLY or len(first) >= room:
                rest[name] = value
            else:
                first.append(value)
        bound = signature.bind(*first, **rest)
    except (TypeError, ValueError):
        return None
    return bound.args, bound.kwargs
