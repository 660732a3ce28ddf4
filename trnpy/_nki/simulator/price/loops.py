"""Device loops cut a program into pieces: every turn ends with a drain of all queues and a barrier of all engines.

Nothing of a turn starts before the turn before it has ended (docs/hardware.md#device-loops), so that a body is
scheduled once, alone, and costs its time for each of its turns.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

from trnpy._nki.hardware import Hardware
from trnpy._nki.simulator.chip.record import Allocation, Loop, Trace

REFETCHED = 256  # instructions of 64 bytes in one of the 16 KiB transfers that a turn begins with


@dataclass(frozen=True, slots=True)
class Piece:
    """Instructions that run without a loop's edge between them, and how often they do."""

    trace: Trace
    first: int  # place of its first instruction in the program
    executions: int
    loop: Loop | None  # the innermost around it


def pieces(trace: Trace) -> list[Piece]:
    """The program in order, cut at both ends of every loop; a trip count known only on the device counts as one."""
    count = len(trace.instructions)
    edges = sorted({0, count, *(x.first for x in trace.loops), *(x.stop for x in trace.loops)})
    found = []
    for first, stop in itertools.pairwise(edges):
        around = [x for x in trace.loops if x.first <= first and stop <= x.stop]
        executed = turns(around[-1], trace.loops) if around else 1
        found.append(Piece(_cut(trace, first, stop), first, executed, around[-1] if around else None))
    return found


def turns(loop: Loop, loops: tuple[Loop, ...]) -> int:
    """How often the loop's body executes in all."""
    return entries(loop, loops) if loop.executions is None else loop.executions


def entries(loop: Loop, loops: tuple[Loop, ...]) -> int:
    """How often the loop is entered: once for each turn of the loop around it."""
    place = loops.index(loop)
    around = [x for x in loops[:place] if x.first <= loop.first and loop.stop <= x.stop]
    return turns(around[-1], loops) if around else 1


def turn_s(loop: Loop, trace: Trace, machine: Hardware) -> float:
    """Seconds that a turn of this loop takes beside its body: barrier, drain, and the refetch of its instructions."""
    timing = machine.timing
    inside = trace.instructions[loop.first : loop.stop]
    if not any(x.engine == "dma" for x in inside):
        return timing.turn_barrier_s
    fetches = -(-len(inside) // REFETCHED)
    return timing.turn_barrier_s + min(timing.turn_restart_s, timing.turn_drain_s * fetches)


def loops_s(trace: Trace, machine: Hardware) -> float:
    """Seconds that the loops of a program take beside their bodies."""
    region_s = machine.timing.region_s
    return sum(
        turns(x, trace.loops) * turn_s(x, trace, machine) + entries(x, trace.loops) * region_s for x in trace.loops
    )


def executions(trace: Trace) -> list[int]:
    """How often each recorded instruction executes; a loop of unknown length as often as what is around it."""
    times = [1] * len(trace.instructions)
    for loop in trace.loops:  # inner loops come later and win
        times[loop.first : loop.stop] = [turns(loop, trace.loops)] * (loop.stop - loop.first)
    return times


def _cut(trace: Trace, first: int, stop: int) -> Trace:
    """Instructions [first, stop) as a program of their own, beside the memory that is taken throughout."""
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
    """Life of a tile by places within a piece; negative where it began before."""
    return replace(allocation, first=allocation.first - first, last=allocation.last - first)
