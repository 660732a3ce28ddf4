"""Products of two sparse matrices with 128 x 128 tiles; SciPy finds the pattern of the result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from trnpy._base.records import record
from trnpy._engine import digits as _digits
from trnpy._engine.engines import BY_DIGITS, Engine, Held, Refused
from trnpy.sparse._device import (
    ZERO,
    Layout,
    Source,
    Tiled,
    certified,
    digits_on,
    form_of,
    padded,
)
from trnpy.sparse._tiles import TILE, Tiling, compressed, rung, tiling


@record(eq=False)
class Pairs:
    """The products of tiles in a sparse product, ordered by the tile of the result to which each is added."""

    left: np.ndarray  # (pairs,) tile of A
    right: np.ndarray  # (pairs,) tile of B
    target: np.ndarray  # (pairs,) tile of the result, ascending
    key: np.ndarray  # (tiles of the result,) block row times block columns plus block column, ascending
    across: int  # block columns


def pairs_of(a: Tiling, b: Tiling) -> Pairs:
    """All pairs of a tile of A and a tile of B whose block row equals A's block column."""
    pointer = np.searchsorted(b.row, np.arange(a.blocks[1] + 1))
    met = np.diff(pointer)[a.column]
    left = np.repeat(np.arange(len(a.row)), met)
    right = np.arange(len(left)) - np.repeat(np.cumsum(met) - met - pointer[a.column], met)
    across = b.blocks[1]
    key = a.row[left].astype(np.int64) * across + b.column[right]
    order = np.argsort(key, kind="stable")
    found, target = np.unique(key[order], return_inverse=True)
    return Pairs(left[order], right[order], target, found, across)


def product_at(engine: Engine, a: Any, b: Any, rows: np.ndarray, columns: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """(A B)[rows, columns] in ``dtype`` for sparse A and B. All positions belong to the product's pattern.

    Raises Refused if the engine has no product of that accuracy, DeviceError if the device fails.
    """
    source = Source.of(a, dtype)
    if source.turned:
        source = Source(None, (), False, lambda: compressed(a, dtype), dtype)
    left, right = Tiled(engine, source), tiling(compressed(b, dtype))
    pairs = pairs_of(left.tiling, right)
    tile = np.searchsorted(pairs.key, rows // TILE * pairs.across + columns // TILE)

    def values(tiles: np.ndarray) -> np.ndarray:
        return np.asarray(tiles.reshape(-1, TILE, TILE)[tile, rows % TILE, columns % TILE])

    terms = int(np.diff(source.csr().indptr).max(initial=1))
    layout = Layout(pairs.left, pairs.target, pairs.right, len(pairs.key), 0, 0, terms, False)
    parts = [right.data.real, right.data.imag] if right.data.dtype.kind == "c" else [right.data]
    sides = [replace(right, data=np.ascontiguousarray(part)) for part in parts]
    found = [[_real(left, i, layout, side, dtype, values) for side in sides] for i in range(2 if left.complex else 1)]
    result = found[0][0].astype(dtype)
    if len(sides) == 2:
        result.imag = found[0][1]
    if len(found) == 2:
        result.imag += found[1][0]
        if len(sides) == 2:
            result.real -= found[1][1]
    return result


def _real(
    a: Tiled, index: int, layout: Layout, b: Tiling, dtype: np.dtype, values: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """The product of one real part of A with real B, in float32 or with digits."""
    form, dense = form_of(a.engine, dtype), b.tiles(b.data).swapaxes(1, 2)
    if form != BY_DIGITS:
        right = _stack(a, dense, np.dtype(form))
        return values(_summed(a, layout, a.numbers(index, form), right, 0, lambda found, _: found))
    dense = dense.astype(np.float64, copy=False)
    if not np.isfinite(dense).all() or not np.isfinite(a.part(index)).all():
        raise Refused("an operand holds NaN or infinity", accuracy=True)
    largest = np.zeros((b.blocks[1], TILE))
    np.maximum.at(largest, b.column, np.abs(dense).max(axis=1))
    scale = largest[b.column][:, np.newaxis]
    bound = _stack(a, _digits.magnitudes(dense, 1, scale), np.dtype("bfloat16"))
    least = min(float(f.min()) for _, f in a.launches(layout, a.magnitudes(index), bound, 0, TILE, least=True))
    digits = certified(least, layout.terms)
    split = _digits.split(dense, digits, 1, scale)
    raw = padded(split.bytes(), (rung(len(dense) + 1),), ZERO, np.uint8)
    tiles, shift = a.digits(index, digits)
    of_columns = np.zeros(largest.shape, np.int64)
    of_columns[b.column] = split.shift[:, 0]
    row, column = _blocks_of(layout, a.tiling, b)

    def assembled(words: np.ndarray, target: np.ndarray) -> np.ndarray:
        shape = len(target), TILE, TILE
        rows, columns = shift[row[target]][:, :, np.newaxis], of_columns[column[target]][:, np.newaxis]
        return _digits.assemble(words.reshape(-1, *shape), digits, rows, columns).reshape(-1, TILE)

    right = digits_on(a.engine, raw.reshape(-1, *raw.shape[2:]), split.places)
    return values(_summed(a, layout, tiles, right, digits, assembled))


def _stack(a: Tiled, dense: np.ndarray, dtype: np.dtype) -> Held:
    """Tiles as one operand on the engine, followed by zeros."""
    return a.engine.hold(padded(dense, (rung(len(dense) + 1),), 0, dtype).reshape(-1, TILE))


def _blocks_of(layout: Layout, a: Tiling, b: Tiling) -> tuple[np.ndarray, np.ndarray]:
    """The block row and block column of each tile of the result."""
    row, column = np.zeros(layout.rows, np.int64), np.zeros(layout.rows, np.int64)
    row[layout.row], column[layout.row] = a.row[layout.order], b.column[layout.column]
    return row, column


def _summed(
    a: Tiled,
    layout: Layout,
    tiles: Held,
    right: Held,
    digits: int,
    numbers: Callable[[np.ndarray, np.ndarray], np.ndarray],
) -> np.ndarray:
    """The tiles of the result (tiles, 128, 128): sums of the outputs of each launch, converted by ``numbers``."""
    c = np.zeros((layout.rows, TILE, TILE))
    for target, found in a.launches(layout, tiles, right, digits, TILE):
        found = found[..., : len(target) * TILE, :]
        np.add.at(c, target, numbers(found, target).reshape(-1, TILE, TILE))
    return c
