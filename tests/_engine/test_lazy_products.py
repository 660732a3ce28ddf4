"""Products of float64 that stay on the device: as accurate as others, one launch each, and nothing is read back."""

import dataclasses

import numpy as np
import pytest

from benchmarks import stay
from nkisim.hardware import TRN2
from trnpy._engine.abstract_arrays import new
from trnpy._engine.cost_model import DryRuntime
from trnpy._engine.device import DeviceEngine
from trnpy._engine.precision import Facts
from trnpy._engine.proof.checksums import Wrong
from trnpy._nki.simulated import SimulatorRuntime

U = 2.0**-53
BOUND = 4.0  # u of |A||B|, as of all certified products (docs/digits.md#certificate)
READ = 1536  # bytes that certify a product: a bound and two extremes of 128 partitions


@pytest.fixture
def engine():
    return DeviceEngine(SimulatorRuntime(TRN2), facts=Facts())


def error(c, a, b):
    """The largest componentwise error in u of |A||B|, whose own error is a hundredth of that."""
    exact = a.astype(np.longdouble) @ b.astype(np.longdouble)
    size = np.abs(a) @ np.abs(b)
    assert not c[size == 0].any()
    return float((np.abs(c - exact)[size > 0] / size[size > 0]).max(initial=0.0) / U)


def normal(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape)


def test_a_chain_is_one_launch_a_product_and_reads_back_what_certifies_it(engine):
    a, b = normal(2, 130, 130)
    x, y = engine.put(a, stay=True), engine.put(b, stay=True)
    for _ in range(4):
        x = engine.matmul(x, y)
    done = engine.counters
    assert done.launches == {"words_matmul": 4, "float64_digits": 2} and done.bytes_out == 4 * READ
    c = engine.get(x)
    assert done.bytes_out == 4 * READ + 3 * 4 * 160 * 160  # the words of the padded result
    np.testing.assert_allclose(c, a @ b @ b @ b @ b, rtol=0, atol=1e-13 * np.abs(c).max())


def test_a_dry_run_counts_the_same_launches(engine):
    dry, n = DryRuntime(TRN2), 200
    for on, matrix in ((engine, normal(n, n)), (DeviceEngine(dry, facts=Facts()), new((n, n), "f8", dry.count))):
        x = on.put(matrix, stay=True)
        on.get(on.matmul(on.matmul(x, x), x))
    assert engine.counters.launches == dry.counters.launches


def test_digits_that_were_not_enough_once_are_not_tried_again(engine):
    x = engine.put(np.tril(normal(100, 100)), stay=True)
    engine.matmul(x, x)
    engine.matmul(x, x)
    assert engine.counters.launches["words_matmul"] == 3 and x.parts[0].store.needed > 7


def test_large_matrices_are_split_and_rounded_there_and_others_by_the_host(engine):
    """Of one scale: the host's digits and the device's are equal, and both give what other handles give."""
    for n, scale, there in ((200, 1.0, True), (200, 2.0**-950, False), (40, 1.0, False)):
        a = normal(n, n) * scale
        x, before = engine.put(a, stay=True), engine.counters.launches.copy()
        c = engine.get(engine.matmul(x, engine.put(a / scale, stay=True).T))
        done = engine.counters.launches - before
        assert done["words_matmul"] == 1 and done["float64_round"] == (n == 200)
        assert bool(done["digits_split"]) != there and done["float64_digits"] == there + (n == 200)
        assert error(c, a, (a / scale).T) <= BOUND


@pytest.mark.parametrize("shape", [(1, 1, 1), (40, 130, 20), (130, 16, 129)])
def test_every_product_of_a_chain_is_certified(engine, shape):
    m, k, n = shape
    a, b, d = normal(m, k), normal(k, n), normal(n, m)
    first = engine.matmul(engine.put(a, stay=True), engine.put(b, stay=True))
    second = engine.matmul(first, engine.put(d, stay=True))
    for left, right in ((first, first.T), (first.T, first), (second, first), (second, second), (second.T, second.T)):
        c = engine.get(engine.matmul(left, right))
        assert error(c, engine.get(left), engine.get(right)) <= BOUND
    assert error(engine.get(first), a, b) <= BOUND and error(engine.get(second), engine.get(first), d) <= BOUND


@pytest.mark.parametrize(
    "a",
    [
        normal(50, 50) * 1e150, normal(50, 50) * 1e-150, np.abs(normal(50, 50)), np.eye(50), np.zeros((50, 50)),
        np.tril(normal(50, 50)), np.linalg.qr(normal(50, 50))[0], np.exp(3 * normal(50, 50)),
        np.triu(normal(50, 50), 1), np.full((50, 50), 1 / 3), normal(50, 50) * 10.0 ** np.arange(-25, 25),
    ],
    ids=[
        "large", "small", "positive", "identity", "zero", "triangle", "orthogonal", "log-normal", "nilpotent",
        "constant", "graded",
    ],
)  # fmt: skip
def test_families(engine, a):
    """Some need another scale for each row: their products are those of handles that do not stay."""
    x = engine.put(a, stay=True)
    square = engine.matmul(x, x)
    with np.errstate(over="ignore", under="ignore"):
        fourth = engine.matmul(square, square) if np.abs(a).max() < 1e100 else square
        assert error(engine.get(square), a, a) <= BOUND
        if fourth is not square:
            c = engine.get(square)
            assert error(engine.get(fourth), c, c) <= BOUND


