"""Sums of calls: what a device would gain or lose on each line, and which times are no gain of a device."""

import itertools
import time

import ledgers
import pytest

from nkisim.hardware import ERROR_FACTOR
from trnpy._call.dispatch import Reason
from trnpy._report import ledger as ledger_module
from trnpy._report.ledger import Ledger, ProcessLedger
from trnpy._report.page import page
from trnpy._report.text import plain
from trnpy._settings.policy import HYSTERESIS


@pytest.fixture(autouse=True)
def nothing_recorded(monkeypatch):
    monkeypatch.setattr(ProcessLedger, "ledger", None)
    monkeypatch.setattr(ProcessLedger, "last", None)


def test_missed_are_host_calls_that_the_modelled_device_wins_by_the_hysteresis():
    ledger, at = Ledger("", opened=0.0), ledgers.frame("x.py", 5)
    for device_s in (1.0 / HYSTERESIS * 0.999, 1.0 / HYSTERESIS * 1.001, 0.9, 3.0):
        ledger.add(ledgers.decision("numpy.dot", 2.9, device_s), 0.0, 1.0, at)  # measured 1 s, whatever was predicted
    (missed,) = ledger.missed()
    assert (missed.won, missed.calls, missed.won_s) == (1, 4, 1.0)
    assert missed.gain_s == pytest.approx(1.0 - 0.999 / HYSTERESIS, rel=1e-12)
    assert ledger.regret() == []


def test_a_host_slower_than_predicted_is_no_gain_of_a_device_but_said():
    """trnpy decides by the prediction: a disturbed host must not make a device look good."""
    ledger = Ledger("", opened=0.0)
    ledger.add(ledgers.decision("numpy.dot", 0.01, 0.1), 0.0, 4.0, ledgers.frame("x.py", 5))
    ledger.closed = 10.0
    (missed,) = ledger.missed()
    assert "1 in doubt: this host took longer than predicted, or than for the fastest" in page(ledger)
    assert (missed.won, missed.doubted, missed.doubted_s, missed.gain_s) == (0, 1, 4.0, 0.0)
    assert "one core of a trn2 would make no difference to this run" in plain(ledger)
    said = (
        "not counted: 1 call took 4.00 s (measured), 10.0 ms (predicted) and 69-145 ms on the trn2 (modelled): "
        "the host was busy, or the operands were not in its caches"
    )
    assert said in plain(ledger) and said in page(ledger)
    assert "not counted" not in plain(ledgers.small())


def test_time_without_a_processor_is_no_sign_of_a_slow_host():
    """Without calibration the measured time counts, except time without a processor, if it is near the prediction."""
    verdicts = []
    for predicted_s in (0.01, 4.0, 9.9):
        for ran_s in (4.0, 0.02):
            ledger = Ledger("", opened=0.0)
            slow = ledgers.decision("numpy.dot", predicted_s, 0.1, calibrated=False)
            ledger.add(slow, 0.0, 4.0, ledgers.frame("x.py", 5), ran_s)
            ledger.closed = 10.0
            verdicts.append(ledger.what_if().verdict)
    assert verdicts == ["not enough data", "no difference", *["faster", "no difference"] * 2]


def test_threads_that_wait_for_others_are_no_gain_of_a_device(monkeypatch):
    """Of several threads of BLAS one that has a processor uses it to wait for one that has none."""
    verdicts = []
    for count in ("1", "2"):
        monkeypatch.setenv("OPENBLAS_NUM_THREADS", count)
        for ran_s in (4.0, 2.0):
            ledger = Ledger("", opened=0.0)
            slow = ledgers.decision("numpy.dot", 0.01, 0.1, calibrated=False)
            ledger.add(slow, 0.0, 4.0, ledgers.frame("x.py", 5), ran_s)
            ledger.closed = 10.0
            verdicts.append(ledger.what_if().verdict)
    assert verdicts == [*["not enough data"] * 3, "no difference"]


