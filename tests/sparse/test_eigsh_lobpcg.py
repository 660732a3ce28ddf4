"""eigsh and lobpcg on engines, with ARPACK's answers, SciPy's iteration and its refusals."""

import warnings

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse
import scipy.sparse.linalg
from doubles import RecordingEngine
from test_sparse_krylov import DEVICES, adopted, forced, laplacian, outcome

import trnpy
import trnpy.sparse
import trnpy.sparse.linalg as ours_linalg
from nkisim.hardware import TRN2
from trnpy._call.decisions import work_of
from trnpy._call.dispatch import NkiFallbackWarning, Reason
from trnpy._engine.engines import HOST, engine
from trnpy._settings.policy import current_policy
from trnpy.sparse.linalg import _eigsh_lobpcg as rows
from trnpy.sparse.linalg._operator_products import product_of


@pytest.mark.parametrize("which", ["LM", "LA", "SA"])
def test_eigenvalues_are_arpacks(which):
    a = (laplacian(12) - 2 * scipy.sparse.eye_array(144)).tocsr()
    (values, vectors), log = forced(lambda: ours_linalg.eigsh(adopted(a), 5, which=which))
    expected = scipy.sparse.linalg.eigsh(a, 5, which=which)[0]
    assert log[0].on_device, log[0].detail
    norm = scipy.sparse.linalg.norm(a, 1)
    np.testing.assert_allclose(values, expected, rtol=0, atol=1e-12 * norm)
    assert np.abs(a @ vectors - vectors * values).max() <= 5e-14 * norm
    assert np.abs(vectors.T @ vectors - np.eye(5)).max() <= 1e-13
    only, _ = forced(lambda: ours_linalg.eigsh(adopted(a), 5, which=which, return_eigenvectors=False))
    in_arpacks_order = scipy.sparse.linalg.eigsh(a, 5, which=which, return_eigenvectors=False)
    np.testing.assert_allclose(only, in_arpacks_order, rtol=0, atol=1e-12 * norm)


def test_a_multiple_eigenvalue_has_all_its_vectors():
    a = scipy.sparse.diags_array(np.repeat([3.0, 1.0, -2.0], [4, 60, 36])).tocsr()
    (values, vectors), log = forced(lambda: ours_linalg.eigsh(adopted(a), 6, which="LA"))
    assert log[0].on_device
    np.testing.assert_allclose(values, [1, 1, 3, 3, 3, 3], rtol=0, atol=1e-13)
    assert np.abs(vectors.T @ vectors - np.eye(6)).max() <= 1e-13


def test_eigenvalues_through_the_simulators_kernels():
    a = laplacian(6)
    (values, vectors), log = forced(lambda: ours_linalg.eigsh(adopted(a), 1, which="LA", tol=1e-2), "simulator")
    launches = dict(log[0].launches)
    assert log[0].on_device and launches["bsr_spmm"] > 2
    assert set(launches) == {"bsr_spmm", "digits_split"}  # dense products of a basis are the host's
    np.testing.assert_allclose(values, scipy.sparse.linalg.eigsh(a, 1, which="LA")[0], rtol=1e-2)
    assert np.abs(vectors.T @ vectors - 1).max() <= 1e-13


@pytest.mark.parametrize("name", ["eigsh", "lobpcg"])
def test_eigenpairs_take_tens_of_launches(name):
    """By the model, for a matrix of 16 rows of 16 tiles: two launches a product, of digits and of tiles."""
    n = 16 * 128
    a = scipy.sparse.csr_array(np.ones((n, n)))
    with trnpy.policy(force=True):
        prepare = {"eigsh": lambda: rows.prepare_eigsh(a, 4), "lobpcg": lambda: rows.prepare_lobpcg(a, np.ones((n, 4)))}
        launched = dict(work_of(prepare[name]()).tally(TRN2, current_policy()).launches)
    print(f"{name}: {launched}")
    assert sum(launched.values()) <= 2 * rows.BLOCK_PRODUCTS + 2


@pytest.mark.parametrize("dtype", ["i8", "f4"])
def test_products_for_an_iteration_are_in_the_dtype_of_the_problem(dtype):
    a, x = laplacian(6), np.arange(36).astype(dtype)
    y = product_of(a, np.dtype("f8"), HOST)(x)
    assert y.dtype == np.float64
    np.testing.assert_array_equal(y, a @ x.astype("f8"))  # integers


def test_eigenvalues_of_a_matrix_that_is_only_nearly_symmetric_are_arpacks():
    a = laplacian(6).tolil()
    a[0, 1] += 1e-12
    decision = forced(lambda: ours_linalg.eigsh(adopted(a.tocsr()), 3, tol=0.1))[1][0]
    assert (decision.reason, decision.detail) == (Reason.VALUE, "not exactly Hermitian")


