"""The communicator of a process: a single one, one of an MPI program, or a thread that stands for a process."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from trnpy._base import distribution
from trnpy._settings.policy import current_policy
from trnpy.dist._collectives import END, Alone, Bytes, Communicator, MismatchedCalls, Transport
from trnpy._base.ranks_env import ending, launched

_own = threading.local()  # the communicator of a thread that stands for a process
_process: list[Communicator] = []  # the communicator of the process, once it exists
_taken: list[Communicator] = []  # the same, for a program that uses neither trnpy.dist nor mpi4py
_making = threading.Lock()


def gathered(mine: bytes) -> list[bytes]:
    """The bytes of all ranks of a program that uses mpi4py without trnpy.dist; empty on all ranks except the first."""
    if _process or "mpi4py.MPI" not in sys.modules:
        return []
    from trnpy.dist import _mpi

    return _mpi.gathered(mine)


def shared() -> Communicator | None:
    """The ranks over which trnpy divides the work of a program that uses neither trnpy.dist nor mpi4py.

    A program that uses one of them divides its work itself. None if there is one rank, unless its results must have the
    same bits as with several (``policy.reproducible``).
    """
    own: Communicator | None = getattr(_own, "communicator", None)
    if own is not None:
        return own
    if launched() == 1:
        return Communicator(Alone()) if current_policy().reproducible else None
    if not _taken and not _process and "mpi4py.MPI" not in sys.modules:
        _taken.append(comm())
    return _taken[0] if _taken else None


def comm(timeout: float | None = None) -> Communicator:
    """The communicator of this process; the first call initialises MPI if a launcher started several processes.

    Parameters
    ----------
    timeout : float, optional
        Seconds that a rank waits for another before the run ends with a message. Only the first call reads it. If it is
        not given, ranks wait as long as the others run; a rank that is stopped or killed ends the run in any case.

    Returns
    -------
    Communicator
        ``rank``, ``size`` and the collective operations. A program that was not started by ``mpiexec`` or ``srun`` is
        one rank.

    Raises
    ------
    ModuleNotFoundError
        If there are several processes and mpi4py is not installed.

    Examples
    --------
    >>> from trnpy import dist
    >>> dist.comm()
    Communicator(rank 0 of 1)
    """
    own: Communicator | None = getattr(_own, "communicator", None)
    if own is not None:
        return own
    with _making:
        if not _process:
            _process.append(_of_mpi(timeout) if launched() > 1 else Communicator(Alone()))
        return _process[0]


def _of_mpi(timeout: float | None) -> Communicator:
    try:
        from trnpy.dist import _mpi
    except ModuleNotFoundError as why:
        if why.name != "mpi4py":
            raise
        needs = f"{launched()} processes need mpi4py: {distribution.install('mpi')}"
        raise ModuleNotFoundError(needs, name="mpi4py") from why
    return _mpi.communicator(timeout, ending)


def threads(ranks: int, program: Callable[..., Any], *args: Any, timeout: float | None = None) -> list[Any]:
    """Run ``program`` in each of several threads, which stand for ranks: for tests of parallel code without MPI.

    Parameters
    ----------
    ranks : int
        Number of threads.
    program : callable
        Called with ``args`` in each thread, where `comm` returns a communicator of its own.
    *args
        Arguments of ``program``, the same objects in every thread.
    timeout : float, optional
        Seconds that a rank waits for another.

    Returns
    -------
    list
        The return value of each rank.

    Raises
    ------
    Exception
        The exception of the first rank that failed; the others then end at their next collective operation.
    MismatchedCalls
        If ranks met in different collective operations, or one returned while others wait for it.

    Examples
    --------
    >>> from trnpy import dist
    >>> dist.threads(3, lambda: dist.comm().rank)
    [0, 1, 2]
    """
    room = Room(ranks, timeout)
    return together(room, [Communicator(Thread(room, rank)) for rank in range(ranks)], program, args)


def together(
    room: Room, communicators: Sequence[Communicator], program: Callable[..., Any], args: Sequence[Any]
) -> list[Any]:
    """Run ``program`` in one thread for each communicator; all threads share ``room``."""
    ranks = len(communicators)
    results: list[Any] = [None] * ranks
    failures: dict[int, BaseException] = {}

    def run(rank: int) -> None:
        _own.communicator = communicators[rank]
        try:
            results[rank] = program(*args)
            _own.communicator.meet(END)
        except BaseException as why:
            failures[rank] = why
            room.barrier.abort()

    running = [threading.Thread(target=run, args=(rank,), name=f"rank {rank}") for rank in range(ranks)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    if failures:
        # A thread that waits for a failed rank gets BrokenBarrierError.
        causes = [rank for rank, why in sorted(failures.items()) if not isinstance(why, threading.BrokenBarrierError)]
        if not causes:
            raise TimeoutError(f"rank {min(failures)} of {ranks} waited {room.timeout} s for another")
        why = failures[causes[0]]
        if not isinstance(why, MismatchedCalls):
            why.add_note(f"on rank {causes[0]} of {ranks}")
        raise why
    return results


class Room:
    """The shared space in which threads exchange blocks."""

    def __init__(self, size: int, timeout: float | None) -> None:
        self.barrier, self.timeout = threading.Barrier(size, timeout=timeout), timeout
        self.left: list[Any] = [None] * size


class Thread(Transport):
    """The transport of one of several threads."""

    modelled_s = 0.0

    def __init__(self, room: Room, rank: int) -> None:
        self.rank, self.size, self.world, self._room = rank, room.barrier.parties, False, room

    def _taken(self, mine: Any, take: Callable[[Any], Bytes]) -> list[Bytes]:
        self._room.left[self.rank] = mine
        self._room.barrier.wait()
        found = [take(left) for left in self._room.left]
        self._room.barrier.wait()
        return found

    def words(self, block: Bytes) -> list[Bytes]:
        return self._taken(block, np.ndarray.copy)

    def allgather(self, block: Bytes, sizes: Sequence[int]) -> Bytes:
        return np.concatenate(self.words(block))

    def alltoall(self, blocks: Sequence[Bytes], sizes: Sequence[int]) -> list[Bytes]:
        return self._taken(blocks, lambda left: left[self.rank].copy())

    def sleep(self) -> None:
        self._room.barrier.wait()

    wake = sleep
