"""The cost model's figures for trnpy's kernels at 4096^3 on trn2, compared with goals."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

import trnpy
from nkisim.chip.record import Trace
from nkisim.hardware import ERROR_FACTOR, FLOAT64_PASSES, TRN2
from nkisim.price.cost import Cost, price
from nkisim.price.timeline import write_timeline
from nkisim.run.launch import Specification, run
from nkisim.table import print_table
from trnpy._call.decisions import decide, work_of
from trnpy._nki.kernels.shared.parameters import (
    HELD_BYTES,
    TILE,
    TILE_N,
    for_bounds,
    for_digits,
    for_numbers,
    for_stack,
)
from trnpy._nki.simulated import kernel
from trnpy._settings.host_rates import current_rates
from trnpy._settings.policy import Policy

N = 4096
DIGITS = 7
BATCH, SMALL = 512, 256
# A product of 512 columns as measured (docs/hardware.md#tensor-engine); float32 on trn1 only, of trn2 four passes.
PRODUCT_S: Mapping[str, float] = MappingProxyType({"bfloat16": 219e-9, "float32": 4 * 521 / 2.4e9})
TRAFFIC = 1.3  # times the least that blocks of the kernel's size must move


@dataclass(frozen=True, slots=True)
class Line:
    """One modelled figure of a kernel, and its goal."""

    kernel: str
    quantity: str
    modelled: float
    goal: float
    at_least: bool  # whether the goal is a lower limit
    instructions: int  # compiled

    @property
    def passed(self) -> bool:
        return self.modelled >= self.goal if self.at_least else self.modelled <= self.goal

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "passed": self.passed, "word": "modelled"}


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel traced at one size."""

    title: str
    trace: Trace
    cost: Cost

    def line(self, quantity: str, modelled: float, goal: float, at_least: bool = True) -> Line:
        return Line(self.title, quantity, modelled, goal, at_least, len(self.trace.instructions))

    def traffic(self, least: float) -> Line:
        """HBM bytes over ``least``: each operand once for every block of the other, and the result."""
        return self.line("HBM bytes / least for its blocks", self.cost.hbm_bytes / least, TRAFFIC, False)


@functools.cache
def launch(
    title: str, name: str, shapes: tuple[tuple[int, ...], ...], dtype: str, *keywords: tuple[str, Any]
) -> Launch:
    dtypes = dtype.split() if " " in dtype else [dtype] * len(shapes)
    operands = tuple(map(Specification, shapes, dtypes))
    trace = run(kernel(name), operands, dict(keywords), mode="trace").trace
    return Launch(title, trace, price(trace))


def _launch(title: str, name: str, shapes: tuple[tuple[int, ...], ...], dtype: str, **keywords: Any) -> Launch:
    return launch(title, name, shapes, dtype, *sorted(keywords.items()))


