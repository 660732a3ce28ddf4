"""What a device does not take, and what goes wrong on it: the host's result, a reason with a phrase, a count."""

import numpy as np
import pytest

import trnpy
from nkisim.hardware import TRN2
from trnpy._call.dispatch import NkiFallbackWarning, Reason
from trnpy._engine.engines import FAULTS_BEFORE_REST, DeviceEngine, Refused, engine
from trnpy._nki.runtime import CompileError, DeviceError, DeviceMemoryError
from trnpy._nki.simulated import SimulatorRuntime

FORMS = ["f2", "f4", "F", "d", "D", "i4", "i8", "?"]


@pytest.fixture
def device():
    e = DeviceEngine(SimulatorRuntime(TRN2))
    with engine(e), trnpy.policy(force=True, device_memory=1.0):
        yield e


def operands(dtype, *stack, n=20):
    a, b = np.random.default_rng(0).standard_normal((2, *stack, n, n)) * 3
    return a.astype(dtype), b.astype(dtype)


def host_decision(call):
    with trnpy.trace() as log:
        result = call()
    assert not log[0].on_device
    return result, log[0]


@pytest.mark.parametrize("dtype", ["g", "G", "O"])
def test_dtypes_without_a_device_path(device, dtype):
    a, b = operands(dtype)
    c, decision = host_decision(lambda: trnpy.matmul(a, b))
    np.testing.assert_array_equal(c, np.matmul(a, b))
    assert decision.reason is Reason.DTYPE and "no device path" in decision.detail
    if dtype != "O":
        with pytest.raises(Refused, match="no product of"):
            device.put(a)
        with pytest.raises(Refused, match="no product of"):
            device.trsm(a, b)


@pytest.mark.parametrize("shapes", [((0, 3), (3, 2)), ((3, 0), (0, 2)), ((3, 2), (2, 0)), ((0, 2, 2), (2, 2))])
@pytest.mark.parametrize("dtype", FORMS)
def test_empty_operands(device, shapes, dtype):
    a, b = (np.ones(s, dtype) for s in shapes)
    c, decision = host_decision(lambda: trnpy.matmul(a, b))
    np.testing.assert_array_equal(c, np.matmul(a, b))
    assert decision.reason is Reason.LAYOUT and "empty" in decision.detail
    with pytest.raises(Refused, match="empty"):
        device.matmul(a, b)
    with pytest.raises(Refused, match="not one non-empty matrix"):
        device.put(np.ones((0, 3), dtype))
    with pytest.raises(Refused, match="not one non-empty matrix"):
        device.put(np.ones((2, 3, 4), dtype))
    if dtype in "fFdD":
        with pytest.raises(Refused, match="empty"):
            device.trsm(np.ones((3, 3), dtype), np.ones((3, 0), dtype))


@pytest.mark.parametrize("stack", [(), (3,)])
@pytest.mark.parametrize("dtype", FORMS)
def test_a_budget_below_the_smallest_block(device, dtype, stack):
    a, b = operands(dtype, *stack, n=200)
    with trnpy.policy(device_memory=1000.0):
        c, decision = host_decision(lambda: trnpy.matmul(a, b))
        assert decision.reason is Reason.DTYPE and "device_memory of 1e+03 bytes" in decision.detail
        with pytest.raises(Refused, match=r"device_memory|exceeds the largest operand"):
            device.put(operands(dtype, n=200)[0])
    np.testing.assert_array_equal(c, np.matmul(a, b))


@pytest.mark.parametrize("stack", [(), (3,)])
@pytest.mark.parametrize("dtype", FORMS)
@pytest.mark.parametrize(
    "fault, reason",
    [(DeviceError, Reason.ERROR), (CompileError, Reason.ERROR), (DeviceMemoryError, Reason.OOM)],
)
def test_faults_give_the_host_result_and_are_counted(device, dtype, stack, fault, reason):
    def fail(*args, **kwargs):
        raise fault("NRT_EXEC_HW_ERR")

    device.runtime.run = device.runtime.launch = fail
    a, b = operands(dtype, *stack)
    with pytest.warns(NkiFallbackWarning, match="NRT_EXEC_HW_ERR") as caught:
        c, decision = host_decision(lambda: trnpy.matmul(a, b))
    assert [warning.filename for warning in caught] == [__file__]
    np.testing.assert_array_equal(c, np.matmul(a, b))
    assert decision.reason is reason and fault.__name__ in decision.detail and device.health.faults == 1
    for product in (lambda: device.matmul(a, b), lambda: device.get(device.gram(device.put(operands(dtype)[0])))):
        with pytest.raises(fault):
            product()


def test_the_engine_rests_after_repeated_faults(device):
    def fail(*args, **kwargs):
        raise DeviceError("NRT_EXEC_HW_ERR")

    device.runtime.run = fail
    a, b = operands("d")
    with trnpy.policy(fallback="log"), trnpy.trace() as log:
        for _ in range(FAULTS_BEFORE_REST + 1):
            np.testing.assert_array_equal(trnpy.matmul(a, b), a @ b)
    assert device.health.open and "resting" in log[-1].detail and device.health.faults == FAULTS_BEFORE_REST


@pytest.mark.parametrize("function", [trnpy.matmul, trnpy.tensordot, trnpy.linalg.eigh, trnpy.linalg.solve])
def test_memory_maps_go_to_the_device(function, tmp_path):
    a = np.random.default_rng(0).standard_normal((150, 150))
    np.save(tmp_path / "a.npy", a + a.T)
    mapped = np.load(tmp_path / "a.npy", mmap_mode="r")
    operands = {trnpy.matmul: (mapped, mapped), trnpy.tensordot: (mapped, mapped, 1), trnpy.linalg.eigh: (mapped,)}
    with trnpy.policy(device="simulator", force=True), trnpy.trace() as decisions:
        function(*operands.get(function, (mapped, np.ones(150))))
    assert decisions[0].on_device
