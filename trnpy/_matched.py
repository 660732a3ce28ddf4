"""Products of float64, complex128, integers and bool on a device, as good as the host's: digits with a certificate.

float64: of the product as given and of its equilibrated form the one is taken that fewer digits certify
(NUMERICS 1.4): at most 4 u of |A||B| in every element. Integers have their own digits and are bit-equal,
wrap-around included. float16, float32 and complex64 are formats of TensorE and need none of this. Blocks
of at most BLOCK are products of their own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np

from trnpy import _digits
from trnpy._nki.kernels.digits_matmul_reference import lower_blocks
from trnpy._nki.kernels.parameters import TILE, for_digits, for_numbers
from trnpy._nki.runtime import Buffer, Runtime
from trnpy._shapes import BLOCK, Buckets, Extents, pieces

DTYPES = frozenset("?bBhHiIlLqQdD")  # characters of the dtypes with products here
ZERO = 0x80  # the byte of a digit that is zero
TOO_WIDE = f"the exponent range inside its sums needs more than {_digits.MOST_DIGITS} digits"


class Uncertified(Exception):
    """No number of digits here is known to be enough for these values: a phrase says why."""


@dataclass(frozen=True, slots=True)
class Device:
    """What products run on: a runtime, the shapes its kernels are compiled for, the longest block, what it keeps."""

    runtime: Runtime
    buckets: Buckets
    block: int = BLOCK  # digits of a block are at most 12 x 8192^2: run-time offsets are 32-bit integers
    # (operand, form, make) -> make(), or what it returned for the same operand in the same form
    keep: Callable[[np.ndarray, Hashable, Callable[[], Any]], Any] = lambda operand, form, make: make()


def matmul(device: Device, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """(m, k) by (k, n) of one dtype of DTYPES, none of them empty, in that dtype.

    Uncertified for values that are not finite, or hide more exponent range in their sums than 12 digits hold.
    """
    if a.dtype.kind == "c":
        # 4M: each product has scales of its own, so that a small part is as accurate as a large one.
        c = np.empty((a.shape[0], b.shape[1]), a.dtype)
        c.real = matmul(device, a.real, b.real) - matmul(device, a.imag, b.imag)
        c.imag = matmul(device, a.real, b.imag) + matmul(device, a.imag, b.real)
        return c
    product = _float64 if a.dtype.kind == "f" else _integers
    c = np.zeros((a.shape[0], b.shape[1]), a.dtype)
    for rows in pieces(a.shape[0], device.block):
        for columns in pieces(b.shape[1], device.block):
            for inner in pieces(a.shape[1], device.block):  # bools add by or, integers modulo their width
                c[rows, columns] += product(device, a[rows, inner], b[inner, columns])
    return c


def gram(device: Device, a: np.ndarray) -> np.ndarray:
    """A A^H (m, m) of float64 or complex128 a (m, k), exactly Hermitian: about half the work of ``matmul``."""
    if a.dtype.kind == "c":
        c = np.empty((len(a), len(a)), a.dtype)
        c.real = gram(device, a.real) + gram(device, a.imag)
        cross = matmul(device, a.imag, a.real.T)
        c.imag = cross - cross.T
        return c
    c = np.zeros((len(a), len(a)))
    for rows in pieces(len(a), device.block):
        for inner in pieces(a.shape[1], device.block):
            c[rows, rows] += _syrk(device, a[rows, inner])
        for columns in pieces(rows.start, device.block):
            c[rows, columns] = matmul(device, a[rows], a[columns].T)
            c[columns, rows] = c[rows, columns].T
    return c


def _float64(device: Device, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """One certified product."""
    _check_finite(a, b)
    m, k, n = fit = device.buckets.fit("digits_matmul", (a.shape[0], a.shape[1], b.shape[1]))
    digits, x, y = _certified(device, a, b, fit)
    left, rows = _put_digits(device, x, digits, 1, (m, k))
    right, columns = _put_digits(device, y, digits, 0, (k, n))
    tiles = for_digits(digits, device.runtime.hardware)
    words = device.runtime.launch("digits_matmul", left, right, **tiles.of_digits())
    return _digits.assemble(words[:, : a.shape[0], : b.shape[1]], digits, rows + columns)


def _syrk(device: Device, a: np.ndarray) -> np.ndarray:
    """One certified A A^T, of which the device computes the blocks that meet the lower triangle."""
    _check_finite(a)
    m, k, _ = device.buckets.fit("digits_matmul", (len(a), a.shape[1], len(a)))
    magnitudes = _put_magnitudes(device, a, 1, (m, k))
    digits = _digits.digits_for(_smallest(device, magnitudes, magnitudes, b_rows=False), a.shape[1])
    if digits is None:
        raise Uncertified(TOO_WIDE)
    left, shift = _put_digits(device, a, digits, 1, (m, k))
    tiles = for_digits(digits, device.runtime.hardware)
    packed = device.runtime.launch("digits_matmul", left, **tiles.of_digits())
    c = np.zeros((len(a), len(a)))
    for row, height, column, width, start in lower_blocks(m, tiles.m_tiles * TILE):
        words = packed[:, start : start + height * width].reshape(-1, height, width)
        rows, columns = slice(row, min(row + height, len(a))), slice(column, min(column + width, len(a)))
        if rows.start < rows.stop and columns.start < columns.stop:  # not of the padding alone
            block = words[:, : rows.stop - row, : columns.stop - column]
            c[rows, columns] = _digits.assemble(block, digits, shift[rows] + shift[columns].T)
    return np.asarray(np.tril(c) + np.tril(c, -1).T)


def _integers(device: Device, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The exact product modulo the width of the dtype; of bools whether any pair meets."""
    m, k, n = device.buckets.fit("digits_matmul", (a.shape[0], a.shape[1], b.shape[1]))
    places = tuple(range(a.dtype.itemsize))  # the lowest first
    left, right = (
        device.keep(
            x,
            ("integers", axis, padded),
            functools.partial(_put, device, x, lambda x, _: (_bytes(x), places), axis, padded),
        )
        for x, axis, padded in ((a, 1, (m, k)), (b, 0, (k, n)))
    )
    tiles = for_digits(len(places), device.runtime.hardware, wrap=True)
    words = device.runtime.launch("digits_matmul", left, right, **tiles.of_digits())[:, : a.shape[0], : b.shape[1]]
    if a.dtype.kind == "b":
        return np.asarray(words[0] != 0)
    value = words[0].view(np.uint32).astype(np.uint64)
    if len(words) == 2:
        value |= words[1].view(np.uint32).astype(np.uint64) << np.uint64(32)
    return np.asarray(value.astype(a.dtype))


