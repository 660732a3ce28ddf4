"""The checksum test of a floating-point product (ABFT): its rows and columns, summed with random weights.

Huang and Abraham, IEEE Trans. Comput. C-33, 518 (1984), with a tolerance for each row and each column.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import field, replace
from typing import Any

import numpy as np

from trnpy._base.records import record
from trnpy._engine.abstract_arrays import StandIn, priced
from trnpy._engine.at_once import beside, in_turn
from trnpy._engine.handles import Refused, Source
from trnpy._engine.precision import least
from trnpy._engine.proof.weights import PROBES, weights
from trnpy._settings import host_steps
from trnpy._settings.tile import length

# Times u |a_i| |b_j|: 8 deviations of random signs times the bound 4 u of a float64 product, and 8 for the sums of the
# check. The error of float32 sums has no proven bound: twice as much is allowed. Nor has that of BLAS, which errs by
# up to K/2 u when it adds K equal products (docs/checks.md#checksum-test-of-a-product).
CERTIFIED, SUMMED = 40.0, 72.0
DEVIATIONS = 8.0  # of a sum with random signs: larger ones have probability 2.5e-14 for each row
# Terms that one BLAS call sums: first test, and second test if that fails. For constants, whose rounding errors all
# have one sign, sums of 64 have errors up to 50 u; sums of 8, up to 12 u in twice the time
# (docs/checks.md#checksum-test-of-a-product).
TERMS = 64, 8
CHAIN = 512  # products that a float32 sum adds in sequence, at most: OpenBLAS 384, a device 128
BESIDE = 1 << 17  # elements of both operands whose sums take as long as starting a thread: 0.1 ms
STRIP = length(256)  # rows that are still in a cache when they are read again
SAFE = 900  # exponents beyond which sums or squares may overflow or underflow
FEWEST_ROWS = 4  # of A for each column of B: with more columns the test of the whole product costs little more
DIGITS = 7  # of eight bits, as accurate as float64
SINGLE, DOUBLE = np.dtype(np.float32), np.dtype(np.float64)
# Squared lengths of rows and columns whose float32 sums neither overflow nor underflow. Sums of float32 products are
# float32 if all lengths are between these; if such a test fails, float64 sums with the same weights decide.
NARROW = 2.0**-60, 2.0**100
ROUNDED = ("float32", "bfloat16")  # formats to which a kernel rounds operands; its sums are float32's
HALF = np.dtype(np.float16)


class Wrong(ArithmeticError):
    """A result fails its check."""


def prove(
    a: np.ndarray, b: np.ndarray, c: np.ndarray, form: str = "", single: bool = False, digits: int | None = None
) -> None:
    """Raises Wrong unless c = a b to its tolerance; Refused if it may have overflowed. Options as for ``sums``."""
    accept(sums(a, b, c.dtype, form, single, digits), a, b, c)


def accept(
    of: Sums | None, a: np.ndarray, b: np.ndarray, c: np.ndarray, found: tuple[np.ndarray, np.ndarray] | None = None
) -> None:
    """``prove``, with the known sums of a b and of c (``error_of``)."""
    error = error_of(of, c, found)
    if error <= 1:
        return
    shape = f"{c.dtype} product {' x '.join(map(str, c.shape))}"
    if not np.isfinite(c).all() and may_overflow(a, b, c.dtype):
        raise Refused(f"the {shape} may overflow", accuracy=True)
    raise Wrong(f"the {shape} is wrong by {error:.2g} tolerances")


def excess(
    a: np.ndarray, b: np.ndarray, c: np.ndarray, form: str = "", single: bool = False, digits: int | None = None
) -> float:
    """The largest error of c (..., m, n) = a b in tolerances: up to 1 it is accepted. NaN if a sum of c is not finite.

    Options as for ``sums``.
    """
    return error_of(sums(a, b, c.dtype, form, single, digits), c)


@record(frozen=False)
class Sums:
    """The data that a checksum test needs of the operands: its weights, and the sums of a b with them."""

    a: np.ndarray  # rounded as in the engine; wide, or float32 if its sums are
    b: np.ndarray
    rows: np.ndarray  # lengths of the rows of a
    columns: np.ndarray  # and of the columns of b
    right: np.ndarray  # weights
    left: np.ndarray
    cut: tuple[Any, Any]
    single: bool
    most: float  # units of rounding that a tolerance allows
    made: dict[int, tuple[np.ndarray, np.ndarray]]  # by the number of terms that one BLAS call sums

    @property
    def bias(self) -> float:
        """The sum of float32 rounding errors that all have one sign, relative to the sum; 0 for float64 sums."""
        k = self.a.shape[-1]
        return (min(k, CHAIN) + k / CHAIN) / 2 * float(np.finfo(SINGLE).eps) / 2 if self.single else 0.0

    def of(self, terms: int) -> tuple[np.ndarray, np.ndarray]:
        """a b times right, and its transpose times left, with BLAS calls that sum at most ``terms`` terms."""
        if terms not in self.made:
            right, left = _like(self.a, self.right), _like(self.a, self.left)
            by_rows, inner = _both(self.a, _times(self.b, right, terms), left, terms)
            self.made[terms] = by_rows, _times(self.b.swapaxes(-1, -2), inner, terms)
        return self.made[terms]

    def excess(self, c: np.ndarray, terms: int, half: bool, found: Any = None, own: float = 0.0) -> float:
        """The largest error of c in tolerances, by sums of ``terms`` terms; ``found``: those of c, if known."""
        made = found or _both(c, _like(c, self.right), _like(c, self.left), terms)
        across, down = (x - y for x, y in zip(made, self.of(terms), strict=True))
        return max_nan(
            _in_tolerances(across, self, self.right, self.rows, self.columns, c, self.cut[0], half, own),
            _in_tolerances(down, self, self.left, self.columns, self.rows, c.swapaxes(-1, -2), self.cut[1], half, own),
        )


def _like(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Weights in float32 if x is, so that their product is; they are exact in both formats."""
    return w.astype(SINGLE) if x.dtype == SINGLE else w


