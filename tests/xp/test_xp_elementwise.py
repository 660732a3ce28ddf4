"""Functions of one element, or of one of each operand: NumPy's bits, broadcasting and dtypes; clip and where."""

import numpy as np
import pytest

from trnpy import xp

RNG = np.random.default_rng(0)
pytestmark = pytest.mark.usefixtures("computed_at_once_and_recorded")


@pytest.mark.parametrize("dtype", ["f4", "f8", "c16"])
@pytest.mark.parametrize("name", ["abs", "exp", "sin", "sqrt", "square", "negative"])
def test_functions_of_one_element_have_numpys_bits(name, dtype):
    a = np.abs(RNG.standard_normal((4, 5))).astype(dtype)
    found, expected = np.asarray(getattr(xp, name)(xp.asarray(a))), getattr(np, name)(a)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("name", ["floor", "ceil", "trunc"])
@pytest.mark.parametrize("dtype", ["i1", "u4"])
def test_whole_numbers_keep_their_dtype_where_they_are_rounded(name, dtype):
    a = np.arange(5).astype(dtype)
    found = np.asarray(getattr(xp, name)(xp.asarray(a)))
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, a)


@pytest.mark.parametrize("name", ["add", "multiply", "maximum", "atan2", "less"])
def test_operands_are_broadcast_and_promoted(name):
    a, b = RNG.standard_normal((3, 1)).astype("f4"), RNG.standard_normal(4)
    theirs = getattr(np, {"atan2": "arctan2"}.get(name, name))(a, b)
    found = np.asarray(getattr(xp, name)(xp.asarray(a), xp.asarray(b)))
    assert (found.shape, found.dtype) == (theirs.shape, theirs.dtype)
    np.testing.assert_array_equal(found, theirs)


@pytest.mark.parametrize("limits", [(-0.5, 0.5), (None, 0.5), (-0.5, None), (None, None)])
def test_a_limit_that_is_none_clips_nothing(limits):
    a = RNG.standard_normal(20)
    low, high = (-np.inf if limits[0] is None else limits[0]), (np.inf if limits[1] is None else limits[1])
    np.testing.assert_array_equal(np.asarray(xp.clip(xp.asarray(a), *limits)), np.minimum(np.maximum(a, low), high))


def test_elements_come_from_the_second_operand_where_the_condition_is_false():
    a, b = RNG.standard_normal((3, 4)), RNG.standard_normal(4)
    found = np.asarray(xp.where(xp.asarray(a > 0), xp.asarray(a), xp.asarray(b)))
    np.testing.assert_array_equal(found, np.where(a > 0, a, b))


def test_shapes_that_do_not_broadcast_are_refused_when_they_are_recorded():
    with pytest.raises(ValueError, match="broadcast"):
        xp.add(xp.asarray(np.ones((3, 2))), xp.asarray(np.ones(3)))