def test_eigenvalues_that_are_arpacks_to_answer():
    a = laplacian(8)
    for options, reason in (
        ({"sigma": 0.1}, Reason.PARAM), ({"which": "SM"}, Reason.PARAM), ({"v0": np.ones(64)}, Reason.PARAM),
        ({"k": 40}, Reason.PARAM), ({"M": scipy.sparse.eye_array(64)}, Reason.PARAM),
    ):  # fmt: skip
        values, log = forced(lambda o=options: ours_linalg.eigsh(adopted(a), return_eigenvectors=False, **o))
        assert not log[0].on_device and log[0].reason is reason
        expected = scipy.sparse.linalg.eigsh(a, return_eigenvectors=False, **options)
        np.testing.assert_allclose(values, expected, rtol=1e-9)
    complex_ = adopted(a.astype(complex))
    assert forced(lambda: ours_linalg.eigsh(complex_, 3, tol=0.1))[1][0].reason is Reason.DTYPE
    assert forced(lambda: ours_linalg.eigsh(adopted(1e-300 * a), 3, tol=0.1))[1][0].reason is Reason.VALUE
    assert outcome(lambda: forced(lambda: ours_linalg.eigsh(adopted(0 * a), 3))) == outcome(
        lambda: scipy.sparse.linalg.eigsh(0 * a, 3)
    )


@pytest.mark.parametrize("device", DEVICES)
def test_lobpcg_is_scipys_iteration_on_the_engines_products(device):
    a = laplacian(6)
    x = np.random.default_rng(10).standard_normal((36, 3))
    options = {"tol": 1e-1, "maxiter": 15, "largest": True}
    (values, vectors), log = forced(lambda: ours_linalg.lobpcg(adopted(a), x, **options), device)
    expected, _ = scipy.sparse.linalg.lobpcg(a, x, **options)
    assert log[0].on_device and (device == "none" or dict(log[0].launches)["bsr_spmm"] > 5)
    np.testing.assert_allclose(values, expected, rtol=1e-6)
    assert np.abs(vectors.T @ vectors - np.eye(3)).max() <= 1e-10


@pytest.mark.parametrize("kind", ["none", "function", "dense"])
def test_lobpcgs_error_is_that_of_its_values_too_large_or_too_small(kind):
    a, b = laplacian(4).toarray(), np.diag(np.linspace(1, 2, 16))
    given = {"none": None, "function": lambda y: b @ y, "dense": b}[kind]
    values, vectors = scipy.linalg.eigh(a, None if kind == "none" else b)
    with trnpy.policy(force=True):
        problem = rows.prepare_lobpcg(scipy.sparse.csr_array(a), vectors[:, :3].copy(), given)
    norm = np.abs(a).sum(axis=1).max()
    exact, large, small = (problem.error((values[:3] + x * norm, vectors[:, :3] * 2.0)) for x in (0.0, 0.1, -0.1))
    np.testing.assert_allclose([exact, large, small], [0.0, 0.1, 0.1], rtol=0, atol=100 * np.finfo(float).eps)


@pytest.mark.parametrize("kind", ["function", "operator", "dense", "sparse"])
def test_lobpcg_takes_b_as_scipy_does(kind):
    a, b = laplacian(8), scipy.sparse.diags_array(np.linspace(1, 2, 64))
    x = np.random.default_rng(10).standard_normal((64, 3))
    given = {
        "function": lambda y: b @ y, "operator": scipy.sparse.linalg.aslinearoperator(b), "dense": b.toarray(),
        "sparse": b,
    }[kind]  # fmt: skip
    options = {"B": given, "tol": 1e-4, "maxiter": 60, "largest": True}
    (values, vectors), log = forced(lambda: ours_linalg.lobpcg(adopted(a), x, **options))
    expected, _ = scipy.sparse.linalg.lobpcg(a, x.copy(), **options)
    assert log[0].on_device
    np.testing.assert_allclose(values, expected, rtol=1e-6)
    assert np.abs(vectors.T @ (b @ vectors) - np.eye(3)).max() <= 1e-10


@pytest.mark.parametrize("part", ["start", "B", "M"])
def test_what_lobpcg_raises_is_the_callers(part):
    """It is no fault of the device, and nothing runs again."""
    a, x, calls = laplacian(8), np.random.default_rng(3).standard_normal((64, 3)), []

    def stop(y):
        calls.append(y)
        raise KeyError("enough")

    options = {"start": {}, "B": {"B": scipy.sparse.eye_array(65)}, "M": {"M": stop}}[part]
    x = x[:, :1] * [1, 0, 0] if part == "start" else x
    with warnings.catch_warnings(), engine(RecordingEngine()) as sound:
        warnings.simplefilter("error", NkiFallbackWarning)
        ours = outcome(lambda: forced(lambda: ours_linalg.lobpcg(adopted(a), x.copy(), **options)))
    assert ours == outcome(lambda: scipy.sparse.linalg.lobpcg(a, x.copy(), **options))
    assert isinstance(ours, tuple) and issubclass(ours[0], Exception)
    assert sound.health.faults == 0 and len(calls) == 2 * (part == "M")
