"""Calibration: measured until turns agree, remarked upon where disturbed, and interpolated between thread counts."""

import math
import os

import numpy as np
import pytest

from trnpy._cli import calibration
from trnpy._settings import host_rates
from trnpy._settings.host_rates import DEFAULT_CURVES, KINDS, HostRates


@pytest.fixture
def scripted(monkeypatch):
    """A calibration of three workloads whose seconds are given turn by turn; returns it and the calls that it made."""

    def run(*turns, load=0.1, copies=(1.0,) * calibration.TURNS):
        calls, visits, left = [], {}, list(copies)

        def fastest(call, budget_s):
            if call not in (0, 1, 2):
                return left.pop(0)  # the copy
            calls.append(call)
            visits[call] = visits.get(call, -1) + 1
            return turns[visits[call]][call]

        monkeypatch.setattr(calibration, "_workloads", lambda: [(kind, 32, 1.0, i) for i, kind in enumerate(KINDS[:3])])
        monkeypatch.setattr(calibration, "_fastest", fastest)
        monkeypatch.setattr(os, "getloadavg", lambda: (load,) * 3, raising=False)
        monkeypatch.setattr(os, "cpu_count", lambda: 4)
        return calibration.calibrate(), calls

    return run


def test_a_workload_is_measured_until_two_turns_agree_and_the_fastest_counts(scripted):
    found, calls = scripted((1.0, 1.0, 4.0), (1.05, 0.95, 2.0), (9.0, 9.0, 2.1))
    assert calls == [0, 1, 2, 0, 1, 2, 2]
    assert [found.curves[kind][0][1] for kind in KINDS[:3]] == pytest.approx([1.0, 1 / 0.95, 0.5], rel=1e-12)
    assert found.remark == ""


def test_the_fastest_copy_of_all_turns_counts(scripted):
    found, _ = scripted(*[(1.0, 1.0, 1.0)] * calibration.TURNS, copies=(9.0, 2.0, 3.0, 4.0))
    assert found.copy_bytes_per_s == pytest.approx(2 * 8 * 2**24 / 2.0, rel=1e-12)


def test_what_does_not_repeat_and_a_load_are_remarked_upon(scripted):
    found, calls = scripted(*[(1.0, 1.0, 2.0**-i) for i in range(calibration.TURNS)], load=3.0)
    assert calls.count(2) == calibration.TURNS
    assert found.remark == ("the load was 3.0 on 4 processors; 1 of 3 measurements did not repeat within 10%")


def test_a_short_call_is_repeated_for_a_while():
    calls = []
    assert 0 <= calibration._fastest(lambda: calls.append(1), 1.0) < math.inf
    assert len(calls) > calibration.REPEATS


def test_the_thread_count_is_that_which_blas_reads(monkeypatch):
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert host_rates.threads() == 3
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "auto")
    assert host_rates.threads() == 3
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert host_rates.threads() == (os.cpu_count() or 1)


def test_a_complex_matrix_takes_as_long_as_a_real_one_of_as_many_operations():
    curve = HostRates(DEFAULT_CURVES, 1e10, False, "")
    flops, real, complex_ = 36 * 128.0**3, np.dtype("f8"), np.dtype("c16")
    larger = curve.seconds("eigh", 128 * 4 ** (1 / 3), flops, real)
    assert curve.seconds("eigh", 128, flops, complex_) == pytest.approx(larger, rel=1e-12)
