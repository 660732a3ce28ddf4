"""Runs a suite: options, redirected names, listed failures, and pytest."""

from __future__ import annotations

import argparse
import importlib
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import trnpy
from conformance._lines import Lines
from conformance._listed import FOLDER, MODES, load
from conformance._plugin import Plugin
from conformance._redirect import Redirection
from conformance._suites import SUITES, Suite, broken, hooks
from trnpy._settings.policy import current_policy, set_process_policy


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="python -m conformance",
        description="Upstream's own installed tests on trnpy's functions.",
        epilog=f"SUITE is one of {', '.join(SUITES)}. All other arguments are pytest's; test files are relative to "
        "site-packages. `python -m conformance nki FOLDER` runs NKI kernels written by others on the simulator; "
        "`python -m conformance neuronx` compiles trnpy's with AWS's compiler; `faults` injects faults. "
        "`python -m conformance array-api`, `scikit-learn` and `scipy-array-api` run suites of others on trnpy.xp.",
    )
    p.add_argument("suite", nargs="?", metavar="SUITE", choices=SUITES)
    mode = p.add_mutually_exclusive_group()
    mode.add_argument("--forced", action="store_true", help="every supported call takes the device path, however small")
    tiles = p.add_mutually_exclusive_group()
    tiles.add_argument("--small-tiles", action="store_true", help="TRNPY_TILE=2, as --forced does by itself")
    tiles.add_argument("--full-tiles", action="store_true", help="with --forced: blocks of their usual size")
    p.add_argument("--least-lines", type=float, metavar="PERCENT", help="of linalg/ executed, or the exit code is 7")
    mode.add_argument("--patched", action="store_true", help="NumPy's and SciPy's own names, under trnpy.patch()")
    mode.add_argument("--baseline", action="store_true", help="without trnpy: what fails anyway")
    p.add_argument("--break", dest="wrong", metavar="NAME=FACTOR", help="multiply results: the suite must notice")
    p.add_argument("--listed", type=Path, metavar="FILE", help="instead of conformance/listed/SUITE.yaml")
    return p


def run(suite: Suite, options: argparse.Namespace, arguments: list[str], plugins: Sequence[object] = ()) -> int:
    """The exit code of pytest on ``suite``."""
    package = suite.name.partition(".")[0]
    patch = trnpy.patch() if options.patched else None
    names = [] if options.baseline else hooks() if options.patched else suite.names()
    if options.wrong:
        name, _, factor = options.wrong.partition("=")
        names = broken(names, name, float(factor))
    site = Path(importlib.import_module(package).__path__[0]).parent
    files = [a for a in arguments if not a.startswith("-") and ".py" in a]
    rest = [a for a in arguments if a not in files]
    mode = next((mode for mode in MODES if getattr(options, mode, False)), "unforced")
    entries = load(options.listed or FOLDER / f"{suite.name}.yaml", mode)
    lines = Lines({n.name: n.ours for n in names}, options.least_lines)
    plugin = Plugin(Redirection(names, package), entries, tuple(files), options.forced, options.patched, lines)
    previous = set_process_policy(replace(current_policy(), force=options.forced))
    try:
        # As upstream's own test() runs them: without our configuration file, with upstream's conftest.py and slow tests
        # included.
        own = ["-c", os.devnull, "--rootdir", str(site), "-p", "no:cacheprovider"]
        own += ["-q", "-rN", "--tb=short", "--disable-warnings"]
        # Paths, not --pyargs, for which pytest would load the conftest.py of the directory where it was started.
        tests = [str(site / test) for test in files or suite.tests]
        return int(pytest.main([*own, *rest, *tests], plugins=[plugin, *plugins]))
    finally:
        if patch is not None:
            patch.undo()
        set_process_policy(previous)


def main(arguments: list[str]) -> int:
    options, rest = parser().parse_known_args(arguments)
    if options.suite is None:
        parser().print_help()
        return int(pytest.ExitCode.USAGE_ERROR)
    return run(SUITES[options.suite], options, rest)
