"""Products of float64, complex128, integers and bool on a device, with digits and an a-priori error bound.

The error of a float64 product is at most 4 u of |A||B| in every element (docs/digits.md#certificate). If one scale
for each row and column cannot hold the range of the values, the product is computed in equilibrated form. If that
cannot either, both operands are split into parts, and the products of parts are added. Integer products are
bit-equal to NumPy's, wrap-around included. TensorE multiplies float16, float32 and complex64 without digits. Larger
products are computed in blocks of at most BLOCK.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable, Hashable, Iterable
from typing import Any, NamedTuple

import numpy as np

from trnpy._base.records import record
from trnpy._engine import digits as _digits
from trnpy._engine.abstract_arrays import few_terms, priced, usual
from trnpy._engine.handles import Digits, Source, Store, stored
from trnpy._engine.proof import checksums, integers
from trnpy._engine.tuning import BLOCK, Buckets, Extents, of_digits, pieces
from trnpy._nki.kernels.products import float64_digits_reference as of_words
from trnpy._nki.kernels.products import float64_round_reference as to_float64
from trnpy._nki.kernels.shared.parameters import TILE, for_bounds, for_digits, for_numbers, lower_blocks
from trnpy._nki.runtime import Buffer, DeviceError, Runtime

DTYPES = frozenset("?bBhHiIlLqQdD")  # characters of the dtypes with products here
FLOAT64, INT32 = np.dtype(np.float64), np.dtype(np.int32)
SMALLEST = 1 << 12  # elements that are sent unchanged: the host splits fewer in less time than the device
FEWEST_RESULTS = 1 << 15  # elements that are rounded on the device: the host rounds fewer in less than a launch
ZERO = 0x80  # the byte of a digit that is zero
NOT_FINITE = "an operand holds NaN or infinity"
TOO_WIDE = f"the exponent range inside its sums needs more than {_digits.MOST_DIGITS} digits, or too many of parts"


class Uncertified(Exception):
    """No available number of digits is guaranteed to be enough for these values; the message gives the reason."""


@record()
class Device:
    """The device of products: a runtime, the shapes its kernels are compiled for, the longest block, its cache."""

    runtime: Runtime
    buckets: Buckets
    block: int = BLOCK  # digits of a block are at most 12 x 8192^2: run-time offsets are 32-bit integers
    # (operand, form, make) -> make(), or its earlier result for the same operand in the same form
    keep: Callable[[np.ndarray, Hashable, Callable[[], Any]], Any] = lambda operand, form, make: make()
    bits: int = _digits.BITS  # per digit
    splits: bool = True  # float64 is sent unchanged and split on the device
    proved: bool = False  # each product is checked when its words arrive; the caller checks arrays
    parallel: bool = False  # checksums of operands are computed in a thread, while the device computes
    passes: float = math.inf  # the host is faster than a product with more digit products than this

    def count(self, digits: int) -> int:
        """The number of digits of ``bits`` bits that is as accurate as ``digits`` of eight."""
        found = _digits.narrow(digits, self.bits)
        if found is None:
            raise Uncertified(f"{digits} digits of eight bits are more than there are of {self.bits}")
        return found


def matmul(device: Device, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The product of non-empty (m, k) and (k, n), both of one dtype of DTYPES, in that dtype.

    Uncertified if a value is not finite, or if the exponent range inside a sum needs more than 12 digits.
    """
    if max(*a.shape, b.shape[1]) <= device.block:
        return _block(device, a, b)
    c = np.empty_like(a, order="C", shape=(a.shape[0], b.shape[1]))
    for rows in pieces(a.shape[0], device.block):
        for columns in pieces(b.shape[1], device.block):
            inners = pieces(a.shape[1], device.block)
            c[rows, columns] = _sum(_block(device, a[rows, inner], b[inner, columns]) for inner in inners)
    return c


def _sum(terms: Iterable[np.ndarray]) -> np.ndarray:
    """Bools are added with or, integers modulo their width. A single term is not copied."""
    return functools.reduce(operator.add, terms)


