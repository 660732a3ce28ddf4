"""The table of all accelerated functions of scipy.linalg and numpy.linalg."""

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
# Modules, and the names of their accelerated functions in ``scipy_ops()`` and in ``NUMPY_OPS``. A module is loaded
# when one of its functions is needed: loading all takes 45 ms, loading one takes 10 ms.
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
    "_matrix_functions": ("sqrtm logm", ""),
    "_matrix_power": ("fractional_matrix_power", "matrix_power"),
    "_multi_dot": ("", "multi_dot"),
    "_khatri_rao": ("khatri_rao", ""),
}
OF_PRODUCTS = ("_matrix_power", "_multi_dot")  # NumPy accepts any order here and computes in the operands' precision


@functools.cache
def row(name: str) -> Op:
    """The table entry of a function, given its dotted name such as "scipy.linalg.eigh"."""
    namespace, _, short = name.rpartition(".")
    module = next(m for m, names in MODULES.items() if short in names[namespace == NUMPY].split())
    loaded = importlib.import_module(f"trnpy.linalg.{module}")
    ops = loaded.NUMPY_OPS if namespace == NUMPY else loaded.scipy_ops()
    found: Op = next(op for op in ops if op.name == name)
    if namespace == SCIPY:
        return replace(found, form=form)
    return found if module in OF_PRODUCTS else replace(found, form=_in_any_order if module == "_qr" else _in_c_order)


def _rows(namespace: str) -> Iterator[Op]:
    for names in MODULES.values():
        yield from (row(f"{namespace}.{name}") for name in names[namespace == NUMPY].split())


def __getattr__(name: str) -> tuple[Op, ...]:
    if name == "OPS":
        return tuple(_rows(SCIPY))  # each function ``scipy_ops`` imports scipy.linalg
    if name == "NUMPY_OPS":
        return tuple(_rows(NUMPY))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _in_c_order(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Form:
    """The form of results of NumPy's LAPACK, computed in double: C order, single precision if all operands have it."""
    return functools.partial(_formed, _single(args, kwargs), "C")


def _in_any_order(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Form:
    return functools.partial(_formed, _single(args, kwargs), "K")


def _single(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    given = [np.asarray(x) for x in (*args, *kwargs.values()) if isinstance(x, (np.ndarray, list, tuple))]
    return np.result_type(*given).char in "fF"


def _formed(single: bool, order: Any, result: Any) -> Any:
    if isinstance(result, tuple):
        members = [_formed(single, order, x) for x in result]
        return tuple(members) if type(result) is tuple else type(result)(*members)
    if single and isinstance(result, (np.ndarray, np.inexact)) and result.dtype.char in "dD":
        result = result.astype(np.complex64 if result.dtype.char == "D" else np.float32, order=order)
    return np.asarray(result, order=order) if isinstance(result, np.ndarray) else result
