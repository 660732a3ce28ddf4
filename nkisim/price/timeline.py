"""A traced kernel as a Chrome-trace file for Perfetto and chrome://tracing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from nkisim.chip.record import Instruction, Trace
from nkisim.hardware import ERROR_FACTOR, MACHINES, Hardware
from nkisim.price.cost import ENGINES, schedules
from nkisim.price.loops import Piece, turn_s
from nkisim.price.schedule import Schedule

FIRST_QUEUE = len(ENGINES)  # the thread of the first of the 16 DMA queues


def timeline(trace: Trace, machine: Hardware | None = None) -> dict[str, Any]:
    """The trace-event object: one process per core, one thread per engine and DMA queue, times in microseconds.

    A transfer is an event in each queue that moves a part of it; only the first event lists the operands.

    Only the first iteration of a device loop is drawn; a gap after it stands for the time of the others.
    """
    machine = machine or MACHINES[trace.target]
    title = f"{trace.kernel} on {trace.target}, core {trace.core}, modelled within a factor of {ERROR_FACTOR:g}"
    events: list[dict[str, Any]] = [_name("process_name", trace.core, 0, title)]
    used: set[int] = set()
    begins = 0.0
    for piece, plan in schedules(trace, machine, queues=True):
        for event in _events(piece, plan, begins):
            if event["tid"] not in used:
                used.add(event["tid"])
                events.append(_name("thread_name", trace.core, event["tid"], _title(event["tid"])))
            events.append(event)
        turn = turn_s(piece.loop, trace, machine) if piece.loop else 0.0
        begins += piece.executions * (plan.total_s + turn)
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": {"modelled": True, "target": trace.target}}


def _events(piece: Piece, plan: Schedule, begins: float) -> Iterator[dict[str, Any]]:
    """The instructions of one execution, ordered by their start."""
    instructions, core = piece.trace.instructions, piece.trace.core
    for index in sorted(range(len(instructions)), key=lambda i: plan.start[i]):
        instruction, number, moved = instructions[index], piece.first + index, plan.transfers[index]
        spans = [(ENGINES.index(instruction.engine), plan.start[index], plan.end[index] - plan.start[index])]
        if moved is not None:
            queues = zip(moved.engines, plan.begins[index], strict=True)
            spans = [(FIRST_QUEUE + queue, at, moved.engine_s) for queue, at in queues]
        for place, (thread, at, seconds) in enumerate(spans):
            yield {
                "name": instruction.opcode, "cat": instruction.engine, "ph": "X", "pid": core, "tid": thread,
                "ts": (begins + at) * 1e6, "dur": seconds * 1e6,
                "args": {"index": number} if place else _arguments(instruction, number),
            }  # fmt: skip


def _title(thread: int) -> str:
    return f"DMA queue {thread - FIRST_QUEUE}" if thread >= FIRST_QUEUE else ENGINES[thread]


def _name(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}


def _arguments(instruction: Instruction, index: int) -> dict[str, Any]:
    shapes = {o.role: f"{o.region.buffer} {o.dtype}{list(o.shape)}" for o in (*instruction.writes, *instruction.reads)}
    return {"line": f"{instruction.file}:{instruction.line}", "index": index, **shapes}


def write_timeline(path: Path, traces: Sequence[Trace]) -> None:
    """Write one file for all cores of a launch."""
    parts = [timeline(trace) for trace in traces]
    path.write_text(json.dumps({**parts[0], "traceEvents": [e for part in parts for e in part["traceEvents"]]}))