def _block(device: Device, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The product of one block, in one launch or several of fixed shapes; each part of an operand is sent once."""
    extents = (a.shape[0], a.shape[1], b.shape[1])
    cuts = device.buckets.cut("float64_matmul", extents, extents, of_digits(device.runtime.hardware, a.dtype))
    row_cuts, inner_cuts, column_cuts, _ = cuts
    if len(row_cuts) == len(inner_cuts) == len(column_cuts) == 1:
        fit = row_cuts[0][1], inner_cuts[0][1], column_cuts[0][1]
        return matmul_kept(device, kept(device, a), kept(device, b), fit=fit).values
    c = np.empty_like(a, order="C", shape=(extents[0], extents[2]))
    right = [[kept(device, b[inner, columns]) for inner, _ in inner_cuts] for columns, _ in column_cuts]
    for rows, m in row_cuts:
        left = [kept(device, a[rows, inner]) for inner, _ in inner_cuts]
        for (columns, n), parts in zip(column_cuts, right, strict=True):
            c[rows, columns] = _sum(
                matmul_kept(device, x, y, fit=(m, k, n)).values
                for x, y, (_, k) in zip(left, parts, inner_cuts, strict=True)
            )
    return c


def gram(device: Device, a: np.ndarray) -> np.ndarray:
    """A A^H (m, m) of float64 or complex128 a (m, k), exactly Hermitian: about half the work of ``matmul``."""
    if max(a.shape) <= device.block:
        return gram_kept(device, kept(device, a)).values
    c = np.empty_like(a, order="C", shape=(len(a), len(a)))
    for rows in pieces(len(a), device.block):
        inners = pieces(a.shape[1], device.block)
        c[rows, rows] = _sum(gram_kept(device, kept(device, a[rows, inner])).values for inner in inners)
        for columns in pieces(rows.start, device.block):
            c[rows, columns] = matmul(device, a[rows], a[columns].conj().T)
            c[columns, rows] = c[rows, columns].conj().T
    return c


def kept(device: Device, x: np.ndarray) -> Digits:
    """An array as an operand. Its forms serve all products of a call, and later calls if they are cached."""
    parts = (x.real, x.imag) if x.dtype.kind == "c" else (x,)
    return Digits(x.dtype, tuple(source(device, part) for part in parts))


def matmul_kept(device: Device, a: Digits, b: Digits, digits: int | None = None, fit: Extents | None = None) -> Digits:
    """The product of two kept operands (m, k) and (k, n) of one dtype. Only new forms and a bound are transferred.

    The result stays on the device, as integer words, until its values are read. Complex operands need four products,
    each with its own scales, so that a small part is as accurate as a large one (docs/products.md#single-and-complex).
    ``digits``: for float64, the number to use without an error bound; the error is then relative to the largest terms
    of each sum. ``fit``: the extents of the compiled variant to launch.
    """
    shape = a.shape[0], b.shape[1]
    fit = fit or device.buckets.fit("float64_matmul", (a.shape[0], a.shape[1], b.shape[1]))
    product = functools.partial(_float64, digits=digits) if a.parts[0].dtype.kind == "f" else _integers
    if len(a.parts) == 1:
        return Digits(a.dtype, (product(device, a.parts[0], b.parts[0], fit),))
    (rr, ri), (ir, ii) = ([product(device, x, y, fit) for y in b.parts] for x in a.parts)
    sa, sb = (-1 if h.conjugate else 1 for h in (a, b))
    real = Store(shape, rr.dtype, lambda: rr.values - sa * sb * ii.values)
    imaginary = Store(shape, rr.dtype, lambda: sb * ri.values + sa * ir.values)
    return Digits(a.dtype, (Source(real), Source(imaginary)))


def gram_kept(device: Device, a: Digits, digits: int | None = None) -> Digits:
    """A A^H of a kept operand, as in ``gram``; ``digits`` as in ``matmul_kept``."""
    if len(a.parts) == 1:
        return Digits(a.dtype, (_syrk(device, a.parts[0], digits),))
    (x, y), shape, sign = a.parts, (a.shape[0], a.shape[0]), -1 if a.conjugate else 1
    fit = device.buckets.fit("float64_matmul", (a.shape[0], a.shape[1], a.shape[0]))
    squares, cross = [_syrk(device, p, digits) for p in a.parts], _float64(device, y, x.T, fit, digits)
    real = Store(shape, x.dtype, lambda: squares[0].values + squares[1].values)
    imaginary = Store(shape, x.dtype, lambda: sign * (cross.values - cross.values.T))
    return Digits(a.dtype, (Source(real), Source(imaginary)))


def source(device: Device, x: np.ndarray) -> Source:
    """A real array as an operand, with its forms from the cache."""
    turned = abs(x.strides[0]) < abs(x.strides[1])  # parts of a complex array are not contiguous
    base = x.T if turned else x
    return Source(Store(base.shape, base.dtype, lambda: base, functools.partial(device.keep, base), given=True), turned)


def _float64(device: Device, a: Source, b: Source, fit: Extents, digits: int | None = None) -> Source:
    """One product, with an error bound unless ``digits`` is given; its words stay on the device until they are read."""
    if digits is not None:
        return launched(device, digits, a, b, fit)
    found = certificate(device, a, b, fit)
    return in_parts(device, a, b, fit) if found is None else launched(device, *found, fit)


def in_parts(device: Device, a: Source, b: Source, fit: Extents) -> Source:
    """A product of operands split into parts of less exponent range: one error bound holds for the sum."""
    left, right = ([stored(x) for x in _digits.parts(y.values, axis)] for y, axis in ((a, 1), (b, 0)))
    tiles = for_numbers(2).of_numbers()
    sums = {}
    for (i, x), (j, y) in itertools.product(enumerate(left), enumerate(right)):
        magnitudes = _put_magnitudes(device, x, 1, (fit[0], fit[1])), _put_magnitudes(device, y, 0, (fit[1], fit[2]))
        sums[i, j] = device.runtime.launch("matmul", *magnitudes, **tiles)[: a.shape[0], : b.shape[1]]
    needed = affordable(device, _digits.digits_of_parts([x.values for x in left], [y.values for y in right], sums))
    # The smallest products are added first.
    products = [
        launched(device, needed[i, j], left[i], right[j], fit) for i, j in sorted(needed, key=sum, reverse=True)
    ]
    shape = a.shape[0], b.shape[1]
    return Source(
        Store(shape, a.dtype, lambda: functools.reduce(np.add, [p.values for p in products], np.zeros(shape)))
    )


def affordable(device: Device, needed: dict[_digits.Pair, int] | None) -> dict[_digits.Pair, int]:
    """``needed``, the digits of products of parts; Uncertified if they need too many digit products."""
    if needed is None or sum(map(_digits.pairs, needed.values())) > device.passes:
        raise Uncertified(TOO_WIDE)
    return needed


def launched(device: Device, digits: int, a: Source, b: Source, fit: Extents) -> Source:
    """One product with the given number of digits."""
    m, k, n = fit
    asked, digits = digits, device.count(digits)
    left, rows = _put_digits(device, a, digits, 1, (k, m))
    right, columns = _put_digits(device, b, digits, 0, (k, n))
    best = for_digits(digits, device.runtime.hardware, bits=device.bits)
    tiles = device.buckets.tiles("float64_matmul", _form(digits), fit, best)
    words = device.runtime.run("float64_matmul", left, right, **tiles.of_digits())
    shape = a.shape[0], b.shape[1]

    def fetch() -> np.ndarray:
        prove = checksums.begun(a, b, asked, device.parallel) if device.proved else None
        c = rounded(device, words, shape, _digits.unit(digits, device.bits) - rows, -columns)
        if c is None:
            found = device.runtime.get(words)[:, : shape[0], : shape[1]]
            c = _digits.assemble(found, digits, rows[:, np.newaxis], columns[np.newaxis], device.bits)
        if prove is not None:
            prove(c)
        return c

    return Source(Store(shape, a.dtype, fetch))


def rounded(
    device: Device, words: Buffer, shape: tuple[int, int], rows: np.ndarray, columns: np.ndarray, places: int = 0
) -> np.ndarray | None:
    """The integers in ``words`` times 2^(rows + columns), rounded to float64 on the device; None if the host must.

    The host rounds if there are few, or if a result may be subnormal or overflow. Half a digit at each of the lowest
    ``places`` bytes is subtracted.
    """
    few = math.prod(shape) < FEWEST_RESULTS or words.shape[2] > to_float64.COLUMNS
    if few or not device.splits or not normal(rows, columns, words.shape[0]):
        return None
    down = np.zeros_like(rows, np.float32, shape=(words.shape[1], 1))
    across = np.zeros_like(columns, np.float32, shape=(1, words.shape[2]))
    down[: shape[0], 0], across[0, : shape[1]] = rows, columns
    more = {"places": places} if places else {}
    found: np.ndarray = device.runtime.launch("float64_round", words, down, across, **more).view(np.float64)
    return found if found.shape == shape else found[: shape[0], : shape[1]].copy()


def normal(rows: np.ndarray, columns: np.ndarray, words: int) -> bool:
    """Whether integers of ``words`` words times 2^(rows + columns) are normal numbers or zero, of each matrix (...)."""
    lowest, highest = rows.min(axis=-1) + columns.min(axis=-1), rows.max(axis=-1) + columns.max(axis=-1) + 32 * words
    return bool(usual(((lowest >= to_float64.LOWEST) & (highest <= to_float64.HIGHEST)).all(), True))


def _syrk(device: Device, a: Source, digits: int | None = None) -> Source:
    """One A A^T, with an error bound unless ``digits`` is given: a triangle of blocks, and half of diagonal blocks."""
    order = a.shape[0]
    m, k, _ = device.buckets.fit("float64_matmul", (order, a.shape[1], order))
    if digits is None:
        magnitudes = _put_magnitudes(device, a, 1, (m, k))
        least = smallest(
            device, magnitudes, magnitudes, not a.turned, a.turned, usual_least(a.shape[1], few_terms(a.values))
        )
        digits = _digits.digits_for(least, a.shape[1])
        if digits is None:
            return _syrk_in_parts(device, a)
    s = device.count(digits)
    left, shift = _put_digits(device, a, s, 1, (k, m))
    best = for_digits(s, device.runtime.hardware, bits=device.bits)
    tiles = device.buckets.tiles("float64_matmul halved", _form(s), (m, k, m), best)
    packed = device.runtime.run("float64_matmul", left, **tiles.of_digits(), halved=True)

    def fetch() -> np.ndarray:
        prove = checksums.begun(a, a.T, digits, device.parallel) if device.proved else None
        c = _unpacked(device.runtime.get(packed), order, m, tiles.m_tiles * TILE, s, shift, device.bits)
        if prove is not None:
            prove(c)
        return c

    return Source(Store((order, order), a.dtype, fetch))


@priced("symmetric combine", lambda found, order, *_: (1.0 * order * order, (((order, order), FLOAT64),)))
def _unpacked(
    found: np.ndarray, order: int, m: int, m_block: int, digits: int, shift: np.ndarray, bits: int
) -> np.ndarray:
    """A A^T (order, order) from the words of its lower blocks, stored one after the other."""
    c = np.zeros((order, order))
    squares: dict[int, list[np.ndarray]] = {}  # blocks on the diagonal from the top, by their first column
    for row, height, column, width, start in lower_blocks(m, m_block, halved=True):
        block = found[:, start : start + height * width].reshape(-1, height, width)
        if row < column + width:
            above = squares.setdefault(column, [])
            above.append(block)
            if row + height < column + width:
                continue
            row, block = column, _digits.symmetrised(np.concatenate(above, axis=1))
        rows, columns = slice(row, min(row + block.shape[1], order)), slice(column, min(column + width, order))
        if rows.start < rows.stop and columns.start < columns.stop:  # the block is not only padding
            block = block[:, : rows.stop - row, : columns.stop - column]
            c[rows, columns] = _digits.assemble(
                block, digits, shift[rows, np.newaxis], shift[np.newaxis, columns], bits
            )
    return np.asarray(np.tril(c) + np.tril(c, -1).T)


def _syrk_in_parts(device: Device, a: Source) -> Source:
    """A A^T, exactly symmetric, of an operand split into parts. It is rare, so all products are computed in full."""
    fit = device.buckets.fit("float64_matmul", (a.shape[0], a.shape[1], a.shape[0]))
    whole = in_parts(device, a, a.T, fit)
    return Source(Store(whole.shape, a.dtype, lambda: np.tril(whole.values) + np.tril(whole.values, -1).T))


def _integers(device: Device, a: Source, b: Source, fit: Extents) -> Source:
    """The exact product modulo the width of the dtype; for bools, whether any pair of elements is true."""
    m, k, n = fit
    dtype, shape = a.dtype, (a.shape[0], b.shape[1])
    left, right = _put_bytes(device, a, 1, (k, m)), _put_bytes(device, b, 0, (k, n))
    best = for_digits(dtype.itemsize, device.runtime.hardware, wrap=True)
    tiles = device.buckets.tiles("float64_matmul wrap", _form(dtype.itemsize), (m, k, n), best)
    words = device.runtime.run("float64_matmul", left, right, **tiles.of_digits())

    def fetch() -> np.ndarray:
        c = _digits.integers(device.runtime.get(words)[:, : shape[0], : shape[1]], dtype)
        if device.proved and dtype.kind != "b":
            integers.prove(a.values, b.values, c)
        return c

    return Source(Store(shape, dtype, fetch))


def _form(digits: int) -> str:
    """The name of the operands' form, which determines the tiles of a product of digits."""
    return f"{digits} digits"


def _put_bytes(device: Device, x: Source, axis: int, padded: tuple[int, int]) -> Buffer:
    """Digits (s, K, others) on the device, lowest first, of integers whose ``axis`` is the summed one, K."""
    along = axis ^ x.turned
    places = tuple(range(x.dtype.itemsize))
    kept: Buffer = x.store.keep(
        ("integers", along, padded), lambda: _ship(device, _digits.integer_bytes(x.store.values), places, along, padded)
    )
    return kept


def _put_digits(
    device: Device, x: Source, digits: int, axis: int, padded: tuple[int, int]
) -> tuple[Buffer, np.ndarray]:
    """Digits (s, K, others) on the device of float64 whose ``axis`` is the summed one, K, and the exponents (others,).

    ``padded``: the padded extents of K and of the other axis.
    """
    along = axis ^ x.turned
    sent = _sent(device, x, digits, along, padded if along == 0 else padded[::-1])
    if sent is not None:
        return sent.digits, sent.shift

    def new() -> tuple[Buffer, np.ndarray]:
        raw, places, shift = _digits.link_bytes(x.store.values, digits, along, device.bits)
        return _ship(device, raw, places, along, padded), shift.reshape(-1)

    kept: tuple[Buffer, np.ndarray] = x.store.keep(("digits", digits, along, padded), new)
    return kept


def _ship(device: Device, raw: np.ndarray, places: tuple[int, ...], axis: int, padded: tuple[int, int]) -> Buffer:
    """Digits on the device from the bytes of elements (rows, columns, width); only these are transferred."""
    shape = padded if axis == 0 else padded[::-1]
    flat = extended(raw, shape, ZERO).reshape(shape[0], -1)
    buffer: Buffer = device.runtime.run("digits_split", flat, width=raw.shape[2], places=places, turned=axis == 1)
    return buffer


def split_there(device: Device, size: tuple[int, int], digits: int, padded: tuple[int, int]) -> bool:
    """Whether a float64 matrix is sent unchanged and split on the device."""
    takes = digits >= of_words.FEWEST and padded[1] <= of_words.COLUMNS
    return device.splits and device.bits == _digits.BITS and takes and math.prod(size) >= SMALLEST


class _Sent(NamedTuple):
    """The output of ``float64_digits`` for a matrix, and its exponents (others,)."""

    digits: Buffer
    magnitudes: Buffer
    shift: np.ndarray


def _sent(device: Device, x: Source, digits: int, along: int, shape: tuple[int, int]) -> _Sent | None:
    """A float64 matrix, padded to ``shape``, sent unchanged and split on the device; None if the host must split it.

    The host splits small matrices, and those with a row or column scale near underflow.
    """
    if not split_there(device, x.store.shape, digits, shape):
        return None

    def new() -> _Sent | None:
        words = put_words(device, x.store, shape)
        made, magnitudes, found = device.runtime.run("float64_digits", words, by_rows=along == 1, digits=digits)
        shift = shifts(device, found, digits)
        return None if shift is None else _Sent(made, magnitudes, shift.reshape(-1)[: x.store.shape[1 - along]])

    kept: _Sent | None = x.store.keep(("float64", digits, along, shape), new)
    return kept


def shifts(device: Device, found: Buffer, digits: int) -> np.ndarray | None:
    """The exponents taken out by ``float64_digits``, whose third output is ``found``; None if one is near underflow."""
    tops = usual(device.runtime.get(found), np.full(found.shape, of_words.ONE))
    if tops.max() >= of_words.NOT_FINITE:
        raise Uncertified(NOT_FINITE)
    if ((tops > 0) & (tops < of_words.FAINTEST)).any():
        return None
    return np.asarray(shift_of(digits, np.where(tops > 0, tops, of_words.ONE)))


def shift_of(digits: int, top: Any) -> Any:
    """The exponents taken out of numbers that were split on the device, from the biased exponents ``top`` of scales."""
    return _digits.BITS * min(digits, _digits.WORD) + of_words.ONE - 2 - top


def put_words(device: Device, store: Store, shape: tuple[int, int]) -> Buffer:
    """A float64 matrix, unchanged and padded to ``shape``, on the device."""
    kept: Buffer = store.keep(("words", shape), lambda: device.runtime.put(link_words(store.values, shape)))
    return kept


@priced("copy", lambda a, shape: (3.0 * a.nbytes if a.shape != shape else 0.0, (((shape[0], 2 * shape[1]), INT32),)))
def link_words(a: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """The words of float64 numbers, lower ones first, padded with zeros to ``shape``: int32 (rows, 2 columns)."""
    return extended(a, shape, 0).view(np.int32)


def _put_magnitudes(device: Device, x: Source, axis: int, padded: tuple[int, int]) -> Buffer:
    """|x| over its largest element along ``axis``, in the layout of the store, ``padded`` to (rows, columns of x)."""
    along, shape = axis ^ x.turned, padded[::-1] if x.turned else padded
    sent = _sent(device, x, _digits.DIGITS, along, shape)
    if sent is not None:
        return sent.magnitudes

    def new() -> Buffer:
        check_finite(x.store.values)
        scaled = _digits.magnitudes(x.store.values, along)
        return device.runtime.put(extended(scaled, shape, 0))

    kept: Buffer = x.store.keep(("magnitudes", along, shape), new)
    return kept


def extended(x: np.ndarray, shape: tuple[int, int], fill: int) -> np.ndarray:
    """x (rows, columns, ...) with ``fill`` below and to the right."""
    if x.shape[:2] == shape:
        return x.astype(x.dtype, order="C", copy=False)
    padded = np.full_like(x, fill, order="C", shape=(*shape, *x.shape[2:]))
    padded[: x.shape[0], : x.shape[1]] = x
    return padded


def usual_least(k: int, few: bool) -> float:
    """Default estimate of the smallest element: random matrices need seven digits, or nine if one is a triangle."""
    return math.sqrt(k) * (_digits.BASE**-1.5 if few else 1.0)


def smallest(device: Device, left: Buffer, right: Buffer, a_rows: bool, b_rows: bool, typical: float) -> float:
    """The smallest positive element of a product of magnitudes; in dry runs the ``typical`` one."""
    (m, k), n = left.shape if a_rows else left.shape[::-1], right.shape[1 if b_rows else 0]
    tiles = device.buckets.tiles("abs_bound", "bfloat16", (m, k, n), for_bounds()).of_numbers()
    bounds = device.runtime.launch("abs_bound", left, right, a_rows=a_rows, b_rows=b_rows, **tiles)
    return smallest_of(bounds, typical, "abs_bound")


def smallest_of(bounds: np.ndarray, typical: float, kernel: str) -> float:
    """The smallest of a kernel's smallest positive elements; in dry runs the ``typical`` one."""
    least = float(usual(bounds.min(), typical))
    if not least > 0:  # kernels ignore zeros, so this is a fault
        raise DeviceError(f"{kernel} gave {least} as the smallest positive element")
    return least


def certificate(device: Device, a: Source, b: Source, fit: Extents) -> tuple[int, Source, Source] | None:
    """(digits, a, b) of the product as given or, if that needs too many digits, in equilibrated form.

    None if both need more than MOST_DIGITS. Equilibrating takes longer than multiplying with all digits, except for
    twelve digits of matrices of 8,192 rows.
    """

    def digits_of(x: Source, y: Source) -> int | None:
        left, right = _put_magnitudes(device, x, 1, (fit[0], fit[1])), _put_magnitudes(device, y, 0, (fit[1], fit[2]))
        typical = usual_least(x.shape[1], few_terms(a.values, b.values))
        least = smallest(device, left, right, not x.turned, not y.turned, typical)
        return _digits.digits_for(least, a.shape[1])

    digits = digits_of(a, b)
    if digits is None and (scaled := _digits.equilibrate(a.values, b.values)) is not None:
        a, b = map(stored, scaled)
        digits = digits_of(a, b)
    return None if digits is None else (digits, a, b)


def check_finite(*operands: np.ndarray) -> None:
    if not all(usual(np.isfinite(x).all(), True) for x in operands):
        raise Uncertified(NOT_FINITE)
