"""expm_multiply of dense matrices: SciPy's algorithm over products of the engine, SciPy's own for everything else."""

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse
import scipy.sparse.linalg
from doubles import Float32Engine, RecordingEngine

import trnpy.sparse.linalg
from trnpy._call.dispatch import Reason, Unsupported
from trnpy._engine.engines import HOST, engine
from trnpy.sparse.linalg._expm_multiply import LARGEST, PER_NORM, prepare_expm_multiply


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


SMALL_BUT_HARD = {
    "a large mean": [[19.9, 0.01], [0.02, 20.0]],
    "a rotation, whose series cancels": [[0.0, -10.0], [10.0, 0.0]],
    "powers that grow before they decay": [[-15.0, 400.0], [0.0, -15.0]],
}


@pytest.mark.parametrize("name", SMALL_BUT_HARD)
def test_what_rounding_adds_to_small_exponentials_is_no_fault(name):
    """The bound of the check, 20 eps of the result, is less than what SciPy itself errs by."""
    device, a, rng = RecordingEngine(), np.array(SMALL_BUT_HARD[name]), np.random.default_rng(0)
    with engine(device), trnpy.policy(force=True, fallback="raise"), trnpy.trace() as log:
        for _ in range(200):
            trnpy.sparse.linalg.expm_multiply(a, rng.standard_normal((2, 2)))
    assert all(d.on_device for d in log) and not device.health.causes


def test_a_check_that_overflows_accepts_nothing():
    a, b = np.diag([705.0, -705.0]), np.ones((2, 2))
    assert np.isfinite(scipy.sparse.linalg.expm_multiply(a, b)).all()
    with np.errstate(all="ignore"), pytest.raises(Unsupported, match="overflows"):
        prepare_expm_multiply(a, b).error(np.zeros((2, 2)))


@pytest.mark.parametrize(("norm", "widths"), [(5.0, {40, 80}), (100.0, {2, 40})])
def test_norms_of_powers_are_estimated_only_where_that_saves_products(norm, widths):
    """SciPy estimates them for a block of 40 columns; a device has the time of a product, not that of its columns."""
    a, b = operands(60, 40, "f8")
    a *= norm / np.linalg.norm(a, 1)
    recording = RecordingEngine()
    with engine(recording), trnpy.policy(force=True), trnpy.trace() as log:
        x = trnpy.sparse.linalg.expm_multiply(a, b)
    assert log[0].on_device
    np.testing.assert_allclose(x, scipy.linalg.expm(a) @ b, rtol=0, atol=1e-13 * np.abs(x).max())
    assert {shape[-1] for shape in recording.shapes} == widths
    assert len(recording.shapes) <= 4 + norm * PER_NORM or norm > LARGEST


def test_columns_of_unlike_size_are_each_as_accurate_as_scipys():
    a, b = operands(60, 20, "f8")
    a, b = a / 3, b * np.geomspace(1, 1e-12, 20)
    exact = scipy.linalg.expm(a) @ b
    with engine(HOST), trnpy.policy(force=True), trnpy.trace() as log:
        x = trnpy.sparse.linalg.expm_multiply(a, b)
    ours, theirs = (np.linalg.norm(y - exact, axis=0) for y in (x, scipy.sparse.linalg.expm_multiply(a, b)))
    assert log[0].on_device and (ours <= 2 * theirs + 1e-15 * np.linalg.norm(exact, axis=0)).all()