def test_threads_that_others_kept_from_processors_are_no_gain_of_a_device(monkeypatch):
    """The calling thread has its processor all the time, and spins until the others of BLAS have had one."""
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "2")
    verdicts = []
    for share in (0.02, 0.5):
        waited, now = itertools.count(0.0, share * 4.0), itertools.count(0.0, 4.0)
        monkeypatch.setattr(ledger_module, "waited_s", lambda waited=waited: next(waited))
        ledger = Ledger("", opened=next(now))
        ledger.add(ledgers.decision("numpy.dot", 0.01, 0.1, calibrated=False), 0.0, 4.0, ledgers.frame("x.py", 5), 4.0)
        with monkeypatch.context() as patch:
            patch.setattr(time, "perf_counter", lambda now=now: next(now))
            ledger.closed = 4.0
            verdicts.append(ledger.what_if().verdict)
    assert verdicts == ["not enough data", "no difference"]


def test_a_call_that_takes_little_longer_than_predicted_gains_the_same_with_a_calibration_and_without():
    saved_s = []
    for calibrated in (True, False):
        ledger = Ledger("", opened=0.0)
        decision = ledgers.decision("numpy.dot", 1.0, 0.6, calibrated=calibrated)
        ledger.add(decision, 0.0, 1.1, ledgers.frame("x.py", 5))
        ledger.closed = 10.0
        what_if = ledger.what_if()
        saved_s.append((what_if.least_s, what_if.most_s))
    assert saved_s[0] == saved_s[1]
    assert saved_s[0] == pytest.approx((1.1 - 0.6 * ERROR_FACTOR, 1.1 - 0.6 / ERROR_FACTOR), rel=1e-12)


def test_a_slow_host_adds_nothing_to_a_gain():
    """A call that took longer than a calibration predicts counts with the predicted time; no gain is above 3 times."""
    what_ifs = []
    for seconds in (1.0, 2.9, 3.1):
        ledger = Ledger("", opened=0.0)
        ledger.add(ledgers.decision("numpy.dot", 1.0, 0.1), 0.0, seconds, ledgers.frame("x.py", 5))
        ledger.closed = 10.0
        what_ifs.append(ledger.what_if())
    quiet, busy, unclear = what_ifs
    assert quiet.host_s - quiet.device_s == pytest.approx(0.9, rel=1e-12)
    assert busy.host_s - busy.device_s == pytest.approx(0.9, rel=1e-12)
    assert (busy.least_s, busy.most_s) == pytest.approx((quiet.least_s, quiet.most_s), rel=1e-12)
    assert (unclear.least_s, unclear.most_s, unclear.verdict) == (0.0, 0.0, "not enough data")


def test_regret_are_device_calls_slower_than_the_predicted_host():
    ledger = Ledger("", opened=0.0)
    for line, seconds in ((1, 0.4), (2, 2.0), (3, 5.0)):
        d = ledgers.decision("numpy.dot", 1.0, 0.3, on_device=True, engine="neuron")
        ledger.add(d, 10.0 * line, seconds, ledgers.frame("x.py", line))
    assert [(t.line, t.lost_s, t.lost_host_s) for t in ledger.regret()] == [(3, 5.0, 1.0), (2, 2.0, 1.0)]
    assert ledger.missed() == []  # the device had them
    assert "neuron: 2 calls took 5.00 s longer than on the host (predicted)" in plain(ledger)


def test_a_failed_device_call_is_a_loss_and_never_a_gain():
    ledger = Ledger("", opened=0.0)
    d = ledgers.decision("numpy.dot", 1.0, 0.1, reason=Reason.ERROR, detail="DeviceTimeout: 60 s")
    ledger.add(d, 0.0, 61.0, ledgers.frame("x.py", 2))
    assert ledger.missed() == []
    assert [t.lost_s for t in ledger.regret()] == [61.0]
    assert "numpy.dot fell back to the host in 1 call at x.py:2: error: DeviceTimeout: 60 s" in plain(ledger)
