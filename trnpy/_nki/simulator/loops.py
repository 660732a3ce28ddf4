"""Device loops written out, so that the schedule sees every execution of a body that is recorded once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from trnpy._nki.simulator.record import Loop, Trace

LONGEST = 200_000  # instructions to schedule; longer programs are cut short and scaled up


def written_out(trace: Trace) -> tuple[Trace, float]:
    """The trace with its loops unrolled, and by how much its time must be scaled.

    The scale is 1 unless the loops run too long to write out: then only their first iterations
    are, and the scale is the instructions executed over those written out. A trip count known only on
    the device counts as one.
    """
    if not trace.loops:
        return trace, 1.0
    executed = sum(executions(trace))
    trips: int | None = None
    if executed > LONGEST:
        trips = max(2, LONGEST // len(trace.instructions))
    order = list(_indices(trace, trips))
    uses: dict[int, tuple[int, int]] = {}
    latest: dict[int, int] = {}
    edges: list[tuple[int, int]] = []
    explicit: dict[int, list[int]] = {}
    for consumer, producer in trace.dependencies:
        explicit.setdefault(consumer, []).append(producer)
    for position, index in enumerate(order):
        latest[index] = position
        edges += [(position, latest[p]) for p in explicit.get(index, ()) if p in latest]
        instruction = trace.instructions[index]
        for operand in (*instruction.reads, *instruction.writes):
            first, _ = uses.get(operand.region.storage, (position, position))
            uses[operand.region.storage] = first, position
    allocations = tuple(
        replace(a, first=uses[a.storage][0], last=uses[a.storage][1]) for a in trace.allocations if a.storage in uses
    )
    long = replace(
        trace,
        instructions=tuple(trace.instructions[i] for i in order),
        allocations=allocations,
        loops=(),
        dependencies=tuple(edges),
    )
    return long, executed / max(1, len(order))


def executions(trace: Trace) -> list[int]:
    """How often each recorded instruction executes."""
    times = [1] * len(trace.instructions)
    for loop in trace.loops:  # inner loops come later and win
        times[loop.first : loop.stop] = [1 if loop.executions is None else loop.executions] * (loop.stop - loop.first)
    return times


def _indices(trace: Trace, trips: int | None) -> Iterator[int]:
    """Recorded positions in the order of execution; at most ``trips`` iterations of any loop."""
    yield from _span(0, len(trace.instructions), list(trace.loops), 1, trips)


def _span(first: int, stop: int, loops: list[Loop], around: int, trips: int | None) -> Iterator[int]:
    """Positions of one iteration of the body [first, stop), which executes ``around`` times in all."""
    at = first
    while at < stop:
        loop = next((x for x in loops if x.first == at), None)
        if loop is None or loop.stop <= loop.first:
            yield at
            at += 1
            continue
        inner = [x for x in loops if x is not loop]
        total = 1 if loop.executions is None else loop.executions
        each = -(-total // max(1, around))
        for _ in range(each if trips is None else min(each, trips)):
            yield from _span(loop.first, loop.stop, inner, max(1, total), trips)
        at = loop.stop
