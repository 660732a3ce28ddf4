"""The part of neuron_dtypes, the package of NumPy data types that comes with nki, that reference code uses.

A packed type holds four elements. Its NumPy dtype has one field with the type's name, to distinguish it from the
integer that stores it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np

from nkisim.chip.dtypes import PACKED, PACKED_NUMPY, STORAGE, Array, dtype_name, is_float, is_integer
from nkisim.chip.errors import SimulatorError

ELEMENTS: Mapping[str, np.dtype[Any]] = MappingProxyType(
    {
        "float8_e4m3fn_x4": np.dtype(ml_dtypes.float8_e4m3fn),
        "float8_e5m2_x4": np.dtype(ml_dtypes.float8_e5m2),
        "float4_e2m1fn_x4": np.dtype(ml_dtypes.float4_e2m1fn),
    }
)

globals().update({name: dtype for name, dtype in STORAGE.items() if name not in PACKED} | dict(PACKED_NUMPY))


def static_cast(array: Array, dtype: Any) -> Array:
    """Values in another dtype; a packed type stands for four elements along the last dimension."""
    values = np.asarray(array)
    if values.dtype.names:
        values = _unpacked(values)
    name = "" if dtype in (np.float64, float, "float64") else dtype_name(dtype)
    if name in PACKED:
        return _packed(values, name)
    target = STORAGE[name] if name else np.dtype(np.float64)
    if name and is_integer(name) and values.dtype.kind not in "iub":
        limits = np.iinfo(target)
        return np.clip(np.rint(values.astype(np.float64)), limits.min, limits.max).astype(target)
    return values.astype(target)


def is_float_type(dtype: Any) -> bool:
    try:
        return is_float(dtype_name(dtype))
    except SimulatorError:
        return bool(np.dtype(dtype).kind == "f")


def sizeinbytes(dtype: Any) -> int:
    return STORAGE[dtype_name(dtype)].itemsize


def finfo(dtype: Any) -> Any:
    return ml_dtypes.finfo(STORAGE[dtype_name(dtype)])  # type: ignore[no-untyped-call]


def _packed(values: Array, name: str) -> Array:
    elements = np.ascontiguousarray(values.astype(np.float32)).astype(ELEMENTS[name])
    codes = elements.view(np.uint8)
    if name == "float4_e2m1fn_x4":
        codes = (codes[..., 0::2] | (codes[..., 1::2] << 4)).astype(np.uint8)
    return np.ascontiguousarray(codes).view(PACKED_NUMPY[name])


def _unpacked(values: Array) -> Array:
    (name,) = values.dtype.names or ("",)
    codes = np.ascontiguousarray(values).view(np.uint8)
    if name == "float4_e2m1fn_x4":
        codes = np.stack((codes & 15, codes >> 4), axis=-1).reshape(*codes.shape[:-1], -1)
    return np.ascontiguousarray(codes).view(ELEMENTS[name]).astype(np.float32)
