"""Device loops divide a program into pieces: each iteration drains all queues and ends with a barrier of all engines.

An iteration starts only after the previous one has ended (docs/hardware.md#device-loops). A body is therefore
scheduled once, alone, and its time is multiplied by the number of iterations.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

from nkisim.chip.record import Allocation, Loop, Trace
from nkisim.hardware import Hardware

REFETCHED = 256  # instructions of 64 bytes in one 16 KiB transfer; an iteration begins with such transfers


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive instructions without a loop boundary between them, and the number of times they run."""

    trace: Trace
    first: int  # index of its first instruction in the program
    executions: int
    loop: Loop | None  # the innermost loop around it


def pieces(trace: Trace) -> list[Piece]:
    """The program in order, divided at both ends of every loop; a run-time trip count is assumed to be one."""
    count = len(trace.instructions)
    edges = sorted({0, count, *(x.first for x in trace.loops), *(x.stop for x in trace.loops)})
    found = []
    for first, stop in itertools.pairwise(edges):
        around = [x for x in trace.loops if x.first <= first and stop <= x.stop]
        executed = turns(around[-1], trace.loops) if around else 1
        found.append(Piece(_cut(trace, first, stop), first, executed, around[-1] if around else None))
    return found


def turns(loop: Loop, loops: tuple[Loop, ...]) -> int:
    """Total number of executions of the loop's body."""
    return entries(loop, loops) if loop.executions is None else loop.executions


def entries(loop: Loop, loops: tuple[Loop, ...]) -> int:
    """Number of times the loop is entered: once for each iteration of the enclosing loop."""
    place = loops.index(loop)
    around = [x for x in loops[:place] if x.first <= loop.first and loop.stop <= x.stop]
    return turns(around[-1], loops) if around else 1


def turn_s(loop: Loop, trace: Trace, machine: Hardware) -> float:
    """Seconds of an iteration in addition to the body: barrier, drain, and refetch of instructions."""
    if loop.bounds == "written out":
        return 0.0
    timing = machine.timing
    inside = trace.instructions[loop.first : loop.stop]
    if not any(x.engine == "dma" for x in inside):
        return timing.turn_barrier_s
    return timing.turn_barrier_s + min(timing.turn_restart_s, timing.turn_drain_s * len(inside) / REFETCHED)


def loops_s(trace: Trace, machine: Hardware) -> float:
    """Seconds that the loops of a program add to the time of their bodies."""
    region_s = machine.timing.region_s
    return sum(
        turns(x, trace.loops) * turn_s(x, trace, machine) + entries(x, trace.loops) * region_s
        for x in trace.loops
        if x.bounds != "written out"
    )


def executions(trace: Trace) -> list[int]:
    """Executions of each recorded instruction; a loop of unknown length is assumed to run once."""
    times = [1] * len(trace.instructions)
    for loop in trace.loops:  # inner loops come later in the list and overwrite the counts of outer ones
        times[loop.first : loop.stop] = [turns(loop, trace.loops)] * (loop.stop - loop.first)
    return times


def _cut(trace: Trace, first: int, stop: int) -> Trace:
    """Instructions [first, stop) as a separate program; memory that is live throughout remains occupied."""
    if not trace.loops:
        return trace
    edges = [(a - first, b - first) for a, b in trace.dependencies if first <= b and a < stop]
    lives = [a for a in trace.allocations if a.first < stop and first <= a.last]
    return replace(
        trace,
        instructions=trace.instructions[first:stop],
        allocations=tuple(_moved(a, first) for a in lives),
        loops=(),
        dependencies=tuple(edges),
    )


def _moved(allocation: Allocation, first: int) -> Allocation:
    """The life of a tile as indices into a piece; negative if it began before."""
    return replace(allocation, first=allocation.first - first, last=allocation.last - first)
