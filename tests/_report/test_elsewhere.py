"""Processor time outside accelerated functions: its kind, and the package of native code."""

import os
import sys
import types

import numpy as np
import pytest

from trnpy._report.elsewhere import IMPORTS, LIBRARIES, NATIVE, NUMBA, PYTHON, Elsewhere, Meter, Spot, _kind
from trnpy._report.instructions import CALLS

HERE = "called_here"


def frame_in(*modules, file="<string>"):
    """The innermost of frames in ``modules``, from the outermost on."""
    space = {"__name__": modules[-1], "inner": sys._getframe}
    for name in reversed(modules):
        space = {"__name__": name, "inner": space.get("step", sys._getframe)}
        exec(compile("def step(): return inner()", file if name.startswith("importlib") else "x.py", "exec"), space)
    return space["step"]()


@pytest.mark.parametrize(
    ("modules", "expected"),
    [
        (("script",), PYTHON),
        (("script", "library.inner"), PYTHON),
        (("script", "importlib._bootstrap", "library"), IMPORTS),
        (("script", "scipy.optimize"), LIBRARIES),
        (("script", "numba.core"), NUMBA),
        (("script", "trnpy._call.dispatch", "pyscf.df"), ""),
        (("script", "trnpy._call.gate"), ""),
    ],
)
def test_the_kind_of_work_follows_from_the_frames(modules, expected):
    assert _kind(frame_in(*modules, file="<frozen importlib._bootstrap>")) == expected


def calls(source):
    """The first instruction of ``source`` that calls anything."""
    import dis

    code = compile(source, "script.py", "exec")
    return Spot(code, next(s.offset for s in dis.get_instructions(code) if s.opcode in CALLS), HERE)


@pytest.fixture
def module(monkeypatch):
    here = types.ModuleType(HERE)
    dispatcher = type("CPUDispatcher", (), {"__module__": "numba.core.registry", "__call__": lambda self: None})
    wrapper = types.ModuleType("slycot._wrapper")
    wrapper.sb02md = type("fortran", (), {"__module__": None, "__call__": lambda self: None})()
    here.np, here.kernel, here.wrapper, here.len, here.os = np, dispatcher(), wrapper, len, os
    monkeypatch.setitem(sys.modules, HERE, here)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("kernel()", (NUMBA, HERE)),
        ("wrapper.sb02md()", (NATIVE, "slycot")),
        ("np.sin(1)", (LIBRARIES, "")),
        ("len(x)", (PYTHON, "")),
        ("os.stat(x)", (PYTHON, "")),
        ("x.method()", (NATIVE, HERE)),
    ],
)
def test_native_code_is_named_by_what_is_called(module, source, expected):
    elsewhere = Elsewhere()
    elsewhere.native[calls(source)] = 2.0
    assert elsewhere.found() == [(*expected, 2.0)]


def test_a_small_call_of_an_accelerated_function_is_not_elsewhere(module):
    import trnpy

    sys.modules[HERE].dot = trnpy.dot
    elsewhere = Elsewhere()
    elsewhere.native[calls("dot(x)")] = 2.0
    assert elsewhere.found() == []


@pytest.mark.parametrize(
    ("late_s", "own_s", "main_s", "native"),
    [
        (0.0001, 0.0, 0.0, True),  # the interpreter lock was free
        (0.005, 0.0, 0.0, False),  # Python code gave it up
        (0.05, 0.0, 0.0, True),  # one call held it
        (0.05, 0.045, 0.0, False),  # the sampling thread had no processor
        (0.05, 0.0, 0.045, False),  # the main thread had none
    ],
)
def test_native_code_is_told_by_the_interpreter_lock(monkeypatch, late_s, own_s, main_s, native):
    found = []
    elsewhere = types.SimpleNamespace(add=lambda frames, seconds, native: found.append((bool(frames), native)))
    meter = Meter()
    waits = iter([(own_s, main_s)])
    meter.waited_s = (0.0, 0.0)
    monkeypatch.setattr(meter, "_waits", lambda: next(waits))
    monkeypatch.setattr("trnpy._report.elsewhere._thread.get_ident", lambda: -1)  # this thread samples another one
    meter.add_to(elsewhere, late_s)
    assert found == [(True, native)]


def test_times_of_threads_that_wait_go_to_those_that_run():
    elsewhere = Elsewhere()
    elsewhere.add([frame_in("script", "threading"), frame_in("script")], 1.0, native=False)
    elsewhere.add([frame_in("script"), frame_in("script", "numpy.lib")], 1.0, native=False)
    assert elsewhere.seconds == {PYTHON: 1.5, LIBRARIES: 0.5}
    outer = Elsewhere()
    outer.absorb(elsewhere)
    outer.absorb(elsewhere)
    assert outer.seconds == {PYTHON: 3.0, LIBRARIES: 1.0}
