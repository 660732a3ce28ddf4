"""python -m benchmarks nki-model: the cost model against published measurements, and for trnpy's own kernels.

The kernels (benchmarks/nki_kernels) are our own, with the published tilings, traced at the published sizes
without arithmetic. Constants and their sources are in nkisim/hardware.py. Those of trn1 are fitted to the
second table as a whole (benchmarks/_measured.py and _measured_layers.py). "unseen" is the figure of a fit that left
out the measurement's group. The published figures are those of docs/model.md#published-measurements.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks._fit import Verdict as Fit
from benchmarks._fit import errors_of
from benchmarks._fit import verdicts as fits
from benchmarks._own_kernels import own_lines, print_lines
from nkisim.chip.record import Trace
from nkisim.hardware import ERROR_FACTOR, MACHINES
from nkisim.price.cost import Cost, price
from nkisim.price.durations import transfer
from nkisim.price.schedule import schedule
from nkisim.run.launch import Specification, run
from nkisim.run.loader import load
from nkisim.table import print_table

KERNELS = Path(__file__).parent / "nki_kernels"
MICRO = 0.30  # for the K figures, read from screenshots with three digits


@dataclass(frozen=True)
class Launch:
    """One rebuilt kernel at one size."""

    case: str  # the letter in docs/model.md#published-measurements, and the version
    file: str
    kernel: str
    target: str
    shapes: tuple[tuple[int, ...], ...]
    dtype: str
    options: tuple[tuple[str, Any], ...] = ()
    heavy: bool = False  # more than a few seconds to trace


@dataclass(frozen=True)
class Figure:
    """One published number, the model's figure, and the limit of its error."""

    launch: Launch
    quantity: str
    published: float
    predict: Callable[[Trace, Cost], float]
    gate: float | None = None  # None: it is printed and not judged
    remark: str = ""


def device_us(_: Trace, cost: Cost) -> float:
    return cost.device_s * 1e6


def busy_us(engine: str) -> Callable[[Trace, Cost], float]:
    return lambda _, cost: cost.busy_s.get(engine, 0.0) * 1e6


def megabytes(_: Trace, cost: Cost) -> float:
    return cost.hbm_bytes / 1e6


def instruction_ns(opcode: str) -> Callable[[Trace, Cost], float]:
    """Modelled duration of the first instruction of that name."""

    def predict(trace: Trace, _: Cost) -> float:
        plan = schedule(trace, MACHINES[trace.target])
        index = next(i for i, x in enumerate(trace.instructions) if x.opcode == opcode)
        return (plan.end[index] - plan.start[index]) * 1e9

    return predict


def queue_ns(trace: Trace, _: Cost) -> float:
    """The share of one DMA engine in the first transfer."""
    return transfer(trace.instructions[0], MACHINES[trace.target]).engine_s * 1e9


def span_ns(trace: Trace, _: Cost) -> float:
    """First transfer: from the start of its first descriptor to the end of its last."""
    machine = MACHINES[trace.target]
    moved = transfer(trace.instructions[0], machine)
    return ((len(moved.engines) - 1) * machine.timing.dma_stagger_s + moved.engine_s) * 1e9


def trigger_to_consumer_ns(trace: Trace, _: Cost) -> float:
    """From the start of the kernel, which begins with a trigger, to the end of its first transfer."""
    return schedule(trace, MACHINES[trace.target]).end[0] * 1e9


def relative_throughput(trace: Trace, _: Cost) -> float:
    """Rate of a lone transfer over 128 partitions, in per cent of that at 32 KiB per partition."""
    operand = trace.instructions[0].writes[0]
    nbytes = operand.region.stop - operand.region.start
    plan = schedule(trace, MACHINES[trace.target])
    rate = 128 * nbytes / (plan.end[0] - plan.start[0])
    machine = MACHINES[trace.target]
    return 100 * rate / machine.hbm_bytes_per_s


def matmul(case: str, kernel: str, m: int, n: int, k: int, dtype: str, heavy: bool = False, **options: Any) -> Launch:
    return Launch(case, "products.py", kernel, "trn2", ((k, m), (k, n)), dtype, tuple(options.items()), heavy)


