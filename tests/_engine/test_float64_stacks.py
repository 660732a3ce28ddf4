"""Stacks of products by digits on the simulated kernels: few launches, certified, bit-equal integers."""

from dataclasses import replace

import numpy as np
import pytest
from test_digits import FAMILIES, U, error, family

import trnpy
from nkisim.hardware import TRN2
from trnpy._engine import float64_products, float64_stacks
from trnpy._engine.engines import DeviceEngine, Refused
from trnpy._engine.tuning import BLOCK, Buckets
from trnpy._nki.simulated import SimulatorRuntime


def device(block=BLOCK, **settings):
    return float64_products.Device(SimulatorRuntime(TRN2, **settings), Buckets(), block)


@pytest.fixture
def simulator():
    with trnpy.policy(device_memory=1.0):
        yield DeviceEngine(SimulatorRuntime(TRN2))


def normal(shape, dtype="d", seed=0):
    rng = np.random.default_rng([seed, *shape])
    a = rng.standard_normal(shape)
    return (a + 1j * rng.standard_normal(shape) if np.dtype(dtype).kind == "c" else a).astype(dtype)


def test_families_side_by_side_are_as_good_as_dgemm():
    """The hardest one decides how many digits all take."""
    wide = ("entries 1e+-8", "phi 4", "phi 3", "symmetry")
    for kinds, launches in ([kind for kind in FAMILIES if kind not in wide], 1), (FAMILIES, 9):
        pairs = [family(kind, 12, 40, 12, np.random.default_rng(0)) for kind in kinds]
        used = device()
        c = float64_stacks.matmul(used, *(np.stack(x) for x in zip(*pairs, strict=True)))
        assert used.runtime.counters.launches["float64_matmul"] <= launches
        for ours, (a, b) in zip(c, pairs, strict=True):
            assert error(ours, a, b) <= min(4.0, 2 * max(error(a @ b, a, b), 0.5))


@pytest.mark.parametrize("m, k, n", [(1, 1, 1), (16, 32, 17), (130, 70, 33), (20, 260, 40)])
def test_every_product_is_certified(m, k, n):
    a, b = normal((2, m, k)), normal((2, k, n), seed=1)
    c = float64_stacks.matmul(device(), a, b)
    for ours, x, y in zip(c, a, b, strict=True):
        assert error(ours, x, y) <= 4.0


def there(device, **launches):
    """Whether the device made all digits, bounds and results, with other launches as given."""
    done = {"float64_digits": 2, "abs_bound": 1, "float64_matmul": 1, "float64_round": 1} | launches
    return device.runtime.counters.launches == {kernel: count for kernel, count in done.items() if count}


@pytest.mark.parametrize("shape", [(10, 64, 64, 64), (3, 60, 65, 70), (3, 130, 64, 100)])
def test_larger_matrices_are_split_and_rounded_on_the_device(shape, monkeypatch):
    monkeypatch.setattr(float64_products, "FEWEST_RESULTS", 1)
    count, m, k, n = shape
    a, b = normal((count, m, k)), normal((count, k, n), seed=1)
    a *= 2.0 ** np.arange(0, 50 * count, 50)[:, np.newaxis, np.newaxis]
    b *= 10.0 ** np.random.default_rng(0).integers(-40, 40, (count, 1, n))
    used = device(256)  # up to four matrices in a launch, or 16 of the smallest
    c = float64_stacks.matmul(used, a, b)
    assert there(used) and c.flags.c_contiguous and c.shape == (count, m, n)
    for ours, x, y in zip(c, a, b, strict=True):
        assert error(ours, x, y) <= 4.0
    hosts = replace(device(256), splits=False)
    np.testing.assert_allclose(c, float64_stacks.matmul(hosts, a, b), rtol=8 * U)  # it rounds twice
    assert set(hosts.runtime.counters.launches) == {"digits_split", "batched_matmul", "float64_matmul"}


def test_a_stack_that_needs_more_digits_is_sent_once():
    a, b = normal((16, 64, 64)), normal((16, 64, 64), seed=1)
    a *= np.exp(3 * normal(a.shape, seed=2))
    used = device()
    c = float64_stacks.matmul(used, a, b)
    assert there(used, float64_digits=4) and used.runtime.counters.bytes_in < 2.05 * a.nbytes
    for ours, x, y in zip(c, a, b, strict=True):
        assert error(ours, x, y) <= 4.0


def near(c, expected):
    np.testing.assert_allclose(c, expected, rtol=0, atol=200 * U * np.abs(expected).max() + 1e-322)


