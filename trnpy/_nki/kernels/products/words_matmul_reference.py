"""The NumPy reference implementation of words_matmul.py, and the limits of its operands."""

from __future__ import annotations

import numpy as np

from trnpy._nki.kernels.products import abs_bound_reference as bound
from trnpy._nki.kernels.products import float64_matmul_reference as product
from trnpy._nki.kernels.shared.parameters import words_for
from trnpy._nki.runtime import bfloat16

NOTHING = 2.0**120
SCALE = 2.0**-64
HEADROOM = 2  # digits that a result may have above those of its operands
MOST_DIGITS = 12


def check(
    a: np.ndarray, b: np.ndarray, x: np.ndarray, y: np.ndarray, tops: tuple[int, int], turned: tuple[bool, bool],
    rows: tuple[bool, bool], digits: int, words: int,
) -> tuple[int, int, int]:  # fmt: skip
    """(m, k, n) of products that the kernel supports; raises ValueError for others."""
    if not 1 <= digits <= MOST_DIGITS or words != words_for(digits):
        raise ValueError(f"{digits} digits, {words} words: expected 1 to {MOST_DIGITS} digits and the words they take")
    extents = []
    for z, top, across, rows_are_k in ((a, tops[0], turned[0], False), (b, tops[1], turned[1], True)):
        if z.ndim != 3 or z.dtype.name not in ("int32", "bfloat16"):
            raise ValueError(f"{z.dtype}{z.shape}: expected words int32 (w, ., .) or digits bfloat16 (s, ., .)")
        if z.dtype.name == "int32" and not 1 <= top <= 4 * len(z):
            raise ValueError(f"top {top}: expected 1 to {4 * len(z)}, the bytes of an element")
        if z.dtype.name == "bfloat16" and (len(z) != digits or across):
            raise ValueError(f"{len(z)} digits, turned {across}: expected {digits}, with K on the rows")
        k_first = z.dtype.name == "bfloat16" or across != rows_are_k
        extents.append(z.shape[1:] if k_first else z.shape[:0:-1])
    (k, m), (depth, n) = extents
    if depth != k or 0 in (m, k, n):
        raise ValueError(f"a {a.shape} and b {b.shape}: expected one K, none of them empty")
    if k > product.longest_k(digits):
        raise ValueError(f"K = {k}: at most {product.longest_k(digits)} rows of {digits} digits sum in int32")
    if max(digits * m * k, digits * k * n, 2 * words * m * n) > product.LARGEST:
        raise ValueError(f"{m} x {k} x {n}: at most {product.LARGEST} digits of an operand")
    if bound.check(x, y, *rows) != (m, k, n):
        raise ValueError(f"magnitudes {x.shape} and {y.shape}: expected those of the operands, {m} x {k} x {n}")
    return m, k, n


def words_matmul(a, b, x, y, tops=(0, 0), turned=(False, False), rows=(True, True), digits=7, words=3):  # type: ignore[no-untyped-def]
    """V as words (words, m, n) with half a digit at each of the lowest digits + HEADROOM bytes, |V| SCALE, extremes.

    V = sum over i + j < s of A_i B_j 2^(8 (s-1-i-j)); of words, A_i is byte top - 1 - i less 128.
    extremes (128, 3): the largest |V|, the smallest positive one, and the smallest positive element of the product of
    the magnitudes x (m, k) and y (k, n), each turned unless ``rows``.
    """
    check(a, b, x, y, tops, turned, rows, digits, words)
    left, right = _digits_of(a, tops[0], digits, not turned[0]), _digits_of(b, tops[1], digits, turned[1])
    sums = [sum(left[i].T @ right[d - i] for i in range(d + 1)).astype(np.int64) for d in range(digits - 1, -1, -1)]
    v = product.to_words([total + 128 for total in sums[:-1]] + [sums[-1] + 0x808080], words)
    size = np.abs(integers(v, digits))
    extremes = np.empty((128, 3), np.float32)
    extremes[:] = size.max(), size.min(where=size > 0, initial=NOTHING), bound.abs_bound(x, y, *rows)[0, 0]
    return v, (size * SCALE).astype(bfloat16()), extremes


def integers(v: np.ndarray, digits: int) -> np.ndarray:
    """V of words (w, m, n) in float32: Horner's rule over halves of words, as the kernel has it."""
    places = digits + HEADROOM
    halves = v.transpose(1, 2, 0).astype("<i4", order="C").view("<u2")
    value = np.zeros(v.shape[1:], np.float32)
    for h in reversed(range(halves.shape[-1])):
        half = (128 if 2 * h < places else 0) + (128 * 256 if 2 * h + 1 < places else 0)
        value = value * np.float32(2**16) + (halves[..., h].astype(np.float32) - np.float32(half))
    return value


def _digits_of(x: np.ndarray, top: int, digits: int, turned: bool) -> np.ndarray:
    """Digits (s, K, others) in float64; places below the lowest byte are zero."""
    if x.dtype.name == "bfloat16":
        return x.astype(np.float64)
    octets = x.transpose(1, 2, 0).astype("<i4", order="C").view(np.uint8)
    places = [top - 1 - d for d in range(digits)]
    planes = np.stack([octets[..., p] - 128.0 if p >= 0 else np.zeros(x.shape[1:]) for p in places])
    return planes.swapaxes(1, 2) if turned else planes
