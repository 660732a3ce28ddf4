"""Ranks of an MPI program: mpi4py carries their bytes, and all ranks end when one fails."""

from __future__ import annotations

import atexit
import sys
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import mpi4py
import numpy as np

from trnpy._base.ranks_env import launched
from trnpy._engine.at_once import beside
from trnpy.dist._collectives import END, Bytes, Communicator, MismatchedCalls, Transport, gather_limit
from trnpy.dist._watched import Watched

LIMIT = 2**30  # bytes of one message: counts of MPI before version 4 are 32-bit integers
# Mean bytes of a block from which ranks send each other their blocks directly. MPICH's Allgatherv passes large blocks
# round a ring in pieces of 32 KiB: if ranks outnumber processors, each piece waits until its rank is scheduled.
# Four ranks on two busy processors, Allgatherv and direct: 8 and 8 ms for 16 KB in all, 14 and 9 ms for 64 KB, 147 and
# 8 ms for 1 MB.
DIRECT = 2**13
WAKE = 1  # the tag of messages that end a sleep; all others have 0
NAP_S = 0.01  # interval at which a sleeping rank polls
ASK_S = 1e-3  # interval at which a rank polls while it computes
SILENT_S = 5.0  # if the rank that reports the cause does not end the run, another rank does so after this time
READ_S = 0.2  # time for the launcher to read the output of a rank: it drops the rest when it ends the run


class Mpi(Transport):
    """The transport of an MPI communicator with all processes."""

    world, modelled_s = True, 0.0

    def __init__(self, mpi: Any, comm: Any) -> None:
        self.rank, self.size, self._mpi, self.comm = comm.rank, comm.size, mpi, comm

    def words(self, block: Bytes) -> list[Bytes]:
        whole = np.empty((self.size, block.size), np.uint8)
        self.comm.Allgather([block, self._mpi.BYTE], [whole, self._mpi.BYTE])
        return list(whole)

    def allgather(self, block: Bytes, sizes: Sequence[int]) -> Bytes:
        edges = np.cumsum([0, *sizes]).tolist()
        whole = np.empty(edges[-1], np.uint8)
        if edges[-1] < DIRECT * self.size:
            byte = self._mpi.BYTE
            self.comm.Allgatherv([block, byte], [whole, list(sizes), edges[:-1], byte])
        else:
            self._exchange([block] * self.size, [whole[i:j] for i, j in pairwise(edges)])
        return whole

    def alltoall(self, blocks: Sequence[Bytes], sizes: Sequence[int]) -> list[Bytes]:
        found = [np.empty(size, np.uint8) for size in sizes]
        self._exchange(blocks, found)
        return found

    def begin(self, blocks: Sequence[Bytes], sizes: Sequence[int]) -> Callable[[], list[Bytes]]:
        """As `alltoall`, in a thread: MPI moves large blocks only while a thread polls for their arrival."""
        found = [np.empty(size, np.uint8) for size in sizes]
        requests = self._requests(blocks, found)

        def completed() -> list[Bytes]:
            while not self._mpi.Request.Testall(requests):
                time.sleep(ASK_S)
            return found

        return beside(completed)

    def _exchange(self, blocks: Sequence[Bytes], found: Sequence[Bytes]) -> None:
        self._mpi.Request.Waitall(self._requests(blocks, found))

    def _requests(self, blocks: Sequence[Bytes], found: Sequence[Bytes]) -> list[Any]:
        """Requests that send each rank its block and receive the blocks for this rank into ``found``, all at once."""
        found[self.rank][...] = blocks[self.rank]
        requests = []
        for turn in range(1, self.size):
            to, source = (self.rank + turn) % self.size, (self.rank - turn) % self.size
            requests += [self.comm.Irecv([x, self._mpi.BYTE], source) for x in _cut(found[source])]
            requests += [self.comm.Isend([x, self._mpi.BYTE], to) for x in _cut(blocks[to])]
        return requests

    def sleep(self) -> None:
        while not self.comm.Iprobe(0, WAKE):  # a single poll; every blocking wait of MPI keeps a processor busy
            time.sleep(NAP_S)
        self.comm.Recv([np.empty(0, np.uint8), self._mpi.BYTE], 0, WAKE)

    def wake(self) -> None:
        for rank in range(1, self.size):
            self.comm.Send([np.empty(0, np.uint8), self._mpi.BYTE], rank, WAKE)


def _cut(block: Bytes) -> list[Bytes]:
    return [block[i : i + LIMIT] for i in range(0, block.size, LIMIT)]


def gathered(mine: bytes) -> list[bytes]:
    """The bytes of all ranks, on the first rank; empty on others, and if MPI is finalised or was never initialised."""
    from mpi4py import MPI

    if not MPI.Is_initialized() or MPI.Is_finalized() or MPI.COMM_WORLD.size == 1:
        return []
    return MPI.COMM_WORLD.gather(mine) or []


def communicator(timeout: float | None, ending: Sequence[Callable[[Communicator], None]] = ()) -> Communicator:
    """The communicator of all ranks. It initialises MPI if the program has not, and watches this rank.

    When the program has ended on all ranks, they call each of ``ending``.
    """
    mpi4py.rc.initialize = False
    from mpi4py import MPI

    watched = Watched(timeout)  # its process starts while MPI does
    ours = not MPI.Is_initialized()
    if ours:
        MPI.Init_thread(MPI.THREAD_MULTIPLE)
    if MPI.COMM_WORLD.size == 1 < launched():  # otherwise each would be rank 0 of 1 and do all the work
        raise RuntimeError(
            f"{launched()} processes were started, but the {MPI.get_vendor()[0]} of mpi4py reports one: start them "
            "with the mpiexec of this MPI, or with srun --mpi=LIBRARY"
        )
    world = MPI.COMM_WORLD.Dup()  # separates the program's own messages from ours
    folder = world.bcast(Watched.folder() if world.rank == 0 else None)
    watched.show(folder, world.rank, world.size)
    world.Barrier()
    watched.begin()
    world.Barrier()  # from here on all ranks are watched
    found = Communicator(Mpi(MPI, world), watched.tell, world.allreduce(gather_limit(world.size), MPI.MIN))
    usual = sys.excepthook

    def fail(kind: type[BaseException], why: BaseException, trace: Any) -> None:
        """End the run after an exception that the program does not catch; one rank prints the cause."""
        if not issubclass(kind, MismatchedCalls):
            usual(kind, why, trace)
        elif found.rank:
            time.sleep(SILENT_S)  # the same exception ends rank 0, which prints it
        watched.report(why)
        time.sleep(READ_S)
        MPI.COMM_WORLD.Abort(1)

    def end() -> None:
        """Wait for all ranks to end; a rank that still waits for one that ends raises MismatchedCalls."""
        try:
            found.meet(END)
            for act in ending:
                act(found)
        except MismatchedCalls as why:
            fail(type(why), why, None)
        watched.end()
        world.Free()
        if ours:
            MPI.Finalize()

    sys.excepthook = fail
    atexit.register(end)
    return found
