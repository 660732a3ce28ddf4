"""All eigenpairs by LAPACK's steps: backward errors of LAPACK's size, and the middle step that the matrix asks for."""

import dataclasses

import numpy as np
import pytest
import scipy.linalg
from linalg.matrices import SPECTRA, hermitian

import trnpy.linalg
from trnpy._engine import lapack
from trnpy._host import eigenpairs, tridiagonal

N = eigenpairs.EVD_LEAST
DTYPES = ("f4", "f8")


def low_rank(n, rank, dtype=float):
    b = np.random.default_rng([n, rank]).standard_normal((n, rank))
    return (b @ b.T).astype(dtype)


def assert_eigenpairs(a, w, x):
    """Residual and orthogonality within n eps, which LAPACK keeps by a factor of ten."""
    n, eps = len(a), np.finfo(x.dtype).eps
    norm = np.linalg.norm(a)
    assert (w.dtype, x.dtype, w.shape, x.shape) == (a.dtype, a.dtype, (n,), (n, n))
    assert (np.diff(w) >= 0).all()
    assert np.linalg.norm(a.astype("f8") @ x - x * w.astype("f8")) <= n * eps * norm
    assert np.linalg.norm(x.T.astype("f8") @ x - np.eye(n)) <= n * eps * np.sqrt(n)


@pytest.fixture
def steps(monkeypatch):
    """The names of the middle steps that ran."""
    ran = []

    def spied(dtype):
        real = original(dtype)

        def spy(name):
            def call(*args):
                ran.append(name)
                return getattr(real, name)(*args)

            return call

        return dataclasses.replace(real, stemr=spy("stemr"), stedc=spy("stedc"))

    original = tridiagonal._lapack
    monkeypatch.setattr(tridiagonal, "_lapack", spied)
    return ran


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [2, 3, 31, 32, 33, 65, 129])
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("large", [20, tridiagonal.LARGE])
def test_every_size_of_either_triangle(n, lower, dtype, large, monkeypatch):
    monkeypatch.setattr(tridiagonal, "LARGE", large)
    a = hermitian("random", n, "f8").astype(dtype)
    other = np.triu(np.full((n, n), np.float32(7)), 1)
    given = np.asarray(np.tril(a) + other if lower else np.triu(a) + other.T, dtype)
    for layout in (given, np.asfortranarray(given), np.repeat(given, 2, axis=0)[::2], given[::-1, ::-1][::-1, ::-1]):
        kept = layout.copy()
        assert_eigenpairs(a, *tridiagonal.eigh(layout, lower, np.dtype(dtype)))
        assert np.array_equal(layout, kept)


@pytest.mark.parametrize("family", SPECTRA)
def test_families_through_the_public_name(family):
    a = hermitian(family, N + 1, "f8")
    with trnpy.trace() as log:
        w, x = trnpy.linalg.eigh(a)
    assert log[0].route == "evd"
    assert_eigenpairs(a, w, x)
    assert np.abs(w - scipy.linalg.eigvalsh(a)).max() <= 10 * np.finfo(float).eps * np.linalg.norm(a)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("matrix", "step"),
    [
        (lambda n: hermitian("random", n, "f8"), "stedc"),
        (lambda n: hermitian("two-valued", n, "f8"), "stedc"),
        (lambda n: low_rank(n, n // 20), "stemr"),
        (lambda n: low_rank(n, n // 2), "stemr"),
        (np.eye, "stemr"),
        (lambda n: np.zeros((n, n)), "stemr"),
    ],
)
def test_a_tridiagonal_that_falls_apart_is_left_to_mrrr(matrix, step, dtype, steps):
    a = np.asarray(matrix(N), dtype)
    w, x = tridiagonal.eigh(a, True, a.dtype)
    assert steps == [step]
    assert_eigenpairs(a, w, x)


@pytest.mark.parametrize("n", [512, tridiagonal.LARGE + 1])
def test_large_ones_apply_their_reflectors_by_products(n, monkeypatch):
    real = tridiagonal._lapack(np.dtype(float))
    monkeypatch.setattr(tridiagonal, "_lapack", lambda dtype: dataclasses.replace(real, ormtr=None))
    a = hermitian("random", n, "f8")
    w, x = tridiagonal.eigh(a, True, a.dtype)
    assert x.flags.f_contiguous
    assert_eigenpairs(a, w, x)


def test_where_mrrr_fails_divide_and_conquer_takes_over(monkeypatch):
    monkeypatch.setattr(tridiagonal, "_mrrr", lambda *call: None)
    a = low_rank(N, 5)
    assert_eigenpairs(a, *tridiagonal.eigh(a, True, a.dtype))


def test_a_failing_step_is_an_error(monkeypatch):
    real = tridiagonal._lapack(np.dtype(float))

    def stedc(*args):
        args[-1]._obj.value = 3

    monkeypatch.setattr(tridiagonal, "_lapack", lambda dtype: dataclasses.replace(real, stedc=stedc))
    with pytest.raises(lapack.LinAlgError, match="divide and conquer of 40 rows failed: stedc gave 3"):
        tridiagonal.eigh(hermitian("random", 40, "f8"), True, np.dtype(float))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e200, 1e-200])
def test_what_lapack_would_scale_is_the_reference_s(value):
    a = np.eye(N) * (value if abs(value) < 1 else 1.0)
    a[3, 5] = a[5, 3] = value
    with pytest.raises(tridiagonal.OutOfRange, match="largest entry"):
        tridiagonal.eigh(a, True, a.dtype)
    if np.isfinite(value):
        w, _ = trnpy.linalg.eigh(a)
        assert np.array_equal(w, scipy.linalg.eigh(a)[0])
    else:
        with pytest.raises(ValueError, match="array must not contain infs or NaNs"):
            trnpy.linalg.eigh(a)


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_cluster_has_orthogonal_vectors_where_mrrr_alone_leaves_many_eps(dtype):
    n = 201
    for seed in range(20):
        a = hermitian("rank 1 plus identity", n, dtype, seed).astype(dtype)
        _, x = tridiagonal.eigh(a, True, np.dtype(dtype))
        assert np.abs(x.T @ x - np.eye(n)).max() <= n * np.finfo(dtype).eps / 4
