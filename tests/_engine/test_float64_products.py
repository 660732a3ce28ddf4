"""Matched products on the simulated kernels: certified float64, complex by 4M, integers bit for bit, refusals."""

import dataclasses

import numpy as np
import pytest
from test_digits import FAMILIES, U, error, family

import trnpy
from nkisim.hardware import TRN2
from trnpy._engine import float64_products
from trnpy._engine.engines import DeviceEngine
from trnpy._engine.tuning import BLOCK, Buckets
from trnpy._nki.simulated import SimulatorRuntime

WIDE = ("entries 1e+-8", "phi 3", "phi 4")  # families with more range in their sums than 12 digits may hold


def device(block=BLOCK, **settings):
    return float64_products.Device(SimulatorRuntime(TRN2, **settings), Buckets(), block)


def assert_as_good_as_dgemm(c, a, b, k):
    ours = error(c, a, b)
    assert ours <= 4.0
    if k >= 32:
        assert ours <= 2 * max(error(a @ b, a, b), 0.5)


@pytest.mark.parametrize("k", [32, 129, 512])
@pytest.mark.parametrize("kind", FAMILIES)
def test_every_family_is_as_good_as_dgemm(kind, k):
    """Also where float32 products are perturbed: of digits they are exact."""
    a, b = family(kind, 30, k, 30, np.random.default_rng(k))
    used = device(perturb_fp32=True)
    c = float64_products.matmul(used, a, b)
    launches = used.runtime.counters.launches["float64_matmul"]
    assert launches == 1 or (kind in (*WIDE, "symmetry") and launches <= 9)
    assert_as_good_as_dgemm(c, a, b, k)


@pytest.mark.slow
@pytest.mark.parametrize("k", [1024, 2048, 4096])
@pytest.mark.parametrize("kind", FAMILIES)
def test_long_sums_are_as_good_as_dgemm(kind, k):
    a, b = family(kind, 60, k, 60, np.random.default_rng(k))
    assert_as_good_as_dgemm(float64_products.matmul(device(perturb_fp32=True), a, b), a, b, k)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("k", [32, 64, 200, 1000])
@pytest.mark.parametrize("kind", FAMILIES)
def test_products_and_gram_matrices_of_many_families(kind, k, seed):
    a, b = family(kind, 48, k, 48, np.random.default_rng([seed, k]))
    for product, right in (
        (lambda: float64_products.matmul(device(), a, b), b),
        (lambda: float64_products.gram(device(), a), a.T),
    ):
        assert_as_good_as_dgemm(product(), a, right, k)


@pytest.mark.parametrize("kind", ["uniform(-1,1)", "phi 2", "orthogonal"])
def test_perturbed_float32_products_change_nothing(kind):
    a, b = family(kind, 40, 300, 40, np.random.default_rng(0))
    exact = float64_products.matmul(device(), a, b)
    np.testing.assert_array_equal(float64_products.matmul(device(perturb_fp32=True), a, b), exact)


@pytest.mark.parametrize("n", [1, 2, 100, 257])
def test_identity_and_permutations_are_exact(n):
    rng = np.random.default_rng(n)
    x = rng.standard_normal((n, 7)) * 10.0 ** rng.uniform(-5, 5, (n, 7))
    for p in (np.eye(n), np.eye(n)[rng.permutation(n)]):
        np.testing.assert_array_equal(float64_products.matmul(device(), p, x), p @ x)


@pytest.mark.parametrize("left, right", [(900, -1000), (-1040, 0), (1000, 0), (-1000, 900)])
def test_scales_at_the_ends_of_the_range(left, right):
    rng = np.random.default_rng(0)
    a, b = np.ldexp(rng.standard_normal((9, 50)), left), np.ldexp(rng.standard_normal((50, 9)), right)
    exact, most = a.astype(np.longdouble) @ b, np.abs(a).astype(np.longdouble) @ np.abs(b)
    assert (np.abs(float64_products.matmul(device(), a, b) - exact) <= 4 * U * most + 2.0**-1074).all()


