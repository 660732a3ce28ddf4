"""Processor seconds of whole programs: plain, under the runner and inside a patch, in turns."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

LIMIT = 1.05  # of the processor seconds of plain Python, after the fixed cost is taken off
# Otherwise chance decides whether glibc gives an array of a loop new pages at each iteration. It ignores a larger first
# threshold, and then maps every array of 128 KB.
KEPT_PAGES = {"MALLOC_MMAP_THRESHOLD_": str(2**25), "MALLOC_TRIM_THRESHOLD_": str(2**30)}
FIXED_S = 0.05  # the fixed cost of the runner: its start, the first call and the report
PATCHED = "import runpy, sys, trnpy\nwith trnpy.patched():\n    runpy.run_path(sys.argv[1], run_name='__main__')\n"


def environment(folder: str) -> dict[str, str]:
    """This process's environment, in which Python keeps compiled modules in ``folder``, and malloc keeps its pages."""
    own = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return own | KEPT_PAGES | {"PYTHONPYCACHEPREFIX": str(Path(folder, "compiled")), "MPLBACKEND": "Agg"}


def cpu_s(command: Sequence[str], folder: str) -> float:
    """Processor seconds of a whole process, with its children; RuntimeError if it fails."""
    with open(Path(folder, "errors"), "w+b") as errors:
        process = subprocess.Popen(
            [sys.executable, *command], cwd=folder, env=environment(folder), stdout=subprocess.DEVNULL, stderr=errors
        )
        _, status, usage = os.wait4(process.pid, 0)
        if status:
            errors.seek(0)
            last = (errors.read().decode(errors="replace").strip().splitlines() or ["no message"])[-1]
            raise RuntimeError(f"{' '.join(command[-2:])} ended with status {status}: {last}")
    return usage.ru_utime + usage.ru_stime


def medians(commands: Mapping[str, Sequence[str]], folder: str, rounds: int) -> dict[str, float]:
    """Median processor seconds of each command, in turns. A first run of each, which compiles modules, is left out."""
    for command in commands.values():
        cpu_s(command, folder)
    found: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(rounds):
        for name, command in commands.items():
            found[name].append(cpu_s(command, folder))
    return {name: statistics.median(times) for name, times in found.items()}
