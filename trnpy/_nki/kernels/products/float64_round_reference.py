"""The NumPy reference implementation of float64_round.py, and the limits of its operands."""

from __future__ import annotations

import numpy as np

from trnpy._nki.runtime import bfloat16

COLUMNS = 8192  # most of one call: their exponents lie on the chip
LARGEST = 2**31  # bytes in and out, the limit of 32-bit byte offsets
BIASED = 1021
LOWEST, HIGHEST = -1021, 1024  # sums of exponents of a row and a column, and of the bits of an integer, lie between


STACKED = 512  # columns of each matrix of a stack, at most
PART = 16  # of the exponents of columns of a stack: its multiples and the rest are exact in bfloat16


def check(
    v: np.ndarray, rows: np.ndarray, columns: np.ndarray, places: int = 0, batch: int = 1
) -> tuple[int, int, int]:
    """(words, M, N) of a call that the kernel supports; raises ValueError for others."""
    if not 0 <= places <= 4 * len(v):
        raise ValueError(f"{places} places: expected up to {4 * len(v)}, the bytes of an element")
    if v.dtype != np.int32 or v.ndim != 3 or not 2 <= len(v) <= 4 or v.size == 0 or v.shape[2] > COLUMNS:
        raise ValueError(f"integers {v.dtype}{v.shape}: expected int32 (2 to 4, M, N), N up to {COLUMNS}")
    words, m, n = v.shape
    if batch > 1 and (m % batch or n > STACKED):
        raise ValueError(f"{m} rows of {batch} matrices: expected a whole number each, up to {STACKED} columns")
    expected = ((1, n), "float32") if batch == 1 else ((2, batch * n), "bfloat16")
    if rows.shape != (m, 1) or rows.dtype != np.float32 or (columns.shape, columns.dtype.name) != expected:
        raise ValueError(f"exponents {rows.dtype}{rows.shape} and {columns.dtype}{columns.shape}: expected float32")
    if max(4 * words, 8) * m * n > LARGEST:
        raise ValueError(f"{m} x {n}: at most {LARGEST} bytes")
    return words, m, n


def float64_round(v, rows, columns, places=0, batch=1):  # type: ignore[no-untyped-def]
    """(M, 2 N) int32, the words of the float64 numbers V 2^(rows + columns).

    V is v without half a digit at each of the lowest ``places`` bytes. batch: of a stack of matrices, one below the
    other, with exponents of columns in two parts, (2, batch N).
    """
    words, m, n = check(v, rows, columns, places, batch)
    if batch > 1:
        columns = np.repeat(columns.astype(np.float32).sum(axis=0).reshape(batch, n), m // batch, axis=0)
    v = _without_halves(v, places) if places else v
    sign = (v[-1] < 0).astype(np.uint32) * np.uint32(2**32 - 1)
    parts = [x.view(np.uint32) ^ sign for x in v]
    place = np.full((m, n), 32 * words + BIASED)
    for jump in range(1, words + 1):
        zero = parts[-1] == 0
        parts = [np.where(zero, below, here) for below, here in zip([sign, *parts], parts, strict=False)]
        place = np.where(zero, 32 * (words - jump) + BIASED, place)
    supply = parts[-3] if words > 2 else sign
    shift = np.minimum(32 - np.frexp(parts[-1].astype(np.float64))[1], 31).astype(np.uint64)
    window = parts[-1].astype(np.uint64) << np.uint64(32) | parts[-2]
    behind = supply.astype(np.uint64) >> np.uint64(1) >> (np.uint64(31) - shift)
    window = window << shift | behind
    exponent = (place - shift.astype(np.int64) + rows.astype(np.int64) + columns.astype(np.int64)).astype(np.uint64)
    found = (window >> np.uint64(11)) + (window >> np.uint64(10) & np.uint64(1)) + (exponent << np.uint64(52))
    found |= (sign.astype(np.uint64) & np.uint64(1)) << np.uint64(63)
    return np.where(parts[-1] > 0, found, np.uint64(0)).view(np.int32).reshape(m, 2 * n)


def in_parts(columns: np.ndarray, dtype: np.dtype | None = None) -> np.ndarray:
    """Exponents of columns of a stack (batch, N) as the kernel reads them, (2, batch N) bfloat16, or ``dtype``."""
    flat = columns.reshape(-1)
    return np.stack([flat - flat % PART, flat % PART]).astype(dtype or bfloat16())


def _without_halves(v: np.ndarray, places: int) -> np.ndarray:
    """Words less 128 at each of the lowest ``places`` bytes."""
    found, borrow = [], np.int64(0)
    for w, word in enumerate(v):
        less = sum(128 << 8 * i for i in range(4) if 4 * w + i < places)
        left = word.view(np.uint32).astype(np.int64) - less + borrow
        found.append(left.astype(np.uint32).view(np.int32))
        borrow = left >> 32
    return np.stack(found)
