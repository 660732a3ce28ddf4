"""The variables with which a launcher describes its processes, and what the processes do together at their end."""

from __future__ import annotations

import atexit
import os
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any, Protocol

# Numbers of processes and of this one, as set by MPICH and compatible launchers, by Open MPI, and by srun.
LAUNCHERS = {
    "PMI_SIZE": "PMI_RANK", "OMPI_COMM_WORLD_SIZE": "OMPI_COMM_WORLD_RANK", "SLURM_STEP_NUM_TASKS": "SLURM_PROCID",
}  # fmt: skip

# The same for the processes on this host. srun lists the numbers of all hosts: 4(x2),3.
LOCAL = {
    "MPI_LOCALNRANKS": "MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_SIZE": "OMPI_COMM_WORLD_LOCAL_RANK",
    "SLURM_STEP_TASKS_PER_NODE": "SLURM_LOCALID",
}  # fmt: skip


class Ranks(Protocol):
    """The part of a ``trnpy.dist`` communicator that a report needs: processes that exchange arrays."""

    rank: int
    size: int
    traffic: Any

    def allgather(self, value: Any, /) -> Any:
        """The values of all ranks, one after another."""
        ...


ending: list[Callable[[Ranks], None]] = []  # called by all ranks together when the program has ended


def launched() -> int:
    """The number of processes according to the launcher; 1 without one."""
    return told()[0]


def first() -> bool:
    """Whether this process is the first that a launcher has started, or the only one."""
    return os.environ.get(told()[1], "") in ("", "0")


def told() -> tuple[int, str]:
    """The number of processes, and the variable with this one's number; of two launchers, the one with more."""
    found = [(int(n), rank) for name, rank in LAUNCHERS.items() if (n := os.environ.get(name, "")).isdigit()]
    return max([(1, ""), *found], key=lambda pair: pair[0])


def on_host(environ: Mapping[str, str] = os.environ) -> tuple[int, str]:
    """The number of processes that a launcher has started on this host, and this one's number; 1 and "" without one."""
    for name, rank in LOCAL.items():
        groups, mine = re.findall(r"(\d+)(?:\(x(\d+)\))?", environ.get(name, "")), environ.get(rank, "")
        counts = [int(n) for n, times in groups for _ in range(int(times or 1))]
        if counts and mine.isdigit():
            return counts[min(int(environ.get("SLURM_NODEID", "0")), len(counts) - 1)], mine
    return 1, ""


def positive(text: str) -> int:
    """The number of processes in an option; ArgumentTypeError if it is not one."""
    if not text.isdigit() or int(text) < 1:
        from argparse import ArgumentTypeError  # imported late: a command line without options needs no parser

        raise ArgumentTypeError(f"{text!r}: expected a number of processes")
    return int(text)


def at_end(act: Callable[[Ranks], None]) -> None:
    """Let all ranks call ``act`` when the program has ended, if it has used trnpy.dist by then."""
    ending.append(act)


def notice_at_end() -> None:
    """At the end, let the first of several processes report that none communicated with the others.

    A program that imports mpi4py divides its work itself, and `trnpy.dist.comm` imports it. Only at the end it is known
    that neither was used. Workers started by multiprocessing inherit the variables of their parent.
    """
    parallel = sys.modules.get("multiprocessing.process")
    if launched() > 1 and first() and not (parallel and parallel.parent_process()):
        atexit.register(_notice, os.getpid())


def _notice(process: int) -> None:
    forked = os.getpid() != process
    if not forked and "mpi4py.MPI" not in sys.modules and sys.stderr is not None:
        alone = f"{launched()} processes ran this program, and none used trnpy.dist or mpi4py"
        print(f"trnpy: {alone}: unless it divides its work by other means, each did all of it", file=sys.stderr)
