"""The number of computing threads, and how long this process's threads have waited for a busy processor."""

from __future__ import annotations

import os
from pathlib import Path

TASKS = Path("/proc/self/task")  # Linux, per thread: nanoseconds with a processor, nanoseconds of waiting, time slices


def waited_s() -> float:
    """Seconds that all living threads have waited so far, added; 0.0 if the system does not report it."""
    total = 0
    for file in TASKS.glob("*/schedstat"):
        try:
            total += int(file.read_text().split()[1])
        except (OSError, IndexError):  # the thread has ended, or the kernel does not count waits
            continue
    return total * 1e-9


def threads() -> int:
    """Threads that BLAS may use: from the variables that libraries read, otherwise one per processor."""
    for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        if os.environ.get(variable, "").isdecimal():
            return int(os.environ[variable])
    return os.cpu_count() or 1
