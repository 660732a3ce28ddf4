"""What trnpy's modules take over from the NumPy or SciPy module of the same path."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

from trnpy._call.dispatch import Op, accelerated


def public(module: ModuleType, lazy: Iterable[str] = ()) -> dict[str, Any]:
    """Public names of ``module`` and its own objects; not the submodules in ``lazy``, which a look-up would import."""
    return {name: getattr(module, name) for name in dir(module) if not name.startswith("_") and name not in lazy}


def settled(functions: Iterable[Callable[..., Any]], module: str) -> dict[str, Callable[..., Any]]:
    """``functions`` by name, at home in ``module``: pickled they are found there, not where they came from."""
    for function in functions:
        function.__module__, function.__qualname__ = module, function.__name__
    return {function.__name__: function for function in functions}


def rows(ops: Iterable[Op], module: str) -> dict[str, Callable[..., Any]]:
    """The accelerated functions of ``ops``, at home in ``module``."""
    functions = []
    for op in ops:
        function = accelerated(op)
        function.__name__ = op.name.rpartition(".")[2]  # f2py's call themselves "function dgemm"
        functions.append(function)
    return settled(functions, module)
