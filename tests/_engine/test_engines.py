"""Engine.kernel: a device launches, the host runs the twin, the what-if counts; and what kernels are asked about."""

from dataclasses import replace

import numpy as np
import pytest

import trnpy
from nkisim.hardware import TRN1, TRN2
from trnpy._cli import probes
from trnpy._engine import device, engines
from trnpy._engine.engines import HOST, DeviceEngine, HostEngine, Refused
from trnpy._engine.precision import Facts
from trnpy._engine.tuning import Tuning
from trnpy._nki.simulated import SimulatorRuntime

MAKES = {
    "host": HostEngine,
    "null": lambda: HostEngine(TRN2),
    "simulator": lambda: DeviceEngine(SimulatorRuntime(TRN2)),
}


@pytest.fixture(params=MAKES)
def engine(request):
    return MAKES[request.param]()


@pytest.mark.parametrize("check", probes.KERNELS, ids=lambda c: c.kernel)
def test_the_host_runs_the_twin_of_each_kernel(check):
    """What a device launches is compared with the same twins by doctor --probe."""
    found = HOST.kernel(check.kernel, *check.operands(), **check.parameters)
    outputs = tuple(map(HOST.get, found)) if isinstance(found, tuple) else HOST.get(found)
    assert np.isfinite(check.answer(outputs)).all() and HOST.counters.launches[check.kernel]


def test_outputs_are_operands_of_kernels_and_of_products(engine):
    a = np.random.default_rng(0).integers(-4, 5, (70, 70)).astype("f4")
    h, held = engine.put(a), engine.hold(a)
    assert h.padded >= h.shape == held.shape == a.shape and held.nbytes == a.nbytes
    one, two = engine.kernel("transpose", h), engine.kernel("transpose", held)
    np.testing.assert_array_equal(engine.get(two), a.T)
    assert one.shape == h.padded[::-1]
    turned = engine.matrix(one, (70, 70))
    assert turned.shape == (70, 70) and turned.dtype == a.dtype
    np.testing.assert_array_equal(engine.get(engine.matmul(turned, a)), a.T @ a)
    np.testing.assert_array_equal(engine.get(engine.kernel("transpose", two)), a)


def test_a_transposed_matrix_is_one_to_a_kernel(engine):
    a = np.arange(12, dtype="f4").reshape(3, 4)
    for h, expected in ((engine.put(a).T, a), (engine.put(np.asfortranarray(a)), a.T)):
        found = engine.get(engine.matrix(engine.kernel("transpose", h), expected.shape))
        np.testing.assert_array_equal(found, expected)


def test_kernels_take_no_matrix_of_two_arrays_or_of_digits():
    e = MAKES["simulator"]()
    for dtype in ("c8", "f8"):
        with pytest.raises(TypeError, match="expected a real float32"):
            e.kernel("transpose", e.put(np.ones((3, 3), dtype)))


def test_twins_leave_sizes_of_tiles_out_and_nothing_else():
    a = np.ones((3, 3), "f4")
    np.testing.assert_array_equal(HOST.get(HOST.kernel("matmul", a, a, m_tiles=8, n_tiles=1, k_tiles=2)), a @ a)
    with pytest.raises(TypeError, match="colour"):
        HOST.kernel("matmul", a, a, colour=1)
    with pytest.raises(KeyError, match=r"no_such\.py"):
        HOST.kernel("no_such", a)


def test_doubles_of_the_host_see_the_products_of_twins():
    class Watching(HostEngine):
        seen = 0

        def product(self, a, b):
            self.seen += 1
            return super().product(a, b)

    e = Watching()
    e.kernel("polynomial_sign", np.eye(5, dtype="f4"), np.ones((2, 3), "f4"))
    assert e.seen == 6 and e.counters.launches == {"polynomial_sign": 1, "product": 6}


def test_kept_forms_are_made_anew_where_contents_change():
    e, made = MAKES["simulator"](), []
    a = np.random.default_rng(0).standard_normal((300, 300))

    def make():
        made.append(a[0, 0])
        return a[0, 0], [e.hold(np.full((4, 4), a[0, 0], "f4"))]

    with trnpy.resident(a):
        for _ in range(2):
            value, (held,) = e.keep(a, "corner", make)
        a[0, 0] += 1
        changed, _ = e.keep(a, "corner", make)
    assert made == [value, changed] and changed == value + 1
    assert e.cache.nbytes == held.nbytes == 64


def test_an_array_that_is_held_has_the_room_of_those_kept():
    e = MAKES["simulator"]()
    a = np.random.default_rng(0).standard_normal((300, 300))
    with trnpy.resident(a):
        e.keep(a, "all", lambda: e.hold(a.astype("f4")))
    e.runtime.memory.limit = e.runtime.memory.used + 1000
    held = e.hold(np.ones(1000))
    assert held.shape == (1000,) and e.cache.nbytes == 0


