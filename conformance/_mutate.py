"""``python -m conformance mutate``: which planted mutations the tests of this package kill, and which upstream's."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

from conformance._mutants import HARMLESS, INWARD, reason

OWN = ("tests/parity", "tests/linalg")
UPSTREAM = (
    "scipy.linalg",
    "numpy.linalg",
    "numpy.einsum",
    "numpy.products -k 'not huge'",
    # Of the solvers. Tests of many dtypes, threads and intervals take most of the time and reach no other mutation.
    "scipy.sparse scipy/sparse/linalg/_isolve/tests/test_iterative.py "
    "scipy/sparse/linalg/_eigen/arpack/tests/test_arpack.py "
    "scipy/sparse/linalg/_eigen/lobpcg/tests/test_lobpcg.py scipy/sparse/linalg/tests/test_expm_multiply.py "
    "-k 'not diagonal and not reentering and not threads and not Interval'",
)
OUTCOMES = ("killed", "in no result", "survived", "not reached")
SURVIVED = 8  # exit code if a mutation survives all tests that reach it


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="python -m conformance mutate",
        description="Plants mutations, runs the tests that reach each, and prints which test killed it.",
        epilog="--random N draws mutations from the code instead (--random N --help). "
        f"Without arguments: {' '.join(OWN)}, then {', '.join(UPSTREAM)} with small tiles.",
    )
    p.add_argument("--own", metavar="ARGUMENTS", help="of pytest, in one string: tests of this package")
    p.add_argument("--upstream", metavar="ARGUMENTS", help="in one string: a suite, and arguments of pytest")
    p.add_argument("--only", metavar="REGEX", default="", help="mutations whose name has a match, as 'potrf|_solved'")
    p.add_argument("--run", choices=("own", "upstream"), help=argparse.SUPPRESS)
    p.add_argument("--to", type=Path, help=argparse.SUPPRESS)
    return p


def main(arguments: list[str]) -> int:
    options, rest = parser().parse_known_args(arguments)
    if options.run:
        return run(options.run, options.to, options.only, rest)
    everything = options.own is None and options.upstream is None
    runs = [("own", " ".join(OWN) if everything else options.own)]
    runs += [("upstream", s) for s in (UPSTREAM if everything else (options.upstream,))]
    found = [(kind, child(kind, options.only, shlex.split(asked))) for kind, asked in runs if asked]
    return table(found)


def child(kind: str, only: str, arguments: list[str]) -> dict:
    """What one run of tests killed, in a process of its own: upstream's tests have small tiles, ours the usual ones."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "killed.json"
        command = [sys.executable, "-m", "conformance", "mutate", "--run", kind, "--to", str(file)]
        command += ["--only", only, *arguments]
        environment = {k: v for k, v in os.environ.items() if k != "TRNPY_TILE"}
        if kind == "upstream":
            from conformance.__main__ import SMALL

            environment |= {"TRNPY_TILE": SMALL}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if not file.exists():
            raise SystemExit(done.stdout + done.stderr)
        print(f"{kind}: {' '.join(arguments)}: {done.stdout.strip().splitlines()[-1]}", flush=True)
        return json.loads(file.read_text())


def run(kind: str, file: Path, only: str, arguments: list[str]) -> int:
    import pytest

    from conformance._mutants import VERIFIED, Mutants, State

    if kind == "own":
        return int(pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:xdist", *arguments], [Mutants(file, only)]))
    from conformance._run import parser as suite_parser
    from conformance._run import run as run_suite
    from conformance._suites import SUITES
    from trnpy._settings.policy import current_policy, set_process_policy

    set_process_policy(replace(current_policy(), verify=1.0))  # each result is compared with the reference's
    State.nudge = VERIFIED
    options, rest = suite_parser().parse_known_args([arguments[0], "--forced"])
    return run_suite(SUITES[options.suite], options, [*rest, *arguments[1:]], [Mutants(file, only)])


def table(found: list[tuple[str, dict]]) -> int:
    """Print which test killed each mutation; the exit code says whether one survived."""
    tries: dict[str, dict[str, int]] = {}
    killed: dict[str, dict[str, str]] = {}
    for kind, what in found:
        for mutation, n in what["tries"].items():
            at = tries.setdefault(mutation, {})
            at[kind] = at.get(kind, 0) + n
        for mutation, test in what["killed"].items():
            killed.setdefault(mutation, {}).setdefault(kind, test)
    for mutation in [m for m in tries if reason(HARMLESS, m) and m not in killed]:  # one that is killed is not
        print(f"{mutation}: harmless: {reason(HARMLESS, mutation)}")
        del tries[mutation]
    kinds = list(dict.fromkeys(kind for kind, _ in found))
    counts = {kind: Counter[str]() for kind in kinds}
    for mutation in sorted(tries, key=lambda m: (".py:" in m, m)):
        print(f"{mutation}: {'1.5 times' if '.py:' in mutation else 'a nudge'}")
        for kind in kinds:
            outcome, line = "survived", f"SURVIVED {tries[mutation].get(kind)} tests"
            if kind not in tries[mutation]:
                outcome, line = "not reached", "not reached"
            elif test := killed.get(mutation, {}).get(kind):
                outcome, line = "killed", f"killed by {test}"
            elif kind == "upstream" and (why := reason(INWARD, mutation)):
                outcome, line = "in no result", f"in no result: {why}"
            counts[kind][outcome] += 1
            print(f"    {kind}: {line}")
    for kind, n in counts.items():
        print(f"{kind}: " + ", ".join(f"{n[outcome]} {outcome}" for outcome in OUTCOMES))
    survivors = sum(n["survived"] for n in counts.values())
    print(f"{len(tries)} mutations reached; {survivors} survivals; commit {commit()}")
    return SURVIVED if survivors else 0


def commit() -> str:
    """The commit of this checkout, with "-dirty" if files differ from it; "unknown" outside a checkout."""
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    asked = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True)
    return asked.stdout.strip() or "unknown"
