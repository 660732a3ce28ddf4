"""Operands in lists and tuples under a patch: results, classes, warnings and errors of NumPy, also when repeated."""

import warnings

import numpy as np
import pytest

import trnpy
from trnpy import xp

MASKED = np.ma.array([1.0, 2.0, 3.0], mask=[0, 1, 0])


class Own(list):
    pass


CASES = {
    "numbers": lambda: np.dot([1, 2, 3], [4.0, 5.0, 6.0]),
    "lists of numbers": lambda: np.matmul([[1, 2]], ((3,), (4,))),
    "bools": lambda: np.dot([True, False], [1, 2]),
    "complex numbers": lambda: np.inner([1 + 2j], [3]),
    "integers beyond 64 bits": lambda: np.dot([10**30], [2]),
    "integers that wrap": lambda: np.matmul([[2**62]], [[4]]),
    "a subclass of list": lambda: np.dot(Own([1, 2]), Own([3, 4])),
    "nothing": lambda: np.inner((), ()),
    "an empty row": lambda: np.dot([[]], np.empty((0, 3))),
    "arrays": lambda: np.linalg.multi_dot([np.eye(2), np.ones((2, 2)), np.ones(2)]),
    "a matrix": lambda: np.linalg.multi_dot([np.matrix([[1.0, 2.0]]), np.ones((2, 2))]),
    "masked arrays": lambda: np.dot([MASKED, MASKED], np.ones((3, 1))),
    "axes": lambda: np.tensordot(np.ones((4, 5)), np.ones((5, 4)), axes=([1], [0])),
    "axes of a norm": lambda: np.linalg.norm(np.ones((3, 4)), axis=(0, 1)),
    "lengths that differ": lambda: np.dot([1, 2], [1, 2, 3]),
    "a singular matrix": lambda: np.linalg.inv([[1, 2], [2, 4.0]]),
    "rows of different lengths": lambda: np.linalg.solve([[1, 2], [3]], [1, 2]),
    "words": lambda: np.dot(["a"], ["b"]),
    "None": lambda: np.dot([None], [1]),
}


def outcome(call):
    """The class and values of a result, or the class and message of an error; and the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = call()
            found = type(result), np.asarray(result).dtype, np.asarray(result).tolist()
        except Exception as error:
            found = type(error), str(error)
    return found, [(w.category, str(w.message)) for w in caught]


@pytest.mark.parametrize("record", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_calls_are_numpys_each_time(name, record):
    expected = outcome(CASES[name])
    with trnpy.patched():
        assert [outcome(CASES[name]) for _ in range(4)] == 4 * [expected]
        if record:
            with trnpy.profile():
                assert [outcome(CASES[name]) for _ in range(25)] == 25 * [expected]


def test_a_list_that_grows_between_calls_is_read_anew():
    x = [1.0, 2.0]
    with trnpy.patched():
        for n in range(3, 40):
            x.append(float(n))
            assert np.dot(x, x) == sum(i * i for i in x)


def test_arrays_of_trnpy_in_a_list_are_numpys_operands():
    a = xp.asarray(np.arange(3.0))
    with trnpy.patched():
        for _ in range(3):
            np.testing.assert_array_equal(np.asarray(np.dot([a, a], np.ones(3))), [3.0, 3.0])
