"""Ozaki splitting: float64 matrices as integer slices ("digits") of eight bits, and back, on the host.

Ozaki's scheme I with a common exponent per row of A and column of B (Ootomo, Ozaki, Yokota, arXiv 2306.11975):
A = 2^-sa sum_i D_i 256^(s-1-i) with digits in [-128, 127], which bf16 holds exactly. Products of digits of one
significance i + j = d are summed exactly in float32 over short enough blocks of K. Errors:
docs/digits.md#digits-and-error; the choice of the number s of digits: docs/digits.md#certificate.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from trnpy._base.records import record
from trnpy._engine.abstract_arrays import TWO_BYTES, priced
from trnpy._nki.runtime import bfloat16
from trnpy._settings.tile import area

FLOAT64, BYTE = np.dtype(np.float64), np.dtype(np.uint8)
BITS = 8  # of one digit: bf16's significand
BASE = 1 << BITS
DIGITS = 7  # 28 products: as accurate as dgemm if the entries of a row are of similar size
MOST_DIGITS = 12  # with more digits the host's product is cheaper
WORD = 7  # digits per int64: eight would leave no room for a carry
# Digits of eight bits -> digits of seven bits with the same range, among the numbers that float64_matmul supports.
NARROW: Mapping[int, int] = MappingProxyType({1: 2, 2: 3, 3: 4, 4: 6, 5: 6, 6: 7, 7: 8, 8: 11, 9: 11, 10: 12, 11: 13})
OFFSET = 0x80  # added to every byte: a byte minus 128 is a balanced digit
ACCUMULATOR = 24  # bits that a float32 sum keeps exactly
TOLERANCE = 4.0  # in u of |A||B|: the a-priori bound on the error of a product (docs/digits.md#certificate: 2.86)
BOUND_SLACK = 1.02  # float32 sums and SMALLEST_MAGNITUDE may make the bound's |A||B| too large by this factor
FAINT = 2.0**-19  # of the largest; entries above it in both operands span at most 2^38: 12 digits suffice up to K = 256
MOST_PARTS = 3  # of one operand: entries near 1, rounding errors near 1e-17, and products of those with small numbers
NEGLIGIBLE = 2.0**-59  # of |A||B|: smaller products of parts are omitted; nine of them add up to 0.2 u
FEWEST = 2  # digits of a product of parts, because ``assemble`` needs at least two words
NOTHING = 2.0**100  # means "no positive sum"; it is larger than any sum, as in kernels/abs_bound
STRIP = area(1 << 16)  # elements that are converted at once, half a megabyte (docs/digits.md#digits)
FIRST_BITS = 2.0**14  # of the largest number determine its exponent, here and in float64_digits
SAFE_EXPONENT = 1000  # powers of two up to it, and their inverses, are normal numbers
SMALLEST_MAGNITUDE = 2.0**-60  # of the largest in a row; its square is a normal float32, far below 2^-42, the last rho


@record()
class Split:
    """Digits of a matrix as int64 words, most significant first, and the exponents that scale them.

    words[0] holds the first WORD digits, words[1] the rest. a = (word0 + word1 256^-(s-WORD) ...) 2^-shift, with
    ``shift`` (rows, 1) or (1, columns).
    """

    words: tuple[np.ndarray, ...]
    shift: np.ndarray
    digits: int
    bits: int = BITS  # of one digit

    @property
    def places(self) -> tuple[int, ...]:
        """The index in ``bytes`` of each digit, most significant first."""
        return _places(self.digits, self.bits)

    def bytes(self) -> np.ndarray:
        """The words as sent to the device, uint8 (rows, columns, 8 or 16): each byte minus 128 is a balanced digit.

        Digits of fewer than eight bits do not lie on byte boundaries of a word, so each is extracted to its own byte.
        """
        if self.bits != BITS:
            return _taken_out(self)
        offset = np.uint64(sum(OFFSET << (BITS * i) for i in range(8)))
        found = np.empty((*self.words[0].shape, len(self.words)), np.uint64)
        for i, word in enumerate(self.words):
            np.add(word.view(np.uint64), offset, out=found[..., i])
        return found.view(np.uint8)  # little-endian

    def planes(self) -> np.ndarray:
        """The digits themselves, most significant first: int8 (digits, rows, columns)."""
        return np.moveaxis((self.bytes()[..., list(self.places)] ^ OFFSET).view(np.int8), -1, 0)


def _linked(
    a: np.ndarray, digits: int, axis: int, bits: int = BITS, largest: np.ndarray | None = None
) -> tuple[float, tuple[Any, ...]]:
    """The cost of ``link_bytes``."""
    places = _places(digits, bits)
    width = digits if bits != BITS else 8 * (1 + (digits > WORD))
    shift = list(a.shape)
    shift[axis] = 1
    return a.size, (((*a.shape, width), np.dtype(np.uint8)), places, (tuple(shift), np.dtype(np.int64)))


@priced("split", _linked)
def link_bytes(
    a: np.ndarray, digits: int, axis: int, bits: int = BITS, largest: np.ndarray | None = None
) -> tuple[np.ndarray, tuple[int, ...], np.ndarray]:
    """Digits of a matrix or a stack as bytes for the device, the index of each digit's byte, and the exponents."""
    found = split(a, digits, axis, largest, bits)
    return found.bytes(), found.places, found.shift


