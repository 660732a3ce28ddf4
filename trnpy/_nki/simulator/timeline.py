"""A traced kernel as a Chrome-trace file that Perfetto and chrome://tracing open."""

from __future__ import annotations

import heapq
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trnpy._nki.hardware import MACHINES, Hardware
from trnpy._nki.simulator.cost import ENGINES
from trnpy._nki.simulator.loops import written_out
from trnpy._nki.simulator.record import Instruction, Trace
from trnpy._nki.simulator.schedule import schedule

FIRST_DMA_LANE = len(ENGINES)
DMA_QUEUES = 16  # of a core; a transfer is drawn on the one that is free first


def timeline(trace: Trace, machine: Hardware | None = None) -> dict[str, Any]:
    """The trace-event object: one process per core, one thread per engine, times in microseconds.

    Of device loops too long to write out only the first iterations are shown.
    """
    trace, _ = written_out(trace)
    plan = schedule(trace, machine or MACHINES[trace.target])
    events: list[dict[str, Any]] = [
        _name("process_name", trace.core, 0, f"{trace.kernel} on {trace.target}, core {trace.core}, modelled")
    ]
    lanes: list[tuple[float, int]] = []  # when each DMA lane falls free
    used: set[int] = set()
    order = sorted(range(len(trace.instructions)), key=lambda i: plan.start[i])
    for index in order:
        instruction = trace.instructions[index]
        if instruction.engine == "dma":
            thread = _lane(lanes, plan.start[index], plan.end[index])
            title = f"DMA queue {thread - FIRST_DMA_LANE}"
        else:
            thread = ENGINES.index(instruction.engine)
            title = instruction.engine
        if thread not in used:
            used.add(thread)
            events.append(_name("thread_name", trace.core, thread, title))
        events.append(
            {
                "name": instruction.opcode,
                "cat": instruction.engine,
                "ph": "X",
                "pid": trace.core,
                "tid": thread,
                "ts": plan.start[index] * 1e6,
                "dur": (plan.end[index] - plan.start[index]) * 1e6,
                "args": _arguments(instruction, index),
            }
        )
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": {"modelled": True, "target": trace.target}}


def _lane(lanes: list[tuple[float, int]], start: float, end: float) -> int:
    if lanes and (lanes[0][0] <= start or len(lanes) == DMA_QUEUES):
        _, lane = heapq.heappop(lanes)
    else:
        lane = FIRST_DMA_LANE + len(lanes)
    heapq.heappush(lanes, (end, lane))
    return lane


def _name(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}


def _arguments(instruction: Instruction, index: int) -> dict[str, Any]:
    shapes = {o.role: f"{o.region.buffer} {o.dtype}{list(o.shape)}" for o in (*instruction.writes, *instruction.reads)}
    return {"line": f"{instruction.file}:{instruction.line}", "index": index, **shapes}


def write_timeline(path: Path, traces: Sequence[Trace]) -> None:
    """One file for all cores of a launch."""
    parts = [timeline(trace) for trace in traces]
    path.write_text(json.dumps({**parts[0], "traceEvents": [e for part in parts for e in part["traceEvents"]]}))
