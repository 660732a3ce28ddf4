"""Sparse matrices as 128 x 128 tiles or groups of stored elements, and the tables that order a kernel's work."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy import sparse

from trnpy._base.records import record
from trnpy._engine.abstract_arrays import priced
from trnpy._nki.kernels.sparse.bsr_spmm_reference import LONGEST, ROWS, SLOTS
from trnpy._settings.tile import area

TILE = 128  # rows and columns of the systolic array
BUCKETS = 4  # lengths to which block rows are padded: at most 1.11 times the tiles (docs/sparse.md#sparse-products)
STEPS = 4  # shape buckets per octave: at most 25 % of an operand is padding, and no work is done on it
LEAST = 16  # the smallest shape bucket
SLAB = area(2**18)  # stored elements that are counted at once, which bounds the memory needed
CACHE = "_trnpy_blocks"
FLOAT32, INDEX = np.dtype(np.float32), np.dtype(np.int64)


def rung(extent: int, least: int = LEAST) -> int:
    """``extent`` rounded up to the next extent for which kernels are compiled: STEPS an octave."""
    if extent <= least:
        return least
    step = 1 << max((extent - 1).bit_length() - 1 - (STEPS.bit_length() - 1), 0)
    return -(-extent // step) * step


@record(eq=False)
class Blocks:
    """The non-empty blocks of a sparse matrix. Stored zeros count as elements."""

    block: int
    shape: tuple[int, int]
    nnz: int
    in_row: np.ndarray  # (block rows,) non-empty blocks in each block row
    stored: np.ndarray  # (block rows,) stored elements in each block row

    @property
    def count(self) -> int:
        """The number of non-empty blocks."""
        return int(self.in_row.sum())

    @property
    def density(self) -> float:
        """Stored elements divided by all elements of non-empty blocks."""
        return self.nnz / max(self.count * self.block**2, 1)

    @property
    def padding(self) -> float:
        """Blocks over non-empty blocks if every block row is padded to the longest length."""
        return len(self.in_row) * int(self.in_row.max(initial=0)) / max(self.count, 1)

    @property
    def bucket_padding(self) -> float:
        """Blocks over non-empty blocks if block rows are padded to one of BUCKETS lengths, as in launches."""
        lengths = self.in_row[self.in_row > 0]
        if not len(lengths):
            return 0.0
        found = np.array(buckets(lengths, int(lengths.max())))
        return float(found[np.searchsorted(found, lengths)].sum()) / self.count


def count_blocks(a: Any, block: int = TILE) -> Blocks:
    """The non-empty blocks of ``a``. The count is cached on the object, with a digest of the pattern it belongs to."""
    pattern = a if a.format in ("csr", "csc") else a.tocsr()
    digest = hashlib.blake2b(f"{pattern.format} {a.shape} {block}".encode(), digest_size=16)
    for indices in (pattern.indptr, pattern.indices):
        digest.update(np.ascontiguousarray(indices).data)
    key = digest.digest()
    kept = a.__dict__.get(CACHE)
    if kept is not None and kept[0] == key:
        found: Blocks = kept[1]
        return found
    in_row, stored = np.zeros((2, -(-a.shape[0] // block)), np.int64)
    for rows, elements in _block_rows(pattern, block, len(in_row)):
        in_row += np.bincount(rows, minlength=len(in_row))
        stored += elements
    blocks = Blocks(block, a.shape, int(pattern.indptr[-1]), in_row, stored)
    a.__dict__[CACHE] = key, blocks
    return blocks


def _block_rows(pattern: Any, block: int, rows: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The block row of each non-empty block and the elements of each of ``rows`` block rows, one slab at a time."""
    by_rows = pattern.format == "csr"
    indptr, lines = pattern.indptr, len(pattern.indptr) - 1
    minors = -(-(pattern.shape[1] if by_rows else pattern.shape[0]) // block)
    first = 0
    while first < lines:
        # A slab consists of whole blocks of rows (columns in CSC), at least one, with about SLAB elements.
        after = int(np.searchsorted(indptr, indptr[first] + SLAB, side="right")) - 1
        after = min(max(after // block * block, first + block), lines)
        stored = slice(int(indptr[first]), int(indptr[after]))
        major = np.repeat(np.arange(first, after) // block, np.diff(indptr[first : after + 1]))
        count = np.bincount(major if by_rows else pattern.indices[stored] // block, minlength=rows)
        found = np.unique(major * minors + pattern.indices[stored] // block)
        yield found // minors if by_rows else found % minors, count
        first = after


@record(eq=False)
class Tiling:
    """The non-empty tiles of a matrix in compressed rows, sorted by block row and then by block column.

    Tiles are transposed: the columns of the matrix are on their rows. Stored elements are in the order of ``place``.
    """

    shape: tuple[int, int]
    row: np.ndarray  # (tiles,) block row of each tile
    column: np.ndarray  # (tiles,) block column of each tile
    place: np.ndarray  # (nnz,) flat index of each stored element in (tiles, 128, 128), ascending
    order: np.ndarray  # (nnz,) index of the element in the compressed rows
    data: np.ndarray  # (nnz,) value of the element

    @property
    def blocks(self) -> tuple[int, int]:
        """Numbers of block rows and block columns."""
        return -(-self.shape[0] // TILE), -(-self.shape[1] // TILE)

    def tiles(self, part: np.ndarray, some: slice = slice(None)) -> np.ndarray:
        """Dense tiles (tiles, 128, 128) with the values ``part``, one for each stored element."""
        first, after, _ = some.indices(len(self.row))
        dense = np.zeros((after - first, TILE, TILE), part.dtype, like=part)
        s, e = 0, len(self.place)
        if (first, after) != (0, len(self.row)):
            s, e = np.searchsorted(self.place, (first * TILE * TILE, after * TILE * TILE))
        dense.reshape(-1)[self.place[s:e] - first * TILE * TILE] = part[s:e]
        return dense


@priced("", lambda a, dtype=None: (0 if a.format == "csr" else 2 * a.data.nbytes, (a.compressed(),)))
def compressed(a: Any, dtype: np.dtype | None = None) -> Any:
    """``a`` as SciPy's CSR without duplicates, which are added in ``dtype``. Arrays are shared if possible."""
    if a.format not in ("csr", "bsr") and dtype is not None and a.dtype != dtype:
        a = a.astype(dtype)  # before the conversion to CSR, which adds duplicates
    csr = a if a.format == "csr" else a.tocsr()
    stored = int(csr.indptr[-1])
    plain = sparse.csr_array((csr.data[:stored], csr.indices[:stored], csr.indptr), shape=csr.shape)
    if not plain.has_canonical_format:
        plain = plain.astype(dtype or plain.dtype, copy=True)
        plain.sum_duplicates()
    return plain


@priced("sorted", lambda csr: (csr.nnz, (csr.tiling(),)))
def tiling(csr: Any) -> Tiling:
    """Find the tiles that contain the elements of ``csr``, and the places of the elements in them."""
    rows = np.repeat(np.arange(csr.shape[0]), np.diff(csr.indptr))
    columns = csr.indices.astype(np.int64)
    across = -(-csr.shape[1] // TILE)
    found, tile = np.unique(rows // TILE * across + columns // TILE, return_inverse=True)
    place = (tile * TILE + columns % TILE) * TILE + rows % TILE
    order = np.argsort(place)
    return Tiling(csr.shape, found // max(across, 1), found % max(across, 1), place[order], order, csr.data[order])


@record(eq=False)
class Groups:
    """The elements of one launch of gathered rows, in groups (columns) of 128, each within one block row."""

    values: np.ndarray  # (128, slots) float32; 0 in the empty places of a group
    row_of: np.ndarray  # (128, slots) float32, row within the block row; -1 in empty places
    column_of: np.ndarray  # (128, slots) int32, column of the matrix
    launch: Launch


def groups(csr: Any, part: np.ndarray) -> Iterator[Groups]:
    """The elements of ``csr`` with the values ``part``, in launches of block rows with equal numbers of groups."""
    stored = _stored(csr)
    count = -(-stored // TILE)
    slot, lane, row = _slots(csr, stored, count)
    for launch in launches(np.repeat(np.arange(len(stored)), count), LONGEST):
        yield Groups(*_tables(part, csr.indices, slot, lane, row, launch), launch)


@priced("", lambda csr: (0, (csr.blocks.stored,)))
def _stored(csr: Any) -> np.ndarray:
    """Stored elements in each block row."""
    edges = csr.indptr[np.minimum(np.arange(0, csr.shape[0] + TILE, TILE), csr.shape[0])].astype(np.int64)
    return np.asarray(np.diff(edges))


@priced("grouped", lambda csr, *_: (csr.nnz, (((csr.nnz,), INDEX),) * 3))
def _slots(csr: Any, stored: np.ndarray, count: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The group of each element, its place in that group, and its row in the block row."""
    block = np.repeat(np.arange(len(stored)), stored)
    within = np.arange(len(block)) - np.repeat(np.cumsum(stored) - stored, stored)
    slot = (np.cumsum(count) - count)[block] + within // TILE
    return slot, within % TILE, np.repeat(np.arange(csr.shape[0]), np.diff(csr.indptr)) % TILE


@priced("", lambda part, indices, slot, lane, row, launch: (
    0, (((TILE, launch.products.size), FLOAT32), ((TILE, launch.products.size), FLOAT32),
        ((TILE, launch.products.size), np.dtype(np.int32)))
))  # fmt: skip
def _tables(
    part: np.ndarray, indices: np.ndarray, slot: np.ndarray, lane: np.ndarray, row: np.ndarray, launch: Launch
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Values, rows and columns of one launch's groups."""
    products = launch.products.ravel()
    used = np.flatnonzero(products >= 0)
    place = np.full(int(slot[-1]) + 1, -1)
    place[products[used]] = used
    inside = place[slot] >= 0
    at = lane[inside], place[slot[inside]]
    shape = TILE, products.size
    values, row_of, column_of = np.zeros(shape, FLOAT32), np.full(shape, -1, FLOAT32), np.zeros(shape, np.int32)
    values[at], row_of[at], column_of[at] = part[inside], row[inside], indices[inside]
    return values, row_of, column_of


@record(eq=False)
class Launch:
    """The products of one launch; the same number is added to each block row of its result."""

    target: np.ndarray  # (segments,) block row that each segment adds to
    products: np.ndarray  # (rows, length) indices of products; -1 fills short segments and rows after the last

    @property
    def length(self) -> int:
        return int(self.products.shape[1])


def launches(row: np.ndarray, longest: int) -> Iterator[Launch]:
    """Launches for products that are added to the block rows ``row``, ascending; segments have at most ``longest``."""
    starts = np.flatnonzero(np.diff(row, prepend=-1))
    lengths = np.diff(starts, append=len(row))
    pieces = -(-lengths // longest)
    within = np.arange(int(pieces.sum())) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    begin = np.repeat(starts, pieces) + within * longest
    lengths = np.minimum(np.repeat(lengths, pieces) - within * longest, longest)
    target = np.repeat(row[starts], pieces)
    shorter = 0
    for length in buckets(lengths, longest):
        chosen = np.flatnonzero((lengths > shorter) & (lengths <= length))
        shorter, most = length, min(SLOTS // length, ROWS)
        for s in range(0, len(chosen), most):
            some = chosen[s : s + most]
            products = np.full((min(rung(len(some)), most), length), -1)
            at = np.arange(length)
            filled = at < lengths[some, np.newaxis]
            products[: len(some)] = np.where(filled, begin[some, np.newaxis] + at, -1)
            yield Launch(target[some], products)


def buckets(lengths: np.ndarray, longest: int) -> list[int]:
    """At most BUCKETS lengths for which segments, padded to the next length, have the fewest products.

    Four lengths per octave are allowed, so that few kernels are compiled.
    """
    sizes, count = np.unique([min(rung(n, 1), longest) for n in lengths.tolist()], return_counts=True)
    before = np.concatenate([[0], np.cumsum(count)])
    best, cuts = np.where(before == 0, 0.0, np.inf), []
    for _ in range(BUCKETS):
        # A bucket of the segments with sizes[i] to sizes[j - 1] pads all of them to sizes[j - 1].
        cost = [best[:j] + sizes[j - 1] * (before[j] - before[:j]) for j in range(1, len(before))]
        cuts.append([0, *(int(np.argmin(c)) for c in cost)])
        best = np.array([0.0, *(c.min() for c in cost)])
    found, j = [], len(sizes)
    for cut in reversed(cuts):
        if j:
            found.append(int(sizes[j - 1]))
            j = cut[j]
    return found[::-1]
