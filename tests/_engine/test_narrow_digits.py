"""Digits of seven bits, for a device whose sums keep fewer bits than float32: exact, certified, chosen by probes."""

import numpy as np
import pytest
from test_digits import error, family

from nkisim.hardware import TRN2
from nkisim.isa import _tensor_engine
from trnpy._cli import probes
from trnpy._engine import digits as _digits
from trnpy._engine import float64_products, float64_stacks
from trnpy._engine.engines import DeviceEngine, Refused
from trnpy._engine.precision import Facts, probed
from trnpy._engine.tuning import Buckets
from trnpy._nki.simulated import SimulatorRuntime

SEVEN = 7
COUNTS = sorted(set(_digits.NARROW.values()))


def device(bits=SEVEN):
    return float64_products.Device(SimulatorRuntime(TRN2), Buckets(), bits=bits)


@pytest.mark.parametrize("count", COUNTS)
def test_digits_are_balanced_and_hold_the_words(count):
    a = np.random.default_rng(count).standard_normal((13, 9)) * 2.0 ** np.arange(9)
    a[0], a[1, 1] = 0, -1.0
    split = _digits.split(a, count, 1, bits=SEVEN)
    planes = split.planes().astype(object)
    assert planes.min() >= -64 and planes.max() <= 63 and planes.shape == (count, 13, 9)
    assert split.bytes().shape == (13, 9, count)
    found = sum(planes[i] * 2 ** (SEVEN * (count - 1 - i)) for i in range(count))
    first = min(count, 8)
    words = split.words[0].astype(object) * 2 ** (SEVEN * (count - first))
    np.testing.assert_array_equal(found, words + (split.words[1] if len(split.words) > 1 else 0))
    exact = [[int(x * 2.0**60) * 2 ** (SEVEN * (count - first)) for x in row] for row in np.ldexp(a, split.shift - 60)]
    if count >= 8:
        assert (abs(found - np.array(exact, object)) <= 2 ** (SEVEN * (count - first))).all()


@pytest.mark.parametrize("digits", range(1, 12))
def test_so_many_of_seven_bits_hold_what_so_many_of_eight_do(digits):
    assert SEVEN * _digits.narrow(digits, SEVEN) >= 8 * digits and _digits.narrow(digits, 8) == digits


@pytest.mark.parametrize("kind", ["uniform(-1,1)", "orthogonal", "phi 2", "entries 1e+-8"])
def test_products_are_certified(kind):
    a, b = family(kind, 40, 300, 50, np.random.default_rng(0))
    used = device()
    try:
        assert error(float64_products.matmul(used, a, b), a, b) <= 4.0
    except float64_products.Uncertified:
        assert kind == "entries 1e+-8"
        return
    assert ("bits", SEVEN) in {p for v in used.runtime.counters.variants for p in v[2]}
    g = float64_products.gram(used, a)
    np.testing.assert_array_equal(g, g.T)
    assert error(g, a, a.T) <= 4.0


def test_complex_products_and_stacks_are_certified():
    rng = np.random.default_rng(0)
    a = rng.standard_normal((3, 20, 30)) + 1j * rng.standard_normal((3, 20, 30))
    c = float64_stacks.matmul(device(), a, a.conj().mT)
    np.testing.assert_allclose(c, a @ a.conj().mT, rtol=1e-14, atol=1e-13)
    np.testing.assert_allclose(float64_products.matmul(device(), a[0], a[1].T), a[0] @ a[1].T, rtol=1e-14, atol=1e-13)


@pytest.fixture
def keeps_22_bits(monkeypatch):
    """A TensorEngine whose sums in PSUM keep 22 bits."""
    exact = _tensor_engine.store_product

    def rounded(dst, a, b, addition):
        exact(dst, a, b, addition)
        fraction, exponent = np.frexp(dst.float32())
        dst.write(np.ldexp(np.rint(fraction * 2.0**22), exponent - 22).astype(np.float32))

    monkeypatch.setattr(_tensor_engine, "store_product", rounded)


def test_where_sums_keep_22_bits_the_probes_choose_digits_of_seven(keeps_22_bits, capsys):
    assert probes.report(DeviceEngine(SimulatorRuntime(TRN2))) == 1
    said = capsys.readouterr().out
    assert "float64: 7-bit digits\nintegers: on the host" in said
    assert probed("simulator", "trn2").content.bits == SEVEN
    a, b = np.random.default_rng(0).uniform(0.8, 1, (2, 60, 60))  # the largest digits, and no cancellation
    a, b = np.tile(a, (1, 10)), np.tile(b, (10, 1))
    assert error(float64_products.matmul(device(bits=8), a, b), a, b) > 4.0
    e = DeviceEngine(SimulatorRuntime(TRN2))
    assert error(e.matmul(a, b), a, b) <= 4.0
    assert error(e.gram(a), a, a.T) <= 4.0
    with pytest.raises(Refused, match="eight bits, which integers need"):
        e.matmul(np.ones((4, 4), np.int64), np.ones((4, 4), np.int64))


@pytest.mark.parametrize(
    "facts, bits",
    [
        (Facts(), 8),
        (Facts(exact_sums=False), 7),
        (Facts(exact_sums=False, short_sums=False), 0),
        (Facts(integer_sums=False), 0),
    ],
)
def test_what_the_probes_found_says_how_wide_digits_may_be(facts, bits):
    assert facts.bits == bits and facts.digits is (bits == 8)


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_without_exact_digits_there_are_no_products_in_float64(dtype):
    e = DeviceEngine(SimulatorRuntime(TRN2), facts=Facts(exact_sums=False, short_sums=False))
    with pytest.raises(Refused, match="self-tests found inexact digits on this device"):
        e.matmul(np.eye(3, dtype=dtype), np.eye(3, dtype=dtype))
