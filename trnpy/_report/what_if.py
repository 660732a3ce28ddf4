"""The effect that a device would have on a run: times with and without it, a verdict, and advice."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from nkisim.hardware import ERROR_FACTOR
from trnpy._base.records import record
from trnpy._report.run_record import Run
from trnpy._report.small_calls import NOTHING_CALLED
from trnpy._report.tally import DEVICE, DOUBTED, Tally, saved
from trnpy._report.units import NOTICEABLE, duration, several, uncalibrated

UNCLEAR = f"the host's times differ from their predictions by more than {DOUBTED:g} times"


class Verdict(StrEnum):
    """Whether a device makes a run faster."""

    FASTER = "faster"
    SAME = "no difference"
    UNKNOWN = "not enough data"


@record(frozen=True)
class WhatIf:
    """The run without a device, and with one that computes the calls for which it is faster."""

    machine: str
    calls: int
    modelled: int
    won: int
    taken: int  # calls that a device computed
    elapsed_s: float  # measured
    accelerated_s: float  # measured time in which at least one accelerated function was running
    host_s: float  # the run on the host alone: measured, or predicted for calls that ran elsewhere
    device_s: float  # the run with the machine: modelled, or measured if a device took part
    device_part_s: float  # the part of device_s that the machine computes
    least_s: float  # saving of the machine at the slow end of the model's interval
    most_s: float  # at the fast end
    unmodelled: int  # calls with sparse matrices, which need an engine to be modelled
    unmodelled_s: float  # measured
    host_basis: str  # "measured", "predicted" or "predicted, uncalibrated"
    unclear_s: float = 0.0  # savings that are not counted, because measured and predicted times differ too much
    share: float = 0.0  # of the processor time, in accelerated functions
    waited_s: float = 0.0  # the part of elapsed_s in which the program waited for a processor

    @property
    def steady_s(self) -> float:
        """Time of the run on the host alone if the program never has to wait for a processor."""
        return max(self.host_s - self.waited_s, self.most_s)

    @property
    def speedup(self) -> float:
        """Time of the run on the host over its time with the machine."""
        return self.host_s / self.device_s if self.device_s > 0 else 1.0

    @property
    def speedups(self) -> tuple[float, float]:
        """The modelled speed-up at both ends of the model's interval."""
        full_s = self.steady_s
        least, most = (full_s / (full_s - saved) if saved < full_s else 1.0 for saved in (self.least_s, self.most_s))
        return least, most

    @property
    def verdict(self) -> Verdict:
        """From measured times if a device took part, otherwise from modelled ones."""
        least_s, most_s = (self.host_s - self.device_s,) * 2 if self.taken else (self.least_s, self.most_s)
        noticeable_s = NOTICEABLE * self.steady_s
        if least_s > noticeable_s:
            return Verdict.FASTER
        known = most_s <= noticeable_s and (self.taken or self.unmodelled_s + self.unclear_s <= noticeable_s)
        return Verdict.SAME if known else Verdict.UNKNOWN

    def __str__(self) -> str:
        if not self.calls:
            return NOTHING_CALLED
        if self.taken:
            faster = self.verdict is Verdict.FASTER
            said = f"made this run {self.speedup:.3g} times faster" if faster else "did not make this run faster"
            return (
                f"the {self.machine} {said}: {duration(self.elapsed_s)} (measured), "
                f"on the host alone {duration(self.host_s)} ({self.host_basis})"
            )
        core, (least, most) = f"one core of a {self.machine}", self.speedups
        if self.verdict is Verdict.FASTER:
            times = f"{duration(self.steady_s - self.most_s)} to {duration(self.steady_s - self.least_s)}"
            return (
                f"{core} would make this run {least:.3g} to {most:.3g} times faster: {times} instead of "
                f"{duration(self.steady_s)} (modelled; {self.won:,} of {self.calls:,} calls)"
            )
        if self.verdict is Verdict.SAME:
            if not self.modelled:
                none = "its one call has no" if self.calls == 1 else f"none of its {self.calls:,} calls has"
                why = f"{none} work for a device"
            elif not self.most_s:
                could = "the one call" if self.modelled == 1 else f"any of the {self.modelled:,} calls"
                why = f"it would not be faster for {could} that could go there"
            else:
                why = f"it would save at most {duration(self.most_s)} of {duration(self.steady_s)}"
            return f"{core} would make no difference to this run: {why} (modelled)"
        unknown = f"not enough data to decide whether {core} would make this run faster"
        if self.most_s <= NOTICEABLE * self.steady_s and self.unclear_s > self.unmodelled_s:
            return f"{unknown}: {UNCLEAR} (modelled)"
        if self.most_s <= NOTICEABLE * self.steady_s:
            calls = f"{several(self.unmodelled, 'call')} with sparse matrices took {duration(self.unmodelled_s)}"
            return f"{unknown}: {calls} (measured), and --device null models them"
        return (
            f"{unknown}: {least:.3g} to {most:.3g} times "
            f"(modelled); the model is within a factor of {ERROR_FACTOR:g}, and only a run on the device narrows that"
        )

    __repr__ = __str__