def _price(a: np.ndarray, b: np.ndarray, dtype: np.dtype, *_: Any, **__: Any) -> tuple[float, tuple[Any, ...]]:
    return (2.0 if dtype.kind == "c" else 1.0) * (a.size + b.size), (None,)


def _kind(dtype: np.dtype, of: str = "proof") -> str:
    """The host step of a checksum test of a product of ``dtype``."""
    return of if dtype.char in "de" else f"complex {of}" if dtype.kind == "c" else f"single {of}"


def _kind_of_sums(
    a: np.ndarray, b: np.ndarray, dtype: np.dtype, form: str = "", *_: Any, digits: int | None = None
) -> str:
    if digits is not None and dtype == DOUBLE:
        return "digits proof"
    return _kind(DOUBLE if dtype == SINGLE and form == "bfloat16" else dtype)


def _sums(
    a: np.ndarray, b: np.ndarray, dtype: np.dtype, form: str = "", single: bool = False, digits: int | None = None
) -> Sums | None:
    """The checksum data of the operands of a product of ``dtype``; None if the product has no elements.

    ``form`` is the format in which the engine multiplies: only BLAS does so in float64. ``single``: its sums are
    float32; ``digits``: real operands have this many digits of eight bits (docs/digits.md#certificate).
    """
    if 0 in (*a.shape[:-1], b.shape[-1]):
        return None
    single = single or form in ROUNDED or np.empty(0, dtype).real.itemsize < DOUBLE.itemsize
    blas = DEVIATIONS * a.shape[-1] / 2 if form == DOUBLE.name else 0.0
    most = (SUMMED if single else CERTIFIED + blas) * (2 if dtype.kind == "c" else 1)
    with np.errstate(all="ignore"):
        a, b = _in_place(_rounded(a, form)), _in_place(_rounded(b, form))
        rows = columns = None
        if dtype == SINGLE and digits is None:
            rows, columns = _narrow_lengths(a), _narrow_lengths(b.swapaxes(-1, -2))
        if rows is None or columns is None:
            a, b = _wide(a), _wide(b)
            rows, columns = lengths(a), lengths(b.swapaxes(-1, -2))
        right, left = _weights(rows, columns, single), _weights(columns, rows, single)
        cut = (0.0, 0.0) if digits is None else _cut(a, b, right, left, digits)
        found = Sums(a, b, rows, columns, right, left, cut, single, most, {})
        found.of(TERMS[0])
    return found


