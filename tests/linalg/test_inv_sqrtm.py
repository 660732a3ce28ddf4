"""Inverse square roots: what they satisfy, how they report their end, and what they refuse."""

import tracemalloc

import numpy as np
import pytest
from doubles import RecordingEngine

import trnpy.linalg
from linalg.matrices import positive
from linalg.rows import U, forced
from trnpy._engine.engines import HostEngine, engine
from trnpy._report.reasons import Unsupported
from trnpy.linalg import _inv_sqrtm


@pytest.mark.parametrize("method", ["eigh", "newton-schulz"])
@pytest.mark.parametrize("condition", [1.0, 1e3, 1e8])
@pytest.mark.parametrize("dtype", ["f8", "c16"])
def test_inverse_square_roots(dtype, condition, method):
    a = positive(60, dtype, condition)
    for x in (forced("inv_sqrtm", a, method), trnpy.linalg.inv_sqrtm(a, method)):
        assert x.dtype == dtype and np.linalg.norm(x - x.conj().T) <= 1e3 * U * np.linalg.norm(x)
        assert np.linalg.norm(x @ a @ x - np.eye(60)) <= 1e3 * U * condition


@pytest.mark.parametrize("method", ["eigh", "newton-schulz"])
def test_inverse_square_roots_report_how_they_ended(method):
    a = positive(30, "f8", 1e4)
    for x, how in (
        forced("inv_sqrtm", a, method, full_output=True),
        trnpy.linalg.inv_sqrtm(a, method, full_output=True),
    ):
        assert how.converged and how.steps >= 1
        residual = np.linalg.norm(x @ a @ x - np.eye(30)) / np.sqrt(30)
        assert how.residual <= 1e-10 and residual <= 1e-10
    indefinite = a - 0.5 * np.eye(30)
    with pytest.raises(np.linalg.LinAlgError, match="positive definite"):
        trnpy.linalg.inv_sqrtm(indefinite, method)
    with pytest.raises(ValueError, match="expected one of eigh, newton-schulz"):
        trnpy.linalg.inv_sqrtm(a, "no such")
    _, how = trnpy.linalg.inv_sqrtm(indefinite, "newton-schulz", full_output=True)
    assert not how.converged


@pytest.mark.parametrize("bad", [np.ones(3), np.ones((2, 3)), np.empty((0, 0)), np.full((2, 2), np.nan)])
def test_inverse_square_roots_say_what_came(bad):
    with pytest.raises(ValueError, match=r"expected one square matrix|infs or NaNs"):
        trnpy.linalg.inv_sqrtm(bad)


def test_an_iteration_that_ends_too_early_says_that_it_has_not_converged(monkeypatch):
    a = positive(20, "f8", 1e4)
    _, how = _inv_sqrtm.inverse_square_root(a, HostEngine())
    assert how.converged and how.steps > 3
    monkeypatch.setattr(_inv_sqrtm, "MOST_STEPS", 3)
    _, how = _inv_sqrtm.inverse_square_root(a, HostEngine())
    assert not how.converged and how.residual > 1e-3
    with pytest.raises(np.linalg.LinAlgError, match="no convergence in 2 steps"):
        trnpy.linalg.inv_sqrtm(a, method="newton-schulz")
    with pytest.raises(Unsupported, match="no convergence in 2 steps"):
        trnpy.linalg.inv_sqrtm.__trnpy_op__.prepare(a, method="newton-schulz").run(HostEngine())


@pytest.mark.parametrize("method", ["eigh", "newton-schulz"])
def test_engines_get_matrices_in_the_machines_byte_order(method, monkeypatch):
    a, given, product = positive(30, "f8", 1e2), [], RecordingEngine.matmul
    monkeypatch.setattr(RecordingEngine, "matmul", lambda e, x, *a, **k: given.append(x) or product(e, x, *a, **k))
    with engine(RecordingEngine()), trnpy.policy(force=True, fallback="raise"):
        swapped, native = (trnpy.linalg.inv_sqrtm(x, method) for x in (a.astype(">f8"), a))
    assert given and all(x.dtype.isnative for x in given)
    np.testing.assert_array_equal(swapped, native)


def test_a_prediction_allocates_no_matrix():
    a = np.broadcast_to(np.zeros(()), (2048, 2048))
    with trnpy.policy(device="null"):
        trnpy.explain(trnpy.linalg.inv_sqrtm, a, "newton-schulz")  # loads modules
        tracemalloc.start()
        try:
            trnpy.explain(trnpy.linalg.inv_sqrtm, a[1:, 1:], "newton-schulz")
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert peak < 8 * 2047**2
