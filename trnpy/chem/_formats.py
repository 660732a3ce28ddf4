"""Matrix products of chemistry on a device: each matrix has one exponent, so results can be operands of other products.

float64 is multiplied in digits, integer slices (Ozaki splitting). Errors are relative to the largest element of an
operand. There is no a-priori error bound for single sums: callers check their results as a whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple, Protocol, cast

import numpy as np

from trnpy._call.dispatch import Reason, Unsupported
from trnpy._engine import digits as _digits
from trnpy._engine import float64_products, lazy_products
from trnpy._engine.abstract_arrays import usual
from trnpy._engine.engines import BY_DIGITS, Engine, Held
from trnpy._nki.kernels.products import float64_digits_reference, float64_round_reference
from trnpy._nki.kernels.products.words_matmul_reference import HEADROOM
from trnpy._nki.kernels.products.words_sum_reference import FEWEST_PLACES
from trnpy._nki.kernels.shared.parameters import for_bounds, for_digits, for_numbers, words_for
from trnpy.chem._rows import REAL

DIGITS = _digits.DIGITS
GRAIN = 32  # extents are padded to multiples of GRAIN, short ones to multiples of GRAIN / 2
LEAST_EXPONENT = -1000  # of float32 operands: 2^-1000 and its inverse are finite float64 numbers
ORDINARY = 24  # exponent of float32 operands up to which products of four of them are far from the ends of its range
ONE = np.ones((1, 1), np.float32)
USUAL_LARGEST = 2.0**60  # default estimate of the largest integer of a product, for dry runs


def padded(extent: int, grain: int = GRAIN) -> int:
    return -(-extent // grain) * grain


def largest(a: np.ndarray) -> float:
    """The largest magnitude of a matrix; 1 if all elements are zero."""
    return float(usual(np.abs(a).max(), 1.0)) or 1.0


class Sent(NamedTuple):
    """A matrix on the device in the form in which it was sent, and the scale of its operands."""

    held: Held
    scale: int


class Operand(NamedTuple):
    """A matrix on the device: digits with K on their rows and their magnitudes, or unchanged numbers."""

    held: Held
    magnitudes: Held | None
    k_first: bool  # whether K is on the rows of numbers and magnitudes
    exponent: int = 0
    top: int = 0  # for words: the number of their digits from the first that is not zero in all elements
    digits: int = DIGITS  # for words: the digits of the product or sum that made them


class Products(Protocol):
    """The operations for multiplying matrices."""

    bytes_of: tuple[int, int]  # on the device, of an element that is summed over in one direction, and in both
    sent_bytes: int  # of an element in a host-device transfer

    def send(self, x: np.ndarray, largest: float) -> Sent: ...

    def operand(self, sent: Sent, k_first: bool) -> Operand:
        """A matrix for products over its rows, or over its columns."""
        ...

    def put(self, x: np.ndarray, largest: float, *k_first: bool) -> tuple[Operand, ...]:
        """An operand for each direction of sums."""
        ...

    def product(self, a: Operand, b: Operand) -> Operand: ...

    def added(self, x: Operand, y: Operand) -> Operand:
        """The sum of two products whose operands have the same exponents."""
        ...

    def values(self, x: Operand) -> np.ndarray: ...


class Format(Products, Protocol):
    """The same, with results that can be operands of further products."""

    def as_rows(self, x: Operand, rows: int) -> Operand:
        """The elements of a product in the same order, in ``rows`` rows; later products sum over the columns."""
        ...

    def added_squares(self, terms: Iterator[Operand]) -> np.ndarray:
        """The sum of A A^T over ``terms``, in float64."""
        ...


def format_of(engine: Engine) -> Format | None:
    """The format of float64 on ``engine``; None if its kernels support neither of the two."""
    name = engine.format(REAL)
    if name not in (BY_DIGITS, "float32"):
        return None
    return ByDigits(engine) if name == BY_DIGITS else Single(engine)


class ByDigits:
    """float64 in seven digits, without an a-priori error bound for single sums."""

    bytes_of = 2 * DIGITS + 2, 2 * 2 * DIGITS + 2  # digits in one order or two, magnitudes
    sent_bytes = 8

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        best = for_digits(DIGITS, engine.machine)
        self._tiles = {
            "digits": DIGITS, "words": best.words, "m_tiles": best.m_tiles, "k_tiles": best.k_tiles,
            "bound_tiles": tuple(for_bounds().of_numbers().values()),
        }  # fmt: skip

    def send(self, x: np.ndarray, largest: float) -> Sent:
        top = float64_products.shift_of(DIGITS, int(_digits.shift_for(np.array(usual(largest, 1.0)))))
        if top < float64_digits_reference.FAINTEST:
            raise Unsupported(Reason.VALUE, f"the largest element of an operand is {largest:.3g}")
        return Sent(self._engine.hold(float64_products.link_words(x, x.shape)), top)

    def operand(self, sent: Sent, k_first: bool) -> Operand:
        scale = np.array([[sent.scale]], np.float32)
        digits, sizes = self._engine.kernel("float64_digits", sent.held, scale, by_rows=not k_first, digits=DIGITS)
        return Operand(digits, sizes, k_first, -float64_products.shift_of(DIGITS, sent.scale))

    def put(self, x: np.ndarray, largest: float, *k_first: bool) -> tuple[Operand, ...]:
        sent = self.send(x, largest)
        return tuple(self.operand(sent, first) for first in k_first)

    def product(self, a: Operand, b: Operand, turned: tuple[bool, bool] = (False, False)) -> Operand:
        words, magnitudes, extremes = self._engine.kernel(
            "words_matmul", a.held, b.held, a.magnitudes, b.magnitudes, tops=(a.top, b.top), turned=turned,
            rows=(not a.k_first, b.k_first), **self._tiles,
        )  # fmt: skip
        exponent = a.exponent + b.exponent + _digits.BITS * (DIGITS - 1)
        return Operand(words, magnitudes, False, exponent, self._top(extremes))

    def _top(self, extremes: Held) -> int:
        largest = float(usual(self._engine.get(extremes)[:, 0].max(), USUAL_LARGEST))
        top = next((t for t in range(1, DIGITS + HEADROOM + 1) if largest < 0.498 * 256.0**t), 0)
        if not top:
            raise Unsupported(Reason.ACCURACY, f"sums of digits reach {largest:.3g}")
        return top

    def added(self, x: Operand, y: Operand) -> Operand:
        most = max(x.top, y.top, FEWEST_PLACES)
        words, magnitudes, extremes = self._engine.kernel(
            "words_sum", x.held, y.held, factors=(1, 1), words=words_for(most),
            places=tuple((*range(z.top), *(-1,) * (most - z.top)) for z in (x, y)),
        )  # fmt: skip
        return Operand(words, magnitudes, False, x.exponent, self._top(extremes), most)

    def as_rows(self, x: Operand, rows: int) -> Operand:
        planes, height, width = x.held.shape
        shape = rows, height * width // rows
        assert x.magnitudes is not None
        return x._replace(
            held=self._engine.reshaped(x.held, (planes, *shape)),
            magnitudes=self._engine.reshaped(x.magnitudes, shape), k_first=False,
            exponent=x.exponent + _digits.BITS * (x.top - DIGITS),
        )  # fmt: skip

    def added_squares(self, terms: Iterator[Operand]) -> np.ndarray:
        return sum(self.values(self.product(h, h._replace(k_first=False), (False, True))) for h in terms)  # type: ignore[return-value]

    def values(self, x: Operand) -> np.ndarray:
        words, m, n = x.held.shape
        fits = n <= float64_round_reference.COLUMNS and m * n >= float64_products.FEWEST_RESULTS
        if fits and float64_round_reference.LOWEST <= x.exponent <= float64_round_reference.HIGHEST - 32 * words:
            scales = np.full((m, 1), x.exponent, np.float32), np.zeros((1, n), np.float32)
            rounded = self._engine.kernel("float64_round", x.held, *scales, places=x.digits + HEADROOM)
            return self._engine.get(rounded).view(REAL)
        found = lazy_products.without_halves(self._engine.get(x.held), x.digits)
        shift = np.array([[_digits.unit(x.digits) - x.exponent]])
        return _digits.assemble(found, x.digits, shift, np.zeros((1, 1), np.int64))


class Single:
    """float32 numbers, if the policy allows less than float64 accuracy; large and small operands are scaled."""

    bytes_of = 4, 4
    sent_bytes = 4

    def __init__(self, engine: Engine) -> None:
        self._engine, self._tiles = engine, for_numbers(4)

    def send(self, x: np.ndarray, largest: float) -> Sent:
        exponent = max(math.frexp(largest)[1], LEAST_EXPONENT)
        if abs(exponent) <= ORDINARY:  # saves a pass over all integrals
            exponent = 0
        scaled = x * 2.0**-exponent if exponent else x
        return Sent(self._engine.hold(scaled.astype(np.float32)), exponent)

    def operand(self, sent: Sent, k_first: bool) -> Operand:
        return Operand(sent.held, None, k_first, sent.scale)

    def put(self, x: np.ndarray, largest: float, *k_first: bool) -> tuple[Operand, ...]:
        sent = self.send(x, largest)
        return tuple(self.operand(sent, first) for first in k_first)

    def product(self, a: Operand, b: Operand) -> Operand:
        rows = {"a_rows": not a.k_first, "b_rows": b.k_first}
        c = self._engine.kernel("matmul", a.held, b.held, **rows, **self._tiles.of_numbers())
        return Operand(c, None, False, a.exponent + b.exponent)

    def added(self, x: Operand, y: Operand) -> Operand:
        return x._replace(held=self._engine.kernel("axpby", x.held, y.held, ONE, ONE))

    def as_rows(self, x: Operand, rows: int) -> Operand:
        height, width = x.held.shape
        return x._replace(held=self._engine.reshaped(x.held, (rows, height * width // rows)))

    def added_squares(self, terms: Iterator[Operand]) -> np.ndarray:
        total, exponent = None, 0
        for h in terms:
            exponent = 2 * h.exponent  # the same for all terms
            so_far = () if total is None else (ONE, total, ONE)
            total = self._engine.kernel("syrk", h.held, *so_far, a_rows=True, **self._tiles.of_squares())
        assert total is not None
        return self.values(Operand(total, None, False, exponent))

    def values(self, x: Operand) -> np.ndarray:
        found: np.ndarray = np.ldexp(self._engine.get(x.held).astype(REAL), x.exponent)
        return found


class Arrays:
    """Arrays on the host, each product on ``engine``, for engines without kernels for these formats."""

    bytes_of = 8, 8
    sent_bytes = 8

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def send(self, x: np.ndarray, largest: float) -> Sent:
        return Sent(cast(Held, x), 0)

    def operand(self, sent: Sent, k_first: bool) -> Operand:
        return Operand(sent.held, None, k_first)

    def put(self, x: np.ndarray, largest: float, *k_first: bool) -> tuple[Operand, ...]:
        return tuple(Operand(cast(Held, x), None, first) for first in k_first)

    def product(self, a: Operand, b: Operand) -> Operand:
        left, right = self.values(a), self.values(b)
        found = self._engine.matmul(left.T if a.k_first else left, right if b.k_first else right.T)
        return Operand(cast(Held, found), None, False)

    def added(self, x: Operand, y: Operand) -> Operand:
        return x._replace(held=cast(Held, self.values(x) + self.values(y)))

    def values(self, x: Operand) -> np.ndarray:
        return cast(np.ndarray, x.held)
