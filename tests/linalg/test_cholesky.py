"""Cholesky factors on the device path: backward errors of LAPACK's size, SciPy's errors."""

import numpy as np
import pytest
import scipy.linalg
from doubles import RecordingEngine

import trnpy.linalg
from linalg.matrices import positive
from linalg.rows import CONDITIONS, DTYPES, LAYOUTS, both, eps, forced, no_worse, norm, t
from trnpy._engine.engines import engine

SIZES = (1, 2, 127, 128, 129, 300)


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


@pytest.mark.parametrize("lower", [False, True])
def test_cholesky_reads_one_triangle(lower):
    a = positive(200, "c16", 10.0)
    other = np.full((200, 200), 5.0)
    half = np.tril(a) + np.triu(other, 1) if lower else np.triu(a) + np.tril(other, -1)
    np.testing.assert_allclose(
        forced("cholesky", half, lower=lower), scipy.linalg.cholesky(a, lower=lower), rtol=0, atol=1e-13
    )


@pytest.mark.parametrize("overwrite_a", [False, True])
@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_both_triangles_of_cho_factor_are_those_of_the_installed_scipy(layout, lower, overwrite_a):
    a = positive(200, "f8", 10.0)
    ours, _ = forced("cho_factor", LAYOUTS[layout](a), lower, overwrite_a=overwrite_a)
    theirs, _ = scipy.linalg.cho_factor(LAYOUTS[layout](a.copy()), lower, overwrite_a=overwrite_a)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-13 * np.abs(theirs).max())


def test_not_positive_definite_is_scipys_error():
    a = positive(200, "f8", 10.0)
    a[150, 150] = -1
    after = a.copy()
    with pytest.raises(scipy.linalg.LinAlgError) as theirs:
        scipy.linalg.cholesky(after, overwrite_a=True)
    with pytest.raises(scipy.linalg.LinAlgError) as ours, engine(RecordingEngine()), trnpy.policy(force=True):
        trnpy.linalg.cholesky(a, overwrite_a=True)
    assert str(ours.value) == str(theirs.value)
    np.testing.assert_array_equal(a, after)


@pytest.mark.parametrize("dtype, condition", CONDITIONS)
@pytest.mark.parametrize("n", [1, 127, 128, 129, 261])
def test_backward_errors_are_lapacks(n, dtype, condition):
    a = positive(n, dtype, condition).astype(dtype)
    no_worse(lambda l: norm(l @ t(l) - a) / norm(a), both("scipy", "cholesky", a, lower=True), dtype)


def test_squares_of_factors_may_overflow():
    c = 1e155 * (2 * np.eye(200) + np.triu(np.random.default_rng(0).standard_normal((200, 200))) / 20)
    b = np.ones((200, 3))
    x = forced("cho_solve", (c, False), b)
    assert norm(1e300 * (x - scipy.linalg.cho_solve((c, False), b))) <= 1e-12 * norm(1e300 * x)
