"""Cholesky and linear systems on the device path: backward errors of LAPACK's size, SciPy's errors and warnings."""

import numpy as np
import pytest
import scipy.linalg
from doubles import RecordingEngine

import trnpy.linalg
from linalg.matrices import positive
from trnpy._dispatch import Reason
from trnpy._engine import engine

DTYPES = ("f4", "f8", "c8", "c16")
SIZES = (1, 2, 127, 128, 129, 300)


def forced(name, *args, runs=True, **kwargs):
    with engine(RecordingEngine()), trnpy.policy(force=True), trnpy.trace() as log:
        result = getattr(trnpy.linalg, name)(*args, **kwargs)
    assert [d.on_device for d in log] == [runs], log
    return result


def eps(dtype):
    return np.finfo(dtype).eps


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("lower", [False, True])
def test_cholesky_reproduces_a(n, dtype, lower):
    a = positive(n, dtype, 1e3).astype(dtype)
    l = forced("cholesky", a, lower=lower)
    assert l.dtype == dtype
    assert not np.triu(l, 1).any() if lower else not np.tril(l, -1).any()
    back = l @ l.conj().T if lower else l.conj().T @ l
    assert np.abs(back - a).max() <= 10 * n * eps(dtype) * np.abs(a).max()


@pytest.mark.parametrize("condition", [1e2, 1e8, 1e14])
def test_cholesky_backward_error_is_lapacks(condition):
    a = positive(300, "f8", condition)

    def error(l):
        return np.linalg.norm(l @ l.T - a) / np.linalg.norm(a)

    assert error(forced("cholesky", a, lower=True)) <= 3 * error(scipy.linalg.cholesky(a, lower=True))


def test_cholesky_products_are_most_of_the_work():
    n = 600
    with engine(RecordingEngine()) as e, trnpy.policy(force=True):
        trnpy.linalg.cholesky(positive(n, "f8", 1e3))
    assert sum(2 * m * k * c for m, k, c in e.shapes) > 0.5 * 2 * n**3 / 3


def test_cholesky_reads_one_triangle():
    a = positive(200, "c16", 10.0)
    lower = np.tril(a) + np.triu(np.full((200, 200), 5.0), 1)
    np.testing.assert_allclose(forced("cholesky", lower, lower=True), scipy.linalg.cholesky(a, lower=True), atol=1e-13)


def test_not_positive_definite_is_scipys_error():
    a = positive(200, "f8", 10.0)
    a[150, 150] = -1
    with pytest.raises(scipy.linalg.LinAlgError) as theirs:
        scipy.linalg.cholesky(a)
    before = a.copy()
    with pytest.raises(scipy.linalg.LinAlgError) as ours, engine(RecordingEngine()), trnpy.policy(force=True):
        trnpy.linalg.cholesky(a, overwrite_a=True)
    assert str(ours.value) == str(theirs.value)
    np.testing.assert_array_equal(a, before)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [2, 127, 128, 129, 300])
@pytest.mark.parametrize("assume_a", [None, "gen", "pos", "sym", "her"])
def test_solve_has_a_small_residual(n, dtype, assume_a):
    rng = np.random.default_rng(n)
    a = (
        positive(n, dtype, 1e2).astype(dtype)
        if assume_a in ("pos", "her")
        else rng.standard_normal((n, n)).astype(dtype)
    )
    if assume_a == "sym":
        a = a + a.T
    b = rng.standard_normal((n, 3)).astype(dtype)
    if assume_a is None and n == 2:
        return  # two by two is tridiagonal: the host's
    x = forced("solve", a, b, assume_a=assume_a)
    theirs = scipy.linalg.solve(a, b, assume_a=assume_a)
    assert (x.dtype, x.shape) == (theirs.dtype, theirs.shape)

    def error(x):
        return np.linalg.norm(a @ x - b) / (np.linalg.norm(a) * np.linalg.norm(x) + np.linalg.norm(b))

    assert error(x) <= max(3 * error(theirs), 10 * eps(dtype))


def test_solve_reads_one_triangle_when_told_so():
    a = positive(150, "f8", 1e2)
    b = np.ones(150)
    for lower in (True, False):
        half = (np.tril(a) if lower else np.triu(a)) + 0.0
        for kind in ("sym", "her", "pos"):
            x = forced("solve", half, b, assume_a=kind, lower=lower)
            np.testing.assert_allclose(x, scipy.linalg.solve(half, b, assume_a=kind, lower=lower), rtol=1e-11)


@pytest.mark.parametrize("shape", [(150,), (150, 1), (150, 150)])
def test_solve_keeps_the_shape_of_b(shape):
    a = np.random.default_rng(0).standard_normal((150, 150))
    assert forced("solve", a, np.ones(shape), assume_a="gen").shape == shape


def test_singular_and_ill_conditioned_are_scipys():
    rng = np.random.default_rng(0)
    a = rng.standard_normal((150, 150))
    a[:, 3] = 0
    with pytest.raises(scipy.linalg.LinAlgError, match="singular"), trnpy.policy(force=True):
        trnpy.linalg.solve(a, np.ones(150), assume_a="gen")
    a[:, 3] = a[:, 4] * (1 + 1e-16) + 1e-18
    with pytest.warns(scipy.linalg.LinAlgWarning, match="[Ii]ll-conditioned"), trnpy.policy(force=True):
        trnpy.linalg.solve(a, np.ones(150), assume_a="gen")


@pytest.mark.parametrize(
    "structured", [np.diag(np.arange(1.0, 100)), np.tri(99) + np.eye(99), np.eye(99) + np.eye(99, k=1)]
)
def test_structured_matrices_are_the_hosts(structured):
    with engine(RecordingEngine()), trnpy.policy(force=True), trnpy.trace() as log:
        trnpy.linalg.solve(structured, np.ones(99))
    assert log[0].reason is Reason.LAYOUT and "bandwidths" in log[0].detail


@pytest.mark.parametrize("name", ["cholesky", "solve"])
def test_numpy_rows(name):
    from trnpy._dispatch import accelerated
    from trnpy.linalg._ops import NUMPY_OPS

    row = {op.name: accelerated(op) for op in NUMPY_OPS}[f"numpy.linalg.{name}"]
    a = positive(150, "f8", 1e2)
    args = (a,) if name == "cholesky" else (a, np.ones((150, 2)))
    with engine(RecordingEngine()), trnpy.policy(force=True), trnpy.trace() as log:
        ours = row(*args)
    assert log[0].on_device
    np.testing.assert_allclose(ours, getattr(np.linalg, name)(*args), rtol=1e-10, atol=1e-12)
