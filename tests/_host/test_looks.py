"""Applicability checks: arguments that NumPy and SciPy must see themselves have no CPU fast path, and raise nothing."""

import numpy as np
import pytest
import scipy.linalg

import trnpy
from trnpy._call.host_table import host_entry
from trnpy._host import TABLE
from trnpy.linalg._matrix_functions import FUNCTIONS

N = 300  # above all limits
MATRIX = np.ones((N, N))
OPERANDS = {
    "a list": MATRIX.tolist(), "a number": 2.0, "no dimension": np.ones(()), "objects": MATRIX.astype(object),
    "another byte order": MATRIX.astype(">f8"), "a vector": np.ones(N), "no element": np.ones((0, 0)),
    "no matrix": np.ones((0, 3, 3)), "text": "x", "nothing": None, "a numpy.matrix": MATRIX.view(np.matrix),
    "long double": MATRIX.astype("g"), "few rows": MATRIX[:5], "records": np.zeros((N, N), [("x", "f8")]),
}  # fmt: skip
TWO = {"solve", "lstsq", "matmul", "dot", "inner", "tensordot"}
MORE = {"sgemm": lambda a: (1.0, a, a), "dgemm": lambda a: (1.0, a, a), "fractional_matrix_power": lambda a: (a, 0.5)}
# einsum's check leaves more to ``prepare``; eigh's routine converts the byte order, and a product of sparse
# matrices is a method, whose first operand is always one of them.
ROWS = [name for name in TABLE if "." in name and not name.startswith("pyscf") and "sparse" not in name]


@pytest.mark.parametrize("row", [name for name in ROWS if name != "numpy.einsum"])
def test_what_is_no_matrix_of_numbers_has_no_fast_path(row):
    name = row.rpartition(".")[2]
    for what, a in OPERANDS.items():
        args = MORE[name](a) if name in MORE else (a, a) if name in TWO else (a,)
        if (name, what) != ("eigh", "another byte order"):
            assert host_entry(row).look(args, {}) is False, what


def test_eigenpairs_of_another_byte_order_are_those_of_the_same_numbers():
    a = np.random.default_rng(0).standard_normal((N, N))
    a += a.T
    for values, expected in zip(trnpy.linalg.eigh(a.astype(">f8")), scipy.linalg.eigh(a.astype(">f8")), strict=True):
        assert values.dtype == expected.dtype and values.dtype.isnative == expected.dtype.isnative
    w, x = trnpy.linalg.eigh(a.astype(">f8"))
    np.testing.assert_allclose(w, scipy.linalg.eigvalsh(a), rtol=0, atol=N * np.finfo(float).eps * np.abs(w).max())
    assert np.abs(a @ x - x * w).max() <= N * np.finfo(float).eps * np.abs(w).max()


@pytest.mark.parametrize("name, place", [("inv", 1), ("solve", 3)])
def test_a_symmetric_matrix_that_scipy_would_overwrite_is_copied(name, place):
    """In Fortran order, of which SciPy 1.17 overwrites an indefinite one and ends the process."""
    look = host_entry(f"scipy.linalg.{name}").look
    a = np.asfortranarray([[1.0, 2.0, 3.0], [2.0, -1.0, 2.0], [3.0, 2.0, 1.0]])
    operands = (a,) if name == "inv" else (a, np.ones(3))
    options = (*operands, *[False] * (place - len(operands)))
    overwriting = look((*options, True), {})
    assert callable(overwriting) and look(operands, {}) is False
    np.testing.assert_allclose(overwriting(*options, True), getattr(scipy.linalg, name)(*operands), rtol=1e-14)
    np.testing.assert_array_equal(a, a.T)  # as before the call
    for other in (np.ascontiguousarray(a), np.asfortranarray(a + np.triu(a, 1))):
        assert look((other, *options[1:], True), {}) is False


@pytest.mark.parametrize("name", ["sgemm", "dgemm"])
def test_only_large_products_of_a_matrix_with_its_transpose_are_rank_k_products(name):
    look, dtype = host_entry(f"scipy.linalg.blas.{name}").look, "f4" if name == "sgemm" else "f8"
    a, small = np.ones((400, 400), dtype), np.ones((4, 4), dtype)
    assert look((1.0, a, a), {"trans_a": 1}) is True and look((1.0, a, a), {"trans_b": 1}) is True
    for args, options in (
        ((1.0, a, a), {}), ((1.0, a, a), {"trans_a": 1, "trans_b": 1}), ((1.0, small, small), {"trans_a": 1}),
        ((1.0, a, a.copy()), {"trans_a": 1}), ((1.0, a), {"trans_a": 1}),
    ):  # fmt: skip
        assert look(args, options) is False


@pytest.mark.parametrize("name", ["sqrtm", "logm", "fractional_matrix_power"])
def test_positive_matrices_may_be_in_a_stack_of_any_depth(name):
    look, n = host_entry(f"scipy.linalg.{name}").look, FUNCTIONS[name].least
    a = np.eye(n) * 2.0 + 1.0 / n
    for stack in ((), (2,), (2, 2), (1, 1, 2)):
        assert look((np.tile(a, (*stack, 1, 1)), 0.5), {}) is True