@pytest.mark.parametrize("power", [300, -300])
def test_rows_of_very_different_size_and_zero_rows(power):
    a, b = np.random.default_rng(0).standard_normal((2, 20, 20))
    a[3], a[5], b[:, 4] = a[3] * 10.0**power, 0, 0
    assert_as_good_as_dgemm(float64_products.matmul(device(), a, b), a, b, 20)


def test_operands_in_either_order_of_memory():
    a, b = np.random.default_rng(0).standard_normal((2, 70, 70))
    straight = float64_products.matmul(device(), a, b)
    for x in (a, np.asfortranarray(a), a[::-1][::-1]):
        for y in (b, np.asfortranarray(b)):
            np.testing.assert_array_equal(float64_products.matmul(device(), x, y), straight)


@pytest.mark.parametrize("imaginary", [1.0, 1e-6, 1e12])
def test_both_parts_of_complex_products_are_accurate(imaginary):
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((50, 50)) + 1j * imaginary * rng.standard_normal((50, 50)) for _ in range(2))
    c = float64_products.matmul(device(), a, b)
    ar, ai, br, bi = (x.astype(np.longdouble) for x in (a.real, a.imag, b.real, b.imag))
    for ours, exact, most in (
        (c.real, ar @ br - ai @ bi, np.abs(ar) @ np.abs(br) + np.abs(ai) @ np.abs(bi)),
        (c.imag, ar @ bi + ai @ br, np.abs(ar) @ np.abs(bi) + np.abs(ai) @ np.abs(br)),
    ):
        assert (np.abs(ours - exact) <= 4 * U * most).all()


@pytest.mark.parametrize("dtype", list("dD"))
def test_gram_is_hermitian_and_accurate(dtype):
    rng = np.random.default_rng(0)
    a = rng.standard_normal((140, 90)) if dtype == "d" else rng.standard_normal((140, 90, 2)).view("D")[..., 0]
    for used in (device(), device(block=64)):
        g = float64_products.gram(used, a)
        np.testing.assert_array_equal(g, g.conj().T)
        most = np.abs(a) @ np.abs(a).T
        exact = a.astype(np.clongdouble) @ a.conj().T
        assert (np.abs(g - exact) <= 8 * U * most).all()  # of |A||A|^H, real and imaginary parts together


@pytest.mark.parametrize("kind", ["uniform(-1,1)", "phi 2"])
def test_gram_over_several_blocks_is_symmetric_and_accurate(kind):
    """Blocks below the diagonal, squares of 384 or 512 on it, and an edge, with seven digits and with more."""
    a, _ = family(kind, 1100, 60, 1, np.random.default_rng(0))
    g = float64_products.gram(device(), a)
    np.testing.assert_array_equal(g, g.T)
    assert error(g, a, a.T) <= 4.0


@pytest.mark.parametrize("dtype, parts", [("d", 1), ("D", 2)])
def test_a_product_sends_each_part_once(dtype, parts):
    a, b = (1 + np.random.default_rng(0).random((2, 64, 64))).astype(dtype)
    used = device()
    float64_products.matmul(used, a * (1 + 1j) if dtype == "D" else a, b * (2 + 1j) if dtype == "D" else b)
    launches = used.runtime.counters.launches
    assert launches["float64_digits"] == 2 * parts and launches["float64_matmul"] == launches["abs_bound"] == parts**2
    assert used.runtime.counters.bytes_in == a.nbytes + b.nbytes
    assert used.runtime.counters.bytes_in <= (8 + 2) * 2 * parts * a.size


def test_gram_sends_its_operand_once():
    a = np.random.default_rng(0).standard_normal((64, 64))
    used = device()
    float64_products.gram(used, a)
    assert used.runtime.counters.launches == {"abs_bound": 1, "float64_digits": 1, "float64_matmul": 1}
    assert used.runtime.counters.bytes_in == 8 * a.size


