"""The circuit breaker of an engine: its faults by cause and their consequences, its refusals, and its back-off."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from trnpy._base import store
from trnpy._base.records import record
from trnpy._nki.device import identity
from trnpy._nki.runtime import CompileError, DeviceMemoryError, DeviceTimeout

FAULTS_BEFORE_REST = 3  # consecutive faults after which calls stay on the host
RECENT, MOST = 20, 6  # faults among the last calls after which they do, for a device that fails intermittently
REST_S, LONGEST_S = 60.0, 3600.0  # first back-off, doubled after each one that ends in a failure
BARRED_S = LONGEST_S  # how long calls with one cache key stay on the host after a fault that only they met


@record()
class Consequence:
    """The consequences of a fault, besides the host's result and a warning."""

    rest_after: int  # consecutive faults, including this one, that open the circuit breaker; 0: not counted
    bars: bool  # whether calls with the same cache key stay on the host for BARRED_S
    then: str


WRONG, KEPT, HANGS, ERROR = "wrong numbers", "operand changed on the device", "time limit", "device error"
MEMORY, SIZE, COMPILER = "out of memory", "too large", "compiler"  # SIZE: other calls need far less memory

CAUSES: Mapping[str, Consequence] = MappingProxyType(
    {
        WRONG: Consequence(FAULTS_BEFORE_REST, False, "kept operands are compared with the host's at their next use"),
        KEPT: Consequence(FAULTS_BEFORE_REST, False, "the operand is sent again"),
        HANGS: Consequence(1, False, "the engine rests at once: each further try would take the time limit too"),
        ERROR: Consequence(FAULTS_BEFORE_REST, False, "the next call tries again"),
        MEMORY: Consequence(FAULTS_BEFORE_REST, False, "kept operands are dropped"),
        SIZE: Consequence(0, True, "calls of this kind stay on the host for an hour"),
        COMPILER: Consequence(FAULTS_BEFORE_REST, True, "calls of this kind stay on the host for an hour"),
    }
)


def cause(why: BaseException, large: bool) -> str:
    """The cause of a fault. ``large``: the call's operands need a large part of the device's memory."""
    if isinstance(why, (DeviceMemoryError, MemoryError)):
        return SIZE if large else MEMORY
    named = {ArithmeticError: WRONG, CompileError: COMPILER, DeviceTimeout: HANGS}
    return next((name for kind, name in named.items() if isinstance(why, kind)), ERROR)


@record(frozen=False)
class Health:
    """The circuit breaker of one engine: open after repeated faults, so that calls stay on the host."""

    faults: int = 0  # in a row
    causes: Counter[str] = field(default_factory=Counter)  # of all faults
    refusals: Counter[str] = field(default_factory=Counter)  # calls that the host computed without a fault, by reason
    rests_until: float = 0.0  # on ``clock``; 0 while the circuit is closed
    rest_s: float = REST_S  # length of the next back-off
    recent: deque[bool] = field(default_factory=lambda: deque(maxlen=RECENT))  # which of the last calls failed
    clock: Callable[[], float] = time.monotonic
    _barred: dict[str, tuple[str, float]] = field(default_factory=dict)  # cache key of a call -> cause, and until when

    @property
    def open(self) -> bool:
        return self.rests_until > 0

    @property
    def due(self) -> bool:
        """Whether a back-off is over, so that a known-answer test should run."""
        return self.open and self.clock() >= self.rests_until

    def barred(self, kind: Callable[[], str]) -> str:
        """The cause for which calls with this cache key stay on the host, or ""."""
        if not self._barred:
            return ""
        name, until = self._barred.get(kind(), ("", 0.0))
        return name if self.clock() < until else ""

    def failed(self, cause: str, kind: str = "") -> None:
        """Count a fault of a call with this cache key."""
        self.causes[cause] += 1
        follows = CAUSES[cause]
        if follows.bars and kind:
            self._barred[kind] = cause, self.clock() + BARRED_S
        if not follows.rest_after:
            return
        self.faults += 1
        self.recent.append(True)
        if self.faults >= follows.rest_after or sum(self.recent) >= MOST:
            self._rest()

    def worked(self) -> None:
        self.faults = 0
        self.recent.append(False)

    def tried(self, sound: bool) -> None:
        """Record the result of the known-answer test after a back-off."""
        if not sound:
            self._rest()
            return
        self.faults, self.rests_until, self.rest_s = 0, 0.0, REST_S
        self.recent.clear()

    def _rest(self) -> None:
        self.rests_until = self.clock() + self.rest_s
        self.rest_s = min(2 * self.rest_s, LONGEST_S)

    def __str__(self) -> str:
        """The number of faults by cause."""
        return _counted(self.causes) or "no faults"

    def sentence(self) -> str:
        """Faults by cause, refusals by reason, and whether the circuit is open; "" if there is nothing to report."""
        said = [f"faults: {self}"] if self.causes else []
        if self.refusals:
            said.append(f"left to the host without a fault: {_counted(self.refusals)}")
        if self.open:
            said.append("it rests")
        return "; ".join(said)


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in Counter(counts).most_common())


# --- what devices did in earlier processes, for the doctor ------------------------------------------------------------


def path(runtime: str, machine: str) -> Path:
    """The file of the faults of all processes, beside the calibration."""
    return store.folder() / f"faults-{runtime}-{machine}.json"


def remembered(runtime: str, machine: str) -> store.Stored[Counter[str]]:
    """Faults by cause in all processes, with the software that is installed now."""
    return store.read(path(runtime, machine), identity(runtime), _parsed)


def remember(cause: str, runtime: str, machine: str) -> None:
    """Add one fault to the file."""
    counts = remembered(runtime, machine).content or Counter()
    store.write(path(runtime, machine), {**counts, cause: counts[cause] + 1}, identity(runtime))


def _parsed(content: Any) -> Counter[str]:
    if not all(name in CAUSES and type(count) is int and count > 0 for name, count in content.items()):
        raise ValueError(f"{content!r} are not counts of known causes")
    return Counter(content)
