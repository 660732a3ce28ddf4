"""The error of the cost model for measurements that it was not fitted to: fits that leave out one group of them."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from benchmarks._measured import MEASUREMENTS
from benchmarks._published import Machines, Measurement, published
from nkisim.hardware import MACHINES, Hardware

# Constants of trn1 that the measurements determine, each with its value from earlier sources (docs/hardware.md).
# If only the group that is left out determines a constant, it goes back to that value. None: there was no value.
FITTED: Mapping[str, float | None] = MappingProxyType(
    {
        "tensor_sustained": 1.0, "narrow_factor": 1.0, "float32_wide_passes": 4.0, "float32_transpose_passes": 4.0,
        "vector_issue_cycles": 60.0, "scalar_issue_cycles": 60.0, "vector_latency_cycles": 40.0,
        "selection_cycles": 0.0, "software_descriptor_s": 10e-9, "software_dge_s": 1e-6, "power_of_two_factor": 1.0,
        "dma_written_factor": 1.0, "turn_barrier_s": None, "turn_drain_s": None, "region_s": None,
        "group_doubling_s": None, "hbm_bytes_per_s": 272e9, "dma_descriptor_s": 20e-9, "launch_s": 0.67e-3,
        "link_bytes_per_s": 6e9, "unlink_bytes_per_s": 5.3e9,
    }
)  # fmt: skip
STEP = 0.02  # relative, of a constant, for the difference quotient
PRIOR, NOISE = 0.5, 0.1  # relative deviation of a constant from its earlier value, and of a measurement


@dataclass(frozen=True)
class Verdict:
    """A measurement, the model's figure, and the figure of a fit without the measurement's group."""

    measurement: Measurement
    predicted: float
    unseen: float

    @property
    def ratio(self) -> float:
        return self.predicted / self.measurement.measured

    @property
    def least_ratio(self) -> float:
        """The model's figure over that within the measurement's error which is nearest to it."""
        m = self.measurement
        return self.predicted / min(max(self.predicted, m.measured - m.error), m.measured + m.error)

    @property
    def unseen_ratio(self) -> float:
        return self.unseen / self.measurement.measured


def value(machine: Hardware, name: str) -> float:
    return float(getattr(machine if hasattr(machine, name) else machine.timing, name))


def changed(name: str, factor: float) -> Machines:
    """The published machines, with one constant of trn1 changed."""
    trn1 = MACHINES["trn1"]
    if hasattr(trn1, name):
        other = replace(trn1, **{name: value(trn1, name) * factor})
    else:
        other = replace(trn1, timing=trn1.timing._replace(**{name: value(trn1, name) * factor}))
    return lambda target: other if target == "trn1" else MACHINES[target]


def scaled(found: Sequence[Measurement], ratios: np.ndarray) -> np.ndarray:
    """Model over measurement; where shapes are not known, divided by its mean within the entry."""
    logs = np.log(ratios)
    entries = defaultdict(list)
    for place, m in enumerate(found):
        if not m.exact and m.unit != "ratio":
            entries[m.entry].append(place)
    for places in entries.values():
        logs[places] -= logs[places].mean()
    return np.asarray(np.exp(logs))


def verdicts(quick: bool = False) -> list[Verdict]:
    """Every measurement with a kernel, with the fit without its group: one linear step of least squares."""
    found = list(MEASUREMENTS)
    measured = np.array([m.measured for m in found])

    def figures(machines: Machines) -> np.ndarray:
        return np.array([m.predict(machines) for m in found])

    base = figures(published)
    if quick:
        return [Verdict(m, p, math.nan) for m, p in zip(found, base, strict=True)]
    slopes = np.column_stack([(figures(changed(name, 1 + STEP)) / base - 1) / STEP for name in FITTED])
    trn1 = MACHINES["trn1"]
    back = np.array([0.0 if p is None else p / value(trn1, n) - 1 for n, p in FITTED.items()])
    errors = scaled(found, base / measured) - 1
    unseen = base.copy()
    for group in {m.group for m in found}:
        kept = np.array([m.group != group for m in found])
        matrix = np.vstack([slopes[kept] / NOISE, np.eye(len(back)) / PRIOR])
        target = np.concatenate([-errors[kept] / NOISE, back / PRIOR])
        step = np.linalg.lstsq(matrix, target, rcond=None)[0]
        unseen[~kept] *= np.maximum(1 + slopes[~kept] @ step, STEP)
    return [Verdict(m, p, u) for m, p, u in zip(found, base, unseen, strict=True)]


def spread(ratios: Sequence[float]) -> tuple[float, float]:
    """Median and ninth decile of the relative errors: the factor by which a figure is too large or small, less one."""
    off = sorted(math.exp(abs(math.log(r))) - 1 for r in ratios)
    return statistics.median(off), off[math.ceil(0.9 * len(off)) - 1]


def errors_of(found: Sequence[Verdict]) -> dict[str, tuple[float, float]]:
    """``spread`` of the exact cases and of all, from the fit to all, and of all from the fits without their group."""
    every = [v.measurement for v in found]
    exact = [v for v in found if v.measurement.exact]
    return {
        "exact cases": spread([v.ratio for v in exact]),
        "all cases": spread(list(scaled(every, np.array([v.ratio for v in found])))),
        "all, each group left out of the fit": spread(list(scaled(every, np.array([v.unseen_ratio for v in found])))),
    }
