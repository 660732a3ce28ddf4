"""Sets and orders of elements: NumPy's in every version, as array_api_strict has."""

import numpy as np
import pytest

from trnpy import xp

RNG = np.random.default_rng(0)
pytestmark = pytest.mark.usefixtures("computed_at_once_and_recorded")


VALUES = {
    "integers": RNG.integers(-40, 40, 300),
    "shifted labels": RNG.integers(1000, 1003, 60),
    "uint8": RNG.integers(0, 200, 300).astype("u1"),
    "bool": RNG.integers(0, 2, 30).astype(bool),
    "floats": RNG.integers(-9, 9, (20, 30)) / 4,
    "NaN and zeros of both signs": np.array([2.0, np.nan, -0.0, 0.0, np.nan, -np.inf, 1.0, 2.0]),
    "zeros of both signs": RNG.choice([-1.0, -0.0, 0.0, 1.0], 300),
    "complex": RNG.integers(-2, 2, 40) + 1j * RNG.integers(-2, 2, 40),
    "none": np.zeros((0, 3)),
}


SETS = {
    "unique_values": {}, "unique_counts": {"return_counts": True}, "unique_inverse": {"return_inverse": True},
    "unique_all": {"return_index": True, "return_inverse": True, "return_counts": True},
}  # fmt: skip


def parts(found):
    return [np.array(x) for x in (found if isinstance(found, tuple) else (found,))]


@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("name", SETS)
def test_elements_of_a_set_ascend(name, values):
    a = VALUES[values]
    theirs = parts(np.unique(a, equal_nan=False, **SETS[name]))
    for ours, expected in zip(parts(getattr(xp, name)(xp.asarray(a))), theirs, strict=True):
        np.testing.assert_array_equal(ours.reshape(expected.shape), expected)  # NumPy 2.0's inverse has another shape


@pytest.mark.parametrize("values", [v for v in VALUES if v != "complex"])
def test_as_array_api_strict(values):
    strict = pytest.importorskip("array_api_strict", reason="array_api_strict is not installed")
    a = VALUES[values]
    for name in (*SETS, "nonzero", *(("sort", "argsort") if a.dtype != bool else ())):  # strict sorts numbers only
        ours, theirs = getattr(xp, name)(xp.asarray(a)), getattr(strict, name)(strict.asarray(a))
        for x, y in zip(parts(ours), parts(theirs), strict=True):
            np.testing.assert_array_equal(x, y, err_msg=name)


@pytest.mark.parametrize("stable", [True, False])
@pytest.mark.parametrize("values", ["integers", "floats", "bool", "NaN and zeros of both signs", "zeros of both signs"])
def test_orders_of_equal_elements_are_numpys(values, stable):
    a = VALUES[values]
    x = xp.asarray(a)
    np.testing.assert_array_equal(np.asarray(xp.argsort(x, stable=stable)), np.argsort(a, stable=stable))
    assert np.asarray(xp.sort(x, stable=stable)).tobytes() == np.sort(a, stable=stable).tobytes()  # with zeros' signs
    for ours, theirs in zip((*xp.nonzero(x), *xp.where(x)), (*np.nonzero(a), *np.where(a)), strict=True):
        np.testing.assert_array_equal(np.asarray(ours), theirs)


def test_nonzero_of_a_number_raises():
    with pytest.raises(ValueError, match="Calling nonzero on 0d arrays is not allowed"):
        xp.nonzero(xp.asarray(1.0))  # NumPy 2.0 only warns


@pytest.mark.parametrize("axis", [0, 1])
def test_descending_orders_are_those_of_the_negative_numbers(axis):
    a = VALUES["floats"]
    x = xp.asarray(a)
    found = xp.argsort(x, axis=axis, descending=True)
    np.testing.assert_array_equal(np.asarray(found), np.argsort(-a, axis=axis, stable=True))
    np.testing.assert_array_equal(np.asarray(xp.sort(x, axis=axis, descending=True)), -np.sort(-a, axis=axis))
