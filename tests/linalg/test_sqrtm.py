"""Square roots of positive-definite matrices on the device path; of all others they are SciPy's."""

import itertools

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st

import trnpy.linalg
from linalg.matrices import hermitian, positive
from linalg.rows import (
    LAYOUTS,
    eps,
    forced,
    gaussian,
    of_positive_matrices,
    scipys_unless_positive,
    scipys_where_products_are_wrong,
)
from trnpy._engine.engines import HOST, engine

DOUBLE, SINGLE = itertools.product(["f8", "c16"], [1e1, 1e4, 1e8]), itertools.product(["f4", "c8"], [1e1, 1e2])


@pytest.mark.parametrize("dtype, condition", [*DOUBLE, *SINGLE])
def test_sqrtm_of_positive_matrices(dtype, condition):
    of_positive_matrices("sqrtm", lambda x: x @ x, dtype, condition)


def test_what_is_not_positive_definite_beyond_doubt_is_scipys():
    scipys_unless_positive("sqrtm")


def test_a_wrong_product_is_never_returned():
    scipys_where_products_are_wrong("sqrtm", positive(60, "f8", 100.0))


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 20), st.sampled_from(["f8", "c16"]), st.sampled_from(sorted(LAYOUTS)), st.integers(0, 99))
def test_any_layout(n, dtype, layout, seed):
    a = hermitian("random", n, dtype, seed)
    a = LAYOUTS[layout](a / np.linalg.norm(a) + 2 * np.eye(n))
    kept = a.copy()
    a.flags.writeable = False
    with engine(HOST), trnpy.policy(force=True), trnpy.trace() as log:
        root = trnpy.linalg.sqrtm(a)
    assert log[0].on_device, log
    np.testing.assert_allclose(root @ root, kept, rtol=0, atol=1e-12 * np.linalg.norm(kept))


SPECTRA = {
    "geometric": lambda n, c: np.geomspace(1, 1 / c, n),
    "one small": lambda n, c: np.append(np.linspace(1, 2, n - 1), 1 / c),
    "half small": lambda n, c: np.where(np.arange(n) % 2, 1.0, 1 / c) * np.linspace(1, 2, n),
    "three clusters": lambda n, c: np.geomspace(1, 1 / c, 3)[np.arange(n) % 3] * (1 + 1e-10 * np.arange(n)),
}


OF_EACH = [
    *itertools.product(["sqrtm", "logm", "fractional_matrix_power"], ["f8"], [1e2, 1e4, 1e6, 1e8]),
    *itertools.product(["sqrtm"], ["f4"], [1e1, 1e2]),
]


@pytest.mark.parametrize("name, dtype, condition", OF_EACH)
@pytest.mark.parametrize("spectrum", SPECTRA)
def test_functions_on_the_device_path_err_at_most_twice_as_much_as_scipys(name, dtype, spectrum, condition):
    """Q and w are exact to long double's rounding: A is rounded once, from A = Q diag(w) Q^T refined there."""
    n = 40
    w, q = SPECTRA[spectrum](n, condition).astype("g"), np.linalg.qr(gaussian((n, n), "f8"))[0].astype("g")
    for _ in range(3):  # Newton and Schulz: orthonormal in long double
        q = q @ (3 * np.eye(n) - q.T @ q) / 2
    a = (q * w) @ q.T
    a = ((a + a.T) / 2).astype(dtype)
    function, options = {
        "sqrtm": (np.sqrt, ()), "logm": (np.log, ()), "fractional_matrix_power": (lambda x: x**-0.5, (-0.5,)),
    }[name]  # fmt: skip
    lost = q.T @ (a - (q * w) @ q.T) @ q  # of rounding A, to first order
    x, y = w[:, np.newaxis], w
    with np.errstate(all="ignore"):
        near = np.abs(x - y) <= 1e-4 * np.maximum(x, y)
        slope = (function(w * (1 + 1e-6)) - function(w * (1 - 1e-6))) / (2e-6 * w)
        quotients = np.where(near, slope, (function(x) - function(y)) / np.where(near, 1, x - y))
    exact = (q * function(w)) @ q.T + q @ (quotients * lost) @ q.T
    ours, theirs = forced(name, a, *options), getattr(scipy.linalg, name)(a, *options)
    errors = [float(np.abs(z - exact).max() / np.abs(exact).max()) / eps(dtype) for z in (ours, theirs)]
    assert errors[0] <= 2 * errors[1] + 4
