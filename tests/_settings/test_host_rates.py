"""Rates of the host: interpolated between the measured thread counts, stored with remarks, or the defaults."""

import os

import numpy as np
import pytest

from trnpy._cli import doctor
from trnpy._settings.host_rates import DEFAULT_CURVES, KINDS, HostRates, current_rates, machine_id, save


@pytest.fixture
def counts(monkeypatch):
    """A function that sets the threads of this process."""
    monkeypatch.setattr(os, "cpu_count", lambda: 8)

    def use(count):
        monkeypatch.setenv("OPENBLAS_NUM_THREADS", str(count))
        current_rates.cache_clear()

    yield use
    current_rates.cache_clear()


def rates(count, flops_per_s, remark=""):
    curves = dict.fromkeys(KINDS, ((32.0, flops_per_s), (512.0, 2 * flops_per_s)))
    return HostRates(curves, flops_per_s, True, machine_id(count), remark)


def test_rates_between_two_measured_counts_are_interpolated(counts):
    save(rates(1, 1e10))
    save(rates(4, 4e10))
    counts(2)
    found = current_rates()
    assert found.calibrated and found.machine == machine_id(2)
    assert found.copy_bytes_per_s == pytest.approx(2e10, rel=1e-12)
    np.testing.assert_allclose(found.curves["svd"], ((32, 2e10), (512, 4e10)), rtol=1e-12)
    counts(4)
    assert current_rates().copy_bytes_per_s == 4e10


def test_beyond_the_measured_counts_the_nearest_serves_and_counts_as_uncalibrated(counts, capsys):
    save(rates(2, 1e10))
    save(rates(4, 3e10))
    counts(8)
    assert (current_rates().copy_bytes_per_s, current_rates().calibrated) == (3e10, False)
    doctor.doctor([])
    assert "none, predictions rest on those of other thread counts: python -m trnpy" in capsys.readouterr().out
    counts(3)
    doctor.doctor([])
    assert "interpolated between those of other thread counts: python -m trnpy" in capsys.readouterr().out


def test_without_any_calibration_the_defaults_serve(counts):
    counts(2)
    assert current_rates().curves is DEFAULT_CURVES


def test_a_remark_is_stored_and_the_doctor_complains_of_it(counts, capsys):
    counts(1)
    save(rates(1, 1e10, "the load was 9.0 on 4 processors"))
    assert current_rates().remark == "the load was 9.0 on 4 processors"
    assert doctor.doctor([]) == 1
    assert "WRONG: disturbed: the load was 9.0 on 4 processors; python -m trnpy" in capsys.readouterr().out