def mamba(case: str, kernel: str, channels: int, length: int, heavy: bool = False) -> Launch:
    wide, states = (1, channels, length), 16
    shapes = (wide, wide, (channels, states), (1, states, length), (1, states, length))
    return Launch(case, "state_space.py", kernel, "trn1", shapes, "float32", (), heavy)


def micro(case: str, kernel: str, target: str, *shapes: tuple[int, ...], dtype: str = "float32") -> Launch:
    return Launch(case, "micro.py", kernel, target, shapes, dtype)


A0 = matmul("A-V0", "tiled", 4096, 4096, 4096, "bfloat16")
A1 = matmul("A-V1", "blocked", 4096, 4096, 4096, "bfloat16", block_m=8, block_n=2)
A2 = matmul("A-V2", "blocked", 4096, 4096, 4096, "bfloat16", block_m=8, block_n=2, row_loads=True)
B0 = Launch("B-V0", "products.py", "transposing", "trn2", ((2048, 2048), (2048, 2048)), "bfloat16")
B1 = matmul("B-V1", "tiled", 2048, 2048, 2048, "bfloat16")
E2 = matmul("E-v2", "tiled", 4096, 8192, 8192, "float32", heavy=True)
E3 = matmul("E-v3", "hoisted", 4096, 8192, 8192, "float32", heavy=True)
# Rows in blocks of 8 tiles: with the printed 16 the tiles take 229 376 bytes of SBUF per partition, too many.
E5 = matmul("E-v5", "fully_blocked", 4096, 8192, 8192, "float32", heavy=True, block_m=8)


def _products() -> Iterable[Figure]:
    yield Figure(A0, "total µs", 8602, device_us, 0.30, "one ring of descriptors in the profile; here two take turns")
    yield Figure(A0, "tensor µs", 4806, busy_us("tensor"))
    yield Figure(A0, "DMA µs", 7906, busy_us("dma"))
    yield Figure(A0, "HBM MB", 1207.7, megabytes, None, "the compiler left out loads of the left operand")
    yield Figure(A1, "total µs", 2451, device_us, 0.30, "as A-V0")
    yield Figure(A1, "tensor µs", 2163, busy_us("tensor"))
    yield Figure(A1, "DMA µs", 1325, busy_us("dma"))
    yield Figure(A1, "vector µs", 174, busy_us("vector"))
    yield Figure(A1, "HBM MB", 201.3, megabytes)
    yield Figure(A2, "total µs", 1801, device_us, 0.10)
    yield Figure(A2, "tensor µs", 1781, busy_us("tensor"), 0.03)
    yield Figure(A2, "DMA µs", 819, busy_us("dma"))
    yield Figure(A2, "vector µs", 172, busy_us("vector"))
    yield Figure(A2, "HBM MB", 201.3, megabytes)
    yield Figure(B0, "total µs", 802, device_us, 0.10)
    yield Figure(B0, "tensor µs", 503, busy_us("tensor"))
    reloads = "loads of both operands for every product take longer than all of it: the compiler left some out"
    yield Figure(B1, "total µs", 608, device_us, None, reloads)
    yield Figure(B1, "tensor µs", 420, busy_us("tensor"))
    yield Figure(E2, "total µs", 39_890, device_us, 0.10)
    yield Figure(E2, "tensor µs", 34_820, busy_us("tensor"))
    yield Figure(E2, "HBM MB", 10_870, megabytes)
    yield Figure(E3, "total µs", 28_200, device_us, 0.03)
    yield Figure(E3, "tensor µs", 28_160, busy_us("tensor"), 0.03)
    yield Figure(E3, "HBM MB", 8_860, megabytes)
    # E-v4 as published needs 329 728 bytes of SBUF per partition in float32: the simulator refuses it (rule 11).
    yield Figure(E5, "total µs", 28_300, device_us, 0.03)
    yield Figure(E5, "tensor µs", 28_160, busy_us("tensor"), 0.03)
    yield Figure(E5, "vector µs", 2_990, busy_us("vector"))
    yield Figure(E5, "HBM MB", 1_480, megabytes)


