"""The number of computing threads, and how long this process's threads have waited for a busy processor."""

from __future__ import annotations

import _thread
import os
import time
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


def thread_waited_s(native_id: int | None) -> float:
    """Seconds that one thread has waited so far; 0.0 if the system does not report it."""
    try:
        return int((TASKS / str(native_id) / "schedstat").read_text().split()[1]) * 1e-9
    except (OSError, IndexError):
        return 0.0


class Processor:
    """Processor time of this process, and waits of the thread that makes the object, from then until ``stop``."""

    def __init__(self) -> None:
        self._thread = _thread.get_native_id()
        self._began = self._now()
        self._ended: tuple[float, float, float] | None = None

    def _now(self) -> tuple[float, float, float]:
        return time.process_time(), thread_waited_s(self._thread), waited_s()

    def stop(self) -> None:
        """End the measurement."""
        self._ended = self._now()

    def _since(self, i: int) -> float:
        return max((self._ended or self._now())[i] - self._began[i], 0.0)

    @property
    def seconds(self) -> float:
        """Processor seconds of all threads."""
        return self._since(0)

    @property
    def waited_s(self) -> float:
        """Seconds that the thread waited for a processor."""
        return self._since(1)

    @property
    def share(self) -> float:
        """The part of the time in which threads that could run had a processor."""
        ran_s, waited = self._since(0), self._since(2)
        return ran_s / (ran_s + waited) if ran_s else 1.0


def threads() -> int:
    """Threads that BLAS may use: from the variables that libraries read, otherwise one per processor."""
    for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        if os.environ.get(variable, "").isdecimal():
            return int(os.environ[variable])
    return os.cpu_count() or 1
