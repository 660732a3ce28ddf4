"""The names that a module of trnpy re-exports from the NumPy or SciPy module of the same path, and their docstrings."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

import numpy as np

from trnpy._call.dispatch import Op, accelerated

EXACT = "integers, bool, float16"  # the dtypes of products that are multiplied without rounding, or in float32
SECTION = re.compile(r"^(\w[\w ]*)\n-{3,}$", re.MULTILINE)  # the first ends the description


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


def documented(op: Op) -> str | None:
    """The original function's docstring with a paragraph about trnpy at the end of its description."""
    text = op.reference.__doc__
    if not text or not op.dtypes:
        return text
    text = inspect.cleandoc(text)
    first = SECTION.search(text)
    end = len(text) if first is None else first.start()
    return "\n\n".join(part for part in (text[:end].rstrip(), _paragraph(op), text[end:]) if part)


def _paragraph(op: Op) -> str:
    names = [np.dtype(c).name for c in op.dtypes if c in "fdFD"]
    if "?" in op.dtypes:
        names.insert(0, EXACT)
    dtypes = " and ".join([", ".join(names[:-1])] * (len(names) > 1) + names[-1:])
    return textwrap.fill(
        f"In trnpy a Trainium computes such calls on operands of {dtypes} if that is faster; results are checked, "
        f"and in float64 as accurate as on the host. All other calls are those of ``{op.name}``. `trnpy.explain` shows "
        f"where a call would run, and `trnpy.policy` changes it.",
        width=79,
    )