def _mambas() -> Iterable[Figure]:
    """G: fused Mamba on trn1, float32, 16 states."""
    for case, kernel, channels, length, published, heavy in (
        ("G-v1 ch256 L512", "reloading", 256, 512, 172.93, False),
        ("G-v1 ch4096 L512", "reloading", 4096, 512, 2_340, False),
        ("G-v2 ch4096 L512", "keeping", 4096, 512, 1_610, False),
        ("G-v3 ch4096 L512", "chunked", 4096, 512, 1_600, False),
        ("G-v3 ch4096 L2048", "chunked", 4096, 2048, 6_600, True),
        ("G-v3 ch4096 L8192", "chunked", 4096, 8192, 27_800, True),
    ):
        launch = mamba(case, kernel, channels, length, heavy)
        kept = kernel != "reloading"
        remark = "delta u, the same for all states, is computed once in the measured time" if kept else ""
        yield Figure(launch, "total µs", published, device_us, None if kept else 0.15, remark)
    yield Figure(mamba("G-v1 ch256 L512", "reloading", 256, 512), "vector µs", 146, busy_us("vector"))


def _micros() -> Iterable[Figure]:
    """J: performance guide, trn1. K: DMA overview, trn2."""
    narrow = micro("K-1", "exponential", "trn2", (4, 4096), dtype="bfloat16")
    square = micro("K-2", "exponential", "trn2", (128, 128), dtype="bfloat16")
    yield Figure(narrow, "32 KiB on one DMA engine, ns", 1416, queue_ns, MICRO)
    yield Figure(narrow, "activation exp N=4096, ns", 3710, instruction_ns("activation"), MICRO)
    yield Figure(square, "2 KiB on each of 16 engines, ns", 97, queue_ns, MICRO)
    yield Figure(square, "first to last descriptor, ns", 468, span_ns, MICRO)
    yield Figure(square, "trigger to consumer, ns", 1500, trigger_to_consumer_ns, MICRO)
    yield Figure(square, "activation exp N=128, ns", 400, instruction_ns("activation"), MICRO)
    for nbytes, percent in ((64, 2.6), (256, 10.3), (512, 20.6), (1024, 42.2), (2048, 81.3), (4096, 96.6), (16384, 99)):
        size = micro(f"K-curve {nbytes} B", "transfer", "trn2", (128, nbytes // 4))
        yield Figure(size, "lone transfer, % of full rate", percent, relative_throughput, MICRO)
    chain = micro("J-1", "chain", "trn1", (128, 1))
    yield Figure(chain, "dependent activation, ns", 189, instruction_ns("activation"), None, "an input of the model")
    wide = micro("J-2", "addition", "trn1", (64, 8192), (64, 8192))
    yield Figure(wide, "tensor_tensor fp32 N=8192, ns", 14_968, instruction_ns("tensor_tensor"), MICRO)
    load = micro("J-3", "transfer", "trn1", (128, 16384))
    yield Figure(load, "DMA, ns per 32 KiB of an engine", 1810, _per_32_kib, MICRO)


def _per_32_kib(trace: Trace, cost: Cost) -> float:
    operand = trace.instructions[0].writes[0]
    per_engine = 8 * (operand.region.stop - operand.region.start)  # eight partitions each
    return queue_ns(trace, cost) * 32 * 1024 / per_engine


FIGURES: tuple[Figure, ...] = (*_products(), *_mambas(), *_micros())


@functools.cache
def traced(launch: Launch) -> tuple[Trace, Cost]:
    """The rebuilt kernel, traced and priced on its published target."""
    kernel = getattr(load(KERNELS / launch.file), launch.kernel)
    arguments = tuple(Specification(shape, launch.dtype) for shape in launch.shapes)
    result = run(kernel, arguments, dict(launch.options), target=launch.target, mode="trace")
    return result.trace, price(result.trace)


@dataclass(frozen=True)
class Verdict:
    """A figure with its prediction."""

    figure: Figure
    predicted: float
    ratio: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "ratio", self.predicted / self.figure.published)

    @property
    def passed(self) -> bool | None:
        """Whether it is within the gate; None if the figure has none."""
        return None if self.figure.gate is None else abs(self.ratio - 1) <= self.figure.gate


def judge(figure: Figure) -> Verdict:
    return Verdict(figure, figure.predict(*traced(figure.launch)))


def row(verdict: Verdict) -> tuple[str, ...]:
    figure = verdict.figure
    gate = "" if figure.gate is None else f"±{100 * figure.gate:.0f} %"
    word = {True: "pass", False: "MISSED", None: ""}[verdict.passed]
    return (
        figure.launch.case,
        figure.quantity,
        f"{figure.published:,.5g}",
        f"{verdict.predicted:,.{1 if verdict.predicted < 100 else 0}f}",
        f"{verdict.ratio:.3f}",
        gate,
        word,
        figure.remark,
    )


GATE = 0.25  # for exact cases, from the measured figure or from the end of its error


def measured_row(verdict: Fit) -> tuple[str, ...]:
    m = verdict.measurement
    unseen = "" if math.isnan(verdict.unseen) else f"{verdict.unseen_ratio:.2f}"
    error = f"{m.error:.2g}" if m.error and m.exact else ""
    figures = f"{m.measured:.4g}", error, f"{verdict.predicted:.4g}", m.unit, f"{verdict.ratio:.2f}", unseen
    return (str(m.entry), m.group, m.what, *figures, "exact" if m.exact else "ratio", _word(verdict), m.remark)


def _word(verdict: Fit) -> str:
    if not verdict.measurement.exact:
        return ""
    if abs(verdict.ratio - 1) <= GATE:
        return "pass"
    return "in error" if abs(verdict.least_ratio - 1) <= GATE else "MISSED"


def print_measured(found: list[Fit]) -> None:
    heads = ("entry", "group", "what", "measured", "±", "modelled", "", "ratio", "unseen", "case", "", "remark")
    title = "trn1 and trn2, measured by others (docs/model.md#measurements)"
    print_table(title, heads, [measured_row(v) for v in found])
    exact = [v for v in found if v.measurement.exact]
    if not found:
        return
    words = [_word(v) for v in exact]
    print(f"{words.count('pass')} of {len(exact)} exact cases within {100 * GATE:.0f} % of the measured figure")
    print(f"{len(exact) - words.count('MISSED')} within {100 * GATE:.0f} % of a figure within its error (in error)")
    if not any(math.isnan(v.unseen) for v in found):
        for name, (median, most) in errors_of(found).items():
            print(f"error of {name}: {100 * median:.0f} % in the median, {100 * most:.0f} % in nine of ten")
        print(f"times are printed as intervals of a factor {ERROR_FACTOR:g} up and down")
    print()


def main(argv: list[str]) -> int:
    """Print the tables; the exit code is the number of missed gates, at most 100."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks nki-model", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="without the cases that take minutes, and without fits")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--timelines", type=Path, help="folder for a Perfetto timeline of every kernel of trnpy's")
    options = parser.parse_args(argv)
    lines = list(own_lines(options.timelines))
    verdicts = [judge(f) for f in FIGURES if not (options.quick and f.launch.heavy)]
    measured = fits(options.quick)
    if options.json:
        keys = ("case", "quantity", "published", "modelled", "ratio", "gate", "verdict", "remark")
        published = [dict(zip(keys, row(v), strict=True)) for v in verdicts]
        keys = (
            "entry",
            "group",
            "what",
            "measured",
            "error",
            "modelled",
            "unit",
            "ratio",
            "unseen",
            "kind",
            "verdict",
            "remark",
        )
        published += [dict(zip(keys, measured_row(v), strict=True)) for v in measured]
        print(json.dumps(published + [line.as_json() for line in lines], indent=1))
    else:
        title = "Modelled against measured (docs/hardware.md); nothing here ran on a Trainium of ours"
        heads = ("case", "quantity", "published", "modelled", "ratio", "gate", "", "remark")
        print_table(title, heads, [row(v) for v in verdicts])
        judged = [v for v in verdicts if v.passed is not None]
        print(f"{sum(bool(v.passed) for v in judged)} of {len(judged)} gates held\n")
        print_measured(measured)
        print_lines(lines)
    missed = sum(v.passed is False for v in verdicts) + sum(_word(v) == "MISSED" for v in measured)
    return min(100, missed + sum(not line.passed for line in lines))
