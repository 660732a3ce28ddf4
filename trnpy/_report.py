"""What ran where, why and how long: one ledger per process, filled while it is switched on."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trnpy._dispatch import Decision

LIBRARIES = ("trnpy", "numpy", "scipy")  # never "the caller": the first frame outside them is


@dataclass(frozen=True, slots=True)
class Call:
    """One call of an accelerated function, as it went."""

    decision: Decision
    started: float  # perf_counter seconds
    seconds: float  # measured, wherever it ran
    file: str
    line: int


@dataclass(slots=True)
class Ledger:
    """Every call since it was opened."""

    opened: float = field(default_factory=time.perf_counter)
    calls: list[Call] = field(default_factory=list)

    def add(self, decision: Decision, started: float, seconds: float, frame: FrameType | None) -> None:
        while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in LIBRARIES:
            frame = frame.f_back
        file, line = (frame.f_code.co_filename, frame.f_lineno) if frame is not None else ("", 0)
        self.calls.append(Call(decision, started, seconds, file, line))


class Process:
    """The open ledger of this process, all threads; None while nothing is recorded."""

    ledger: Ledger | None = None


@contextlib.contextmanager
def profile() -> Iterator[Ledger]:
    """Record every call made inside the block, in all threads."""
    previous, Process.ledger = Process.ledger, Ledger()
    try:
        yield Process.ledger
    finally:
        Process.ledger = previous
