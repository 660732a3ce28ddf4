"""Functions that create Arrays from other objects, and functions of dtypes."""

from __future__ import annotations

from typing import Any

import numpy as np

from trnpy._base.records import record
from trnpy.xp import _rules
from trnpy.xp._array import Array, may_change, wrapped
from trnpy.xp._common import array, check_device, like, made, node_of, plain

Dtype = Any


def asarray(obj: Any, /, *, dtype: Dtype = None, device: Any = None, copy: bool | None = None) -> Array:
    """An Array from a NumPy array, nested sequences, a scalar, or an object with ``__dlpack__`` or a buffer.

    Parameters
    ----------
    obj : Array, array_like
        An array that may change later is copied; one that is not writeable is kept.
    dtype : dtype, optional
        The dtype of the Array; by default NumPy's choice.
    device : "trnpy", optional
        The only device. Each operation is sent to a Trainium or the host separately.
    copy : bool, optional
        False: raise if a copy is needed.

    Returns
    -------
    Array

    Raises
    ------
    ValueError
        If a copy is needed and `copy` is False, or for another device.
    TypeError
        If the elements are neither numbers nor booleans.

    Examples
    --------
    >>> import trnpy
    >>> trnpy.asarray([1, 2]) + 0.5
    Array([1.5, 2.5])
    """
    check_device(device)
    if isinstance(obj, Array):
        if dtype is None or np.dtype(dtype) == obj.dtype:
            return obj.copy() if copy else obj
        if copy is False:
            raise ValueError("a copy is needed for another dtype")
        return astype(obj, dtype)
    given = isinstance(obj, np.ndarray)
    if not given and isinstance(obj, (list, tuple)):
        obj = _without_arrays(obj)
    values = np.asarray(obj, dtype=dtype, copy=False if copy is False else None)
    if values.dtype.kind not in "biufc":
        raise TypeError(f"Unsupported dtype {values.dtype}: an Array has booleans or numbers")
    fresh = values is not obj and values.base is None and values.flags.owndata
    if copy is False and not fresh and values.flags.writeable:
        raise ValueError("an array that may change is copied: make it read-only, or allow a copy")
    values = np.asarray(values)
    if copy or (not fresh and may_change(values)):
        return Array._copied(values)
    return Array._made(values, lent=not fresh)


def _without_arrays(obj: Any) -> Any:
    if isinstance(obj, (list, tuple)):
        return [_without_arrays(x) for x in obj]
    return obj._ready() if isinstance(obj, Array) else obj


def arange(
    start: float, /, stop: float | None = None, step: float = 1, *, dtype: Dtype = None, device: Any = None
) -> Array:
    """Evenly spaced numbers in [start, stop), as ``numpy.arange``."""
    bounds = (0, start) if stop is None else (start, stop)
    return made(np.arange, *bounds, step, dtype=dtype, device=device)


def linspace(
    start: complex, stop: complex, /, num: int, *, dtype: Dtype = None, device: Any = None, endpoint: bool = True
) -> Array:
    """``num`` evenly spaced numbers from start to stop, as ``numpy.linspace``."""
    return made(np.linspace, *plain((start, stop)), num, dtype=dtype, endpoint=endpoint, device=device)


def empty(shape: Any, *, dtype: Dtype = None, device: Any = None) -> Array:
    """An Array whose values are not set, as ``numpy.empty``."""
    return made(np.empty, shape, dtype=dtype, device=device)


def zeros(shape: Any, *, dtype: Dtype = None, device: Any = None) -> Array:
    """An Array of zeros, as ``numpy.zeros``."""
    return made(np.zeros, shape, dtype=dtype, device=device)


def ones(shape: Any, *, dtype: Dtype = None, device: Any = None) -> Array:
    """An Array of ones, as ``numpy.ones``."""
    return made(np.ones, shape, dtype=dtype, device=device)


def full(shape: Any, fill_value: complex, *, dtype: Dtype = None, device: Any = None) -> Array:
    """An Array of one value, as ``numpy.full``."""
    return made(np.full, shape, fill_value, dtype=dtype, device=device)


def eye(n_rows: int, n_cols: int | None = None, /, *, k: int = 0, dtype: Dtype = None, device: Any = None) -> Array:
    """Ones on diagonal k, zeros elsewhere, as ``numpy.eye``."""
    return made(np.eye, n_rows, n_cols, k=k, dtype=dtype, device=device)


