"""A distributed array: each rank has one piece, a range along one axis."""

from __future__ import annotations

import importlib
import operator
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from trnpy.dist._grids import Block, moved, pieces
from trnpy.dist._collectives import Communicator, even, plain
from trnpy.dist._start import comm as process_comm


class Sharded(np.lib.mixins.NDArrayOperatorsMixin):
    """An array of which each rank has a range along one axis.

    ``@``, `numpy.einsum`, `numpy.matmul`, `numpy.tensordot` and the functions of these names in `trnpy` and
    `trnpy.dist` accept it. All ranks create one together.

    Parameters
    ----------
    local : array_like
        The piece of this rank. Along ``axis`` pieces may have any length, including zero.
    axis : int
        The axis that is cut.
    shape : tuple of int
        Shape of the whole array.
    comm : Communicator
        The ranks that have a piece.
    edges : sequence of int, optional
        Rank r has the indices from ``edges[r]`` to ``edges[r + 1]``. If omitted, the ranks send each other the lengths
        of their pieces.

    Raises
    ------
    ValueError
        If the pieces do not make up ``shape``.
    MismatchedCalls
        If ranks have different dtypes, axes or shapes.

    Examples
    --------
    >>> import numpy as np
    >>> from trnpy import dist
    >>> s = dist.Sharded(np.ones((3, 4)), 0, (3, 4), dist.comm())
    >>> s
    Sharded((3, 4), float64, axis 0 at [0, 3], rank 0 of 1)
    >>> dist.gather(s @ np.ones(4))
    array([4., 4., 4.])
    """

    def __init__(
        self, local: Any, axis: int, shape: Sequence[int], comm: Communicator, edges: Sequence[int] | None = None
    ) -> None:
        self.local, self.shape, self.comm = plain(local), tuple(operator.index(n) for n in shape), comm
        if not self.shape or not -len(self.shape) <= axis < len(self.shape):
            raise ValueError(f"axis={axis} of shape {self.shape}: expected one of its axes")
        self.axis = axis % len(self.shape)
        if edges is None:
            said = comm.meet(
                f"Sharded of {self.local.dtype.str} {self.shape} along axis {self.axis}",
                ",".join(map(str, self.local.shape)),
            )
            pieces = [tuple(int(n) for n in text.split(",") if n) for text in said]
            wrong = [
                f"rank {rank} has {piece}"
                for rank, piece in enumerate(pieces)
                if len(piece) != self.ndim or any(piece[i] != n for i, n in enumerate(self.shape) if i != self.axis)
            ]
            lengths = [0 if wrong else piece[self.axis] for piece in pieces]
            if wrong or sum(lengths) != self.shape[self.axis]:
                found = ", ".join(wrong) or f"lengths {lengths} along axis {self.axis}"
                raise ValueError(f"{found}: expected pieces of {self.shape}")
            edges = np.cumsum([0, *lengths]).tolist()
        self.edges = tuple(edges)

    @property
    def dtype(self) -> np.dtype:
        return self.local.dtype

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def range(self) -> tuple[int, int]:
        """The first index along ``axis`` that this rank has, and the one after its last."""
        return self.edges[self.comm.rank], self.edges[self.comm.rank + 1]

    def __repr__(self) -> str:
        where = f"axis {self.axis} at {list(self.edges)}, rank {self.comm.rank} of {self.comm.size}"
        return f"Sharded({self.shape}, {self.dtype}, {where})"

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise TypeError(f"{self!r} is not on one rank: trnpy.dist.gather returns the whole array")

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        # Compared by name: NumPy's functions may be patched.
        own = _products().FUNCTIONS.get((function.__module__, function.__name__))
        return NotImplemented if own is None else own(*args, **kwargs)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if ufunc.__name__ != "matmul" or method != "__call__":
            return NotImplemented
        return _products().matmul(*inputs, **kwargs)

    @staticmethod
    def einsum_plan(*operands: Any, **options: Any) -> Any:
        """The result of `trnpy.dist.einsum_plan`; `trnpy.einsum_plan` calls this for Sharded operands."""
        return _products().einsum_plan(*operands, **options)

    def along(self, axis: int, edges: Sequence[int] | None = None) -> Sharded:
        """The same array cut along ``axis``, evenly if ``edges`` is None; each rank sends the parts others need."""
        axis = range(self.ndim)[axis]
        edges = tuple(even(self.shape[axis], self.comm.size) if edges is None else edges)
        if (axis, edges) == (self.axis, self.edges):
            return self
        return Sharded(self.part(pieces(self.shape, axis, edges)), axis, self.shape, self.comm, edges)

    def part(self, needs: Sequence[Block], call: str = "alltoall") -> np.ndarray:
        """The block of the whole array that this rank needs; each rank sends the parts that others need."""
        return moved(self.local, pieces(self.shape, self.axis, self.edges), needs, self.comm, call)