sums = priced(_kind_of_sums, _price)(_sums)
# While a device computes.
sums_beside = priced(lambda *of, **named: host_steps.BESIDE + _kind_of_sums(*of, **named), _price)(_sums)


def expected(a: np.ndarray, b: np.ndarray, parallel: bool, *options: Any, **named: Any) -> Callable[[], Sums | None]:
    """A function that returns ``sums(a, b, ...)``; a thread computes those of large operands if ``parallel``."""
    large = a.size + b.size >= BESIDE
    if isinstance(a, StandIn) or isinstance(b, StandIn):
        return in_turn(lambda: (sums_beside if large else sums)(a, b, *options, **named))
    if large and parallel:
        return beside(lambda: sums(a, b, *options, **named))
    return functools.cache(lambda: sums(a, b, *options, **named))


class Arriving:
    """The sums of a float64 product c (m, n), computed from rows as they arrive. ``of`` is called when the first do."""

    def __init__(self, of: Callable[[], Sums | None]) -> None:
        self._of = of
        self._found: dict[tuple[int, int], tuple[np.ndarray, np.ndarray]] = {}

    def __call__(self, rows: slice, c: np.ndarray) -> None:
        self._found[rows.start, rows.stop] = sums_of(self._of(), rows, c)

    def whole(self, m: int) -> tuple[np.ndarray, np.ndarray] | None:
        """c times the weights of its columns, and c^T times those of its rows; None if not all rows have arrived."""
        ends = sorted(self._found)
        if not ends or [0, *(end for _, end in ends)] != [*(start for start, _ in ends), m]:
            return None
        across, down = zip(*(self._found[end] for end in ends), strict=True)
        return np.concatenate(across), _sum(list(down))


