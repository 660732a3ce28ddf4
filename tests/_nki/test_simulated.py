"""The simulator as a runtime: launches that repeat run a recorded program, with the same results, counts and errors."""

import numpy as np
import pytest

from nkisim.hardware import MACHINES
from nkisim.run.launch import Simulation
from trnpy._nki import simulated
from trnpy._nki.runtime import CompileError
from trnpy._nki.simulated import SimulatorRuntime

ONE = np.ones((1, 1), np.float32)


@pytest.fixture
def runtime():
    return SimulatorRuntime(MACHINES["trn2"])


@pytest.fixture
def whole(monkeypatch):
    """A list with an element for each launch that the simulator runs as a whole."""
    launches, original = [], Simulation.run

    def run(self, *args, **kwargs):
        launches.append(self)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(Simulation, "run", run)
    return launches


def square(seed, n=64):
    return np.random.default_rng(seed).standard_normal((n, n)).astype(np.float32)


def test_from_the_third_launch_on_only_the_arithmetic_runs(runtime, whole):
    for i in range(5):
        x, y = square(i), square(i + 9)
        sums = runtime.launch("axpby", x, y, ONE, 2 * ONE)
        np.testing.assert_array_equal(sums, x + 2 * y)
    assert len(whole) == 2
    assert (runtime.counters.launches["axpby"], runtime.counters.compiles["axpby"]) == (5, 1)
    runtime.launch("axpby", square(0, 65), square(1, 65), ONE, ONE)  # other shapes
    runtime.launch("axpby", square(0), square(1), -ONE, ONE)
    assert len(whole) == 3


def test_buffers_given_twice_are_another_program(runtime, whole):
    for i in range(4):
        x = runtime.put(square(i))
        for pair, expected in (((x, x), 2 * square(i)), ((x, runtime.put(square(9))), square(i) + square(9))):
            found = runtime.get(runtime.run("axpby", *pair, runtime.put(ONE), runtime.put(ONE)))
            np.testing.assert_array_equal(found, expected)
    assert len(whole) == 4


def test_a_fault_in_a_repeated_launch_is_the_fault_of_a_whole_one(runtime, monkeypatch):
    launch = lambda: runtime.launch("axpby", square(0), square(1), ONE, ONE)  # noqa: E731
    for _ in range(3):
        launch()
    monkeypatch.setattr(simulated.Program, "again", lambda self, arrays: None)

    def refuse(self, *args, **kwargs):
        raise simulated.SimulatorError("a fault")

    monkeypatch.setattr(Simulation, "__call__", refuse)
    with pytest.raises(CompileError, match="a fault"):
        launch()


def test_the_least_recently_used_programs_are_dropped(runtime, whole, monkeypatch):
    def launched(n):
        before = len(whole)
        runtime.launch("axpby", square(0, n), square(1, n), ONE, ONE)
        return len(whole) - before

    sizes = 64, 65, 66
    for n in sizes:
        launched(n), launched(n)
    each = [p.nbytes for p in runtime._programs._known.values()]
    assert launched(64) == 0  # now the last that may be dropped
    monkeypatch.setattr(simulated, "PROGRAM_BYTES", sum(each))
    assert launched(67) == launched(67) == 1
    assert [launched(n) for n in (64, 67)] == [0, 0]
    assert launched(65) == 1 and launched(65) == 0  # recorded again
