"""The modelled cost of a traced kernel: time, busy engines, bytes, utilisation, and time to compile."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from nkisim.chip.record import Engine, Instruction, Trace
from nkisim.hardware import MACHINES, PARTITIONS, Hardware, compiling_s, interval
from nkisim.price.durations import DMA_ENGINES, product_columns
from nkisim.price.loops import Piece, loops_s, pieces
from nkisim.price.schedule import Schedule, covered, crowded, schedule, written_by_transfers
from nkisim.price.written_out import size, written_out

FLOAT32_PASSES = 4  # at the documented peak rate, to which utilisation is relative
ENGINES: tuple[Engine, ...] = ("tensor", "vector", "scalar", "gpsimd", "sync", "dma")

COMPILE_BYTES_PER_INSTRUCTION = 11.4e9 / 0.5e6  # for a graph of half a million


@dataclass(frozen=True, slots=True)
class Cost:
    """The modelled cost of one launch (docs/model.md#cost-model, with a comparison to measurements)."""

    kernel: str
    target: str
    device_s: float  # first instruction to last result, including the fixed cost around a kernel
    launch_s: float  # time of the launch on the host
    busy_s: Mapping[str, float]  # for each engine: time during which at least one of its instructions runs
    instructions: int  # executed
    compiled: int  # instructions in the program; a device loop counts once
    engine_instructions: Mapping[str, int]
    hbm_bytes: int
    dma_descriptors: int
    dma_queue_s: float  # total of the 16 queues
    queues: tuple[tuple[float, int], ...]  # for each queue: seconds in which it moves bytes, and transfers
    flops: float
    tensor_utilisation: float  # relative to the peak of the types used, over device_s
    throttled_s: float
    table_loads: int
    compile_s: float
    compile_bytes: float
    looped: Cost | None = None  # if loops with constant bounds are device loops; other fields: if unrolled

    def busy(self, engine: str) -> float:
        """The fraction of device_s during which an engine is busy."""
        return self.busy_s.get(engine, 0.0) / self.device_s if self.device_s else 0.0

    def as_json(self) -> dict[str, Any]:
        """The fields as plain numbers, marked as modelled."""
        plain = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "looped"}
        plain |= {"queues": [list(queue) for queue in self.queues]}
        plain |= {"busy_s": dict(self.busy_s), "engine_instructions": dict(self.engine_instructions)}
        intervals = {f"{name}_interval_s": list(self.interval(f"{name}_s")) for name in ("device", "launch", "compile")}
        return {"modelled": True, **intervals, **plain}

    def interval(self, name: str) -> tuple[float, float]:
        """The least and the greatest modelled seconds, over both ways in which loops of constant bounds may compile."""
        found = [getattr(way, name) for way in (self, self.looped) if way is not None]
        return interval(min(found))[0], interval(max(found))[1]


def price(trace: Trace, machine: Hardware | None = None) -> Cost:
    """Cost of one launch of ``trace`` on its own target, or on ``machine``.

    A loop of constant bounds is documented as a device loop, and users mark such loops so that NKI's lowering does not
    write them out (docs/hardware.md#device-loops). No measurement shows which happens, so both ways are priced.
    """
    machine = machine or MACHINES[trace.target]
    if any(x.bounds == "constant" for x in trace.loops):
        return replace(_price(written_out(trace), machine), looped=_price(trace, machine))
    return _price(trace, machine)


def _price(trace: Trace, machine: Hardware) -> Cost:
    total = _Total(machine)
    for piece, plan in schedules(trace, machine):
        total.add(piece.trace, plan, piece.executions)
    device_s = total.plan_s + loops_s(trace, machine) + barrier_s(trace, machine) + machine.timing.kernel_floor_s
    return Cost(
        kernel=trace.kernel,
        target=machine.name,
        device_s=device_s,
        launch_s=machine.launch_s,
        busy_s={e: total.busy_s[e] for e in ENGINES if e in total.busy_s},
        instructions=sum(total.counts.values()),
        compiled=size(trace),
        engine_instructions=total.counts,
        hbm_bytes=total.hbm_bytes,
        dma_descriptors=total.descriptors,
        dma_queue_s=total.queue_s,
        queues=tuple((s, n) for s, n in total.queues),
        flops=total.flops,
        tensor_utilisation=total.ideal_s / device_s,
        throttled_s=total.throttled_s,
        table_loads=total.table_loads,
        compile_s=compile_s(trace),
        compile_bytes=size(trace) * COMPILE_BYTES_PER_INSTRUCTION,
    )


def schedules(trace: Trace, machine: Hardware, queues: bool = False) -> Iterator[tuple[Piece, Schedule]]:
    """The pieces of a program between loop boundaries, in order, each with the ``schedule`` of one execution."""
    written = written_by_transfers(trace)
    table: str | None = None
    for piece in pieces(trace):
        full = crowded(piece.trace.allocations, written, machine)
        if piece.loop is not None:  # a later iteration begins with the table that the previous one loaded last
            tables = [x.options.get("table") for x in piece.trace.instructions if x.engine == "scalar"]
            table = next((t for t in reversed(tables) if t is not None), table)
        plan = schedule(piece.trace, machine, table, full, queues)
        table = plan.table
        yield piece, plan


def barrier_s(trace: Trace, machine: Hardware) -> float:
    """Seconds per launch during which the ranks of a program with collectives wait for each other."""
    ranks = max((int(x.options.get("ranks", 1)) for x in trace.instructions if "ranks" in x.options), default=1)
    return group_barrier_s(ranks, machine) if ranks > 1 else 0.0