def _same(x: Any, dtype: Dtype) -> tuple[tuple[int, ...], Dtype]:
    return x.shape, x.dtype if dtype is None else dtype


def empty_like(x: Array, /, *, dtype: Dtype = None, device: Any = None) -> Array:
    """An Array of the shape of x whose values are not set, as ``numpy.empty_like``."""
    return empty(x.shape, dtype=_same(x, dtype)[1], device=device)


def zeros_like(x: Array, /, *, dtype: Dtype = None, device: Any = None) -> Array:
    """Zeros of the shape of x, as ``numpy.zeros_like``."""
    return zeros(x.shape, dtype=_same(x, dtype)[1], device=device)


def ones_like(x: Array, /, *, dtype: Dtype = None, device: Any = None) -> Array:
    """Ones of the shape of x, as ``numpy.ones_like``."""
    return ones(x.shape, dtype=_same(x, dtype)[1], device=device)


def full_like(x: Array, /, fill_value: complex, *, dtype: Dtype = None, device: Any = None) -> Array:
    """One value in the shape of x, as ``numpy.full_like``."""
    return full(x.shape, fill_value, dtype=_same(x, dtype)[1], device=device)


def from_dlpack(x: Any, /, *, device: Any = None, copy: bool | None = None) -> Array:
    """An Array from another library's array through DLPack; a copy, unless the memory is read-only."""
    check_device(device)
    if isinstance(x, Array):
        return x
    values = np.from_dlpack(x)
    if copy is False and may_change(values):
        raise BufferError("an array that may change is copied")
    return Array._made(values, lent=True) if copy is False else Array._copied(values)


def meshgrid(*arrays: Array, indexing: str = "xy") -> list[Array]:
    """Coordinates of a grid, as ``numpy.meshgrid``."""
    return list(wrapped(np.meshgrid(*plain(arrays), indexing=indexing)))  # type: ignore[call-overload]


@like(np.tril)
def tril(x: Array, /, *, k: int = 0) -> Array:
    return array(_rules.same_shape(np.tril, node_of(x), k=k))


@like(np.triu)
def triu(x: Array, /, *, k: int = 0) -> Array:
    return array(_rules.same_shape(np.triu, node_of(x), k=k))


def astype(x: Array, dtype: Dtype, /, *, copy: bool = True, device: Any = None) -> Array:
    """The Array in another dtype, as ``numpy.astype``."""
    check_device(device)
    return array(_rules.cast(node_of(x), np.dtype(dtype))) if copy or x.dtype != np.dtype(dtype) else x


def can_cast(from_: Any, to: Dtype, /) -> bool:
    """Whether one dtype can be cast to another, as ``numpy.can_cast``."""
    return bool(np.can_cast(from_.dtype if isinstance(from_, Array) else from_, to))


def result_type(*arrays_and_dtypes: Any) -> np.dtype:
    """The dtype of a result of these operands, as ``numpy.result_type``."""
    found: np.dtype = np.result_type(*[_outlined(x) for x in arrays_and_dtypes])
    return found


def _outlined(x: Any) -> Any:
    return x.dtype if isinstance(x, Array) else x


@record()
class Limits:
    """The attributes of ``numpy.finfo`` for a floating dtype, as Python scalars."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: np.dtype


def finfo(type: Any, /) -> Limits:
    """Limits of a floating dtype, or of the parts of a complex one, as ``numpy.finfo``."""
    found = np.finfo(_outlined(type))
    eps, largest, least, normal = (float(x) for x in (found.eps, found.max, found.min, found.smallest_normal))
    return Limits(found.bits, eps, largest, least, normal, np.dtype(found.dtype))


def iinfo(type: Any, /) -> np.iinfo:
    """Limits of an integer dtype, as ``numpy.iinfo``."""
    return np.iinfo(_outlined(type))


def isdtype(dtype: Dtype, kind: Any) -> bool:
    """Whether a dtype is of a kind, as ``numpy.isdtype``."""
    return bool(np.isdtype(dtype, kind))


__all__ = [
    "arange",
    "asarray",
    "astype",
    "can_cast",
    "empty",
    "empty_like",
    "eye",
    "finfo",
    "from_dlpack",
    "full",
    "full_like",
    "iinfo",
    "isdtype",
    "linspace",
    "meshgrid",
    "ones",
    "ones_like",
    "result_type",
    "tril",
    "triu",
    "zeros",
    "zeros_like",
]
