"""Whether an engine is fit for calls: its faults by cause, when it rests, and when it is tried again."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from trnpy._nki.runtime import CompileError, DeviceMemoryError, DeviceTimeout

FAULTS_BEFORE_REST = 3  # consecutive faults after which calls stay on the host
RECENT, MOST = 20, 6  # faults among the last calls after which they do: a device that fails now and then
REST_S, LONGEST_S = 60.0, 3600.0  # of the first rest; each one that ends in a failure is followed by one twice as long
WRONG, REFUSED = "wrong numbers", "refused"
MEMORY, SIZE = "out of memory", "too large"  # SIZE: an operand so large that other calls say nothing of it


def cause(why: BaseException, large: bool) -> str:
    """The cause of a fault. ``large``: the call's operands take a good part of the device's memory."""
    if isinstance(why, (DeviceMemoryError, MemoryError)):
        return SIZE if large else MEMORY
    if isinstance(why, ArithmeticError):
        return WRONG
    named = {CompileError: "compiler", DeviceTimeout: "time limit"}
    return next((name for kind, name in named.items() if isinstance(why, kind)), "device error")


@dataclass(slots=True)
class Health:
    """The circuit breaker of one engine: open after repeated faults, so that calls stop trying."""

    faults: int = 0  # in a row
    causes: Counter[str] = field(default_factory=Counter)  # of all faults, and results that were refused in silence
    rests_until: float = 0.0  # by ``clock``; 0 while the engine works
    rest_s: float = REST_S  # of the next rest
    recent: deque[bool] = field(default_factory=lambda: deque(maxlen=RECENT))  # which of the last calls failed
    clock: Callable[[], float] = time.monotonic

    @property
    def open(self) -> bool:
        return self.rests_until > 0

    @property
    def due(self) -> bool:
        """Whether a rest is over, so that a product of known answer should be tried."""
        return self.open and self.clock() >= self.rests_until

    def failed(self, cause: str) -> None:
        self.causes[cause] += 1
        if cause == SIZE:
            return
        self.faults += 1
        self.recent.append(True)
        if self.faults >= FAULTS_BEFORE_REST or sum(self.recent) >= MOST:
            self._rest()

    def worked(self) -> None:
        self.faults = 0
        self.recent.append(False)

    def tried(self, sound: bool) -> None:
        """The outcome of the product of known answer after a rest."""
        if not sound:
            self._rest()
            return
        self.faults, self.rests_until, self.rest_s = 0, 0.0, REST_S
        self.recent.clear()

    def _rest(self) -> None:
        self.rests_until = self.clock() + self.rest_s
        self.rest_s = min(2 * self.rest_s, LONGEST_S)

    def __str__(self) -> str:
        """How often it failed, by cause."""
        return ", ".join(f"{count} {name}" for name, count in self.causes.most_common()) or "no faults"
