"""Accelerated functions of scipy.linalg and numpy.linalg, with results in the form of the installed original."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from trnpy._call.decisions import Form
from trnpy._call.dispatch import Op, Problem
from trnpy.linalg._matrices import form


def scipy_function(name: str, prepare: Callable[..., Problem], **facts: Any) -> Op:
    """The row of ``scipy.linalg.name``. The original is loaded at its first use: importing SciPy takes 0.3 s."""
    return Op(f"scipy.linalg.{name}", None, prepare, form=form, **facts)


def numpy_function(name: str, prepare: Callable[..., Problem], order: str = "C", **facts: Any) -> Op:
    """The row of ``numpy.linalg.name``, whose results have the memory ``order``."""

    def of_lapack(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Form:
        # LAPACK computes in double; the result has single precision if all operands have it.
        return functools.partial(_formed, _single(args, kwargs), order)

    return Op(f"numpy.linalg.{name}", getattr(np.linalg, name), prepare, form=of_lapack, **facts)


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
