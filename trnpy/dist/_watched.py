"""The status page of a rank, a file, and the watcher process that reads it: one for each rank, started here."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from trnpy._base.ranks_env import on_host, told
from trnpy.dist import _watcher
from trnpy.dist._collectives import MismatchedCalls, line_of_program


HIGH = 1000  # descriptor of the page, of 1,024 that a process may have by default


class Watched:
    """This rank as the watchers see it: a page with its state. Its own watcher starts here."""

    def __init__(self, timeout: float | None) -> None:
        self._told = ""
        size, variable = told()
        start = [os.getpid(), size, on_host()[0], variable, timeout or 0, line_of_program()]
        command = [sys.executable, "-S", "-E", _watcher.__file__, *map(str, start)]
        # The watcher has its own session: signals to the program's group do not stop it.
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, text=True
        )

    def show(self, folder: str, rank: int, size: int) -> None:
        """Make the page of this rank, in ``folder``."""
        Path(folder).mkdir(mode=0o700, exist_ok=True)
        self._folder, self._rank, self._size = folder, rank, size
        path = _watcher.page(folder, rank)
        path.write_bytes(bytes(_watcher.PAGE))
        with path.open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), _watcher.PAGE)
            with contextlib.suppress(OSError):  # the limit of descriptors is lower
                # Linux closes the files of a dead process from the highest number down: first the page, and later the
                # connection to the launcher, which ends all other ranks when that is closed.
                self._open = fcntl.fcntl(file.fileno(), fcntl.F_DUPFD_CLOEXEC, HIGH)
        self.tell(None)

    def begin(self) -> None:
        """Start the watcher's loop when all ranks have pages; returns when it runs, or has ended."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{self._folder}\t{self._rank}\t{self._size}\n")
        self._process.stdin.flush()
        self._process.stdout.readline()

    @staticmethod
    def folder() -> str:
        """The name of a new folder for pages, in memory if possible."""
        memory = Path("/dev/shm")
        return tempfile.mkdtemp(prefix="trnpy-", dir=memory if os.access(memory, os.W_OK) else None)

    def tell(self, waits: Any) -> None:
        """Write that the rank waits for others in a call at a line, or if None, that it continues."""
        if waits is not None:
            self._told = f"{waits[0]} at {waits[1]}"
        self._write("waits" if waits is not None else "runs")

    def _write(self, state: str) -> None:
        text = f"{os.getpid()}\n{state}\n{time.monotonic()}\n{self._told}"
        self._page[:] = text.encode()[: _watcher.PAGE].ljust(_watcher.PAGE)

    def report(self, why: BaseException) -> None:
        """Print the exception that ends the run, unless another rank has reported; watchers then print nothing."""
        ended = _watcher.ended(self._rank, self._size, f"{type(why).__name__}: {why}", self._told)
        _watcher.report(self._folder, str(why) if isinstance(why, MismatchedCalls) else ended)

    def end(self) -> None:
        """End the watcher."""
        self._write(_watcher.ENDED)
        self._process.communicate()
