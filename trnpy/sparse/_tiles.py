"""Sparse matrices as 128 x 128 tiles or groups of stored elements, and the tables by which kernels walk them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from trnpy._nki.kernels.sparse.bsr_spmm_reference import LONGEST, ROWS, SLOTS

TILE = 128
BUCKETS = 4  # of rows padded to one length each: 1.11 at most (docs/numerics.md#sparse-products)
STEPS = 4  # rungs an octave: what is padded for the compiler's sake, and never computed, is at most 25 %
LEAST = 16  # the first rung


def rung(extent: int) -> int:
    """The first of STEPS extents an octave that is at least ``extent``: kernels are compiled for these."""
    if extent <= LEAST:
        return LEAST
    step = 1 << max((extent - 1).bit_length() - 1 - (STEPS.bit_length() - 1), 0)
    return -(-extent // step) * step


@dataclass(frozen=True, slots=True, eq=False)
class Tiling:
    """The non-empty tiles of a matrix in compressed rows, by rows and in them by columns."""

    shape: tuple[int, int]
    row: np.ndarray  # (tiles,) block row of each
    column: np.ndarray  # (tiles,) block column
    place: np.ndarray  # (nnz,) of each stored element in (tiles, 128, 128), columns of the matrix on rows; ascending
    order: np.ndarray  # (nnz,) which element of the compressed rows it is
    data: np.ndarray  # (nnz,) its value

    @property
    def blocks(self) -> tuple[int, int]:
        """Block rows and columns."""
        return -(-self.shape[0] // TILE), -(-self.shape[1] // TILE)

    def tiles(self, part: np.ndarray, some: slice = slice(None)) -> np.ndarray:
        """(tiles, 128, 128) of ``part``, the elements' values, with the columns of the matrix on rows."""
        first, after, _ = some.indices(len(self.row))
        dense = np.zeros((after - first, TILE, TILE), part.dtype)
        s, e = np.searchsorted(self.place, (first * TILE * TILE, after * TILE * TILE))
        dense.reshape(-1)[self.place[s:e] - first * TILE * TILE] = part[s:e]
        return dense


def compressed(a: Any, dtype: np.dtype | None = None) -> Any:
    """``a`` as SciPy's CSR without duplicates, which add up in ``dtype``; arrays are shared where they can be."""
    if a.format not in ("csr", "bsr") and dtype is not None and a.dtype != dtype:
        a = a.astype(dtype)  # converting adds up, too
    csr = a if a.format == "csr" else a.tocsr()
    stored = int(csr.indptr[-1])
    plain = sparse.csr_array((csr.data[:stored], csr.indices[:stored], csr.indptr), shape=csr.shape)
    if not plain.has_canonical_format:
        plain = plain.astype(dtype or plain.dtype, copy=True)
        plain.sum_duplicates()
    return plain


