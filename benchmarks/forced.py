"""Real programs whose every call is forced onto the simulator: their results against plain Python's.

The programs are in ``forced_programs/``, one a library; those of libraries that are not installed are left out. Every
number that a program prints must agree to RTOL, and no fault may be recorded.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks._measure import header
from benchmarks._processes import environment

FOLDER = Path(__file__).parent / "forced_programs"
RTOL = 1e-9


def printed(command: list[str], folder: str, **more: str) -> tuple[list[float], float]:
    """The numbers that a program prints, and its seconds."""
    started = time.perf_counter()
    ran = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=environment(folder) | more,
        capture_output=True,
        text=True,
        check=True,
    )
    return [float(word) for word in ran.stdout.split()], time.perf_counter() - started


def apart(ours: list[float], theirs: list[float]) -> float:
    """The largest relative difference; infinite if there are other numbers of numbers."""
    if len(ours) != len(theirs):
        return float("inf")
    return max(abs(x - y) / max(abs(y), 1e-300) for x, y in zip(ours, theirs, strict=True))


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks forced", description=__doc__)
    parser.add_argument("names", nargs="*", help="libraries, by the first word of their program's name; default: all")
    options = parser.parse_args(argv)
    header("programs forced onto the simulator", "one run each")
    cells = "numbers", "apart", "plain s", "forced s", "calls", "launches", "faults"
    print(f"{'program':20}" + "".join(f"{cell:>10}" for cell in cells))
    bad = 0
    for program in sorted(FOLDER.glob("*.py")):
        package = program.stem.partition("_")[0]
        if options.names and package not in options.names:
            continue
        if importlib.util.find_spec(package) is None:
            print(f"{program.stem:20}left out: not installed")
            continue
        with tempfile.TemporaryDirectory() as folder:
            report = str(Path(folder, "report.json"))
            theirs, plain_s = printed([str(program)], folder)
            forced = ["-m", "trnpy", "--force", "--no-report", "--report", report, str(program)]
            ours, forced_s = printed(forced, folder, TRNPY_DEVICE="simulator")
            found = json.loads(Path(report).read_text())
        functions = found["by_function"]
        calls = sum(f["calls"] for f in functions if f["launches"])
        launches = sum(n for f in functions for n in f["launches"].values())
        faults = sum(sum(engine["faults"].values()) for engine in found["engines"].values())
        difference = apart(ours, theirs)
        bad += difference > RTOL or faults > 0 or not launches
        times = f"{plain_s:10.1f}{forced_s:10.1f}"
        counts = f"{calls:10,}{launches:10,}{faults:10}"
        print(f"{program.stem:20}{len(ours):10}{difference:10.1e}{times}{counts}", flush=True)
    print(f"\nall within {RTOL:g}, without a fault" if not bad else f"\n{bad} apart, with faults or without a launch")
    return int(bool(bad))
