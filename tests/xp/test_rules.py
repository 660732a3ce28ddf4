"""Shapes and dtypes before a result is computed, and NumPy's errors at the line that records."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trnpy import xp
from trnpy.xp import _rules
from trnpy.xp._nodes import Small


@pytest.fixture(autouse=True)
def everything_is_recorded(monkeypatch):
    monkeypatch.setattr(Small, "elements", -1)


SHAPES = st.lists(st.integers(1, 3), max_size=4).map(tuple)


@given(SHAPES, SHAPES)
@settings(max_examples=200, deadline=None)
def test_the_shape_of_a_product_is_numpys_or_none_where_numpy_refuses(a, b):
    try:
        expected = np.matmul(np.ones(a), np.ones(b)).shape
    except ValueError:
        expected = None
    assert _rules.matmul_shape(a, b) == expected


@pytest.mark.parametrize("dtypes", [("f4", "f8"), ("i1", "f4"), ("?", "u1"), ("c8", "f8")])
def test_a_dtype_is_known_before_the_values_are(dtypes):
    a, b = (np.ones(3, d) for d in dtypes)
    found = xp.asarray(a) + xp.asarray(b)
    assert (found.dtype, found.shape) == ((a + b).dtype, (3,))


def test_a_scalar_that_a_dtype_does_not_hold_raises_numpys_error_when_it_is_recorded():
    x = xp.asarray(np.ones(3, "i1"))
    with pytest.raises(OverflowError) as ours:
        x + 1000
    with pytest.raises(OverflowError) as theirs:
        np.ones(3, "i1") + 1000
    assert str(ours.value) == str(theirs.value)


@pytest.mark.parametrize("join", ["concat", "stack"])
def test_arrays_that_do_not_fit_each_other_are_refused_when_they_are_recorded(join):
    x, y = xp.asarray(np.ones((2, 3))), xp.asarray(np.ones((2, 3, 1)))
    with pytest.raises(ValueError, match=r"dimension|shape"):
        getattr(xp, join)([x, y])


def test_complex_numbers_are_not_cast_to_real_ones():
    with pytest.raises(ValueError, match="take the real part"):
        _rules.cast(np.ones(2, "c16"), np.dtype("f8"))
