"""The one place that reads the table of ``_host/``. Without that folder, calls are as right and as fast as NumPy's."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from typing import Any

from trnpy._base.records import record
from trnpy._call.fast_path import UNSEEN

Look = Callable[[tuple[Any, ...], dict[str, Any]], bool | Callable[..., Any]]


@record()
class HostRoute:
    """How calls of one row find another way to the reference's result on the host."""

    # A cheap test of the arguments. It returns False: call the reference; True: there may be another host route; or a
    # function that does what the reference does with such arguments: call it at once.
    look: Look
    # The problem of a call whose look gave True, with its route: (the row's own ``prepare``, *args, **kwargs).
    prepare: Callable[..., Any]
    # ``look`` is never true for at most four positional arguments if the sizes of all arrays multiply to at most this;
    # an empty array counts as one element.
    unseen: int = UNSEEN
    # The function that does with given arguments what the reference does, and with less overhead; None if none does.
    direct: Callable[[tuple[Any, ...], dict[str, Any]], Callable[..., Any] | None] | None = None
    # Whether ``look`` reads no more of such arguments than dtypes, shapes and options: then it answers alike for all
    # calls of a kind. Calls with bools are looked at each time.
    fixed: Callable[[tuple[Any, ...], dict[str, Any]], bool] = lambda args, kwargs: False


@functools.cache
def _table() -> Mapping[str, str]:
    try:
        table: Mapping[str, str] = importlib.import_module("trnpy._host").TABLE
    except ModuleNotFoundError as why:
        if why.name != "trnpy._host":
            raise
        return {}
    return table


@functools.cache
def host_entry(name: str) -> Any:
    """What the table has under ``name``: the HostRoute of a row, or a function; None if nothing."""
    module = _table().get(name)
    return None if module is None else importlib.import_module(f"trnpy._host.{module}").ROUTES[name]
