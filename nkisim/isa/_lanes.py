"""Elements of a tile in the form that an engine reads: one row per partition, as float32 or bit patterns."""

from __future__ import annotations

from typing import Any

import numpy as np

from nkisim.chip.context import note
from nkisim.chip.dtypes import STORAGE, Array, is_integer
from nkisim.chip.tensor import NkiTensor
from nkisim.isa._checks import INT32, refuse

FLOAT32_EXACT = 2**24  # the engines compute in float32, which represents all integers up to 2^24
UNSIGNED_OF: dict[int, np.dtype[Any]] = {1: np.dtype(np.uint8), 2: np.dtype(np.uint16), 4: np.dtype(np.uint32)}


def values(tensor: NkiTensor) -> Array:
    """Float32 values in the shape of the tile; read only. Adds a note if 32-bit integers lose digits."""
    if tensor.dtype in INT32 and inexact(tensor.read()):
        note(32, f"{tensor.dtype} values beyond 2^24 pass through float32 and lose their low digits")
    return tensor.float32()


def rows(tensor: NkiTensor) -> Array:
    """Float32 values (P, elements per partition); read only."""
    found = values(tensor)
    return found if found.ndim == 2 else found.reshape(found.shape[0], -1)


def raw_rows(tensor: NkiTensor) -> Array:
    """Values in the storage dtype (P, elements per partition); read only."""
    found = tensor.read()
    return found if found.ndim == 2 else found.reshape(found.shape[0], -1)


def bit_rows(tensor: NkiTensor) -> Array:
    """Bit patterns (P, elements per partition) as unsigned integers; read only."""
    found = raw_rows(tensor)
    bits: Array = found.view(UNSIGNED_OF[found.dtype.itemsize])
    return bits


def write_bits(dst: NkiTensor, patterns: Array) -> None:
    """Store unsigned bit patterns without a cast."""
    dst.write(np.asarray(patterns).view(STORAGE[dst.dtype]))


def scalar(value: Any) -> Any:
    """A constant as float32, or a (P, 1) tile as a float32 column."""
    if isinstance(value, NkiTensor):
        return value.float32().reshape(-1, 1)
    return np.float32(value)


def write_integers(instruction: str, dst: NkiTensor, values: Array) -> None:
    """Store int64 results of GpSimd arithmetic exactly; refuse results outside the range of the dtype."""
    if is_integer(dst.dtype):
        limits = np.iinfo(STORAGE[dst.dtype])
        low, high = int(values.min(initial=0)), int(values.max(initial=0))
        if low < limits.min or high > limits.max:
            refuse(
                instruction,
                f"the result reaches {low if low < limits.min else high}, outside {dst.dtype}; "
                "integer overflow has no documented result",
                32,
            )
        dst.write(values.astype(STORAGE[dst.dtype]))
    else:
        if inexact(values):
            note(32, f"integers beyond 2^24 lose their low digits in dst of {dst.dtype}")
        dst.write(values)


def inexact(integers: Array) -> bool:
    """Whether some integer is too large to be exact in float32."""
    return bool(integers.size) and (int(integers.max()) > FLOAT32_EXACT or int(integers.min()) < -FLOAT32_EXACT)
