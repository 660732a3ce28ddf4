"""How fast this host is: measured by ``python -m trnpy calibrate``, stored for the machine and library versions."""

from __future__ import annotations

import functools
import importlib.util
import math
import operator
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trnpy._base import conventions, store

Curve = tuple[tuple[float, float], ...]  # (size n, useful flops per second at n), n ascending

# Flops of functions of (n, n) over n^3, as SciPy computes them: Golub & Van Loan, 4th ed.;
# Higham, Functions of Matrices, 2008, sec. 6.2 and 11.5.
FLOPS: Mapping[str, float] = {
    "cholesky": 1 / 3, "qr": 8 / 3, "eigh": 9, "eigvalsh": 4 / 3, "inv": 2, "solve": 8 / 3, "svd": 22, "svdvals": 8 / 3,
    "pinv": 22, "pinvh": 11, "lstsq": 22, "sqrtm": 28, "logm": 75, "fractional_matrix_power": 75, "expm": 20,
}  # fmt: skip

# Microseconds of one matrix of a stack at n = 4, 16 and 64: SciPy's loop, and NumPy's gufuncs that give the same.
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


def _stack_curve(name: str, microseconds: tuple[float, ...]) -> Curve:
    return tuple((float(n), 1e6 * FLOPS[name] * n**3 / us) for n, us in zip(STACK_SIZES, microseconds, strict=True))


BUDGET_S = 45.0  # of measuring, so that a calibration takes less than a minute
REPEATS = 3  # the fastest counts: other load can only make a measurement slower

# What a few cores of a 2024 server do (docs/baselines.md#machines: one and two threads of an EPYC); marked
# "uncalibrated" wherever they are used.
DEFAULT_CURVES: Mapping[str, Curve] = {
    "matmul": ((32, 1e10), (128, 3e10), (512, 8e10), (2048, 1e11)),
    "integer": ((32, 4.5e9), (64, 4e9), (128, 2.3e9), (512, 9e8)),
    "einsum": ((32, 2e9), (512, 5e9)),
    "eigh": ((32, 2.5e9), (128, 1.1e10), (512, 3e10), (2048, 4.5e10)),
    "eigvalsh": ((32, 5e8), (128, 2e9), (512, 6e9), (2048, 1.2e10)),
    "cholesky": ((32, 1e9), (128, 6e9), (512, 2.5e10), (2048, 6e10)),
    "solve": ((32, 1e9), (128, 6e9), (512, 2.5e10), (2048, 6e10)),
    "lu": ((32, 1e9), (128, 5e9), (512, 2e10), (2048, 5e10)),
    "inv": ((32, 1e9), (128, 5e9), (512, 2e10), (2048, 5e10)),
    "trsm": ((32, 2e9), (128, 8e9), (512, 3e10), (2048, 7e10)),
    "qr": ((32, 1e9), (128, 4e9), (512, 1.5e10), (2048, 3.5e10)),
    "svd": ((32, 5e9), (128, 2.1e10), (512, 4e10), (2048, 5e10)),
    "svdvals": ((32, 1.3e9), (128, 6e9), (512, 1e10), (2048, 1.2e10)),
    "expm": ((32, 1.2e10), (128, 3e10), (512, 5e10), (2048, 6e10)),
    "eigh evd": ((32, 3.3e9), (128, 1.4e10), (512, 3.9e10), (2048, 5.8e10)),
    "sqrtm": ((32, 6e9), (64, 9e9), (256, 3.5e10)),
    "logm": ((4, 6.4e6), (32, 2e9), (64, 5e9), (256, 3e10)),
    "fractional_matrix_power": ((4, 6.4e6), (32, 2e9), (64, 5e9), (256, 3e10)),
    "csr": ((1, 5e9), (16, 7e9)),  # a sparse matrix times n columns; all other formats, too
    "bsr": ((1, 5e9), (16, 5e9)),
    "sparse sparse": ((1, 4e8),),
    **{f"stacked {name}": _stack_curve(name, loop) for name, (loop, _) in STACK_US.items()},
    **{f"gufunc {name}": _stack_curve(name, gufunc) for name, (_, gufunc) in STACK_US.items()},
}
KINDS = tuple(DEFAULT_CURVES)
DEFAULT_COPY = 1e10  # bytes per second: a third of what was measured there on an idle machine, to be cautious
SINGLE_SPEEDUP = 2.0  # of float32 over float64: twice the SIMD lanes


