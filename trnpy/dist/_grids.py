"""Blocks of arrays, a range of each axis on each rank; and grids, on which a rank computes a block of a result."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise, permutations
from typing import TYPE_CHECKING

import numpy as np

from trnpy._base.records import record

if TYPE_CHECKING:
    from trnpy.dist._collectives import Communicator

Range = tuple[int, int]  # the first index, and the one after the last
Block = tuple[Range, ...]  # the range of each axis


def pieces(shape: Sequence[int], axis: int, edges: Sequence[int]) -> list[Block]:
    """The block that each rank has of an array that is cut along ``axis``."""
    return [tuple(ij if k == axis else (0, n) for k, n in enumerate(shape)) for ij in pairwise(edges)]


def moved(
    local: np.ndarray, has: Sequence[Block], needs: Sequence[Block], comm: Communicator, call: str = "alltoall"
) -> np.ndarray:
    """The block of an array that this rank needs; rank r has the block ``has[r]`` in ``local``, and needs ``needs[r]``.

    Each element is on one rank. ``call``: the name of the operation.
    """
    here, wanted = has[comm.rank], needs[comm.rank]
    found = comm.exchanged([local[_within(here, need)] for need in needs], call)
    whole = np.empty([j - i for i, j in wanted], local.dtype)
    for block, there in zip(found, has, strict=True):
        whole[_within(wanted, there)] = block
    return whole


def _within(outer: Block, inner: Block) -> tuple[slice, ...]:
    """The slices of ``outer`` that select its common part with ``inner``."""
    return tuple(
        slice(min(max(i, first), last) - first, min(max(j, first), last) - first)
        for (first, last), (i, j) in zip(outer, inner, strict=True)
    )


def size(block: Block) -> int:
    """Elements of a block."""
    return math.prod(j - i for i, j in block)


def common(one: Block, other: Block) -> int:
    """Elements that are in both blocks."""
    return math.prod(s.stop - s.start for s in _within(one, other))


def received(has: Sequence[Block], needs: Sequence[Block]) -> float:
    """Elements that a rank receives in `moved`, on average; as many are sent."""
    return sum(size(wanted) - common(wanted, here) for here, wanted in zip(has, needs, strict=True)) / len(has)


@record()
class Grid:
    """Ranks in rows and columns: each row has a range of the first of two labels, each column of the second."""

    labels: tuple[str, str]
    edges: tuple[tuple[int, ...], tuple[int, ...]]

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.edges[0]) - 1, len(self.edges[1]) - 1

    def blocks(self, labels: str, shape: Sequence[int], sizes: Mapping[str, int]) -> list[Block]:
        """The block of an operand that each rank needs or computes; axes that are broadcast are whole."""
        columns = self.shape[1]

        def range_of(label: str, n: int, rank: int) -> Range:
            if label not in self.labels or n != sizes[label]:
                return 0, n
            which = self.labels.index(label)
            at = divmod(rank, columns)[which]
            return self.edges[which][at], self.edges[which][at + 1]

        ranks = range(math.prod(self.shape))
        return [tuple(range_of(c, n, rank) for c, n in zip(labels, shape, strict=True)) for rank in ranks]

    @property
    def longest(self) -> int:
        """Elements of the longest block of the two labels."""
        return math.prod(max(j - i for i, j in pairwise(edges)) for edges in self.edges)


def grids(inputs: Iterable[str], output: str, edges: Mapping[str, Sequence[int]], ranks: int) -> Iterator[Grid]:
    """All grids over two labels of the result that belong to different ``inputs``, the operands that are cut.

    ``edges``: the indices at which each label is cut. Rows and columns of the grid also begin there.
    """
    found = [set(labels) for labels in inputs]
    for row, column in permutations(output, 2):
        if any(row in x - y and column in y - x for x, y in permutations(found, 2)):
            for rows in range(2, ranks // 2 + 1):
                if ranks % rows == 0:
                    cut = tuple(edges[row][:: ranks // rows]), tuple(edges[column][::rows])
                    yield Grid((row, column), cut)
