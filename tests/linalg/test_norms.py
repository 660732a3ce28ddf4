"""cond, matrix_rank and norm from singular values: NumPy's numbers and types, and the calls that stay with NumPy."""

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse.linalg
from doubles import RecordingEngine

import trnpy
from trnpy import Reason
from trnpy._call.dispatch import accelerated
from trnpy._call.rows import row
from trnpy._engine.engines import engine

DTYPES = ("f4", "f8", "c8", "c16")
NUMPY_NORM = accelerated(row("numpy.linalg.norm"))
CALLS = {
    "cond": (trnpy.linalg.cond, np.linalg.cond, [((), {}), ((2,), {}), ((-2,), {}), ((np.float64(2),), {})]),
    "rank": (trnpy.linalg.matrix_rank, np.linalg.matrix_rank, [((), {}), ((1e-5,), {}), ((), {"rtol": 1e-5})]),
    "numpy's norm": (
        NUMPY_NORM, np.linalg.norm,
        [((2,), {}), ((-2,), {"axis": (1, 0)}), (("nuc", (-2, -1)), {"keepdims": True}), ((2.0, (0, -1), True), {})],
    ),
    "scipy's norm": (trnpy.linalg.norm, scipy.linalg.norm, [((2,), {}), (("nuc",), {"check_finite": False})]),
}  # fmt: skip


def general(m, n, dtype, condition=1e3, seed=0):
    """A matrix (m, n) with singular values from 1 to 1 / condition."""
    rng = np.random.default_rng(seed)
    k = min(m, n)
    u, v = (np.linalg.qr(rng.standard_normal((size, k)) + 1j * rng.standard_normal((size, k)))[0] for size in (m, n))
    a = (u * np.geomspace(1, 1 / condition, k)) @ v.conj().T
    return np.ascontiguousarray(a if np.dtype(dtype).kind == "c" else a.real + a.imag).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1), (7, 7), (40, 23), (23, 40)])
@pytest.mark.parametrize("name", CALLS)
def test_values_and_types_are_those_of_the_original(name, shape, dtype):
    ours, theirs, options = CALLS[name]
    a, eps = general(*shape, dtype), np.finfo(dtype).eps
    for args, named in options:
        given = a.copy()
        with engine(RecordingEngine()), trnpy.policy(force=True), trnpy.trace() as log:
            mine = ours(given, *args, **named)
        expected = theirs(a, *args, **named)
        assert log[0].on_device, log[0]
        assert (type(mine), mine.dtype, mine.shape) == (type(expected), expected.dtype, expected.shape)
        scale = 2e3 if name == "cond" and (*args, 2)[0] != -2 else 1
        np.testing.assert_allclose(mine, expected, rtol=30 * eps * scale, atol=30 * eps)
        np.testing.assert_array_equal(given, a)


