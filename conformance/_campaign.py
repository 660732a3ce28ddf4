"""``python -m conformance mutate --random N --seed S``: mutations drawn from the code, and the tests that kill them."""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from conformance._covering import ONE_THREAD, Maps, covering
from conformance._draw import Mutation, draw
from conformance._equivalent import EQUIVALENT, reason

ROOT = Path(__file__).parents[1]
AREAS = ("_host", "_engine", "_einsum", "linalg", "sparse", "dist", "xp", "chem", "_patch", "_report", "_call")
# Tests of no single area: of all rows, of commands, of the call path and of documented behaviour.
COMMON = (
    "parity", "_cli", "test_bad_input.py", "test_flags.py", "test_call_path.py", "test_namespaces.py", "test_pools.py",
)  # fmt: skip
SECONDS = 60.0  # of processor time of the tests for one mutation
START_S = 20.0  # of processor time, in which pytest imports what the tests need
SLOWER = 5.0  # times the processor time of the tests without a mutation, after which they count as endless
WAITING = 10.0  # seconds for each second of processor time, after which tests that wait count as endless
TIMEOUT = "timeout"
SURVIVED = 8  # exit code if a mutation survives
NONE_SELECTED = 5  # pytest's exit code if it selects no test
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
    p.add_argument(
        "--seconds",
        type=float,
        default=SECONDS,
        help="of tests for one mutation, processor time (default: %(default)g)",
    )
    p.add_argument("--own", action="store_true", help="run the tests of the mutated module only, which needs no map")
    p.add_argument("--list", action="store_true", help="print the mutations and run nothing")
    p.add_argument("--log", type=Path, help="append the report to this file, and skip mutations that it has as killed")
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
    maps = Maps(root, options.package, options.cache or _cache())
    log, outcomes = Log(options.log), []
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        shutil.copytree(root, copy, ignore=NOT_COPIED)
        for i, mutation in enumerate(drawn, 1):
            outcome, detail = "killed", log.killed.get((mutation.name, mutation.line))
            if detail is None:
                groups = tests_of(root, areas, mutation.file)[: 1 if options.own else None]
                outcome, detail = judged(mutation, copy, maps, groups, options.seconds, equivalent)
                log.add(i, mutation, outcome, detail)
            outcomes.append((area_of(areas, mutation.file), outcome))
    for line in table(outcomes):
        print(line)
    return SURVIVED if any(outcome == "survived" for _, outcome in outcomes) else 0


class Log:
    """The printed report, which ``file`` also gets, and what it had: tests by name and line of killed mutations."""

    def __init__(self, file: Path | None) -> None:
        self.file = file
        before = file.read_text() if file is not None and file.exists() else ""
        found = re.findall(r"^\d+ killed: [a-z, ]+: (.+)\n    line (\d+): (.+)$", before, re.M)
        self.killed = {(name, int(line)): test for name, line, test in found}

    def add(self, i: int, mutation: Mutation, outcome: str, detail: str) -> None:
        shown = outcome.upper() if outcome == "survived" else outcome
        lines = f"{i} {shown}: {mutation.kind}: {mutation.name}\n    line {mutation.line}: {detail}"
        print(lines, flush=True)
        if self.file is not None:
            with self.file.open("a") as file:
                file.write(lines + "\n")


def table(outcomes: Sequence[tuple[str, str]]) -> Iterator[str]:
    """The counts of pairs of area and outcome, a line for each area and two for the whole."""
    for area in sorted({area for area, _ in outcomes}):
        yield f"{area}: {_counts([outcome for at, outcome in outcomes if at == area])}"
    every = [outcome for _, outcome in outcomes]
    yield _counts(every)
    killed, of = every.count("killed"), every.count("killed") + every.count("survived")
    yield f"killed {killed} of {of} that change results, {100 * killed / max(of, 1):.0f} %"


def _counts(outcomes: Iterable[str]) -> str:
    return ", ".join(f"{n} {outcome}" for outcome, n in sorted(Counter(outcomes).items()))


def area_of(areas: Iterable[str], file: str) -> str:
    """The area that has ``file``; "" if none does."""
    return next((name for name in areas if f"/{name}/" in f"/{file}"), "")


