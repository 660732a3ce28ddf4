"""How many threads compute, and how long those of this process have waited for a processor that others had."""

from __future__ import annotations

import os
from pathlib import Path

TASKS = Path("/proc/self/task")  # Linux: of each thread nanoseconds with a processor, nanoseconds of waiting, turns


def waited_s() -> float:
    """Seconds that all threads alive have waited so far, added up; 0.0 where the system does not say."""
    total = 0
    for file in TASKS.glob("*/schedstat"):
        try:
            total += int(file.read_text().split()[1])
        except (OSError, IndexError):  # the thread has ended, or the kernel counts no waits
            continue
    return total * 1e-9


def threads() -> int:
    """Threads that BLAS may use: from the variables that libraries read, otherwise one for each processor."""
    for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        if os.environ.get(variable, "").isdecimal():
            return int(os.environ[variable])
    return os.cpu_count() or 1
