"""Device loops written out, so that the schedule sees every execution of a body that is recorded once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from trnpy._nki.simulator.record import Loop, Trace

LONGEST = 50_000  # instructions to schedule, some 0.6 s; longer programs are cut short and scaled up
FEWEST = 2  # iterations of a loop that is cut short: the second one starts while the first one ends


def written_out(trace: Trace, longest: int = LONGEST) -> tuple[Trace, float]:
    """The trace with its loops unrolled, and by how much its time must be scaled.

    The scale is 1 unless that takes more than ``longest`` instructions: then only their first iterations
    are, and the scale is the instructions executed over those written out. A trip count known only on
    the device counts as one.
    """
    if not trace.loops:
        return trace, 1.0
    executed = sum(executions(trace))
    order = list(_span(0, len(trace.instructions), trace.loops, 1, _limits(trace, longest)))
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
    """How often each recorded instruction executes; a loop of unknown length as often as what is around it."""
    times = [1] * len(trace.instructions)
    for loop in trace.loops:  # inner loops come later and win
        if loop.executions is not None:
            times[loop.first : loop.stop] = [loop.executions] * (loop.stop - loop.first)
    return times


def _limits(trace: Trace, longest: int) -> tuple[int, ...]:
    """Most iterations of a loop by depth, outermost first, that keep the program within ``longest``.

    Outer loops are cut first, so that what is inside keeps its proportions.
    """
    limits: tuple[int, ...] = ()
    whole = len(trace.instructions)
    while _length(0, whole, trace.loops, 1, limits) > longest and len(limits) <= len(trace.loops):
        low, high = FEWEST, max((x.executions or 1 for x in trace.loops), default=FEWEST)
        while low < high:
            middle = (low + high + 1) // 2
            if _length(0, whole, trace.loops, 1, (*limits, middle)) <= longest:
                low = middle
            else:
                high = middle - 1
        limits = (*limits, low)
    return limits


def _pieces(
    first: int, stop: int, loops: Sequence[Loop], around: int, limits: tuple[int, ...]
) -> Iterator[tuple[int, Loop | None, int]]:
    """Instructions and loops of one iteration of the body [first, stop): position, loop, its iterations."""
    at = first
    while at < stop:
        loop = next((x for x in loops if x.first == at and x.stop > at), None)
        if loop is None:
            yield at, None, 1
            at += 1
            continue
        trips = -(-(1 if loop.executions is None else loop.executions) // max(1, around))
        yield at, loop, min(trips, limits[0]) if limits else trips
        at = loop.stop


def _inside(loops: Sequence[Loop], loop: Loop) -> tuple[Loop, ...]:
    return tuple(x for x in loops if x is not loop and loop.first <= x.first and x.stop <= loop.stop)


def _span(first: int, stop: int, loops: Sequence[Loop], around: int, limits: tuple[int, ...]) -> Iterator[int]:
    """Recorded positions in the order of execution; the body executes ``around`` times in all."""
    for at, loop, trips in _pieces(first, stop, loops, around, limits):
        if loop is None:
            yield at
            continue
        inner = _inside(loops, loop)
        for _ in range(trips):
            yield from _span(loop.first, loop.stop, inner, max(1, loop.executions or 1), limits[1:])


def _length(first: int, stop: int, loops: Sequence[Loop], around: int, limits: tuple[int, ...]) -> int:
    """How many positions _span would give."""
    total = 0
    for _, loop, trips in _pieces(first, stop, loops, around, limits):
        if loop is None:
            total += 1
        else:
            inner = _inside(loops, loop)
            total += trips * _length(loop.first, loop.stop, inner, max(1, loop.executions or 1), limits[1:])
    return total