def _bytes(a: np.ndarray) -> np.ndarray:
    """Integers modulo their width as uint8 (rows, columns, itemsize): a byte less 128 is a balanced digit."""
    unsigned = np.ascontiguousarray(a).view(f"u{a.dtype.itemsize}")
    offset = sum(ZERO << (8 * i) for i in range(a.dtype.itemsize))
    return np.asarray((unsigned + unsigned.dtype.type(offset))[..., np.newaxis].view(np.uint8))


Encode = Callable[[np.ndarray, int], tuple[np.ndarray, tuple[int, ...]]]  # bytes, and the place of each digit


def _put(device: Device, x: np.ndarray, encode: Encode, axis: int, padded: tuple[int, int]) -> Buffer:
    """Digits (s, K, columns) on the device of an operand whose ``axis`` is K; only its bytes cross the link.

    ``encode(matrix, axis)`` is given the matrix as it lies in memory.
    """
    across = x.flags.f_contiguous and not x.flags.c_contiguous
    if across:
        x, axis, padded = x.T, 1 - axis, padded[::-1]
    raw, places = encode(x, axis)
    flat = _padded(raw, padded, ZERO).reshape(padded[0], -1)
    buffer: Buffer = device.runtime.run("digits_split", flat, width=raw.shape[2], places=places, turned=axis == 1)
    return buffer


def _put_digits(
    device: Device, x: np.ndarray, digits: int, axis: int, padded: tuple[int, int]
) -> tuple[Buffer, np.ndarray]:
    """Digits of a float64 operand on the device, and the exponents taken out of its rows or columns."""
    kept: tuple[Buffer, np.ndarray] = device.keep(
        x, ("digits", digits, axis, padded), lambda: _new_digits(device, x, digits, axis, padded)
    )
    return kept


def _new_digits(
    device: Device, x: np.ndarray, digits: int, axis: int, padded: tuple[int, int]
) -> tuple[Buffer, np.ndarray]:
    shift = np.empty(0)

    def encode(matrix: np.ndarray, along: int) -> tuple[np.ndarray, tuple[int, ...]]:
        nonlocal shift
        split = _digits.split(matrix, digits, along)
        shift = split.shift if along == axis else split.shift.T
        return split.bytes(), split.places

    return _put(device, x, encode, axis, padded), shift


def _put_magnitudes(device: Device, x: np.ndarray, axis: int, padded: tuple[int, int]) -> Buffer:
    import ml_dtypes  # an extra of pip that comes with every device runtime

    def new() -> Buffer:
        scaled = _digits.magnitudes(x, axis).astype(ml_dtypes.bfloat16)
        return device.runtime.put(_padded(scaled, padded, 0))

    kept: Buffer = device.keep(x, ("magnitudes", axis, padded), new)
    return kept


def _padded(x: np.ndarray, shape: tuple[int, int], fill: int) -> np.ndarray:
    """x (rows, columns, ...) with ``fill`` below and to the right."""
    if x.shape[:2] == shape:
        return np.ascontiguousarray(x)
    padded = np.full((*shape, *x.shape[2:]), fill, x.dtype)
    padded[: x.shape[0], : x.shape[1]] = x
    return padded


def _smallest(device: Device, left: Buffer, right: Buffer, b_rows: bool = True) -> float:
    """The smallest positive element of a product of magnitudes."""
    tiles = for_numbers(2)
    return float(device.runtime.launch("abs_bound", left, right, b_rows=b_rows, **tiles.of_numbers()).min())


def _certified(device: Device, a: np.ndarray, b: np.ndarray, fit: Extents) -> tuple[int, np.ndarray, np.ndarray]:
    """(digits, a, b) of the cheaper of the product as it is and, where that needs many, its equilibrated form."""

    def digits_of(x: np.ndarray, y: np.ndarray) -> int | None:
        left, right = _put_magnitudes(device, x, 1, (fit[0], fit[1])), _put_magnitudes(device, y, 0, (fit[1], fit[2]))
        return _digits.digits_for(_smallest(device, left, right), a.shape[1])

    digits = digits_of(a, b)
    if digits == _digits.DIGITS:
        return digits, a, b
    x, y = _digits.equilibrate(a, b)
    fewer = None if x is a else digits_of(x, y)
    if fewer is not None and (digits is None or fewer < digits):
        return fewer, x, y
    if digits is None:
        raise Uncertified(TOO_WIDE)
    return digits, a, b


def _check_finite(*operands: np.ndarray) -> None:
    if not all(np.isfinite(x).all() for x in operands):
        raise Uncertified("an operand holds NaN or infinity")
