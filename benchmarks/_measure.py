"""Interleaved medians, the header every benchmark prints, and the gate that refuses on red tests."""

from __future__ import annotations

import os
import platform
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping

import numpy as np
import scipy


def gate(*tests: str) -> None:
    """Run the tests of what is about to be measured; exit without a figure when any of them is red."""
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-n", "2", *tests], capture_output=True, text=True, check=False
    )
    if run.returncode != 0:
        print(run.stdout[-2000:], file=sys.stderr)
        sys.exit(f"no figures: {' '.join(tests)} failed")


def header(title: str) -> None:
    """What the figures below it depend on."""
    threads = os.environ.get("OPENBLAS_NUM_THREADS", f"{os.cpu_count()} (not pinned)")
    versions = f"Python {platform.python_version()}, NumPy {np.__version__}, SciPy {scipy.__version__}"
    print(f"{title}: {versions}, BLAS threads {threads}")
    print("medians of one interleaved run; the machine is shared, so ratios travel and times do not\n")


def interleaved(
    calls: Mapping[str, Callable[[], object]],
    rounds: int = 31,
    target_s: float = 2e-3,
    clock: Callable[[], float] = time.perf_counter,
    of: Callable[[list[float]], float] = statistics.median,
) -> dict[str, float]:
    """Seconds of one call of each, measured in turns so that all see the same machine, and any neighbour.

    Each turn repeats a call until ``target_s`` has passed, so that the clock's own cost vanishes; ``clock`` is
    time.thread_time where other processes would drown the difference; ``of`` its turns min where they would triple it.
    """
    repeats = {}
    for name, call in calls.items():
        call()
        start = time.perf_counter()
        call()
        repeats[name] = max(1, round(target_s / max(time.perf_counter() - start, 1e-9)))
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    names = list(calls)
    for turn in range(rounds):
        for name in random.Random(turn).sample(names, len(names)):
            call, n = calls[name], repeats[name]
            start = clock()
            for _ in range(n):
                call()
            seconds[name].append((clock() - start) / n)
    return {name: of(times) for name, times in seconds.items()}