def _native() -> Iterator[tuple[Line, Launch]]:
    """Products in the kernels' own formats: A in TensorE's layout, A and B in NumPy's, A A^T by matmul and by syrk."""
    square = (N, N)
    for dtype, itemsize in (("bfloat16", 2), ("float32", 4)):
        tiles = for_numbers(itemsize)
        ideal_s = N**3 / (TILE * TILE * TILE_N) * PRODUCT_S[dtype]

        def matmul(title: str, dtype: str = dtype, **keywords: Any) -> Launch:
            return _launch(f"matmul {dtype}, {title}", "matmul", (square, square), dtype, **keywords)

        keywords = tiles.of_numbers()
        ready = matmul("K on the rows of A", a_rows=False, **keywords)
        turned = matmul("A and B in C order", **keywords)
        product = matmul("A A^T", b_rows=False, **keywords)
        syrk = _launch(f"syrk {dtype}", "syrk", (square,), dtype, **tiles.of_squares())
        for found in (ready, turned):
            yield found.line("% of the measured PE rate", 100 * ideal_s / found.cost.device_s, 92.0), found
            rows = min(tiles.m_tiles * TILE, HELD_BYTES * TILE // (N * itemsize))
            yield found.traffic((N**2 + N**3 / rows) * itemsize + 4 * N**2), found
        share = syrk.cost.device_s / product.cost.device_s
        yield syrk.line("of the time of matmul of A and A^T", share, 0.56, False), syrk


def _float64() -> Iterator[tuple[Line, Launch]]:
    digits, keywords = (DIGITS, N, N), for_digits(DIGITS, TRN2).of_digits()
    product = _launch("float64: product of digits", "float64_matmul", (digits, digits), "bfloat16", **keywords)
    gram = _launch("float64: A A^T", "float64_matmul", (digits,), "bfloat16", **keywords, halved=True)
    splits = [
        _launch(f"float64: digits of {name}", "float64_digits", ((N, 2 * N),), "int32", by_rows=by_rows)
        for name, by_rows in (("A", True), ("B", False))
    ]
    bound = _launch("float64: certificate", "abs_bound", ((N, N), (N, N)), "bfloat16", **for_bounds().of_numbers())
    ideal_s = N**3 / (TILE * TILE * TILE_N) * FLOAT64_PASSES * PRODUCT_S["bfloat16"]
    columns = ((3, N, N), (N, 1), (1, N))
    rounded = _launch("float64: rounding of the result", "float64_round", columns, "int32 float32 float32")
    certified = product.cost.device_s + bound.cost.device_s
    link, back = 16 * N**2 / TRN2.link_bytes_per_s, 8 * N**2 / TRN2.unlink_bytes_per_s
    resident = certified + rounded.cost.device_s + back
    whole = resident + sum(s.cost.device_s for s in splits) + link
    yield product.line("% of the measured PE rate / 28, alone", 100 * ideal_s / product.cost.device_s, 95), product
    yield product.line("% of the measured PE rate / 28, with certificate", 100 * ideal_s / certified, 88), product
    text = "from arrays of the host / with resident operands"
    yield product.line(text, whole / resident, 1.35, False), product
    yield product.line(f"{text}, by nrt: transfers beside launches", _beside() / resident, 1.35, False), product
    edge = for_digits(DIGITS, TRN2).m_tiles * TILE
    yield product.traffic(N**3 * (1 / edge + 1 / TILE_N) * DIGITS * 2 + 3 * 4 * N**2), product
    for s in splits:
        yield s.traffic((2 * 8 + 2 * 8 + 2 * DIGITS + 2) * N**2), s  # read twice; words out and back; results
    yield rounded.traffic((12 + 8) * N**2), rounded
    yield bound.line("of the product's time, %", 100 * bound.cost.device_s / product.cost.device_s, 5, False), bound
    yield gram.line("times faster than the product", product.cost.device_s / gram.cost.device_s, 1.6), gram


def _beside() -> float:
    """Seconds of a call of float64 arrays where transfers run beside launches, with the proof of its result."""
    square = np.empty((N, N))
    problem = trnpy.matmul.__trnpy_op__.prepare(square, square)
    machine = replace(TRN2, overlaps=True)
    return decide("numpy.matmul", problem, machine, Policy(), current_rates(), work=work_of(problem)).device_s


def _batch() -> Iterator[tuple[Line, Launch]]:
    shape = (BATCH, SMALL, SMALL)
    for dtype, itemsize in (("float32", 4), ("bfloat16", 2)):
        title = f"batched_matmul {dtype}, {BATCH} x {SMALL}^3 in one launch"
        batched = _launch(title, "batched_matmul", (shape, shape), dtype)
        least = BATCH * SMALL**2 * (2 * itemsize + 4)
        yield batched.line("% of HBM or PE bound", 100 * _floor_s(dtype, least) / batched.cost.device_s, 80), batched
        yield batched.traffic(least), batched


def _float64_batch() -> Iterator[tuple[Line, Launch]]:
    """The sums are short, so VectorE bounds the time, with its carries of every element, and not TensorE."""
    stack = (DIGITS, BATCH * SMALL, SMALL)
    keywords = for_stack(DIGITS, TRN2, SMALL, SMALL).of_digits()
    title = f"float64: digits, {BATCH} x {SMALL}^3 in one launch"
    found = _launch(title, "float64_matmul", (stack, stack), "bfloat16", batch=BATCH, **keywords)
    ideal = 2 * BATCH * SMALL**3 * FLOAT64_PASSES / TRN2.flops_per_s["bfloat16"]
    yield found.line("% of bf16 peak / 28", 100 * ideal / found.cost.device_s, 40), found
    yield found.traffic(BATCH * SMALL**2 * (2 * DIGITS * 2 + 3 * 4)), found


def _floor_s(dtype: str, nbytes: float) -> float:
    return max(nbytes / TRN2.hbm_bytes_per_s, 2 * BATCH * SMALL**3 / TRN2.flops_per_s[dtype])


def own_lines(timelines: Path | None = None) -> Iterator[Line]:
    """Every figure. If ``timelines`` names a folder, each kernel's timeline is written there."""
    for part in (_native, _float64, _batch, _float64_batch):
        for line, found in part():
            if timelines is not None:
                timelines.mkdir(parents=True, exist_ok=True)
                name = "".join(c if c.isalnum() else "-" for c in found.title)
                write_timeline(timelines / f"{name}.json", [found.trace])
            yield line


def print_lines(lines: list[Line]) -> None:
    """Print the table; every figure in it is modelled."""
    heads = ("kernel", "modelled", "", "goal", "", "instructions")
    title = f"trnpy's kernels at {N}^3 on trn2, modelled within a factor of {ERROR_FACTOR:g}; no Trainium has run them"
    shown = [
        (
            line.kernel, f"{line.modelled:.3g}", line.quantity, f"{'≥' if line.at_least else '≤'} {line.goal:g}",
            "pass" if line.passed else "MISSED", f"{line.instructions:,}",
        )
        for line in lines
    ]  # fmt: skip
    print_table(title, heads, shown)
    print(f"{sum(line.passed for line in lines)} of {len(lines)} goals reached by the model")


__all__ = ["Line", "own_lines", "print_lines"]