def group_barrier_s(ranks: int, machine: Hardware) -> float:
    """Seconds of the barrier of two or more ranks."""
    return machine.timing.group_barrier_s + machine.timing.group_doubling_s * (math.log2(ranks) - 1)


def compile_s(trace: Trace) -> float:
    """Seconds to compile, from the number of instructions and from the loops."""
    loops = [x for x in trace.loops if x.bounds != "written out"]
    looped = len({place for x in loops for place in range(x.first, x.stop)})
    return compiling_s(size(trace), len(loops), looped)


class _Total:
    """The sum of the costs of a program's pieces."""

    def __init__(self, machine: Hardware) -> None:
        self.machine = machine
        self.plan_s = self.flops = self.ideal_s = self.queue_s = self.throttled_s = 0.0
        self.busy_s: dict[str, float] = {}
        self.counts: dict[str, int] = {}
        self.hbm_bytes = self.descriptors = self.table_loads = 0
        self.queues = [(0.0, 0)] * DMA_ENGINES

    def add(self, trace: Trace, plan: Schedule, times: int) -> None:
        """Add ``times`` executions of one piece."""
        spans: dict[str, list[tuple[float, float]]] = {}
        for instruction, start, end in zip(trace.instructions, plan.start, plan.end, strict=True):
            engine: str = instruction.engine
            spans.setdefault(engine, []).append((start, end))
            self.counts[engine] = self.counts.get(engine, 0) + times
            if instruction.opcode == "nc_matmul" and not instruction.options.get("is_transpose"):
                self._multiplied(instruction, times)
        for engine, parts in spans.items():
            self.busy_s[engine] = self.busy_s.get(engine, 0.0) + covered(parts) * times
        moved = [t for t in plan.transfers if t is not None]
        self.plan_s += plan.total_s * times
        self.queue_s += plan.queue_s * times
        self.throttled_s += plan.throttled_s * times
        self.table_loads += plan.table_loads * times
        self.hbm_bytes += sum(t.hbm_bytes for t in moved) * times
        self.descriptors += sum(t.descriptors for t in moved) * times
        for (engines, each_s), count in Counter((t.engines, t.engine_s) for t in moved).items():
            for queue in engines:
                busy_s, transfers = self.queues[queue]
                self.queues[queue] = busy_s + each_s * count * times, transfers + count * times

    def _multiplied(self, instruction: Instruction, times: int) -> None:
        rows, depth, columns, _ = product_columns(instruction, self.machine)
        flops = 2.0 * rows * depth * columns * times
        self.flops += flops
        wide = all(o.dtype == "float32" for o in instruction.reads if o.role in ("stationary", "moving"))
        per_cycle = 2 * PARTITIONS * PARTITIONS * (2 if rows > PARTITIONS else 1)
        self.ideal_s += flops * (FLOAT32_PASSES if wide else 1) / (per_cycle * self.machine.tensor_hz)


def _memory(size: float) -> str:
    """Bytes as "1.2 GB" or "45 MB"."""
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{max(size / 1e6, 1):.0f} MB"


def rows(cost: Cost) -> list[tuple[str, str]]:
    """The table for a user: labels and values."""
    lines = [
        ("device time, modelled", spread(*cost.interval("device_s"))),
        ("host launch, modelled", spread(*cost.interval("launch_s"))),
    ]
    for engine in ENGINES:
        if engine in cost.busy_s:
            label = "DMA queues" if engine == "dma" else f"{engine} engine"
            count = cost.engine_instructions[engine]
            lines.append((label, f"{100 * cost.busy(engine):5.1f} % busy, {count:,} instructions"))
    lines += queue_rows(cost)
    lines += [
        ("HBM traffic", f"{cost.hbm_bytes / 1e6:,.2f} MB in {cost.dma_descriptors:,} descriptors"),
        ("tensor utilisation", f"{100 * cost.tensor_utilisation:.1f} % of peak, {cost.flops / 1e9:,.3f} GFLOP"),
        ("lost to dI/dt throttle, modelled", spread(*cost.interval("throttled_s"))),
        ("instructions", f"{cost.instructions:,} executed, {cost.compiled:,} compiled"),
        ("compile, modelled", f"{spread(*cost.interval('compile_s'))}, about {_memory(cost.compile_bytes)}"),
    ]
    if cost.looped is not None:
        ways = f"{duration(cost.device_s)} written out, {duration(cost.looped.device_s)} as device loops"
        lines.insert(1, ("with loops of constant bounds", ways))
    return lines


def queue_rows(cost: Cost) -> list[tuple[str, str]]:
    """A line for each DMA queue that moved bytes; adjacent queues with equal figures share a line."""
    said = [f"{100 * busy_s / cost.device_s:5.1f} % busy, {n:,} transfers" if n else "" for busy_s, n in cost.queues]
    lines = []
    for text, group in itertools.groupby(range(len(said)), key=said.__getitem__):
        first, *rest = group
        if text:
            lines.append((f"  queues {first} to {rest[-1]}, each" if rest else f"  queue {first}", text))
    return lines


def spread(low: float, high: float) -> str:
    """An interval of seconds as text."""
    return f"{duration(low)} to {duration(high)}" if high else "0 s"


def duration(seconds: float) -> str:
    """A time with four digits and a unit."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.4g} {unit}"
    return f"{seconds * 1e9:.0f} ns" if math.isfinite(seconds) else "never"
