"""Sparse matrices in block rows over the ranks, whose products fetch only the rows of the operand that they need."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from trnpy._base.records import record
from trnpy.dist._collectives import Communicator, even
from trnpy.dist._sharded import Sharded
from trnpy.dist._start import comm as process_comm
from trnpy.sparse._classes import adopt

FORMATS = ("bsr", "csr")


@record(frozen=True)
class Exchange:
    """The rows of an operand that a product needs from other ranks, for one cut of the operand."""

    compact: Any  # this rank's rows of the matrix, with only the columns that have blocks
    send: tuple[np.ndarray, ...]  # for each rank, the rows that it needs from this rank's piece of the operand
    place: tuple[np.ndarray, ...]  # for each rank, the positions of its rows in the operand of ``compact``


class SparseRows:
    """A BSR or CSR matrix of which each rank has a range of block rows; ``scatter_rows`` makes one.

    ``s @ x`` accepts a `Sharded` of one or two dimensions, or an array that every rank has, and returns a `Sharded`
    that is cut along its rows like ``s``. The first product finds the rows of ``x`` that each rank needs from the
    others, its halo; every product with operands cut in the same way fetches each such row once. All ranks create one
    together.

    Parameters
    ----------
    local : sparse array or matrix
        The rows of this rank, with all columns, in BSR or CSR format. Change neither it nor ``s.local`` afterwards:
        later products use the matrix of the first one.
    shape : tuple of int
        Shape of the whole matrix.
    comm : Communicator
        The ranks.

    Attributes
    ----------
    halo : int or None
        Rows of the operand that this rank fetched from others in its last product with a `Sharded`.

    Raises
    ------
    ValueError
        If the pieces do not make up ``shape``.
    MismatchedCalls
        If ranks have different dtypes, formats, block sizes or shapes.

    Examples
    --------
    >>> import numpy as np
    >>> from scipy import sparse
    >>> from trnpy import dist
    >>> a = dist.scatter_rows(sparse.eye_array(4, format="csr"))
    >>> a
    SparseRows((4, 4), float64, csr, rows at [0, 4], rank 0 of 1)
    >>> dist.gather(a @ dist.scatter(np.arange(4.0)))
    array([0., 1., 2., 3.])
    """

    def __init__(self, local: Any, shape: Sequence[int], comm: Communicator) -> None:
        if getattr(local, "format", None) not in FORMATS or local.ndim != 2:
            raise TypeError(f"{type(local).__name__}: expected a sparse matrix in {' or '.join(FORMATS)} format")
        self.local, self.shape, self.comm = adopt(local), tuple(operator.index(n) for n in shape), comm
        self.halo: int | None = None
        self._exchanges: dict[tuple[int, ...], Exchange] = {}
        what = f"SparseRows of {local.dtype.str} {self.shape} in {local.format} of {self._block}"
        pieces = [tuple(map(int, text.split())) for text in comm.meet(what, "{} {}".format(*local.shape))]
        if any(columns != self.shape[1] for _, columns in pieces) or sum(n for n, _ in pieces) != self.shape[0]:
            raise ValueError(f"pieces {pieces}: expected rows of {self.shape}")
        self.edges = tuple(np.cumsum([0, *[n for n, _ in pieces]]).tolist())

    def __repr__(self) -> str:
        where = f"rows at {list(self.edges)}, rank {self.comm.rank} of {self.comm.size}"
        return f"SparseRows({self.shape}, {self.dtype}, {self.local.format}, {where})"

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise TypeError(f"{self!r} is not on one rank, and its pieces are sparse")

    @property
    def dtype(self) -> np.dtype:
        dtype: np.dtype = self.local.dtype
        return dtype

    @property
    def _block(self) -> tuple[int, int]:
        return self.local.blocksize if self.local.format == "bsr" else (1, 1)

    def __matmul__(self, x: Any) -> Sharded:
        if not isinstance(x, Sharded):
            return self._result(self.local @ np.asarray(x))
        if x.comm is not self.comm:
            raise ValueError("operands belong to different communicators")
        if x.ndim > 2 or x.shape[0] != self.shape[1]:
            raise ValueError(f"matmul: shapes {self.shape} and {x.shape} do not fit")
        x = x if x.axis == 0 else x.along(0)
        found = self._exchanges.get(x.edges)
        if found is None:
            found = self._exchanges[x.edges] = self._exchange(x.edges)
        pieces = self.comm.alltoall([x.local[rows] for rows in found.send])
        needed = np.empty((found.compact.shape[1], *x.shape[1:]), x.dtype)
        for rows, piece in zip(found.place, pieces, strict=True):
            needed[rows] = piece
        self.halo = sum(len(piece) for rank, piece in enumerate(pieces) if rank != self.comm.rank)
        return self._result(found.compact @ needed)

    def _result(self, local: np.ndarray) -> Sharded:
        return Sharded(local, 0, (self.shape[0], *local.shape[1:]), self.comm, self.edges)

    def _exchange(self, edges: tuple[int, ...]) -> Exchange:
        """Send each rank the list of its rows that this rank needs, and keep the lists of the others."""
        width = self._block[1]
        blocks, renumbered = np.unique(self.local.indices, return_inverse=True)
        rows = (blocks[:, None] * width + np.arange(width)).reshape(-1).astype(np.int64)
        of_rank = [np.flatnonzero((rows >= i) & (rows < j)) for i, j in pairwise(edges)]
        wanted = [rows[at] - first for at, first in zip(of_rank, edges, strict=False)]
        told = self.comm.alltoall(wanted)
        parts = self.local.data.copy(), renumbered.astype(self.local.indices.dtype), self.local.indptr
        kind, options = type(self.local), {"blocksize": self._block} if self.local.format == "bsr" else {}
        compact = kind(parts, shape=(self.local.shape[0], len(rows)), **options)
        return Exchange(compact, tuple(told), tuple(of_rank))


def scatter_rows(a: Any) -> SparseRows:
    """Cut a sparse matrix into ranges of block rows, as even as possible.

    Parameters
    ----------
    a : sparse array or matrix
        The whole matrix in BSR or CSR format, the same on all ranks. If each rank reads its rows from its own file,
        construct `SparseRows` from them instead.

    Returns
    -------
    SparseRows
        The matrix in pieces, which are copies.

    Raises
    ------
    TypeError
        If ``a`` is not sparse, or has another format.
    MismatchedCalls
        If the ranks do not call it together.

    Examples
    --------
    >>> from scipy import sparse
    >>> from trnpy import dist
    >>> dist.scatter_rows(sparse.eye_array(6, format="bsr")).edges
    (0, 6)
    """
    comm = process_comm()
    if getattr(a, "format", None) not in FORMATS or a.ndim != 2:
        raise TypeError(f"{type(a).__name__}: expected a sparse matrix in {' or '.join(FORMATS)} format")
    height, options = (a.blocksize[0], {"blocksize": a.blocksize}) if a.format == "bsr" else (1, {})
    first, last = even(a.shape[0] // height, comm.size)[comm.rank : comm.rank + 2]
    some = slice(a.indptr[first], a.indptr[last])
    parts = a.data[some].copy(), a.indices[some].copy(), a.indptr[first : last + 1] - a.indptr[first]
    return SparseRows(type(a)(parts, shape=((last - first) * height, a.shape[1]), **options), a.shape, comm)
