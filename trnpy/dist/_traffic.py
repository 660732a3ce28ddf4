"""The traffic of a rank: bytes and seconds of its collective operations by line, and the times of the longest ones."""

from __future__ import annotations

from dataclasses import field

from trnpy._base.records import record

EVENTS = 300  # waits and transfers of a rank that are kept individually


@record(frozen=False)
class Line:
    """The operations of one kind at one line of the program."""

    operation: str
    where: str  # file:line
    calls: int = 0
    sent: int = 0  # bytes of arrays, to other ranks
    waited_s: float = 0.0  # for other ranks, before the operation
    moved_s: float = 0.0  # in which arrays were sent and received


@record(frozen=False)
class Traffic:
    """All operations of a rank. Times of events are ``perf_counter`` seconds."""

    lines: dict[tuple[str, str], Line] = field(default_factory=dict)
    events: list[tuple[float, float, str, str, str]] = field(default_factory=list)
    last: Line = field(default_factory=lambda: Line("", ""))

    def met(self, operation: str, where: str, started: float, seconds: float) -> None:
        """Add the wait before one operation; later transfers belong to it."""
        self.last = self.lines.setdefault((operation, where), Line(operation, where))
        self.last.calls += 1
        self.last.waited_s += seconds
        self._add(started, seconds, "waits", self.last)

    def moved(self, sent: int, started: float, seconds: float, line: Line | None = None) -> None:
        """Add one transfer, or the wait for its end, to ``line`` or else to the last operation."""
        line = line or self.last
        line.sent += sent
        line.moved_s += seconds
        self._add(started, seconds, "moves", line)

    def _add(self, started: float, seconds: float, kind: str, line: Line) -> None:
        self.events.append((started, seconds, kind, line.operation, line.where))
        if len(self.events) > 2 * EVENTS:
            self.events = self.longest()

    def longest(self) -> list[tuple[float, float, str, str, str]]:
        """At most EVENTS waits and transfers."""
        return sorted(self.events, key=lambda event: -event[1])[:EVENTS]
