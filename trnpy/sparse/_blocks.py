"""The non-empty blocks of a sparse matrix, counted once and remembered on the object."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

BLOCK = 128  # rows and columns of the systolic array
BUCKETS = 4  # lengths to which block rows are padded: at most 1.11 times the blocks (docs/numerics.md#sparse-products)
SLAB = 2**18  # stored elements counted at a time, which bounds the memory that counting takes
CACHE = "_trnpy_blocks"


@dataclass(frozen=True, slots=True)
class Blocks:
    """The non-empty blocks of a sparse matrix. Stored zeros count as elements."""

    block: int
    shape: tuple[int, int]
    nnz: int
    in_row: np.ndarray  # (block rows,) non-empty blocks in each block row

    @property
    def count(self) -> int:
        """Non-empty blocks."""
        return int(self.in_row.sum())

    @property
    def density(self) -> float:
        """Stored elements over all elements of non-empty blocks."""
        return self.nnz / max(self.count * self.block**2, 1)

    @property
    def padding(self) -> float:
        """Blocks over non-empty blocks if every block row is padded to the length of the longest."""
        return len(self.in_row) * int(self.in_row.max(initial=0)) / max(self.count, 1)

    @property
    def bucket_padding(self) -> float:
        """Blocks over non-empty blocks if block rows are padded to one of BUCKETS lengths, chosen best."""
        lengths, rows = np.unique(self.in_row, return_counts=True)
        before = np.concatenate([[0], np.cumsum(rows)])  # rows shorter than each length
        best = np.where(before == 0, 0.0, np.inf)  # fewest blocks for all shorter rows, with the buckets so far
        for _ in range(BUCKETS):
            # A bucket of the rows with lengths[i] to lengths[j - 1] pads all to lengths[j - 1].
            best = np.array(
                [0.0, *(np.min(best[:j] + lengths[j - 1] * (before[j] - before[:j])) for j in range(1, len(before)))]
            )
        return float(best[-1]) / max(self.count, 1)


def count_blocks(a: Any, block: int = BLOCK) -> Blocks:
    """The non-empty blocks of ``a``. The count is kept on the object, with a digest of the pattern it is valid for."""
    pattern = a if a.format in ("csr", "csc") else a.tocsr()
    digest = hashlib.blake2b(f"{pattern.format} {a.shape} {block}".encode(), digest_size=16)
    for indices in (pattern.indptr, pattern.indices):
        digest.update(np.ascontiguousarray(indices).data)
    key = digest.digest()
    kept = a.__dict__.get(CACHE)
    if kept is not None and kept[0] == key:
        found: Blocks = kept[1]
        return found
    in_row = np.zeros(-(-a.shape[0] // block), np.int64)
    for rows in _block_rows(pattern, block):
        in_row += np.bincount(rows, minlength=len(in_row))
    blocks = Blocks(block, a.shape, int(pattern.indptr[-1]), in_row)
    a.__dict__[CACHE] = key, blocks
    return blocks


def _block_rows(pattern: Any, block: int) -> Iterator[np.ndarray]:
    """The block row of each non-empty block, in several arrays: one for each slab of the matrix."""
    by_rows = pattern.format == "csr"
    indptr, lines = pattern.indptr, len(pattern.indptr) - 1
    minors = -(-(pattern.shape[1] if by_rows else pattern.shape[0]) // block)
    first = 0
    while first < lines:
        # A slab is a number of whole blocks of rows (columns in CSC), at least one, with about SLAB elements.
        after = int(np.searchsorted(indptr, indptr[first] + SLAB, side="right")) - 1
        after = min(max(after // block * block, first + block), lines)
        stored = slice(int(indptr[first]), int(indptr[after]))
        major = np.repeat(np.arange(first, after) // block, np.diff(indptr[first : after + 1]))
        found = np.unique(major * minors + pattern.indices[stored] // block)
        yield found // minors if by_rows else found % minors
        first = after
