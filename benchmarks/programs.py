"""Programs of others, unchanged, under python -m trnpy: what a core and an instance would gain in accelerated calls.

Give it programs or folders of them, such as PySCF's examples: ``git clone https://github.com/pyscf/pyscf``, then
``python -m benchmarks programs pyscf/examples/mp pyscf/examples/cc``. Each runs once. Times of the host are measured,
all others modelled. A gain is of the accelerated calls, not of the whole run. On a machine with other work, calls that
the model prices count with their processor time, as in the what-if; with one thread of BLAS that is theirs alone.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

from benchmarks._measure import gate, header

GAIN = 1.2  # of the accelerated part, from which a program counts
LEAST_S = 1e-3  # in accelerated calls: programs below it say nothing
LONGEST_S = 120.0
OURS = "FAILS UNDER THE RUNNER ONLY"


def programs(places: list[str]) -> Iterator[pathlib.Path]:
    for place in map(pathlib.Path, places):
        if not place.exists():
            sys.exit(f"no figures: {place} does not exist")
        yield from sorted(place.rglob("*.py")) if place.is_dir() else [place]


def run(program: pathlib.Path, machine: str, limit_s: float) -> tuple[dict[str, Any] | None, str]:
    """The report of a program, or None and why there is none."""
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder) / "report.json"
        options = ["-m", "trnpy", "--no-report", "--machine", machine, "--report", str(report)]
        for command in (options, []):  # python alone decides whose fault a failure is
            try:
                ended = subprocess.run(
                    [sys.executable, *command, str(program.resolve())], cwd=folder, timeout=limit_s,
                    env={**os.environ, "MPLBACKEND": "Agg"}, capture_output=True, text=True, check=False,
                )  # fmt: skip
            except subprocess.TimeoutExpired:
                return None, f"takes more than {limit_s:.0f} s"
            if ended.returncode == 0:
                return (json.loads(report.read_text()), "") if command else (None, OURS)
        last = (ended.stderr.strip().splitlines() or ["no message"])[-1]
        return None, f"fails under python, too: {last[:70]}"


def over(before_s: float, saved_s: float) -> float:
    """How many times faster a part is that takes ``before_s`` and saves ``saved_s`` of it."""
    return before_s / max(before_s - saved_s, 1e-9)


def undisturbed(lines: list[dict[str, Any]]) -> float:
    """Seconds of the accelerated calls of a report's lines, without waiting for processors where the model has a price.

    What a call gains is counted so. Without it other work on the machine would hide every gain.
    """
    return float(sum(line["sure_s"] if line["modelled"] == line["calls"] else line["seconds"] for line in lines))


def gains(report: dict[str, Any]) -> tuple[float, float, float, float]:
    """Seconds in accelerated calls, and their gain on one core; that of all cores of the instance over its vCPUs, for
    calls one after another and at the same time."""
    lines = report["by_line"]
    part_s, alone_s = report["what_if"]["accelerated_s"], undisturbed(lines)
    outside_s = max(report["elapsed_s"] - part_s, 0.0)
    found = []
    for estimate in report["instance"]:
        vcpus_s, (fast_s, slow_s) = estimate["vcpus_s"], estimate["cores_s"]
        found.append(over(vcpus_s - outside_s, vcpus_s - (fast_s * slow_s) ** 0.5))
    return part_s, over(alone_s, sum(line["won_s"] - line["won_device_s"] for line in lines)), found[0], found[1]


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks programs", description=__doc__)
    parser.add_argument("places", nargs="+", metavar="PROGRAM|FOLDER")
    parser.add_argument("--machine", default="trn2.48xlarge", help="an instance")
    parser.add_argument("--seconds", type=float, default=LONGEST_S, help="after which a program is left out")
    options = parser.parse_args(argv)
    gate("tests/_report/test_ledger.py", "tests/_report/test_instance_cost.py")
    header(f"gain of accelerated calls, modelled: one core of {options.machine}, and all against its vCPUs", "one run")
    print(f"{'':44}{'run':>9}{'calls':>11}{'core':>8}{'all, in turn':>14}{'at once':>10}")
    rows, failed = [], False
    for program in programs(options.places):
        name = f"{program.parent.name}/{program.name}"
        report, why = run(program, options.machine, options.seconds)
        if report is None:
            failed |= why == OURS
            print(f"{name:44}left out: {why}", flush=True)
            continue
        part_s, *found = gains(report)
        if part_s < LEAST_S:
            print(f"{name:44}left out: {1e3 * part_s:.1f} ms in accelerated calls", flush=True)
            continue
        rows.append(found)
        core, in_turn, at_once = found
        ran = f"{report['elapsed_s']:7.2f} s{1e3 * part_s:8.0f} ms"
        print(f"{name:44}{ran}{core:8.2f}{in_turn:14.2f}{at_once:10.2f}", flush=True)
    for i, what in enumerate(("one core", "all cores, calls in turn", "all cores, calls at once")):
        won = sum(row[i] >= GAIN for row in rows)
        print(f"{what}: {won} of {len(rows)} programs gain {GAIN} times or more")
    return int(failed)
