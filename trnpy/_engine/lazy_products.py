"""float64 products whose results stay on the device: the next product uses their integers, with an error bound.

One power of two scales a whole matrix, so that the integers of a product are operands of the next one unchanged
(docs/products.md#products-that-stay). A product is one launch. The host reads its error bound and the extremes of its
integers, 1.5 KiB, and fetches values only when they are read. If the bound requires more digits than were used, the
product is launched again.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from trnpy._base.records import record
from trnpy._engine import digits as _digits
from trnpy._engine import float64_products as _certified
from trnpy._engine.abstract_arrays import few_terms, priced, usual
from trnpy._engine.float64_products import ZERO, Device, Uncertified, check_finite, extended
from trnpy._engine.handles import Digits, Source, Store
from trnpy._engine.proof import checksums
from trnpy._engine.tuning import rung
from trnpy._nki.kernels.products import float64_digits_reference as of_words
from trnpy._nki.kernels.products.words_matmul_reference import HEADROOM, SCALE
from trnpy._nki.kernels.products.words_sum_reference import FEWEST_PLACES, MOST_FACTOR, MOST_PLACES
from trnpy._nki.kernels.shared.parameters import for_bounds, for_digits, words_for
from trnpy._nki.runtime import Buffer

ALIGNED = 0.249  # of 256^top: smaller numbers waste a part of the first digit that the error bound does not allow for
STRICTER = 0.75  # fraction of the bound 4 u, because integer operands are rounded: half a unit for each operand
LARGEST_EXPONENT = 120  # of integers in float32
FAINTEST = 2.0**-120  # products of magnitudes above it are normal numbers of float32
SIGNIFICAND = 53
NORMAL = 64  # K over the smallest sum of K terms of normal entries, relative to the largest: for the first digits
USUAL_SHIFT = _digits.WORD * _digits.BITS - 1  # default estimate, if the largest is nearly one
USUAL_FAINTEST = 2.0**-20  # default estimate in dry runs, of the largest, for a matrix that the host sends


@record(eq=False)
class Integers:
    """A matrix V 2^exponent on the device: the 32-bit limbs of V, each byte plus half a digit, and |V| SCALE."""

    words: Buffer
    magnitudes: Buffer
    digits: int  # of the product V
    exponent: int
    largest: float  # of |V|
    faintest: float  # the smallest nonzero |V|

    @property
    def top(self) -> int:
        """The digits of V, from the first that is nonzero in some element."""
        return next((t for t in range(1, self.digits + HEADROOM) if self.largest < 0.498 * 256.0**t),
                    self.digits + HEADROOM)  # fmt: skip

    @property
    def usable(self) -> bool:
        """Whether the bytes of V are its digits, which requires that V is not too large."""
        return self.largest < 0.498 * 256.0 ** (self.digits + HEADROOM)


@record()
class _Side:
    """An operand of one product: the unit of its magnitudes, and the largest and smallest of them."""

    source: Source
    unit: float
    largest: float
    faintest: float
    top: int = 0  # the biased exponent of the scale of a matrix that is split on the device; 0 for others


class _Form(NamedTuple):
    """A kernel operand: digits or limbs, magnitudes, and the exponent of its first digits."""

    digits: Buffer
    magnitudes: Buffer
    exponent: int


def stays(*operands: Digits) -> bool:
    """Whether products of these operands stay on the device: all are real and were put there with ``stay``."""
    return all(len(x.parts) == 1 and x.parts[0].store.stays for x in operands)


def matmul(device: Device, a: Digits, b: Digits) -> Digits | None:
    """The product of (m, k) and (k, n), as ``float64_products.matmul_kept``; None if one scale is not enough."""
    x, y = a.parts[0], b.parts[0]
    if device.bits != _digits.BITS or not all(s.store.integers is None or s.store.integers.usable for s in (x, y)):
        return None
    (m, k), n = x.shape, y.shape[1]
    fit = rung(m), rung(k), rung(n)
    left, right = _side(device, x, fit[:2]), _side(device, y, fit[1:])
    if left.faintest * right.faintest < FAINTEST:
        return None
    likely = left.largest * right.largest * min(k / NORMAL, _certified.usual_least(k, _few(x, y)))
    digits = _needed(left, right, likely or _digits.NOTHING) or _digits.MOST_DIGITS
    digits = max(digits, x.store.needed, y.store.needed)  # products in one chain tend to need the same number
    made = _product(device, digits, left, right, fit)
    if made is not None and made.store.needed > digits:
        made = _product(device, made.store.needed, left, right, fit)
    return None if made is None else Digits(a.dtype, (made,))


def _needed(left: _Side, right: _Side, least: float) -> int | None:
    """The digits needed if the smallest positive sum of magnitudes is ``least``; None if too many."""
    x, y = left.source, right.source
    share = 1.0 if x.store.integers is y.store.integers is None else STRICTER
    return _digits.digits_for(share * least / (left.unit * right.unit), x.shape[1])


def _few(*operands: Source) -> bool:
    """Whether dry runs assume sums of few terms."""
    return few_terms(*(x.values for x in operands if x.store.integers is None))


def _side(device: Device, x: Source, padded: tuple[int, int]) -> _Side:
    """An operand with ``padded`` rows and columns."""
    found: Integers | None = x.store.integers
    if found is not None:
        return _Side(x, ALIGNED * 256.0**found.top * SCALE, found.largest * SCALE, found.faintest * SCALE)
    largest = float(usual(x.store.keep(("largest of a whole",), lambda: _largest(x.store.values))[0, 0], 1.0))
    if not math.isfinite(largest):
        raise Uncertified(_certified.NOT_FINITE)
    shape = padded[::-1] if x.turned else padded
    top = _certified.shift_of(_digits.WORD, int(_digits.shift_for(np.array(largest))))  # shift_of is its own inverse
    if not _certified.split_there(device, x.store.shape, _digits.DIGITS, shape) or top < of_words.FAINTEST:
        return _Side(x, 1.0, 1.0, _digits.SMALLEST_MAGNITUDE)
    relative = math.ldexp(largest, of_words.ONE - top)
    return _Side(x, relative or 1.0, relative, _digits.SMALLEST_MAGNITUDE, top)


@priced("largest entry", lambda a: (a.size, (((1, 1), a.dtype),)))
def _largest(a: np.ndarray) -> np.ndarray:
    """The largest magnitude of a matrix, (1, 1)."""
    return np.array([[max(a.max(), -a.min())]])


def _product(device: Device, digits: int, left: _Side, right: _Side, fit: tuple[int, int, int]) -> Source | None:
    """A product with the given digits, whose store holds the number that its bound requires; None if unavailable."""
    a, b = left.source, right.source
    x, y = _operand(device, left, digits, 1, (fit[1], fit[0])), _operand(device, right, digits, 0, (fit[1], fit[2]))
    best = for_digits(digits, device.runtime.hardware)
    tops = tuple(0 if s.store.integers is None else s.store.integers.top for s in (a, b))
    turned = tuple(s.store.integers is not None and s.turned for s in (a, b))
    made = device.runtime.run(
        "words_matmul", x.digits, y.digits, x.magnitudes, y.magnitudes, tops=tops, turned=turned,
        rows=(not a.turned, not b.turned), digits=digits, words=best.words, m_tiles=best.m_tiles,
        k_tiles=best.k_tiles, bound_tiles=tuple(for_bounds().of_numbers().values()),
    )  # fmt: skip
    extremes = device.runtime.get(made[2])
    typical = left.largest * right.largest * _certified.usual_least(a.shape[1], _few(a, b))
    needed = _needed(left, right, _certified.smallest_of(extremes[:, 2], typical, "words_matmul"))
    if needed is None:
        return None
    exponent, size = x.exponent + y.exponent + _digits.BITS * (digits - 1), _usual_exponent(a) + _usual_exponent(b)
    kept = _measured(made, extremes, digits, exponent, size)
    shape, left_values, right_values = (a.shape[0], b.shape[1]), _known(a), _known(b)

    def fetch() -> np.ndarray:
        c, x, y = _values(device, kept, shape), left_values(), right_values()
        if device.proved and x is not None and y is not None:
            checksums.prove_kept(x, y, c)
        return c

    c = Store(shape, a.dtype, fetch, stays=True, integers=kept)
    a.store.needed = b.store.needed = c.needed = needed
    return Source(c)


def _known(x: Source) -> Callable[[], Source | None]:
    """A function that returns the operand for a checksum test, if the host has its values; it caches nothing."""
    if x.store.read:
        alone = Source(x.store.alone(), x.turned)
        return lambda: alone
    store, turned = weakref.ref(x.store), x.turned

    def found() -> Source | None:
        there = store()
        return Source(there, turned) if there is not None and there.read else None

    return found


def _measured(
    made: tuple[Buffer, Buffer, Buffer], extremes: np.ndarray, digits: int, exponent: int, size: int
) -> Integers:
    """The outputs of a kernel: limbs, magnitudes, extremes. ``size``: the exponent of the largest in a dry run."""
    typical = 2.0 ** min(size - exponent, LARGEST_EXPONENT)
    largest, faintest = usual(extremes[:, 0].max(), typical), usual(extremes[:, 1].min(), typical / 256)
    return Integers(*made[:2], digits, exponent, float(largest), float(faintest))


def _usual_exponent(x: Source) -> int:
    """The exponent of the largest element; dry runs assume that a product's elements are the operands' product."""
    found: Integers | None = x.store.integers
    return 0 if found is None else math.frexp(found.largest)[1] - 1 + found.exponent


def axpby(device: Device, alpha: float, x: Digits, beta: float, y: Digits) -> Digits | None:
    """alpha X + beta Y, exact; None if their forms differ, too many digits are needed, or both are on the host."""
    a, b = x.parts[0], y.parts[0]
    if a.shape != b.shape or a.turned != b.turned or device.bits != _digits.BITS:
        return None
    if (a.store.integers is None and b.store.integers is None) or not math.isfinite(alpha + beta):
        return None
    shape = rung(a.store.shape[0]), rung(a.store.shape[1])
    left, right = _term(device, a, alpha, shape), _term(device, b, beta, shape)
    if left is None or right is None:
        return None
    low = min(left.exponent, right.exponent)
    factors, places = [], []
    for t in (left, right):
        above, bits = divmod(t.exponent - low, _digits.BITS)
        factors.append(t.factor << bits)
        places.append((-1,) * above + t.places)
    most = max(*map(len, places), FEWEST_PLACES)
    if most > MOST_PLACES or max(map(abs, factors)) >= MOST_FACTOR:
        return None
    operands = [
        _sent(device, s.store, True, shape)[0] if s.store.integers is None else s.store.integers.words for s in (a, b)
    ]
    made = device.runtime.run(
        "words_sum", *operands, factors=tuple(factors), words=words_for(most),
        places=tuple([p + (-1,) * (most - len(p)) for p in places]),
    )  # fmt: skip
    size = max(_usual_exponent(a), _usual_exponent(b))
    kept = _measured(made, device.runtime.get(made[2]), most, low, size)
    c = Store(a.store.shape, a.dtype, lambda: _values(device, kept, a.store.shape), stays=True, integers=kept)
    c.needed = max(a.store.needed, b.store.needed)
    return Digits(x.dtype, (Source(c, a.turned),))


@record()
class _Term:
    """factor V 2^exponent: the bytes of V, the lowest first."""

    factor: int
    exponent: int
    places: tuple[int, ...]


def _term(device: Device, x: Source, factor: float, shape: tuple[int, int]) -> _Term | None:
    """One term of a sum; None if its bytes are not its digits, or if the factor has too many bits."""
    over, under = float(factor).as_integer_ratio()
    zeros = (over & -over).bit_length() - 1 if over else 0
    shift = zeros - (under.bit_length() - 1)
    found: Integers | None = x.store.integers
    if found is not None:
        return _Term(over >> zeros, found.exponent + shift, tuple(range(found.top))) if found.usable else None
    values = x.store.values
    check_finite(values)
    largest, faintest = float(usual(_largest(values)[0, 0], 1.0)), float(usual(_faintest(values), USUAL_FAINTEST))
    # The number of digits, from the first one, that holds all bits of every element.
    bits = math.frexp(largest)[1] - math.frexp(faintest)[1] + SIGNIFICAND + 2 if largest else 1
    needed = -(-bits // _digits.BITS)
    if needed > _digits.MOST_DIGITS:
        return None
    _, _, at, taken_out = _sent(device, x.store, True, shape)
    exponent = -taken_out - _digits.BITS * (needed - _digits.WORD)
    return _Term(over >> zeros, exponent + shift, at[:needed][::-1])


@priced("", lambda a: (a.nbytes, (((), a.dtype),)))
def _faintest(a: np.ndarray) -> Any:
    """The smallest nonzero magnitude."""
    return np.abs(a).min(where=a != 0, initial=np.inf)


def _operand(device: Device, side: _Side, digits: int, axis: int, padded: tuple[int, int]) -> _Form:
    """An operand whose ``axis`` is the summed one, K; ``padded``: the padded extents of K and of the other axis."""
    x = side.source
    found: Integers | None = x.store.integers
    if found is not None:
        return _Form(found.words, found.magnitudes, found.exponent + _digits.BITS * (found.top - digits))
    along, shape = axis ^ x.turned, padded if axis ^ x.turned == 0 else padded[::-1]
    make = _split_there if side.top else _split_here
    kept: _Form = x.store.keep(
        ("form of a whole", digits, along, shape), lambda: make(device, x.store, digits, along, shape, side.top)
    )
    return kept


def _split_there(device: Device, x: Store, digits: int, along: int, shape: tuple[int, int], top: int) -> _Form:
    """A matrix that is sent unchanged; one scale with the biased exponent ``top``."""
    scale, words = np.array([[top]], np.float32), _certified.put_words(device, x, shape)
    made, magnitudes = device.runtime.run("float64_digits", words, scale, by_rows=along == 1, digits=digits)
    return _Form(made, magnitudes, _exponent(digits, _certified.shift_of(digits, top)))


def _split_here(device: Device, x: Store, digits: int, along: int, shape: tuple[int, int], _: int) -> _Form:
    """A matrix whose bytes and magnitudes are computed on the host."""
    flat, width, places, shift = _sent(device, x, digits > _digits.WORD, shape)
    made = device.runtime.run("digits_split", flat, width=width, places=places[:digits], turned=along == 1)

    def scaled() -> Buffer:
        return device.runtime.put(extended(_digits.magnitudes(x.values, 1, _largest(x.values)), shape, 0))

    return _Form(made, x.keep(("magnitudes of a whole", shape), scaled), _exponent(digits, shift))


def _exponent(digits: int, shift: int) -> int:
    """The exponent of integers with the given digits, after ``shift`` has been taken out."""
    return -shift - _digits.BITS * (digits - min(digits, _digits.WORD))


def _sent(device: Device, store: Store, wide: bool, shape: tuple[int, int]) -> tuple[Buffer, int, tuple[int, ...], int]:
    """The bytes of a matrix on the device, sent once for any number of digits: the bytes of each element, the places
    of its digits, and the exponent taken out."""

    def new() -> tuple[Buffer, int, tuple[int, ...], int]:
        values = store.values
        most = _digits.MOST_DIGITS if wide else _digits.WORD
        raw, places, shift = _digits.link_bytes(values, most, 1, largest=_largest(values))
        flat = extended(raw, shape, ZERO).reshape(shape[0], -1)
        return device.runtime.put(flat), raw.shape[2], places, int(usual(shift.max(), USUAL_SHIFT))

    kept: tuple[Buffer, int, tuple[int, ...], int] = store.keep(("bytes of a whole", wide, shape), new)
    return kept


def _values(device: Device, x: Integers, shape: tuple[int, int]) -> np.ndarray:
    """The matrix on the host."""
    down, across = np.full(shape[0], x.exponent), np.zeros(shape[1], np.int64)
    there = _certified.rounded(device, x.words, shape, down, across, x.digits + HEADROOM)
    if there is not None:
        return there
    found = without_halves(device.runtime.get(x.words)[:, : shape[0], : shape[1]], x.digits)
    unit = _digits.unit(x.digits)
    return _digits.assemble(found, x.digits, np.array([[unit - x.exponent]]), np.zeros((1, 1), np.int64))


@priced("", lambda v, digits: (6.0 * v.nbytes, ((v.shape, v.dtype),)))
def without_halves(v: np.ndarray, digits: int) -> np.ndarray:
    """int32 limbs (3 or 4, m, n) without the half digits at their lowest bytes."""
    halves = sum(_digits.OFFSET << (_digits.BITS * p) for p in range(digits + HEADROOM))
    wide = v.astype(np.int64)
    low = ((wide[0] & 0xFFFFFFFF) | wide[1] << 32).view(np.uint64)
    less = np.uint64(halves & (2**64 - 1))
    high = wide[2] if len(v) == 3 else (wide[2] & 0xFFFFFFFF) | wide[3] << 32
    high = high - (halves >> 64) - (low < less)
    both = (low - less).view(np.int64), high
    return np.stack([both[i // 2] >> 32 * (i % 2) for i in range(len(v))]).astype(np.int32)