def tests_of(root: Path, areas: Sequence[str], file: str) -> list[list[Path]]:
    """The files of tests that may execute code of ``file``, in the order in which they are tried.

    First the tests of its module, which may be none, then those of its folder, then those of the other areas and of the
    whole.
    """
    area = area_of(areas, file)
    stem = Path(file).stem.strip("_")
    folders = [root / "tests" / name for name in (area, *areas, *COMMON) if name]
    files = [path for folder in folders for path in sorted(folder.rglob("test_*.py")) if folder.is_dir()]
    files = list(dict.fromkeys([*files, *(path for path in folders if path.is_file())]))
    names = tuple(f"test_{name}{stem}" for name in ("", f"{area.strip('_')}_"))
    own = [path for path in files if path.stem.startswith(names) and path.is_relative_to(root / "tests" / area)]
    near = [path for path in files if path not in own and area and path.is_relative_to(root / "tests" / area)]
    return [own, *(group for group in (near, [path for path in files if path not in (*own, *near)]) if group)]


def judged(
    mutation: Mutation, copy: Path, maps: Maps, groups: list[list[Path]], seconds: float, equivalent: Mapping[str, str]
) -> tuple[str, str]:
    """What became of a mutation, planted in ``copy``: the outcome, and the test or the reason.

    Files of the first group that no map knows run as they are, which takes less time than to map them for one mutation.
    """
    if why := reason(mutation, equivalent):
        return ("only speed", why.removeprefix(SPEED)) if why.startswith(SPEED) else ("equivalent", why)
    passed = of = reached = 0
    for place, group in enumerate(groups):
        if place == 0 and not maps.have(group):
            chosen, total = [str(path.relative_to(maps.root)) for path in group], seconds / SLOWER
        else:
            # Tests that only touch the file are run if no test so far executes the line.
            tests = covering(maps.of(group), maps.root, mutation, touching=not reached)
            reached, of = reached + len(tests), of + bool(place) * len(tests)
            chosen, total = _affordable(tests, seconds)
        if not chosen:
            continue
        limit = START_S + SLOWER * total
        failed = _planted(mutation, copy, chosen, limit)
        if failed and failed != TIMEOUT and "::" in failed and _clean(copy, failed, START_S + SLOWER * seconds):
            return "not judged", f"{failed} fails without the mutation"
        if failed == TIMEOUT and failing(copy, chosen, limit) == TIMEOUT:
            return "not judged", f"{', '.join(chosen)}: no end without the mutation"
        if failed:
            return "killed", failed
        passed += len(chosen) if place else 0
    own = "the tests of its module passed" if groups[0] else "its module has no tests of its own"
    outcome = "survived" if groups[0] or of else "not judged"
    return outcome, f"{own}, and {passed} of {of} others that execute it passed"


def _affordable(tests: list[tuple[float, str]], seconds: float) -> tuple[list[str], float]:
    """The fastest tests, at least one, of which all together need at most ``seconds``, and their time."""
    chosen: list[str] = []
    total = 0.0
    for cost, name in tests:
        if not chosen or total + cost <= seconds:
            chosen.append(name)
            total += cost
    return chosen, total


@functools.cache
def _clean(copy: Path, test: str, seconds: float) -> str:
    """``failing`` for one test without a mutation."""
    return failing(copy, [test], seconds)


def _planted(mutation: Mutation, copy: Path, tests: list[str], seconds: float) -> str:
    """``failing`` with the mutation in ``copy``."""
    path = copy / mutation.file
    clean = path.read_bytes()
    path.write_bytes(mutation.applied(clean))
    try:
        return failing(copy, tests, seconds)
    finally:
        path.write_bytes(clean)


def failing(copy: Path, tests: list[str], seconds: float) -> str:
    """The first of these tests that fails in ``copy``, or how the run ended; "" if all pass or none is selected.

    TIMEOUT if the run takes more than ``seconds`` of processor time, or if it waits for WAITING times as long.
    """
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--tb=no", "-rfE", *tests]
    environment = {**ONE_THREAD, **os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    environment["COLUMNS"] = "1000"
    limit = int(seconds) + 1
    limited = functools.partial(resource.setrlimit, resource.RLIMIT_CPU, (limit, limit + 1))
    run = subprocess.Popen(
        command, cwd=copy, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True, preexec_fn=limited,
    )  # fmt: skip
    ended = True
    try:
        run.wait(WAITING * seconds)
    except subprocess.TimeoutExpired:
        ended = False
    with contextlib.suppress(ProcessLookupError):
        os.killpg(run.pid, signal.SIGKILL)  # with the processes that tests started
    output, _ = run.communicate()
    if not ended:
        return TIMEOUT
    if run.returncode in (0, NONE_SELECTED):
        return ""
    if run.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return TIMEOUT
    found = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output, re.M)
    return found[1] if found else f"pytest ended with {run.returncode}"


def _cache() -> Path:
    from trnpy._base.store import folder

    return folder() / "mutations"
