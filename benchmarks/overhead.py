"""What trnpy adds to a small call, in microseconds of processor time, with the limit of each case."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import time
from collections.abc import Callable, Iterator

import numpy as np
import scipy.linalg
import scipy.linalg.blas

import trnpy
import trnpy.chem
import trnpy.linalg
from benchmarks._measure import gate, header, interleaved

A = np.array([[4.0, 1, 0, 0], [1, 3, 1, 0], [0, 1, 2, 1], [0, 0, 1, 1]])

ORIGINALS = {  # default arguments, because globals of this module would be patched
    "matmul": lambda f=np.matmul: f(A, A),
    "einsum": lambda f=np.einsum: f("ij,jk->ik", A, A),
    "eigh": lambda f=scipy.linalg.eigh: f(A),
    "inv": lambda f=scipy.linalg.inv: f(A),
    "qr": lambda f=scipy.linalg.qr: f(A),
    "dgemm": lambda f=scipy.linalg.blas.dgemm: f(1.0, A, A),
}
NAMESPACE = {
    "matmul": lambda: trnpy.matmul(A, A),
    "einsum": lambda: trnpy.einsum("ij,jk->ik", A, A),
    "eigh": lambda: trnpy.linalg.eigh(A),
    "inv": lambda: trnpy.linalg.inv(A),
    "qr": lambda: trnpy.linalg.qr(A),
    "dgemm": lambda: trnpy.linalg.blas.dgemm(1.0, A, A),
}
PATCHED = {
    "matmul": lambda: np.matmul(A, A),
    "einsum": lambda: np.einsum("ij,jk->ik", A, A),
    "eigh": lambda: scipy.linalg.eigh(A),
}
LOOKED_AT = ("qr", "inv", "eigh", "sqrtm", "lstsq", "cholesky")
LOOK = 0.6  # microseconds, for a look at a call that turns out to have no other route
Run = Callable[[dict[str, Callable[[], object]]], dict[str, float]]


def measure(calls: dict[str, Callable[[], object]]) -> dict[str, float]:
    return interleaved(calls, rounds=101, clock=time.thread_time)


@contextlib.contextmanager
def elsewhere() -> Iterator[Run]:
    """A patch installed by another context: its hooks are in place, but inactive in this one."""
    with trnpy.patched():
        yield lambda calls: contextvars.Context().run(measure, calls)


@contextlib.contextmanager
def active(record: bool = False, **policy: str) -> Iterator[Run]:
    with trnpy.chem.patch_pyscf(), trnpy.policy(**policy), trnpy.profile() if record else contextlib.nullcontext():
        yield measure


SETTINGS = [
    ("trnpy's namespace", 1.0, lambda: contextlib.nullcontext(measure), NAMESPACE),
    ("patch, not active here", 1.0, elsewhere, PATCHED),
    ("active patch", 3.0, active, PATCHED),
    ("active, null device", 3.0, lambda: active(device="null"), PATCHED),
    ("active, recording", 3.0, lambda: active(record=True), PATCHED),
]


def main(argv: list[str]) -> int:
    gate("tests/_call/test_dispatch.py", "tests/_patch/test_patch.py", "tests/_patch/test_hook.py", "tests/chem")
    header("overhead of a 4 x 4 call, microseconds")
    print(f"{'':26}" + "".join(f"{name:>10}" for name in ORIGINALS) + f"{'limit':>10}")
    over = 0
    for setting, limit, enter, calls in SETTINGS:
        with enter() as run:
            extra = {}
            for name, call in calls.items():
                seconds = run({"original": ORIGINALS[name], "ours": call})
                extra[name] = (seconds["ours"] - seconds["original"]) * 1e6
        over += sum(e > limit for e in extra.values())
        cells = "".join(f"{extra[name]:+10.2f}" if name in extra else f"{'':10}" for name in ORIGINALS)
        print(f"{setting:26}{cells}{limit:10.1f}")
    looks = {n: functools.partial(getattr(trnpy.linalg, n).__trnpy_op__.look, (A, A), {}) for n in LOOKED_AT}
    for name, seconds in measure(looks).items():
        over += seconds * 1e6 > LOOK
        print(f"a look at {name:16}{seconds * 1e6:10.2f}{'':{10 * (len(ORIGINALS) - 1)}}{LOOK:10.1f}")
    print("\nall within their limits" if not over else f"\n{over} over their limit")
    return int(bool(over))
