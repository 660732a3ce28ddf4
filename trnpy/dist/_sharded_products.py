"""Products of sharded arrays according to their plan: every rank computes a range of one label."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from trnpy._call.dispatch import Unsupported
from trnpy._einsum import grammar
from trnpy._einsum.rows import einsum as local_einsum
from trnpy.dist._grids import Grid, moved, pieces
from trnpy.dist._collectives import Alone, Communicator, even, fold, maximal
from trnpy.dist._plans import LEAVES, Layout, Piece, ShardedPlan, planned
from trnpy.dist._sharded import Sharded, cut, gather

ALONE = Communicator(Alone())  # for operands none of which is in pieces


def einsum(
    *operands: Any, axis: Layout = "kept", reproducible: bool = False, memory: float | None = None, **options: Any
) -> Any:
    """`numpy.einsum` of arrays in pieces and of arrays that every rank has.

    If the divided label is in the result, no communication is needed; if it is summed, the ranks add their results.

    Parameters
    ----------
    *operands
        Subscripts and operands in either form of `numpy.einsum`: `Sharded`, or arrays that are the same on all ranks.
    axis : int or None or 'kept'
        The axis along which the result is cut; None: every rank has the whole result. ``'kept'``: the axis of the first
        operand that is cut along a label of the result; if there is no such operand, as None.
    reproducible : bool
        Whether the result has the same bits for any number of ranks: the label is cut into 16 pieces, which are
        computed one by one and added in a fixed order.
    memory : float, optional
        Bytes of the largest operand that a rank may gather; pieces of a larger one pass from rank to rank. By default
        an eighth of this host's memory divided by the number of ranks, the least of all ranks.
    **options
        ``optimize`` and ``order`` are accepted and ignored.

    Returns
    -------
    Sharded or ndarray
        In pieces or whole, as ``axis`` says.

    Raises
    ------
    ValueError
        If the subscripts do not fit the operands.
    TypeError
        If there are other options of `numpy.einsum`.
    MismatchedCalls
        If the ranks do not call it together.

    Examples
    --------
    >>> import numpy as np
    >>> from trnpy import dist
    >>> b = dist.scatter(np.ones((5, 3, 3)))
    >>> dist.einsum("Pij,ij->P", b, np.eye(3))
    Sharded((5,), float64, axis 0 at [0, 5], rank 0 of 1)
    >>> dist.einsum("Pij,Pkj->ik", b, b, reproducible=True)[0]
    array([15., 15., 15.])
    """
    if unknown := set(options) - {"optimize", "order"}:
        raise TypeError(f"trnpy.dist.einsum has no {', '.join(sorted(unknown))}")
    p, inputs, output, arrays, comm = _prepared(operands, axis, reproducible, memory)
    if not p.label:
        return _local(inputs, output, arrays)
    if p.grid is not None:
        return _on_grid(p, p.grid, inputs, output, arrays, comm)
    return _Run(p, inputs, output, arrays, comm, reproducible).result()


def einsum_plan(
    *operands: Any, axis: Layout = "kept", reproducible: bool = False, memory: float | None = None
) -> ShardedPlan:
    """The plan of `einsum`: the transfers between the ranks and their modelled times. One rank may call it alone.

    Parameters
    ----------
    *operands, axis, reproducible, memory
        Arguments of `einsum`.

    Returns
    -------
    ShardedPlan
        ``steps``, each with bytes and seconds, their sums ``bytes`` and ``seconds``, ``label``, of which each rank
        computes a range, and ``others``, the plans with other labels. It prints as a table with an interval for each
        time.

    Raises
    ------
    ValueError
        If the subscripts do not fit the operands.

    Examples
    --------
    >>> import numpy as np
    >>> from trnpy import dist
    >>> a = dist.scatter(np.ones((4, 4)), axis=1)
    >>> [step.action for step in dist.einsum_plan("ij,jk->ik", a, np.eye(4)).steps]
    ['product', 'allreduce']
    """
    return _prepared(operands, axis, reproducible, memory)[0]


Prepared = tuple[ShardedPlan, tuple[str, ...], str, list[Any], Communicator]


def _prepared(operands: Sequence[Any], axis: Layout, reproducible: bool, memory: float | None) -> Prepared:
    """The plan, labels, and operands of a call; NumPy raises errors of subscripts."""
    text = bool(operands) and isinstance(operands[0], str)
    places = range(1, len(operands)) if text else range(0, len(operands) - 1, 2)
    arrays = [operand(operands[i]) for i in places]
    empty = [np.broadcast_to(np.zeros((), a.dtype), a.shape) for a in arrays]
    stand_ins = dict(zip(places, empty, strict=True))
    call = [stand_ins.get(i, x) for i, x in enumerate(operands)]
    try:
        inputs, output, _ = grammar.parse(call)
        grammar.label_sizes(inputs, output, tuple(a.shape for a in arrays))
    except Unsupported as why:
        np.einsum_path(*call)
        raise ValueError(f"einsum of sharded arrays: {why}") from None
    comms = {id(a.comm): a.comm for a in arrays if isinstance(a, Sharded)}
    if len(comms) > 1:
        raise ValueError("operands belong to different communicators")
    comm = next(iter(comms.values()), ALONE)
    pieces = tuple(
        Piece(a.shape, a.dtype.itemsize * math.prod(a.shape), a.axis, a.edges)
        if isinstance(a, Sharded) else Piece(a.shape, a.nbytes, None, ())
        for a in arrays
    )  # fmt: skip
    dtype = np.result_type(*[a.dtype for a in arrays]).newbyteorder("=")
    memory = comm.gathers if memory is None else memory
    p = planned(inputs, output, pieces, axis, dtype.itemsize, comm.size, memory, reproducible)
    return p, inputs, output, [a if a.dtype == dtype else _cast(a, dtype) for a in arrays], comm


def operand(a: Any) -> Any:
    """A sharded array, or an array that every rank has."""
    return a if isinstance(a, Sharded) else np.asarray(a)


def _cast(a: Any, dtype: np.dtype) -> Any:
    if isinstance(a, Sharded):
        return Sharded(a.local.astype(dtype), a.axis, a.shape, a.comm, a.edges)
    return a.astype(dtype)


def _local(inputs: Sequence[str], output: str, arrays: Sequence[np.ndarray]) -> np.ndarray:
    """The contraction of arrays that this rank has; the result of two operands is in C order if the labels allow.

    NumPy multiplies its last operand by the one before it. If the last one has the first label of the result, BLAS
    writes the result directly; otherwise it multiplies transposes, and 512 x 2,048 by 2,048 x 2,048 takes 91 ms instead
    of 82.
    """
    own = next((c for c in output if sum(c in labels for labels in inputs) == 1), "")
    if len(arrays) == 2 and own and own in inputs[0]:
        inputs, arrays = inputs[::-1], arrays[::-1]
    return np.asarray(local_einsum(f"{','.join(inputs)}->{output}", *arrays, optimize=True))


def _on_grid(
    p: ShardedPlan, grid: Grid, inputs: Sequence[str], output: str, arrays: Sequence[Any], comm: Communicator
) -> Any:
    """A contraction on a grid: each rank computes the block of its row and column."""
    sizes = grammar.label_sizes(inputs, output, tuple(a.shape for a in arrays))
    local = []
    for labels, a in zip(inputs, arrays, strict=True):
        needs = grid.blocks(labels, a.shape, sizes)
        local.append(
            a.part(needs, "grid") if isinstance(a, Sharded) else a[tuple(slice(*ij) for ij in needs[comm.rank])]
        )
    shape, axis = tuple(sizes[c] for c in output), p.axis or 0
    mine = _local(inputs, output, local)
    mine = moved(mine, grid.blocks(output, shape, sizes), pieces(shape, axis, p.edges), comm, "grid")
    found = Sharded(mine, axis, shape, comm, p.edges)
    return gather(found) if p.axis is None else found


class _Run:
    """One contraction according to its plan."""

    def __init__(
        self, p: ShardedPlan, inputs: Sequence[str], output: str, arrays: Sequence[Any], comm: Communicator,
        reproducible: bool,
    ) -> None:  # fmt: skip
        self.p, self.inputs, self.output, self.comm = p, inputs, output, comm
        self.sizes = grammar.label_sizes(inputs, output, tuple(a.shape for a in arrays))
        self.leaves = even(LEAVES, comm.size) if reproducible else range(comm.size + 1)
        self.reproducible = reproducible
        self.has = [self._axes(i, p.label, a.shape) for i, a in enumerate(arrays)]
        self.ring: Sharded | None = arrays[p.ring] if p.ring is not None else None
        self.arrays = [
            a.local if i == p.ring else self._moved(a, has)
            for i, (a, has) in enumerate(zip(arrays, self.has, strict=True))
        ]

    def _axes(self, i: int, label: str, shape: Sequence[int]) -> list[int]:
        """The axes of operand ``i`` with ``label``, except those along which it is broadcast."""
        return [k for k, c in enumerate(self.inputs[i]) if c == label and shape[k] == self.sizes[label]]

    def _moved(self, a: Any, has: Sequence[int]) -> np.ndarray:
        """The part of an operand that this rank needs: its range of the label if the operand has it, else the whole."""
        rank = self.comm.rank
        if isinstance(a, Sharded):
            if not has:
                return gather(a)
            kept = a.axis if a.axis in has else has[0]
            a, has = a.along(kept, self.p.edges).local, [k for k in has if k != kept]
        return ranged(a, has, self.p.edges[rank], self.p.edges[rank + 1])

    def result(self) -> Any:
        p, comm = self.p, self.comm
        shape = tuple(self.sizes[c] for c in self.output)
        at = self.output.find(p.label)
        first, last = self.leaves[comm.rank], self.leaves[comm.rank + 1]
        if at >= 0:
            leaves = range(first, last) if self.reproducible else ()
            mine = np.concatenate([self._leaf(n) for n in leaves], axis=at) if leaves else self._product()
            found = Sharded(mine, at, shape, comm, p.edges)
            return gather(found) if p.axis is None else found.along(p.axis) if p.axis != at else found
        if self.reproducible:
            parts = {node: self._tree(*node) for node in maximal(0, LEAVES, first, last)}
        else:
            parts = {(first, last): self._product()}
        edges = [] if p.axis is None else even(shape[p.axis], comm.size)
        total = comm.reduced(parts, self.leaves, shape, self.arrays[0].dtype, "sum", p.axis, edges)
        return total if p.axis is None else Sharded(total, p.axis, shape, comm, edges)

    def _tree(self, lo: int, hi: int) -> np.ndarray:
        return fold(lo, hi, lambda i, j: self._leaf(i) if j == i + 1 else None)

    def _leaf(self, leaf: int) -> np.ndarray:
        """The product over one leaf, of operands whose layout does not depend on the number of ranks."""
        n, start = self.sizes[self.p.label], self.p.edges[self.comm.rank]
        first, last = n * leaf // LEAVES - start, n * (leaf + 1) // LEAVES - start
        arrays = [
            np.array(ranged(a, has, first, last), order="C") for a, has in zip(self.arrays, self.has, strict=True)
        ]
        return _local(self.inputs, self.output, arrays)

    def _product(self) -> np.ndarray:
        """The product of this rank; with a ring, piece by piece of the operand that passes."""
        if self.ring is None:
            return _local(self.inputs, self.output, self.arrays)
        ring, rank, ranks = self.ring, self.comm.rank, self.comm.size
        label = self.inputs[self.p.ring or 0][ring.axis]
        axes = [self._axes(i, label, a.shape) for i, a in enumerate(self.arrays)]
        at = self.output.find(label)
        block = ring.local
        results: dict[int, np.ndarray] = {}  # by rank of origin if the result has the label, else one sum
        for owner in (n % ranks for n in range(rank, rank + ranks)):
            first, last = ring.edges[owner], ring.edges[owner + 1]
            now = [ranged(a, along, first, last) for a, along in zip(self.arrays, axes, strict=True)]
            now[self.p.ring or 0] = block
            found = _local(self.inputs, self.output, now)
            results[owner if at >= 0 else 0] = found if at >= 0 or owner == rank else np.add(results[0], found)
            if (after := (owner + 1) % ranks) != rank:
                length = ring.edges[after + 1] - ring.edges[after]
                block = self.comm.shifted(block, (*block.shape[: ring.axis], length, *block.shape[ring.axis + 1 :]))
        return np.concatenate([results[owner] for owner in sorted(results)], axis=at) if at >= 0 else results[0]


def ranged(a: np.ndarray, axes: Iterable[int], first: int, last: int) -> np.ndarray:
    """The view of ``a`` from ``first`` to ``last`` along each of ``axes``."""
    for k in axes:
        a = cut(a, k, first, last)
    return a


def matmul(x1: Any, x2: Any, /, **options: Any) -> Any:
    """`numpy.matmul` of arrays in pieces and of arrays that every rank has; ``x1 @ x2`` is the same.

    Parameters
    ----------
    x1, x2
        `Sharded`, or arrays that are the same on all ranks; stacks of matrices, matrices or vectors.
    **options
        ``axis``, ``reproducible`` and ``memory`` of `einsum`.

    Returns
    -------
    Sharded or ndarray
        In pieces or whole, as ``axis`` says.

    Raises
    ------
    ValueError
        If the shapes do not fit.
    MismatchedCalls
        If the ranks do not call it together.

    Examples
    --------
    >>> import numpy as np
    >>> from trnpy import dist
    >>> a = dist.scatter(np.eye(4)[:, :3], axis=1)
    >>> dist.matmul(a, np.ones(3))
    array([1., 1., 1., 0.])
    """
    a, b = operand(x1), operand(x2)
    m, n = a.ndim, b.ndim
    if not 0 < m < 20 or not 0 < n < 20 or a.shape[-1] != b.shape[-2 if n > 1 else -1]:
        raise ValueError(f"matmul of shapes {a.shape} and {b.shape}: expected matrices that fit")
    batch = grammar.LETTERS[: max(m - 2, n - 2, 0)]
    left = "k" if m == 1 else batch[len(batch) - (m - 2) :] + "mk"
    right = "k" if n == 1 else batch[len(batch) - (n - 2) :] + "kn"
    output = batch + "m" * (m > 1) + "n" * (n > 1)
    return einsum(f"{left},{right}->{output}", a, b, **options)


def tensordot(a: Any, b: Any, axes: Any = 2, **options: Any) -> Any:
    """`numpy.tensordot` of arrays in pieces and of arrays that every rank has.

    Parameters
    ----------
    a, b
        `Sharded`, or arrays that are the same on all ranks.
    axes : int or pair of sequences of int
        As in `numpy.tensordot`.
    **options
        ``axis``, ``reproducible`` and ``memory`` of `einsum`.

    Returns
    -------
    Sharded or ndarray
        In pieces or whole, as ``axis`` says.

    Raises
    ------
    ValueError
        If the axes do not fit.
    MismatchedCalls
        If the ranks do not call it together.

    Examples
    --------
    >>> import numpy as np
    >>> from trnpy import dist
    >>> dist.tensordot(dist.scatter(np.ones((5, 3, 3))), np.eye(3), axes=2)
    Sharded((5,), float64, axis 0 at [0, 5], rank 0 of 1)
    """
    a, b = operand(a), operand(b)
    m, n = a.ndim, b.ndim
    if np.iterable(axes):
        pairs = [[operator.index(i) for i in (x if np.iterable(x) else [x])] for x in axes]
    else:
        count = operator.index(axes)
        pairs = [list(range(m - count, m)), list(range(count))]
    pairs = [[i + d * (i < 0) for i in x] for x, d in zip(pairs, (m, n), strict=True)]
    left, right = grammar.LETTERS[:m], list(grammar.LETTERS[m : m + n])
    fits = len(pairs[0]) == len(pairs[1]) and all(
        0 <= i < m and 0 <= j < n and a.shape[i] == b.shape[j] for i, j in zip(*pairs, strict=True)
    )
    if not fits or len(set(pairs[0])) != len(pairs[0]) or len(set(pairs[1])) != len(pairs[1]):
        raise ValueError(f"tensordot of shapes {a.shape} and {b.shape} over axes {axes}: expected pairs of axes")
    for i, j in zip(*pairs, strict=True):
        right[j] = left[i]
    output = [c for c in left if c not in right] + [c for c in right if c not in left]
    return einsum(f"{left},{''.join(right)}->{''.join(output)}", a, b, **options)


def multi_einsum(contractions: Iterable[Sequence[Any]], **options: Any) -> list[Any]:
    """Many contractions, one after the other.

    Parameters
    ----------
    contractions : iterable of tuple
        Each has the positional arguments of `einsum`.
    **options
        ``axis``, ``reproducible`` and ``memory`` of `einsum`, for all.

    Returns
    -------
    list
        The result of each one.

    Raises
    ------
    ValueError
        If the subscripts do not fit the operands.
    MismatchedCalls
        If the ranks do not call it together.

    Examples
    --------
    >>> import numpy as np
    >>> from trnpy import dist
    >>> b = dist.scatter(np.ones((5, 3)))
    >>> dist.multi_einsum([("Pi->", b), ("Pi->i", b)])
    [array(15.), array([5., 5., 5.])]
    """
    return [einsum(*call, **options) for call in contractions]


FUNCTIONS = {
    ("numpy", "einsum"): einsum,
    ("numpy", "tensordot"): tensordot,
}  # the functions that NumPy passes to `Sharded.__array_function__`
