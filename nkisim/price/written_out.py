"""Loops with constant bounds, unrolled, as NKI's lowering may do (docs/hardware.md#device-loops)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from nkisim.chip.record import Allocation, Instruction, Loop, Operand, Trace
from nkisim.price.loops import entries, turns

MOST = 50_000  # instructions of one loop that are written out; longer loops are scheduled in groups of this size


def written_out(trace: Trace) -> Trace:
    """The program with its loops of constant bounds unrolled; each iteration has tiles of its own.

    A loop with a device loop in its body is not changed. A loop of more than MOST instructions becomes a loop over
    unrolled groups of iterations, with bounds "written out", which is charged no barrier.
    """
    for place in reversed(range(len(trace.loops))):  # inner loops come later in the list
        if trace.loops[place].bounds == "constant":
            trace = _without(trace, place)
    return trace


def size(trace: Trace) -> int:
    """Instructions of the compiled program, including all iterations of unrolled loops."""
    count = len(trace.instructions)
    for loop in trace.loops:
        if loop.bounds == "written out":
            count += (turns(loop, trace.loops) // max(1, entries(loop, trace.loops)) - 1) * (loop.stop - loop.first)
    return count


def _without(trace: Trace, place: int) -> Trace:
    loop, loops = trace.loops[place], list(trace.loops)
    if loop.executions is None or any(loop.first <= x.first and x.stop <= loop.stop for x in loops[place + 1 :]):
        return trace
    length = loop.stop - loop.first
    total, times = turns(loop, trace.loops), max(1, entries(loop, trace.loops))
    each = total // times
    groups = max(1, -(-each * length // MOST))
    copies = max(1, -(-each // groups))
    added, stays = (copies - 1) * length, groups > 1
    body, tiles = trace.instructions[loop.first : loop.stop], [a for a in trace.allocations if a.loop == place]
    around = [n for n, x in enumerate(loops[:place]) if x.first <= loop.first and loop.stop <= x.stop]
    tiles = [replace(a, loop=around[-1] if around else None) for a in tiles]
    turned = [_turn(body, tiles, loop.first + n * length, _names(trace, tiles, n)) for n in range(copies)]
    others = [_outside(a, loop, added, place, stays) for a in trace.allocations if a.loop != place]
    loops = [_longer(x, loop, added) for x in loops]
    loops[place : place + 1] = [replace(loops[place], executions=groups * times, bounds="written out")] * stays
    return replace(
        trace,
        instructions=(
            *trace.instructions[: loop.first], *(x for xs, _ in turned for x in xs), *trace.instructions[loop.stop :],
        ),
        allocations=(*others, *(a for _, found in turned for a in found)),
        loops=tuple(loops),
        dependencies=tuple(e for edge in trace.dependencies for e in _edges(edge, loop, copies, added)),
    )  # fmt: skip


def _names(trace: Trace, tiles: list[Allocation], turn: int) -> dict[int, int]:
    """Numbers of the tiles of a loop's body in one iteration; the first iteration keeps its numbers."""
    fresh = 1 + max((a.storage for a in trace.allocations), default=0) + (turn - 1) * len(tiles)
    return {a.storage: a.storage if not turn else fresh + n for n, a in enumerate(tiles)}


def _turn(
    body: tuple[Instruction, ...], tiles: list[Allocation], first: int, names: dict[int, int]
) -> tuple[list[Instruction], list[Allocation]]:
    """The instructions of one iteration, which begins at ``first``, and its tiles, which live while they are used."""

    def named(operands: tuple[Operand, ...]) -> tuple[Operand, ...]:
        return tuple(
            replace(o, region=replace(o.region, storage=names[o.region.storage])) if o.region.storage in names else o
            for o in operands
        )

    used: dict[int, list[int]] = {}
    for at, instruction in enumerate(body):
        for operand in (*instruction.reads, *instruction.writes):
            used.setdefault(operand.region.storage, []).append(first + at)
    instructions = [replace(x, reads=named(x.reads), writes=named(x.writes)) for x in body]
    found = [
        replace(a, storage=names[a.storage], first=used[a.storage][0], last=used[a.storage][-1])
        for a in tiles
        if a.storage in used
    ]
    return instructions, found


def _outside(a: Allocation, loop: Loop, added: int, place: int, stays: bool) -> Allocation:
    """A tile from outside the loop's body, with its life in the longer program, in which later code has moved."""
    number = a.loop if a.loop is None or a.loop < place or stays else a.loop - 1
    return replace(
        a,
        first=a.first + added * (a.first >= loop.stop),
        last=a.last + added * (a.last >= loop.stop - 1),
        loop=number,
    )


def _longer(other: Loop, loop: Loop, added: int) -> Loop:
    return replace(
        other,
        first=other.first + added * (other.first >= loop.stop),
        stop=other.stop + added * (other.stop >= loop.stop),
    )


def _edges(edge: tuple[int, int], loop: Loop, copies: int, added: int) -> Iterator[tuple[int, int]]:
    """A dependency (consumer, producer) in each iteration, or from the last iteration to later instructions."""
    consumer, producer = edge
    inside = loop.first <= producer < loop.stop
    for turn in range(copies) if inside and consumer < loop.stop else ():
        yield tuple(at + turn * (loop.stop - loop.first) for at in edge)  # type: ignore[misc]
    if not inside or consumer >= loop.stop:
        yield consumer + added * (consumer >= loop.stop), producer + added * (producer >= loop.stop or inside)
