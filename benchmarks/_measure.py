"""Interleaved medians, the header that every benchmark prints, and the gate that stops at red tests."""

from __future__ import annotations

import os
import pathlib
import platform
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping

import numpy as np
import scipy.linalg

from benchmarks._threads import GATED, RED, VARIABLE, alone

TURN_S = 1e-3  # a call is repeated for so long before the other call's turn
RESTED_S = 10e-3  # the same for turns that begin with a rest
ROW_S = 0.4  # at first, for a pair of calls
SLOW_S = 0.1  # a call that takes longer is slow
REST_S = 5.0  # threads that wait for a next call are asleep after it
ROUNDS = 11, 301  # least and most per pair: odd numbers, so that the median is one of them
SLOW_ROUNDS = 3
ATTEMPTS = 4  # measurements of a loss before it counts, each longer than the one before


def gate(*tests: str) -> None:
    """Run the tests of the code to be measured; exit without a figure if one fails."""
    if GATED in os.environ:
        return
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-n", "2", *tests],
        text=True,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    if run.returncode != 0:
        print(run.stdout[-2000:], file=sys.stderr)
        print(f"no figures: {' '.join(tests)} failed", file=sys.stderr)
        sys.exit(RED)


def header(title: str, how: str = "medians of one interleaved run") -> None:
    """Print what the figures below it depend on."""
    processors = f"{len(os.sched_getaffinity(0))} of {os.cpu_count()} processors"
    versions = f"Python {platform.python_version()}, NumPy {np.__version__}, SciPy {scipy.__version__}"
    print(f"\n{title}: {versions}")
    print(f"BLAS threads {os.environ.get(VARIABLE, 'unset')}, {processors}; {libraries()}")
    print(f"{how}; the machine is shared, so ratios travel and times do not\n")


def libraries() -> str:
    """Each loaded BLAS, including NumPy's and SciPy's: its kernels for this processor, and its number of threads."""
    try:
        from threadpoolctl import threadpool_info
    except ImportError:
        return "kernels of BLAS unknown: threadpoolctl is not installed"
    assert scipy.linalg.blas  # loads SciPy's BLAS
    found = [one for one in threadpool_info() if one["user_api"] == "blas"]
    return ", ".join(
        f"{pathlib.Path(one['filepath']).parent.name} {one['internal_api']} {one['version']}"
        f" {one.get('architecture', 'of unknown kernels')} x {one['num_threads']}"
        for one in found
    )


def interleaved(
    calls: Mapping[str, Callable[[], object]],
    rounds: int = 31,
    target_s: float = 2 * TURN_S,
    clock: Callable[[], float] = time.perf_counter,
    rests: bool = False,
) -> dict[str, float]:
    """Median seconds of one call of each, measured in turns, so that the load of the machine affects all equally.

    Each turn repeats a call until ``target_s`` has passed, so that the clock's own cost is negligible. ``clock`` is
    time.thread_time if other processes would hide the difference; ``rests`` is for calls of several threads.
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
            seconds[name].append(_turn(calls[name], repeats[name], clock, rests))
    return {name: statistics.median(times) for name, times in seconds.items()}


def _turn(call: Callable[[], object], repeats: int, clock: Callable[[], float], rests: bool) -> float:
    """Seconds of one of ``repeats`` calls.

    With ``rests`` the turn begins with ``rested`` and with one call that is not counted, because it wakes the threads:
    this measures a program that makes the call repeatedly.
    """
    if rests:
        rested()
        call()
    start = clock()
    for _ in range(repeats):
        call()
    return (clock() - start) / repeats


def rested() -> float:
    """Wait until no other thread of this process runs, and return the seconds; RuntimeError if one never stops.

    NumPy's and SciPy's OpenBLAS have threads of their own, which spin after each call: for 103 ms, with
    ``_threads.SLEEP`` for 6. They would take time from the other library's next call, which belongs to neither call.
    """
    start = time.perf_counter()
    while sum(_state(stat) == "R" for stat in pathlib.Path("/proc/self/task").glob("*/stat")) > 1:
        if time.perf_counter() - start > REST_S:
            raise RuntimeError(f"no figures: another thread of this process still runs after {REST_S:g} s")
    return time.perf_counter() - start


def _state(stat: pathlib.Path) -> str:
    return stat.read_text().rpartition(")")[2].split()[0]


def paired(
    original: Callable[[], object], ours: Callable[[], object], row_s: float = ROW_S, from_s: float = 0.0
) -> tuple[float, float] | None:
    """Median seconds of the original, and the median of the ratios of ours to it; None below ``from_s``.

    Each ratio is of two consecutive turns, in random order, so that slower changes of the machine affect both equally.
    With one thread the times are processor times, without other processes. With more threads the turns have rests.
    """
    one = alone()

    def turn(call: Callable[[], object], repeats: int) -> float:
        return _turn(call, repeats, time.thread_time if one else time.perf_counter, rests=not one)

    ours()
    once = turn(original, 1)
    if once < SLOW_S:
        once = min(once, *(turn(original, 1) for _ in range(3)))
    if once < 0.8 * from_s:
        return None
    repeats = max(round((TURN_S if one else RESTED_S) / max(once, 1e-9)), 1)
    least = (ROUNDS[0] if once < SLOW_S else SLOW_ROUNDS) * round(row_s / ROW_S)
    beside = 0.0 if one else once + rested()
    rounds = min(max(round(row_s / (2 * (once * repeats + beside))), least) | 1, ROUNDS[1])
    order = random.Random(rounds)
    seconds, ratios = [], []
    for _ in range(rounds):
        if order.random() < 0.5:
            theirs, mine = turn(original, repeats), turn(ours, repeats)
        else:
            mine, theirs = turn(ours, repeats), turn(original, repeats)
        seconds.append(theirs)
        ratios.append(mine / theirs)
    median = statistics.median(seconds)
    return None if median < from_s else (median, statistics.median(ratios))


def measured(
    original: Callable[[], object], ours: Callable[[], object], limit: float, from_s: float = 0.0
) -> tuple[float, float] | None:
    """``paired``; a loss of more than ``limit`` is measured again before it counts."""
    found = paired(original, ours, from_s=from_s)
    for attempt in range(1, ATTEMPTS):
        if found is None or found[1] <= limit:
            break
        again = paired(original, ours, (1 + attempt) * ROW_S, from_s)
        found = found if again is None else min(found, again, key=lambda f: f[1])
    return found
