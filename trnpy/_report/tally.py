"""Sums of calls by function, place, reason and line, with the modelled times of a device."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import field
from typing import TYPE_CHECKING, Any

from nkisim.hardware import interval
from trnpy._base.processors import threads
from trnpy._base.records import record
from trnpy._engine.time_parts import Parts
from trnpy._report.small_calls import Call, SmallCalls
from trnpy._settings.policy import HYSTERESIS

if TYPE_CHECKING:
    from trnpy._report.reasons import Decision

STEADY = 0.9  # if a call has a processor for a smaller share of its time, other work disturbed it
# On an idle host a call takes up to this many times its calibrated prediction (python -m benchmarks predictions). If it
# takes longer, it was disturbed. The verdict should be the same with and without a calibration.
DISTURBED = 1.2
DOUBTED = 3.0  # if measured and predicted host times differ by a larger factor, the report gives no gain
DEVICE = "neuron"  # the only engine that is a device
RETRIED = "host (retried)"
ROUTED = "host by "
# Reasons for which a call with a modelled time does not try the device path, or launches nothing on it. Calls with any
# other reason were computed twice.
UNTRIED = ("route", "no_device", "no_launch", "policy", "not_compiled", "small", "memory_bound", "slower")
FAILURES = ("error", "oom", "accuracy")  # reasons that mean that something went wrong


@record(frozen=False)
class Tally:
    """The sums over calls that agree in the fields of ``KEY`` that are not empty."""

    op: str = ""
    ran_on: str = ""  # as the function ``ran_on`` returns it
    reason: str = ""
    machine: str = ""  # the machine of the modelled seconds
    file: str = ""
    line: int = 0
    through: str = ""  # the library's ``file:line`` through which the program's line made the calls
    calls: int = 0
    seconds: float = 0.0  # measured; estimated for calls that were not timed
    cpu_s: float = 0.0  # processor time of all threads meanwhile; estimated for small calls
    timed: int = 0
    modelled: int = 0  # calls with times for both host and device, over which the next four fields are summed
    unmodelled: int = 0  # calls whose device path needs an engine to be modelled, and there is none
    unmodelled_s: float = 0.0  # measured
    own_s: float = 0.0  # measured time of the host in these calls in which the calling thread had a processor
    host_s: float = 0.0  # predicted
    device_s: float = 0.0  # modelled; the seconds of the next seven fields add up to it
    launch_s: float = 0.0
    send_s: float = 0.0
    fetch_s: float = 0.0
    to_digits_s: float = 0.0
    from_digits_s: float = 0.0
    engine_s: float = 0.0
    host_steps_s: float = 0.0
    single_s: float = 0.0  # modelled with precision="fp32", if that is another precision
    moved_bytes: int = 0
    flops: float = 0.0
    uncalibrated: int = 0
    sure_s: float = 0.0  # undisturbed host time, as ``undisturbed`` computes it
    won: int = 0  # calls for which the modelled device beats the undisturbed host by HYSTERESIS
    won_s: float = 0.0  # undisturbed host seconds of these calls
    won_device_s: float = 0.0  # modelled
    doubted: int = 0  # calls for which it beats only the measured time
    doubted_s: float = 0.0  # measured
    doubted_host_s: float = 0.0  # predicted
    doubted_device_s: float = 0.0  # modelled
    unclear_s: float = 0.0  # gain of calls that would count for a device if their prediction could be trusted
    least_s: float = 0.0  # saved if modelled times are at the slow end of their interval
    most_s: float = 0.0  # at the fast end
    lost: int = 0  # calls on the device path that were slower than predicted for the host
    lost_s: float = 0.0  # measured
    lost_host_s: float = 0.0  # predicted
    longest_s: float = -1.0
    detail: str = ""  # of the longest call
    launches: dict[str, int] = field(default_factory=dict)  # number of launches of each kernel

    @property
    def key(self) -> tuple[str, str, str, str, str, int, str]:
        return self.op, self.ran_on, self.reason, self.machine, self.file, self.line, self.through

    @property
    def parts(self) -> Parts:
        """The parts of the modelled seconds."""
        return Parts(*(getattr(self, name) for name in Parts._fields))

    @property
    def mispredicted(self) -> float:
        """Measured over predicted host time, if they differ by more than DOUBTED times; otherwise 0."""
        if not self.on_host or not (self.own_s and self.host_s):
            return 0.0
        ratio = self.own_s / self.host_s
        return 0.0 if 1 / DOUBTED <= ratio <= DOUBTED else ratio

    def without_gain(self) -> Tally:
        """This tally if its prediction can be trusted; otherwise one whose winning calls are in doubt."""
        if self.mispredicted and self.won:
            self.unclear_s += self.gain_s
            self.doubted, self.doubted_s = self.doubted + self.won, self.doubted_s + self.won_s
            self.doubted_host_s += self.host_s * self.won / self.modelled
            self.doubted_device_s += self.won_device_s
            self.won, self.won_s, self.won_device_s = 0, 0.0, 0.0
        if self.mispredicted:
            self.least_s = self.most_s = 0.0
        return self

    @property
    def gain_s(self) -> float:
        """Modelled seconds that a device would save in the calls for which it is faster."""
        return self.won_s - self.won_device_s

    @property
    def on_host(self) -> bool:
        return is_host(self.ran_on)

    @property
    def without_device_s(self) -> float:
        """Seconds of all calls on the host: measured if the host computed them, otherwise predicted."""
        return self.seconds if self.on_host or not self.modelled else self.host_s

    @property
    def with_device_s(self) -> float:
        """Seconds of all calls if a device computes those it wins: measured if it did, otherwise modelled."""
        return self.seconds if self.ran_on == DEVICE else self.without_device_s - self.gain_s

    def price(
        self, decision: Decision, seconds: float, ran_s: float, crowded: bool = False, fastest_s: float = math.inf
    ) -> None:
        """Add the predicted times of one call, and compare them with its measured time; ``ran_s`` as in Ledger.add.

        ``crowded``: whether threads of this process waited for processors at the time. ``fastest_s``: the shortest time
        of nearby calls with this decision, and so with these sizes; it shows the host's undisturbed speed.
        """
        host_s, device_s = decision.host_s or 0.0, decision.device_s or 0.0
        self.modelled += 1
        self.host_s += host_s
        self.device_s += device_s
        for name, part_s in zip(Parts._fields, decision.parts, strict=True):
            setattr(self, name, getattr(self, name) + part_s)
        self.single_s += device_s if decision.single_s is None else decision.single_s
        self.moved_bytes += decision.moved_bytes
        self.flops += decision.flops
        self.uncalibrated += not decision.calibrated
        if not self.on_host and seconds > host_s:
            self.lost += 1
            self.lost_s += seconds
            self.lost_host_s += host_s
        # The host's own time excludes other work on this machine, which only occupies its processors.
        own_s = min(seconds, ran_s) if self.on_host else host_s
        self.own_s += own_s
        sure_s = undisturbed(decision, own_s, waited=crowded or ran_s < STEADY * seconds)
        sure_s = min(sure_s, fastest_s) if self.on_host else sure_s
        self.sure_s += sure_s
        fast_s, slow_s = interval(device_s)
        if self.ran_on not in (DEVICE, RETRIED):
            self.least_s += saved(sure_s, slow_s)
            self.most_s += saved(sure_s, fast_s)
        if not beats_host(self.ran_on, decision, own_s):
            return
        if beats_host(self.ran_on, decision, sure_s):
            self.won += 1
            self.won_s += sure_s
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


KEY = ("op", "ran_on", "reason", "machine", "file", "line", "through")
SUMS = tuple(name for name in Tally.__annotations__ if name not in (*KEY, "longest_s", "detail", "launches"))


def merged(tallies: Iterable[Tally], *key: str) -> list[Tally]:
    """Sums of ``tallies`` that agree in the fields ``key``, longest measured time first."""
    groups: dict[tuple[Any, ...], Tally] = {}
    for t in tallies:
        common = {name: getattr(t, name) for name in key}
        groups.setdefault(tuple(common.values()), Tally(**common)).absorb(t)
    return sorted(groups.values(), key=lambda t: (-t.seconds, t.op, t.file, t.line))


def saved(host_s: float, device_s: float) -> float:
    """Seconds that a device saves in a call; 0 unless it is faster by HYSTERESIS, because the host then computes it."""
    return host_s - device_s if device_s * HYSTERESIS <= host_s else 0.0


def is_host(where: str) -> bool:
    """Whether the host alone computed these calls, without trying the device path first."""
    return where in ("host", "host (null)") or where.startswith(ROUTED)


def ran_on(decision: Decision) -> str:
    """Where a call was computed.

    host            by the original function
    host by …       by a CPU fast path
    host (null)     by the original function; under ``device="null"`` the model preferred a device
    host (retried)  by the original function, after the device path failed or declined: the time includes both
    neuron          by a Trainium
    host engine, …  by the device path on an engine that is not a device
    """
    if not decision.on_device and decision.route:
        return ROUTED + decision.route
    if not decision.on_device:
        return "host" if decision.device_s is None or decision.reason in UNTRIED else RETRIED
    if decision.engine == "host" and decision.reason != "forced":
        return "host (null)"
    return decision.engine if decision.engine == DEVICE else f"{decision.engine} engine"


def reason(decision: Decision) -> str:
    """Why a call ran where it ran; if there is no device, the modelled reason if there is one."""
    return str((decision.reason == "no_device" and decision.model_reason) or decision.reason)


def detail(decision: Decision) -> str:
    """`reason` as a phrase."""
    return (decision.reason == "no_device" and decision.model_detail) or decision.detail


def why(t: Tally) -> str:
    """The reason of a tally as the tables show it: "faster on trn2" if the calls ran on the host.

    It also states why no gain is given although the decision, which rests on predictions, was for the device.
    """
    if t.mispredicted:
        return f"{t.reason}, took {off(t.mispredicted)} its prediction"
    if t.reason != "faster" or not is_host(t.ran_on):
        return t.reason
    return f"faster on {t.machine}" if t.most_s else f"{t.machine} slower than the host measured"


def off(ratio: float) -> str:
    """A measured time relative to its prediction: "4.1 times", "45 times", "20.0% of"."""
    return f"{ratio:.1f} times" if 1 <= ratio < 10 else f"{ratio:.0f} times" if ratio > 1 else f"{ratio:.1%} of"


def beats_host(where: str, decision: Decision, seconds: float) -> bool:
    """Whether the modelled device beats ``seconds`` of the host by HYSTERESIS; False if a device took part."""
    if decision.device_s is None or decision.host_s is None or where in (DEVICE, RETRIED):
        return False
    return decision.device_s * HYSTERESIS <= (seconds if is_host(where) else decision.host_s)


def undisturbed(decision: Decision, seconds: float, waited: bool = False) -> float:
    """Host seconds from which a gain may be computed: ``seconds`` of its processor, or the prediction if disturbed.

    A call that takes more than DISTURBED times its calibrated prediction was disturbed, by other work or by operands
    that were not in the caches. Default rates come from another host and show a disturbance only if other work is
    known: ``waited`` states that threads did not always have a processor. The threads of one call then also waited for
    each other.
    """
    predicted_s = decision.host_s or 0.0
    if decision.calibrated:
        return seconds if seconds <= DISTURBED * predicted_s else predicted_s
    return min(seconds, predicted_s) if waited and threads() > 1 else seconds


def wins(call: Call) -> bool:
    """Whether the modelled device beats the undisturbed time of the host for ``call``."""
    return beats_host(ran_on(call.decision), call.decision, undisturbed(call.decision, call.seconds))


def of_small(small: SmallCalls, busy: float) -> Tally:
    """The sum of all small calls of one function from one line; the time of calls without timing is estimated.

    ``busy``: the part of the run in which its threads had a processor, for the estimate of their processor time.
    """
    calls, timed = small.calls, small.timed + small.sampled
    typical_s = small.sampled_s / small.sampled if small.sampled else small.timed_s / max(small.timed, 1)
    decision, untimed = small.decision, max(calls - timed, 0)
    site = small.site
    where = ran_on(decision), reason(decision), decision.machine, site.file, site.line, site.through
    seconds = small.timed_s + small.sampled_s + untimed * typical_s
    tally = Tally(
        decision.op, *where, calls, seconds, seconds * busy, timed=timed, longest_s=typical_s, detail=detail(decision)
    )
    if decision.model_reason == "no_device":
        tally.unmodelled, tally.unmodelled_s = calls, seconds
    if decision.device_s is not None:
        one = Tally(*tally.key)
        one.price(decision, typical_s, typical_s, fastest_s=small.least_s)
        for name in SUMS:
            setattr(tally, name, getattr(tally, name) + calls * getattr(one, name))
    return tally
