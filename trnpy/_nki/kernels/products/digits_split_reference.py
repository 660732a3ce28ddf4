"""The NumPy reference implementation of digits_split.py, and the limits of its operands."""

from __future__ import annotations

import ml_dtypes
import numpy as np

LARGEST = 2**30  # bytes in and elements out: 2 GiB, the limit of 32-bit byte offsets


def check(x: np.ndarray, width: int, places: tuple[int, ...]) -> tuple[int, int]:
    """(rows, columns) of the elements of a call that the kernel supports; raises ValueError for others."""
    if x.dtype != np.uint8 or x.ndim != 2 or x.size == 0 or x.shape[1] % width:
        raise ValueError(f"bytes {x.dtype}{x.shape} of width {width}: expected uint8 (rows, width columns)")
    if not places or any(not 0 <= place < width for place in places):
        raise ValueError(f"places {places}: expected bytes 0 to {width - 1}")
    rows, columns = x.shape[0], x.shape[1] // width
    if max(x.size, len(places) * rows * columns) > LARGEST:
        raise ValueError(f"{rows} x {columns} elements of {width} bytes: at most {LARGEST} bytes and digits")
    return rows, columns


def digits_split(x, width, places, turned=False, packed=False):  # type: ignore[no-untyped-def]
    """Digits (s, rows, columns), or (s, columns, rows) if turned, in bfloat16, which holds them all.

    Digit d of an element is its byte places[d], less 128. packed: (rows, s columns), digits of a row side by side.
    """
    rows, columns = check(x, width, places)
    digits = (x.reshape(rows, columns, width)[:, :, list(places)] - np.float32(128)).astype(ml_dtypes.bfloat16)
    if packed:
        return digits.transpose(0, 2, 1).reshape(rows, -1)
    return digits.transpose(2, 1, 0) if turned else digits.transpose(2, 0, 1)
