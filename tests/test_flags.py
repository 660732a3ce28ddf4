"""Options given as arrays, floats, NumPy's scalars and other objects mean what they mean to NumPy and SciPy."""

import copy
import inspect

import numpy as np
import pytest
import scipy.linalg
from test_bad_input import ARGUMENTS, OPERANDS, ROWS, compare, matrix, outcome, same

import trnpy

VALUES = {
    "array of True": np.array(True), "array of False": np.array(False), "numpy.True_": np.True_,
    "numpy.False_": np.False_, "1.0": 1.0, "0.0": 0.0, "1": 1, "0": 0, "numpy.float64": np.float64(0),
    "numpy.int64": np.int64(1), "array of 0.0": np.array(0.0), "text": "x", "empty text": "", "list": [1],
    "empty list": [], "dict": {}, "None": None, "one element": np.array([1]), "two elements": np.array([1, 0]),
}  # fmt: skip
OPERANDS_BY_KEYWORD = {"out", "b", "c"}


def options(name):
    """The options of a function by their names."""
    try:
        parameters = inspect.signature(ROWS[name][1]).parameters
    except ValueError:  # a function in C without a signature
        return []
    return [n for n, p in parameters.items() if p.default is not p.empty and n not in OPERANDS_BY_KEYWORD]


def arguments(name, operands):
    """The positional arguments of a call with these operands."""
    found = ARGUMENTS.get(name, lambda *operands: operands)(*operands)
    return (*found, 0.5 if "fractional" in name else 2) if "power" in name else found


@pytest.mark.parametrize("name", [name for name in ROWS if options(name)])
def test_a_forced_call_reads_each_option_as_the_original_does(name):
    rng = np.random.default_rng(0)
    for option in options(name):
        for value in VALUES.values():
            operands = [matrix(4, rng) for _ in range(OPERANDS.get(name, 1))]
            compare(name, arguments(name, operands), {option: value})


@pytest.mark.parametrize("name", [name for name in ROWS if options(name) and name.startswith("scipy")])
def test_a_stack_at_default_settings_reads_each_flag_as_the_original_does(name):
    """One call after another, so that a remembered decision of one value would be taken for the next."""
    rng = np.random.default_rng(0)
    ours, theirs = ROWS[name]
    parameters = inspect.signature(theirs).parameters
    for option in options(name):
        if not isinstance(parameters[option].default, bool):
            continue
        for value in VALUES.values():
            operands = [np.stack([matrix(4, rng)] * 600) for _ in range(OPERANDS.get(name, 1))]
            args = arguments(name, operands)
            # Of copies, which overwrite_a=True may destroy.
            found, expected = (outcome(f, copy.deepcopy(args), {option: value}) for f in (ours, theirs))
            same(found[0], expected[0])
            assert found[1] == expected[1]


def test_axes_of_tensordot_in_an_array_are_not_taken_for_those_of_another_call():
    a = np.arange(120 * 120 * 2, dtype=np.int64).reshape(120, 120, 2)
    with trnpy.policy(device="none"):
        for axes in (np.array([[0, 1], [0, 1]]), np.array([[1, 0], [0, 1]]), np.array([[0, 1], [1, 0]])):
            np.testing.assert_array_equal(trnpy.tensordot(a, a, axes), np.tensordot(a, a, axes))


@pytest.mark.parametrize("device", ["none", "simulator"])
def test_an_eigenvalue_on_a_bound_is_counted_as_lapack_counts_it(device):
    q = np.linalg.qr(np.random.default_rng(3).standard_normal((20, 20)))[0]
    a = (q * np.arange(20)) @ q.T
    a = (a + a.T) / 2
    with trnpy.policy(device=device, force=True), trnpy.trace() as decisions:
        for bounds in ((0, np.inf), (3.0, 7.0), (0.5, 4.5)):
            expected = scipy.linalg.eigh(a, subset_by_value=bounds, eigvals_only=True)
            found = trnpy.linalg.eigh(a, subset_by_value=bounds, eigvals_only=True)
            np.testing.assert_allclose(found, expected, rtol=0, atol=40 * np.finfo(float).eps * 20)
    assert [d.reason for d in decisions] == [trnpy.Reason.VALUE] * 2 + [trnpy.Reason.FORCED]
