"""expm_multiply of dense matrices: SciPy's algorithm over products of the engine, SciPy's own for everything else."""

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse
import scipy.sparse.linalg
from doubles import Float32Engine, RecordingEngine

import trnpy.sparse.linalg
from trnpy._call.dispatch import Reason
from trnpy._engine.engines import HOST, engine


def operands(n, k, dtype):
    rng = np.random.default_rng(n)
    a, b = rng.standard_normal((n, n)), rng.standard_normal((n, k))
    return (a + 1j * a.T, b + 0j) if np.dtype(dtype).kind == "c" else (a, b)


@pytest.mark.parametrize("dtype", ["f8", "c16"])
@pytest.mark.parametrize("shape", [(40, 3), (17, 1), (30, 60)])
def test_products_go_through_the_engine(shape, dtype):
    a, b = operands(*shape, dtype)
    with engine(HOST), trnpy.policy(force=True), trnpy.trace() as log:
        x = trnpy.sparse.linalg.expm_multiply(a, b)
    assert log[0].on_device and (x.dtype, x.shape) == (dtype, shape)
    exact = scipy.linalg.expm(a) @ b
    assert np.linalg.norm(x - exact) <= 1e-12 * np.linalg.norm(exact)


def test_on_the_simulator():
    a, b = operands(12, 3, "f8")
    with trnpy.policy(force=True, device="simulator"), trnpy.trace() as log:
        x = trnpy.sparse.linalg.expm_multiply(a / 4, b)
    assert log[0].on_device and log[0].engine == "simulator"
    np.testing.assert_allclose(x, scipy.linalg.expm(a / 4) @ b, rtol=1e-12, atol=1e-12)


def test_a_wrong_product_is_never_returned():
    a, b = operands(40, 3, "f8")
    with engine(Float32Engine()), trnpy.policy(force=True, fallback="log"), trnpy.trace() as log:
        x = trnpy.sparse.linalg.expm_multiply(a, b)
    assert not log[0].on_device
    np.testing.assert_array_equal(x, scipy.sparse.linalg.expm_multiply(a, b))


def test_everything_else_is_scipys():
    a, b = operands(40, 3, "f8")
    sparse = scipy.sparse.csr_array(np.where(np.abs(a) > 1, a, 0))
    calls = [
        ((sparse, b), {}),
        ((a, b[:, 0]), {}),
        ((a, b), {"start": 0.0, "stop": 1.0, "num": 3}),
        ((a, b.astype("f4")), {}),
    ]
    for args, options in calls:
        with engine(RecordingEngine()), trnpy.policy(force=True), trnpy.trace() as log:
            x = trnpy.sparse.linalg.expm_multiply(*args, **options)
        assert not log[0].on_device and log[0].reason in (Reason.LAYOUT, Reason.PARAM, Reason.DTYPE)
        np.testing.assert_array_equal(x, scipy.sparse.linalg.expm_multiply(*args, **options))


@pytest.mark.parametrize("n", [1, 5, 60])
def test_decaying_exponentials_are_no_faults(n):
    rng = np.random.default_rng(n)
    a, b = 0.1 * rng.standard_normal((n, n)) - 20 * np.eye(n), rng.standard_normal((n, 31))
    with engine(RecordingEngine()), trnpy.policy(force=True), trnpy.trace() as log:
        for _ in range(50):  # weights of checks are random
            x = trnpy.sparse.linalg.expm_multiply(a, b)
    assert all(d.on_device for d in log)
    np.testing.assert_allclose(x, scipy.linalg.expm(a) @ b, rtol=0, atol=1e-12 * np.abs(x).max())