def test_what_kernels_multiply_follows_precision_and_probes():
    device = MAKES["simulator"]()
    assert [device.format(np.dtype(t)) for t in "fdFD"] == ["float32", "digits", "float32", "digits"]
    for precision, form in (("fp32", "float32"), ("bf16", "bfloat16")):
        with trnpy.policy(precision=precision):
            assert {device.format(np.dtype(t)) for t in "fdFD"} == {form}
    for facts, found in (
        (Facts(exact_sums=False), ["float32", "", "bfloat16", "float32"]),
        (Facts(float32_products=False), ["digits", "digits", "bfloat16", ""]),
        (Facts(integer_sums=False), ["", "", "", ""]),
    ):
        device.facts = facts
        answers = [device.format(np.dtype(t)) for t in "fd"]
        for precision in ("bf16", "fp32"):
            with trnpy.policy(precision=precision):
                answers.append(device.format(np.dtype("d")))
        assert answers == found, facts
    assert [HOST.format(np.dtype(t)) for t in "fdFD"] == ["float32", "float64", "float32", "float64"]


def test_machines_and_room_are_known_of_every_engine():
    assert MAKES["simulator"]().machine is MAKES["null"]().machine is TRN2
    with trnpy.policy(machine="trn1"):
        assert HOST.machine is TRN1
    assert HOST.room == MAKES["null"]().room == 2**30
    small = DeviceEngine(SimulatorRuntime(replace(TRN2, hbm_bytes=1000)))
    with trnpy.policy(device_memory=0.5):
        assert small.room == 250
    with trnpy.policy(device_memory=4e6):
        assert small.room == 2e6


U = 2.0**-24


def matrix(shape, dtype="f4", seed=0):
    rng = np.random.default_rng([seed, *shape])
    a = rng.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        a = a + 1j * rng.standard_normal(shape)
    return a.astype(dtype)


def close(c, a, b, unit=U):
    """Within the bound of any summation order, componentwise."""
    wide = "D" if np.iscomplexobj(c) else "d"
    error = np.abs(c - a.astype(wide) @ b.astype(wide))
    allowed = (a.shape[-1] + 4) * unit * 4 * (np.abs(a).astype("d") @ np.abs(b).astype("d"))
    assert c.dtype == np.result_type(a, b)
    assert (error <= allowed + 1e-30).all()


def test_the_null_device_computes_on_the_host():
    a = matrix((20, 30), "D")
    with trnpy.policy(device="null", machine="trn3", force=True), trnpy.trace() as log:
        np.testing.assert_array_equal(trnpy.matmul(a, a.T), a @ a.T)
    assert (log[0].engine, log[0].machine, log[0].launches) == ("null", "trn3", (("product", 1),)) and log[0].on_device


def test_the_simulator_is_a_device_by_name():
    a = matrix((100, 100))
    with trnpy.policy(device="simulator", machine="trn3", force=True), trnpy.trace() as log:
        close(trnpy.matmul(a, a), a, a)
    assert log[0].engine == "simulator" and log[0].machine == "trn3" and log[0].launches


def test_the_module_has_no_name_but_its_own():
    assert engines.DeviceEngine is device.DeviceEngine and not hasattr(engines, "OtherEngine")


REFUSALS = {"integer_sums": "sums on GpSimd", "transposes": "wrong transposes"}


@pytest.mark.parametrize("fact", REFUSALS)
def test_an_engine_whose_blocks_are_wrong_refuses_all_products(fact):
    e = DeviceEngine(SimulatorRuntime(TRN2), Tuning(), replace(Facts(), **{fact: False}))
    for dtype in ("f4", "f8"):
        with pytest.raises(Refused, match=REFUSALS[fact]):
            e.matmul(np.ones((3, 3), dtype), np.ones((3, 3), dtype))


@pytest.mark.parametrize("name", ["host", "simulator"])
@pytest.mark.parametrize("single", [0, 1], ids=["matrix in float32", "right-hand sides in float32"])
def test_triangular_systems_of_two_dtypes_have_the_accuracy_of_the_wider(single, name):
    a, b = np.tril(matrix((20, 20), "f8")) + 8 * np.eye(20), matrix((20, 3), "f8", 1)
    a, b = (x.astype("f4" if i == single else "f8") for i, x in enumerate((a, b)))
    x = MAKES[name]().trsm(a, b)
    assert x.dtype == np.float64
    np.testing.assert_allclose(a @ x, b, rtol=0, atol=100 * 2.0**-52)