def predicted(ledger: Run) -> WhatIf:
    """The times of a run without a device and with the ledger's machine.

    Time outside accelerated functions stays as measured. Time inside is scaled by the ratio of the sums over calls
    with and without the device. A call counts for the device only if the device beats the undisturbed host time by
    HYSTERESIS; its gain is the difference of these two times.
    """
    tallies, elapsed_s = ledger.tallies, ledger.elapsed_s
    small_s = sum(t.seconds for t in ledger.small_tallies())
    covered_s = min(ledger.covered_s + small_s, max(elapsed_s, ledger.covered_s))  # small calls of threads may overlap
    measured_s = sum(t.seconds for t in tallies) or 1.0  # if nothing is recorded, covered_s is also 0
    rest_s = max(elapsed_s - covered_s, 0.0)
    taken = sum(t.calls for t in tallies if t.ran_on == DEVICE)
    on_device_s = sum(t.seconds if t.ran_on == DEVICE else 0.0 if taken else t.won_device_s for t in tallies)
    elsewhere = [t for t in tallies if not t.on_host]
    return WhatIf(
        machine=ledger.machine,
        calls=sum(t.calls for t in tallies),
        modelled=sum(t.modelled for t in tallies),
        won=sum(t.won for t in tallies),
        taken=taken,
        elapsed_s=elapsed_s,
        accelerated_s=covered_s,
        host_s=rest_s + covered_s * sum(t.without_device_s for t in tallies) / measured_s,
        # If a device took part, its measured time is used and nothing is modelled.
        device_s=elapsed_s if taken else rest_s + covered_s * sum(t.with_device_s for t in tallies) / measured_s,
        device_part_s=covered_s * on_device_s / measured_s,
        least_s=covered_s * sum(t.least_s for t in tallies) / measured_s,
        most_s=covered_s * sum(t.most_s for t in tallies) / measured_s,
        unmodelled=sum(t.unmodelled for t in tallies),
        unmodelled_s=covered_s * sum(t.unmodelled_s for t in tallies) / measured_s,
        host_basis="predicted" + uncalibrated(elsewhere) if elsewhere else "measured",
        unclear_s=covered_s * sum(t.unclear_s for t in tallies) / measured_s,
        share=min(ledger.accelerated_cpu_s / ledger.cpu_s, 1.0) if ledger.cpu_s else 0.0,
        waited_s=0.0 if taken else min(ledger.waited_s, rest_s + covered_s),
    )


# --- Advice: changes of a program that would make a device faster for it ------------------------------------------

MOST = 4  # lines of advice
STACK = 16  # calls of a line in one launch


def _kept(t: Tally) -> float:
    return t.device_s - t.send_s - t.to_digits_s


def _stacked(t: Tally) -> float:
    return t.device_s - t.launch_s * (1 - 1 / min(t.modelled, STACK))


def _both(t: Tally) -> float:
    return _kept(t) + _stacked(t) - t.device_s


KEEP = "keep operands on the device (trnpy.resident)"
STACKED = f"make up to {STACK} calls one, on a stack of matrices"
BOTH = f"keep operands on the device and make up to {STACK} calls one"
# The change, its condition, and the modelled seconds of a line's calls after the change.
CHANGES: tuple[tuple[str, str, Callable[[Tally], float]], ...] = (
    (KEEP, "if all of them are used again", _kept),
    (STACKED, "if they do not depend on each other", _stacked),
    (BOTH, "if both are possible", _both),
    ('set precision="fp32"', "if float32's accuracy is enough", lambda t: t.single_s),
)


@record(frozen=True)
class Advice:
    """A change, and the time of the run that it saves on one NeuronCore in addition to the device's own saving."""

    change: str
    condition: str
    least_s: float  # at the slow end of the model's interval
    most_s: float  # at the fast end
    file: str  # of the line that gains most
    line: int


def priced(ledger: Run) -> list[Advice]:
    """Every change with its gain, largest first; empty if no call has a modelled time, or if a device took part."""
    tallies = [t for t in ledger.by_line() if t.modelled]
    if not tallies or any(t.ran_on == DEVICE for t in tallies):
        return []
    what_if = predicted(ledger)
    scale = min(what_if.accelerated_s / (sum(t.seconds for t in ledger.tallies) or 1.0), 1.0)
    found = []
    for change, condition, after in CHANGES:
        slow = [_gain(t, after(t), ERROR_FACTOR) for t in tallies]
        fast = [_gain(t, after(t), 1 / ERROR_FACTOR) for t in tallies]
        least_s, most_s = scale * sum(slow), scale * sum(fast)
        first = tallies[fast.index(max(fast))]
        found.append(Advice(change, condition, least_s, most_s, first.file, first.line))
    return sorted(found, key=lambda a: -a.most_s)


def _gain(t: Tally, after_s: float, error: float) -> float:
    """The additional saving of a line's calls after a change, compared with the smaller of the two host times."""
    host_s = min(t.without_device_s, t.host_s)
    return max(saved(host_s, after_s * error) - saved(host_s, t.device_s * error), 0.0)


def worth(found: list[Advice], noticeable_s: float) -> list[Advice]:
    """At most MOST changes that save more than ``noticeable_s``. BOTH must save that much more than one alone."""
    most_s = {a.change: a.most_s for a in found}
    one_s = max(most_s.get(change, 0.0) for change in (KEEP, STACKED))
    least_s = {BOTH: one_s + noticeable_s}
    return [a for a in found if a.most_s > least_s.get(a.change, noticeable_s)][:MOST]
