"""gemm, symm, syrk, trmm and trsm of trnpy.linalg are the routines of SciPy's BLAS for the dtypes of their arrays."""

import inspect

import numpy as np
import pytest
from scipy.linalg import blas

import trnpy
import trnpy.linalg

A = np.random.default_rng(0).standard_normal((2, 6, 6))
LOW = np.tril(A[0]) + 6 * np.eye(6)
DTYPES = {"f4": "s", "f8": "d", "c8": "c", "c16": "z", "f2": "s", "i8": "d"}
CALLS = {
    "gemm": [({}, "ab"), ({"trans_a": 1, "beta": 0.5}, "abc"), ({"trans_a": 2, "trans_b": 1, "overwrite_c": 1}, "abc")],
    "symm": [({}, "ab"), ({"side": 1, "lower": 1, "beta": 0.5}, "abc")],
    "syrk": [({}, "a"), ({"trans": 1, "lower": 1, "beta": 0.5}, "ac")],
    "trmm": [({}, "ab"), ({"side": 1, "lower": 1, "trans_a": 1, "diag": 1}, "ab"), ({"overwrite_b": 1}, "ab")],
    "trsm": [({"lower": 1}, "ab"), ({"side": 1, "lower": 1, "trans_a": 2}, "ab"), ({"lower": 1, "diag": 1}, "ab")],
}
CASES = [(name, options, given) for name, cases in CALLS.items() for options, given in cases]


def operands(given, dtype):
    """By name: a lower triangle for a, so that systems have a solution, and other matrices for b and c."""
    made = {"a": LOW, "b": A[1], "c": A[0].T}
    if np.dtype(dtype).kind == "c":
        made = {name: x + 0.5j * x[::-1] if name != "a" else x * (1 + 0.1j) for name, x in made.items()}
    return {name: np.asfortranarray(made[name], dtype) for name in given}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name, options, given", CASES)
def test_it_is_the_routine_of_its_arrays_dtype(name, options, given, dtype):
    ours, theirs = operands(given, dtype), operands(given, dtype)
    routine = getattr(blas, DTYPES[dtype] + name)
    result, expected = getattr(trnpy.linalg, name)(2.0, **ours, **options), routine(2.0, **theirs, **options)
    assert result.dtype == expected.dtype and result.flags.f_contiguous
    np.testing.assert_array_equal(result, expected)
    for x, y in zip(ours.values(), theirs.values(), strict=True):  # overwritten, or not, alike
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("name", CALLS)
def test_it_takes_the_arguments_of_the_routine_in_their_order(name):
    documented = getattr(blas, f"d{name}").__doc__.partition("= ")[2].partition("(")[2].partition(")")[0]
    assert list(inspect.signature(getattr(trnpy.linalg, name)).parameters) == documented.replace("[", "").replace(
        "]", ""
    ).split(",")


@pytest.mark.parametrize("name", CALLS)
def test_it_takes_the_device_path(name):
    options, given = CALLS[name][0]
    arrays = operands(given, "f4")
    with trnpy.policy(device="simulator", force=True, fallback="raise"), trnpy.trace() as log:
        result = getattr(trnpy.linalg, name)(2.0, **arrays, **options)
    assert [d.op for d in log] == [f"scipy.linalg.blas.s{name}"]
    assert log[0].launches or name == "trsm"  # whose first panel is the host's
    expected = getattr(blas, f"s{name}")(2.0, **arrays, **options)
    np.testing.assert_allclose(result, expected, rtol=0, atol=50 * np.finfo("f4").eps * np.abs(expected).max())


def test_the_type_is_that_of_all_arrays():
    a = A.astype("f4")
    assert trnpy.linalg.gemm(1.0, a[0], a[1]).dtype == "f4"
    assert trnpy.linalg.gemm(1.0, a[0], A[1]).dtype == "f8"
    assert trnpy.linalg.gemm(1.0, a[0], a[1], 1.0, A[0] * 1j).dtype == "c16"


def test_errors_are_those_of_the_routine():
    for name, args in {"gemm": (np.eye(2), np.eye(3)), "trsm": (np.eye(2), np.eye(3))}.items():
        with pytest.raises(Exception) as theirs:
            getattr(blas, f"d{name}")(1.0, *args)
        with pytest.raises(type(theirs.value)) as ours:
            getattr(trnpy.linalg, name)(1.0, *args)
        assert str(ours.value) == str(theirs.value)
