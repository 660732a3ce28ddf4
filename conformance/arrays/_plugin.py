"""The pytest plugin of the suites that test an array library: selected tests, listed failures, and outcomes.

It is loaded with ``-p``, in a process that has imported neither NumPy nor SciPy.
"""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from conformance._listed import Entry, load, match


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("trnpy")
    group.addoption("--library", required=True, metavar="MODULE", help="the namespace that is tested")
    group.addoption("--outcomes", type=Path, required=True, metavar="FILE", help="for the outcome of each test")
    group.addoption("--listed", type=Path, metavar="FILE", help="listed failures; none for another library")
    group.addoption("--mode", default="unforced", help="of the listed failures")
    group.addoption("--asked", action="append", default=[], metavar="TEST", help="a file or test that was asked for")
    group.addoption("--only", type=Path, metavar="FILE", help="a list of the tests to run, in JSON")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Outcomes(config), "trnpy-outcomes")


class Outcomes:
    """Marks listed tests and collects, for each test, its outcome with the reason."""

    def __init__(self, config: pytest.Config) -> None:
        self.file: Path = config.getoption("--outcomes")
        self.only: Path | None = config.getoption("--only")
        self.asked = tuple(config.getoption("--asked"))
        listed = config.getoption("--listed")
        self.entries: list[Entry] = load(listed, config.getoption("--mode")) if listed else []
        self.known: dict[str, Entry] = {}
        self.found: dict[str, tuple[str, str]] = {}

    @pytest.hookimpl(tryfirst=True)  # before -k deselects tests: a listed test that is not run is not stale
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        self.known, missing = match(self.entries, [item.nodeid for item in items], self.asked)
        if missing:
            raise pytest.UsageError("listed failures match no test:\n  " + "\n  ".join(missing))
        for item in items:
            if entry := self.known.get(item.nodeid):
                item.add_marker(pytest.mark.xfail(reason=entry.reason, strict=not entry.may_pass), append=False)
        if self.only is not None:
            wanted = set(json.loads(self.only.read_text()))
            config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in wanted])
            items[:] = [item for item in items if item.nodeid in wanted]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        entry = self.known.get(item.nodeid)
        expected = report.skipped and getattr(report, "wasxfail", None) is not None
        if entry is not None and expected and not entry.error.search(str(report.longrepr)):
            report.outcome, report.longrepr = "failed", f"not the listed {entry.error.pattern!r}:\n{report.longrepr}"
            del report.wasxfail  # otherwise pytest still counts it as the expected failure
            expected = False
        if report.when == "call" or not report.passed:
            self.found[item.nodeid] = self._outcome(report, entry, expected)
        return report

    def _outcome(self, report: pytest.TestReport, entry: Entry | None, expected: bool) -> tuple[str, str]:
        if report.failed:
            return "failed", _last_line(report)
        if expected:
            return ("listed", entry.reason) if entry is not None else ("xfailed", str(report.wasxfail))
        if report.skipped:
            where: Any = report.longrepr
            return "skipped", str(where[2] if isinstance(where, tuple) else where).removeprefix("Skipped: ")
        return "passed", ""

    def pytest_sessionfinish(self) -> None:
        self.file.write_text(json.dumps(self.found))


def _last_line(report: pytest.TestReport) -> str:
    """What the test raised, in one line."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else str(report.longrepr)
    return next((line for line in text.strip().splitlines() if line.strip()), "")