@priced("proof of result", lambda of, rows, c: (c.size, (((c.shape[0],), DOUBLE), ((c.shape[1],), DOUBLE))))
def sums_of(of: Sums | None, rows: slice, c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows c of a product times the weights of its columns, and their transpose times those of these rows."""
    assert of is not None
    with np.errstate(all="ignore"):
        return _both(c, of.right, of.left[rows], TERMS[0])


def _read(c: np.ndarray, found: object) -> float:
    """Real elements that `error_of` reads."""
    return 0.0 if found else (2.0 if c.dtype.kind == "c" else 1.0) * c.size


@priced(
    lambda of, c, found=None: _kind(c.dtype, "proof of result"), lambda of, c, found=None: (_read(c, found), (0.0,))
)
def error_of(of: Sums | None, c: np.ndarray, found: tuple[np.ndarray, np.ndarray] | None = None) -> float:
    """The largest error of c (..., m, n), the product described by ``of``, in tolerances; ``excess``.

    ``found``: its sums with the first of TERMS, if they are known already (``Arriving``).
    """
    if not c.size:
        return 0.0
    assert of is not None
    half = c.dtype == HALF
    with np.errstate(all="ignore"):
        # The weights stay the same in all tests: new ones would give a wrong result a second chance.
        if of.a.dtype == SINGLE:
            error = of.excess(_in_place(c), TERMS[0], half)
            if error <= 1:
                return error
            of = replace(of, a=_wide(of.a), b=_wide(of.b), made={})
        c = _wide(c)
        for terms in TERMS:
            error = of.excess(c, terms, half, found if terms == TERMS[0] else None)
            if error <= 1:
                return error
        return of.excess(c, terms, half, own=of.bias) if of.bias else error


def may_overflow(a: np.ndarray, b: np.ndarray, dtype: np.dtype) -> bool:
    """Whether an element of a b may exceed the largest number of ``dtype``."""
    with np.errstate(all="ignore"):
        bound = lengths(_wide(a)).max(initial=0.0) * lengths(_wide(b.swapaxes(-1, -2))).max(initial=0.0)
        return not bound < float(np.finfo(dtype).max) / 2


def max_nan(*numbers: float) -> float:
    """The largest number; NaN if one of them is."""
    return float(np.max(numbers))


def _weights(rows: np.ndarray, columns: np.ndarray, single: bool) -> np.ndarray:
    """Weights (..., n) of the columns of a product; rows (..., m) and columns (..., n) are lengths of its operands.

    Powers of two equalise columns of different size; small columns keep some of their size, because otherwise their
    underflow would hide the errors of others.
    """
    lowest = int(np.frexp(least(single))[1]) + (SAFE // 20 if single else SAFE // 8)
    top = max(int(np.frexp(rows.max(initial=0.0))[1]) - SAFE, 0)
    found = np.ldexp(weights(columns.shape[-1]), -np.maximum(np.frexp(columns)[1], lowest) - top)
    return np.asarray(found.astype(SINGLE).astype(DOUBLE) if single else found)


def _in_tolerances(
    residual: np.ndarray, of: Sums, w: np.ndarray, rows: np.ndarray, columns: np.ndarray, c: np.ndarray, cut: Any,
    half: bool, own: float,
) -> float:  # fmt: skip
    """The largest error of a row of c w - a (b w) in tolerances; ``own``: relative error of the elements themselves."""
    unit, k = float(np.finfo(SINGLE if of.single else DOUBLE).eps) / 2, of.a.shape[-1]
    size = np.sqrt(np.square(w * columns).sum(axis=-1, keepdims=True))
    length = np.sqrt(np.square(w).sum(axis=-1, keepdims=True))
    floor = DEVIATIONS * (k + 2) * least(of.single) * (length * (1 + rows) + 2 * math.sqrt(c.shape[-1]))
    tolerance = of.most * unit * rows * size + floor + cut
    if half:  # the sums are rounded once more
        own += 2.0**-11
        tolerance = tolerance + DEVIATIONS * 2.0**-25 * length
    if own:
        squares = np.square(np.abs(c))
        sizes = _times(squares, np.broadcast_to(np.square(w), (*c.shape[:-2], c.shape[-1])), TERMS[0])
        tolerance = tolerance + DEVIATIONS * own * np.sqrt(sizes)
    return float(np.max(np.abs(residual) / tolerance))


def cut_unit(terms: int, digits: int) -> float:
    """The error of a sum of ``terms`` products of operands cut to ``digits``, relative to the largest of them."""
    return 2 * DEVIATIONS * float(np.finfo(DOUBLE).eps) / 2 * math.sqrt(terms) * 256.0 ** (DIGITS - digits)


def _cut(a: np.ndarray, b: np.ndarray, right: np.ndarray, left: np.ndarray, digits: int) -> tuple[Any, Any]:
    """The errors of row and column sums that are caused by cutting operands to ``digits``.

    An element has an error of at most sqrt(K) 256^(7-s) u of the largest terms, as measured for the bound; twice that.
    """
    unit = cut_unit(a.shape[-1], digits)
    rows, columns = np.abs(a).max(axis=-1), np.abs(b).max(axis=-2)
    return tuple(
        unit * x * np.sqrt(np.square(w * y).sum(axis=-1, keepdims=True))
        for x, y, w in ((rows, columns, right), (columns, rows, left))
    )


def _rounded(x: np.ndarray, form: str) -> np.ndarray:
    """``x`` rounded to ``form``, as in an engine."""
    if form not in ROUNDED or x.real.dtype == form:
        return x
    if x.dtype.kind == "c":
        return _rounded(x.real, form).astype(DOUBLE) + 1j * _rounded(x.imag, form).astype(DOUBLE)
    if form == "bfloat16":
        import ml_dtypes  # imported late: a process without a device does not need it

        return x.astype(ml_dtypes.bfloat16)
    return x.astype(form)


def _wide(x: np.ndarray) -> np.ndarray:
    """``x`` in float64 or complex128, in a layout that BLAS reads in place."""
    return _in_place(x.astype(np.complex128 if x.dtype.kind == "c" else DOUBLE, copy=False))


def _in_place(x: np.ndarray) -> np.ndarray:
    """x in a layout that BLAS reads in place."""
    return x if x.itemsize in x.strides[-2:] else np.ascontiguousarray(x)


def _narrow_lengths(x: np.ndarray) -> np.ndarray | None:
    """The lengths of the rows of float32 x (..., m, k); None if sums with them might overflow or underflow."""
    if x.dtype != SINGLE:
        return None
    found = _squares(x).astype(DOUBLE)
    inside = (found > NARROW[0]) & (found < NARROW[1])
    return np.asarray(np.sqrt(found)) if inside.all() or not x[~inside].any() else None


def lengths(x: np.ndarray) -> np.ndarray:
    """The lengths (..., m) of the rows of wide x (..., m, k), even if squares underflow or overflow."""
    found = _squares(x)
    if np.all((found > 2.0**-SAFE) & (found < np.inf)):
        return np.asarray(np.sqrt(found))
    size = np.abs(x)
    exponent = np.frexp(size.max(axis=-1, initial=0.0))[1]
    return np.asarray(np.ldexp(np.sqrt(_squares(np.ldexp(size, -exponent[..., np.newaxis]))), exponent))


def _squares(x: np.ndarray) -> np.ndarray:
    if x.dtype.kind == "c":
        return np.asarray(_squares(x.real) + _squares(x.imag))
    return np.asarray(np.einsum("...ij,...ij->...i", x, x) if _turned(x) else np.vecdot(x, x))


def _times(x: np.ndarray, v: np.ndarray, terms: int) -> np.ndarray:
    """x (..., m, k) times v (..., k)."""
    if _turned(x):
        return _down(x.swapaxes(-1, -2), v, terms)
    strips = range(0, x.shape[-2], STRIP)
    return np.concatenate([_across(x[..., at : at + STRIP, :], v, terms) for at in strips], axis=-1)


def _both(x: np.ndarray, right: np.ndarray, left: np.ndarray, terms: int) -> tuple[np.ndarray, np.ndarray]:
    """x (..., m, n) times right (..., n), and x^T times left (..., m), strip by strip: x is read once from memory."""
    if _turned(x):
        return _both(x.swapaxes(-1, -2), left, right, terms)[::-1]
    rows, columns = [], []
    for at in range(0, x.shape[-2], STRIP):
        strip = x[..., at : at + STRIP, :]
        rows.append(_across(strip, right, terms))
        columns.append(_down(strip, left[..., at : at + STRIP], terms))
    return np.concatenate(rows, axis=-1), _sum(columns)


def _turned(x: np.ndarray) -> bool:
    """Whether the columns of x are stored one after the other."""
    return x.strides[-2] == x.itemsize != x.strides[-1]


def _across(strip: np.ndarray, v: np.ndarray, terms: int) -> np.ndarray:
    """strip (..., m, k), whose rows are stored one after the other, times v (..., k), summed in blocks."""
    cuts = [slice(at, at + terms) for at in range(0, max(strip.shape[-1], 1), terms)]
    return _sum([(strip[..., cut] @ v[..., cut, np.newaxis])[..., 0] for cut in cuts])


def _down(x: np.ndarray, v: np.ndarray, terms: int) -> np.ndarray:
    """The transpose of x (..., k, m) times v (..., k), summed in blocks of rows."""
    cuts = [slice(at, at + terms) for at in range(0, max(x.shape[-2], 1), terms)]
    return _sum([(x[..., cut, :].swapaxes(-1, -2) @ v[..., cut, np.newaxis])[..., 0] for cut in cuts])


def _sum(parts: list[np.ndarray]) -> np.ndarray:
    """The sum of arrays, in pairs."""
    while len(parts) > 1:
        parts = [a + b for a, b in zip(parts[::2], parts[1::2], strict=False)] + parts[len(parts) & ~1 :]
    return parts[0]


# --- Products of one matrix with many blocks of few columns -----------------------------------------------------------
#
# A is large compared with B and C = A B, so a full checksum test would take as long as the product on the host.
# W^T A is therefore cached, and W^T C is compared with (W^T A) B, column by column. W has two columns: errors of a
# column that cancel to a tolerance t pass with probability at most (t / d)^2, d the largest of them, as for rows.


@record(frozen=False)
class Kept:
    """Random weights W (PROBES, m) of the rows of A (m, k), W^T A, and the row sizes that tolerances need."""

    a: np.ndarray  # wide
    weights: np.ndarray
    length: np.ndarray  # (PROBES, 1): of the weights times the lengths of the rows
    largest: np.ndarray  # (PROBES, 1): the same for the largest element of each row
    sums: dict[int, np.ndarray] = field(default_factory=dict)  # by the number of terms that one BLAS call sums

    def of(self, terms: int) -> np.ndarray:
        """W^T A (PROBES, k)."""
        if terms not in self.sums:
            turned = self.a.T
            self.sums[terms] = np.stack([_times(turned, w, terms) for w in self.weights])
        return self.sums[terms]


@priced("proof", lambda a: (a.size, (None,)))
def kept(a: np.ndarray) -> Kept | None:
    """The checksum data of real a (m, k), which must not change; None in a dry run."""
    with np.errstate(all="ignore"):
        a = _wide(a)
        rows = lengths(a)
        weights = np.stack([_weights(np.zeros(0), rows, False) for _ in range(PROBES)])
        sizes = (rows, np.abs(a).max(axis=-1, initial=0.0))
        length, largest = (np.sqrt(np.square(weights * size).sum(axis=-1, keepdims=True)) for size in sizes)
        found = Kept(a, weights, length, largest)
        found.of(TERMS[0])
    return found


def prove_kept(a: Source, b: Source, c: np.ndarray, digits: int | None = None) -> None:
    """The check of C = A B for operands that an engine keeps; for few columns or rows, with cached checksums."""
    if a.shape[0] * FEWEST_ROWS <= b.shape[1]:
        a, b, c = b.T, a.T, c.T
    if b.shape[1] * FEWEST_ROWS > a.shape[0]:
        prove(a.values, b.values, c, digits=digits)
        return
    if a.turned not in a.store.proofs:
        a.store.proofs[a.turned] = kept(a.values)
    prove_by(a.store.proofs[a.turned], a.values, b.values, c, digits)


def begun(a: Source, b: Source, digits: int | None, parallel: bool) -> Callable[[np.ndarray], None]:
    """``prove_kept(a, b, c, digits)`` for a product c that has not arrived; sums of arrays are computed meanwhile."""
    narrow = max(a.shape[0], b.shape[1]) >= FEWEST_ROWS * min(a.shape[0], b.shape[1])
    if narrow or not (a.store.here and b.store.here):
        return lambda c: prove_kept(a, b, c, digits)
    of = expected(a.values, b.values, parallel, a.dtype, digits=digits)
    return lambda c: accept(of(), a.values, b.values, c)


def prove_by(of: Kept | None, a: np.ndarray, b: np.ndarray, c: np.ndarray, digits: int | None = None) -> None:
    """Raises Wrong unless c (m, n) = a b for the matrix a described by ``of``; Refused if it may have overflowed."""
    error = excess_by(of, b, c, digits)
    if error <= 1:
        return
    if not math.isfinite(error):
        prove(a, b, c, digits=digits)
    raise Wrong(f"the {c.dtype} product {' x '.join(map(str, c.shape))} is wrong by {error:.2g} tolerances")


@priced("kept proof", lambda of, b, c, digits=None: (PROBES * (b.size + c.size), (0.0,)))
def excess_by(of: Kept | None, b: np.ndarray, c: np.ndarray, digits: int | None = None) -> float:
    """The largest error of a column of c in tolerances (``excess``)."""
    assert of is not None
    with np.errstate(all="ignore"):
        b, c = _wide(b), _wide(c)
        columns = lengths(b.T)
        allowed = _tolerance(of, b, columns, digits)
        for terms in TERMS:  # the weights stay the same: new ones would give a wrong result a second chance
            sums, error = of.of(terms), 0.0
            for w, s, t in zip(of.weights, sums, allowed, strict=True):
                difference = _times(c.T, w, terms) - _times(b.T, s, terms)
                error = max_nan(error, np.max(np.abs(difference) / t))
            if error <= 1:
                break
    return error


def _tolerance(of: Kept, b: np.ndarray, columns: np.ndarray, digits: int | None) -> np.ndarray:
    """(PROBES, n): as for the columns in ``_in_tolerances``."""
    unit, tiny = float(np.finfo(DOUBLE).eps) / 2, least(False)
    size = np.sqrt(np.square(of.weights).sum(axis=-1, keepdims=True))
    floor = DEVIATIONS * (len(b) + 2) * tiny * (size * (1 + columns) + 2 * math.sqrt(len(of.a)))
    found = CERTIFIED * unit * of.length * columns + floor
    if digits is not None:
        cut = cut_unit(len(b), digits)
        found = found + cut * of.largest * np.abs(b).max(axis=0, initial=0.0)
    return np.asarray(found)