@pytest.mark.parametrize("kind", FAMILIES)
def test_digits_of_the_chip_and_of_the_host_give_the_same_product(kind):
    """To the last bit where both take the same number of digits, whose integers are equal."""
    a, b = family(kind, 70, 64, 80, np.random.default_rng(0))
    ours, hosts = device(), dataclasses.replace(device(), splits=False)
    c, d = float64_products.matmul(ours, a, b), float64_products.matmul(hosts, a, b)
    assert ours.runtime.counters.launches["float64_digits"] and not hosts.runtime.counters.launches["float64_digits"]
    assert_as_good_as_dgemm(c, a, b, 64)
    for digits in (7, 10):
        kept = ((of, float64_products.kept(of, a), float64_products.kept(of, b)) for of in (ours, hosts))
        x, y = (float64_products.matmul_kept(*held, digits).values for held in kept)
        np.testing.assert_array_equal(x, y)
    assert error(d, a, b) <= 4.0


def test_a_product_that_needs_more_digits_sends_its_operands_once():
    g, used = np.random.default_rng(0), device()
    a, b = np.tril(g.standard_normal((80, 80))), np.triu(g.standard_normal((80, 80)))
    a[1:, 0], b[0, 1:] = 1.0, 1.0
    a[0, 0], b[0, 0] = 2.0**-20, 2.0**-10
    c = float64_products.matmul(used, a, b)
    launches = used.runtime.counters.launches
    assert launches["float64_digits"] >= 4 and not launches["digits_split"]
    assert_as_good_as_dgemm(c, a, b, 80)


@pytest.mark.parametrize("n", [200, 257])
def test_large_results_are_rounded_on_the_device(n):
    """Within a unit in the last place of what the host makes of the same integers, which it rounds twice."""
    a, b = np.random.default_rng(n).standard_normal((2, n, n))
    a[3], b[:, 5] = 0, 0
    ours, hosts = device(), dataclasses.replace(device(), splits=False)
    c, d = float64_products.matmul(ours, a, b), float64_products.matmul(hosts, a, b)
    assert ours.runtime.counters.launches["float64_round"] == 1 and not hosts.runtime.counters.launches["float64_round"]
    assert ours.runtime.counters.bytes_out < hosts.runtime.counters.bytes_out
    assert (np.abs(c - d) <= np.spacing(np.abs(d))).all() and not c[3].any() and not c[:, 5].any()
    assert c.flags.c_contiguous and c.flags.writeable


def test_results_that_may_leave_the_normal_numbers_are_rounded_on_the_host():
    a, b = np.random.default_rng(0).standard_normal((2, 200, 200))
    for scale in (2.0**-540, 2.0**500):
        used = device()
        c = float64_products.matmul(used, a * scale, b * scale)
        launches = used.runtime.counters.launches
        assert launches["float64_matmul"] == 1 and not launches["float64_round"]
        same = float64_products.matmul(dataclasses.replace(device(), splits=False), a, b)
        np.testing.assert_array_equal(c, same * scale * scale)


def test_rows_near_underflow_are_split_on_the_host():
    a, b = np.random.default_rng(0).standard_normal((2, 70, 70))
    a[3] *= 2.0**-960
    used = device()
    c = float64_products.matmul(used, a, b)
    assert used.runtime.counters.launches["digits_split"] == 1
    assert_as_good_as_dgemm(c[:3], a[:3], b, 70)
    assert_as_good_as_dgemm(c[3:4] * 2.0**960, a[3:4] * 2.0**960, b, 70)


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_what_is_not_finite_is_found_by_the_exponents(wrong):
    a = np.ones((70, 70))
    a[5, 7] = wrong
    for x, y in ((a, np.ones((70, 70))), (np.ones((70, 70)), a), (np.asfortranarray(a), np.ones((70, 70)))):
        with pytest.raises(float64_products.Uncertified, match="NaN or infinity"):
            float64_products.matmul(device(), x, y)


