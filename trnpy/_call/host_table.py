"""The only module that reads the table of ``_host/``. If that folder is absent, calls run NumPy and SciPy unchanged."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

from trnpy._base.records import record
from trnpy._call.fast_path import UNSEEN

Look = Callable[[tuple[Any, ...], dict[str, Any]], bool | Callable[..., Any]]


@record()
class HostRoute:
    """The CPU fast paths of one accelerated function, and the applicability check for them."""

    # The applicability check: a cheap test of the arguments. It returns False to call the original function, True if
    # there may be a fast path, or a function that computes the original's result and is called at once.
    look: Look
    # Returns the problem, with its fast path, if the check returned True: (the row's own ``prepare``, *args, **kwargs).
    prepare: Callable[..., Any]
    # ``look`` never returns True for up to four positional arguments if the product of all array sizes is at most this.
    # An empty array counts as one element.
    unseen: int = UNSEEN
    # Returns a function with the original's result and less overhead for the given arguments; None if there is none.
    direct: Callable[[tuple[Any, ...], dict[str, Any]], Callable[..., Any] | None] | None = None
    # Whether ``look`` reads only dtypes, shapes and options of such arguments, and whether an array is given twice in
    # a row. Its result is then the same for all calls with one cache key.
    fixed: Callable[[tuple[Any, ...], dict[str, Any]], bool] = lambda args, kwargs: False


@functools.cache
def host_entry(name: str) -> Any:
    """The table's entry ``name``: the HostRoute of a row, or a function; None if there is no entry."""
    try:
        module = importlib.import_module("trnpy._host").TABLE.get(name)
    except ModuleNotFoundError as why:
        if why.name != "trnpy._host":
            raise
        return None
    return None if module is None else importlib.import_module(f"trnpy._host.{module}").ROUTES[name]
