"""An engine rests after repeated faults, is tried again by a product of known answer, and says what happened."""

import warnings

import numpy as np
import pytest
from doubles import FaultyEngine, RecordingEngine

import trnpy
from trnpy._call.dispatch import Reason
from trnpy._engine.engines import engine
from trnpy._engine.health import FAULTS_BEFORE_REST, MOST, REFUSED, REST_S, SIZE, Health, cause
from trnpy._nki.runtime import CompileError, DeviceError, DeviceMemoryError, DeviceTimeout

A = np.random.default_rng(0).standard_normal((150, 150))


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


def test_causes_are_told_apart():
    errors = [CompileError(), DeviceTimeout(), DeviceMemoryError(), DeviceError(), ArithmeticError(), KeyError()]
    assert [cause(why, large=False) for why in errors] == [
        "compiler", "time limit", "out of memory", "device error", "wrong numbers", "device error",
    ]  # fmt: skip
    assert cause(DeviceMemoryError(), large=True) == SIZE
    health = Health()
    for name in ("compiler", "time limit", "compiler"):
        health.failed(name)
        health.worked()
    assert str(health) == "2 compiler, 1 time limit" and str(Health()) == "no faults"


def test_an_engine_of_which_every_second_call_fails_rests():
    health = Health()
    for n in range(MOST):
        assert not health.open, n
        health.failed("device error")
        health.worked()
    assert health.open
    rare = Health()
    for _ in range(20):
        rare.failed("device error")
        for _ in range(10):
            rare.worked()
    assert not rare.open


def test_operands_that_are_too_large_never_make_an_engine_rest():
    health = Health()
    for _ in range(10):
        health.failed(SIZE)
    assert not health.open and health.causes[SIZE] == 10


def test_each_rest_that_ends_in_a_failure_is_followed_by_one_twice_as_long():
    clock = Clock()
    health = Health(clock=clock)
    for _ in range(FAULTS_BEFORE_REST):
        health.failed("device error")
    assert health.open and not health.due
    clock.now += REST_S
    assert health.due
    health.tried(sound=False)
    clock.now += REST_S
    assert not health.due
    clock.now += REST_S
    assert health.due
    health.tried(sound=True)
    assert not health.open and not health.faults and health.rest_s == REST_S


@pytest.mark.parametrize("recovers", [False, True])
def test_after_a_rest_a_product_of_known_answer_decides(recovers):
    faulty = FaultyEngine("raises")
    faulty.health.clock = Clock()
    with engine(faulty), trnpy.policy(force=True, fallback="log"), trnpy.trace() as log:
        for _ in range(FAULTS_BEFORE_REST + 1):
            trnpy.matmul(A, A)
        assert "resting after repeated device errors: 3 device error" in log[-1].detail
        launched = faulty.products
        faulty.health.clock.now += REST_S
        if recovers:
            faulty.answer = np.matmul
        np.testing.assert_allclose(trnpy.matmul(A, A), A @ A, rtol=0, atol=1e-12)
        trnpy.matmul(A, A)
    assert log[-1].on_device == recovers and faulty.health.open != recovers
    assert faulty.products == launched + 1 + 2 * recovers


def test_memory_that_one_large_operand_fills_is_no_fault_of_the_device():
    faulty = FaultyEngine("oom")
    type(faulty).room = property(lambda self: 1000.0)
    try:
        with engine(faulty), trnpy.policy(force=True, fallback="log"), trnpy.trace() as log:
            for _ in range(5):
                trnpy.matmul(A, A)
    finally:
        del type(faulty).room
    assert {d.reason for d in log} == {Reason.OOM} and faulty.products == 5
    assert not faulty.health.open and faulty.health.causes == {SIZE: 5}


def test_results_that_are_refused_in_silence_are_counted():
    sound = RecordingEngine()
    with engine(sound), trnpy.policy(force=True), np.errstate(all="ignore"), warnings.catch_warnings():
        trnpy.matmul(A * 1e200, A * 1e200)
    assert sound.health.causes == {REFUSED: 1} and not sound.health.faults