def test_the_host_makes_digits_or_results_at_the_ends_of_the_range():
    a, b = normal((9, 64, 64)), normal((9, 64, 64), seed=1)
    for low, launches in ((-1000, {"float64_round": 0}), (-800, {})):
        x, y, used = a * 2.0 ** (low // 2), b * 2.0 ** (low // 2), device()
        near(float64_stacks.matmul(used, x, y), x @ y)
        assert there(used, **launches)
    x, used = a.copy(), device()
    x[4, 7] *= 2.0**-1000
    c = float64_stacks.matmul(used, x, b)
    near(c, x @ b)
    near(c[4, 7], x[4, 7] @ b[4])
    assert used.runtime.counters.launches["digits_split"] == 2
    assert abs(c[4, 7]).max() > 0


def test_zeros_and_permutations_of_larger_matrices_are_exact():
    rng = np.random.default_rng(0)
    p = np.stack([np.eye(64)[rng.permutation(64)] for _ in range(9)])
    x = normal((9, 64, 64)) * 10.0 ** rng.uniform(-3, 3, (9, 64, 64))
    p[3], x[5] = 0, 0
    used = device()
    np.testing.assert_array_equal(float64_stacks.matmul(used, p, x), p @ x)
    assert there(used, float64_digits=4)


def test_transposed_and_complex_stacks_of_larger_matrices(monkeypatch):
    monkeypatch.setattr(float64_products, "FEWEST_RESULTS", 1)
    a, b = ((1 + 1j) * (1 + np.abs(normal((3, 64, n), seed=n))) for n in (70, 80))
    a.imag *= 1e-7
    a, used = a.mT, device(256)
    c = float64_stacks.matmul(used, a, b)
    np.testing.assert_allclose(c.real, (a @ b).real, rtol=200 * U)
    np.testing.assert_allclose(c.imag, (a @ b).imag, rtol=200 * U)
    launches = used.runtime.counters.launches
    assert launches["float64_round"] == launches["float64_matmul"] == launches["float64_digits"] == 4


@pytest.mark.parametrize("bad", [np.nan, -np.inf])
def test_one_value_that_is_not_finite_refuses_larger_matrices(bad):
    a = normal((9, 64, 64))
    a[2, 3, 1] = bad
    for x, y in ((a, np.ones_like(a)), (np.ones_like(a), a)):
        with pytest.raises(float64_products.Uncertified, match="NaN or infinity"):
            float64_stacks.matmul(device(), x, y)


def test_a_range_that_twelve_digits_do_not_hold_is_computed_in_parts():
    a, b = normal((9, 64, 64)), normal((9, 64, 64), seed=1)
    a[5, :, 1:], b[5, :1] = 1e-18 * a[5, :, 1:], 0
    used = device()
    c = float64_stacks.matmul(used, a, b)
    assert error(c[5], a[5], b[5]) <= 4.0 and used.runtime.counters.launches["digits_split"]


def test_permutations_in_a_stack_are_exact():
    rng = np.random.default_rng(0)
    p = np.stack([np.eye(24)[rng.permutation(24)] for _ in range(6)])
    x = normal((6, 24, 9)) * 10.0 ** rng.uniform(-3, 3, (6, 24, 9))
    np.testing.assert_array_equal(float64_stacks.matmul(device(), p, x), p @ x)


def test_perturbed_float32_products_change_nothing():
    a, b = normal((3, 20, 40)), normal((3, 40, 20), seed=1)
    exact = float64_stacks.matmul(device(), a, b)
    np.testing.assert_array_equal(float64_stacks.matmul(device(perturb_fp32=True), a, b), exact)


def test_both_parts_of_complex_products_are_accurate():
    a, b = normal((4, 20, 30), "D"), normal((4, 30, 20), "D", 1)
    a.imag *= 1e-6
    c = float64_stacks.matmul(device(), a, b)
    ar, ai, br, bi = (x.astype(np.longdouble) for x in (a.real, a.imag, b.real, b.imag))
    for ours, exact, most in (
        (c.real, ar @ br - ai @ bi, np.abs(ar) @ np.abs(br) + np.abs(ai) @ np.abs(bi)),
        (c.imag, ar @ bi + ai @ br, np.abs(ar) @ np.abs(bi) + np.abs(ai) @ np.abs(br)),
    ):
        assert (np.abs(ours - exact) <= 4 * U * most).all()


@pytest.mark.parametrize("dtype", list("?bBhHiIlL"))
def test_integers_are_bit_equal(dtype):
    rng = np.random.default_rng(0)
    limits = np.iinfo(dtype if dtype != "?" else "u1")
    shapes = (6, 17, 40), (6, 40, 9)
    a, b = (rng.integers(limits.min, limits.max, s, limits.dtype, endpoint=True) for s in shapes)
    if dtype == "?":
        a, b = a < 20, b < 20
    ours = float64_stacks.matmul(device(), a, b)
    assert ours.dtype == a.dtype
    np.testing.assert_array_equal(ours, a @ b)


def test_a_block_budget_cuts_the_stack():
    a, b = normal((40, 16, 16)), normal((40, 16, 16), seed=1)
    used = device(block=64)
    c = float64_stacks.matmul(used, a, b)
    np.testing.assert_allclose(c, a @ b, rtol=1e-13, atol=1e-13)
    assert (
        used.runtime.counters.launches["float64_matmul"] == 3 and used.runtime.counters.compiles["float64_matmul"] == 1
    )


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["d", "i2"])
def test_thousands_of_products_are_a_few_launches(simulator, dtype):
    a, b = ((100 * (1 + np.abs(normal((4096, 4, 4), seed=i)))).astype(dtype) for i in range(2))
    c = simulator.matmul(a, b)
    assert c.dtype == a.dtype
    np.testing.assert_allclose(c, a @ b, rtol=1e-14)
    assert simulator.counters.launches["float64_matmul"] == 1 and simulator.counters.launches.total() <= 4


