"""What a launcher says of the processes that it has started, and what they do together at their end."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trnpy.dist._collectives import Communicator

# Numbers of processes and of this one, set by MPICH and those like it, by Open MPI, and by srun.
LAUNCHERS = {
    "PMI_SIZE": "PMI_RANK", "OMPI_COMM_WORLD_SIZE": "OMPI_COMM_WORLD_RANK", "SLURM_STEP_NUM_TASKS": "SLURM_PROCID",
}  # fmt: skip

ending: list[Callable[[Communicator], None]] = []  # what ranks do together when the program has ended


def launched() -> int:
    """The number of processes that a launcher says it has started; 1 without one."""
    return max(int(value) if (value := os.environ.get(name, "1")).isdigit() else 1 for name in LAUNCHERS)


def positive(text: str) -> int:
    """The number of processes that an option names; ArgumentTypeError if it is none."""
    if not text.isdigit() or int(text) < 1:
        from argparse import ArgumentTypeError  # imported late: a command line without options needs no parser

        raise ArgumentTypeError(f"{text!r}: expected a number of processes")
    return int(text)


def first() -> bool:
    """Whether this process is the first of those that a launcher has started, or the only one."""
    ranks = [os.environ.get(rank, "0") for size, rank in LAUNCHERS.items() if size in os.environ]
    return not ranks or "0" in ranks


def at_end(act: Callable[[Communicator], None]) -> None:
    """Have all ranks call ``act`` when the program has ended, if it has used trnpy.dist by then."""
    ending.append(act)
