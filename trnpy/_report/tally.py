"""Calls added up: per function, place, reason and line, and what a device would change."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from operator import length_hint
from typing import TYPE_CHECKING, Any, Protocol

from trnpy._settings.policy import HYSTERESIS

if TYPE_CHECKING:
    from trnpy._call.dispatch import Decision

EXACT = 17  # small calls of a line that are all timed, before one of STRIDE is
BRIEF_S = 50e-6  # small calls that take longer are all timed: a clock is a hundredth of that
STRIDE = 61  # one of so many brief calls of a line is timed; a prime, so that calls that alternate in a loop all are
DEVICE = "neuron"  # the engine whose measured seconds are a device's; all others are doubles
RETRIED = "host (retried)"
ROUTED = "host by "
# Why a priced call stays on the host untried; any other reason was found on the device path.
UNTRIED = ("route", "no_device", "policy", "not_compiled", "small", "memory_bound", "slower")
FAILURES = ("error", "oom", "accuracy")  # what went wrong rather than what is better on the host


@dataclass(frozen=True, slots=True)
class Call:
    """One call of an accelerated function, as it went."""

    decision: Decision
    started: float  # perf_counter seconds
    seconds: float  # measured, wherever it ran
    file: str
    line: int
    thread: int


@dataclass(slots=True)
class Tally:
    """Calls added up that have in common what is not empty of ``KEY``."""

    op: str = ""
    ran_on: str = ""  # see ``ran_on``
    reason: str = ""
    machine: str = ""  # that the modelled seconds are of
    file: str = ""
    line: int = 0
    calls: int = 0
    seconds: float = 0.0  # measured; estimated of calls that were not timed
    timed: int = 0
    modelled: int = 0  # calls with a prediction for both sides; the four below are theirs
    host_s: float = 0.0  # predicted
    device_s: float = 0.0  # modelled
    moved_bytes: int = 0
    flops: float = 0.0
    uncalibrated: int = 0
    won: int = 0  # calls whose host time the modelled device beats by HYSTERESIS, measured and predicted
    won_s: float = 0.0  # host seconds of those: measured, or predicted where a double ran
    won_host_s: float = 0.0  # predicted
    won_device_s: float = 0.0  # modelled
    doubted: int = 0  # calls that it beats as measured, not as predicted: trnpy would leave them on the host
    doubted_s: float = 0.0  # measured
    doubted_host_s: float = 0.0  # predicted
    doubted_device_s: float = 0.0  # modelled
    lost: int = 0  # calls that took the device path and were slower than the predicted host
    lost_s: float = 0.0  # measured
    lost_host_s: float = 0.0  # predicted
    longest_s: float = -1.0
    detail: str = ""  # of the longest call
    launches: dict[str, int] = field(default_factory=dict)  # of each kernel

    @property
    def key(self) -> tuple[str, str, str, str, str, int]:
        return self.op, self.ran_on, self.reason, self.machine, self.file, self.line

    @property
    def gain_s(self) -> float:
        """Modelled seconds that a device would save in the calls it wins."""
        return self.won_s - self.won_device_s

    @property
    def on_host(self) -> bool:
        return is_host(self.ran_on)

    @property
    def without_device_s(self) -> float:
        """Host seconds of all its calls: measured where the host's own function ran, else predicted."""
        return self.seconds if self.on_host or not self.modelled else self.host_s

    @property
    def with_device_s(self) -> float:
        """Seconds with a device for the calls it wins: measured where it ran, else modelled."""
        return self.seconds if self.ran_on == DEVICE else self.without_device_s - self.gain_s

    def price(self, decision: Decision, seconds: float) -> None:
        """Add the prediction for one more of its calls, and compare it with what the call took."""
        host_s, device_s = decision.host_s or 0.0, decision.device_s or 0.0
        self.modelled += 1
        self.host_s += host_s
        self.device_s += device_s
        self.moved_bytes += decision.moved_bytes
        self.flops += decision.flops
        self.uncalibrated += not decision.calibrated
        if not self.on_host and seconds > host_s:
            self.lost += 1
            self.lost_s += seconds
            self.lost_host_s += host_s
        if not beats_host(self.ran_on, decision, seconds):
            return
        if beats_host(self.ran_on, decision, host_s):
            self.won += 1
            self.won_s += seconds if self.on_host else host_s
            self.won_host_s += host_s
            self.won_device_s += device_s
        else:
            self.doubted += 1
            self.doubted_s += seconds
            self.doubted_host_s += host_s
            self.doubted_device_s += device_s

    def absorb(self, other: Tally) -> None:
        """Add the calls of ``other``."""
        for name in SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        if other.longest_s > self.longest_s:
            self.longest_s, self.detail = other.longest_s, other.detail
        self.launch(other.launches.items())

    def launch(self, launches: Iterable[tuple[str, int]]) -> None:
        """Add launches of kernels by name."""
        for kernel, count in launches:
            self.launches[kernel] = self.launches.get(kernel, 0) + count


