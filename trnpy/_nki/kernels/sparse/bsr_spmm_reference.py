"""The NumPy reference implementation of bsr_spmm.py, and the limits of its operands."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from trnpy._nki.kernels.products.float64_matmul_reference import to_words

TILE = 128
COLUMNS = 2048  # of X for numbers: four PSUM banks
DIGIT_COLUMNS = 512  # of X for digits: one
SLOTS = 4096  # products of one launch
ROWS = 2048  # block rows of one launch: a result of 2 GiB
LARGEST = 2**31  # bytes of one operand, the limit of 32-bit byte offsets
LONGEST = 64  # tiles of a row, which is written out; their sums of digits are exact


def check(tiles: np.ndarray, x: np.ndarray, left_at: np.ndarray, right_at: np.ndarray, length: int, digits: int) -> int:
    """N of a product that the kernel supports; raises ValueError for others."""
    planes, most = max(digits, 1), DIGIT_COLUMNS if digits else COLUMNS
    if tiles.ndim != 2 or x.ndim != 2 or tiles.shape[1] != planes * TILE or tiles.shape[0] % TILE or not tiles.size:
        raise ValueError(f"tiles {tiles.shape} of {digits} digits: expected (T 128, {planes * TILE})")
    n = int(x.shape[1]) // planes
    if x.shape[0] % TILE or not x.size or n * planes != x.shape[1]:
        raise ValueError(f"x {x.shape} of {digits} digits: expected (C 128, {planes} N)")
    formats = ("bfloat16",) if digits else ("float32", "bfloat16", "float64")  # float64: of the twin alone
    if tiles.dtype != x.dtype or tiles.dtype.name not in formats:
        raise ValueError(f"tiles {tiles.dtype} and x {x.dtype}: expected float32 or bfloat16, of digits bfloat16")
    if n > most or max(tiles.nbytes, x.nbytes) > LARGEST:
        raise ValueError(f"tiles {tiles.shape} and x {x.shape}: expected at most {most} columns, {LARGEST} bytes each")
    slots = right_at.shape[-1]
    if not 0 < length <= LONGEST or slots % length or not 0 < slots <= SLOTS or slots > ROWS * length:
        raise ValueError(f"{slots} products in rows of {length}: expected at most {SLOTS}, {ROWS} rows, {LONGEST} each")
    if right_at.shape != (1, slots) or left_at.shape not in ((1, slots), (1, slots // length)):
        raise ValueError(f"places {left_at.shape} and {right_at.shape}: expected (1, slots), or one left of each row")
    return n


def bsr_spmm(  # type: ignore[no-untyped-def]
    tiles,
    x,
    left_at,
    right_at,
    length,
    unit=4,
    digits=0,
    words=3,
    least=False,
    turned=False,
    product: Callable[..., np.ndarray] = np.matmul,
):
    """A X, row by row: numbers in float32, digits as two's complement words; ``least``: its smallest positive.

    Of numbers in float64, which no device has, the result is in float64.
    """
    n = check(tiles, x, left_at, right_at, length, digits)
    planes = max(digits, 1)
    right = (right_at // (TILE * x.shape[1])).reshape(-1, length)
    left = (left_at // (TILE * tiles.shape[1])).reshape(len(right), -1)
    if left.shape != right.shape:
        left = left + np.arange(length)
    wide = np.float64 if digits or tiles.dtype == np.float64 else np.float32
    lefts = tiles.astype(wide, copy=False).reshape(-1, TILE, planes, TILE).transpose(2, 0, 1, 3)
    lefts = lefts if turned else lefts.swapaxes(-1, -2)
    rights = x.astype(wide, copy=False).reshape(-1, TILE, planes, n).transpose(2, 0, 1, 3)
    total = np.zeros((planes, len(right), TILE, n), wide)
    for r in range(len(right)):
        for d in range(planes):
            for i in range(d + 1):
                total[d, r] += product(lefts[i, left[r]], rights[d - i, right[r]]).sum(axis=0)
    if digits:
        sums = list(total.reshape(digits, -1, n).astype(np.int64))
        return to_words(sums[::-1], words)
    c = total.reshape(-1, n)
    if least:
        positive = c[c > 0]
        return np.full((1, 1), positive.min() if positive.size else 2.0**100, np.float32)
    return c
