"""Exponentials on the device path: errors of SciPy's size, stacks, and what they leave to SciPy."""

import re

import numpy as np
import pytest
import scipy.linalg
from doubles import RecordingEngine
from hypothesis import given, settings
from hypothesis import strategies as st

import trnpy.linalg
from linalg.matrices import hermitian, positive
from linalg.rows import LAYOUTS, U, forced, gaussian, scipys_where_products_are_wrong
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
    "tiny": lambda n, g: 1e-200 * g,
    "graded": lambda n, g: g * 10.0 ** -np.linspace(0, 8, n)[:, np.newaxis],
}


@pytest.mark.parametrize("dtype", ["f8", "c16"])
@pytest.mark.parametrize("family", EXPONENTS)
def test_exponentials(family, dtype):
    """Twice as many squarings as Pade's approximation of degree 13 takes; each doubles what came before."""
    a = EXPONENTS[family](60, gaussian((60, 60), dtype))
    x, exact = forced("expm", a), exact_exponential(a)
    size, theirs = np.linalg.norm(exact), np.linalg.norm(scipy.linalg.expm(a) - exact)
    assert x.dtype == dtype
    assert np.linalg.norm(x - exact) <= 4 * theirs + 20 * U * size


def test_exponentials_take_seven_products_and_their_squarings():
    e = RecordingEngine()
    forced("expm", gaussian((60, 60), "f8") / 60, e=e)
    assert len(e.shapes) == _expm.PRODUCTS
    e = RecordingEngine()
    forced("expm", 8 * np.eye(60) + np.eye(60, k=1) + np.eye(60, k=-1), e=e)
    assert len(e.shapes) == _expm.PRODUCTS + 4  # 8 to 10 is within 16 times what the polynomial reaches


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


def test_an_exponential_on_the_simulator():
    a = gaussian((24, 24), "f8")
    with trnpy.policy(device="simulator", force=True), trnpy.trace() as log:
        x = trnpy.linalg.expm(a)
    assert log[0].on_device and log[0].engine == "simulator"
    exact = exact_exponential(a)
    assert np.linalg.norm(x - exact) <= 100 * U * np.linalg.norm(exact)


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
