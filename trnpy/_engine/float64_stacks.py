"""Stacks of small products with digits in one launch, with the error bounds of single products, or bit-equal.

Stacks of float64 matrices with SMALLEST elements each are sent unchanged. Their digits, error bounds and results are
made on the device, as for single products.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from trnpy._engine import digits as _digits
from trnpy._engine import float64_products as _single
from trnpy._engine.abstract_arrays import TWO_BYTES, few_terms, priced, usual
from trnpy._engine.float64_products import ZERO, Device, affordable, check_finite, usual_least
from trnpy._engine.residency import place
from trnpy._engine.tuning import Extents, pieces, rung
from trnpy._nki.kernels.products.float64_matmul_reference import BLOCKS
from trnpy._nki.kernels.products.float64_round_reference import in_parts
from trnpy._nki.kernels.shared.parameters import TILE, TILE_N, Parameters, for_bounds, for_stack
from trnpy._nki.runtime import Buffer


def matmul(device: Device, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The products of (B, m, k) and (B, k, n), both of one dtype of ``float64_products.DTYPES``, in that dtype.

    Uncertified for the same reasons as ``float64_products.matmul``, but for the whole stack.
    """
    device = _remembering(device)
    if a.dtype.kind == "c":
        c = np.empty_like(a, order="C", shape=(len(a), a.shape[1], b.shape[2]))
        c.real = matmul(device, a.real, b.real) - matmul(device, a.imag, b.imag)
        c.imag = matmul(device, a.real, b.imag) + matmul(device, a.imag, b.real)
        return c
    product = _float64 if a.dtype.kind == "f" else _integers
    m, k, n = fit = device.buckets.fit("float64_matmul stack", (a.shape[1], a.shape[2], b.shape[2]))
    # A table on the chip holds the offsets of all blocks; one launch is at most as large as one large product.
    most = min(BLOCKS // (-(-m // TILE) * -(-n // TILE_N)), max(device.block**2 // max(m * k, k * n, m * n), 1))
    parts = [product(device, a[some], b[some], fit, most) for some in pieces(len(a), most)]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _remembering(device: Device) -> Device:
    """``device`` with a cache of its own for this call, so that each part of a stack is sent once."""
    forms: dict[Hashable, tuple[np.ndarray, Any]] = {}

    def keep(x: np.ndarray, form: Hashable, make: Callable[[], Any]) -> Any:
        key = place(x), x.shape, x.strides, form
        if key not in forms:
            forms[key] = x, device.keep(x, form, make)  # keeps x alive, so that no other array gets its id
        return forms[key][1]

    return replace(device, keep=keep)


def _float64(device: Device, a: np.ndarray, b: np.ndarray, fit: Extents, most: int) -> np.ndarray:
    """One launch of products with an error bound; all use the number of digits that the hardest one needs."""
    count = _count(len(a), most)
    c = _made_there(device, a, b, fit, count) if _split_there(device, fit) else None
    if c is not None:
        return c
    check_finite(a, b)
    found = _certified(device, a, b, fit, count)
    if found is not None:
        return _product(device, *found, fit, count)
    return _in_parts(device, a, b, fit, count)


def _split_there(device: Device, fit: Extents) -> bool:
    """Whether float64 stacks are sent unchanged; the host splits small matrices in less time than the device."""
    m, k, n = fit
    return device.splits and device.bits == _digits.BITS and min(m * k, k * n, m * n) >= _single.SMALLEST


class _Sent(NamedTuple):
    """The output of ``float64_digits`` for a stack, and its exponents, (B, others)."""

    digits: Buffer
    magnitudes: Buffer
    shift: np.ndarray


def _made_there(device: Device, a: np.ndarray, b: np.ndarray, fit: Extents, count: int) -> np.ndarray | None:
    """Products whose digits and bounds are made on the device; None if they need scaling or parts by the host."""
    (m, k, n), digits = fit, _digits.DIGITS
    left, right = _sent(device, a, digits, -1, (count, m, k)), _sent(device, b, digits, -2, (count, k, n))
    if left is None or right is None:
        return None
    tiles = for_bounds().of_numbers()
    bounds = device.runtime.launch("abs_bound", left.magnitudes, right.magnitudes, batch=count, **tiles)
    least = _single.smallest_of(bounds, usual_least(a.shape[2], few_terms(a, b)), "abs_bound")
    needed = _digits.digits_for(least, a.shape[2])
    if needed is None:
        return None
    if needed > digits:
        left, right = _sent(device, a, needed, -1, (count, m, k)), _sent(device, b, needed, -2, (count, k, n))
        assert left is not None and right is not None
    tiles = for_stack(needed, device.runtime.hardware, m, k).of_digits()
    words = device.runtime.run("float64_matmul", left.digits, right.digits, batch=count, beside=True, **tiles)
    shape = len(a), a.shape[1], b.shape[2]
    c = _rounded(device, words, _digits.unit(needed) - left.shift, -right.shift, shape)
    if c is not None:
        return c
    found = device.runtime.get(words).reshape(-1, count, m, n)[:, : shape[0], : shape[1], : shape[2]]
    rows, columns = left.shift[: shape[0], : shape[1], np.newaxis], right.shift[: shape[0], np.newaxis, : shape[2]]
    return _digits.assemble(found, needed, rows, columns)


def _sent(device: Device, x: np.ndarray, digits: int, axis: int, padded: tuple[int, int, int]) -> _Sent | None:
    """A stack whose ``axis`` is the summed one, ``padded``, split on the device; None if the host must split it."""
    by_rows, count = axis == -1, padded[0]

    def words() -> Buffer:
        return device.runtime.put(_link_words(x, padded))

    def new() -> _Sent | None:
        sent: Buffer = device.keep(x, ("stack words", padded), words)
        alone = {} if by_rows else {"batch": count}
        made, magnitudes, found = device.runtime.run("float64_digits", sent, by_rows=by_rows, digits=digits, **alone)
        shift = _single.shifts(device, found, digits)
        return None if shift is None else _Sent(made, magnitudes, shift.reshape(count, -1))

    kept: _Sent | None = device.keep(x, ("stack float64", digits, axis, padded), new)
    return kept


def _link_price(x: np.ndarray, padded: tuple[int, int, int]) -> tuple[float, tuple[Any, ...]]:
    copied = x.shape != padded or not x.flags.c_contiguous
    return (3.0 * x.nbytes if copied else 0.0), (((padded[0] * padded[1], 2 * padded[2]), _single.INT32),)


@priced("copy", _link_price)
def _link_words(x: np.ndarray, padded: tuple[int, int, int]) -> np.ndarray:
    """The words of float64 numbers, lower ones first, padded with zeros: int32 (B rows, 2 columns)."""
    stack = _padded(x, padded, 0)
    return stack.reshape(padded[0] * padded[1], padded[2]).view(np.int32)


def _rounded(
    device: Device, words: Buffer, rows: np.ndarray, columns: np.ndarray, shape: tuple[int, int, int]
) -> np.ndarray | None:
    """The integers in ``words`` times 2^(rows + columns), rounded to float64 on the device; None if the host must.

    rows (B, m) and columns (B, n): the exponents. The host rounds if there are few results, or if one may be subnormal
    or overflow.
    """
    (count, m), n = rows.shape, columns.shape[1]
    if math.prod(shape) < _single.FEWEST_RESULTS or not _single.normal(rows, columns, words.shape[0]):
        return None
    dtype = TWO_BYTES if words.value is None else None  # in a dry run
    across = columns.astype(np.float32) if count == 1 else in_parts(columns, dtype)
    down = rows.reshape(-1, 1).astype(np.float32)
    found = device.runtime.launch("float64_round", words, down, across, batch=count).view(np.float64)
    return _unpadded(found.reshape(count, m, n), shape)


@priced("copy", lambda c, shape: (0.0 if c.shape == shape else 3.0 * 8 * math.prod(shape), ((shape, c.dtype),)))
def _unpadded(c: np.ndarray, shape: tuple[int, int, int]) -> np.ndarray:
    """A stack without its padding, which the result does not keep in memory."""
    return c if c.shape == shape else c[: shape[0], : shape[1], : shape[2]].copy()


def _in_parts(device: Device, a: np.ndarray, b: np.ndarray, fit: Extents, count: int) -> np.ndarray:
    """Products of operands split into parts of less exponent range, as in ``float64_products``."""
    left, right = _digits.parts(a, -1), _digits.parts(b, -2)
    pairs = itertools.product(range(len(left)), range(len(right)))
    sums = {(i, j): _sums(device, left[i], right[j], fit, count) for i, j in pairs}
    needed = affordable(device, _digits.digits_of_parts(left, right, sums))
    total = np.zeros((len(a), a.shape[1], b.shape[2]))
    for i, j in sorted(needed, key=sum, reverse=True):
        total += _product(device, needed[i, j], left[i], right[j], fit, count)
    return total


def _certified(
    device: Device, a: np.ndarray, b: np.ndarray, fit: Extents, count: int
) -> tuple[int, np.ndarray, np.ndarray] | None:
    """(digits, a, b) of the whole stack as given or, if that needs too many digits, in equilibrated form."""
    few = few_terms(a, b)
    least = _smallest(device, a, b, fit, count, few)
    digits = _digits.digits_for(float(least.min()), a.shape[2])
    if digits is None and (scaled := _digits.equilibrate(a, b)) is not None:
        better = _smallest(device, *scaled, fit, count, few)
        chosen = (better > least)[:, np.newaxis, np.newaxis]
        digits = _digits.digits_for(float(np.maximum(better, least).min()), a.shape[2])
        a, b = np.where(chosen, scaled[0], a), np.where(chosen, scaled[1], b)
    return None if digits is None else (digits, a, b)


def _product(device: Device, digits: int, a: np.ndarray, b: np.ndarray, fit: Extents, count: int) -> np.ndarray:
    digits, hardware = device.count(digits), device.runtime.hardware
    left, rows = _put_digits(device, a, digits, -1, (count, *fit[:2]))
    right, columns = _put_digits(device, b, digits, -2, (count, *fit[1:]))
    words = _launch(device, left, right, for_stack(digits, hardware, *fit[:2], bits=device.bits), fit, count)
    return _digits.assemble(words[:, : len(a), : a.shape[1], : b.shape[2]], digits, rows, columns, device.bits)


def _integers(device: Device, a: np.ndarray, b: np.ndarray, fit: Extents, most: int) -> np.ndarray:
    """One launch of exact products modulo the width of the dtype; for bools, whether any pair of elements is true."""
    count, dtype = _count(len(a), most), a.dtype
    places = tuple(range(dtype.itemsize))
    tiles = for_stack(dtype.itemsize, device.runtime.hardware, *fit[:2], wrap=True)
    left, right = (
        _ship(device, _digits.integer_bytes(x), places, axis, (count, *extents))
        for x, axis, extents in ((a, -1, fit[:2]), (b, -2, fit[1:]))
    )
    words = _launch(device, left, right, tiles, fit, count)
    return _digits.integers(words[:, : len(a), : a.shape[1], : b.shape[2]], dtype)


def _count(length: int, most: int) -> int:
    """``length`` rounded up to a number of products that kernels are compiled for, at most ``most``."""
    return 1 if length == 1 else min(rung(length), most)


def _launch(device: Device, left: Buffer, right: Buffer, tiles: Parameters, fit: Extents, count: int) -> np.ndarray:
    """Words (w, B, m, n) of the products of digits (s, B k, m) and (s, B k, n)."""
    words: np.ndarray = device.runtime.launch("float64_matmul", left, right, batch=count, **tiles.of_digits())
    return words.reshape(len(words), count, fit[0], fit[2])


def _smallest(device: Device, a: np.ndarray, b: np.ndarray, fit: Extents, count: int, few: bool) -> np.ndarray:
    """The smallest positive element of each product of magnitudes; ``few``: dry runs assume sums of few terms."""
    sums = _sums(device, a, b, fit, count)
    least: np.ndarray = sums.min(axis=(1, 2), where=sums > 0, initial=_digits.NOTHING)
    return usual(least, np.full(len(a), usual_least(a.shape[2], few)))


def _sums(device: Device, a: np.ndarray, b: np.ndarray, fit: Extents, count: int) -> np.ndarray:
    """Products of the magnitudes."""
    left = _put_magnitudes(device, a, -1, (count, *fit[:2]))
    right = _put_magnitudes(device, b, -2, (count, *fit[1:]))
    sums: np.ndarray = device.runtime.launch("batched_matmul", left, right)
    return sums[: len(a), : a.shape[1], : b.shape[2]]


def _put_magnitudes(device: Device, x: np.ndarray, axis: int, padded: tuple[int, ...]) -> Buffer:
    def new() -> Buffer:
        return device.runtime.put(_padded(_digits.magnitudes(x, axis), padded, 0))

    kept: Buffer = device.keep(x, ("stack magnitudes", axis, padded), new)
    return kept


def _put_digits(
    device: Device, x: np.ndarray, digits: int, axis: int, padded: tuple[int, ...]
) -> tuple[Buffer, np.ndarray]:
    """Digits (s, B K, others) of a stack whose ``axis`` is the summed one, K, and the exponents."""

    def new() -> tuple[Buffer, np.ndarray]:
        raw, places, shift = _digits.link_bytes(x, digits, axis, device.bits)
        return _ship(device, raw, places, axis, padded), shift

    kept: tuple[Buffer, np.ndarray] = device.keep(x, ("stack digits", digits, axis, padded), new)
    return kept


def _ship(device: Device, raw: np.ndarray, places: tuple[int, ...], axis: int, padded: tuple[int, ...]) -> Buffer:
    """Digits (s, B K, others) on the device from the bytes (B, rows, columns, width) of a stack whose ``axis`` is K."""
    stack = _padded(raw, padded, ZERO)
    if axis == -1:
        stack = stack.swapaxes(1, 2)
    flat = stack.astype(stack.dtype, order="C", copy=False).reshape(stack.shape[0] * stack.shape[1], -1)
    buffer: Buffer = device.runtime.run("digits_split", flat, width=raw.shape[-1], places=places)
    return buffer


def _padded(x: np.ndarray, shape: tuple[int, ...], fill: int) -> np.ndarray:
    """A stack x (B, rows, columns, ...), padded with ``fill`` to ``shape``."""
    if x.shape[:3] == shape:
        return x.astype(x.dtype, order="C", copy=False)
    padded = np.full_like(x, fill, order="C", shape=(*shape, *x.shape[3:]))
    padded[: x.shape[0], : x.shape[1], : x.shape[2]] = x
    return padded