def _taken_out(split: Split) -> np.ndarray:
    """Digits plus 128 as uint8 (rows, columns, digits), most significant first."""
    found = np.empty((*split.words[0].shape, split.digits), np.uint8)
    half, place = 1 << (split.bits - 1), split.digits
    for index in reversed(range(len(split.words))):
        rest = split.words[index]
        first = min(split.digits, _word(split.bits))
        for _ in range(split.digits - first if index else first):
            place -= 1
            digit = ((rest + half) & (2 * half - 1)) - half
            found[..., place] = digit + OFFSET
            rest = (rest - digit) >> split.bits
    return found


def _places(digits: int, bits: int) -> tuple[int, ...]:
    if bits != BITS:
        return tuple(range(digits))
    first = min(digits, WORD)
    return tuple(range(first - 1, -1, -1)) + tuple(range(8 + digits - first - 1, 7, -1))


def _word(bits: int) -> int:
    """Digits in one int64."""
    return WORD * BITS // bits


def narrow(digits: int, bits: int) -> int | None:
    """The number of digits of ``bits`` bits that equals ``digits`` of eight; None if no kernel supports that many."""
    return digits if bits == BITS else NARROW.get(digits)


def _limit(digits: int, bits: int) -> float:
    """The largest integer L such that ``digits`` balanced digits represent both L and -L."""
    base = float(1 << bits)
    return (base / 2 - 1) * (base**digits - 1) / (base - 1)


