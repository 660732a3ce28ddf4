"""How fast this host is: measured by ``python -m trnpy calibrate``, stored for the machine and library versions."""

from __future__ import annotations

import functools
import importlib.util
import math
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from trnpy._base import store
from trnpy._base.processors import threads
from trnpy._base.records import record
from trnpy._settings.host_steps import OPERATIONS, STEPS
from trnpy._settings.policy import Rates

Curve = tuple[tuple[float, float], ...]  # (size n, useful flops per second at n), n ascending

# Flops of functions of (n, n) over n^3, as SciPy computes them: Golub & Van Loan, 4th ed.;
# Higham, Functions of Matrices, 2008, sec. 6.2 and 11.5.
FLOPS: Mapping[str, float] = {
    "cholesky": 1 / 3, "qr": 8 / 3, "eigh": 9, "eigvalsh": 4 / 3, "inv": 2, "solve": 8 / 3, "svd": 22, "svdvals": 8 / 3,
    "pinv": 22, "pinvh": 11, "lstsq": 22, "sqrtm": 28, "logm": 75, "fractional_matrix_power": 75, "expm": 20,
    "det": 2 / 3, "lu": 2 / 3, "eig": 25, "eigvals": 10,
}  # fmt: skip

# Microseconds per matrix of a stack at n = 4, 16 and 64: SciPy's loop, and NumPy's gufuncs with the same result.
STACK_SIZES = (4, 16, 64)
STACK_US: Mapping[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "cholesky": ((5.0, 6.4, 27), (0.13, 0.78, 21)),
    "qr": ((17, 28, 160), (0.68, 7.9, 119)),
    "eigh": ((16, 44, 405), (1.6, 21, 296)),
    "eigvalsh": ((16, 28, 162), (1.0, 10, 132)),
    "inv": ((1.5, 7.3, 78), (0.44, 5.6, 90)),
    "svd": ((14, 48, 533), (3.1, 34, 476)),
    "svdvals": ((13, 27, 196), (1.8, 14, 170)),
    "pinv": ((29, 62, 547), (3.4, 36, 526)),
    "pinvh": ((27, 49, 532), (1.7, 21, 297)),
    "lstsq": ((16, 44, 468), (3.4, 36, 526)),
}
# The same for SciPy's compiled loops, which no gufunc of NumPy can replace (AMD EPYC, 2026-11).
LOOP_US: Mapping[str, tuple[float, ...]] = {
    "det": (0.63, 2.0, 19), "eig": (18, 60, 1060), "eigvals": (14, 40, 560), "expm": (4.5, 11, 156),
    "lu": (1.5, 5.9, 42), "solve": (1.1, 4.5, 33),
}  # fmt: skip


def _stack_curve(name: str, microseconds: tuple[float, ...]) -> Curve:
    return tuple((float(n), 1e6 * FLOPS[name] * n**3 / us) for n, us in zip(STACK_SIZES, microseconds, strict=True))


