"""Integrals of molecular orbitals, and the particle-particle ladder of CCSD, from arrays sharded over ranks."""

from __future__ import annotations

from typing import Any

import numpy as np

from trnpy._einsum.rows import matmul
from trnpy.chem._ao2mo import ao2mo
from trnpy.chem._rows import MEMORY, REAL, real_array
from trnpy.dist._collectives import Communicator
from trnpy.dist._sharded import Sharded, gather


def sharded_ao2mo(
    integrals: Sharded, c_left: np.ndarray, c_right: np.ndarray, *, axis: int = 2, memory: float = MEMORY
) -> Sharded:
    """Transform sharded density-fitted integrals to molecular orbitals, like `ao2mo`.

    Each rank transforms its auxiliary functions. All ranks use the coefficients of rank 0. With ``axis=2`` nothing else
    is sent; with another axis each of p ranks also sends 8 nleft nright naux (p - 1) / p^2 bytes.

    Parameters
    ----------
    integrals : Sharded of (naux, nao, nao) or (naux, nao (nao + 1) / 2)
        Integrals (L|mn), or their lower triangles. If they are not sharded along L, they are first resharded.
    c_left, c_right : (nao, nleft) and (nao, nright) array_like
        Coefficients of the orbitals that replace m and n.
    axis : int, optional
        The axis along which the result is sharded: 0 for left orbitals, 2 for auxiliary functions.
    memory : float, optional
        Bytes of workspace of each rank.

    Returns
    -------
    Sharded of (nleft, nright, naux)
        Transformed integrals in the unit of `integrals`.

    Raises
    ------
    ValueError
        If shapes do not fit.
    MismatchedCalls
        If ranks call something else.

    Examples
    --------
    >>> import numpy as np
    >>> from trnpy import dist
    >>> from trnpy.chem import sharded_ao2mo
    >>> b = dist.scatter(np.ones((5, 3, 3)))
    >>> sharded_ao2mo(b, np.ones((3, 2)), np.ones((3, 1)), axis=0)
    Sharded((2, 1, 5), float64, axis 0 at [0, 2], rank 0 of 1)
    """
    comm = integrals.comm
    pieces = integrals.along(0)
    left, right = (comm.bcast(real_array(name, c, "(nao, norbitals)", 2))
                   for name, c in (("c_left", c_left), ("c_right", c_right)))  # fmt: skip
    local = ao2mo(pieces.local, left, right, memory=memory)
    return Sharded(local, 2, (*local.shape[:2], integrals.shape[0]), comm, pieces.edges).along(axis)


def sharded_ladder(t2: Sharded, b: Sharded, *, memory: float = MEMORY) -> Sharded:
    """Sum over c and d of t2[i, j, c, d] (ac|bd): the particle-particle ladder of CCSD from density-fitted integrals.

    Each rank has a range of a. The shards of ``b`` pass from rank to rank. With each shard a rank forms some (ac|bd),
    multiplies them by all amplitudes, and drops them: integrals of four virtual orbitals are never stored, and each is
    formed once.

    Parameters
    ----------
    t2 : Sharded of (nocc, nocc, nvir, nvir)
        Amplitudes, sharded along any axis. Each rank needs memory for all of them.
    b : Sharded of (naux, nvir, nvir)
        Integrals (L|ac), sharded along any axis: (ac|bd) is the sum over L of (L|ac) (L|bd).
    memory : float, optional
        Bytes of (ac|bd) that a rank has at a time; at least the (ac|bd) of one a and one shard of b.

    Returns
    -------
    Sharded of (nocc, nocc, nvir, nvir)
        The ladder, sharded like ``t2``.

    Raises
    ------
    ValueError
        If shapes do not fit.
    MismatchedCalls
        If ranks call something else.

    Notes
    -----
    Each of p ranks does 2 (nocc^2 + naux) nvir^4 / p operations. It sends (p - 1) / p of the amplitudes and of ``b``
    and, unless the result is sharded along a, (p - 1) / p^2 of the result. DePrince and Sherrill, J. Chem. Theory
    Comput. 9, 2687 (2013).

    Examples
    --------
    >>> import numpy as np
    >>> from trnpy import dist
    >>> from trnpy.chem import sharded_ladder
    >>> t2, b = dist.scatter(np.ones((1, 1, 2, 2))), dist.scatter(np.ones((3, 2, 2)))
    >>> dist.gather(sharded_ladder(t2, b))
    array([[[[12., 12.],
             [12., 12.]]]])
    """
    if t2.ndim != 4 or b.ndim != 3 or not t2.shape[2] == t2.shape[3] == b.shape[1] == b.shape[2]:
        raise ValueError(f"t2 {t2.shape} and b {b.shape}: expected (nocc, nocc, nvir, nvir) and (naux, nvir, nvir)")
    comm, nvir = t2.comm, t2.shape[3]
    pieces = b.along(1)
    amplitudes = np.asarray(gather(t2), REAL).reshape(-1, nvir * nvir)  # (ij, cd)
    own = _by_row(pieces.local)  # (a, c, L)
    found = np.empty((len(amplitudes), len(own), nvir))
    visitor, edges = own, pieces.edges
    for turn in range(comm.size):
        rank = (comm.rank + turn) % comm.size
        if turn:
            visitor = _next(comm, visitor, edges[rank + 1] - edges[rank])
        wide = len(visitor) * nvir
        step = max(1, int(memory // (2 * REAL.itemsize * max(wide, 1) * nvir)))
        for first in range(0, len(own) if wide else 0, step):
            left = own[first : first + step]
            integrals = matmul(left.reshape(-1, left.shape[2]), visitor.reshape(wide, -1).T)  # (ac, bd)
            ordered = integrals.reshape(len(left), nvir, len(visitor), nvir).transpose(1, 3, 0, 2)
            ladder = matmul(amplitudes, ordered.reshape(nvir * nvir, -1))  # (ij, ab)
            found[:, first : first + len(left), edges[rank] : edges[rank + 1]] = ladder.reshape(
                -1, len(left), len(visitor)
            )
    shape = t2.shape[0], t2.shape[1], len(own), nvir
    return Sharded(found.reshape(shape), 2, t2.shape, comm, edges).along(t2.axis, t2.edges)


def _by_row(b: np.ndarray) -> np.ndarray:
    """(L|ac) as (a, c, L)."""
    return np.ascontiguousarray(np.asarray(b, REAL).transpose(1, 2, 0))


def _next(comm: Communicator, block: np.ndarray, rows: int) -> Any:
    """The block of the next rank, with the given number of rows; this rank's block is sent to the rank before."""
    return comm.shifted(block, (rows, *block.shape[1:]))