def split(a: np.ndarray, digits: int, axis: int, largest: np.ndarray | None = None, bits: int = BITS) -> Split:
    """The first ``digits`` digits of finite float64 a (rows, columns), scaled along ``axis``: 1 by rows, 0 by columns.

    largest: the maximum of |a| along the axis, or of a larger array that contains ``a``, shaped to broadcast.

    Scales are integer exponents, so rows of denormals and rows near 1e300 are scaled exactly.
    """
    if not 1 <= digits <= (most := MOST_DIGITS * BITS // bits):
        raise ValueError(f"{digits} digits: expected 1 to {most}")
    first = min(digits, _word(bits))
    if largest is None:
        largest = _largest(a, axis)
    shift = shift_for(largest, first, bits)
    rest = digits - first
    words = tuple(np.empty(a.shape, np.int64) for _ in range(2 if rest else 1))
    for strip, high in _strips(a.shape):
        scaled = _times_power(a[strip], _in(shift, strip))
        if not rest:
            np.copyto(words[0][strip], _rounded(scaled, out=high), casting="unsafe")
            continue
        np.copyto(words[0][strip], np.rint(scaled, out=high), casting="unsafe")
        low = np.subtract(scaled, high, out=scaled)
        low *= 2.0 ** (bits * rest)
        halves = np.abs(low - np.rint(low)) == 0.5  # away from zero, like the number and not its remainder
        low[halves] += np.copysign(0.5, a[strip][halves])
        np.rint(low, out=low)
        # Balanced digits cannot represent a remainder of nearly one half: it becomes a carry.
        carry = low > _limit(rest, bits)
        if carry.any():
            words[0][strip] += carry
            low -= carry * 2.0 ** (bits * rest)
        np.copyto(words[1][strip], low, casting="unsafe")
    return Split(words, shift, digits, bits)


def shift_for(largest: np.ndarray, first: int = WORD, bits: int = BITS) -> np.ndarray:
    """The exponents that give integers of ``first`` digits for numbers up to ``largest``."""
    limit_fraction, limit_exponent = np.frexp(_limit(first, bits))
    limit_fraction = math.floor(limit_fraction * FIRST_BITS) / FIRST_BITS
    fraction, exponent = np.frexp(np.where(largest > 0, largest, 1.0))
    return np.asarray(limit_exponent - exponent - (fraction >= limit_fraction), np.int64)


def _rounded(x: np.ndarray, out: np.ndarray) -> np.ndarray:
    """The nearest integers, halves away from zero as ``float64_digits`` rounds them; overwrites x."""
    np.trunc(x, out=out)
    np.subtract(x, out, out=x)
    np.add(x, x, out=x)
    return np.asarray(np.add(out, np.trunc(x, out=x), out=out))


def _largest(a: np.ndarray, axis: int) -> np.ndarray:
    """The largest magnitude along ``axis``, kept as an axis of length one; makes no copy of ``a``."""
    return np.asarray(np.maximum(a.max(axis=axis, keepdims=True), -a.min(axis=axis, keepdims=True)))


def _strips(shape: tuple[int, ...]) -> Iterator[tuple[slice, np.ndarray]]:
    """Slices of the first axis, all with the same float64 scratch array, so that temporaries stay in the cache."""
    step = max(1, STRIP * shape[0] // max(math.prod(shape), 1))
    scratch = np.empty((min(step, shape[0]), *shape[1:]))
    for start in range(0, shape[0], step):
        strip = slice(start, min(start + step, shape[0]))
        yield strip, scratch[: strip.stop - start]


def _in(x: np.ndarray, strip: slice) -> np.ndarray:
    """The part of x, which is broadcast along its first axis if that has length one, for a strip of an array."""
    return x[strip] if len(x) > 1 else x


def _times_power(x: np.ndarray, exponent: np.ndarray) -> np.ndarray:
    """x 2^exponent, rounded as by ldexp; a multiplication, in a quarter of the time, if 2^exponent is normal."""
    if np.abs(exponent).max() <= SAFE_EXPONENT:
        return np.asarray(x * _power(exponent))
    return np.asarray(np.ldexp(x, exponent))


def _power(exponent: np.ndarray) -> np.ndarray:
    """2^exponent for exponents of normal numbers."""
    return ((exponent.astype(np.int64) + 1023) << 52).view(np.float64)


def block_k(group: int, bits: int = BITS) -> int:
    """Rows of K over which the group + 1 digit products of significance ``group`` sum exactly in float32."""
    exact = (1 << (ACCUMULATOR - 2 * (bits - 1))) // (group + 1)
    return exact if exact < 128 else 1 << (exact.bit_length() - 1)


def group_sums(a: Split, b: Split) -> np.ndarray:
    """Exact sums of digit products by significance, float64 (digits, m, n), as in the kernel's PSUM groups."""
    da, db = a.planes().astype(np.float64), b.planes().astype(np.float64)
    return np.stack([sum(da[i] @ db[d - i] for i in range(d + 1)) for d in range(a.digits)])


@priced("combine", lambda words, *_: (math.prod(words.shape[1:]), ((words.shape[1:], FLOAT64),)))
def assemble(words: np.ndarray, digits: int, rows: np.ndarray, columns: np.ndarray, bits: int = BITS) -> np.ndarray:
    """The product in float64 from its exact integer, int32 words (2 to 4, m, n) or of a stack, lowest first.

    rows, columns: the exponents of the operands, which broadcast with the product: (m, 1) and (1, n).
    """
    found, left, right = np.empty(words.shape[1:]), unit(digits, bits) - rows, -columns
    # Each factor is then a normal number, and so is every product with an integer below 2^128.
    plain = max(np.abs(left).max(), np.abs(right).max()) <= SAFE_EXPONENT // 3
    for strip, value in _strips(found.shape):
        _value(words[:, strip], value)
        if plain:
            np.multiply(value, _power(_in(left, strip)), out=value)
            np.multiply(value, _power(_in(right, strip)), out=found[strip])
        else:
            with np.errstate(over="ignore", under="ignore"):
                np.ldexp(value, _in(left, strip) + _in(right, strip), out=found[strip])
    return found


def unit(digits: int, bits: int = BITS) -> int:
    """The exponent of the integer of a product whose operands have exponent zero."""
    return 2 * bits * (min(digits, _word(bits)) - 1) - bits * (digits - 1)


def _value(words: np.ndarray, out: np.ndarray) -> None:
    """Two's complement words of 32 bits, the lowest first, as the nearest float64, into ``out``."""
    low = _joined(words[0], words[1])
    if len(words) == 2:
        np.copyto(out, low)
        return
    # The lower half is signed, so that a small negative integer is not computed as a difference of large numbers.
    np.copyto(out, words[2] if len(words) == 3 else _joined(words[2], words[3]))
    np.add(out, low < 0, out=out)
    np.multiply(out, 2.0**64, out=out)
    np.add(out, low, out=out)


def _joined(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """int64 from its lower and its upper 32 bits."""
    found = np.empty((*low.shape, 2), np.int32)
    found[..., 0], found[..., 1] = low, high  # little-endian
    return found.view(np.int64)[..., 0]


@priced("integer split", lambda a: (a.size, (((*a.shape, a.dtype.itemsize), BYTE),)))
def integer_bytes(a: np.ndarray) -> np.ndarray:
    """Integers modulo their width as uint8 (..., itemsize): each byte minus 128 is a balanced digit."""
    unsigned = np.ascontiguousarray(a).view(f"u{a.dtype.itemsize}")
    offset = sum(OFFSET << (8 * i) for i in range(a.dtype.itemsize))
    return np.asarray((unsigned + unsigned.dtype.type(offset))[..., np.newaxis].view(np.uint8))


@priced("integer combine", lambda words, dtype: (math.prod(words.shape[1:]), ((words.shape[1:], dtype),)))
def integers(words: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Integers modulo the width of ``dtype`` from int32 words (1 or 2, ...), lowest first; for bools, whether not 0."""
    if dtype.kind == "b":
        return np.asarray(words[0] != 0)
    value = words[0].view(np.uint32).astype(np.uint64)
    if len(words) == 2:
        value |= words[1].view(np.uint32).astype(np.uint64) << np.uint64(32)
    return np.asarray(value.astype(dtype))


def symmetrised(words: np.ndarray) -> np.ndarray:
    """V from the sum U over half the pairs of digits, for which U + U^T = 2 V: int32 words (2 to 4, n, n)."""
    wide = words.astype(np.int64) & 0xFFFFFFFF
    low = (wide[0] | wide[1] << 32).view(np.uint64)
    top = words[-1].astype(np.int64)
    high = {2: top >> 31, 3: top, 4: wide[2 % len(words)] | wide[-1] << 32}[len(words)]
    total = low + low.T
    high = high + high.T + (total < low)
    low = total >> np.uint64(1) | (high << 63).view(np.uint64)
    halves = np.stack([low.view(np.int64), high >> 1])
    return np.stack([halves[i // 2] >> 32 * (i % 2) for i in range(len(words))]).astype(np.int32)


@priced("equilibrate", lambda a, b: (a.size + b.size, ((a.shape, a.dtype), (b.shape, b.dtype))))
def equilibrate(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """A D and D^-1 B, where D, powers of two, balances columns of A and rows of B. A and B may be stacks.

    The scaling is exact and often saves digits. None if an entry would leave the range of float64, or if all columns
    and rows are balanced already.
    """
    left, right = np.abs(a).max(axis=-2, keepdims=True), np.abs(b).max(axis=-1, keepdims=True).mT
    both = (left > 0) & (right > 0)
    _, el = np.frexp(np.where(both, left, 1.0))
    _, er = np.frexp(np.where(both, right, 1.0))
    f = np.where(both, (er - el) // 2, 0)
    if not f.any():
        return None
    with np.errstate(over="ignore", under="ignore"):
        x, y = np.ldexp(a, f), np.ldexp(b, -f.mT)
        lossless = np.array_equal(np.ldexp(x, -f), a) and np.array_equal(np.ldexp(y, f.mT), b)
    return (x, y) if lossless else None


def parts(a: np.ndarray, axis: int) -> list[np.ndarray]:
    """A matrix or a stack as a sum of matrices of less exponent range along ``axis``, the largest entries first.

    This separates rounding errors: 1e-17, where symmetry should give zero, and 1 do not fit one scale.
    """
    found: list[np.ndarray] = []
    while len(found) < MOST_PARTS - 1:
        magnitude = np.abs(a)
        faint = magnitude < FAINT * magnitude.max(axis=axis, keepdims=True)
        if not a[faint].any():
            break
        found.append(np.where(faint, 0.0, a))
        a = np.where(faint, a, 0.0)
    return [*found, a]


Pair = tuple[int, int]


def pairs(digits: int) -> int:
    """The number of digit products in one product of matrices of ``digits`` digits."""
    return digits * (digits + 1) // 2


def digits_of_parts(
    left: list[np.ndarray], right: list[np.ndarray], sums: dict[Pair, np.ndarray]
) -> dict[Pair, int] | None:
    """The digits that each product of a left and a right part needs, without negligible ones; None if too many.

    sums: the products of the ``magnitudes`` of the parts. Each error is bounded relative to the whole |A||B|, so that
    the total error is within TOLERANCE u of it. A small product therefore needs few digits or is omitted.
    """
    rows = [np.abs(x).max(axis=-1, keepdims=True) for x in left]
    columns = [np.abs(y).max(axis=-2, keepdims=True) for y in right]
    largest = tuple(np.where(scales[0] > 0, scales[0], 1.0) for scales in (rows, columns))
    with np.errstate(under="ignore"):
        scales = {(i, j): rows[i] / largest[0] * (columns[j] / largest[1]) for i, j in sums}
        whole = np.sum([sums[pair] * scales[pair] for pair in sums], axis=0)
    needed = {}
    for pair, own in sums.items():
        there, scale = own > 0, np.broadcast_to(scales[pair], own.shape)
        if not whole[there].all():  # some have underflowed
            return None
        if not (own * scale > NEGLIGIBLE * whole).any():
            continue
        with np.errstate(divide="ignore", over="ignore"):
            least = float((whole[there] / scale[there]).min()) / len(sums)
        digits = digits_for(least, left[0].shape[-1], FEWEST)
        if digits is None:
            return None
        needed[pair] = digits
    return needed


@priced("magnitudes", lambda a, *_: (a.size, ((a.shape, TWO_BYTES),)))
def magnitudes(a: np.ndarray, axis: int, largest: np.ndarray | None = None) -> np.ndarray:
    """|a| over the largest along ``axis``, in bfloat16, for the product of magnitudes in the error bound.

    largest: as in ``split``.
    Truncation makes |A||B| smaller, by less than 1.6 %. Entries below SMALLEST_MAGNITUDE are raised to it, since zeros
    would hide elements of the product that have no other terms.
    """
    if largest is None:
        largest = _largest(a, axis)
    divisor = np.where(largest > 0, largest, 1.0)
    found = np.empty(a.shape, np.uint16)
    for strip, scaled in _strips(a.shape):
        with np.errstate(under="ignore"):
            np.divide(a[strip], _in(divisor, strip), out=scaled)
            single = scaled.astype(np.float32)
        np.maximum(np.abs(single, out=single), SMALLEST_MAGNITUDE, out=single)
        np.multiply(single, a[strip] != 0, out=single)
        found[strip] = single.view(np.uint16).reshape(*single.shape, 2)[..., 1]  # the upper half: little-endian
    return found.view(bfloat16())


def digits_for(smallest: float, k: int, fewest: int = DIGITS) -> int | None:
    """The fewest digits, at least ``fewest``, with an error bound below TOLERANCE u of |A||B|; None if too many.

    smallest: positive element of the product of ``magnitudes``, so that rho = 1 / smallest is the largest of a_i b_j
    over (|A||B|)_ij, the exponent range inside the sums. sqrt(K) rho 256^(7-s) <= 4: no measured error exceeded it
    (docs/digits.md#certificate).
    """
    rho = BOUND_SLACK / smallest
    for digits in range(fewest, MOST_DIGITS + 1):
        if math.sqrt(k) * rho * float(BASE) ** (DIGITS - digits) <= TOLERANCE:
            return digits
    return None