# Rates of an EPYC of 2024, 2026-11. Those of LAPACK are geometric means of OpenBLAS's kernels for Haswell and SkylakeX
# with one and two threads: each is within 25 % of the mean, and within 45 % from 1,024 rows on. Predictions from them
# are marked "uncalibrated".
DEFAULT_CURVES: Mapping[str, Curve] = {
    "matmul": ((16, 5e9), (32, 2e10), (128, 5e10), (512, 8e10), (2048, 1e11)),
    "integer": ((32, 4.5e9), (64, 4e9), (128, 2.3e9), (512, 9e8)),
    "einsum": ((32, 5e9), (512, 8e9)),
    "eigh": ((32, 3.9e9), (128, 1.6e10), (512, 4.6e10), (1024, 6.9e10), (2048, 7e10)),
    "eigvalsh": ((32, 1.3e9), (128, 7.4e9), (512, 2.3e10), (1024, 3.2e10), (2048, 3.3e10)),
    "cholesky": ((32, 1.7e9), (128, 1e10), (512, 1.8e10), (1024, 2.2e10), (2048, 3.3e10)),
    "solve": ((32, 3.3e9), (128, 2e10), (512, 3.2e10), (1024, 4.9e10), (2048, 5.6e10)),
    "lu": ((32, 2.7e9), (128, 1.9e10), (512, 3.7e10), (1024, 4.5e10), (2048, 5.2e10)),
    "inv": ((32, 3.9e9), (128, 1.9e10), (512, 4.3e10), (1024, 5.7e10), (2048, 5.7e10)),
    "trsm": ((32, 3e9), (128, 2.6e10), (512, 5.1e10), (1024, 5.8e10), (2048, 6.2e10)),
    "qr": ((32, 3.2e9), (128, 1.2e10), (512, 2.7e10), (1024, 3.4e10), (2048, 3.4e10)),
    "svd": ((32, 7.7e9), (128, 3e10), (512, 5.5e10), (1024, 7.6e10), (2048, 7.5e10)),
    "svdvals": ((32, 2e9), (128, 8.7e9), (512, 1.4e10), (1024, 2e10), (2048, 1.8e10)),
    "expm": ((32, 2.4e10), (128, 4.6e10), (512, 6.5e10), (1024, 7e10), (2048, 7e10)),
    "eigh evd": ((32, 4.6e9), (128, 2.1e10), (512, 6e10), (1024, 8.4e10), (2048, 8.6e10)),
    "sqrtm": ((32, 6e9), (64, 9e9), (256, 3.5e10)),
    "logm": ((4, 6.4e6), (32, 2e9), (64, 5e9), (256, 3e10)),
    "fractional_matrix_power": ((4, 6.4e6), (32, 2e9), (64, 5e9), (256, 3e10)),
    "csr": ((1, 5e9), (16, 7e9)),  # a sparse matrix times n columns; also for all other formats
    "bsr": ((1, 5e9), (16, 5e9)),
    "sparse sparse": ((1, 4e8),),
    **{f"stacked {name}": _stack_curve(name, loop) for name, (loop, _) in STACK_US.items()},
    **{f"stacked {name}": _stack_curve(name, loop) for name, loop in LOOP_US.items()},
    **{name: step.rates for name, step in STEPS.items()},
    **{f"gufunc {name}": _stack_curve(name, gufunc) for name, (_, gufunc) in STACK_US.items()},
}
KINDS = tuple(DEFAULT_CURVES)
DEFAULT_COPY = 1e10  # bytes per second: a third of the measurement on that machine when idle, to be cautious
SINGLE_SPEEDUP = 2.0  # float32 over float64: twice the SIMD lanes
DOUBLE = np.dtype(np.float64)
LINE = 512  # elements of the lines whose products a calibration measures
COMPLEX_SIZE = 4 ** (1 / 3)  # a complex matrix takes as long as a real one this many times larger: equal operations


@record(eq=False)  # compared by identity: caches of decisions use it as a key
class HostRates:
    """Useful operations per second of the host for each kind of work in float64, and its memory bandwidth."""

    curves: Mapping[str, Curve]
    copy_bytes_per_s: float
    calibrated: bool
    machine: str  # the processor and versions that were measured
    remark: str = ""  # disturbances of the measurement

    def seconds(self, kind: str, n: float, flops: float, dtype: np.dtype, moved_bytes: float = 0.0) -> float:
        """Predicted host seconds of ``flops`` real operations of ``kind`` at characteristic size ``n``."""
        curve = self.curves[kind]
        if dtype.kind == "c":
            n *= COMPLEX_SIZE
        rate = interpolate(curve, max(n, 1.0)) * min(n / curve[0][0], 1.0)  # proportional to n below the least size
        if dtype.char in "fF":
            rate *= SINGLE_SPEEDUP
        return max(flops / rate, moved_bytes / self.copy_bytes_per_s)

    def step_s(self, name: str, n: float, amount: float, dtype: np.dtype = DOUBLE) -> float:
        """Predicted seconds of ``amount`` units of a step of ``host_steps.STEPS`` for a matrix of order ``n``."""
        if STEPS[name].unit == OPERATIONS:
            return self.seconds(name, n, amount, dtype)
        curve = self.curves[name]
        return amount / (interpolate(curve, max(n, 1.0)) * min(n / curve[0][0], 1.0))

    def loop_s(self, units: float) -> float:
        """Predicted seconds of a loop of NumPy's einsum: ``units`` are elements of a product of two long lines."""
        return 2.0 * units / interpolate(self.curves["einsum"], LINE)


