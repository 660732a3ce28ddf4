"""The ranks of one run: the part of its ledger and of its collective operations that each sends, and their sums."""

from __future__ import annotations

import json
import platform
from dataclasses import asdict, field
from typing import Any

from trnpy._base.records import record
from trnpy._report.run_record import Event, Rank, Run
from trnpy._report.tally import DEVICE, merged, ran_on, wins
from trnpy._report.what_if import predicted

HOST = -1  # stands for the host in place of a NeuronCore's number
EVENTS = 300  # calls of a rank that its row of the timeline shows
LINES = 1000  # lines of the program that each rank sends


@record(frozen=False)
class Shared:
    """One line of the program over all ranks."""

    where: str
    what: str
    calls: int = 0
    sent: int = 0
    seconds: list[float] = field(default_factory=list)  # for each rank: calls and transfers, without waiting
    waited_s: list[float] = field(default_factory=list)

    @property
    def imbalance(self) -> float:
        """The longest time of a rank over the mean."""
        mean = sum(self.seconds) / len(self.seconds)
        return max(self.seconds) / mean if mean else 1.0


def payload(ledger: Run, traffic: Any = None) -> bytes:
    """A rank's part of the report, to be sent. ``traffic`` is the traffic of its communicator, if it has one."""
    offset = ledger.began - ledger.opened
    lines = merged(ledger.tallies, "op", "file", "line")[:LINES]
    moves = [(e[0] + offset, e[1], e[2], f"{e[3]} at {e[4]}", HOST) for e in (traffic.longest() if traffic else ())]
    rank = Rank(
        platform.node(),
        ledger.began,
        ledger.elapsed_s,
        predicted(ledger).accelerated_s,
        [{name: getattr(t, name) for name in ("file", "line", "op", "calls", "seconds")} for t in lines],
        [asdict(line) for line in traffic.lines.values()] if traffic else [],
        _calls(ledger, offset) + moves,
    )
    return json.dumps(asdict(rank)).encode()


def _calls(ledger: Run, offset: float) -> list[Event]:
    """The longest calls; a call on a device is listed once for each of its cores, numbered from 0 in each rank.

    If no device computed a call, the calls for which it would be faster are also listed with their modelled time.
    """
    taken = any(ran_on(c.decision) == DEVICE for c in ledger.calls)
    found: list[Event] = []
    for c in sorted(ledger.calls, key=lambda c: -c.seconds)[:EVENTS]:
        start, what, cores = c.started + offset, f"{c.decision.op} at {c.file}:{c.line}", range(c.decision.cores)
        if ran_on(c.decision) == DEVICE:
            found += [(start, c.seconds, "device", what, core) for core in cores]
            continue
        found.append((start, c.seconds, "host", what, HOST))
        if not taken and wins(c):
            found += [(start, c.decision.device_s or 0.0, "modelled", what, core) for core in cores]
    return found


def parsed(payloads: list[bytes]) -> list[Rank]:
    return [Rank(**json.loads(text)) for text in payloads]


def by_line(ranks: list[Rank]) -> list[Shared]:
    """Calls and collective operations of all ranks, summed by line; longest first, including waiting."""
    found: dict[tuple[str, str], Shared] = {}
    for number, rank in enumerate(ranks):
        calls = [(f"{r['file']}:{r['line']}", r["op"], r["calls"], 0, r["seconds"], 0.0) for r in rank.lines]
        moves = [
            (c["where"], c["operation"], c["calls"], c["sent"], c["moved_s"], c["waited_s"]) for c in rank.collectives
        ]
        for where, what, count, sent, seconds, waited_s in calls + moves:
            blank = [0.0] * len(ranks)
            line = found.setdefault((where, what), Shared(where, what, 0, 0, blank, [*blank]))
            line.calls += count
            line.sent += sent
            line.seconds[number] += seconds
            line.waited_s[number] += waited_s
    return sorted(found.values(), key=lambda line: -sum(line.seconds) - sum(line.waited_s))


def to_dict(ranks: list[Rank]) -> list[dict[str, Any]]:
    """The ranks in JSON types, without events, which only the page draws."""
    totals = ("sent", "waited_s", "moved_s", "busy_s")
    return [
        {name: value for name, value in asdict(r).items() if name != "events"} | {n: getattr(r, n) for n in totals}
        for r in ranks
    ]


def imbalance(ranks: list[Rank]) -> float:
    """The time of the busiest rank over the mean of all."""
    mean = sum(r.busy_s for r in ranks) / len(ranks)
    return max(r.busy_s for r in ranks) / mean if mean else 1.0
