"""The numbers of BLAS threads to measure with: one run for each of THREADS, each in its own process.

OpenBLAS reads its number of threads when it is loaded, so nothing here imports NumPy.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

THREADS = ("1", "2", "unset")
VARIABLE = "OPENBLAS_NUM_THREADS"
FOLLOWS = "OMP_NUM_THREADS"  # for PySCF's own loops; OpenBLAS reads it too if VARIABLE is unset
# A thread of OpenBLAS spins for 2^24 cycles, 6 ms, before it sleeps, where its own choice is 2^28.
SLEEP = "OPENBLAS_THREAD_TIMEOUT", "24"
GATED = "BENCHMARKS_GATED"  # set if the tests have passed in another run of the same command
RED = 3  # exit code of a benchmark whose tests are red


def environment(threads: str) -> dict[str, str]:
    """This process's environment with that many threads of BLAS: a number, or "unset" for the libraries' choice."""
    own = {name: value for name, value in os.environ.items() if name not in (VARIABLE, FOLLOWS)}
    return own if threads == "unset" else own | {VARIABLE: threads, FOLLOWS: threads}


def alone() -> bool:
    """Whether BLAS computes only in the calling thread, so that the time of this thread is the time of the work."""
    return os.environ.get(VARIABLE) == "1"


def each(name: str, options: Sequence[str]) -> int:
    """Run benchmark ``name`` once for each of THREADS; the largest exit code. Only the first run runs the tests."""
    worst, gated = 0, {}
    for threads in THREADS:
        command = [sys.executable, "-m", "benchmarks", name, "--threads", threads, *options]
        code = subprocess.run(command, env=environment(threads) | gated, check=False).returncode
        if code == RED:
            return RED
        worst, gated = max(worst, abs(code)), {GATED: "1"}
    return worst
