"""Collective operations: each begins with a header that all ranks compare, and sums are added in a fixed order."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from types import FrameType
from typing import Any, Protocol

import numpy as np

from trnpy._engine.at_once import in_turn
from trnpy._base.ranks_env import Ranks
from trnpy._report.ledger import Ledger
from trnpy._report.ranks import parsed, payload
from trnpy.dist._traffic import Traffic

Bytes = np.ndarray  # of uint8, contiguous
Interval = tuple[int, int]  # of leaves: the first one, and the one after the last

HEADER = 512  # bytes of a header: the call, further text, and the line of source
LINE = 160  # characters of a line of source, the last ones of its path
SMALL = 2**14  # bytes below which a sum is faster if every rank receives all arrays: one message instead of two
FOLDS: dict[str, Callable[..., Any]] = {"sum": np.add, "max": np.maximum, "min": np.minimum}
END = "end of the program"  # the last call of every rank
FOLDER = os.path.dirname(__file__)
LIBRARIES = tuple(os.path.join(os.path.dirname(path), "") for path in (FOLDER, np.__file__))


class MismatchedCalls(RuntimeError):
    """Ranks met in different collective operations; the message has the call and the line of each rank.

    Every rank raises it at the same operation, so that no rank waits for another.

    Examples
    --------
    >>> from trnpy import dist
    >>> def program():
    ...     return dist.comm().allreduce(1.0, "sum" if dist.comm().rank else "max")
    >>> try:
    ...     dist.threads(2, program)
    ... except dist.MismatchedCalls as why:
    ...     print(str(why).splitlines()[0])
    Ranks are in different calls:
    """


class Transport(Protocol):
    """Carries bytes between ranks: one block for each rank, in the order of ranks."""

    rank: int
    size: int
    world: bool  # whether the ranks are all processes of an MPI program
    modelled_s: float  # modelled seconds of simulated transfers; 0.0 if the transfers are real

    def words(self, block: Bytes) -> list[Bytes]:
        """The blocks of all ranks, which have equal sizes: headers and sizes, which pass between hosts."""

    def allgather(self, block: Bytes, sizes: Sequence[int]) -> Bytes:
        """The blocks of all ranks, which have ``sizes`` bytes, one after the other in a new array."""

    def alltoall(self, blocks: Sequence[Bytes], sizes: Sequence[int]) -> list[Bytes]:
        """The blocks that the ranks have for this one, of ``sizes`` bytes."""

    def begin(self, blocks: Sequence[Bytes], sizes: Sequence[int]) -> Callable[[], list[Bytes]]:
        """Start `alltoall`; the returned function waits for its blocks. Some transports complete it at once."""
        return in_turn(lambda: self.alltoall(blocks, sizes))

    def sleep(self) -> None:
        """Wait until the first rank calls `wake`, without using a processor."""

    def wake(self) -> None:
        """End the sleep of all others."""


class Alone(Transport):
    """The transport of a single process."""

    rank, size, world, modelled_s = 0, 1, False, 0.0

    def words(self, block: Bytes) -> list[Bytes]:
        return [block.copy()]

    def allgather(self, block: Bytes, sizes: Sequence[int]) -> Bytes:
        return block.copy()

    def alltoall(self, blocks: Sequence[Bytes], sizes: Sequence[int]) -> list[Bytes]:
        return [blocks[0].copy()]

    def sleep(self) -> None: ...

    def wake(self) -> None: ...


class Communicator:
    """The ranks of a program and their collective operations; `comm` returns it.

    All ranks make the same calls in the same order; otherwise each raises `MismatchedCalls`. Arrays have any dtype
    except object. A binary tree over the ranks reduces sums, so the same number of ranks gives the same bits.

    Parameters
    ----------
    transport : Transport
        Carries bytes between the ranks.
    waits : callable, optional
        Called with the call and the line before a rank waits for the others, and with ``None`` afterwards.
    gathers : float, optional
        Bytes of the largest operand of a product that a rank gathers by default, the same on all ranks. If it is not
        given, the limit is computed as if all ranks shared this host's memory.

    Attributes
    ----------
    rank : int
        Number of this process, from 0.
    size : int
        Number of processes.
    sent : int
        Bytes of arrays that this rank has sent to others.
    waited_s : float
        Seconds that this rank has waited for others before collective operations.
    traffic : Traffic
        Bytes and seconds of the collective operations, by line of the program.

    Examples
    --------
    >>> import numpy as np
    >>> from trnpy import dist
    >>> c = dist.comm()
    >>> c.rank, c.size, c.allreduce(np.arange(3))
    (0, 1, array([0, 1, 2]))
    """

    def __init__(
        self, transport: Transport, waits: Callable[[Any], None] = lambda told: None, gathers: float | None = None
    ) -> None:
        self.rank, self.size, self.traffic = transport.rank, transport.size, Traffic()
        self.world = transport.world
        self.gathers = gather_limit(self.size) if gathers is None else gathers
        self._transport, self._waits = transport, waits

    def __repr__(self) -> str:
        return f"Communicator(rank {self.rank} of {self.size})"

    @property
    def modelled_s(self) -> float:
        """Modelled seconds of the transfers between simulated NeuronCores (`trnpy.dist.cores`); otherwise 0.0."""
        return self._transport.modelled_s

    @property
    def sent(self) -> int:
        return sum(line.sent for line in self.traffic.lines.values())

    @property
    def waited_s(self) -> float:
        return sum(line.waited_s for line in self.traffic.lines.values())

    def barrier(self) -> None:
        """Wait until every rank has called `barrier`."""
        self.meet("barrier")

    def on_first(self, act: Callable[[], Any]) -> None:
        """Call ``act`` on rank 0; meanwhile the other ranks sleep, so that they do not keep a processor busy."""
        self.meet("work of rank 0")
        if self.rank == 0:
            try:
                act()
            finally:
                self._transport.wake()
            return
        started, line = time.perf_counter(), line_of_program()
        self._waits(("work of rank 0", line))
        self._transport.sleep()
        self.traffic.met("work", line, started, time.perf_counter() - started)
        self._waits(None)

    def bcast(self, x: Any = None, root: int = 0) -> np.ndarray:
        """The array of rank ``root``, on every rank; the arguments of the other ranks are ignored."""
        if not 0 <= root < self.size:
            raise ValueError(f"root={root}: expected a rank from 0 to {self.size - 1}")
        a = plain(x) if self.rank == root else np.empty(0, np.uint8)
        if a.dtype.names:
            raise TypeError(f"dtype {a.dtype}: expected no fields; bcast them one by one")
        said = self.meet(f"bcast from rank {root}", f"{a.dtype.str};{','.join(map(str, a.shape))}")[root]
        kind, _, extents = said.partition(";")
        shape = tuple(int(n) for n in extents.split(",") if n)
        dtype = np.dtype(kind)
        size = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        whole = to_bytes(a) if self.rank == root else np.empty(0, np.uint8)
        if size < SMALL:
            sizes = [size if rank == root else 0 for rank in range(self.size)]
            found = self._allgather(whole, sizes)
        else:  # each rank receives a segment and passes it on to all
            edges = even(size, self.size)
            mine = edges[self.rank + 1] - edges[self.rank]
            sizes = [mine if rank == root else 0 for rank in range(self.size)]
            segment = self._alltoall([whole[i:j] for i, j in pairwise(edges)], sizes)[root]
            found = self._allgather(segment, [j - i for i, j in pairwise(edges)])
        return found.view(dtype).reshape(shape)

    def allgather(self, x: Any, axis: int = 0) -> np.ndarray:
        """The arrays of all ranks joined along ``axis``, along which lengths may differ; numbers make a vector."""
        a = np.atleast_1d(plain(x))
        axis = range(a.ndim)[axis]
        rest = a.shape[:axis] + a.shape[axis + 1 :]
        said = self.meet(f"allgather of {a.dtype.str} {rest} along axis {axis}", str(a.shape[axis]))
        lengths = [int(n) for n in said]
        row = a.dtype.itemsize * int(np.prod(rest, dtype=np.int64))
        found = self._allgather(to_bytes(np.moveaxis(a, axis, 0)), [n * row for n in lengths])
        rows = found.view(a.dtype).reshape(sum(lengths), *rest)
        return np.ascontiguousarray(np.moveaxis(rows, 0, axis))

    def alltoall(self, blocks: Sequence[Any]) -> list[np.ndarray]:
        """The arrays that all ranks send to this one. ``blocks``: one for each rank, equal in dtype and dimensions."""
        return self.exchanged(blocks, "alltoall")

    def exchanged(self, blocks: Sequence[Any], call: str) -> list[np.ndarray]:
        """As `alltoall`, counted for the operation ``call``, whose bytes grow differently with the number of ranks."""
        arrays, shapes, sizes = self._agreed(blocks, call)
        return _shaped(self._alltoall([to_bytes(a) for a in arrays], sizes), shapes, arrays[0].dtype)

    def exchanging(self, blocks: Sequence[Any], call: str) -> Callable[[], list[np.ndarray]]:
        """Start `exchanged` and return a function that waits for the arrays. Until then ``blocks`` must not change.

        Ranks may meet in other operations meanwhile.
        """
        arrays, shapes, sizes = self._agreed(blocks, call)
        line, started = self.traffic.last, time.perf_counter()
        arriving = self._transport.begin([to_bytes(a) for a in arrays], sizes)
        sent = sum(a.nbytes for rank, a in enumerate(arrays) if rank != self.rank)
        self.traffic.moved(sent, started, time.perf_counter() - started, line)

        def arrived() -> list[np.ndarray]:
            started = time.perf_counter()
            found = arriving()
            self.traffic.moved(0, started, time.perf_counter() - started, line)
            return _shaped(found, shapes, arrays[0].dtype)

        return arrived

    def _agreed(self, blocks: Sequence[Any], call: str) -> tuple[list[np.ndarray], list[tuple[int, ...]], list[int]]:
        """The arrays for the other ranks, and the shapes and bytes of the arrays that those send to this rank."""
        arrays = [plain(x) for x in blocks]
        if len(arrays) != self.size or len({(a.dtype, a.ndim) for a in arrays}) != 1:
            raise ValueError(f"expected {self.size} arrays of one dtype and as many dimensions, one for each rank")
        dtype, ndim = arrays[0].dtype, arrays[0].ndim
        self.meet(f"{call} of {dtype.str}, {ndim} dimensions")
        told = self._transport.words(to_bytes(np.array([a.shape for a in arrays], np.int64).reshape(self.size, ndim)))
        shapes = [tuple(t.view(np.int64).reshape(self.size, ndim)[self.rank].tolist()) for t in told]
        return arrays, shapes, [dtype.itemsize * math.prod(shape) for shape in shapes]

    def allreduce(self, x: Any, op: str = "sum") -> np.ndarray:
        """The sum (``max``, ``min``) of the arrays of all ranks, on every rank."""
        a = plain(x)
        return self.reduced({(self.rank, self.rank + 1): a}, range(self.size + 1), a.shape, a.dtype, op)

    def reduce_scatter(self, x: Any, axis: int = 0, op: str = "sum", edges: Sequence[int] | None = None) -> np.ndarray:
        """This rank's part, along ``axis``, of the sum of the arrays of all ranks; parts are even without ``edges``."""
        a = plain(x)
        edges = even(a.shape[axis], self.size) if edges is None else edges
        leaves = range(self.size + 1)
        return self.reduced({(self.rank, self.rank + 1): a}, leaves, a.shape, a.dtype, op, axis, edges)

    def reduced(
        self, parts: dict[Interval, np.ndarray], leaves: Sequence[int], shape: tuple[int, ...], dtype: np.dtype,
        op: str = "sum", axis: int | None = None, edges: Sequence[int] = (),
    ) -> np.ndarray:  # fmt: skip
        """The sum of leaves, folded by one tree whatever the number of ranks.

        ``leaves``: rank r has the leaves from ``leaves[r]`` to ``leaves[r + 1]``, and in ``parts`` their sums by
        maximal intervals of the tree. With ``axis``, the part of the sum from ``edges[rank]`` to ``edges[rank + 1]``.
        """
        if op not in FOLDS:
            raise ValueError(f"op={op!r}: expected {', '.join(FOLDS)}")
        what = "allreduce" if axis is None else f"reduce_scatter along axis {axis} at {list(edges)[:9]}"
        self.meet(f"{what} ({op}) of {dtype.str} {shape}" + ("" if len(leaves) == self.size + 1 else ", by leaves"))
        owned = [maximal(0, leaves[-1], i, j) for i, j in pairwise(leaves)]
        mine = [parts[interval] for interval in owned[self.rank]]
        if axis is None and dtype.itemsize * int(np.prod(shape, dtype=np.int64)) < SMALL:
            block = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
            sizes = [block * len(intervals) for intervals in owned]
            nodes = np.split(self._allgather(joined(mine), sizes), np.cumsum(sizes)[:-1])
            return _folded(nodes, owned, shape, dtype, leaves[-1], op)
        rows = [np.moveaxis(a, axis, 0) if axis is not None else a.reshape(-1) for a in mine]
        rest = () if axis is None else tuple(n for i, n in enumerate(shape) if i != axis % len(shape))
        if axis is None:
            edges = even(int(np.prod(shape, dtype=np.int64)), self.size)
        segment = (edges[self.rank + 1] - edges[self.rank], *rest)
        block = dtype.itemsize * int(np.prod(segment, dtype=np.int64))
        sizes = [block * len(intervals) for intervals in owned]
        found = self._alltoall([joined([a[i:j] for a in rows]) for i, j in pairwise(edges)], sizes)
        total = _folded(found, owned, segment, dtype, leaves[-1], op)
        if axis is not None:
            return np.ascontiguousarray(np.moveaxis(total, 0, axis))
        whole = self._allgather(to_bytes(total), [dtype.itemsize * (j - i) for i, j in pairwise(edges)])
        return whole.view(dtype).reshape(shape)

    def meet(self, call: str, said: str = "") -> list[str]:
        """The texts of all ranks; raises MismatchedCalls on all ranks if their calls differ."""
        if self.size == 1:
            return [said]
        line = line_of_program()
        text = f"{call[: HEADER - LINE - 128]}\n{said}\n{line[-LINE:]}".encode()[:HEADER]
        self._waits((call, line))
        started = time.perf_counter()
        found = self._transport.words(np.frombuffer(text.ljust(HEADER), np.uint8))
        self.traffic.met(call.split()[0], line, started, time.perf_counter() - started)
        self._waits(None)
        if all(np.array_equal(block, found[0]) for block in found):
            return [said] * self.size
        headers = [block.tobytes().decode(errors="replace").rstrip(" ").split("\n") for block in found]
        if len({header[0] for header in headers}) > 1:
            lines = [
                f"  rank {rank}: {call}" + (f" at {there}" if call != END else "")
                for rank, (call, *_, there) in enumerate(headers)
            ]
            raise MismatchedCalls("\n".join(["Ranks are in different calls:", *lines]))
        return [header[1] for header in headers]

    def _allgather(self, block: Bytes, sizes: Sequence[int]) -> Bytes:
        started = time.perf_counter()
        found = self._transport.allgather(block, sizes)
        self.traffic.moved((self.size - 1) * block.size, started, time.perf_counter() - started)
        return found

    def _alltoall(self, blocks: Sequence[Bytes], sizes: Sequence[int]) -> list[Bytes]:
        started = time.perf_counter()
        found = self._transport.alltoall(blocks, sizes)
        sent = sum(block.size for rank, block in enumerate(blocks) if rank != self.rank)
        self.traffic.moved(sent, started, time.perf_counter() - started)
        return found

    def shifted(self, a: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """The array of the next rank, which has ``shape``; this rank's array goes to the previous rank."""
        self.meet(f"ring of {a.dtype.str}")
        size = a.dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        to, source = (self.rank - 1) % self.size, (self.rank + 1) % self.size
        none = np.empty(0, np.uint8)
        blocks = [to_bytes(a) if rank == to else none for rank in range(self.size)]
        found = self._alltoall(blocks, [size if rank == source else 0 for rank in range(self.size)])
        return found[source].view(a.dtype).reshape(shape)


def _shaped(blocks: Sequence[Bytes], shapes: Sequence[tuple[int, ...]], dtype: np.dtype) -> list[np.ndarray]:
    return [block.view(dtype).reshape(shape) for block, shape in zip(blocks, shapes, strict=True)]


def report(comm: Ranks, ledger: Ledger) -> None:
    """Add the ledgers and the traffic of all ranks to the first rank's ledger."""
    if comm.size == 1:
        return
    mine = np.frombuffer(payload(ledger, comm.traffic), np.uint8)
    ends = np.cumsum(comm.allgather(mine.size))
    whole = comm.allgather(mine)
    ledger.ranks = parsed([part.tobytes() for part in np.split(whole, ends[:-1])]) if comm.rank == 0 else []


def gather_limit(ranks: int) -> float:
    """Bytes of the largest operand that a rank gathers by default, if ``ranks`` ranks share this host's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 8 / ranks


def even(n: int, parts: int) -> list[int]:
    """Edges of ``parts`` pieces of ``n``, as even as possible."""
    return [n * i // parts for i in range(parts + 1)]


def plain(x: Any) -> np.ndarray:
    """An array whose bytes can be sent."""
    a = np.asarray(x)
    if a.dtype.hasobject:
        raise TypeError(f"dtype {a.dtype}: expected numbers")
    return a


def to_bytes(a: np.ndarray) -> Bytes:
    return np.ascontiguousarray(a).reshape(-1).view(np.uint8)


def joined(arrays: Sequence[np.ndarray]) -> Bytes:
    """The bytes of arrays, one after the other."""
    if len(arrays) == 1:
        return to_bytes(arrays[0])
    return np.concatenate([np.empty(0, np.uint8), *map(to_bytes, arrays)])


def maximal(lo: int, hi: int, first: int, last: int) -> list[Interval]:
    """The largest nodes within leaves ``first`` to ``last`` of the binary tree over leaves ``lo`` to ``hi``."""
    if last <= lo or hi <= first or lo == hi:
        return []
    if first <= lo and hi <= last:
        return [(lo, hi)]
    middle = (lo + hi) // 2
    return maximal(lo, middle, first, last) + maximal(middle, hi, first, last)


def fold(lo: int, hi: int, value: Callable[[int, int], np.ndarray | None], op: str = "sum") -> np.ndarray:
    """The node of leaves ``lo`` to ``hi``: its ``value``, or the reduction of the two nodes below it."""
    found = value(lo, hi)
    if found is not None:
        return found
    middle = (lo + hi) // 2
    result: np.ndarray = FOLDS[op](fold(lo, middle, value, op), fold(middle, hi, value, op))
    return result


def _folded(
    found: Sequence[Bytes], owned: Sequence[Sequence[Interval]], shape: tuple[int, ...], dtype: np.dtype, leaves: int,
    op: str,
) -> np.ndarray:  # fmt: skip
    """The reduction over the tree, from the arrays that each rank sent for its intervals."""
    nodes: dict[Interval, np.ndarray] = {}
    for block, intervals in zip(found, owned, strict=True):
        arrays = block.view(dtype).reshape(len(intervals), *shape)
        nodes.update(zip(intervals, arrays, strict=True))
    total = fold(0, leaves, lambda lo, hi: nodes.get((lo, hi)), op)
    return np.asarray(total, dtype).reshape(shape)  # NumPy's sums have the byte order of the host


def line_of_program() -> str:
    """The nearest line outside trnpy and NumPy; if the program belongs to trnpy, the nearest outside trnpy.dist."""
    frame: FrameType | None = sys._getframe(1)
    own = ""
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((*LIBRARIES, "<frozen")):
            return f"{file}:{frame.f_lineno}"
        if not own and not file.startswith(FOLDER):
            own = f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return own