def test_integers_are_bit_equal(engine):
    a = np.random.default_rng(0).integers(-9, 10, (60, 60)).astype(float)
    x = engine.put(a, stay=True)
    np.testing.assert_array_equal(engine.get(engine.matmul(engine.matmul(x, x.T), x)), a @ a.T @ a)


def test_sums_beyond_the_digits_of_an_integer_take_the_host(engine):
    """Each element of the square is nearly as large as 1024 products can be: its first digit has no byte."""
    a = np.full((16, 1024), 0.497)
    x = engine.put(a, stay=True)
    square = engine.matmul(x, x.T)
    assert not square.parts[0].store.integers.usable
    c = engine.get(square)
    assert error(c, a, a.T) <= BOUND and error(engine.get(engine.matmul(square, square)), c, c) <= BOUND


def test_gram_matrices_stay(engine):
    x = engine.put(normal(40, 30), stay=True)
    before = engine.counters.bytes_out
    engine.matmul(engine.gram(x), engine.gram(x))
    assert engine.counters.launches["words_matmul"] == 4  # one of three products needs more digits than were tried
    assert engine.counters.bytes_out - before == 4 * READ


@pytest.mark.parametrize("alpha, beta", [(1.0, 1.0), (1.5, -0.5), (-0.375, 2.0), (1.0, -1.0), (1.0, 2.0**-25)])
def test_sums_stay_and_are_exact(engine, alpha, beta):
    """Of integers, and of integers and what the host sent: rounded when they are read, and only then."""
    x, y = (engine.put(normal(40, 40, seed=i), stay=True) for i in range(2))
    p = engine.matmul(x, y)
    q = engine.matmul(p, y)
    for a, b in ((p, q), (q.T, p.T), (x, q), (p, y), (p, p)):
        before = engine.counters.bytes_out
        total = engine.axpby(alpha, a, beta, b)
        assert engine.counters.bytes_out - before == READ - 512
        u, v = alpha * engine.get(a), beta * engine.get(b)
        size = np.abs(u) + np.abs(v)
        assert (np.abs(engine.get(total) - (u + v)) <= 4 * U * size).all()
        c = engine.get(total)
        if c.any():
            assert error(engine.get(engine.matmul(total, total)), c, c) <= BOUND


@pytest.mark.parametrize("alpha, beta", [(0.1, 1.0), (1.0, 1e-9), (np.inf, 1.0)])
def test_other_sums_are_the_hosts(engine, alpha, beta):
    """Factors of many bits, or terms that are far apart."""
    x = engine.put(normal(20, 20), stay=True)
    p = engine.matmul(x, x)
    with np.errstate(invalid="ignore"):
        ours, theirs = engine.get(engine.axpby(alpha, p, beta, x)), alpha * engine.get(p) + beta * engine.get(x)
    np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-12)


def test_newton_and_schulz_read_nothing_back_before_the_end(engine):
    a = normal(48, 48)
    a /= np.linalg.norm(a, 2)
    x, before = engine.put(a, stay=True), engine.counters.bytes_out
    for _ in range(6):
        x = engine.axpby(1.5, x, -0.5, engine.matmul(engine.matmul(x, x.T), x))
        a = 1.5 * a - 0.5 * a @ a.T @ a
    done = engine.counters
    assert (done.launches["words_matmul"], done.launches["words_sum"]) == (13, 6)  # one is tried with too few digits
    assert done.bytes_out - before == done.launches["words_matmul"] * READ + 6 * (READ - 512)
    np.testing.assert_allclose(engine.get(x), a, rtol=0, atol=1e-13)


def test_not_a_number_is_refused_as_by_other_handles(engine):
    a = normal(20, 20)
    a[3, 4] = np.nan
    x = engine.put(a, stay=True)
    with pytest.raises(Exception, match="NaN"):
        engine.matmul(x, x)


def test_a_wrong_word_is_noticed_where_the_operands_are_known(engine):
    a, b = normal(2, 40, 40)
    c = engine.matmul(engine.put(a, stay=True), engine.put(b, stay=True))
    words = c.parts[0].store.integers.words.value
    words[2, 3, 5] += 64
    with pytest.raises(Wrong):
        engine.get(c)


def test_complex_matrices_and_integers_do_not_stay(engine):
    for a in (normal(20, 20) + 1j * normal(20, 20, seed=1), np.arange(400).reshape(20, 20)):
        x = engine.put(a, stay=True)
        engine.matmul(x, x)
    assert not engine.counters.launches["words_matmul"]


@pytest.mark.parametrize("row", [row for row in stay.ROWS if row.limited], ids=lambda row: f"{row.name}, {row.dtype}")
def test_a_modelled_chain_has_few_launches_and_moves_its_ends_only(row):
    found, products, needed = stay.tally(row, stay.Stays, TRN2)
    assert 0 < found.launched <= stay.MOST_LAUNCHES * products
    assert found.bytes_in + found.bytes_out <= stay.MOST_BYTES * needed


def test_only_programs_with_limits_can_fail_the_benchmark():
    found = [stay.chained(row, TRN2) for row in stay.ROWS] + [stay.ladders(stay.MOLECULE, TRN2)]
    assert not any(program.failed for program in found)
    assert all(dataclasses.replace(program, most_launches=0.1).failed for program in found)
    assert all(dataclasses.replace(program, most_bytes=0.5).failed for program in found)
