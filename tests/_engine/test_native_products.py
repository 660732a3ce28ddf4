"""Products in formats that TensorE multiplies directly: precisions by name, half precision, chains of handles."""

import numpy as np
import pytest

import trnpy
from nkisim.hardware import TRN2
from trnpy._engine.engines import HOST, DeviceEngine, HostEngine, Refused, engine
from trnpy._nki.simulated import SimulatorRuntime

U = 2.0**-24


@pytest.fixture
def device():
    e = DeviceEngine(SimulatorRuntime(TRN2))
    with engine(e), trnpy.policy(force=True, device_memory=1.0):
        yield e


def matrix(shape, dtype="f4", seed=0):
    rng = np.random.default_rng([seed, *shape])
    a = rng.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        a = a + 1j * rng.standard_normal(shape)
    return (100 * a).astype(dtype) if dtype == "i8" else a.astype(dtype)


def close(c, a, b, unit=U):
    """Within the bound of any summation order, componentwise."""
    wide = "D" if np.iscomplexobj(c) else "d"
    error = np.abs(c - a.astype(wide) @ b.astype(wide))
    allowed = (a.shape[-1] + 4) * unit * 4 * (np.abs(a).astype("d") @ np.abs(b).astype("d"))
    assert c.dtype == np.result_type(a, b)
    assert (error <= allowed + 1e-30).all()


def test_precision_by_name(device):
    a = matrix((90, 80), "f8")
    for name, unit in (("fp32", U), ("bf16", 2.0**-8)):
        with trnpy.policy(precision=name), trnpy.trace() as log:
            close(trnpy.matmul(a, a.T), a, a.T, 2 * unit)
            z = a + 1j * a[::-1]
            close(trnpy.matmul(z, z.T), z, z.T, 4 * unit)
        assert [d.on_device for d in log] == [True, True]
        assert dict(log[0].launches) == {"matmul": 1} and dict(log[1].launches) == {"matmul": 4}


def test_half_precision_sums_in_float32(device):
    a = matrix((64, 500), "f2")
    exact = a.astype("d") @ a.T.astype("d")
    for c in (device.matmul(a, a.T), HOST.matmul(a, a.T)):
        assert c.dtype == np.float16
        np.testing.assert_allclose(c, exact, rtol=2.0**-11 * 1.1, atol=1e-3)


@pytest.mark.parametrize("dtype", ["g", "G", "m8[s]"])
def test_dtypes_without_a_product_are_refused(device, dtype):
    with pytest.raises(Refused, match="no product of"):
        device.matmul(np.ones((4, 4)).astype(dtype), np.ones((4, 4)).astype(dtype))


ENGINES = {
    "host": HostEngine,
    "null": lambda: HostEngine(TRN2),
    "simulator": lambda: DeviceEngine(SimulatorRuntime(TRN2)),
}


@pytest.fixture
def simulator():
    with trnpy.policy(device_memory=1.0):
        yield ENGINES["simulator"]()


@pytest.mark.parametrize("dtype", ["f2", "d"])
def test_reduced_precision_handles_can_be_chained(simulator, dtype):
    """A result is float32 on the device; as an operand it is rounded to the format that is multiplied."""
    a = matrix((60, 60), dtype) / 8
    with trnpy.policy(precision="bf16" if dtype == "d" else "matched"):
        h = simulator.put(a)
        moved = simulator.counters.bytes_in
        c = simulator.get(simulator.matmul(simulator.matmul(h, h), h))
        assert simulator.counters.bytes_in == moved
    exact = np.linalg.matrix_power(a.astype("d"), 3)
    assert c.dtype == a.dtype
    np.testing.assert_allclose(c, exact, rtol=0, atol=0.02 * np.abs(exact).max())


def test_handles_of_different_precisions_do_not_mix(simulator):
    a = matrix((20, 20), "d")
    with trnpy.policy(precision="fp32"):
        single = simulator.put(a)
    with pytest.raises(ValueError, match="one precision"):
        simulator.matmul(single, simulator.put(a))
    with pytest.raises(TypeError, match="put has made"):
        simulator.get(HostEngine().put(a))
    with pytest.raises(ValueError, match="real"):
        simulator.axpby(1j, simulator.put(matrix((3, 3))))
    with pytest.raises(ValueError, match="expected one"):
        simulator.axpby(1, simulator.put(a), 1, simulator.put(a[:3]))


@pytest.mark.parametrize("shape", [(128, 128), (128, 90), (90, 70)])
def test_the_result_of_one_launch_owns_its_memory(device, shape):
    a, b = matrix((shape[0], 128)), matrix((128, shape[1]), seed=1)
    c = device.matmul(a, b)
    close(c, a, b)
    assert c.flags.owndata and c.flags.c_contiguous and c.flags.writeable
