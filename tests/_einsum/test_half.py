"""float16 and bool through the rows: NumPy's accuracy and bits, on the host's float32 BLAS and on simulated kernels."""

import warnings

import numpy as np
import pytest

import trnpy
from trnpy._call.dispatch import Reason
from trnpy._engine.engines import HOST, engine

U = 2.0**-11
CALLS = {
    "matmul": lambda m, a, b: m.matmul(a, b),
    "dot": lambda m, a, b: m.dot(a, b),
    "inner": lambda m, a, b: m.inner(a, b),
    "tensordot": lambda m, a, b: m.tensordot(a, b, 1),
    "einsum": lambda m, a, b: m.einsum("ij,jk->ki", a, b),
    "stack": lambda m, a, b: m.matmul(np.stack([a, a[::-1]]), b),
}


def operands(dtype, n, seed=0):
    a, b = np.random.default_rng(seed).standard_normal((2, n, n))
    return (a > 1, b > 1) if dtype == "?" else (a.astype(dtype), b.astype(dtype))


def assert_as_good_as_numpy(ours, name, a, b):
    """Rounded once: half a unit of the result, and what float32 sums may add."""
    theirs = CALLS[name](np, a, b)
    exact = CALLS[name](np, a.astype("d"), b.astype("d"))
    most = CALLS[name](np, np.abs(a.astype("d")), np.abs(b.astype("d")))
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
    assert (np.abs(ours - exact) <= U * np.abs(exact) * 1.001 + a.shape[1] * 2.0**-24 * most + 2.0**-25).all()


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("dtype", ["f2", "?"])
def test_the_device_path(name, dtype):
    a, b = operands(dtype, 40)
    with trnpy.policy(device="simulator", force=True), trnpy.trace() as log:
        ours = CALLS[name](trnpy, a, b)
    assert log[0].on_device and dict(log[0].launches).keys() <= {"matmul", "batched_matmul"}
    if dtype == "?":
        np.testing.assert_array_equal(ours, CALLS[name](np, a, b))
    else:
        assert_as_good_as_numpy(ours, name, a, b)


@pytest.mark.route
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("dtype", ["f2", "?"])
def test_the_host_route(name, dtype):
    a, b = operands(dtype, 150)
    with trnpy.trace() as log:
        ours = CALLS[name](trnpy, a, b)
    assert log[0].reason is Reason.ROUTE
    assert log[0].route == ("float32 products" if dtype == "f2" else "exact float64 products")
    if dtype == "?":
        np.testing.assert_array_equal(ours, CALLS[name](np, a, b))
    else:
        assert_as_good_as_numpy(ours, name, a, b)


@pytest.mark.parametrize("other", ["i1", "u1", "?"])
def test_half_with_small_integers_is_half(other):
    a, b = operands("f2", 150)[0], (operands("f2", 150)[1] * 3).astype(other)
    for settings in ({}, {"device": "simulator", "force": True}):
        with trnpy.policy(**settings):
            ours = trnpy.matmul(a, b)
        assert ours.dtype == np.matmul(a, b).dtype == np.float16
        assert_as_good_as_numpy(ours, "matmul", a, b)


@pytest.mark.parametrize("settings", [{}, {"device": "simulator", "force": True}], ids=["host", "simulator"])
@pytest.mark.parametrize("dtype, large", [("f2", 60.0), ("f4", 1e19)])
def test_what_overflows_is_numpys_to_say(settings, dtype, large):
    a, b = (np.full((130, 130), large, dtype) for _ in range(2))
    with trnpy.policy(**settings), trnpy.trace() as log, pytest.warns(RuntimeWarning, match="overflow"):
        ours = trnpy.matmul(a, b)
    assert np.isinf(ours).all() and not log[0].on_device and not log[0].route
    with trnpy.policy(**settings), pytest.warns(RuntimeWarning, match="overflow"):
        assert np.isinf(trnpy.matmul(np.stack([a, a]), np.stack([b, b]))).all()
    a[0] = np.nan
    with trnpy.policy(**settings), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        np.testing.assert_array_equal(trnpy.matmul(a, b), np.matmul(a, b))


@pytest.mark.parametrize("precision, unit", [("fp32", 2.0**-24), ("bf16", 2.0**-8)])
@pytest.mark.parametrize("dtype", ["f2", "f4", "d", "F", "D"])
def test_precision_by_name_at_every_dtype(dtype, precision, unit):
    a, b = operands(np.dtype(dtype).char.lower() if dtype in "FD" else dtype, 50)
    if dtype in "FD":
        a, b = (a + 1j * a[::-1]).astype(dtype), (b - 1j * b).astype(dtype)
    with trnpy.policy(device="simulator", force=True, precision=precision), trnpy.trace() as log:
        ours = trnpy.matmul(a, b)
    assert log[0].on_device and ours.dtype == a.dtype and "float64_matmul" not in dict(log[0].launches)
    wide = "D" if dtype in "FD" else "d"
    error = np.abs(ours - a.astype(wide) @ b.astype(wide))
    assert (error <= 60 * max(unit, U if dtype == "f2" else 0) * (np.abs(a).astype("d") @ np.abs(b).astype("d"))).all()


def test_counts_that_are_wrong_are_found():
    class Miscounting(type(HOST)):
        def product(self, a, b):
            c = super().product(a, b)
            c[3, 4] += 1
            return c

    a, b = operands("?", 60)
    warned = pytest.warns(trnpy.NkiFallbackWarning, match="wrong by")
    with engine(Miscounting()), trnpy.policy(force=True), trnpy.trace() as log, warned:
        np.testing.assert_array_equal(trnpy.matmul(a, b), a @ b)
    assert log[0].reason is Reason.ACCURACY


def test_operands_of_half_need_their_smallest_numbers():
    """Denormals of float16 are numbers of float32 like others."""
    a = np.full((40, 40), 2.0**-20, "f2")
    b = np.full((40, 40), 2.0**10, "f2")
    with trnpy.policy(device="simulator", force=True):
        np.testing.assert_array_equal(trnpy.matmul(a, b), np.matmul(a, b))


@pytest.mark.route
@pytest.mark.parametrize("kind", ["infs", "zeros", "overflow", "underflow"])
def test_einsum_of_half_sets_no_floating_point_errors(kind):
    """NumPy's einsum gives none; the products and conversions of the route are not to give others."""
    a = np.random.default_rng(0).standard_normal((150, 150)).astype("f2")
    if kind in ("infs", "zeros"):
        a[3, 5], a[3, 6] = np.inf, -np.inf
    if kind == "zeros":
        a[:, 5] = 0
    if kind in ("overflow", "underflow"):
        a *= np.float16(300 if kind == "overflow" else 1e-4)
    with np.errstate(all="raise"), trnpy.trace() as log:
        ours = trnpy.einsum("ij,kj->ki", a, a)
        theirs = np.einsum("ij,kj->ki", a, a)
    assert log[0].route or kind in ("infs", "zeros", "overflow")
    np.testing.assert_array_equal(np.isfinite(ours), np.isfinite(theirs))
    np.testing.assert_allclose(ours.astype(float), theirs.astype(float), rtol=2**-10, atol=2.0**-24)
