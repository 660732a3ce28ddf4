"""scipy.linalg through trnpy without a device against SciPy: matrices, stacks and peak memory, gains and losses.

Names with a dot compare NumPy's or BLAS's own function: numpy.inv of a definite matrix, blas.dgemm of A A^T.

python -m benchmarks linalg [--largest N] [--rows NAME ...]
"""

from __future__ import annotations

import argparse
import ctypes
import os
import pathlib
import resource
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg

import trnpy
import trnpy.linalg
from benchmarks._measure import gate, header, measured
from trnpy._call.dispatch import accelerated
from trnpy._call.rows import rows as rows_of

NUMPY_OPS = rows_of("numpy.linalg")

LIMIT = 1.02  # trnpy over SciPy, for calls that take FROM_S or longer
FROM_S = 100e-6
LONGEST_S = 4.0  # cases of which SciPy's call takes longer are named and left out
SIZES = (4, 16, 64, 128, 256, 512, 1024, 2048)
STACKS = ((1000, 4), (20000, 4), (60, 4), (500, 16), (50, 64), (10, 128))
MANY = 1000  # matrices in a stack: SciPy's loop over their logarithms takes a second
MEMORY = 1.5  # of SciPy's peak
MEASURED_BYTES = 2**21  # of an operand: smaller ones do not show in the peak of the process
STARTS = np.ones((500, 500))  # OpenBLAS uses all its threads for a product of this size
# The least ratio required of SciPy's time to trnpy's time.
WANTED = {
    ("cholesky", "1000 x 4 x 4"): 20.0, ("qr", "1000 x 4 x 4"): 12.0, ("eigh", "1000 x 4 x 4"): 6.0,
    ("inv", "1000 x 4 x 4"): 2.5, **{("eigh", str(n)): 1.15 for n in SIZES if n >= 200},
    **{("logm", str(n)): 6.0 for n in SIZES if n >= 64}, **{("sqrtm", str(n)): 2.5 for n in SIZES if n >= 128},
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    name: str
    what: str  # "512" or "1000 x 4 x 4"
    args: tuple[Any, ...]
    stack: bool = False

    def call(self, ours: bool) -> Callable[[], object]:
        """The call through trnpy, or of the original."""
        name = self.name.rpartition(".")[2]
        if self.name.startswith("numpy."):
            function = NUMPY[name] if ours else getattr(np.linalg, name)
        elif self.name.startswith("blas."):
            function = getattr(trnpy.linalg.blas if ours else scipy.linalg.blas, name)
        else:
            function = getattr(trnpy.linalg if ours else scipy.linalg, name)
        return lambda: function(*self.args)


NUMPY = {op.name.rpartition(".")[2]: accelerated(op) for op in NUMPY_OPS}


GENERAL = ("qr", "inv", "svd", "svdvals", "pinv", "solve", "lstsq", "lu", "lu_factor", "det")
POSITIVE = ("cholesky", "eigh", "eigvalsh", "pinvh")
FUNCTIONS = ("sqrtm", "logm", "fractional_matrix_power")


def _cases(a: np.ndarray, positive: np.ndarray, what: str, stack: bool) -> Iterator[Case]:
    b = a[..., :2].copy()
    for name in GENERAL:
        yield Case(name, what, (a, b) if name in ("solve", "lstsq") else (a,), stack)
    if not stack:
        yield Case("solve_triangular", what, (positive, b))
        yield Case("cho_factor", what, (positive,))
        yield Case("cho_solve", what, (scipy.linalg.cho_factor(positive), b))
        yield Case("lu_solve", what, (scipy.linalg.lu_factor(a), b))
        yield Case("lstsq", f"{4 * len(a)} x {len(a)}", (np.vstack([a, positive, a.T, a]), a[0].repeat(4)))
        for name, operand in (("inv", positive), ("inv", a), ("det", a), ("solve", a), ("qr", a)):
            yield Case(f"numpy.{name}", what, (operand, b) if name == "solve" else (operand,))
        yield Case("blas.dgemm", what, (1.0, a, a, 0.0, None, 0, 1))
        yield Case("blas.dsyrk", what, (1.0, a))
    # Generic spectra: random symmetric matrices of NumPy; positive definite ones where the function needs them.
    symmetric = (a + a.swapaxes(-1, -2)) / 2
    for name in POSITIVE:
        yield Case(name, what, (positive if name == "cholesky" else symmetric,), stack)
    for name in FUNCTIONS if len(a) <= MANY or not stack else ():
        if not stack or name != "sqrtm":  # SciPy's sqrtm loops in C over stacks, so there is no route
            unit = positive / (5 * a.shape[-1])  # norm near one, for which SciPy's logm does not warn
            power = (0.3,) if name == "fractional_matrix_power" else ()
            yield Case(name, what, (unit, *power), stack)
            if not stack:  # its route refuses this after a look, and SciPy runs
                yield Case(name, f"{what} ill", (_ill_conditioned(len(a), 1), *power))
                yield Case(name, f"{what} ill mixed", (_ill_conditioned(len(a), len(a)), *power))


def _ill_conditioned(n: int, reflections: int) -> np.ndarray:
    """Positive definite (n, n), condition 1e12, dense: only its last rows show the condition after one reflection."""
    v = np.random.default_rng(n).standard_normal((n, reflections))
    q = np.linalg.qr(v, "complete").Q
    a = (q * np.geomspace(1, 1e-12, n)) @ q.T
    return np.asarray((a + a.T) / 2)


def cases(largest: int) -> Iterator[Case]:
    for n in SIZES:
        if n <= largest:
            a = np.random.default_rng(n).standard_normal((n, n))
            yield from _cases(a, a @ a.T + n * np.eye(n), str(n), False)
    for count, n in STACKS:
        a = np.random.default_rng(n).standard_normal((count, n, n))
        yield from _cases(a, a @ a.swapaxes(1, 2) + n * np.eye(n), f"{count} x {n} x {n}", True)


def peak(call: Callable[[], object]) -> int:
    """Most bytes that one call adds to its process, including the memory of C and LAPACK."""
    # Return freed memory to the system: memory that the second call reuses would not count.
    ctypes.CDLL(None).malloc_trim(0)

    def highest() -> str:
        resident = int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        call()
        return str(max(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - resident, 1))

    return int(in_child(highest))


def route(call: Callable[[], object]) -> str:
    """The host route of a call through trnpy, "" if it has none."""

    def traced() -> str:
        with warnings.catch_warnings(), trnpy.trace() as log:
            warnings.simplefilter("ignore")
            call()
        return log[0].route

    return in_child(traced)  # a process that has recorded calls checks for records at each later call


def in_child(work: Callable[[], str]) -> str:
    """What ``work`` returns in a forked copy of this process."""
    reader, writer = os.pipe()
    child = os.fork()
    # The fork stops OpenBLAS's threads, and a product starts them again. SciPy's dgetrf would wait for them for ever.
    scipy.linalg.blas.dgemm(1.0, STARTS, STARTS)
    if child == 0:
        try:
            os.write(writer, work().encode())
            os._exit(0)
        finally:
            os._exit(1)  # an exception of work must not reach the callers of this process
    os.close(writer)
    with os.fdopen(reader) as result:
        found = result.read()
    if os.waitpid(child, 0)[1]:
        sys.exit("a copy of this process failed")
    return found


def _bytes(case: Case) -> int:
    return max(a.nbytes for a in case.args if isinstance(a, np.ndarray))


def rows(largest: int, names: list[str]) -> tuple[int, int, int]:
    """Print every case; returns how many are over LIMIT, below the required gain, and over MEMORY."""
    over = short = hungry = 0
    print(f"{'row':24}{'matrices':>16}{'SciPy':>12}{'trnpy':>12}{'gain':>8}  route; limit or wanted")
    for case in cases(largest):
        if names and case.name not in names:
            continue
        ours, scipys = case.call(True), case.call(False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # both give the same warnings, and only times are compared
            start = time.perf_counter()
            ours()
            if (first_s := time.perf_counter() - start) > LONGEST_S:
                print(f"{case.name:24}{case.what:>16}  left out: {first_s:.0f} s a call")
                continue
            seconds, ratio = measured(scipys, ours, LIMIT)
        taken = route(ours)
        gain = 1 / ratio
        wanted = WANTED.get((case.name, case.what), 0.0)
        remarks = [taken]
        if wanted:
            remarks.append(f"wanted {wanted:g}" + (": MISSED" if gain < wanted else ""))
            short += gain < wanted
        if seconds >= FROM_S and ratio > LIMIT:
            remarks.append(f"OVER {LIMIT}")
            over += 1
        if taken and _bytes(case) >= MEASURED_BYTES:
            bytes_ratio = peak(ours) / peak(scipys)
            if bytes_ratio > 1.05:
                remarks.append(f"{bytes_ratio:.2f} times the memory" + (": OVER" if bytes_ratio > MEMORY else ""))
            hungry += bytes_ratio > MEMORY
        print(
            f"{case.name:24}{case.what:>16}{seconds * 1e6:9.0f} us{seconds * ratio * 1e6:9.0f} us{gain:8.2f}  "
            + "; ".join(filter(None, remarks)),
            flush=True,
        )
    return over, short, hungry


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks linalg")
    parser.add_argument("--largest", type=int, default=max(SIZES), help="of single matrices")
    parser.add_argument("--rows", nargs="*", default=[], help="only these functions")
    options = parser.parse_args(argv)
    gate("tests/_host/test_stack_routes.py")
    header("trnpy.linalg on the host over SciPy, float64")
    over, short, hungry = rows(options.largest, options.rows)
    print(
        f"\n{over} ratios over {LIMIT}; {short} gains below those wanted; {hungry} peaks over {MEMORY} times SciPy's\n"
    )
    return int(bool(over + short + hungry))
