"""Density-fitted J and K over ranks: each rank has a range of auxiliary functions, and the matrices are summed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from trnpy.chem._mp2_ranks import Integrals
from trnpy.chem._rows import MEMORY, REAL
from trnpy.chem.jk import JK, build_jk_df
from trnpy.dist._collectives import Communicator, even, fold, maximal
from trnpy.dist._plans import LEAVES

COLUMNS = 512  # pairs of orbitals that are fitted at once; the bits of B do not depend on the number of ranks


def cuts(edges: Sequence[int], ranks: int) -> list[int]:
    """The bounds of each rank's auxiliary functions, as even as ``edges`` allow."""
    return [edges[int(np.searchsorted(edges, edges[-1] * rank // ranks))] for rank in range(ranks + 1)]


def shares(edges: Sequence[int], ranks: int, reproducible: bool) -> list[list[int]]:
    """The bounds of each rank's functions or, if ``reproducible``, of its leaves.

    The leaves are the same for any number of ranks.
    """
    if not reproducible:
        return [[*pair] for pair in pairwise(cuts(edges, ranks))]
    leaves = cuts(edges, LEAVES)
    return [leaves[i : j + 1] for i, j in pairwise(even(LEAVES, ranks))]


def fitted(integrals: Integrals, comm: Communicator, reproducible: bool) -> np.ndarray:
    """The triangles (L, nao (nao + 1) / 2) of this rank's auxiliary functions.

    Fitting mixes all functions of a pair of orbitals, so each pair is sent to one rank, fitted there and sent back.
    """
    found = shares(integrals.edges, comm.size, reproducible)
    edges = [0, *(share[-1] for share in found)]
    first, last = edges[comm.rank], edges[comm.rank + 1]
    b = integrals.triangles(first, last)
    if not integrals.unfitted:
        return b
    integrals.fit()
    blocks = [*range(0, b.shape[1], COLUMNS)]
    for start in range(0, len(blocks), comm.size):  # a block for each rank
        places = [slice(i, i + COLUMNS) for i in blocks[start : start + comm.size]]
        places += [slice(0, 0)] * (comm.size - len(places))
        columns = np.concatenate(comm.alltoall([b[:, at] for at in places]))
        done = integrals.fitted(columns.T).T if columns.size else columns
        for at, rows in zip(places, comm.alltoall([done[i:j] for i, j in pairwise(edges)]), strict=True):
            b[:, at] = rows
    return b


def matrices(
    b: np.ndarray,
    dm: np.ndarray,
    orbitals: Any,
    comm: Communicator,
    with_j: bool,
    with_k: bool,
    square: np.ndarray | None,
    leaves: Sequence[int] = (),
) -> JK:
    """J and K of the densities ``dm`` on every rank, from the triangles ``b`` or, if given, their ``square`` matrices.

    With ``leaves``, the edges of this rank's leaves in ``b``, the sums have the same bits for any number of ranks.
    """
    memory = max(MEMORY, 4 * dm.shape[-1] ** 2 * REAL.itemsize)
    zero = np.zeros_like(dm, REAL)

    def summed(b: np.ndarray, stack: np.ndarray) -> np.ndarray:
        j = (build_jk_df(b, dm, with_k=False)[0] if len(b) else zero) if with_j else None
        k = None
        if with_k:
            k = build_jk_df(stack, dm, orbitals=orbitals, with_j=False, memory=memory)[1] if len(b) else zero
        return np.stack([m for m in (j, k) if m is not None])

    whole = b if square is None else square
    if not leaves:
        found = iter(comm.allreduce(summed(b, whole)))
    else:
        edges = even(LEAVES, comm.size)
        first, last = edges[comm.rank : comm.rank + 2]
        sums = {first + n: summed(b[i:j], whole[i:j]) for n, (i, j) in enumerate(pairwise(leaves))}
        nodes = maximal(0, LEAVES, first, last)
        parts = {node: fold(*node, lambda lo, hi: sums[lo] if hi == lo + 1 else None) for node in nodes}
        found = iter(comm.reduced(parts, edges, (with_j + with_k, *dm.shape), REAL))
    return next(found) if with_j else None, next(found) if with_k else None


def sent_bytes(nao: int, ranks: int, count: int = 2) -> float:
    """Modelled bytes that a rank sends for ``count`` matrices."""
    return 2.0 * count * REAL.itemsize * nao * nao * (ranks - 1) / ranks
