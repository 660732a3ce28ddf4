"""Start the ranks of a command with mpiexec, and wait for them."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from trnpy._base import distribution
from trnpy._base.ranks_env import launched

LAUNCHERS = ("mpiexec", "mpirun", "orterun", "prterun", "srun")
TERMINALS = ("/dev/pts/", "/dev/tty")
ENDS_S = 3.0  # for mpiexec to end its ranks after a signal
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")  # of each rank, unless the user has set them


def mpiexec() -> str:
    """The launcher of this environment, or of the system; FileNotFoundError explains how to install one."""
    found = shutil.which("mpiexec", path=os.path.dirname(sys.executable)) or shutil.which("mpiexec")
    if found is None or importlib.util.find_spec("mpi4py") is None:
        raise FileNotFoundError(f"several ranks need mpi4py and mpiexec: {distribution.install('mpi')} mpich")
    return found


def terminal() -> bool:
    """Whether a terminal shows the standard error of this process, or of the mpiexec that forwards it (on Linux)."""
    if sys.stderr.isatty():
        return True
    process = os.getppid() if launched() > 1 else 0
    try:
        while process > 1:
            name, _, rest = Path(f"/proc/{process}/stat").read_text().partition("(")[2].rpartition(")")
            if name.startswith(LAUNCHERS):
                return os.readlink(f"/proc/{process}/fd/2").startswith(TERMINALS)
            process = int(rest.split()[1])
    except OSError:
        return False
    return False


def run(ranks: int, command: Sequence[str]) -> int:
    """Run ``python command`` in ``ranks`` processes that share the processors; returns the exit status.

    Each rank is watched as in any program of trnpy.dist: one that fails ends all ranks, with one message. A signal that
    ends this process also ends all ranks; the status is then 128 plus the number of the signal.
    """
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = dict.fromkeys(THREADS, str(max(1, processors // ranks)))
    started = subprocess.Popen([mpiexec(), "-n", str(ranks), sys.executable, *command], env=threads | dict(os.environ))
    usual = {number: signal.signal(number, _end) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        return started.wait()
    except _Ended as why:
        if why.number == signal.SIGINT and _ends(started):  # a terminal also interrupts mpiexec
            return 128 + why.number
        started.send_signal(why.number)
        if not _ends(started):
            started.kill()
        return 128 + why.number
    finally:
        for number, handler in usual.items():
            signal.signal(number, handler)


class _Ended(BaseException):
    """A signal that ends this process: its ranks end first."""

    def __init__(self, number: int) -> None:
        self.number = number


def _end(number: int, frame: object) -> None:
    raise _Ended(number)


def _ends(process: subprocess.Popen[bytes]) -> bool:
    """Whether a process ends within a few seconds."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(ENDS_S)
    return process.returncode is not None
