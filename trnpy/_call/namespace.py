"""The names that a module of trnpy re-exports from the NumPy or SciPy module of the same path."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

from trnpy._call.dispatch import Op, accelerated
from trnpy._call.docstrings import documented


def public(module: ModuleType, lazy: Iterable[str] = ()) -> dict[str, Any]:
    """The public objects of ``module`` by name, except the submodules in ``lazy``, which a look-up would import."""
    return {name: getattr(module, name) for name in dir(module) if not name.startswith("_") and name not in lazy}


def settled(functions: Iterable[Callable[..., Any]], module: str) -> dict[str, Callable[..., Any]]:
    """``functions`` by name, with ``module`` as their ``__module__``, so that pickle finds them there."""
    for function in functions:
        function.__module__, function.__qualname__ = module, function.__name__
    return {function.__name__: function for function in functions}


def rows(ops: Iterable[Op], module: str) -> dict[str, Callable[..., Any]]:
    """The accelerated functions of ``ops`` by name, with ``module`` as their ``__module__``."""
    functions = []
    for op in ops:
        function = accelerated(op)
        function.__name__ = op.name.rpartition(".")[2]  # the __name__ of f2py's functions is "function dgemm"
        function.__doc__ = documented(op)
        functions.append(function)
    return settled(functions, module)
