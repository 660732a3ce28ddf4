"""How many threads of BLAS a benchmark measures with: one run for each of THREADS, each in a process of its own.

OpenBLAS reads its number of threads when it loads, so nothing here imports NumPy.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

THREADS = ("1", "2", "unset")
VARIABLE = "OPENBLAS_NUM_THREADS"
FOLLOWS = "OMP_NUM_THREADS"  # PySCF's own loops; OpenBLAS reads it too where VARIABLE is unset
GATED = "BENCHMARKS_GATED"  # set where another run of the same command has seen the tests green
RED = 3  # exit code of a benchmark whose tests are red


def environment(threads: str) -> dict[str, str]:
    """This process's environment with that many threads of BLAS: a number, or "unset" for the libraries' choice."""
    own = {name: value for name, value in os.environ.items() if name not in (VARIABLE, FOLLOWS)}
    return own if threads == "unset" else own | {VARIABLE: threads, FOLLOWS: threads}


def alone() -> bool:
    """Whether BLAS computes in the calling thread only, so that the thread's time is the work's."""
    return os.environ.get(VARIABLE) == "1"


def each(name: str, options: Sequence[str]) -> int:
    """Run benchmark ``name`` once for each of THREADS; the largest exit code.  The first run is behind the tests."""
    worst, gated = 0, {}
    for threads in THREADS:
        command = [sys.executable, "-m", "benchmarks", name, "--threads", threads, *options]
        code = subprocess.run(command, env=environment(threads) | gated, check=False).returncode
        if code == RED:
            return RED
        worst, gated = max(worst, abs(code)), {GATED: "1"}
    return worst