@dataclass(frozen=True, slots=True, eq=False)  # compared by identity: caches of decisions use it as a key
class HostRates:
    """Useful operations per second of the host for each kind of work in float64, and its memory bandwidth."""

    curves: Mapping[str, Curve]
    copy_bytes_per_s: float
    calibrated: bool
    machine: str  # the processor and versions that were measured

    def seconds(self, kind: str, n: float, flops: float, dtype: np.dtype, moved_bytes: float = 0.0) -> float:
        """Predicted host seconds of ``flops`` real operations of ``kind`` at characteristic size ``n``."""
        curve = self.curves[kind]
        rate = interpolate(curve, max(n, 1.0)) * min(n / curve[0][0], 1.0)  # below the least size in proportion
        if dtype.char in "fF":
            rate *= SINGLE_SPEEDUP
        return max(flops / rate, moved_bytes / self.copy_bytes_per_s)


def interpolate(curve: Curve, n: float) -> float:
    """The rate at size ``n``: linear in log n and log rate, constant outside the measured sizes."""
    sizes, rates = zip(*curve, strict=True)
    return float(math.exp(np.interp(math.log(n), np.log(sizes), np.log(rates))))


def machine_id() -> str:
    """The processor, threads and library versions for which a calibration is valid."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []  # not Linux: use the platform's name for the processor
    named = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    cpu = next(named, "") or _processor()
    threads = os.environ.get("OPENBLAS_NUM_THREADS") or os.environ.get("OMP_NUM_THREADS") or os.cpu_count()
    return f"{cpu}, {threads} threads, numpy {np.__version__}, scipy {_scipy_version()}"


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

    return platform.processor() or platform.machine()  # the first runs a program: 60 ms


def path(machine: str) -> Path:
    """The file with the calibration of ``machine``."""
    import hashlib

    digest = hashlib.sha256(machine.encode()).hexdigest()[:16]
    return store.folder() / f"calibration-{digest}.json"


def stored(machine: str) -> store.Stored[HostRates]:
    """The stored calibration of ``machine``."""

    def parse(content: Any) -> HostRates:
        curves = {kind: _curve(content["curves"][kind]) for kind in KINDS}
        return HostRates(curves, _rate(content["copy_bytes_per_s"]), True, machine)

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
    """The stored calibration of this machine, else the defaults, marked as uncalibrated."""
    machine = machine_id()
    return stored(machine).content or HostRates(DEFAULT_CURVES, DEFAULT_COPY, False, machine)


def save(rates: HostRates) -> Path:
    """Store ``rates`` for this machine."""
    content = {"curves": rates.curves, "copy_bytes_per_s": rates.copy_bytes_per_s}
    kept = store.write(path(rates.machine), content, rates.machine)
    current_rates.cache_clear()
    return kept


def _workloads() -> Iterator[tuple[str, int, float, Callable[[], Any]]]:
    """(kind, n, useful flops, one call) in ascending cost."""
    import scipy.linalg

    for n, count in zip(STACK_SIZES, (200, 30, 6), strict=True):
        for name, loop, gufunc in _stack_calls(n, count):
            yield f"stacked {name}", n, count * FLOPS[name] * n**3, loop
            yield f"gufunc {name}", n, count * FLOPS[name] * n**3, gufunc
    for n in (4, 32, 64, 256):
        g = np.random.default_rng(n).standard_normal((n, n))
        spd = g @ g.T + n * np.eye(n)
        yield "sqrtm", n, FLOPS["sqrtm"] * n**3, functools.partial(scipy.linalg.sqrtm, spd)
        yield "logm", n, FLOPS["logm"] * n**3, functools.partial(scipy.linalg.logm, spd)
        power = functools.partial(scipy.linalg.fractional_matrix_power, spd, 0.3)
        yield "fractional_matrix_power", n, FLOPS["fractional_matrix_power"] * n**3, power
    yield from _sparse_workloads()
    for n in (32, 128, 512, 1024):
        g = np.random.default_rng(n).standard_normal((n, n))
        spd = g @ g.T + n * np.eye(n)
        yield "matmul", n, 2.0 * n**3, functools.partial(np.matmul, g, g)
        yield "cholesky", n, n**3 / 3, functools.partial(scipy.linalg.cholesky, spd, lower=True)
        yield "solve", n, 8 / 3 * n**3, functools.partial(scipy.linalg.solve, g, spd, assume_a="gen")
        yield "lu", n, 2 / 3 * n**3, functools.partial(scipy.linalg.lu_factor, g)
        yield "inv", n, 2.0 * n**3, functools.partial(scipy.linalg.inv, g)
        yield "trsm", n, 1.0 * n**3, functools.partial(scipy.linalg.solve_triangular, spd, g)
        yield "qr", n, 8 / 3 * n**3, functools.partial(scipy.linalg.qr, g)
        yield "eigh", n, 9.0 * n**3, functools.partial(scipy.linalg.eigh, spd)
        yield "eigh evd", n, 9.0 * n**3, functools.partial(scipy.linalg.eigh, spd, driver="evd")
        yield "eigvalsh", n, 4 / 3 * n**3, functools.partial(scipy.linalg.eigvalsh, spd)
        for name, operand in (("svd", g), ("svdvals", g), ("expm", g / np.sqrt(n))):
            yield name, n, FLOPS[name] * n**3, functools.partial(getattr(scipy.linalg, name), operand)
        if n <= 512:  # the loop is slow, and its rate does not depend on n
            whole = g.astype(np.int64)
            yield "integer", n, 2.0 * n**3, functools.partial(np.matmul, whole, whole)
            yield "einsum", n, 2.0 * n**3, functools.partial(np.einsum, "ik,jk->ij", g, g)


def _sparse_workloads() -> Iterator[tuple[str, int, float, Callable[[], Any]]]:
    """Products of SciPy's sparse matrices, 64 elements a row, with 1 and 16 columns and with themselves."""
    import scipy.sparse

    block, rows = 16, 4096
    pattern: Any = scipy.sparse.random_array((rows // block, rows // block), density=4 / (rows // block), rng=0)
    bsr = scipy.sparse.kron(pattern, np.ones((block, block)), format="bsr")
    csr: Any = scipy.sparse.random_array((rows, rows), density=64 / rows, rng=0, format="csr")
    for n in (1, 16):
        x = np.ones((rows, n))
        yield "csr", n, 2.0 * csr.nnz * n, functools.partial(operator.matmul, csr, x)
        yield "bsr", n, 2.0 * bsr.nnz * n, functools.partial(operator.matmul, bsr, x)
    yield "sparse sparse", 1, 2.0 * csr.nnz * csr.nnz / rows, functools.partial(operator.matmul, csr, csr)


def _stack_calls(n: int, count: int) -> Iterator[tuple[str, Callable[[], Any], Callable[[], Any]]]:
    """(name, SciPy's loop, NumPy's gufunc with the same result) for a stack (count, n, n), where SciPy takes one."""
    import scipy.linalg

    g = np.random.default_rng(n).standard_normal((count, n, n))
    spd = g @ g.swapaxes(1, 2) + n * np.eye(n)
    gufuncs: dict[str, Callable[[], Any]] = {
        "cholesky": lambda: np.linalg.cholesky(spd, upper=True),
        "qr": lambda: np.linalg.qr(spd, "complete"),
        "eigh": lambda: np.linalg.eigh(spd),
        "eigvalsh": lambda: np.linalg.eigvalsh(spd),
        "inv": lambda: np.linalg.inv(spd),
        "svd": lambda: np.linalg.svd(spd),
        "svdvals": lambda: np.linalg.svd(spd, compute_uv=False),
        "pinv": lambda: np.linalg.pinv(spd),
        "pinvh": lambda: np.linalg.pinv(spd, hermitian=True),
        "lstsq": lambda: np.linalg.pinv(spd),
    }
    for name, gufunc in gufuncs.items():
        function = getattr(scipy.linalg, name)
        operands = (spd, g[:, :, :1]) if name == "lstsq" else (spd,)
        try:
            conventions.form(function, operands, {})
        except conventions.Refused:  # SciPy 1.15 takes no stacks in most functions
            continue
        yield name, functools.partial(function, *operands), gufunc


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
    """Measure how fast this host computes, in less than a minute.

    Parameters
    ----------
    progress : callable, optional
        Called as ``progress(what, fraction)`` before each measurement, with the fraction of work done.

    Returns
    -------
    HostRates
        Operations per second by kind of work and size, and bytes per second of copies. ``python -m trnpy calibrate``
        also stores them for later decisions.

    Examples
    --------
    >>> import trnpy
    >>> trnpy.calibrate().calibrated
    True
    """
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
    # Stacks that the installed SciPy does not take are not measured, and their curves decide nothing.
    curves = {kind: tuple(points) or DEFAULT_CURVES[kind] for kind, points in measured.items()}
    return HostRates(curves, 2 * source.nbytes / copy_s, True, machine_id())
