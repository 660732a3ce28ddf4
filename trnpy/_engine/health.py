"""Whether an engine is fit for calls: its faults by cause and what follows from each, its refusals, and its rests."""

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
RECENT, MOST = 20, 6  # faults among the last calls after which they do: a device that fails now and then
REST_S, LONGEST_S = 60.0, 3600.0  # of the first rest; each one that ends in a failure is followed by one twice as long
BARRED_S = LONGEST_S  # how long calls of one kind stay on the host after a fault that only their kind met


@record()
class Consequence:
    """What follows from a fault, beside the host's result and a warning."""

    rest_after: int  # consecutive faults, this one included, with which the engine rests; 0: it is not counted as one
    bars: bool  # whether calls of the same kind stay on the host for BARRED_S
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
    """The cause of a fault. ``large``: the call's operands take a good part of the device's memory."""
    if isinstance(why, (DeviceMemoryError, MemoryError)):
        return SIZE if large else MEMORY
    named = {ArithmeticError: WRONG, CompileError: COMPILER, DeviceTimeout: HANGS}
    return next((name for kind, name in named.items() if isinstance(why, kind)), ERROR)


@record(frozen=False)
class Health:
    """The circuit breaker of one engine: open after repeated faults, so that calls stop trying."""

    faults: int = 0  # in a row
    causes: Counter[str] = field(default_factory=Counter)  # of all faults
    refusals: Counter[str] = field(default_factory=Counter)  # calls the host did without a fault, by reason
    rests_until: float = 0.0  # by ``clock``; 0 while the engine works
    rest_s: float = REST_S  # of the next rest
    recent: deque[bool] = field(default_factory=lambda: deque(maxlen=RECENT))  # which of the last calls failed
    clock: Callable[[], float] = time.monotonic
    _barred: dict[str, tuple[str, float]] = field(default_factory=dict)  # kind of call -> cause, and until when

    @property
    def open(self) -> bool:
        return self.rests_until > 0

    @property
    def due(self) -> bool:
        """Whether a rest is over, so that a product of known answer should be tried."""
        return self.open and self.clock() >= self.rests_until

    def barred(self, kind: Callable[[], str]) -> str:
        """The cause for which calls of this kind stay on the host; "" if they need not."""
        if not self._barred:
            return ""
        name, until = self._barred.get(kind(), ("", 0.0))
        return name if self.clock() < until else ""

    def failed(self, cause: str, kind: str = "") -> None:
        """Count a fault of a call of this kind."""
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
        return _counted(self.causes) or "no faults"

    def sentence(self) -> str:
        """Faults by cause, refusals by reason and whether it rests; "" if there is nothing to say."""
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
