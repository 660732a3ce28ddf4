"""The ledger: what it adds up, what it says of it, and that it stays small, exact and cheap to keep."""

import io
import json
import random
import re
import subprocess
import sys
import textwrap
import threading
import tracemalloc
from collections.abc import Callable
from dataclasses import asdict

import ledgers
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trnpy._base import processors
from trnpy._base.records import record
from trnpy._call.dispatch import Cost, Op, Problem, Reason, Unsupported, accelerated
from trnpy._engine.abstract_arrays import usual
from trnpy._report import ledger as ledger_module
from trnpy._report import units
from trnpy._report.ledger import EVENTS, SITES, Ledger, ProcessLedger, profile, report
from trnpy._report.page import page
from trnpy._report.text import plain
from trnpy._settings.host_rates import DEFAULT_CURVES, HostRates, machine_id
from trnpy._settings.policy import policy


@pytest.fixture(autouse=True)
def nothing_recorded(monkeypatch):
    monkeypatch.setattr(ProcessLedger, "ledger", None)
    monkeypatch.setattr(ProcessLedger, "last", None)


def doubled(x):
    return 2 * x


@record(kw_only=True)
class Doubled(Problem):
    algorithm: Callable

    def run(self, engine):
        return self.algorithm(self, engine)

    def error(self, result):
        return 0.0


def make_op(run=lambda problem, engine: 2 * problem.arrays[0], host_flops=1e9):
    """``doubled`` as a row; ``run`` is its device path, on operands of more than 4 elements."""

    def prepare(x):
        if x.dtype != np.float64:
            raise Unsupported(Reason.DTYPE, f"{x.dtype} has no device path")
        cost = Cost("matmul", 100, host_flops, x.nbytes, x.nbytes)
        return Doubled((x,), x.dtype, cost, algorithm=run)

    return Op("test.doubled", doubled, prepare, small=4)


def test_json_has_every_figure_of_the_ledger(tmp_path):
    ledger, path, stream = ledgers.chemistry(), tmp_path / "run.json", io.StringIO()
    ledger.to_json(path)
    ledger.to_json(stream)
    read = json.loads(path.read_text())
    assert read == json.loads(stream.getvalue()) == json.loads(json.dumps(ledger.to_dict()))
    assert read["schema"] == "trnpy-report/1"
    assert sum(t["calls"] for t in read["by_line"]) == sum(t["calls"] for t in read["by_function"]) == 16_401
    assert sum(t["seconds"] for t in read["by_line"]) == pytest.approx(
        sum(t.seconds for t in ledger.tallies), rel=1e-12
    )
    assert len(read["longest_calls"]) + read["calls_not_listed"] == 16_401
    assert read["what_if"]["sentence"] == str(ledger.what_if())
    first = max(read["by_line"], key=lambda t: t["seconds"])
    assert (first["file"], first["line"]) == ("/home/ada/examples/benzene_dfmp2.py", 24)
    assert [t["line"] for t in read["missed"]] == [t.line for t in ledger.missed()]


def test_waiting_threads_are_looked_for_twice_a_second_at_most(monkeypatch):
    """Each look reads a file for each thread; a thousand calls are four batches."""
    looks = []
    monkeypatch.setattr(ledger_module, "waited_s", lambda: looks.append(1) or 0.0)
    ledger = Ledger("")
    for _ in range(1000):
        ledger.add(ledgers.decision("numpy.dot", 0.01, 0.1), 0.0, 1e-6, ledgers.frame("x.py", 5))
    ledger.what_if()
    assert len(looks) == 2  # when it was opened, and at the first batch


