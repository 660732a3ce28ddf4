"""Exponentials on the device path: errors of SciPy's size, stacks, and what they leave to SciPy."""

import math
import re
from fractions import Fraction

import numpy as np
import pytest
import scipy.linalg
from doubles import RecordingEngine
from hypothesis import given, settings
from hypothesis import strategies as st

import trnpy.linalg
from linalg.matrices import hermitian, positive
from linalg.rows import DTYPES, LAYOUTS, U, eps, forced, gaussian, scipys_where_products_are_wrong
from trnpy._engine.engines import HOST, engine
from trnpy.linalg import _expm


def exact_exponential(a):
    """Taylor in long double with eight bits to spare, squared."""
    wide = np.clongdouble if a.dtype.kind == "c" else np.longdouble
    halvings = max(int(np.ceil(np.log2(np.abs(a).sum(axis=0).max() + 1e-300))), 0) + 3
    b = a.astype(wide) / 2**halvings
    x = term = np.eye(len(a), dtype=wide)
    for k in range(1, 40):
        term = term @ b / k
        x = x + term
    for _ in range(halvings):
        x = x @ x
    return x.astype(a.dtype)


EXPONENTS = {
    "normal": lambda n, g: g / np.sqrt(n),
    "norm 30": lambda n, g: 30 * g / np.linalg.norm(g, 2),
    "skew": lambda n, g: g - g.conj().T,
    "negative Laplacian": lambda n, g: -10 * (2 * np.eye(n) - np.eye(n, k=1) - np.eye(n, k=-1)).astype(g.dtype),
    "far from normal": lambda n, g: np.triu(g, 1) + 1e-3 * g,
    "tiny": lambda n, g: 1e-30 * g,  # the third power underflows in float32
    "tiny float64": lambda n, g: 1e-200 * g,
    "graded": lambda n, g: g * 10.0 ** -np.linspace(0, 8, n)[:, np.newaxis],
}


@pytest.mark.parametrize(
    "family, dtype", [(f, d) for f in EXPONENTS for d in DTYPES if f != "tiny float64" or d in ("f8", "c16")]
)
def test_exponentials(family, dtype):
    """Twice as many squarings as Pade's approximation of degree 13 takes; each doubles what came before."""
    a = EXPONENTS[family](60, gaussian((60, 60), dtype)).astype(dtype)
    x, exact = forced("expm", a), exact_exponential(a)
    size, theirs = np.linalg.norm(exact), np.linalg.norm(scipy.linalg.expm(a) - exact)
    assert x.dtype == dtype
    assert np.linalg.norm(x - exact) <= 4 * theirs + 10 * eps(dtype) * size


@pytest.mark.parametrize("dtype, products", [("f8", 7), ("f4", 5)])
def test_exponentials_take_few_products_and_their_squarings(dtype, products):
    e = RecordingEngine()
    forced("expm", (gaussian((60, 60), "f8") / 60).astype(dtype), e=e)
    assert len(e.shapes) == products == _expm.polynomial(np.dtype(dtype)).products
    e = RecordingEngine()
    a = 8 * np.eye(60) + np.eye(60, k=1) + np.eye(60, k=-1)
    forced("expm", a.astype(dtype), e=e)
    assert len(e.shapes) == products + 4  # 8 to 10 is within 16 times what the polynomial reaches, and above 8 times


@pytest.mark.parametrize("degree, unit, reach", [(17, 2.0**-53, 0.93), (11, 2.0**-24, 1.22)])
def test_a_polynomial_reaches_as_far_as_is_said(degree, unit, reach):
    """The coefficients of log(e^-x T(x)), in absolute values, are summed to the unit times x, in exact fractions."""
    terms = 60
    taylor = [Fraction(1, math.factorial(k)) if k <= degree else Fraction(0) for k in range(terms)]
    p = [
        sum(Fraction((-1) ** i, math.factorial(i)) * taylor[k - i] for i in range(k + 1)) for k in range(terms)
    ]  # fmt: skip
    log = [Fraction(0)] * terms
    for k in range(1, terms):
        log[k] = p[k] - sum(Fraction(j, k) * log[j] * p[k - j] for j in range(1, k))

    def error(x):
        return sum(abs(float(c)) * x**k for k, c in enumerate(log)) / x

    assert error(reach) <= unit < error(reach + 0.01)
    assert (degree, reach) in [p[:2] for p in _expm.POLYNOMIALS.values()]


