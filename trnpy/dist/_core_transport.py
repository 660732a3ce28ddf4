"""NeuronCores of one instance as ranks: a kernel with a collective moves their bytes, here on the simulator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nkisim.hardware import MACHINES
from trnpy._nki.kernels.ranks.exchange_reference import check
from nkisim.chip.replicas import run_ranks
from nkisim.price.cost import price
from trnpy._nki.simulated import kernel
from trnpy.dist._collectives import Bytes, Communicator, Transport
from trnpy.dist._start import Room, Thread, together

ROW = 2**16  # bytes from one core to another in a launch: all launches have one shape, so one program is enough
WORD = np.dtype(np.int32)


class OfCores(Transport):
    """The transport of one core: threads pass headers and sizes; the kernel `exchange` moves all other bytes.

    Every operation launches one program repeatedly; each launch moves ``row`` bytes from each rank to each other. The
    model predicts the time of launches, host-device transfers, barriers and transfers between the cores.
    """

    world = False

    def __init__(self, room: Room, rank: int, machine: str, row: int, seed: int | None) -> None:
        self.rank, self.size = rank, room.barrier.parties
        self._room, self._host, self._machine, self._row, self._seed = room, Thread(room, rank), machine, row, seed
        self.modelled_s = 0.0
        check(np.empty((self.size, row // WORD.itemsize), WORD), self.size, machine)

    def words(self, block: Bytes) -> list[Bytes]:
        return self._host.words(block)

    def sleep(self) -> None:
        self._host.sleep()

    def wake(self) -> None:
        self._host.wake()

    def allgather(self, block: Bytes, sizes: Sequence[int]) -> Bytes:
        return np.concatenate(self.alltoall([block] * self.size, sizes))

    def alltoall(self, blocks: Sequence[Bytes], sizes: Sequence[int]) -> list[Bytes]:
        longest = np.array([max(map(len, blocks))]).view(np.uint8)
        turns = -(-max(int(word.view(np.int64)[0]) for word in self.words(longest)) // self._row)
        found = [np.empty(size, np.uint8) for size in sizes]
        for turn in range(turns):
            part = slice(turn * self._row, (turn + 1) * self._row)
            rows = np.zeros((self.size, self._row), np.uint8)
            for row, block in zip(rows, blocks, strict=True):
                row[: len(block[part])] = block[part]
            for block, row in zip(found, self._exchanged(rows.view(WORD)).view(np.uint8), strict=True):
                block[part] = row[: len(block[part])]
        return found

    def _exchanged(self, rows: np.ndarray) -> np.ndarray:
        """The rows that all ranks send to this one, in one launch on all cores that the first rank's thread starts."""
        room = self._room
        room.left[self.rank] = rows
        room.barrier.wait()
        if self.rank == 0:
            group = tuple(range(self.size))
            results = run_ranks(
                kernel("exchange"), [(left, group) for left in room.left], target=self._machine,
                mode="run" if self._seed is None else "reorder", seed=self._seed or 0,
            )  # fmt: skip
            machine, cost = MACHINES[self._machine], price(results[0].trace)
            links_s = rows.nbytes / machine.link_bytes_per_s + rows.nbytes / machine.unlink_bytes_per_s
            room.left = [(result.outputs, cost.device_s + cost.launch_s + links_s) for result in results]
        room.barrier.wait()
        found, seconds = room.left[self.rank]
        room.barrier.wait()
        self.modelled_s += seconds
        return np.asarray(found)


def cores(
    number: int, program: Callable[..., Any], *args: Any, machine: str = "trn2", row: int = ROW, seed: int | None = None
) -> list[Any]:
    """Run ``program`` on ranks that stand for NeuronCores of one instance, whose collectives run on the simulator.

    One kernel with one operation of `nki.collectives` moves all bytes that the program sends with `comm`;
    ``comm().modelled_s`` has its modelled seconds. The host computes everything else. Sums have the same bits as with
    `threads`.

    Parameters
    ----------
    number : int
        Number of cores, one rank on each. Groups of that size must be known to run on the machine.
    program : callable
        Called with ``args`` on each rank, where `comm` returns a communicator of its own.
    *args
        Arguments of ``program``, the same objects on every rank.
    machine : str
        ``trn1`` or ``trn2``.
    row : int
        Bytes, a multiple of 4, that a launch moves from each core to each other one.
    seed : int, optional
        With a seed, instructions and cores run in a random order that the documented rules allow.

    Returns
    -------
    list
        The return value of each rank.

    Raises
    ------
    ValueError
        If groups of so many cores are not known to run on the machine.
    MismatchedCalls
        If ranks met in different collective operations, or one returned while others wait for it.

    Examples
    --------
    >>> import numpy as np
    >>> from trnpy import dist
    >>> def program():
    ...     return dist.comm().allreduce(np.arange(3.0))
    >>> dist.cores(4, program)[0]
    array([0., 4., 8.])
    """
    room = Room(number, None)
    transports = [OfCores(room, rank, machine, row, seed) for rank in range(number)]
    return together(room, [Communicator(transport) for transport in transports], program, args)
