"""The device's data types: their NumPy storage and the conversions of the engines.

Conversions follow nki.api.shared.rst and the release notes of 0.6. All except bit copies pass through float32.
float32 to a narrower float rounds to nearest even; float32 to an integer rounds to nearest even and saturates.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt

from nkisim.chip.errors import SimulatorError

Array: TypeAlias = npt.NDArray[Any]

STORAGE: Mapping[str, np.dtype[Any]] = MappingProxyType(
    {
        "bool_": np.dtype(np.uint8),
        "int8": np.dtype(np.int8),
        "int16": np.dtype(np.int16),
        "int32": np.dtype(np.int32),
        "int64": np.dtype(np.int64),
        "uint8": np.dtype(np.uint8),
        "uint16": np.dtype(np.uint16),
        "uint32": np.dtype(np.uint32),
        "float16": np.dtype(np.float16),
        "float32": np.dtype(np.float32),
        "bfloat16": np.dtype(ml_dtypes.bfloat16),
        "tfloat32": np.dtype(np.float32),
        "float8_e4m3": np.dtype(ml_dtypes.float8_e4m3),
        "float8_e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
        "float8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
        "float8_e8m0fnu": np.dtype(ml_dtypes.float8_e8m0fnu),
        "float8_e5m2_x4": np.dtype(np.uint32),
        "float8_e4m3fn_x4": np.dtype(np.uint32),
        "float4_e2m1fn_x4": np.dtype(np.uint16),
    }
)
"""NumPy dtype of every device dtype; a packed type is stored as an integer that holds four elements."""

PACKED = frozenset(name for name in STORAGE if name.endswith("_x4"))
PACKED_NUMPY: Mapping[str, np.dtype[Any]] = MappingProxyType({n: np.dtype([(n, STORAGE[n])]) for n in sorted(PACKED)})
"""NumPy dtypes of packed arrays outside the device: one field, named for the type, distinguishes them from integers."""
WIDE = "int64"  # of NKI 0.7: memory holds and copies it, scalars compute with it; no engine accepts it
INTEGERS = frozenset({"bool_", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"})
FLOATS = frozenset(STORAGE) - INTEGERS - PACKED
FP32 = np.dtype(np.float32)
BF16 = np.dtype(ml_dtypes.bfloat16)
TF32_DROPPED_BITS = 13  # float32 keeps 23 bits of mantissa, tfloat32 10

# If several device dtypes share a NumPy dtype, it means the integer or float32, not the packed type or tfloat32.
_NAMES: dict[np.dtype[Any], str] = {
    **{dtype: name for name, dtype in STORAGE.items() if name not in PACKED and name not in ("tfloat32", "bool_")},
    np.dtype(np.bool_): "bool_",
    **{dtype: name for name, dtype in PACKED_NUMPY.items()},
}


def dtype_name(dtype: Any) -> str:
    """Name of a device dtype given by name or by NumPy dtype.

    Raises SimulatorError for dtypes that the device does not have (float64, uint64, complex).
    """
    if isinstance(dtype, str) and dtype in STORAGE:
        return str(dtype)
    try:
        name = _NAMES.get(np.dtype(dtype), "")
    except TypeError:
        name = ""
    if not name:
        raise SimulatorError(f"dtype {dtype!r} does not exist on the device: expected one of {', '.join(STORAGE)}")
    return name


def is_float(dtype: str) -> bool:
    return dtype in FLOATS


def is_integer(dtype: str) -> bool:
    return dtype in INTEGERS


def to_float32(values: Array) -> Array:
    """Values as float32, in which the engines compute; exact except for integers beyond 2^24."""
    if values.dtype == FP32:
        return values
    if values.dtype == BF16:
        # bfloat16 is the upper half of a float32; shifting is several times faster than ml_dtypes' cast.
        widened: Array = np.left_shift(values.view(np.uint16), np.uint32(16), dtype=np.uint32)
        return widened.view(FP32)
    return values.astype(FP32)


def convert(values: Array, dtype: str) -> Array:
    """Values cast to a device dtype: unchanged if they already have it, otherwise through float32."""
    storage = STORAGE[dtype]
    if dtype == "tfloat32":
        return _round_tfloat32(to_float32(values))
    if values.dtype == storage:
        return values
    wide = to_float32(values)
    if storage == FP32:
        return wide
    if dtype in INTEGERS:
        return _saturate(wide, storage)
    return wide.astype(storage)


def _saturate(values: Array, storage: np.dtype[Any]) -> Array:
    """Values rounded to nearest-even integers and clipped to the type's range; NaN, undocumented, becomes 0."""
    limits = np.iinfo(storage)
    rounded = np.clip(np.rint(values.astype(np.float64)), limits.min, limits.max)
    integers: Array = np.nan_to_num(rounded, nan=0.0).astype(storage)
    return integers


def _round_tfloat32(values: Array) -> Array:
    """Float32 values rounded to nearest even at 10 bits of mantissa."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    half = np.uint32((1 << (TF32_DROPPED_BITS - 1)) - 1)
    odd = (bits >> np.uint32(TF32_DROPPED_BITS)) & np.uint32(1)
    kept = np.uint32(0xFFFFFFFF ^ ((1 << TF32_DROPPED_BITS) - 1))
    rounded: Array = ((bits + half + odd) & kept).view(FP32)
    result: Array = np.where(np.isfinite(values), rounded, values)
    return result
