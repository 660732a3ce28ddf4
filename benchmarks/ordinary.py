"""Calls of 4 to 200 rows: trnpy's functions, NumPy's and SciPy's under a patch, and recorded ones, over plain ones.

Most programs make calls of these sizes, and few of them have anything to gain. Each turn of a way puts its patch in
place and takes it out again, so that the plain turns run NumPy and SciPy as they are. ``--programs`` measures whole
programs of such calls instead: processor seconds under the runner and under ``patch()``, with and without the fixed
cost of a start and a first call, over those of plain Python. ``patch()`` imports SciPy at its start.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import random
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse

import trnpy
import trnpy.linalg
from benchmarks._measure import gate, header
from benchmarks._processes import FIXED_S, LIMIT, medians

SIZES = 4, 8, 16, 24, 32, 48, 64, 96, 128, 200
EXTRA_S = {"matmul": 0.15e-6, "@": 0.15e-6}  # a loss counts from so many seconds a call on
OTHERS_S = 0.3e-6
ROUNDS, TURN_S, ATTEMPTS, WARM = 15, 1e-3, 4, 40
PATTERNS = "ij,jk->ik", "ij,kj->ik", "ij,ij->ij", "ij,ij->", "ij,j->i", "ii->i", "ij->ji", "i,j->ij"
LINALG = "eigh", "solve", "cholesky", "inv", "svd"
Call = Callable[[Any, Any], object]


def calls() -> Iterator[tuple[str, Call, Call]]:
    """The name of a row, the call of NumPy or SciPy, and that of trnpy, of two matrices; the first is definite."""
    yield "@", lambda a, b: a @ b, trnpy.matmul
    for name in ("matmul", "dot", "tensordot"):
        more = (1,) if name == "tensordot" else ()
        yield name, functools.partial(_numpy, name, more), functools.partial(_ours, getattr(trnpy, name), more)
    for pattern in PATTERNS:
        few = 1 if "," not in pattern else 2
        rows = pattern == "i,j->ij"
        yield (
            f"einsum {pattern}",
            _einsum(pattern, few, rows, lambda: np.einsum),
            _einsum(pattern, few, rows, lambda: trnpy.einsum),
        )
    yield "csr @ vector", _csr_times, _csr_times
    for name in LINALG:
        few = 2 if name == "solve" else 1
        yield name, _linalg(scipy.linalg, name, few), _linalg(trnpy.linalg, name, few)


def _numpy(name: str, more: tuple[int, ...], a: Any, b: Any) -> object:
    return getattr(np, name)(a, b, *more)


def _ours(function: Callable[..., object], more: tuple[int, ...], a: Any, b: Any) -> object:
    return function(a, b, *more)


def _einsum(pattern: str, few: int, rows: bool, function: Callable[[], Callable[..., object]]) -> Call:
    vector = pattern == "ij,j->i"

    def call(a: Any, b: Any) -> object:
        if few == 1:
            return function()(pattern, a)
        return function()(pattern, a[0] if rows else a, b[0] if rows or vector else b)

    return call


@functools.cache
def _csr(n: int) -> tuple[Any, np.ndarray]:
    """Two neighbours of each of 10 n unknowns, as of a differential equation in one dimension."""
    diagonals = [np.ones(10 * n - 1), np.ones(10 * n), np.ones(10 * n - 1)]
    return scipy.sparse.diags_array(diagonals, offsets=[-1, 0, 1], format="csr"), np.ones(10 * n)


def _csr_times(a: Any, b: Any) -> object:
    matrix, vector = _csr(len(a))
    return matrix @ vector


def _linalg(module: Any, name: str, few: int) -> Call:
    return lambda a, b: getattr(module, name)(a, b) if few == 2 else getattr(module, name)(a)


@contextlib.contextmanager
def patched(record: bool) -> Iterator[None]:
    patch = trnpy.patch()
    try:
        with trnpy.profile() if record else contextlib.nullcontext():
            yield
    finally:
        patch.undo()


WAYS: dict[str, Callable[[], Any]] = {
    "plain": contextlib.nullcontext,
    "direct": contextlib.nullcontext,
    "patched": lambda: patched(False),
    "recorded": lambda: patched(True),
}


def measured(theirs: Call, ours: Call, a: Any, b: Any, rounds: int) -> dict[str, float]:
    """Median seconds of a call in each way, in turns of TURN_S."""
    theirs(a, b)
    start = time.thread_time()
    theirs(a, b)
    repeats = max(1, round(TURN_S / max(time.thread_time() - start, 1e-7)))
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    for turn in range(rounds):
        for way in random.Random(turn).sample(list(WAYS), len(WAYS)):
            call = ours if way == "direct" else theirs
            with WAYS[way]():
                for _ in range(min(WARM, 4 * repeats)):
                    call(a, b)
                start = time.thread_time()
                for _ in range(repeats):
                    call(a, b)
                found[way].append((time.thread_time() - start) / repeats)
    return {way: statistics.median(times) for way, times in found.items()}


def lost(name: str, seconds: dict[str, float]) -> list[str]:
    """The ways that are over both limits."""
    extra = EXTRA_S.get(name, OTHERS_S)
    plain = seconds["plain"]
    return [way for way, s in seconds.items() if s > LIMIT * plain and s - plain > extra]


def rows(chosen: str) -> int:
    header("calls of ordinary sizes, over plain ones", "medians of interleaved turns of processor time")
    print(f"{'row':24}{'n':>5}{'plain us':>10}" + "".join(f"{way:>10}" for way in list(WAYS)[1:]))
    losses, count = [], 0
    for dtype in ("float64", "int64"):
        for name, theirs, ours in calls():
            if chosen not in name or (dtype == "int64" and name in (*LINALG, "csr @ vector")):
                continue
            for n in SIZES:
                rng = np.random.default_rng(n)
                b = (rng.standard_normal((n, n)) * 9).astype(dtype)
                a = b if dtype == "int64" else b @ b.T + n * np.eye(n)
                for attempt in range(1, ATTEMPTS + 1):
                    seconds = measured(theirs, ours, a, b, attempt * ROUNDS)
                    over = lost(name, seconds)
                    if not over:
                        break
                count += 1
                losses += [f"{dtype} {name} {n} {way}" for way in over]
                ratios = "".join(f"{seconds[way] / seconds['plain']:10.2f}" for way in list(WAYS)[1:])
                label = name if dtype == "float64" else f"{name} {dtype}"
                said = f"  LOST {', '.join(over)}" if over else ""
                print(f"{label:24}{n:5}{1e6 * seconds['plain']:10.2f}{ratios}{said}")
    print(f"\n{count} rows, {len(losses)} losses" + (": " + "; ".join(losses) if losses else ""))
    return int(bool(losses))


# --- Whole programs ---------------------------------------------------------------------------------------------------

PROGRAMS = {
    "np.dot 32 x 32": "for _ in range(300_000): np.dot(a32, a32)",
    "np.dot 48 x 48": "for _ in range(200_000): np.dot(a48, a48)",
    "einsum ij,jk->ik 30 x 30": "for _ in range(40_000): np.einsum('ij,jk->ik', a30, a30)",
    "einsum ij,ij->ij 150 x 150": "for _ in range(20_000): np.einsum('ij,ij->ij', a150, a150)",
    "a @ a 48 x 48": "for _ in range(200_000): a48 @ a48",
}
SETTING = "import numpy as np\na30, a32, a48, a150 = (np.eye(n) for n in (30, 32, 48, 150))\n"
STARTS = {"runner": (["-m", "trnpy"], ""), "patch": ([], "import trnpy\ntrnpy.patch()\n")}
FEW = 2  # calls of the program that measures the fixed cost


def commands(program: str, folder: str) -> dict[str, list[str]]:
    """The command of each start with the program, and of each with its first calls only."""
    found = {}
    for calls in ("", "few"):
        text = re.sub(r"range\(\w+\)", f"range({FEW})", program) if calls else program
        for start, (options, first) in {"plain": ([], ""), **STARTS}.items():
            path = Path(folder, f"{start}{calls}.py")
            path.write_text(first + SETTING + text + "\n")
            found[start + calls] = [*options, str(path)]
    return found


def programs(rounds: int) -> int:
    header("whole programs, processor seconds over plain ones", f"medians of {rounds} runs in turns")
    print(f"fixed: what the start, the first {FEW} calls and the report add; net: the ratio without it\n")
    print(f"{'program':32}{'plain s':>8}" + "".join(f"{s:>10}{'fixed ms':>10}{'net':>8}" for s in STARTS))
    over = 0
    for name, program in PROGRAMS.items():
        with tempfile.TemporaryDirectory() as folder:
            found = medians(commands(program, folder), folder, rounds)
        cells = ""
        for start in STARTS:
            fixed_s = found[f"{start}few"] - found["plainfew"]
            net = (found[start] - fixed_s) / found["plain"]
            over += net > LIMIT or (start == "runner" and fixed_s > FIXED_S)
            cells += f"{found[start] / found['plain']:10.2f}{1e3 * fixed_s:10.0f}{net:8.3f}"
        print(f"{name:32}{found['plain']:8.2f}{cells}", flush=True)
    print(f"\nall within {LIMIT}" if not over else f"\n{over} above {LIMIT} or {1e3 * FIXED_S:.0f} ms")
    return int(bool(over))


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks ordinary", description=__doc__)
    parser.add_argument("--programs", action="store_true", help="whole programs instead of calls")
    parser.add_argument("--rounds", type=int, default=7, help="runs of each whole program")
    parser.add_argument("--row", default="", help="only rows whose name has these words")
    chosen = parser.parse_args(argv)
    gate("tests/_call/test_decision_cache.py", "tests/_call/test_gate.py", "tests/_patch/test_patched_matmul.py")
    return programs(chosen.rounds) if chosen.programs else rows(chosen.row)
