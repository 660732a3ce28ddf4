"""Of float32, numpy.linalg's factorizations compute in double precision and round once; so does the device path."""

import numpy as np
import pytest
from doubles import RecordingEngine

import trnpy
from linalg.matrices import positive
from linalg.rows import NUMPY, both, eps, gaussian, general, t
from trnpy._call.dispatch import NkiFallbackWarning
from trnpy._engine.engines import engine
from trnpy.linalg import _reference_forms

# Apart by the roundings of two results that agree in double; NumPy multiplies the factors of pinv in single precision.
MOST = {"pinv": 4.0}
N = 132


def calls(dtype, condition):
    """A name and operands of every row that NumPy hands to LAPACK."""
    a, tall, p = general(N, N, dtype, condition), general(4 * N, N, dtype, condition), positive(N, dtype, condition)
    b, p = gaussian((4 * N, 2), dtype).astype(dtype), p.astype(dtype)
    yield "solve", a, b[:N]
    yield "solve", np.stack([a, t(a)]), np.stack([b[:N], b[N : 2 * N]])
    yield "inv", a
    yield "inv", np.stack([a, t(a)])
    yield from (("lstsq", m, b[: len(m)]) for m in (tall, t(tall), a))
    yield "cholesky", p
    yield "det", 4 * a
    yield "slogdet", a
    yield "qr", a
    yield "qr", a, "raw"
    yield from ((name, p) for name in ("eigh", "eigvalsh"))
    yield from ((name, a) for name in ("svd", "svdvals", "pinv"))


def members(result):
    return result if isinstance(result, tuple) else (result,)


def same_phases(ours, theirs):
    """Columns ``ours`` with the phases of ``theirs``."""
    phases = (ours.conj() * theirs).sum(axis=-2, keepdims=True)
    return ours * (phases / np.abs(phases))


@pytest.mark.parametrize("condition", [1e1, 1e3, 1e5])
@pytest.mark.parametrize("dtype", ["f4", "c8"])
def test_results_are_those_in_double_precision_rounded(dtype, condition):
    for name, *operands in calls(dtype, condition):
        ours, theirs = (list(members(x)) for x in both("numpy", name, *operands))
        wide = np.result_type(dtype, np.float64)
        ours = [x.astype(wide) for x in ours]
        if name == "eigh":
            ours[1] = same_phases(ours[1], theirs[1])
        if name == "svd":
            ours[0], ours[2] = same_phases(ours[0], theirs[0]), t(same_phases(t(ours[2]), t(theirs[2])))
        for mine, other in zip(ours, theirs, strict=True):
            allowed = MOST.get(name, 1.0) * eps(dtype) * np.abs(other).max(initial=0)
            assert np.abs(mine - other).max(initial=0) <= allowed, (name, [x.shape for x in operands[:1]])


@pytest.mark.parametrize("dtype", ["f4", "c8"])
def test_verify_counts_in_roundings_of_the_result(dtype, monkeypatch):
    for name, *operands in calls(dtype, 1e3):
        with engine(RecordingEngine()), trnpy.policy(force=True, verify=1.0), trnpy.trace() as log:
            NUMPY[name](*operands)
        assert log[0].by_device_path, log[0]
    formed = _reference_forms._formed
    monkeypatch.setattr(_reference_forms, "_formed", lambda *given: formed(*given) * np.float32(1 + 1e-4))
    seen = pytest.warns(NkiFallbackWarning, match="verified")
    with engine(RecordingEngine()), trnpy.policy(force=True, verify=1.0), seen:
        NUMPY["inv"](general(N, N, dtype, 1e1))


@pytest.mark.parametrize("name", ["det", "inv"])
def test_what_overflows_in_rounding_is_warned_of_as_by_numpy(name):
    a = np.diag(np.full(N, 1e-39 if name == "inv" else 10)).astype("f4") + np.float32(name == "det")
    for function in (NUMPY[name], getattr(np.linalg, name)):
        with engine(RecordingEngine()), trnpy.policy(force=True), pytest.warns(RuntimeWarning) as caught:
            assert np.isinf(function(a)).any()
        assert [str(w.message) for w in caught] == ["overflow encountered in cast"]


def test_a_device_computes_in_double_precision():
    a, b = general(N, N, "f4", 1e4), gaussian((N, 2), "f4").astype("f4")
    with trnpy.policy(device="simulator", force=True), trnpy.trace() as log:
        x = NUMPY["solve"](a, b)
    assert log[0].by_device_path and log[0].dtype == "float64"
    np.testing.assert_allclose(x, np.linalg.solve(a, b), rtol=2 * eps("f4"))
