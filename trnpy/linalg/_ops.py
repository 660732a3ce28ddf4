"""Every accelerated function of scipy.linalg and numpy.linalg: the table of their rows."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from trnpy._call.decisions import Form
from trnpy._call.dispatch import Op
from trnpy.linalg._matrices import form

SCIPY, NUMPY = "scipy.linalg", "numpy.linalg"
# Modules with rows, and the names of their rows: in ``scipy_ops()``, and in ``NUMPY_OPS``. A module is loaded when one
# of its rows is asked for: all of them take 45 ms, one 10.
MODULES = {
    "_eigh": ("eigh eigvalsh", "eigh eigvalsh"),
    "_cholesky": ("cholesky cho_factor cho_solve", "cholesky"),
    "_lu": ("lu lu_factor lu_solve", ""),
    "_det": ("det", "det slogdet"),
    "_solve": ("solve", "solve"),
    "_triangular": ("solve_triangular", ""),
    "_inverse": ("inv", "inv"),
    "_qr": ("qr", "qr"),
    "_lstsq": ("lstsq", "lstsq"),
    "_svd_rows": ("svd svdvals", "svd svdvals"),
    "_pinv": ("pinv pinvh", "pinv"),
    "_polar": ("polar", ""),
    "_orth": ("orth null_space", ""),
    "_expm": ("expm", ""),
    "_sqrtm": ("sqrtm", ""),
    "_logm": ("logm", ""),
    "_matrix_power": ("fractional_matrix_power", "matrix_power"),
    "_multi_dot": ("", "multi_dot"),
    "_khatri_rao": ("khatri_rao", ""),
}
UNORDERED = ("_qr", "_matrix_power", "_multi_dot")  # in NumPy they are Python, and their results have any order


@functools.cache
def row(name: str) -> Op:
    """The row of a function by its dotted name, such as "scipy.linalg.eigh"."""
    namespace, _, short = name.rpartition(".")
    module = next(m for m, names in MODULES.items() if short in names[namespace == NUMPY].split())
    loaded = importlib.import_module(f"trnpy.linalg.{module}")
    ops = loaded.NUMPY_OPS if namespace == NUMPY else loaded.scipy_ops()
    found: Op = next(op for op in ops if op.name == name)
    if namespace == SCIPY:
        return replace(found, form=form)
    return found if module in UNORDERED else replace(found, form=_numpy_form)


def _rows(namespace: str) -> Iterator[Op]:
    for names in MODULES.values():
        yield from (row(f"{namespace}.{name}") for name in names[namespace == NUMPY].split())


def __getattr__(name: str) -> tuple[Op, ...]:
    if name == "OPS":
        return tuple(_rows(SCIPY))  # each function ``scipy_ops`` imports scipy.linalg
    if name == "NUMPY_OPS":
        return tuple(_rows(NUMPY))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _in_c_order(result: Any) -> Any:
    """A result in C order, as from NumPy's gufuncs."""
    if isinstance(result, tuple):
        ordered = [np.asarray(x, order="C") if isinstance(x, np.ndarray) else x for x in result]
        return tuple(ordered) if type(result) is tuple else type(result)(*ordered)
    return np.asarray(result, order="C") if isinstance(result, np.ndarray) else result


def _numpy_form(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Form:
    return _in_c_order
