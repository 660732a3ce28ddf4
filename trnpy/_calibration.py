"""How fast this host is: measured once by ``trnpy calibrate``, kept per machine and versions."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

Curve = tuple[tuple[float, float], ...]  # (size n, useful flops per second at n), n ascending

KINDS = ("matmul", "integer", "einsum", "eigh", "eigvalsh", "cholesky", "solve")
BUDGET_S = 45.0  # of measuring, so that calibrating stays under a minute
REPEATS = 3  # the fastest of which counts: a shared machine is only ever slower

# What a few cores of a 2024 server do (shared/BASELINES.md: one and two threads of an EPYC); marked
# "uncalibrated" wherever they are used.
DEFAULT_CURVES: Mapping[str, Curve] = {
    "matmul": ((32, 1e10), (128, 3e10), (512, 8e10), (2048, 1e11)),
    "integer": ((32, 8e8), (512, 8e8)),
    "einsum": ((32, 2e9), (512, 5e9)),
    "eigh": ((32, 1e9), (128, 4e9), (512, 1.2e10), (2048, 2.5e10)),
    "eigvalsh": ((32, 5e8), (128, 2e9), (512, 6e9), (2048, 1.2e10)),
    "cholesky": ((32, 1e9), (128, 6e9), (512, 2.5e10), (2048, 6e10)),
    "solve": ((32, 1e9), (128, 6e9), (512, 2.5e10), (2048, 6e10)),
}
SINGLE_SPEEDUP = 2.0  # float32 over float64: twice the lanes


@dataclass(frozen=True, slots=True, eq=False)  # told apart by identity: decisions are cached by it
class HostRates:
    """Useful flops per second of the host for each kind of work in float64, and its memory bandwidth."""

    curves: Mapping[str, Curve]
    copy_bytes_per_s: float
    calibrated: bool
    machine: str  # processor and versions the figures belong to

    def seconds(self, kind: str, n: float, flops: float, dtype: np.dtype, moved_bytes: float = 0.0) -> float:
        """Predicted host seconds of ``flops`` real operations of ``kind`` at characteristic size ``n``."""
        curve = self.curves[kind]
        rate = interpolate(curve, max(n, 1.0)) * min(n / curve[0][0], 1.0)  # below the measured sizes: in proportion
        if dtype.char in "fF":
            rate *= SINGLE_SPEEDUP
        return max(flops / rate, moved_bytes / self.copy_bytes_per_s)


def interpolate(curve: Curve, n: float) -> float:
    """The rate at size ``n``: linear in log n and log rate, constant outside the measured sizes."""
    sizes, rates = zip(*curve, strict=True)
    return float(math.exp(np.interp(math.log(n), np.log(sizes), np.log(rates))))


def machine_id() -> str:
    """Processor, threads and library versions: what a calibration is valid for."""
    import scipy

    cpu = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), cpu)
    except OSError:
        pass  # not Linux: the platform's own name has to do
    threads = os.environ.get("OPENBLAS_NUM_THREADS") or os.environ.get("OMP_NUM_THREADS") or os.cpu_count()
    return f"{cpu}, {threads} threads, numpy {np.__version__}, scipy {scipy.__version__}"


def _path(machine: str) -> Path:
    import platformdirs

    digest = hashlib.sha256(machine.encode()).hexdigest()[:16]
    return Path(platformdirs.user_cache_dir("trnpy")) / f"calibration-{digest}.json"


@functools.cache
def current_rates() -> HostRates:
    """The stored calibration of this machine, else defaults that say they are uncalibrated."""
    machine = machine_id()
    try:
        stored = json.loads(_path(machine).read_text())
        curves = {kind: tuple((float(n), float(r)) for n, r in stored["curves"][kind]) for kind in KINDS}
        return HostRates(curves, float(stored["copy_bytes_per_s"]), True, machine)
    except FileNotFoundError:
        return HostRates(DEFAULT_CURVES, 1e10, False, machine)
    except (KeyError, ValueError, TypeError) as why:
        raise ValueError(
            f"{_path(machine)} is not a calibration ({why}): remove it or run python -m trnpy calibrate"
        ) from why


def save(rates: HostRates) -> Path:
    """Write ``rates`` so that a reader sees the old file or the new one, never half of one."""
    path = _path(rates.machine)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.stem)
    try:
        with os.fdopen(handle, "w") as file:
            json.dump(asdict(rates), file, indent=1)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    current_rates.cache_clear()
    return path


def _workloads() -> Iterator[tuple[str, int, float, Callable[[], Any]]]:
    """(kind, n, useful flops, one call) in ascending cost."""
    import scipy.linalg

    for n in (32, 128, 512, 1024):
        g = np.random.default_rng(n).standard_normal((n, n))
        spd = g @ g.T + n * np.eye(n)
        yield "matmul", n, 2.0 * n**3, functools.partial(np.matmul, g, g)
        yield "cholesky", n, n**3 / 3, functools.partial(scipy.linalg.cholesky, spd, lower=True)
        yield "solve", n, 8 / 3 * n**3, functools.partial(scipy.linalg.solve, g, spd, assume_a="gen")
        yield "eigh", n, 9.0 * n**3, functools.partial(scipy.linalg.eigh, spd)
        yield "eigvalsh", n, 4 / 3 * n**3, functools.partial(scipy.linalg.eigvalsh, spd)
        if n <= 512:  # the loop is slow and its rate flat
            whole = g.astype(np.int64)
            yield "integer", n, 2.0 * n**3, functools.partial(np.matmul, whole, whole)
            yield "einsum", n, 2.0 * n**3, functools.partial(np.einsum, "ik,jk->ij", g, g)


def _fastest(call: Callable[[], Any], budget_s: float) -> float:
    best, spent = math.inf, 0.0
    for _ in range(REPEATS):
        start = time.perf_counter()
        call()
        elapsed = time.perf_counter() - start
        best, spent = min(best, elapsed), spent + elapsed
        if spent > budget_s:
            break
    return best


def calibrate(progress: Callable[[str, float], None] = lambda what, fraction: None) -> HostRates:
    """Measure this host within BUDGET_S seconds; ``progress(what, fraction done)`` is told before each step."""
    measured: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
    work = list(_workloads())
    total = sum(flops for _, _, flops, _ in work)
    start, done = time.perf_counter(), 0.0
    for kind, n, flops, call in work:
        progress(f"{kind} n={n}", done / total)
        remaining = BUDGET_S - (time.perf_counter() - start)
        if remaining > 0 or not measured[kind]:
            measured[kind].append((float(n), flops / _fastest(call, remaining / 4)))
        done += flops
    source = np.ones(2**24)
    progress("copy 128 MiB", 1.0)
    copy_s = _fastest(source.copy, 1.0)
    curves = {kind: tuple(points) for kind, points in measured.items()}
    return HostRates(curves, 2 * source.nbytes / copy_s, True, machine_id())
