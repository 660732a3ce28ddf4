"""The non-empty blocks of a sparse matrix: counted once, kept on the object."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

BLOCK = 128  # rows and columns of the systolic array
BUCKETS = 4  # of block rows padded to one length each: 1.11 at most (docs/numerics.md#sparse-products)
SLAB = 2**18  # stored elements counted at a time: the count's own memory is in proportion to this, not to the matrix
CACHE = "_trnpy_blocks"


@dataclass(frozen=True, slots=True)
class Blocks:
    """The non-empty blocks of a sparse matrix, as counted in its pattern; explicit zeros are elements."""

    block: int
    shape: tuple[int, int]
    nnz: int
    in_row: np.ndarray  # (block rows,) non-empty blocks of each

    @property
    def count(self) -> int:
        """Non-empty blocks."""
        return int(self.in_row.sum())

    @property
    def density(self) -> float:
        """Stored elements over those of non-empty blocks."""
        return self.nnz / max(self.count * self.block**2, 1)

    @property
    def padding(self) -> float:
        """Blocks over non-empty ones, when all block rows have the length of the longest."""
        return len(self.in_row) * int(self.in_row.max(initial=0)) / max(self.count, 1)

    @property
    def bucket_padding(self) -> float:
        """The same in BUCKETS groups of block rows, each of its longest row, chosen best."""
        lengths, rows = np.unique(self.in_row, return_counts=True)
        before = np.concatenate([[0], np.cumsum(rows)])  # rows shorter than each length
        best = np.where(before == 0, 0.0, np.inf)  # blocks of all shorter rows, in the buckets so far
        for _ in range(BUCKETS):
            # A bucket of lengths i up to j - 1 is as long as the latter.
            best = np.array(
                [0.0, *(np.min(best[:j] + lengths[j - 1] * (before[j] - before[:j])) for j in range(1, len(before)))]
            )
        return float(best[-1]) / max(self.count, 1)


def count_blocks(a: Any, block: int = BLOCK) -> Blocks:
    """The non-empty blocks of ``a``, kept on trnpy's objects under a digest of their pattern."""
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
    """The block row of each non-empty block, slab by slab of major blocks."""
    by_rows = pattern.format == "csr"
    indptr, lines = pattern.indptr, len(pattern.indptr) - 1
    minors = -(-(pattern.shape[1] if by_rows else pattern.shape[0]) // block)
    first = 0
    while first < lines:
        # Whole blocks of lines, at least one, of about SLAB elements.
        after = int(np.searchsorted(indptr, indptr[first] + SLAB, side="right")) - 1
        after = min(max(after // block * block, first + block), lines)
        stored = slice(int(indptr[first]), int(indptr[after]))
        major = np.repeat(np.arange(first, after) // block, np.diff(indptr[first : after + 1]))
        found = np.unique(major * minors + pattern.indices[stored] // block)
        yield found // minors if by_rows else found % minors
        first = after
