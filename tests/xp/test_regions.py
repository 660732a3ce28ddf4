"""Products that wait go to a device as one call: what stays there, what comes back, and what the host computes."""

import functools

import numpy as np
import pytest

import trnpy
from nkisim.hardware import TRN2
from trnpy import xp
from trnpy._engine.engines import DeviceEngine, engine
from trnpy._engine.precision import Facts
from trnpy._nki.simulated import SimulatorRuntime
from trnpy._report.reasons import Reason
from trnpy.xp import _regions

DIGITS = {"float64_digits", "words_matmul"}


def normal(*shape, dtype="f8", seed=0):
    x = np.random.default_rng([seed, *shape]).standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        x = x + 1j * np.random.default_rng([seed + 1, *shape]).standard_normal(shape)
    return x.astype(dtype)


@pytest.fixture(params=["simulator", "host"])
def log(request):
    """The decisions of a test whose calls are forced to a device, or to the engine on the host."""
    device = {"device": "simulator"} if request.param == "simulator" else {}
    with trnpy.policy(force=True, **device), trnpy.trace() as decisions:
        yield decisions


def close(ours, theirs, products):
    eps = np.finfo(ours.dtype).eps
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=4 * products * eps * np.abs(theirs).max() * len(theirs))


@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16"])
def test_a_chain_is_one_call(log, dtype):
    a, b = normal(2, 40, 40, dtype=dtype)
    x, y = trnpy.asarray(a), trnpy.asarray(b)
    for _ in range(3):
        x = x @ y
    close(np.asarray(x.T @ x), (a @ b @ b @ b).T @ (a @ b @ b @ b), 5)
    assert [(d.op, d.on_device) for d in log] == [("trnpy.xp.matmul", True)]


def test_a_float64_chain_sends_the_inputs_and_reads_the_result():
    runtime = SimulatorRuntime(TRN2)
    a, b = normal(2, 64, 64)
    with engine(DeviceEngine(runtime, facts=Facts())), trnpy.policy(force=True):
        x, y = trnpy.asarray(a), trnpy.asarray(b)
        for _ in range(6):
            x = x @ y
        x.block_until_ready()
    done = runtime.counters
    assert set(done.launches) == DIGITS and done.launches["words_matmul"] == 6
    assert done.bytes_out == 6 * 1536 + 12 * a.size
    assert 2 * a.nbytes < done.bytes_in <= 2 * a.nbytes + 16  # each input once, and exponents of their scales


def test_sums_factors_and_transposes_belong_to_a_region(log):
    a = normal(30, 30)
    x = trnpy.asarray(a)
    y = 1.5 * x @ x - (x @ x).T * 0.5 + x
    close(np.asarray(y), 1.5 * a @ a - 0.5 * (a @ a).T + a, 2)
    assert len(log) == 1


def test_what_the_host_computes_divides_regions(log):
    a = normal(30, 30)
    x = trnpy.asarray(a)
    y = x @ x @ x
    z = xp.tanh(y) @ x @ y
    close(np.asarray(z), np.tanh(a @ a @ a) @ a @ (a @ a @ a), 4)
    assert [d.op for d in log] == ["trnpy.xp.matmul"] * 2


def test_every_value_that_somebody_keeps_is_there(log):
    a = normal(30, 30)
    x = trnpy.asarray(a)
    first = x @ x
    second = first @ x
    third = second @ x
    close(np.asarray(third), a @ a @ a @ a, 3)
    close(np.asarray(first), a @ a, 1)
    close(np.asarray(second), a @ a @ a, 2)
    assert len(log) == 1


def test_equal_products_are_computed_once(log):
    a = normal(30, 30)
    x = trnpy.asarray(a)
    close(np.asarray((x @ x) @ (x @ x)), a @ a @ a @ a, 3)
    (decision,) = log
    products = {"product", "words_matmul"}
    assert sum(count for name, count in decision.launches if name in products) == 2


def test_products_of_one_shape_are_one_launch():
    with trnpy.policy(device="simulator", force=True), trnpy.trace() as log:
        pairs = [normal(2, 20, 20, dtype="f4", seed=i) for i in range(12)]
        found = np.asarray(xp.stack([trnpy.asarray(a) @ trnpy.asarray(b) for a, b in pairs]))
    for c, (a, b) in zip(found, pairs, strict=True):
        close(c, a @ b, 1)
    assert [d.launches for d in log] == [(("batched_matmul", 1),)]