@pytest.mark.parametrize("block", [BLOCK, 32])
@pytest.mark.parametrize("dtype", list("bBhHiIlL"))
def test_integers_are_bit_equal(dtype, block):
    rng, limits = np.random.default_rng(0), np.iinfo(dtype)
    a, b = (rng.integers(limits.min, limits.max, shape, dtype, endpoint=True) for shape in ((33, 70), (70, 41)))
    a[0], b[:, 0] = limits.min, limits.min
    for x in (a, np.asfortranarray(a)):
        ours = float64_products.matmul(device(block), x, b)
        assert ours.dtype == a.dtype
        np.testing.assert_array_equal(ours, a @ b)


@pytest.mark.parametrize("density", [0.0, 0.05, 0.5, 1.0])
def test_bools_are_bit_equal(density):
    rng = np.random.default_rng(0)
    a, b = rng.random((33, 300)) < density, rng.random((300, 41)) < density
    for block in (BLOCK, 64):
        np.testing.assert_array_equal(float64_products.matmul(device(block), a, b), a @ b)


def test_blocks_are_certified_products_of_their_own():
    a, b = family("uniform(-1,1)", 70, 200, 90, np.random.default_rng(0))
    used = device(block=64)
    assert_as_good_as_dgemm(float64_products.matmul(used, a, b), a, b, 200)
    assert used.runtime.counters.launches["float64_matmul"] == 2 * 4 * 2


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused(bad):
    a, b = np.ones((5, 5)), np.ones((5, 5))
    b[2, 3] = bad
    used = device()
    for product in (lambda: float64_products.matmul(used, a, b), lambda: float64_products.gram(used, b)):
        with pytest.raises(float64_products.Uncertified, match="NaN or infinity"):
            product()
    assert not used.runtime.counters.launches["float64_matmul"]


def test_hidden_exponent_range_is_refused():
    a, b = 10.0 ** np.array([[0, -25, -50, -75]]), np.array([[0.0, 1.0], [0.0, 1.0], [0.0, 1.0], [1.0, 1.0]])
    with pytest.raises(float64_products.Uncertified, match="more than 12 digits"):
        float64_products.matmul(device(), a, b)
    with pytest.raises(float64_products.Uncertified, match="more than 12 digits"):
        float64_products.gram(device(), np.vstack([a, b.T]))


@pytest.mark.parametrize("k", [40, 200])
def test_what_symmetry_makes_zero_is_held_by_parts(k):
    """Blocks of a symmetric molecule: 1e-17 beside 1, and sums of such alone are 1e-17 and 1e-34."""
    a, b = family("symmetry", 30, k, 30, np.random.default_rng(k))
    used = device()
    assert_as_good_as_dgemm(float64_products.matmul(used, a, b), a, b, k)
    g = float64_products.gram(used, a)
    np.testing.assert_array_equal(g, g.T)
    assert_as_good_as_dgemm(g, a, a.T, k)
    assert_as_good_as_dgemm(float64_products.matmul(used, np.abs(a), b), np.abs(a), b, k)
    with pytest.raises(float64_products.Uncertified, match="too many of parts"):
        float64_products.matmul(dataclasses.replace(device(), passes=50), a, b)
    ones = np.ones((30, k))
    before = used.runtime.counters.launches["float64_matmul"]
    float64_products.matmul(used, ones, b)
    assert used.runtime.counters.launches["float64_matmul"] == before + 1


@pytest.mark.parametrize("kind", [kind for kind in FAMILIES if kind != "rows 1e+-30"])  # beyond float32
def test_float32_products_are_within_the_range_of_sgemm(kind):
    """In units of 2^-24 of |A||B| sgemm makes errors of 0.36 to 17.8, TensorE of 0.24 to 12.

    docs/products.md#single-and-complex
    """
    a, b = (x.astype(np.float32) for x in family(kind, 40, 300, 40, np.random.default_rng(0)))
    with trnpy.policy(device_memory=1.0):
        c = DeviceEngine(SimulatorRuntime(TRN2)).matmul(a, b)
    ours, theirs = (error(x, a, b) * U * 2.0**24 for x in (c, a @ b))
    assert ours <= 2 * max(theirs, 0.5)
