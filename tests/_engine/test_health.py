"""An engine rests after repeated faults, is tried again by a product of known answer, and says what happened."""

import contextlib
import types

import numpy as np
import pytest
from doubles import FaultyEngine, RecordingEngine

import trnpy
from nkisim.hardware import TRN2
from trnpy._call.dispatch import Reason
from trnpy._call.verify import Verified
from trnpy._cli.doctor import doctor
from trnpy._engine.engines import DeviceEngine, engine
from trnpy._engine.health import (
    BARRED_S,
    CAUSES,
    COMPILER,
    FAULTS_BEFORE_REST,
    HANGS,
    KEPT,
    MOST,
    REST_S,
    SIZE,
    WRONG,
    Health,
    cause,
    path,
    remember,
    remembered,
)
from trnpy._engine.residency import TRUSTED
from trnpy._nki.runtime import CompileError, DeviceError, DeviceMemoryError, DeviceTimeout
from trnpy._nki.simulated import SimulatorRuntime

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
    for name in ("compiler", "device error", "compiler"):
        health.failed(name)
        health.worked()
    assert str(health) == "2 compiler, 1 device error" and str(Health()) == "no faults"
    assert {cause(why, large) for why in errors for large in (False, True)} <= set(CAUSES)


def test_a_device_that_hangs_rests_at_once():
    health = Health()
    health.failed(HANGS)
    assert health.open


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
    assert [d.reason for d in log] == [Reason.OOM] + 4 * [Reason.ERROR] and faulty.products == 1
    assert log[-1].detail == "calls of this kind stay on the host after a fault: too large"
    assert not faulty.health.open and faulty.health.causes == {SIZE: 1}


def test_calls_of_a_kind_that_does_not_compile_stay_on_the_host_and_others_do_not():
    clock, faulty = Clock(), FaultyEngine("raises")
    faulty.health.clock = clock

    def uncompiled(a, b):
        raise CompileError("ncc_ error")

    faulty.answer = uncompiled
    with engine(faulty), trnpy.policy(force=True, fallback="log"):
        for _ in range(5):
            trnpy.matmul(A, A)
        assert faulty.health.causes == {COMPILER: 1} and not faulty.health.open
        assert faulty.health.refusals == {"error": 4}
        faulty.answer = np.matmul
        with trnpy.trace() as log:
            trnpy.matmul(A[:, :20], A[:20])
            trnpy.matmul(A, A)
            clock.now += BARRED_S
            trnpy.matmul(A, A)
    assert [d.on_device for d in log] == [True, False, True]


@pytest.mark.parametrize(
    ("refused", "reason"),
    [
        (lambda: trnpy.matmul(A * 1e200, A * 1e200), "accuracy"),
        (lambda: trnpy.matmul(A.astype(object), A), "dtype"),
        (lambda: trnpy.linalg.cholesky(np.eye(150) + 1j, check_finite=False), "value"),
    ],
)
def test_calls_that_are_left_to_the_host_in_silence_are_counted(refused, reason):
    sound = RecordingEngine()
    with engine(sound), trnpy.policy(force=True), np.errstate(all="ignore"), contextlib.suppress(np.linalg.LinAlgError):
        refused()
    assert sound.health.refusals == {reason: 1} and not sound.health.causes


class Decaying(SimulatorRuntime):
    """A device whose memory changes by itself: ``decay`` damages every buffer that was put."""

    def __init__(self):
        super().__init__(TRN2)
        self.buffers = []

    def put(self, array):
        self.buffers.append(super().put(array))
        return self.buffers[-1]

    def decay(self):
        for b in self.buffers:
            b.value.flat[0] += 1


def test_an_operand_that_changes_on_the_device_is_told_from_wrong_arithmetic():
    decaying, a = DeviceEngine(Decaying()), A.astype("f4")
    with engine(decaying), trnpy.policy(force=True, fallback="log"), trnpy.resident(a), trnpy.trace() as log:
        trnpy.matmul(a, a[:, :3])
        decaying.runtime.decay()
        trnpy.matmul(a, a[:, :3])
        assert decaying.health.causes == {WRONG: 1}
        trnpy.matmul(a, a[:, :3])
    assert [d.on_device for d in log] == [True, False, True] and decaying.health.causes == {WRONG: 1, KEPT: 1}
    assert not decaying.health.open


def test_operands_that_stay_on_the_device_are_compared_now_and_then():
    decaying, a = DeviceEngine(Decaying()), A.astype("f4")
    kept = [decaying.keep(a, "form", lambda: decaying.hold(a)) for _ in range(2)][1]
    decaying.runtime.decay()
    for use in range(TRUSTED):
        assert decaying.keep(a, "form", lambda: decaying.hold(a)) is kept, use
    renewed = decaying.keep(a, "form", lambda: decaying.hold(a))
    np.testing.assert_array_equal(decaying.get(renewed), a)
    assert decaying.health.causes == {KEPT: 1}


@pytest.mark.parametrize("on_host, ours", [(0.0, False), (4e5, False), (6e5, True)])
def test_a_comparison_that_fails_for_the_hosts_own_result_is_no_fault_of_the_engine(on_host, ours, monkeypatch):
    found = iter([1e6, on_host])
    monkeypatch.setattr(Verified, "apart", lambda *_: next(found))
    with engine(RecordingEngine()) as sound, trnpy.policy(force=True, verify=1.0, fallback="log"), trnpy.trace() as log:
        np.testing.assert_array_equal(trnpy.matmul(A, A), A @ A)
    assert sound.health.causes == ({} if ours else {WRONG: 1})
    assert ("so does the algorithm's on the host" in log[0].detail) == ours and not log[0].on_device


def test_the_report_and_the_doctor_tell_of_faults(capsys, monkeypatch):
    faulty = FaultyEngine("raises")
    with engine(faulty), trnpy.policy(force=True, fallback="log"), trnpy.profile() as ledger:
        trnpy.matmul(A, A)
        trnpy.matmul(A.astype(object), A)
    told = "faults: 1 device error; left to the host without a fault: 1 dtype"
    assert f"faulty (raises): {told} (since the process began)" in ledger.details()
    assert ledger.to_dict()["engines"] == {
        faulty.name: {"faults": {"device error": 1}, "refusals": {"dtype": 1}, "rests": False}
    }
    remember("time limit", "neuron", "trn2")
    remember("time limit", "neuron", "trn2")
    with engine(faulty):
        assert doctor([]) == 1
    said = capsys.readouterr().out
    assert f"faulty (raises), in this process: {told}" in said
    assert f"WRONG: trn2, 2 time limit: {CAUSES['time limit'].then}" in said
    with monkeypatch.context() as other:
        other.setattr("trnpy._nki.device.software", lambda: {"nki": "another"})
        assert "is for" in remembered("neuron", "trn2").ignored
    path("neuron", "trn2").write_text("{")
    assert remembered("neuron", "trn2").ignored


def test_faults_of_a_device_are_kept_for_the_doctor():
    faulty = FaultyEngine("raises")
    faulty.compiles = types.SimpleNamespace(active=True, seconds=lambda *_: 0.0)  # as of a device
    with engine(faulty), trnpy.policy(force=True, fallback="log"):
        trnpy.matmul(A, A)
        trnpy.matmul(A, A)
    assert remembered(faulty.name, "trn2").content == {"device error": 2}