def interpolate(curve: Curve, n: float) -> float:
    """The rate at size ``n``: linear in log n and log rate, constant outside the measured sizes."""
    sizes, rates = zip(*curve, strict=True)
    return float(math.exp(np.interp(math.log(n), np.log(sizes), np.log(rates))))


def machine_id(count: int | None = None) -> str:
    """The processor, threads (``count``, or this process's) and library versions for which a calibration is valid."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []  # not Linux: use the platform's name for the processor
    named = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    cpu = next(named, "") or _processor()
    used = count or threads()
    return f"{cpu}, {used} thread{'s' * (used != 1)}, numpy {np.__version__}, scipy {_scipy_version()}"


def _scipy_version() -> str:
    """The version of the installed SciPy, read from its version file: importing SciPy takes 20 ms."""
    if "scipy" not in sys.modules and (spec := importlib.util.find_spec("scipy")) and spec.origin:
        file = Path(spec.origin).with_name("version.py")
        if file.exists() and (found := re.search(r'^version = "(.+)"$', file.read_text(), re.MULTILINE)):
            return found[1]
    import scipy

    return str(scipy.__version__)


def _processor() -> str:
    import platform

    return platform.processor() or platform.machine()  # processor() runs a program, 60 ms


def path(machine: str) -> Path:
    """The file with the calibration of ``machine``."""
    import hashlib

    digest = hashlib.sha256(machine.encode()).hexdigest()[:16]
    return store.folder() / f"calibration-{digest}.json"


def stored(machine: str) -> store.Stored[HostRates]:
    """The stored calibration of ``machine``."""

    def parse(content: Any) -> HostRates:
        curves = {kind: _curve(content["curves"][kind]) for kind in KINDS}
        remark = content.get("remark", "")
        if not isinstance(remark, str):
            raise TypeError(f"{remark!r} is not text")
        return HostRates(curves, _rate(content["copy_bytes_per_s"]), True, machine, remark)

    return store.read(path(machine), machine, parse)


def _curve(points: Any) -> Curve:
    curve = tuple((_rate(n), _rate(rate)) for n, rate in points)
    sizes = [n for n, _ in curve]
    if not curve or sizes != sorted(set(sizes)):
        raise ValueError(f"sizes {sizes} are not ascending")
    return curve


def _rate(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise ValueError(f"{value!r} is not a positive number")
    return float(value)


@functools.cache
def current_rates() -> HostRates:
    """The stored calibration of this machine, or rates from calibrations with other thread counts, or the defaults.

    Rates are interpolated between two measured thread counts. Outside these, the rates of the nearest count
    are used and marked as uncalibrated, like the defaults.
    """
    machine = machine_id()
    known: HostRates | None = None
    if any(store.folder().glob("calibration-*.json")):  # if there is none, skip hashlib and json: 5 ms to import
        known = stored(machine).content or of_other_counts(machine)
    return known or HostRates(DEFAULT_CURVES, DEFAULT_COPY, False, machine)


def of_other_counts(machine: str) -> HostRates | None:
    """Rates for ``machine`` from calibrations with other thread counts; None if there are none."""
    wanted = threads()
    counts = [n for n in range(1, 2 * (os.cpu_count() or 1) + 1) if path(machine_id(n)).exists()]
    found = {n: rates for n in counts if (rates := stored(machine_id(n)).content) is not None}
    if not found:
        return None
    below, above = max((n for n in found if n < wanted), default=0), min((n for n in found if n > wanted), default=0)
    if not (below and above):
        return replace(found[below or above], calibrated=False, machine=machine)
    low, high, share = found[below], found[above], math.log(wanted / below) / math.log(above / below)

    def between(a: float, b: float) -> float:
        return float(a ** (1 - share) * b**share)

    curves = {
        kind: tuple((n, between(rate, interpolate(high.curves[kind], n))) for n, rate in low.curves[kind])
        for kind in KINDS
    }
    copied = between(low.copy_bytes_per_s, high.copy_bytes_per_s)
    return HostRates(curves, copied, True, machine, low.remark or high.remark)


def save(rates: HostRates) -> Path:
    """Store ``rates`` for this machine."""
    content = {"curves": rates.curves, "copy_bytes_per_s": rates.copy_bytes_per_s, "remark": rates.remark}
    kept = store.write(path(rates.machine), content, rates.machine)
    current_rates.cache_clear()
    Rates.turn = object()
    return kept
