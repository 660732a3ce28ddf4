"""The pytest plugin: redirects test files, expects the listed failures, and counts calls per function."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

import pytest

from conformance._lines import Lines
from conformance._listed import Entry, match
from conformance._redirect import Redirection
from trnpy._call.dispatch import Decision, Reason
from trnpy._engine.engines import current_engine
from trnpy._patch.hook import ProcessActivation
from trnpy._report import ledger
from trnpy._settings.policy import current_policy
from trnpy._settings.tile import SMALL_TILES, TILE

NOTHING_FORCED = 6  # exit code of a forced run without a launch; pytest's own end at 5
LARGE = ("test_crash_2609", "test_orth_memory_efficiency")  # 1,500 and 10^7 rows: minutes, hours with small tiles
TOO_FEW_LINES = 7  # exit code of a run that executed a smaller share of the lines than --least-lines asks for
FAULTS = (Reason.ERROR, Reason.OOM)  # the engine of these runs has no faults, so they are bugs in an algorithm
HEAD = (
    "calls", "with launches", "launched nothing", "launches", "tests passed", "with launches", "listed", "failed",
    "lines",
)  # fmt: skip
CALLS = pytest.StashKey[list[Decision]]()


class Recorder(ledger.Ledger):
    """The ledger of one test: its decisions in order, from all threads."""

    __slots__ = ("decisions",)

    def __init__(self) -> None:
        super().__init__()
        self.decisions: list[Decision] = []

    def small_calls(self, *line: Any) -> None:
        """No counter: every call is decided and recorded by itself."""

    def add(self, decision: Decision, *times_and_line: Any) -> None:
        self.decisions.append(decision)


@dataclass(slots=True)
class Tally:
    """The counts of one function over all tests; calls are those that returned."""

    calls: int = 0
    launched: int = 0  # calls with a launch: on the host engine, with a product or a twin of a kernel
    nothing: int = 0  # calls that took the device path, which left everything to the host
    launches: int = 0
    passed: int = 0  # tests that passed
    passed_launched: int = 0  # and had a call with a launch
    listed: int = 0
    failed: int = 0
    host: Counter[str] = field(default_factory=Counter)  # why the other calls stayed on the host


class Plugin:
    def __init__(
        self, redirection: Redirection, entries: list[Entry], asked: tuple[str, ...], forced: bool, patched: bool,
        lines: Lines,
    ) -> None:  # fmt: skip
        self.redirection, self.entries, self.asked = redirection, entries, asked
        self.forced, self.patched, self.lines = forced, patched, lines
        self.tallies: dict[str, Tally] = {}
        self.hits = 0  # tests that had a call with a launch
        self.listed = 0
        self.seen = 0  # tests with a call of an accelerated function
        self.known: dict[str, Entry] = {}  # by node id

    def pytest_sessionstart(self) -> None:
        sys.meta_path.insert(0, self.redirection)
        self.lines.watch()

    @pytest.hookimpl(tryfirst=True)  # before -k deselects tests: a listed test that is not run is not stale
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if outside := {i.module.__name__ for i in items if not self.redirection.covers(i.module)}:  # type: ignore[attr-defined]
            raise pytest.UsageError(f"test modules that still import the reference: {', '.join(sorted(outside))}")
        if self.patched:  # calls from SciPy's modules stay original, and its test files are among them
            verdicts = ProcessActivation.activation.verdicts
            verdicts.update((item.module.__name__, False) for item in items)  # type: ignore[attr-defined]
        if SMALL_TILES:
            items[:] = [item for item in items if item.name not in LARGE]
        self.known, missing = match(self.entries, [item.nodeid for item in items], self.asked)
        if missing:
            raise pytest.UsageError("listed failures match no test:\n  " + "\n  ".join(missing))
        for item in items:
            if entry := self.known.get(item.nodeid):
                item.add_marker(pytest.mark.xfail(reason=entry.reason, strict=not entry.may_pass), append=False)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        engine = current_engine(current_policy())
        if engine is not None:
            engine.health.tried(sound=True)  # whatever the test before met
        recorder = Recorder()
        item.stash[CALLS] = recorder.decisions
        previous, ledger.ProcessLedger.ledger = ledger.ProcessLedger.ledger, recorder
        try:
            return (yield)
        finally:
            ledger.ProcessLedger.ledger = previous

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.when != "call":
            return report
        calls = item.stash[CALLS]
        faults = [str(c) for c in calls if c.reason in FAULTS]
        if faults and report.passed:
            report.outcome, report.longrepr = "failed", "the host's result hid an error:\n" + "\n".join(faults)
        entry = self.known.get(item.nodeid)
        if entry is not None and report.skipped and not entry.error.search(str(report.longrepr)):
            report.outcome, report.longrepr = "failed", f"not the listed {entry.error.pattern!r}:\n{report.longrepr}"
            del report.wasxfail  # otherwise pytest still counts it as the expected failure
        self._count(calls, report.outcome, entry is not None)
        return report

    def _count(self, calls: list[Decision], outcome: str, listed: bool) -> None:
        launched = {c.op for c in calls if c.on_device}
        self.hits += bool(launched)
        self.seen += bool(calls)
        self.listed += listed
        for call in calls:
            tally = self.tallies.setdefault(call.op, Tally())
            tally.calls += 1
            tally.launches += sum(n for _, n in call.launches)
            if call.on_device:
                tally.launched += 1
            elif call.reason is Reason.NO_LAUNCH:
                tally.nothing += 1
            else:
                tally.host[call.reason] += 1
        for op in {c.op for c in calls}:
            tally = self.tallies[op]
            tally.passed += outcome == "passed"
            tally.passed_launched += outcome == "passed" and op in launched
            tally.failed += outcome == "failed"
            tally.listed += listed and outcome != "failed"

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if exitstatus == pytest.ExitCode.OK and self.forced and not self.hits:
            session.exitstatus = NOTHING_FORCED
        elif exitstatus == pytest.ExitCode.OK and self.lines.too_few:
            session.exitstatus = TOO_FEW_LINES

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        write = terminalreporter.write_line
        fetched = self.redirection.fetched
        terminalreporter.section("trnpy")
        write(f"look-ups by test files that went to trnpy: {', '.join(f'{k} {n}' for k, n in fetched.most_common())}")
        if not self.asked and (unseen := sorted(self.redirection.replaced - set(fetched))):
            write(f"names of trnpy's that no test file looks up: {', '.join(unseen)}")
        if self.tallies:
            write(f"{'function':36}" + "".join(f"{h:>{len(h) + 2}}" for h in HEAD))
        for op, t in sorted(self.tallies.items()):
            row = (t.calls, t.launched, t.nothing, t.launches, t.passed, t.passed_launched, t.listed, t.failed)
            cells = (*row, self.lines.of_row(op))
            write(f"{op:36}" + "".join(f"{n:>{len(h) + 2}}" for n, h in zip(cells, HEAD, strict=True)))
            if self.forced and t.host:
                write("    on the host: " + ", ".join(f"{n} {reason}" for reason, n in t.host.most_common()))
        if self.patched:
            passed = len(terminalreporter.getreports("passed"))
            write(f"under trnpy.patch(): {passed:,} tests passed, {self.seen:,} of all with a call that the patch saw")
        if self.forced:
            proof = "" if self.hits else ": this run proves nothing about the device path"
            left_out = f"; too large, and left out: {', '.join(LARGE)}" if SMALL_TILES else ""
            write(f"tiles of {TILE}: {self.hits} tests had a call with a launch{proof}{left_out}")
            for line in self.lines.table():
                write(line)
        for entry, n in Counter(self.known.values()).items():
            write(f"listed, {n} tests: {entry.reason}")
        for report in terminalreporter.getreports("failed"):
            write(f"not as listed: {report.nodeid}")
