"""New Arrays and their dtypes: the values, shapes and errors of NumPy, and copies where one is asked for."""

import numpy as np
import pytest

from trnpy import Array, xp

MADE = {
    "arange": (lambda n: n.arange(2, 20, 3)), "linspace": (lambda n: n.linspace(0.0, 1.0, 7)),
    "zeros": (lambda n: n.zeros((2, 3), dtype=n.float32)), "ones": (lambda n: n.ones(4, dtype=n.int8)),
    "full": (lambda n: n.full((2, 2), 3 + 1j)), "eye": (lambda n: n.eye(3, 5, k=1)),
    "tril": (lambda n: n.tril(n.ones((4, 5)), k=-1)), "triu": (lambda n: n.triu(n.ones((4, 5)), k=2)),
}  # fmt: skip


@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
def test_new_arrays_are_numpys(make):
    found, expected = make(xp), make(np)
    assert isinstance(found, Array)
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_array_equal(np.asarray(found), expected)


@pytest.mark.parametrize("name", ["zeros_like", "ones_like", "empty_like"])
def test_an_array_like_another_has_its_shape_and_its_dtype_or_the_given_one(name):
    like = xp.asarray(np.ones((2, 3), "f4"))
    assert (getattr(xp, name)(like).shape, getattr(xp, name)(like).dtype) == ((2, 3), np.float32)
    assert getattr(xp, name)(like, dtype=xp.int64).dtype == np.int64


def test_a_copy_is_made_where_one_is_asked_for_and_refused_where_none_may_be():
    a = np.arange(4.0)
    copied = xp.asarray(a, copy=True)
    a[0] = 7.0
    assert float(copied[0]) == 0.0
    with pytest.raises(ValueError, match="copy"):
        xp.asarray([1.0, 2.0], copy=False)


def test_grids_have_an_axis_for_each_vector_in_either_order():
    x, y = np.arange(3.0), np.arange(4.0)
    for indexing in ("xy", "ij"):
        found = xp.meshgrid(xp.asarray(x), xp.asarray(y), indexing=indexing)
        for ours, theirs in zip(found, np.meshgrid(x, y, indexing=indexing), strict=True):
            np.testing.assert_array_equal(np.asarray(ours), theirs)


def test_dtypes_promote_and_are_of_a_kind_as_numpys():
    assert xp.result_type(xp.asarray(np.ones(2, "f4")), xp.int8) == np.result_type(np.float32, np.int8)
    assert xp.can_cast(xp.int8, xp.float32) and not xp.can_cast(xp.float64, xp.float32)
    assert xp.isdtype(xp.float32, "real floating") and not xp.isdtype(xp.float32, "integral")
    assert xp.isdtype(xp.int8, ("bool", "integral"))
    assert (xp.finfo(xp.float32).bits, xp.finfo(xp.float32).eps) == (32, float(np.finfo("f4").eps))
    assert (xp.iinfo(xp.int16).min, xp.iinfo(xp.int16).max) == (-(2**15), 2**15 - 1)


@pytest.mark.parametrize("name", ["empty", "zeros", "ones", "eye", "arange"])
def test_arrays_are_made_on_no_other_device(name):
    with pytest.raises(ValueError, match="device 'gpu': expected 'trnpy'"):
        getattr(xp, name)(3, device="gpu")
    for options in ({}, {"fill_value": 2.0}):
        like = xp.full_like if options else getattr(xp, f"{name}_like", xp.zeros_like)
        with pytest.raises(ValueError, match="device 'gpu': expected 'trnpy'"):
            like(xp.ones(3), *options.values(), device="gpu")
    for call in (lambda: xp.linspace(0, 1, 3, device="gpu"), lambda: xp.full(3, 2.0, device="gpu")):
        with pytest.raises(ValueError, match="device 'gpu': expected 'trnpy'"):
            call()
