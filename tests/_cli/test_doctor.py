"""``python -m trnpy doctor`` and ``calibrate``: what they name, what they complain of, and what they keep."""

import os
import re
import sys

import pytest
from programs import TRNPY, run

import trnpy
from trnpy._cli import calibration, doctor, runner
from trnpy._nki.device import detect
from trnpy._patch.patch import _select
from trnpy._settings import host_rates
from trnpy._settings.host_rates import machine_id


def test_the_doctor_names_everything_and_is_content(variables, capsys):
    variables.setenv("TRNPY_MACHINE", "trn3")
    variables.setenv("TRNPY_REQUIRE_NKI", "1")
    assert runner.main(["doctor"]) == 0
    said = capsys.readouterr().out
    for pattern in (
        rf"^trnpy +{re.escape(trnpy.__version__)} \(trnpy-nki\), {re.escape(os.path.dirname(trnpy.__file__))}$",
        rf"^python +{sys.version.split()[0]}",
        r"numpy 2\.\d",
        r"scipy 1\.\d",
        r"numpy: \S*blas",
        r"^policy +device = auto \(default\)$",
        r"machine = trn3 \(from TRNPY_MACHINE\)",
        r"fallback = raise \(from TRNPY_REQUIRE_NKI\)",
        rf"^device +{re.escape(', '.join(detect().nodes) if detect().available else f'none: {detect().missing}')}$",
        r"^machine +trn3: .*\(published; times are modelled within .*\)$",
        r"^calibration +none, predictions are rough: python -m trnpy calibrate would write .*\.json$",
        r"^nothing is wrong$",
    ):
        assert re.search(pattern, said, re.M), pattern
    assert machine_id() in said
    assert all(name in said for name in (*doctor.PACKAGES, *_select(None)))


@pytest.mark.parametrize(
    "name, value, complaint",
    [
        ("TRNPY_VERIFY", "2", "TRNPY_VERIFY='2': verify=2.0: expected a number from 0 to 1"),
        ("TRNPY_DEVCE", "null", "TRNPY_DEVCE is not a variable of trnpy's: did you mean TRNPY_DEVICE?"),
        ("TRNPY_COLOUR_OF_IT", "1", "TRNPY_COLOUR_OF_IT is not a variable of trnpy's: TRNPY_CORES, TRNPY_DEVICE, "),
        ("TRNPY_DEVICE", "neuron", "TRNPY_DEVICE=neuron: no Neuron device"),
    ],
)
def test_the_doctor_finds_what_is_wrong(variables, capsys, name, value, complaint):
    variables.setenv(name, value)
    assert doctor.doctor([]) == 1
    said = capsys.readouterr().out
    assert re.search(rf"WRONG: .*{re.escape(complaint)}", said)
    assert "1 of these is wrong" in said


def test_the_doctor_reads_the_calibration(variables, capsys):
    path = host_rates.save(
        host_rates.HostRates(dict.fromkeys(host_rates.KINDS, ((32.0, 1e10),)), 1e10, True, machine_id())
    )
    assert doctor.doctor([]) == 0
    assert f"{path}, 0.0 days old\n" in capsys.readouterr().out
    path.write_text("{}")
    host_rates.current_rates.cache_clear()
    assert doctor.doctor([]) == 1
    assert re.search(rf"WRONG: ignored: {re.escape(str(path))} is not what trnpy writes", capsys.readouterr().out)
    assert not host_rates.current_rates().calibrated  # no program ends for it


def test_a_home_without_a_cache_is_said_by_the_doctor_and_stops_no_program(variables, folder):
    status, out, _ = run(folder, "-m", "trnpy", "doctor", XDG_CACHE_HOME="/dev/null")
    assert status == 1
    assert re.search("WRONG: nothing that is measured or compiled can be kept: .*Not a directory", out)
    assert run(folder, *TRNPY, "program.py", XDG_CACHE_HOME="/dev/null") == (0, "hello\ngoodbye\n", "")
    assert run(folder, *TRNPY, "--force", "program.py", XDG_CACHE_HOME="/dev/null", TRNPY_DEVICE="simulator")[0] == 0


def test_the_doctor_looks_for_escapes_in_the_modules_named(variables, capsys, importable, tmp_path):
    (tmp_path / "imported_once" / "__init__.py").write_text("from numpy import einsum\n")
    assert doctor.doctor([importable]) == 0
    assert "imported_once.einsum is numpy.einsum: imported before a patch, it escapes it" in capsys.readouterr().out
    assert doctor.doctor(["no_such_module"]) == 1


@pytest.mark.parametrize("rich", [True, False])
def test_calibration_shows_progress_and_is_saved(monkeypatch, capsys, rich):
    """The real measurement, of the smallest sizes only."""
    least = {work[0]: work for work in reversed(list(calibration._workloads()))}
    monkeypatch.setattr(calibration, "_workloads", lambda: iter(least.values()))
    if not rich:
        monkeypatch.setitem(sys.modules, "rich", None)
        monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: None)
    assert not host_rates.current_rates().calibrated
    assert runner.main(["calibrate"]) == 0
    said = capsys.readouterr()
    assert ("calibrated" if rich else "matmul n=32\n") in said.err
    assert re.search(r"^matmul +n=32: \S+ Gflop/s$", said.out, re.M)
    path = re.search(r"measured in \d+ s and saved: (.*\.json)$", said.out, re.M).group(1)
    assert os.path.exists(path)
    assert host_rates.current_rates().calibrated


@pytest.mark.slow
def test_calibration_takes_less_than_a_minute(folder):
    status, out, _ = run(folder, "-m", "trnpy", "calibrate", XDG_CACHE_HOME=str(folder))
    assert status == 0
    assert int(re.search(r"measured in (\d+) s", out).group(1)) < 60


@pytest.mark.parametrize(
    "name, value, wrong, says",
    [
        ("NEURON_RT_STOCHASTIC_ROUNDING_EN", "1", True, "rounded at random"),
        ("NEURON_LOGICAL_NC_CONFIG", "2", True, "NEURON_LOGICAL_NC_CONFIG=2"),
        ("NEURON_CC_FLAGS", "--auto-cast=all -O1", False, "has --auto-cast=all: trnpy compiles with --auto-cast=none"),
        ("NKI_COMPILER_FRONTEND", "parser", False, "by nki's parser, for LNC 1: a NeuronCore is a physical core"),
        ("NEURON_COMPILE_CACHE_URL", "/elsewhere", False, "kept in /elsewhere (from NEURON_COMPILE_CACHE_URL)"),
    ],
)
def test_the_doctor_reads_the_environment(monkeypatch, capsys, name, value, wrong, says):
    monkeypatch.setenv(name, value)
    assert doctor.doctor([]) == int(wrong)
    assert says in capsys.readouterr().out
