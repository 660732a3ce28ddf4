"""``python -m trnpy calibrate``: how fast this host computes, measured in turns until two turns agree."""

from __future__ import annotations

import functools
import math
import operator
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from trnpy._base import conventions
from trnpy._cli import step_workloads
from trnpy._settings import host_steps
from trnpy._settings.host_rates import DEFAULT_CURVES, FLOPS, KINDS, LOOP_US, STACK_SIZES, HostRates, machine_id

BUDGET_S = 45.0  # seconds of measuring, so that a calibration takes less than a minute
REPEATS = 3  # calls of each workload; the fastest counts, because other load can only slow a measurement
LEAST_S = 2e-3  # a shorter call is repeated for this many seconds
TURNS = 4  # at most; they are seconds apart, so that a burst of other work or of the clock affects only one
AGREEMENT = 1.1  # a workload is settled if the fastest calls of two turns are within this factor
UNSETTLED = 0.1  # if a larger share of the workloads is not settled, the remark mentions it
CACHED = 3 << 20  # float64 numbers that replace others in the caches, 24 MiB
BUSY = 0.5  # if the load exceeds this share of the processors, the remark mentions it


def _workloads() -> Iterator[tuple[str, int, float, Callable[[], Any]]]:
    """(kind, n, useful flops, one call) in ascending cost."""
    import scipy.linalg

    for n, count in zip(STACK_SIZES, (200, 30, 6), strict=True):
        for name, loop, gufunc in _stack_calls(n, count):
            yield f"stacked {name}", n, count * FLOPS[name] * n**3, loop
            if gufunc is not None:
                yield f"gufunc {name}", n, count * FLOPS[name] * n**3, gufunc
    for n in (4, 32, 64, 256):
        g = np.random.default_rng(n).standard_normal((n, n))
        spd = g @ g.T + n * np.eye(n)
        yield "sqrtm", n, FLOPS["sqrtm"] * n**3, functools.partial(scipy.linalg.sqrtm, spd)
        yield "logm", n, FLOPS["logm"] * n**3, functools.partial(scipy.linalg.logm, spd)
        power = functools.partial(scipy.linalg.fractional_matrix_power, spd, 0.3)
        yield "fractional_matrix_power", n, FLOPS["fractional_matrix_power"] * n**3, power
    yield from _sparse_workloads()
    yield from steps(host_steps.SIZES)
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


def steps(sizes: tuple[int, ...]) -> Iterator[tuple[str, int, float, Callable[[], Any]]]:
    """(name, size, amount, one call) of every step of the host at ``sizes``, as a dry run counts it."""
    seen = set()
    for n in sizes:
        for name, workload in step_workloads.WORKLOADS.items():
            function, arguments = workload(n)
            work = step_workloads.counted((function, arguments))
            (size, amount) = next((key[1], amount) for key, amount in work.items() if key[0] == name)
            if (name, size) not in seen:  # some steps have one size only
                seen.add((name, size))
                yield name, size, amount, functools.partial(function, *arguments)


def _sparse_workloads() -> Iterator[tuple[str, int, float, Callable[[], Any]]]:
    """Products of SciPy's sparse matrices (64 elements per row) with 1 and 16 columns, and a sparse-sparse product."""
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


def _stack_calls(n: int, count: int) -> Iterator[tuple[str, Callable[[], Any], Callable[[], Any] | None]]:
    """(name, SciPy's loop, NumPy's gufunc of the same result or None) for stacks (count, n, n) that SciPy accepts."""
    import scipy.linalg

    g = np.random.default_rng(n).standard_normal((count, n, n))
    spd = g @ g.swapaxes(1, 2) + n * np.eye(n)
    gufuncs: dict[str, Callable[[], Any] | None] = {
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
        **dict.fromkeys(LOOP_US),
    }
    for name, gufunc in gufuncs.items():
        function = getattr(scipy.linalg, name)
        operands = (spd, g[:, :, :1]) if name in ("lstsq", "solve") else (spd,)
        try:
            conventions.form(function, operands, {})
        except conventions.Refused:  # most functions of SciPy 1.15 accept no stacks
            continue
        yield name, functools.partial(function, *operands), gufunc


def uncached(call: Callable[[], Any], clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds of one call whose operands are not in a cache, as after a transfer: the median of REPEATS.

    A first call is not measured: afterwards, the process has the memory that the results need.
    """
    others, found = np.ones(CACHED), []
    call()
    for _ in range(REPEATS):
        others += 1.0
        start = clock()
        call()
        found.append(clock() - start)
    return sorted(found)[REPEATS // 2]


def _fastest(call: Callable[[], Any], budget_s: float) -> float:
    best, spent, repeats = math.inf, 0.0, 0
    while repeats < REPEATS or spent < LEAST_S:
        start = time.perf_counter()
        call()
        elapsed = time.perf_counter() - start
        best, spent, repeats = min(best, elapsed), spent + elapsed, repeats + 1
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
        Operations per second by kind of work and size, and bytes per second of copies. ``remark`` names disturbances
        of the measurement, if any. ``python -m trnpy calibrate`` also stores the rates for later decisions.

    Examples
    --------
    >>> import trnpy
    >>> trnpy.calibrate().calibrated
    True
    """
    disturbed, work = _load(), list(_workloads())
    best_s, settled = [math.inf] * len(work), [False] * len(work)
    total = sum(flops for _, _, flops, _ in work)
    source, copy_s = np.ones(2**24), math.inf
    start = time.perf_counter()
    for turn in range(TURNS):
        done = 0.0
        for i, (kind, n, flops, call) in enumerate(work):
            remaining = BUDGET_S - (time.perf_counter() - start)
            if not settled[i] and (remaining > 0 or not turn):
                progress(f"{kind} n={n}", min((turn * total + done) / (2 * total), 1.0))
                step = kind in host_steps.STEPS
                seconds = uncached(call) if step else _fastest(call, max(remaining, 0.0) / 4)
                settled[i] = max(seconds, best_s[i]) <= AGREEMENT * min(seconds, best_s[i])
                best_s[i] = min(seconds, best_s[i])
            done += flops
        progress("copy 128 MiB", min((turn + 1) / 2, 1.0))
        copy_s = min(copy_s, _fastest(source.copy, 1.0))
    if settled.count(False) > UNSETTLED * len(work):
        disturbed.append(
            f"{settled.count(False)} of {len(work)} measurements did not repeat within {AGREEMENT - 1:.0%}"
        )
    measured: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
    for (kind, n, flops, _), seconds in zip(work, best_s, strict=True):
        measured[kind].append((float(n), flops / seconds))
    # Stacks that the installed SciPy does not accept are not measured; no decision uses their curves.
    curves = {kind: tuple(points) or DEFAULT_CURVES[kind] for kind, points in measured.items()}
    return HostRates(curves, 2 * source.nbytes / copy_s, True, machine_id(), "; ".join(disturbed))


def _load() -> list[str]:
    """A remark on the load of this host, if it is high."""
    processors = os.cpu_count() or 1
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return [f"the load was {load:.1f} on {processors} processors"] if load > BUSY * processors else []
