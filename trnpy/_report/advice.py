"""Changes of a program that would make a device faster for it, each priced by the model, largest gain first."""

from __future__ import annotations

from collections.abc import Callable

from nkisim.hardware import ERROR_FACTOR
from trnpy._base.records import record
from trnpy._report.run_record import Run
from trnpy._report.tally import DEVICE, Tally, saved
from trnpy._report.what_if import predicted

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
# What to do, on which condition, and the modelled seconds of a line's calls after that.
CHANGES: tuple[tuple[str, str, Callable[[Tally], float]], ...] = (
    (KEEP, "if all of them are used again", _kept),
    (STACKED, "if they do not depend on each other", _stacked),
    (BOTH, "if both are possible", _both),
    ('set precision="fp32"', "if float32's accuracy is enough", lambda t: t.single_s),
)


@record(frozen=True)
class Advice:
    """A change, and what it saves of the run on one NeuronCore beyond what the device saves without it."""

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
    """What the calls of a line save after a change beyond what they save now. The host's smaller time counts."""
    host_s = min(t.without_device_s, t.host_s)
    return max(saved(host_s, after_s * error) - saved(host_s, t.device_s * error), 0.0)


def worth(found: list[Advice], noticeable_s: float) -> list[Advice]:
    """At most MOST changes that save more than ``noticeable_s``. Two together must save so much more than one."""
    most_s = {a.change: a.most_s for a in found}
    one_s = max(most_s.get(change, 0.0) for change in (KEEP, STACKED))
    least_s = {BOTH: one_s + noticeable_s}
    return [a for a in found if a.most_s > least_s.get(a.change, noticeable_s)][:MOST]
