"""What a launcher says of the processes that it has started, and what they do together at their end."""

from __future__ import annotations

import atexit
import os
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any, Protocol

# Numbers of processes and of this one, set by MPICH and those like it, by Open MPI, and by srun.
LAUNCHERS = {
    "PMI_SIZE": "PMI_RANK", "OMPI_COMM_WORLD_SIZE": "OMPI_COMM_WORLD_RANK", "SLURM_STEP_NUM_TASKS": "SLURM_PROCID",
}  # fmt: skip

# The same of the processes on this host. srun names the numbers of all hosts: 4(x2),3.
LOCAL = {
    "MPI_LOCALNRANKS": "MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_SIZE": "OMPI_COMM_WORLD_LOCAL_RANK",
    "SLURM_STEP_TASKS_PER_NODE": "SLURM_LOCALID",
}  # fmt: skip


class Ranks(Protocol):
    """Processes that exchange arrays: what a report needs of a communicator of ``trnpy.dist``."""

    rank: int
    size: int
    traffic: Any

    def allgather(self, value: Any, /) -> Any:
        """The values of all ranks, one after another."""
        ...


ending: list[Callable[[Ranks], None]] = []  # what ranks do together when the program has ended


def launched() -> int:
    """The number of processes that a launcher says it has started; 1 without one."""
    return told()[0]


def first() -> bool:
    """Whether this process is the first of those that a launcher has started, or the only one."""
    return os.environ.get(told()[1], "") in ("", "0")


def told() -> tuple[int, str]:
    """The number of processes, and the variable with that of this one; of two launchers, that which says more."""
    found = [(int(n), rank) for name, rank in LAUNCHERS.items() if (n := os.environ.get(name, "")).isdigit()]
    return max([(1, ""), *found], key=lambda pair: pair[0])


def on_host(environ: Mapping[str, str] = os.environ) -> tuple[int, str]:
    """The number of processes that a launcher has started on this host, and that of this one; 1 and "" without one."""
    for name, rank in LOCAL.items():
        groups, mine = re.findall(r"(\d+)(?:\(x(\d+)\))?", environ.get(name, "")), environ.get(rank, "")
        counts = [int(n) for n, times in groups for _ in range(int(times or 1))]
        if counts and mine.isdigit():
            return counts[min(int(environ.get("SLURM_NODEID", "0")), len(counts) - 1)], mine
    return 1, ""


def positive(text: str) -> int:
    """The number of processes that an option names; ArgumentTypeError if it is none."""
    if not text.isdigit() or int(text) < 1:
        from argparse import ArgumentTypeError  # imported late: a command line without options needs no parser

        raise ArgumentTypeError(f"{text!r}: expected a number of processes")
    return int(text)


def at_end(act: Callable[[Ranks], None]) -> None:
    """Have all ranks call ``act`` when the program has ended, if it has used trnpy.dist by then."""
    ending.append(act)


def notice_at_end() -> None:
    """Have the first of several processes say at its end that none knew of the others, if that is so.

    A program that imports mpi4py divides its work itself, and `trnpy.dist.comm` imports it. Only the end shows that
    neither was used. Workers that multiprocessing starts have the variables of the process that starts them.
    """
    parallel = sys.modules.get("multiprocessing.process")
    if launched() > 1 and first() and not (parallel and parallel.parent_process()):
        atexit.register(_notice, os.getpid())


def _notice(process: int) -> None:
    forked = os.getpid() != process
    if not forked and "mpi4py.MPI" not in sys.modules and sys.stderr is not None:
        alone = f"{launched()} processes ran this program, and none used trnpy.dist or mpi4py"
        print(f"trnpy: {alone}: unless it divides its work by other means, each did all of it", file=sys.stderr)