def tiling(csr: Any) -> Tiling:
    """Which tiles hold the elements of ``csr``, and where."""
    rows = np.repeat(np.arange(csr.shape[0]), np.diff(csr.indptr))
    columns = csr.indices.astype(np.int64)
    across = -(-csr.shape[1] // TILE)
    found, tile = np.unique(rows // TILE * across + columns // TILE, return_inverse=True)
    place = (tile * TILE + columns % TILE) * TILE + rows % TILE
    order = np.argsort(place)
    return Tiling(csr.shape, found // max(across, 1), found % max(across, 1), place[order], order, csr.data[order])


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """The elements of one launch of gathered rows, in groups of 128 that belong to one block row each."""

    values: np.ndarray  # (128, slots) float32; 0 where a group is not full
    row_of: np.ndarray  # (128, slots) float32, within the block row; -1 there
    column_of: np.ndarray  # (128, slots) int32
    walk: Walk


def groups(csr: Any, part: np.ndarray) -> Iterator[Groups]:
    """The elements of ``csr`` with the values ``part``, as many block rows to a launch as its tables hold."""
    edges = csr.indptr[np.minimum(np.arange(0, csr.shape[0] + TILE, TILE), csr.shape[0])].astype(np.int64)
    stored = np.diff(edges)
    count = -(-stored // TILE)
    pointer = np.concatenate([[0], np.cumsum(count)])
    block = np.repeat(np.arange(len(stored)), stored)
    slot = pointer[block] + (np.arange(len(block)) - edges[block]) // TILE
    lane = (np.arange(len(block)) - edges[block]) % TILE
    row = np.repeat(np.arange(csr.shape[0]), np.diff(csr.indptr)) % TILE
    for walk in walks(np.repeat(np.arange(len(stored)), count), SLOTS):
        inside = (slot >= walk.first) & (slot < walk.after)
        shape = (TILE, rung(walk.after - walk.first))
        at = lane[inside], slot[inside] - walk.first
        values, row_of, column_of = (
            np.zeros(shape, np.float32),
            np.full(shape, -1, np.float32),
            np.zeros(shape, np.int32),
        )
        values[at], row_of[at], column_of[at] = part[inside], row[inside], csr.indices[inside]
        yield Groups(values, row_of, column_of, walk)


@dataclass(frozen=True, slots=True, eq=False)
class Walk:
    """The products of one launch: consecutive ones belong to one block row, of the result."""

    first: int  # the first product of it, of all
    after: int
    pointer: np.ndarray  # (segments + 1,) from 0 on
    target: np.ndarray  # (segments,) the block row of the result that each adds to


def walks(row: np.ndarray, longest: int) -> Iterator[Walk]:
    """Launches for products of which each adds to a block ``row``, ascending; ``longest``: most of one segment."""
    starts = np.flatnonzero(np.diff(row, prepend=-1))
    lengths = np.diff(starts, append=len(row))
    pieces = -(-lengths // longest)
    within = np.arange(int(pieces.sum())) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    pointer = np.append(np.repeat(starts, pieces) + within * longest, len(row))
    target = np.repeat(row[starts], pieces)
    s = 0
    while s < len(target):
        e = int(np.searchsorted(pointer, pointer[s] + SLOTS, side="right")) - 1
        e = min(e, s + ROWS)
        yield Walk(int(pointer[s]), int(pointer[e]), pointer[s : e + 1] - pointer[s], target[s:e])
        s = e


def buckets(lengths: np.ndarray) -> list[int]:
    """At most BUCKETS lengths, so that segments padded to the next one have the fewest products in all."""
    sizes, count = np.unique(lengths, return_counts=True)
    before = np.concatenate([[0], np.cumsum(count)])
    best, cuts = np.where(before == 0, 0.0, np.inf), []
    for _ in range(BUCKETS):
        # A bucket of sizes i up to j - 1 is as long as the latter.
        cost = [best[:j] + sizes[j - 1] * (before[j] - before[:j]) for j in range(1, len(before))]
        cuts.append([0, *(int(np.argmin(c)) for c in cost)])
        best = np.array([0.0, *(c.min() for c in cost)])
    found, j = [], len(sizes)
    for cut in reversed(cuts):
        if j:
            found.append(int(sizes[j - 1]))
            j = cut[j]
    return found[::-1]


def of_one_length(walk: Walk) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(target, products (segments, length)) in a few launches without a pointer; -1 where a segment is shorter."""
    begin, lengths = walk.pointer[:-1], np.diff(walk.pointer)
    assert lengths.max() <= LONGEST
    shorter = 0
    for length in buckets(lengths):
        chosen = np.flatnonzero((lengths > shorter) & (lengths <= length))
        shorter = length
        for s in range(0, len(chosen), max(SLOTS // length, 1)):
            some = chosen[s : s + max(SLOTS // length, 1)]
            at = np.arange(length)
            products = np.where(at < lengths[some, np.newaxis], begin[some, np.newaxis] + at, -1)
            yield walk.target[some], products