@pytest.mark.parametrize("batch", [(3,), (2, 3), (1, 1, 2)])
def test_stacks_of_exponentials_are_scaled_one_by_one(batch):
    a = gaussian((*batch, 8, 8), "f8")
    a.reshape(-1, 8, 8)[0] *= 40
    a.reshape(-1, 8, 8)[-1] *= 1e-3
    x = forced("expm", a)
    assert x.shape == a.shape
    for mine, one in zip(x.reshape(-1, 8, 8), a.reshape(-1, 8, 8), strict=True):
        exact = exact_exponential(one)
        theirs = np.linalg.norm(scipy.linalg.expm(one) - exact)
        assert np.linalg.norm(mine - exact) <= 4 * theirs + 20 * U * np.linalg.norm(exact)


@pytest.mark.parametrize(
    "a", [np.eye(5), np.triu(np.ones((5, 5))), np.full((5, 5), 1e200), np.ones((1, 1)), np.full((5, 5), np.inf),
          800.0 * np.ones((5, 5))],
)  # fmt: skip
def test_exponentials_that_stay_with_scipy(a):
    """Diagonals and triangles, which SciPy treats apart, and what overflows."""
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(forced("expm", a, runs=False), scipy.linalg.expm(a))


def test_the_other_byte_order_is_scipys():
    """SciPy 1.17 refuses it, which is no fault of a device: nothing warns, and no engine counts one."""
    a = gaussian((8, 8), "f8")
    swapped = a.astype(a.dtype.newbyteorder("S"))
    try:
        expected = scipy.linalg.expm(swapped)
    except ValueError as why:
        with engine(HOST), trnpy.policy(force=True), pytest.raises(ValueError, match=re.escape(str(why))):
            trnpy.linalg.expm(swapped)
    else:
        np.testing.assert_array_equal(forced("expm", swapped, runs=False), expected)


@pytest.mark.parametrize("dtype, kernel", [("f8", "float64_matmul"), ("f4", "matmul"), ("c8", "matmul")])
def test_an_exponential_on_the_simulator(dtype, kernel):
    a = gaussian((24, 24), dtype).astype(dtype)
    with trnpy.policy(device="simulator", force=True), trnpy.trace() as log:
        x = trnpy.linalg.expm(a)
    assert log[0].on_device and log[0].engine == "simulator" and dict(log[0].launches)[kernel]
    exact = exact_exponential(a)
    assert np.linalg.norm(x - exact) <= 50 * eps(dtype) * np.linalg.norm(exact)


def test_a_wrong_product_is_never_returned():
    scipys_where_products_are_wrong("expm", positive(60, "f8", 100.0))


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 20), st.sampled_from(["f8", "c16"]), st.sampled_from(sorted(LAYOUTS)), st.integers(0, 99))
def test_any_layout(n, dtype, layout, seed):
    a = hermitian("random", n, dtype, seed)
    a = LAYOUTS[layout](a / np.linalg.norm(a) + 2 * np.eye(n))
    a = a / np.linalg.norm(a)
    kept = a.copy()
    a.flags.writeable = False
    with engine(HOST), trnpy.policy(force=True), trnpy.trace() as log:
        x = trnpy.linalg.expm(a)
    assert log[0].on_device, log
    np.testing.assert_allclose(x, scipy.linalg.expm(kept), rtol=0, atol=1e-13)


@pytest.mark.parametrize("far", [False, True])
def test_large_norms_are_scipys_whose_check_would_not_end(far):
    """A check of a norm of 1e40 took 1e20 steps; so did one of a matrix of small eigenvalues and large entries."""
    a = gaussian((6, 6), "f8") * 1e40
    if far:
        a = 1e-40 * np.ones((6, 6))
        a[0, 3:] = 4e5
    with engine(RecordingEngine()) as e, trnpy.policy(force=True), trnpy.trace() as log, np.errstate(all="ignore"):
        x = trnpy.linalg.expm(a)
    np.testing.assert_array_equal(x, scipy.linalg.expm(a))
    assert "the check takes longer than SciPy" in log[0].detail and not e.health.faults


@pytest.mark.parametrize("n", [2, 5, 40])
@pytest.mark.parametrize("size", [30.0, 1e3, 3e4, 9e5])
def test_the_check_allows_for_the_condition_that_every_norm_has(size, n):
    """Of sound results the error grew with the root of the norm: from 3e4 on it was over the limit of 10 n eps."""
    for seed in range(5):
        g = np.random.default_rng(seed).standard_normal((n, n))
        g = g - g.T if seed % 2 else -g @ g.T  # of which the exponential may vanish
        problem = _expm.prepare_expm(g / np.abs(g).sum(axis=0).max() * size)
        result = problem.run(HOST)
        assert problem.error(result) < 2 * n * eps("f8")
        # Of an exponential that is nearly of rank one, random probes may see a small part of the error only.
        off = 1e4 * 10 * n * eps("f8") * 2.0**result.squarings
        wrong = _expm.RootedExponential(result.value * (1 + off) + 1e-280, result.root, result.squarings)
        assert problem.error(wrong) > 10 * n * eps("f8")
