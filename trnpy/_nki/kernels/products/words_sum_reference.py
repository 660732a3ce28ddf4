"""The NumPy reference implementation of words_sum.py, and the limits of its operands."""

from __future__ import annotations

import numpy as np

from trnpy._nki.kernels.products import float64_matmul_reference as product
from trnpy._nki.kernels.products.words_matmul_reference import NOTHING, SCALE, integers
from trnpy._nki.kernels.shared.parameters import words_for
from trnpy._nki.runtime import bfloat16

MOST_PLACES = 13  # of a sum: then four words hold it
FEWEST_PLACES = 6  # three words
MOST_FACTOR = 1 << 15
Places = tuple[tuple[int, ...], tuple[int, ...]]


def check(x: np.ndarray, y: np.ndarray, factors: tuple[int, int], places: Places, words: int) -> tuple[int, int]:
    """(rows, columns) of sums that the kernel supports; raises ValueError for others."""
    digits = len(places[0])
    if len(places[1]) != digits or not FEWEST_PLACES <= digits <= MOST_PLACES or words != words_for(digits):
        raise ValueError(f"{digits} and {len(places[1])} digits, {words} words: expected {FEWEST_PLACES} to 13 of both")
    wide = [z for z in (x, y) if z.ndim == 3]
    if not wide or any(z.dtype.name != ("int32" if z.ndim == 3 else "uint8") for z in (x, y)):
        raise ValueError(f"{x.dtype}{x.shape} and {y.dtype}{y.shape}: expected words int32 of one, words or bytes")
    rows, columns = wide[0].shape[1:]
    for z, of, factor in zip((x, y), places, factors, strict=True):
        size = 4 * len(z) if z.ndim == 3 else z.shape[1] // columns
        if z.shape[-2] != rows or (z.shape[2] != columns if z.ndim == 3 else z.shape[1] % columns):
            raise ValueError(f"{x.shape} and {y.shape}: expected elements of one matrix")
        if not all(-1 <= p < size for p in of) or factor != int(factor) or abs(factor) >= MOST_FACTOR:
            raise ValueError(f"places {of} of {size} bytes, factor {factor}: expected integers below {MOST_FACTOR}")
    if max(x.nbytes, y.nbytes, 4 * words * rows * columns) > product.LARGEST:
        raise ValueError(f"{rows} x {columns}: at most {product.LARGEST} bytes")
    return rows, columns


def words_sum(x, y, factors, places, words=3):  # type: ignore[no-untyped-def]
    """Words of p X + q Y with half a digit at each of the lowest bytes, |V| SCALE, and extremes as of words_matmul."""
    rows, columns = check(x, y, factors, places, words)
    digits = len(places[0])
    sums = [np.full((rows, columns), 0x808080 if e == digits - 1 else 128, np.int64) for e in range(digits)]
    for z, of, factor in zip((x, y), places, factors, strict=True):
        octets = z.transpose(1, 2, 0).astype("<i4", order="C").view(np.uint8) if z.ndim == 3 else z
        octets = octets.reshape(rows, columns, -1)
        for e, p in enumerate(of):
            if p >= 0:
                sums[e] += int(factor) * (octets[..., p].astype(np.int64) - 128)
    v = product.to_words(sums, words)
    size = np.abs(integers(v, digits))
    extremes = np.empty((128, 2), np.float32)
    extremes[:] = size.max(), size.min(where=size > 0, initial=NOTHING)
    return v, (size * SCALE).astype(bfloat16()), extremes