@pytest.mark.parametrize("dtype, launches", [("d", 4), ("D", 12), ("i8", 3), ("F", 4)])
def test_launches_of_a_stack(simulator, dtype, launches):
    """Of float64: magnitudes, two splits and a product; of complex128 four of each; 4M of float32 parts."""
    a, b = ((100 * (1 + np.abs(normal(s)))).astype(dtype) for s in ((9, 12, 20), (9, 20, 6)))
    if a.dtype.kind == "c":
        a, b = a * (1 + 1j), b * (1 + 1j)
    c = simulator.matmul(a, b)
    assert c.dtype == a.dtype and simulator.counters.launches.total() == launches
    np.testing.assert_allclose(c, a @ b, rtol=1e-13 if dtype != "F" else 1e-4, atol=1e-9 if dtype != "F" else 1)


@pytest.mark.parametrize("dtype", ["d", "D", "i8", "F"])
@pytest.mark.parametrize("stacks", [((3,), (3,)), ((2, 3), ()), ((), (2, 2)), ((2, 1), (3,))])
def test_stacks_broadcast(simulator, stacks, dtype):
    a, b = (10 * normal((*stacks[0], 5, 7))).astype(dtype), (10 * normal((*stacks[1], 7, 4), seed=1)).astype(dtype)
    c = simulator.matmul(a, b)
    assert c.shape == (a @ b).shape and c.dtype == a.dtype
    np.testing.assert_allclose(c, a @ b, rtol=1e-12 if dtype != "F" else 1e-4, atol=1e-11 if dtype != "F" else 1e-2)


def test_one_operand_for_all_is_one_product(simulator):
    a, b = normal((9, 20)), normal((30, 20, 5), seed=1)
    simulator.matmul(a, b)
    assert simulator.counters.launches == {"abs_bound": 1, "digits_split": 2, "float64_matmul": 1}


def test_large_matrices_of_a_stack_are_a_product_each(simulator):
    a = normal((2, 600, 10))
    simulator.matmul(a, a.mT)
    assert simulator.counters.launches["float64_matmul"] == 2


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_one_value_that_is_not_finite_refuses_the_stack(simulator, bad):
    a = normal((4, 6, 6))
    a[2, 3, 1] = bad
    with pytest.raises(Refused, match="NaN or infinity") as caught:
        simulator.matmul(a, a)
    assert caught.value.accuracy


def test_one_hidden_range_refuses_the_stack():
    a, b = np.ones((3, 1, 4)), np.ones((3, 4, 2))
    a[1], b[1, :3, 0] = 10.0 ** np.array([0, -25, -50, -75]), 0
    with pytest.raises(float64_products.Uncertified, match="more than 12 digits"):
        float64_stacks.matmul(device(), a, b)
    a[1, 0, 3] = 1e-55
    c = float64_stacks.matmul(device(), a, b)
    np.testing.assert_allclose(c, a @ b, rtol=4 * U)
