"""``python -m conformance mutate --random N --seed S``: mutations drawn from the code, and the tests that kill them."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from conformance._covering import covering, stored
from conformance._draw import Mutation, draw
from conformance._equivalent import EQUIVALENT

ROOT = Path(__file__).parents[1]
AREAS = ("_host", "_engine", "_einsum", "linalg", "sparse", "dist", "xp", "chem", "_patch", "_report", "_call")
# Tests of no single area: of all rows, of the call path and of documented behaviour.
COMMON = ("parity", "test_bad_input.py", "test_flags.py", "test_call_path.py", "test_namespaces.py", "test_pools.py")
SECONDS = 300.0  # of tests for one mutation, and of waiting for one that hangs
SURVIVED = 8  # exit code if a mutation survives
SPEED = "speed: "  # begins the reason of a mutation that changes no result, only the time
NOT_COPIED = shutil.ignore_patterns(".git", "build", "__pycache__", ".hypothesis", "*.egg-info", ".nox")


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="python -m conformance mutate --random",
        description="Draws mutations from the code, runs the tests that cover each, and prints what survives.",
    )
    p.add_argument("--random", type=int, required=True, metavar="N", help="how many mutations")
    p.add_argument("--seed", type=int, default=0, metavar="S", help="of the draw (default: 0)")
    p.add_argument("--area", default=",".join(AREAS), help="folders of the package, with commas (default: %(default)s)")
    p.add_argument("--seconds", type=float, default=SECONDS, help="of tests for one mutation (default: %(default)g)")
    p.add_argument("--list", action="store_true", help="print the mutations and run nothing")
    p.add_argument("--root", type=Path, default=ROOT, help=argparse.SUPPRESS)
    p.add_argument("--package", default="trnpy", help=argparse.SUPPRESS)
    p.add_argument("--cache", type=Path, help="where the map of tests is kept (default: the user's cache)")
    return p


def main(arguments: list[str], equivalent: Mapping[str, str] = EQUIVALENT) -> int:
    options = parser().parse_args(arguments)
    root, areas = options.root.resolve(), options.area.split(",")
    package = root / options.package
    if missing := [area for area in areas if not (package / area).exists()]:
        parser().error(f"--area {missing[0]}: no such folder in {package}")
    files = [path for area in areas for path in (package / area).rglob("*.py")]
    drawn = draw(files, root, options.random, options.seed)
    if options.list:
        print(*[f"{mutation.kind}: {mutation.name}" for mutation in drawn], sep="\n")
        return 0
    maps = stored(root, options.package, tests_of(root, areas), options.cache or _cache())
    outcomes = Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        shutil.copytree(root, copy, ignore=NOT_COPIED)
        for i, mutation in enumerate(drawn, 1):
            outcome, detail = judged(mutation, copy, maps, root, options.seconds, equivalent)
            outcomes[outcome] += 1
            print(f"{i} {outcome.upper() if outcome == 'survived' else outcome}: {mutation.kind}: {mutation.name}")
            print(f"    line {mutation.line}: {detail}", flush=True)
    counted = outcomes["killed"] + outcomes["survived"]
    print(", ".join(f"{n} {outcome}" for outcome, n in sorted(outcomes.items())))
    share = 100 * outcomes["killed"] / max(counted, 1)
    print(f"killed {outcomes['killed']} of {counted} that change results, {share:.0f} %")
    return SURVIVED if outcomes["survived"] else 0


def tests_of(root: Path, areas: list[str]) -> list[Path]:
    """The files of tests that may execute code of these areas."""
    folders = [root / "tests" / name for name in (*areas, *COMMON)]
    files = [path for folder in folders for path in sorted(folder.rglob("test_*.py")) if folder.is_dir()]
    return list(dict.fromkeys([*files, *(path for path in folders if path.is_file())]))


def judged(
    mutation: Mutation, copy: Path, maps: list[dict], root: Path, seconds: float, equivalent: Mapping[str, str]
) -> tuple[str, str]:
    """What became of a mutation, planted in ``copy``: the outcome, and the test or the reason."""
    if why := equivalent.get(mutation.name):
        return ("only speed", why.removeprefix(SPEED)) if why.startswith(SPEED) else ("equivalent", why)
    tests = covering(maps, root, mutation.file, mutation.line, mutation.last_line)
    chosen, total = [], 0.0
    for cost, name in tests:
        if not chosen or total + cost <= seconds:
            chosen.append(name)
            total += cost
    if not chosen:
        return "survived", "no test executes a line of this file"
    path = copy / mutation.file
    clean = path.read_bytes()
    path.write_bytes(mutation.applied(clean))
    try:
        failed = failing(copy, chosen, 2 * seconds)
    finally:
        path.write_bytes(clean)
    if not failed:
        return "survived", f"{len(chosen)} of {len(tests)} tests that execute it passed"
    if "::" in failed and failing(copy, [failed], 2 * seconds):
        return "not judged", f"{failed} fails without the mutation"
    return "killed", failed


def failing(copy: Path, tests: list[str], seconds: float) -> str:
    """The first of these tests that fails in ``copy``, or how the run ended; "" if all pass."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--tb=no", "-rfE", *tests]
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "1000"}
    try:
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return f"no end within {seconds:g} s"
    if done.returncode == 0:
        return ""
    found = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.M)
    return found[1] if found else f"pytest ended with {done.returncode}"


def _cache() -> Path:
    from trnpy._base.store import folder

    return folder() / "mutations"
