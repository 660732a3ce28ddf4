"""The NumPy reference implementation of float64_digits.py, and the limits of its operands."""

from __future__ import annotations

import numpy as np

from trnpy._nki.runtime import bfloat16

FEWEST, DIGITS = 2, 12  # with fewer than seven the last bits of significands are rounded away
COLUMNS = 8192  # most of one call: the largest of each lie on the chip
STACKED = 512  # most of each matrix of a stack
LARGEST = 2**31  # bytes in and out, the limit of 32-bit byte offsets
KEY_BITS = 13  # of the significand, beside the exponent
FIRST = 0b1111110111111  # 0x7f7f..., the largest integer of some digits, begins with one and these
FAINTEST = 128  # the least exponent of a scale: numbers of rows below it, from 2^-895 on, are not for the kernel
ONE = 1023  # the exponent of 1.0
NOT_FINITE = 2047  # the exponent of an infinity or NaN
ABOVE = 1 + 2**-8  # as in the kernel
TWO_WORDS = 7  # digits, as in the kernel
HALVES = np.uint64(0x8080808080808080)  # half a unit of the last digit, and half a digit at every place above it
SIGNIFICAND = 52
BIAS, FAINT = 127, 67 << 7  # of bfloat16: of its exponents, and the pattern of 2^-60


def check(x: np.ndarray, digits: int, top: np.ndarray | None = None, batch: int = 1) -> tuple[int, int]:
    """(rows, columns) of numbers that the kernel supports; raises ValueError for others."""
    if x.shape[0] % batch or (batch > 1 and (top is not None or x.shape[1] > 2 * STACKED)):
        raise ValueError(
            f"{x.shape[0]} rows of {batch} matrices: expected a whole number each, up to {STACKED} columns"
        )
    if top is not None and (top.shape not in ((1, 1), (x.shape[0], 1)) or top.dtype != np.float32):
        raise ValueError(f"exponent {top.dtype}{top.shape}: expected float32 (1, 1) or (rows, 1)")
    if x.dtype != np.int32 or x.ndim != 2 or x.size == 0 or x.shape[1] % 2 or x.shape[1] > 2 * COLUMNS:
        raise ValueError(f"{x.dtype}{x.shape}: expected int32 (rows, 2 columns), columns up to {COLUMNS}")
    if not FEWEST <= digits <= DIGITS or x.nbytes > LARGEST:
        raise ValueError(f"{digits} digits of {x.nbytes} bytes: expected {FEWEST} to {DIGITS} and up to {LARGEST}")
    return x.shape[0], x.shape[1] // 2


def float64_digits(x, top=None, by_rows=True, digits=7, batch=1):  # type: ignore[no-untyped-def]
    """Digits (s, C, R) or (s, R, C), magnitudes (R, C), exponents (R, 1) or (1, C) of the numbers with the words x.

    Without exponents if that of all numbers, or of each row, is ``top``. batch: x is a stack of matrices, one below
    the other, each with its own scales of columns, (batch, C).
    """
    check(x, digits, top, batch)
    if batch > 1 and not by_rows:
        parts = [float64_digits(part, None, by_rows, digits) for part in np.split(x, batch)]
        made, sizes, exponents = zip(*parts, strict=True)
        return np.concatenate(made, axis=1), np.concatenate(sizes), np.concatenate(exponents)
    bits = np.ascontiguousarray(x).view(np.uint64)
    magnitude = bits & np.uint64(2**63 - 1)
    keys = (
        (magnitude >> np.uint64(SIGNIFICAND - KEY_BITS)).astype(np.int64).max(axis=1 if by_rows else 0, keepdims=True)
    )
    first = keys & ((1 << KEY_BITS) - 1)
    more, inverse = (first >= FIRST).astype(np.int64), np.float32(1)
    whole, found = top is not None, (keys >> KEY_BITS) + more
    if not whole:
        largest = (first * np.float32(ABOVE / 2**KEY_BITS) + np.float32(ABOVE)).astype(np.float32)
        inverse = 1 / (largest * (1 - more * np.float32(0.5)).astype(np.float32))
    top = top.astype(np.int64) if whole else np.maximum(found, FAINTEST)
    behind = top - (magnitude >> np.uint64(SIGNIFICAND)).astype(np.int64) + 8 * max(TWO_WORDS - digits, 0)
    significand = magnitude & np.uint64(2**SIGNIFICAND - 1) | np.uint64(2**SIGNIFICAND)
    low, high = _shifted(significand, 8 * max(digits, TWO_WORDS) - 46, np.minimum(behind, 127).astype(np.uint64))
    negative = np.uint64(0) - (bits >> np.uint64(63))
    low, high = (low ^ negative) + HALVES, (high ^ negative) + HALVES
    high += low < HALVES
    octets = np.stack([low, high], axis=-1).view(np.uint8)[..., digits:0:-1]
    planes = (octets - np.float32(128)).astype(bfloat16())
    patterns = np.maximum((magnitude >> np.uint64(SIGNIFICAND - 7)).astype(np.int64) - (top - BIAS) * 128, FAINT)
    sizes = (np.where(magnitude > 0, patterns, 0).astype(np.uint32) << 16).view(np.float32) * inverse
    order = (2, 1, 0) if by_rows else (2, 0, 1)
    outputs = planes.transpose(order), sizes.astype(bfloat16()), found.astype(np.int32)
    return outputs[:2] if whole else outputs


def _shifted(x: np.ndarray, left: int, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """x 2^left / 2^right, truncated, in two uint64, the lower one first; right: up to 127."""
    low, high, near = x << np.uint64(left), x >> np.uint64(64 - left), right % np.uint64(64)
    low, high = np.where(right < 64, low, high), np.where(right < 64, high, np.uint64(0))
    return low >> near | high << np.uint64(1) << (np.uint64(63) - near), high >> near