def _measured(made, dtype, memory=0.8):
    """What ``made`` of an Array returns, launches and bytes, and the most bytes in use, with a budget of memory."""
    runtime, used = SimulatorRuntime(TRN2), []
    hold = runtime.memory.hold
    runtime.memory.hold = lambda *args: (hold(*args), used.append(runtime.memory.used))[0]
    with (
        engine(DeviceEngine(runtime, facts=Facts())),
        trnpy.policy(force=True, device_memory=memory, fallback="raise"),
        trnpy.trace() as log,
    ):
        result = np.asarray(made(trnpy.asarray(normal(128, 128, dtype=dtype) / np.asarray(12, dtype))))
    assert [d.op for d in log] == ["trnpy.xp.matmul"]
    return result, runtime.counters, max(used)


def _chain(x, length):
    return functools.reduce(xp.matmul, [x] * length)


def _powers(x):
    """a^6 a^5 a^4 a^3 a^2 a: the first power is needed last."""
    return functools.reduce(xp.matmul, [_chain(x, n) for n in range(6, 0, -1)])


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_a_longer_chain_needs_no_more_memory(dtype):
    assert _measured(lambda x: _chain(x, 9), dtype)[2] == _measured(lambda x: _chain(x, 5), dtype)[2]


@pytest.mark.parametrize("dtype, memory", [("f4", 6e5), ("f8", 4e6)])
def test_what_does_not_fit_is_on_the_host_until_it_is_needed(dtype, memory):
    result, free, most = _measured(_powers, dtype)
    spilled, tight, used = _measured(_powers, dtype, memory)
    assert used <= memory and used < most
    assert tight.bytes_in > free.bytes_in + result.nbytes and tight.bytes_out > free.bytes_out + result.nbytes
    if dtype == "f4":
        assert free.bytes_out == result.nbytes
        np.testing.assert_array_equal(spilled, result)
    close(spilled, result, 10)


def test_a_check_of_a_region_costs_few_products_of_vectors():
    """Each squaring doubles the paths from the result to the array: regions end before there are too many."""
    a = normal(20, 20) / 10
    with trnpy.policy(force=True), trnpy.trace() as log:
        x = trnpy.asarray(a)
        for _ in range(9):
            x = x @ x
        x.block_until_ready()
    assert 1 < len(log) < 5 and _regions.MOST_PATHS < 2**9
    close(np.asarray(x), np.linalg.matrix_power(a, 512), 512)


def test_long_sums_are_several_regions(log):
    a = np.eye(4)
    x = trnpy.asarray(a)
    y = x @ a @ a
    for _ in range(2 * _regions.MOST_STEPS):
        y = y + a
    close(np.asarray(y @ a), (2 * _regions.MOST_STEPS + 1) * a, 1)


def test_a_fault_in_a_region_is_noticed_and_numpy_computes():
    class Wrong(SimulatorRuntime):
        def run(self, kernel, /, *operands, **parameters):
            found = super().run(kernel, *operands, **parameters)
            if kernel == "words_matmul":
                found[0].value[2] += 1
            return found

    a = normal(40, 40)
    with engine(DeviceEngine(Wrong(TRN2), facts=Facts())), trnpy.policy(force=True), trnpy.trace() as log:
        x = trnpy.asarray(a)
        with pytest.warns(trnpy.NkiFallbackWarning, match="backward error"):
            y = np.asarray(x @ x @ x)
    close(y, a @ a @ a, 2)
    assert log[0].reason is Reason.ACCURACY


def test_not_a_number_is_numpys():
    a = normal(30, 30)
    a[2, 3] = np.nan
    with trnpy.policy(device="simulator", force=True), trnpy.trace() as log:
        x = trnpy.asarray(a)
        np.testing.assert_array_equal(np.asarray(x @ x @ x), a @ a @ a)
    assert not log[0].on_device


def test_errors_name_the_line():
    with trnpy.policy(device="simulator", force=True, fallback="raise"):
        a = np.full((20, 20), np.nan)
        x = trnpy.asarray(a)
        y = x @ x @ x
        with pytest.raises(trnpy.FallbackError) as error:
            np.asarray(y)
    assert any("test_regions.py" in note for note in error.value.__notes__)


@pytest.mark.parametrize("device", ["simulator", "none"])
def test_a_region_without_an_engine_or_slower_on_it_is_computed_by_its_products(device):
    a = normal(30, 30)
    with trnpy.policy(device=device), trnpy.trace() as log:
        x = trnpy.asarray(a)
        np.testing.assert_array_equal(np.asarray(x @ x @ x), a @ a @ a)
    assert {d.op for d in log} == {"numpy.matmul"}
