"""Work on a device within a time limit, and typed errors for the exceptions of drivers and compilers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from trnpy._nki.runtime import CompileError, DeviceError, DeviceMemoryError, DeviceTimeout, wait

# Parts of the error messages of the runtime and the compiler, in lower case.
OUT_OF_MEMORY = ("out of memory", "resource_exhausted", "nrt_resource", "failed to allocate")
REFUSED_BY_COMPILER = (
    "neuronx-cc",
    "compilation fail",
    "compilationerror",
    "failed to compile",
    "ncc_",
    "nki.compiler",
)


def typed(why: BaseException, kernel: str) -> DeviceError:
    """The DeviceError for an exception that torch, nki or libnrt raised in a launch of ``kernel``."""
    text = f"{kernel}: {type(why).__name__}: {why}"
    said = text.lower()
    if isinstance(why, MemoryError) or any(words in said for words in OUT_OF_MEMORY):
        return DeviceMemoryError(text)
    if isinstance(why, SyntaxError) or any(words in said for words in REFUSED_BY_COMPILER):
        return CompileError(text)
    return DeviceError(text)


LOOK_S = 0.01  # interval between checks of the time limit; the end of a launch is detected at once


class Guard:
    """Runs work and waits for the launches that it starts, within the time limit; errors become DeviceErrors.

    Calls of the driver block, so they run in another thread. If the device hangs, that thread never ends, and later
    work would wait behind its launch. Until the thread has ended, further work is refused at once.
    """

    def __init__(
        self,
        time_limit_s: Callable[[], float],
        select: Callable[[], Any] = lambda: None,
        synchronise: Callable[[], Any] = lambda: None,
    ) -> None:
        self._time_limit_s = time_limit_s
        self._select = select  # makes the core the one that the calling thread uses
        self._synchronise = synchronise  # returns when all its work is done
        self.hung: threading.Thread | None = None  # the thread of a launch that has exceeded its time limit

    def __call__(self, work: Callable[[], Any], what: str) -> Any:
        if self.hung is not None and self.hung.is_alive():
            raise DeviceTimeout(f"{what} was not started: {self.hung.name} still hangs")
        outcome: list[Any] = []

        def body() -> None:
            try:
                self._select()
                result = work()
                self._synchronise()
                outcome.append(result)
            except BaseException as why:  # raised again in the calling thread; a compiler may even call sys.exit
                outcome.append(typed(why, what))

        thread = threading.Thread(target=body, name=f"trnpy {what}", daemon=True)
        thread.start()

        def finished() -> bool:
            thread.join(LOOK_S)
            return not thread.is_alive()

        try:
            wait(finished, self._time_limit_s(), what)
        except DeviceTimeout:
            self.hung = thread
            raise
        if isinstance(outcome[0], DeviceError):
            raise outcome[0]
        return outcome[0]
