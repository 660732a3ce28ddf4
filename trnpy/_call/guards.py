"""Conditions on the operands of a device path or CPU fast path. If one is not met, the original function runs."""

from __future__ import annotations

import cmath
import contextvars
import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from trnpy._call.dispatch import Reason, Unsupported
from trnpy._engine.abstract_arrays import usual

c_einsum: Callable[..., Any]
try:
    # numpy.einsum calls this for plain arrays without options, but its overhead is as long as a small contraction.
    from numpy._core.multiarray import c_einsum
except ImportError:  # in another version of NumPy it has another place
    c_einsum = np.einsum

# A context in which floating-point errors give no warnings; entering it takes a tenth of the time of errstate.
QUIET = contextvars.Context()
QUIET.run(np.seterr, all="ignore")


def array(a: Any, mapped: bool = True) -> np.ndarray:
    """``a`` as an array: exactly a numpy.ndarray, nested lists and numbers, or a memory map if ``mapped``."""
    if type(a) is np.ndarray:
        return a
    if mapped and type(a) is np.memmap:
        return a.view(np.ndarray)
    if isinstance(a, (list, tuple, int, float, complex, np.generic)):
        return np.asarray(a)
    raise Unsupported(Reason.SUBCLASS, f"{type(a).__name__} is not exactly a numpy.ndarray")


def plain(a: Any) -> Any:
    """``a`` as a plain array if its subclass does not override NumPy's functions; otherwise ``a`` itself."""
    kind = type(a)
    inherits = isinstance(a, np.ndarray) and kind.__array_function__ is np.ndarray.__array_function__
    return np.asarray(a) if inherits and kind is not np.ndarray else a


def floating(*arrays: np.ndarray) -> np.dtype:
    """The dtype of products of ``arrays``, in native byte order."""
    # result_type, not the operands' own dtypes: NumPy computes float32 with float64 in float64.
    dtype, supported = _promoted(*[a.dtype for a in arrays])
    if not supported:
        raise Unsupported(Reason.DTYPE, f"dtype {dtype} has no device path")
    return dtype


@functools.cache
def _promoted(*dtypes: np.dtype) -> tuple[np.dtype, bool]:
    dtype = np.result_type(*dtypes).newbyteorder("=")
    return dtype, dtype.char in "fdFD"


def all_finite(a: np.ndarray) -> bool:
    """Whether ``a`` of inexact numbers has neither infs nor NaNs."""
    if not a.ndim:
        return cmath.isfinite(a.item())
    flat = a.ravel("K")
    # A sum takes two thirds of the time of isfinite. If it is finite, all elements are; if not, it may have overflowed.
    # NumPy's loop computes it: threads of NumPy's BLAS would delay those of SciPy's BLAS (tests/test_pools.py).
    parts = flat if flat.dtype.kind == "f" else flat.view(flat.real.dtype)
    return cmath.isfinite(c_einsum("i->", parts)) or bool(np.isfinite(flat).all())


def finite(*arrays: np.ndarray) -> None:
    """Refuse infs and NaNs: the original function handles them."""
    for a in arrays:
        if not usual(np.isfinite(a).all(), True):
            raise Unsupported(Reason.VALUE, "infs or NaNs")


def output(out: Any, shape: tuple[int, ...], dtype: np.dtype, inputs: tuple[np.ndarray, ...]) -> None:
    """Refuse an ``out`` that is not a plain array of the result's shape and dtype, apart from the operands."""
    if type(out) is not np.ndarray:
        raise Unsupported(Reason.SUBCLASS, f"out is {type(out).__name__}, not exactly a numpy.ndarray")
    if out.shape != shape or out.dtype != dtype or not out.flags.writeable or not out.flags.c_contiguous:
        raise Unsupported(
            Reason.LAYOUT, f"out is {out.dtype} {out.shape}, not a writeable C-contiguous {dtype} {shape}"
        )
    if any(np.may_share_memory(out, a) for a in inputs):
        raise Unsupported(Reason.LAYOUT, "out may overlap an operand")
