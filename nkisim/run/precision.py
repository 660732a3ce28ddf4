"""Sums of a kernel that are kept in fewer bits than float32, and the effect on its outputs.

If one instruction repeatedly adds to an on-chip tile, the tile is rounded at every step. The kernel runs a second
time with such tiles in float32; the change of its outputs is the effect of the tiles' data type.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nkisim.chip.dtypes import STORAGE, is_float
from nkisim.chip.errors import SimulatorError
from nkisim.chip.record import Trace
from nkisim.price.loops import executions
from nkisim.run.launch import Simulation, simulate

FEWEST = 3  # a tile is an accumulator if one instruction adds to it at least this many times
FULL = 4  # bytes of a float32


@dataclass(frozen=True, slots=True)
class Accumulator:
    """A tile of few bits that holds a sum: its allocation, the number of additions, and the error from its dtype."""

    file: str
    line: int
    name: str
    dtype: str
    additions: int
    change: float | None  # largest change of an output if the tile is float32, relative to the largest element
    why: str = ""  # the reason if ``change`` is None, unknown

    def __str__(self) -> str:
        cost = f"unknown ({self.why})" if self.change is None else f"{self.change:.2g} of the largest element"
        return (
            f"{self.file}:{self.line}: {self.name or 'tile'} keeps a sum of {self.additions} terms in {self.dtype}: "
            f"in float32 the outputs change by {cost}"
        )


def accumulators(trace: Trace) -> dict[int, tuple[int, str]]:
    """Storage -> additions and dtype, for tiles with fewer bits than float32 that an instruction reads and writes."""
    times = executions(trace)
    added: Counter[int] = Counter()
    dtypes: dict[int, str] = {}
    for index, instruction in enumerate(trace.instructions):
        if instruction.engine == "dma" or not _adds(instruction.options):
            continue
        read = {(o.region.storage, o.region.start, o.region.partitions) for o in instruction.reads}
        for o in instruction.writes:
            narrow = is_float(o.dtype) and STORAGE[o.dtype].itemsize < FULL and o.region.buffer != "hbm"
            if narrow and (o.region.storage, o.region.start, o.region.partitions) in read:
                added[o.region.storage] += times[index]
                dtypes[o.region.storage] = o.dtype
    return {storage: (n, dtypes[storage]) for storage, n in added.items() if n >= FEWEST}


def _adds(options: Mapping[str, Any]) -> bool:
    shown = {str(getattr(v, "__name__", v)) for v in options.values()}
    return bool(shown & {"add", "subtract"}) or options.get("accumulate") is True


def precision(
    kernel: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None, **settings: Any
) -> list[Accumulator]:
    """The accumulators of few bits in one launch, one for each line; ``settings`` are the settings of simulate."""
    given = (args, kwargs or {})
    simulation: Simulation = simulate(kernel, **settings)
    first, words = copy.deepcopy(given)
    result = simulation.run(*first, **words)
    places: dict[tuple[str, int], tuple[int, str, str]] = {}
    for trace in result.traces:
        found = accumulators(trace)
        for a in trace.allocations:
            if a.storage in found:
                additions, dtype = found[a.storage]
                most = max(additions, places.get((a.file, a.line), (0, "", ""))[0])
                places[a.file, a.line] = (most, dtype, a.name)
    reports = []
    for (file, line), (additions, dtype, name) in sorted(places.items()):
        again, words = copy.deepcopy(given)
        try:
            wide = replace(simulation, widened=frozenset({(file, line)})).run(*again, **words)
        except SimulatorError as error:
            reports.append(Accumulator(file, line, name, dtype, additions, None, error.message))
            continue
        reports.append(Accumulator(file, line, name, dtype, additions, _change(result.outputs, wide.outputs)))
    return reports


def _change(before: Any, after: Any) -> float:
    pairs = zip(before, after, strict=True) if isinstance(before, tuple) else ((before, after),)
    worst = 0.0
    for a, b in pairs:
        if a is not None and a.dtype.kind not in "iub":
            x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
            worst = max(worst, float(np.abs(x - y).max() / max(np.abs(y).max(), np.finfo(np.float32).tiny)))
    return worst