KEY = ("op", "ran_on", "reason", "machine", "file", "line")
SUMS = tuple(f.name for f in fields(Tally) if f.name not in (*KEY, "longest_s", "detail", "launches"))


def merged(tallies: Iterable[Tally], *key: str) -> list[Tally]:
    """``tallies`` added up over what is not in ``key``, longest measured time first."""
    groups: dict[tuple[Any, ...], Tally] = {}
    for t in tallies:
        common = {name: getattr(t, name) for name in key}
        groups.setdefault(tuple(common.values()), Tally(**common)).absorb(t)
    return sorted(groups.values(), key=lambda t: (-t.seconds, t.op, t.file, t.line))


def is_host(where: str) -> bool:
    """Whether the host did all the work, and did it once."""
    return where in ("host", "host (null)") or where.startswith(ROUTED)


def ran_on(decision: Decision) -> str:
    """Where a call was computed.

    host            the reference function, on the host
    host by …       the same result by another route
    host (null)     the reference, although the model would have sent it to a device
    host (retried)  the reference, after the device path had failed or declined: its time is that of both
    neuron          a Trainium
    host engine, …  the device path, on something that is not a device
    """
    if not decision.on_device and decision.route:
        return ROUTED + decision.route
    if not decision.on_device:
        return "host" if decision.device_s is None or decision.reason in UNTRIED else RETRIED
    if decision.engine == "host" and decision.reason != "forced":
        return "host (null)"
    return decision.engine if decision.engine == DEVICE else f"{decision.engine} engine"


def beats_host(where: str, decision: Decision, seconds: float) -> bool:
    """Whether the modelled device beats by HYSTERESIS a call that took ``seconds``, and no device took part."""
    if decision.device_s is None or decision.host_s is None or where in (DEVICE, RETRIED):
        return False
    return decision.device_s * HYSTERESIS <= (seconds if is_host(where) else decision.host_s)


def wins(call: Call) -> bool:
    """Whether the modelled device beats the host's time for ``call``, measured and predicted."""
    where, d = ran_on(call.decision), call.decision
    return beats_host(where, d, call.seconds) and beats_host(where, d, d.host_s or 0.0)


class Site(Protocol):
    """A line of the program."""

    file: str
    line: int


class SmallCalls:
    """The small calls of one function from one line: all are counted, and of brief ones every STRIDE-th is timed.

    Valid under the activation and the policy it was made for, while ``ledger`` is the open ledger's list of these.
    ``count`` is consumed by one at each call, which no other thread can come between.
    """

    __slots__ = (
        *("activation", "count", "decision", "every", "least_s", "ledger", "policy", "sampled", "sampled_s", "site"),
        *("timed", "timed_s"),
    )

    def __init__(self, site: Site, decision: Decision, activation: object, policy: object, ledger: object) -> None:
        self.site, self.decision, self.activation, self.policy, self.ledger = site, decision, activation, policy, ledger
        self.count = iter(range(sys.maxsize))
        self.every = 1
        self.least_s = math.inf  # of the first: of a call that another thread interrupted the clock says too much
        self.timed, self.timed_s = 0, 0.0  # while every call was
        self.sampled, self.sampled_s = 0, 0.0  # from then on

    def add(self, seconds: float) -> None:
        """What one timed call took."""
        if self.every > 1:
            self.sampled, self.sampled_s = self.sampled + 1, self.sampled_s + seconds
            return
        self.timed, self.timed_s = self.timed + 1, self.timed_s + seconds
        self.least_s = min(self.least_s, seconds)
        if self.timed == EXACT and self.least_s < BRIEF_S:
            self.every = STRIDE

    def tally(self) -> Tally:
        """All of them added up; the time of those that were not timed is estimated."""
        calls, timed = sys.maxsize - length_hint(self.count), self.timed + self.sampled
        typical_s = self.sampled_s / self.sampled if self.sampled else self.timed_s / max(self.timed, 1)
        decision, untimed = self.decision, max(calls - timed, 0)
        where = ran_on(decision), str(decision.reason), decision.machine, self.site.file, self.site.line
        seconds = self.timed_s + self.sampled_s + untimed * typical_s
        return Tally(
            decision.op, *where, calls, seconds, timed=timed, longest_s=typical_s, detail=decision.detail
        )  # fmt: skip
