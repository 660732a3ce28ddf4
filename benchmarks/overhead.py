"""What trnpy costs a small call: microseconds of processor time over the original, each limit of issue "The call path" beside it."""

from __future__ import annotations

import time

import numpy as np
import scipy.linalg

import trnpy
import trnpy.linalg
from benchmarks._measure import gate, header, interleaved
from trnpy import _report

LIMITS_US = {"trnpy": 1.0, "inactive patch": 1.0, "active patch": 3.0, "active patch, recording": 3.0}
EINSUM, EIGH = np.einsum, scipy.linalg.eigh
MATMUL = np.matmul


def main(argv: list[str]) -> int:
    gate("tests/test_dispatch.py", "tests/test_patch.py")
    header("overhead of a 4 x 4 call")
    a = np.random.default_rng(0).standard_normal((4, 4))
    a = a + a.T
    originals = {"matmul": lambda: MATMUL(a, a), "einsum": lambda: EINSUM("ij,jk->ik", a, a), "eigh": lambda: EIGH(a)}
    ours = {
        "matmul": lambda: trnpy.matmul(a, a),
        "einsum": lambda: trnpy.einsum("ij,jk->ik", a, a),
        "eigh": lambda: trnpy.linalg.eigh(a),
    }
    hooks = {
        "matmul": lambda: np.matmul(a, a),
        "einsum": lambda: np.einsum("ij,jk->ik", a, a),
        "eigh": lambda: scipy.linalg.eigh(a),
    }
    worst = 0
    print(f"{'':26}" + "".join(f"{name:>22}" for name in originals) + f"{'limit':>10}")
    for setting, limit in LIMITS_US.items():
        extra = []
        for name, original in originals.items():
            measured = _measure(setting, original, ours[name] if setting == "trnpy" else hooks[name])
            extra.append((measured["ours"] - measured["original"]) * 1e6)
        worst += sum(e > limit for e in extra)
        print(f"{setting:26}" + "".join(f"{e:+19.2f} us" for e in extra) + f"{limit:7.1f} us")
    print("\nall within their limits" if not worst else f"\n{worst} over their limit")
    return int(bool(worst))


def _measure(setting: str, original, ours):
    calls = {"original": original, "ours": ours}
    if setting == "trnpy":
        return interleaved(calls, clock=time.thread_time)
    if setting == "inactive patch":  # installed by another context, off in this one
        import contextvars

        with trnpy.patched():
            return contextvars.Context().run(interleaved, calls, clock=time.thread_time)
    if setting == "active patch":
        with trnpy.patched():
            return interleaved(calls, clock=time.thread_time)
    with trnpy.patched(), _report.profile():
        return interleaved(calls, clock=time.thread_time)
