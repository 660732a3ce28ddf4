"""A line on a terminal that shows what runs and for how long, while it runs."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import Self, TextIO

INTERVAL_S = 1.0  # between updates; shorter work shows nothing
ERASE = "\r\x1b[K"


class Status:
    """While the block runs, standard error shows ``what``, ``step`` and the seconds, if it is a terminal."""

    def __init__(self, what: str, file: TextIO | None = None) -> None:
        self.what, self.step = what, ""
        self._file = file if file is not None else sys.stderr
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if self._file is not None and self._file.isatty():
            self._thread = threading.Thread(target=self._show, daemon=True)
            self._thread.start()
        return self

    def _show(self) -> None:
        started, shown = time.perf_counter(), False
        while not self._ended.wait(INTERVAL_S):
            step = f", {self.step}" if self.step else ""
            print(
                f"{ERASE}{self.what}{step}: {time.perf_counter() - started:.0f} s", end="", file=self._file, flush=True
            )
            shown = True
        if shown:
            print(ERASE, end="", file=self._file, flush=True)

    def __exit__(
        self, kind: type[BaseException] | None, why: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
