"""The interface of a recorded run, which all views of a report read; ``ledger.Ledger`` implements it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from trnpy._base.records import record
from trnpy._nki.instances import Instance
from trnpy._report.comparisons import Comparisons
from trnpy._report.sampler import Samples, Unrouted
from trnpy._report.small_calls import Call
from trnpy._report.tally import Tally

if TYPE_CHECKING:
    from trnpy._engine.health import Health

Event = tuple[float, float, str, str, int]  # start, seconds, kind, function and line, number of the NeuronCore


@record(frozen=True)
class Rank:
    """One process of a run."""

    host: str
    began: float  # seconds since 1970
    elapsed_s: float
    accelerated_s: float
    lines: list[dict[str, Any]]  # file, line, op, calls, seconds: accelerated calls
    collectives: list[dict[str, Any]]  # operation, where, calls, sent, waited_s, moved_s
    events: list[Event]  # starts are seconds since 1970; kinds are "host", "device", "modelled", "waits" and "moves"

    @property
    def sent(self) -> int:
        return int(sum(c["sent"] for c in self.collectives))

    @property
    def waited_s(self) -> float:
        return float(sum(c["waited_s"] for c in self.collectives))

    @property
    def moved_s(self) -> float:
        return float(sum(c["moved_s"] for c in self.collectives))

    @property
    def busy_s(self) -> float:
        """Seconds that are neither waiting nor transfers."""
        return max(self.elapsed_s - self.waited_s - self.moved_s, 0.0)


class Run(Protocol):
    """A run, during or after recording. Times are ``perf_counter`` seconds unless stated otherwise."""

    title: str
    opened: float
    began: float  # seconds since 1970
    covered_s: float  # time in which at least one accelerated function was running
    instance: Instance | None  # the run is also compared with this instance
    ranks: list[Rank]  # if the run has several processes; this record belongs to the first
    comparisons: Comparisons
    engines: dict[str, Health]  # engines that calls requested, by name

    @property
    def calls(self) -> list[Call]:
        """The longest calls, in the order they began."""
        ...

    @property
    def tallies(self) -> list[Tally]:
        """All calls, summed by function, place, reason, machine and line of the program."""
        ...

    @property
    def elapsed_s(self) -> float:
        """Seconds from opening to closing, or until now."""
        ...

    @property
    def cpu_s(self) -> float:
        """Processor seconds of all threads meanwhile."""
        ...

    @property
    def accelerated_cpu_s(self) -> float:
        """The part of them in which at least one accelerated function was running."""
        ...

    @property
    def waited_s(self) -> float:
        """Seconds that the thread which opened the record has waited for a processor."""
        ...

    @property
    def samples(self) -> Samples:
        """Work outside accelerated functions."""
        ...

    @property
    def machine(self) -> str:
        """The machine of the modelled seconds."""
        ...

    def small_tallies(self) -> list[Tally]:
        """The small calls, summed by function and line."""
        ...

    def by_function(self) -> list[Tally]:
        """One tally for each function, place and reason."""
        ...

    def by_line(self) -> list[Tally]:
        """One tally for each line of the program, function, place and reason."""
        ...

    def missed(self) -> list[Tally]:
        """Lines with calls on the host for which a device would be faster (modelled)."""
        ...

    def regret(self) -> list[Tally]:
        """Lines whose calls on the device path were slower than the host (predicted)."""
        ...

    def unrouted(self) -> list[Unrouted]:
        """Lines with work outside accelerated functions, found by sampling."""
        ...