@pytest.mark.skipif(not processors.TASKS.exists(), reason="only Linux says how long threads have waited")
def test_threads_that_share_a_processor_wait_for_it():
    """Two processes on one processor: each waits half of the time, and says so."""
    program = """
        import os, time
        from trnpy._base.processors import waited_s
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        before, started = waited_s(), time.perf_counter()
        while time.perf_counter() < started + 1.0: pass
        print(waited_s() - before)
    """
    run = [sys.executable, "-c", textwrap.dedent(program)]
    both = [subprocess.Popen(run, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    waited = [float(process.communicate()[0]) for process in both]
    assert max(waited) > 0.2


def test_what_if_adds_the_smaller_of_host_and_device_to_the_rest_of_the_run():
    what_if = ledgers.small().what_if()
    assert (what_if.elapsed_s, what_if.host_s) == (10.0, 10.0)
    assert what_if.accelerated_s == pytest.approx(4.0 + 1.25 + 0.25 + 1500 * 2e-6, rel=1e-12)
    assert what_if.device_s == pytest.approx(10.0 - 4.0 + 1.5, rel=1e-12)
    assert what_if.device_part_s == pytest.approx(1.5, rel=1e-12)


@pytest.mark.parametrize(
    ("calls", "sentence"),
    [
        ([], "no accelerated function was called by name, so there is no device prediction"),
        (
            [(None, None, 0.1)],
            "one core of a trn2 would make no difference to this run: its one call has no work for a device (modelled)",
        ),
        (
            [(1.0, 0.9, 1.0)] * 3,
            "not enough data to decide whether one core of a trn2 would make this run faster: 1 to 1.13 times "
            "(modelled); the model is within a factor of 1.45, and only a run on the device narrows that",
        ),
        (
            [(1.0, 1.5, 1.0)] * 3,
            "one core of a trn2 would make no difference to this run: it would not be faster for any of the 3 calls "
            "that could go there (modelled)",
        ),
        (
            [(1.0, 1.5, 1.0)],
            "one core of a trn2 would make no difference to this run: it would not be faster for the one call that "
            "could go there (modelled)",
        ),
        (
            [(0.01, 0.001, 0.01)],
            "one core of a trn2 would make no difference to this run: it would save at most 9.31 ms of 10.0 s "
            "(modelled)",
        ),
        (
            [(5.0, 1.0, 5.0)],
            "one core of a trn2 would make this run 1.55 to 1.76 times faster: 5.69 s to 6.45 s instead of 10.0 s "
            "(modelled; 1 of 1 calls)",
        ),
    ],
)
def test_what_if_sentence(calls, sentence):
    ledger = Ledger("", opened=0.0)
    for i, (host_s, device_s, seconds) in enumerate(calls):
        ledger.add(ledgers.decision("numpy.dot", host_s, device_s), 2.0 * i, seconds, None)
    ledger.closed = 10.0
    assert str(ledger.what_if()) == sentence


def test_a_device_that_took_part_is_measured_and_the_host_alone_is_predicted():
    text = plain(ledgers.chemistry("neuron"))
    assert re.search(
        r"the trn2 made this run 3\.\d+ times faster: .* \(measured\), on the host alone .* \(predicted, unc", text
    )


def test_calls_of_the_null_device_ran_on_the_host_and_count_as_what_a_device_would_bring():
    null, none = ledgers.chemistry("null"), ledgers.chemistry("none")
    assert {t.ran_on for t in null.tallies} == {"host", "host (null)"}
    expected = asdict(none.what_if())
    for name, value in asdict(null.what_if()).items():
        assert value == (pytest.approx(expected[name], rel=1e-12) if isinstance(value, float) else expected[name])
    assert null.regret() == []


def test_other_host_routes_are_host_calls_and_are_named():
    ledger = Ledger("", opened=0.0)
    route, detail = "exact float64 products", "predicted 12.0 times faster than the reference"
    d = ledgers.decision("numpy.matmul", 1.0, 0.8, reason=Reason.ROUTE, route=route, detail=detail)
    ledger.add(d, 0.0, 1.5, ledgers.frame("x.py", 2))
    (tally,) = ledger.missed()
    assert (tally.ran_on, tally.won_s) == ("host by exact float64 products", 1.0)
    assert f"numpy.matmul host by {route}: 1 call, 1.50 s (measured), {detail}" in plain(ledger)


def test_uncalibrated_predictions_are_marked():
    assert "uncalibrated" in plain(ledgers.losing())
    assert "uncalibrated" not in plain(ledgers.small())


def test_predictions_of_a_calibration_that_did_not_repeat_are_marked(monkeypatch):
    """In text and page, wherever the rates are a calibration's; without predictions there is nothing to mark."""
    remark = "135 of 135 measurements did not repeat within 10%"
    for told in (remark, ""):
        rates = HostRates(DEFAULT_CURVES, 1e10, True, machine_id(), told)
        monkeypatch.setattr(units, "current_rates", lambda rates=rates: rates)
        ledger = Ledger("", opened=0.0)
        assert remark not in plain(ledger)
        ledger.add(ledgers.decision("numpy.dot", 1.0, 0.1, calibrated=True), 0.0, 1.1, ledgers.frame("x.py", 5))
        for text in (plain(ledger), page(ledger)):
            assert ("calibration of this host was disturbed" in text and remark in text) == bool(told)


def test_an_empty_report_says_how_to_record():
    assert "python -m trnpy" in plain(report()) and "profile()" in plain(report())
    assert report().missed() == report().regret() == []


def test_accelerated_calls_are_recorded_with_place_reason_and_prices():
    call = accelerated(make_op())
    with policy(device="none"), profile("here") as ledger:
        call(np.ones(8))
        call(np.ones(3))
        call(np.ones(8, np.float32))
    line = test_accelerated_calls_are_recorded_with_place_reason_and_prices.__code__.co_firstlineno + 3
    tallies = {t.line: t for t in ledger.by_line()}
    assert {n: (t.reason, t.modelled) for n, t in tallies.items()} == {
        line: ("faster", 1),
        line + 1: ("small", 0),
        line + 2: ("dtype", 0),
    }
    assert {t.file for t in tallies.values()} == {__file__}
    assert all(t.seconds > 0 and t.ran_on == "host" for t in tallies.values())
    assert tallies[line].flops == 1e9 and tallies[line].machine == "trn2"
    assert report() is ledger and ledger.closed is not None


def test_forced_calls_are_those_of_the_engine_at_hand():
    def product(problem, engine):
        return 2 * engine.matmul(problem.arrays[0], np.ones((1, 1))).ravel()

    with policy(force=True, device="none"), profile() as ledger:
        accelerated(make_op(product))(np.ones((8, 1)))
    (tally,) = ledger.tallies
    assert (tally.ran_on, tally.reason) == ("host engine", "forced")


def test_a_call_declined_on_the_device_path_counts_as_retried():
    def run(problem, engine):
        if usual(problem.arrays[0].any(), False):
            raise Unsupported(Reason.VALUE, "not positive definite")

    with policy(force=True, device="none"), profile() as ledger:
        accelerated(make_op(run))(np.ones(8))
    (tally,) = ledger.tallies
    assert (tally.ran_on, tally.reason, tally.won) == ("host (retried)", "value", 0)


def test_an_enclosing_ledger_has_the_calls_of_the_inner_one_too():
    call = accelerated(make_op())
    with profile() as outer:
        call(np.ones(8))
        with profile() as inner:
            call(np.ones(8))
        assert ProcessLedger.ledger is outer
    assert inner.what_if().calls == 1
    assert outer.what_if().calls == 2
    assert outer.what_if().accelerated_s > inner.what_if().accelerated_s > 0
    assert ProcessLedger.ledger is None


def test_blocks_that_end_in_another_order_have_their_calls_and_leave_nothing_open():
    """As those of threads do: the outer one ends first, or the middle one."""
    function, x = accelerated(make_op()), np.ones(8)
    blocks = [profile() for _ in range(3)]
    opened = []
    for block in blocks:
        opened.append(block.__enter__())
        function(x)
    for i in (1, 0, 2):
        blocks[i].__exit__(None, None, None)
        function(x)
    assert [ledger.what_if().calls for ledger in opened] == [4, 2, 3]
    assert ProcessLedger.ledger is None and ProcessLedger.opened == ()


def test_a_call_belongs_to_the_nearest_frame_outside_the_libraries():
    ledger = Ledger("", opened=0.0)
    space = {"__name__": "numpy.linalg._linalg", "getframe": sys._getframe}
    exec("def inside(): return getframe(0)", space)
    line = sys._getframe(0).f_lineno + 2
    for _ in range(2):  # resolved, then remembered
        ledger.add(ledgers.decision("numpy.dot", None, None), 0.0, 1.0, space["inside"]())
    (tally,) = ledger.tallies
    assert (tally.file, tally.line, tally.calls) == (__file__, line, 2)


def test_memory_stays_bounded_and_the_counts_exact():
    ledger, tiny = Ledger("", opened=0.0), ledgers.decision("numpy.dot", None, None)
    frames = [ledgers.frame(f"generated-{i}.py", 1) for i in range(SITES + 2000)]
    for i, at in enumerate(frames):
        ledger.add(ledgers.decision("numpy.dot", 1.0, 2.0), float(i), random.Random(i).random(), at)
    assert len(ledger.tallies) <= SITES + 1
    assert len(ledger._sites.known) <= SITES
    assert len(ledger.calls) == EVENTS
    assert sum(t.calls for t in ledger.tallies) == len(frames)
    assert [t.file for t in ledger.tallies].count("") == 1  # the rest, together
    kept = min(c.seconds for c in ledger.calls)
    assert sum(random.Random(i).random() > kept for i in range(len(frames))) == EVENTS - 1  # the longest, all of them

    def add(count, at):
        for i in range(count):
            ledger.add(tiny, 1e6 + i * 1e-5, 1e-6, at)

    add(10_000, frames[0])
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    add(100_000, frames[0])
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 100_000  # bytes: less than one for each call


def test_threads_lose_no_call():
    ledger, tiny = Ledger("", opened=0.0), ledgers.decision("numpy.dot", None, None)
    priced = ledgers.decision("numpy.einsum", 1.0, 0.5)

    def work(thread):
        at = ledgers.frame(f"thread-{thread % 2}.py", 1)
        for i in range(3000):
            ledger.add(tiny if i % 3 else priced, float(i), 0.25, at)
            if i % 500 == 0:
                ledger.tallies  # noqa: B018 - reading while others write

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    finally:
        sys.setswitchinterval(interval)
    assert sum(t.calls for t in ledger.tallies) == 18_000
    assert sum(t.seconds for t in ledger.tallies) == 4500.0
    assert sum(t.won for t in ledger.tallies) == 0  # 0.25 s measured, 0.5 s modelled
    assert len({c.thread for c in ledger.calls}) >= 1


def union(intervals):
    covered, until = 0, -1
    for start, end in sorted(intervals):
        covered += max(0, end - max(start, until))
        until = max(until, end)
    return covered


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30)), max_size=40))
def test_time_in_overlapping_calls_counts_once(calls):
    ledger = Ledger("", opened=0.0)
    for start, length in calls:  # in any order: threads report late, and nested calls report first
        ledger.add(ledgers.decision("numpy.dot", None, None), float(start), float(length), None)
    ledger.closed = 100.0
    assert ledger.what_if().accelerated_s == union([(s, s + n) for s, n in calls])


def test_a_call_around_thousands_of_others_counts_no_second_twice():
    ledger, tiny = Ledger("", opened=0.0), ledgers.decision("numpy.dot", None, None)
    for i in range(5000):
        ledger.add(tiny, 1.0 + i, 0.5, None)
    ledger.add(tiny, 0.0, 5100.0, None)  # around them all
    ledger.add(tiny, 0.5, 5100.0, None)  # on another thread
    ledger.closed = 5200.0
    covered = ledger.what_if().accelerated_s
    assert 5000 * 0.5 + 100 <= covered <= 5100.5


def test_recording_is_off_unless_asked_for():
    accelerated(make_op())(np.ones(2))
    assert ProcessLedger.ledger is None and report().tallies == []


def test_machines_are_never_added_together():
    call = accelerated(make_op())

    def calls():
        for machine in ("trn1", "trn2", "trn2"):
            with policy(device="none", machine=machine):
                call(np.ones(8))

    with profile():
        calls()  # the first call loads the model
    with profile() as ledger:
        calls()
    assert sorted((t.machine, t.calls) for t in ledger.by_function()) == [("trn1", 1), ("trn2", 2)]
    assert ledger.machine == "trn2"
    assert "host, for trn1: faster, took " in plain(ledger)