def _products() -> Any:
    """The module of products, loaded at first use because it imports this module."""
    return importlib.import_module("trnpy.dist._sharded_products")


def cut(a: np.ndarray, axis: int, first: int, last: int) -> np.ndarray:
    """The view of ``a`` from ``first`` to ``last`` along ``axis``."""
    return a[(slice(None),) * axis + (slice(first, last),)]


def scatter(a: Any, axis: int = 0, root: int | None = None) -> Sharded:
    """Cut an array along an axis, a piece for each rank.

    Parameters
    ----------
    a : array_like
        The whole array, the same on all ranks; with ``root``, only the argument of that rank is read.
    axis : int
        The axis that is cut, as evenly as can be. Ranks beyond its length have an empty piece.
    root : int, optional
        The rank that has the array. It sends each rank its piece.

    Returns
    -------
    Sharded
        The array in pieces, which are copies.

    Raises
    ------
    ValueError
        If the array has no such ``axis``, or if there is no rank ``root``.
    MismatchedCalls
        If the ranks do not call it together.

    Examples
    --------
    >>> import numpy as np
    >>> from trnpy import dist
    >>> dist.scatter(np.eye(4), axis=1)
    Sharded((4, 4), float64, axis 1 at [0, 4], rank 0 of 1)
    """
    comm = process_comm()
    if root is None:
        whole = plain(a)
        edges = even(whole.shape[checked(axis, whole.shape)], comm.size)
        piece = cut(whole, checked(axis, whole.shape), edges[comm.rank], edges[comm.rank + 1])
        return Sharded(np.array(piece, order="C"), axis, whole.shape, comm)
    mine = plain(a) if comm.rank == root else np.empty(0)
    shape = tuple(comm.bcast(np.array(mine.shape, np.int64), root).tolist())
    kind = comm.bcast(mine[(0,) * mine.ndim] if mine.size else np.zeros((), mine.dtype), root).dtype
    axis = checked(axis, shape)
    edges = even(shape[axis], comm.size)
    empty = np.empty((0,) * len(shape), kind)
    blocks = [cut(mine, axis, i, j) if comm.rank == root else empty for i, j in pairwise(edges)]
    return Sharded(comm.alltoall(blocks)[root], axis, shape, comm, edges)


def checked(axis: int, shape: Sequence[int]) -> int:
    if not -len(shape) <= axis < len(shape):
        raise ValueError(f"axis={axis} of shape {tuple(shape)}: expected one of its axes")
    return axis % len(shape)


def gather(s: Any) -> np.ndarray:
    """The whole array, on every rank.

    Parameters
    ----------
    s : Sharded or array_like
        The array in pieces. Anything else is returned as an array.

    Returns
    -------
    ndarray
        A new array in C order.

    Raises
    ------
    MismatchedCalls
        If the ranks do not call it together.

    Examples
    --------
    >>> import numpy as np
    >>> from trnpy import dist
    >>> dist.gather(dist.scatter(np.arange(3)))
    array([0, 1, 2])
    """
    if not isinstance(s, Sharded):
        return np.asarray(s)
    return s.comm.allgather(s.local, s.axis)
