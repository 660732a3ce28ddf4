"""The modelled price of a traced kernel: time, busy engines, bytes, utilisation, compile effort."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trnpy._nki.hardware import MACHINES, PARTITIONS, Hardware
from trnpy._nki.simulator.durations import product_columns
from trnpy._nki.simulator.loops import LONGEST, written_out
from trnpy._nki.simulator.record import Engine, Trace
from trnpy._nki.simulator.schedule import Schedule, covered, schedule

ENGINES: tuple[Engine, ...] = ("tensor", "vector", "scalar", "gpsimd", "sync", "dma")

# One public post-mortem: 350 000 unrolled instructions took 1.5 h and 120 GB before they were killed.
COMPILE_S_PER_INSTRUCTION = 1.5 * 3600 / 350_000
COMPILE_BYTES_PER_INSTRUCTION = 120e9 / 350_000


@dataclass(frozen=True, slots=True)
class Cost:
    """What one launch costs on the device, by docs/hardware.md#cost-model, which no hardware has confirmed."""

    kernel: str
    target: str
    device_s: float  # first instruction to last result, with the fixed cost around a kernel
    launch_s: float  # host side of the launch
    busy_s: Mapping[str, float]  # by engine: time in which at least one of its instructions runs
    instructions: int  # executed
    compiled: int  # device loops count once
    engine_instructions: Mapping[str, int]
    hbm_bytes: int
    dma_descriptors: int
    dma_queue_s: float  # summed over the 16 queues
    flops: float
    tensor_utilisation: float  # of the peak for the types used, over device_s
    throttled_s: float
    table_loads: int
    compile_s: float  # order of magnitude
    compile_bytes: float

    def busy(self, engine: str) -> float:
        """Fraction of device_s."""
        return self.busy_s.get(engine, 0.0) / self.device_s if self.device_s else 0.0

    def as_json(self) -> dict[str, Any]:
        """Plain data, with the word that says what these numbers are."""
        plain = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        plain |= {"busy_s": dict(self.busy_s), "engine_instructions": dict(self.engine_instructions)}
        return {"modelled": True, **plain}


def price(trace: Trace, machine: Hardware | None = None, longest: int = LONGEST) -> Cost:
    """Cost of one launch of ``trace`` on its own target, or on ``machine``, from ``longest`` of its instructions."""
    machine = machine or MACHINES[trace.target]
    executed, scale = written_out(trace, longest)
    return summarise(executed, schedule(executed, machine), machine, len(trace.instructions), scale)


def summarise(trace: Trace, plan: Schedule, machine: Hardware, compiled: int, scale: float = 1.0) -> Cost:
    """Cost of a trace without loops whose schedule is known; ``compiled`` instructions before unrolling.

    ``scale`` multiplies all that grows with execution, where the schedule stands for a longer one.
    """
    spans: dict[str, list[tuple[float, float]]] = {}
    counts: dict[str, int] = {}
    flops = ideal_s = 0.0
    for instruction, start, end in zip(trace.instructions, plan.start, plan.end, strict=True):
        engine = instruction.engine
        spans.setdefault(engine, []).append((start, end))
        counts[engine] = counts.get(engine, 0) + 1
        if instruction.opcode == "nc_matmul" and not instruction.options.get("is_transpose"):
            rows, depth, columns, passes = product_columns(instruction)
            flops += 2.0 * rows * depth * columns
            per_cycle = 2 * PARTITIONS * PARTITIONS * (2 if rows > PARTITIONS else 1)
            ideal_s += 2.0 * rows * depth * columns * passes / (per_cycle * machine.tensor_hz)
    device_s = plan.total_s * scale + machine.timing.kernel_floor_s
    moved = [t for t in plan.transfers if t is not None]
    return Cost(
        kernel=trace.kernel,
        target=machine.name,
        device_s=device_s,
        launch_s=machine.launch_s,
        busy_s={e: covered(spans[e]) * scale for e in ENGINES if e in spans},
        instructions=round(len(trace.instructions) * scale),
        compiled=compiled,
        engine_instructions={e: round(n * scale) for e, n in counts.items()},
        hbm_bytes=round(sum(t.hbm_bytes for t in moved) * scale),
        dma_descriptors=round(sum(t.descriptors for t in moved) * scale),
        dma_queue_s=plan.queue_s * scale,
        flops=flops * scale,
        tensor_utilisation=ideal_s * scale / device_s,
        throttled_s=plan.throttled_s * scale,
        table_loads=round(plan.table_loads * scale),
        compile_s=compiled * COMPILE_S_PER_INSTRUCTION,
        compile_bytes=compiled * COMPILE_BYTES_PER_INSTRUCTION,
    )


def rows(cost: Cost) -> list[tuple[str, str]]:
    """The table a user sees: label and value."""
    lines = [
        ("device time, modelled", duration(cost.device_s)),
        ("host launch, modelled", duration(cost.launch_s)),
    ]
    for engine in ENGINES:
        if engine in cost.busy_s:
            label = "DMA queues" if engine == "dma" else f"{engine} engine"
            count = cost.engine_instructions[engine]
            lines.append((label, f"{100 * cost.busy(engine):5.1f} % busy, {count:,} instructions"))
    lines += [
        ("HBM traffic", f"{cost.hbm_bytes / 1e6:,.2f} MB in {cost.dma_descriptors:,} descriptors"),
        ("tensor utilisation", f"{100 * cost.tensor_utilisation:.1f} % of peak, {cost.flops / 1e9:,.3f} GFLOP"),
        ("lost to dI/dt throttle", duration(cost.throttled_s)),
        ("instructions", f"{cost.instructions:,} executed, {cost.compiled:,} compiled"),
        ("compile, order of magnitude", f"{duration(cost.compile_s)}, {cost.compile_bytes / 1e9:.1f} GB"),
    ]
    return lines


def duration(seconds: float) -> str:
    """Three digits and a unit."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.4g} {unit}"
    return f"{seconds * 1e9:.0f} ns" if math.isfinite(seconds) else "never"
