"""Differences along an axis take the arguments of NumPy; sums and extrema of Arrays have its shapes and dtypes."""

import numpy as np
import pytest

from trnpy import xp

RNG = np.random.default_rng(0)
pytestmark = pytest.mark.usefixtures("computed_at_once_and_recorded")


def test_diff_takes_numpys_arguments_by_position():
    a = RNG.standard_normal((4, 7))
    x = xp.asarray(a)
    np.testing.assert_array_equal(np.asarray(xp.diff(x, 2)), np.diff(a, 2))
    np.testing.assert_array_equal(np.asarray(xp.diff(x, 1, 0)), np.diff(a, 1, 0))
    np.testing.assert_array_equal(np.asarray(np.diff(x, 1, 0)), np.diff(a, 1, 0))


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axis", [None, 0, -1, (0, 2), ()])
@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "mean", "any", "all"])
def test_any_axes_have_numpys_shape_dtype_and_bits(name, axis, keepdims):
    a = RNG.standard_normal((3, 4, 5)).astype("f4")
    found = np.asarray(getattr(xp, name)(xp.asarray(a), axis=axis, keepdims=keepdims))
    expected = np.asarray(getattr(np, name)(a, axis=axis, keepdims=keepdims))
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("name", ["sum", "prod"])
def test_sums_and_products_have_the_given_dtype(name):
    a = RNG.standard_normal((3, 4)).astype("f4")
    found = np.asarray(getattr(xp, name)(xp.asarray(a), dtype=np.float64))
    assert found.dtype == np.float64 and found == getattr(np, name)(a, dtype=np.float64)


def test_a_correction_divides_the_squares_by_fewer_terms():
    a = RNG.standard_normal((6, 7))
    for name, power in (("var", 1.0), ("std", 0.5)):
        plain, corrected = (np.asarray(getattr(xp, name)(xp.asarray(a), axis=0, correction=c)) for c in (0, 1))
        np.testing.assert_allclose(corrected, plain * (6 / 5) ** power, rtol=4 * np.finfo("f8").eps)


@pytest.mark.parametrize("function, first", [("cumulative_sum", 0.0), ("cumulative_prod", 1.0)])
def test_an_initial_element_comes_before_all_others(function, first):
    a = RNG.standard_normal((3, 4))
    plain = np.asarray(getattr(xp, function)(xp.asarray(a), axis=1))
    found = np.asarray(getattr(xp, function)(xp.asarray(a), axis=1, include_initial=True))
    assert found.shape == (3, 5) and (found[:, 0] == first).all()
    np.testing.assert_array_equal(found[:, 1:], plain)


@pytest.mark.parametrize("method", ["sum", "mean", "max", "min", "prod", "std", "var", "argmax", "all", "any"])
def test_a_number_that_a_method_returns_is_an_array_that_can_be_written(method):
    found = getattr(xp.asarray([[1.0, 2.0], [3.0, 4.0]]), method)()
    assert type(found) is type(xp.asarray(1.0)) and found.shape == ()
    found[...] = 1
    assert float(found) == 1 and float(found + found) == 2 - (found.dtype == bool)