REFUSED = {
    "a norm of columns": (NUMPY_NORM, (1,), Reason.MEMORY_BOUND),
    "Frobenius": (NUMPY_NORM, ("fro",), Reason.MEMORY_BOUND),
    "the default": (trnpy.linalg.norm, (), Reason.MEMORY_BOUND),
    "True": (NUMPY_NORM, (True,), Reason.MEMORY_BOUND),
    "norms along one axis": (NUMPY_NORM, (2, 1), Reason.PARAM),
    "a condition number of columns": (trnpy.linalg.cond, (1,), Reason.PARAM),
    "a Hermitian rank": (trnpy.linalg.matrix_rank, (None, True), Reason.PARAM),
    "many tolerances": (trnpy.linalg.matrix_rank, ([0.5, 1e-2],), Reason.PARAM),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_calls_are_numpys(name):
    ours, args, reason = REFUSED[name]
    a = general(30, 30, "f8")
    with engine(RecordingEngine()), trnpy.policy(force=True), trnpy.trace() as log:
        mine = ours(a, *args)
    assert log[0].reason is reason and not log[0].on_device
    np.testing.assert_array_equal(mine, ours.__wrapped__(a, *args))


def test_a_vector_has_no_device_path():
    with engine(RecordingEngine()), trnpy.policy(force=True), trnpy.trace() as log:
        assert NUMPY_NORM(np.array([3.0, 4.0]), 2) == 5
    assert log[0].reason is Reason.MEMORY_BOUND


@pytest.mark.parametrize("last", [0.0, 1e-17, 8e-15])
def test_values_that_are_zero_to_rounding_are_numpys(last):
    a = np.diag(np.append(np.linspace(1, 2, 19), last))
    for ours, args in ((trnpy.linalg.cond, ()), (trnpy.linalg.matrix_rank, (0,)), (trnpy.linalg.matrix_rank, ())):
        with engine(RecordingEngine()), trnpy.policy(force=True), trnpy.trace() as log:
            mine = ours(a, *args)
        if args or ours is trnpy.linalg.cond or last == 8e-15:  # near 20 eps 2, from which on a value counts
            assert log[0].reason is Reason.VALUE
        assert mine == ours.__wrapped__(a, *args)


@pytest.mark.parametrize("rank", [1, 7, 19])
def test_ranks_of_low_rank_matrices(rank):
    a = general(20, rank, "f8") @ general(rank, 25, "f8", seed=1)
    with engine(RecordingEngine()), trnpy.policy(force=True), trnpy.trace() as log:
        assert trnpy.linalg.matrix_rank(a) == trnpy.linalg.matrix_rank(a, rtol=1e-8) == rank == np.linalg.matrix_rank(a)
    assert log[0].on_device


def test_patched_calls_take_the_same_rows_and_other_orders_are_remembered():
    a = general(100, 100, "f8")
    with trnpy.patched(), engine(RecordingEngine()), trnpy.policy(force=True), trnpy.trace() as log:
        np.linalg.cond(a), np.linalg.matrix_rank(a), np.linalg.norm(a, 2), scipy.linalg.norm(a, "nuc")
        scipy.sparse.linalg.expm(a)
    assert [d.op for d in log if d.on_device] == [
        "numpy.linalg.cond", "numpy.linalg.matrix_rank", "numpy.linalg.norm", "scipy.linalg.norm",
        "scipy.sparse.linalg.expm",
    ]  # fmt: skip
    with trnpy.patched(), trnpy.profile() as ledger:
        for _ in range(20):
            np.linalg.norm(a)
    (tally,) = ledger.by_function()
    assert (tally.op, tally.reason, tally.calls) == ("numpy.linalg.norm", Reason.MEMORY_BOUND, 20)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_exponential_of_a_dense_matrix_is_that_of_scipy_linalg(dtype):
    a = general(30, 30, dtype)
    with engine(RecordingEngine()), trnpy.policy(force=True), trnpy.trace() as log:
        mine, other = trnpy.sparse.linalg.expm(a), trnpy.linalg.expm(a)
    assert [d.on_device for d in log] == [True, True]
    np.testing.assert_array_equal(mine, other)
    expected = scipy.sparse.linalg.expm(a)
    assert (mine.dtype, mine.flags.f_contiguous) == (expected.dtype, expected.flags.f_contiguous)
    np.testing.assert_allclose(mine, expected, rtol=0, atol=100 * np.finfo(dtype).eps * np.abs(expected).max())


def test_the_exponential_of_a_sparse_matrix_or_a_stack_is_scipys():
    a = scipy.sparse.csc_array(np.diag(np.arange(4.0)))
    with engine(RecordingEngine()), trnpy.policy(force=True), trnpy.trace() as log:
        mine = trnpy.sparse.linalg.expm(a)
    assert log[0].reason is Reason.LAYOUT
    with engine(RecordingEngine()), trnpy.policy(force=True), pytest.raises(ValueError, match="square"):
        trnpy.sparse.linalg.expm(np.ones((3, 4, 4)))
    assert isinstance(mine, scipy.sparse.csc_array)
    np.testing.assert_array_equal(mine.toarray(), scipy.sparse.linalg.expm(a).toarray())
