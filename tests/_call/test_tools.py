"""Tracebacks, coverage, pdb and profilers see trnpy's code under its own file names."""

import cProfile
import inspect
import json
import os
import pstats
import subprocess
import sys
import traceback
from pathlib import Path

import numpy as np
import pytest
import scipy.linalg

import trnpy
import trnpy.linalg
from trnpy._call import dispatch

DISPATCH = Path(dispatch.__file__)
PROGRAM = """
import numpy as np, trnpy
a = np.ones((20, 20), "f4")
with trnpy.policy(device="simulator", force=True):
    trnpy.matmul(a, a)
"""


def forced():
    a = np.ones((20, 20), "f4")
    with trnpy.policy(device="simulator", force=True):
        return trnpy.matmul(a, a)


def frames_of(call):
    with pytest.raises(np.linalg.LinAlgError) as raised:
        call()
    return traceback.extract_tb(raised.value.__traceback__)


def not_definite(name):
    return lambda: getattr(trnpy.linalg, name)(-np.eye(200))


CALLS = {
    "direct": not_definite("cholesky"),
    "patched": lambda: scipy.linalg.cholesky(-np.eye(200)),
    "forced": not_definite("cholesky"),
}


@pytest.mark.parametrize("kind", CALLS)
def test_a_traceback_shows_files_that_exist_and_one_frame_between_the_program_and_scipy(kind):
    def call():
        if kind == "direct":
            return CALLS[kind]()
        with trnpy.patched(device="simulator", force=kind == "forced", fallback="log"):
            return CALLS[kind]()

    frames = frames_of(call)
    renamed = [f for f in frames if not os.path.exists(f.filename)]
    ours = [f for f in frames if f"{os.sep}trnpy{os.sep}_call{os.sep}" in f.filename]
    assert len(renamed) <= 1 and ours == renamed
    assert "scipy" in frames[-1].filename
    for frame in renamed:
        assert frame.line == "way.result = way.function(*way.args, **way.kwargs)"


def test_an_exception_inside_the_device_path_shows_each_line(monkeypatch):
    def broken(*args):
        raise KeyError("planted")

    monkeypatch.setattr(dispatch, "_checked", broken)
    a = np.ones((20, 20), "f4")
    with trnpy.policy(device="simulator", force=True, fallback="raise"), pytest.raises(trnpy.FallbackError) as raised:
        trnpy.matmul(a, a)
    shown = traceback.extract_tb(raised.value.__cause__.__traceback__)
    assert {f.name for f in shown if f.filename == str(DISPATCH)} == {"_decided", "_accepted"}
    assert all(f.line for f in shown)


def ran(*command, text="", **more):
    env = {**os.environ, **more}
    return subprocess.run(
        [sys.executable, *command], input=text, capture_output=True, text=True, timeout=200, env=env, check=False
    )


def lines_of(function):
    source, first = inspect.getsourcelines(function)
    return {first + i for i, line in enumerate(source) if line.strip().startswith(("result =", "error =", "allowed ="))}


def test_coverage_counts_the_lines_that_ran(tmp_path):
    pytest.importorskip("coverage", reason="coverage is not installed")
    (tmp_path / "program.py").write_text(PROGRAM)
    file = {"COVERAGE_FILE": str(tmp_path / "coverage")}
    done = ran("-m", "coverage", "run", f"--include={DISPATCH}", str(tmp_path / "program.py"), **file)
    assert done.returncode == 0, done.stderr
    done = ran("-m", "coverage", "json", "-q", "-o", str(tmp_path / "out.json"), **file)
    assert done.returncode == 0, done.stderr
    (found,) = json.loads((tmp_path / "out.json").read_text())["files"].values()
    assert lines_of(dispatch._checked) and lines_of(dispatch._checked) <= set(found["executed_lines"])


def test_a_breakpoint_of_pdb_stops(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    commands = "import trnpy._call.dispatch\nbreak trnpy._call.dispatch._checked\ncontinue\nargs\nquit\n"
    done = ran("-m", "pdb", str(tmp_path / "program.py"), text=commands)
    assert f"> {DISPATCH}(" in done.stdout and "_checked()" in done.stdout and "problem = " in done.stdout


def test_profiles_name_the_functions_of_their_files():
    forced()
    with cProfile.Profile() as profile:
        forced()
    found = {(file, name) for file, _, name in pstats.Stats(profile).stats if file == str(DISPATCH)}
    assert {name for _, name in found} >= {"decides", "_decided", "_accepted", "_checked", "_delivered"}


def test_one_function_of_a_call_is_passed_over_by_warnings_and_it_is_the_gate_s():
    """Those of other folders stand between a route and the functions of SciPy that it calls."""
    found = [p.name for p in DISPATCH.parent.glob("*.py") if "@uncounted" in p.read_text()]
    assert sorted(found) == ["gate.py", "unsupported.py"]
