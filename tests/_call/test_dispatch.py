"""Routing: the decision is pure, every reason can be reached, and a fault never costs the user the result."""

import dataclasses
import random
import subprocess
import sys
import threading
import warnings

import numpy as np
import pytest
import scipy.linalg
from doubles import FaultyEngine, Float32Engine, ReadOnlyEngine, RecordingEngine

import trnpy
from trnpy._call import dispatch
from trnpy._call.dispatch import FallbackError, NkiFallbackWarning, Reason, accelerated
from trnpy._engine.engines import FAULTS_BEFORE_REST, engine
from trnpy.linalg import _triangular


@pytest.mark.parametrize(
    "call, phrase",
    [
        (lambda a: (trnpy.matmul, a, a), ""),
        (lambda a: (trnpy.linalg.solve, a, a), "forward error"),
        (lambda a: (trnpy.linalg.eigh, a), "vectors of eigenvalues that are nearly equal"),
        (lambda a: (trnpy.linalg.pinv, a), "rank"),
    ],
)
def test_explain_says_what_no_check_of_a_result_on_a_device_proves(call, phrase):
    function, *arrays = call(np.eye(200))
    with engine(RecordingEngine()), trnpy.policy(force=True):
        decision = trnpy.explain(function, *arrays)
    assert decision.on_device and phrase in decision.unproven and bool(phrase) == bool(decision.unproven)
    assert ("not proven" in decision._repr_html_()) == bool(phrase)
    assert trnpy.explain(function, *arrays).unproven == ""  # the host's results are not checked


def test_explain_runs_nothing():
    e = RecordingEngine()
    with engine(e), trnpy.policy(force=True):
        decision = trnpy.explain(trnpy.matmul, np.ones((4, 4)), np.ones((4, 4)))
    assert decision.on_device and e.shapes == []
    with pytest.raises(TypeError, match="expected an accelerated function"):
        trnpy.explain(np.sin, 1.0)


def test_null_prices_and_the_host_computes():
    a = np.random.default_rng(0).standard_normal((3000, 3000)).astype("f4")
    with trnpy.policy(device="null", machine="trn3"), trnpy.trace() as log:
        c = trnpy.matmul(a, a)
    np.testing.assert_array_equal(c, a @ a)
    assert log[0].machine == "trn3" and log[0].device_s > 0


def masked(a):
    return np.ma.masked_array(a, a > 0)


@pytest.mark.parametrize(
    "call, reason",
    [
        (lambda a: trnpy.matmul(a.astype(object), a), Reason.DTYPE),
        (lambda a: trnpy.matmul(a[:0].T, a[:0]), Reason.LAYOUT),
        (lambda a: trnpy.matmul(a, a, dtype="f8"), Reason.PARAM),
        (lambda a: trnpy.matmul(np.where(a > 2, np.inf, a), a), Reason.VALUE),
        (lambda a: trnpy.matmul(masked(a), a), Reason.SUBCLASS),
    ],
)
def test_unsupported_calls_say_why_and_run_on_the_host(call, reason):
    a = np.random.default_rng(0).standard_normal((200, 200))
    with engine(RecordingEngine()), trnpy.policy(force=True), trnpy.trace() as log, warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # NumPy's own, of inf - inf
        call(a)
    assert [d.reason for d in log] == [reason] and not log[0].on_device


def test_low_precision_products_are_refused():
    a = np.random.default_rng(0).standard_normal((100, 100))
    wrong = pytest.warns(NkiFallbackWarning, match="numpy.matmul ran on the host: the float64 product")
    with engine(Float32Engine()), trnpy.policy(force=True), trnpy.trace() as log, wrong:
        c = trnpy.matmul(a, a)
    np.testing.assert_array_equal(c, a @ a)
    assert log[0].reason is Reason.ACCURACY and "tolerances" in log[0].detail


def test_low_precision_products_are_accepted_when_asked_for_by_name():
    a = np.random.default_rng(0).standard_normal((100, 100))
    with engine(Float32Engine()), trnpy.policy(force=True, precision="fp32"), trnpy.trace() as log:
        c = trnpy.matmul(a, a)
    assert log[0].on_device
    np.testing.assert_allclose(c, a @ a, rtol=0, atol=100 * 2.0**-23 * np.abs(a).max() ** 2 * 10)


def test_results_of_the_device_may_be_read_only():
    a = np.random.default_rng(0).standard_normal((300, 300))
    spd = a @ a.T + 300 * np.eye(300)
    with engine(ReadOnlyEngine()), trnpy.policy(force=True), trnpy.trace() as log:
        results = [
            trnpy.einsum("ij,jk->ik", a, a),
            trnpy.linalg.cholesky(spd),
            trnpy.linalg.solve(a, a[:, 0], assume_a="gen"),
            *trnpy.linalg.eigh(spd),
        ]
    assert all(d.on_device for d in log)
    assert all(r.flags.writeable for r in results)


@pytest.mark.parametrize("fault", FaultyEngine.FAULTS)
def test_fallback_raise_is_a_typed_error(fault):
    a = np.random.default_rng(0).standard_normal((64, 64))
    settings = trnpy.policy(force=True, time_limit=0.01, fallback="raise")
    with engine(FaultyEngine(fault)), settings, pytest.raises(FallbackError) as caught:
        trnpy.matmul(a, a)
    assert caught.value.decision.reason is FaultyEngine.REASONS[fault]


def test_fallback_raise_covers_calls_without_a_kernel():
    with trnpy.policy(fallback="raise", force=True), pytest.raises(FallbackError, match="subclass"):
        trnpy.matmul(masked(np.ones((9, 9))), np.ones((9, 9)))
    with trnpy.policy(fallback="raise", device="null"):
        trnpy.matmul(np.ones((9, 9)), np.ones((9, 9)))  # small: the host is the right place


def test_fallback_log_is_quiet_and_recorded():
    a = np.ones((64, 64))
    with engine(FaultyEngine("raises")), trnpy.policy(force=True, fallback="log"), trnpy.trace() as log:
        trnpy.matmul(a, a)
    assert log[0].reason is Reason.ERROR and "NRT_EXEC_HW_ERR" in log[0].detail


def test_repeated_faults_open_the_circuit():
    a, e = np.ones((64, 64)), FaultyEngine("raises")
    with engine(e), trnpy.policy(force=True), trnpy.trace() as log, warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for _ in range(FAULTS_BEFORE_REST + 2):
            trnpy.matmul(a, a)
    assert e.products == FAULTS_BEFORE_REST
    assert "rests from now on" in str(warned[-1].message)
    assert "resting" in log[-1].detail


def test_a_success_closes_the_count():
    a, e = np.ones((64, 64)), FaultyEngine("raises")
    with engine(e), trnpy.policy(force=True, fallback="log"):
        for fault in ("raises", "raises", "none", "raises", "raises"):
            e.fault = fault
            trnpy.matmul(a, a)
    assert not e.health.open


def test_a_fault_leaves_out_untouched_until_the_host_fills_it():
    a, out = np.random.default_rng(0).standard_normal((64, 64)), np.full((64, 64), 7.0)
    with engine(FaultyEngine("nan")), trnpy.policy(force=True, fallback="raise"), pytest.raises(FallbackError):
        trnpy.matmul(a, a, out=out)
    assert (out == 7.0).all()


def test_verify_compares_with_the_host():
    a = np.random.default_rng(0).standard_normal((50, 50))
    random.seed(0)
    before = random.getstate()
    with engine(RecordingEngine()), trnpy.policy(force=True, verify=1.0), trnpy.trace() as log:
        trnpy.matmul(a, a)
    assert log[0].on_device
    assert random.getstate() == before  # which calls are verified is drawn from no numbers of the program's


def test_verify_catches_what_the_bound_lets_through(monkeypatch):
    """One component is twice what it should be, and so small a part of the residual that the bound excuses it."""
    solve = _triangular.solve

    def sloppy(*operands, **options):
        x = solve(*operands, **options)
        x[-1] *= 2
        return x

    monkeypatch.setattr(_triangular, "solve", sloppy)
    a, b = np.diag([1.0] * 99 + [1e-15]), np.append(np.ones(99), 1e-15)
    with engine(RecordingEngine()), trnpy.policy(force=True), trnpy.trace() as log:
        assert trnpy.linalg.solve_triangular(a, b)[-1] == 2
        with trnpy.policy(verify=1.0), pytest.warns(NkiFallbackWarning, match="verified"):
            x = trnpy.linalg.solve_triangular(a, b)
    assert [d.reason for d in log] == [Reason.NO_LAUNCH, Reason.ACCURACY]
    assert "differs from the host's result by" in log[1].detail
    np.testing.assert_array_equal(x, np.ones(100))


VERIFIED = {
    "einsum": lambda m, a, p: m.einsum("ij,jk", a, p),
    "solve": lambda m, a, p: m.linalg.solve(a, p),
    "inv": lambda m, a, p: m.linalg.inv(a),
    "det": lambda m, a, p: m.linalg.det(a),
    "cholesky": lambda m, a, p: m.linalg.cholesky(p),
    "eigh": lambda m, a, p: m.linalg.eigh(p),
    "svd": lambda m, a, p: m.linalg.svd(a),
    "svdvals": lambda m, a, p: m.linalg.svdvals(a),
    "cond": lambda m, a, p: m.linalg.cond(a),
    "matrix_rank": lambda m, a, p: m.linalg.matrix_rank(a, rtol=1e-3),
    "norm": lambda m, a, p: m.linalg.norm(a, "nuc"),
    "lstsq": lambda m, a, p: m.linalg.lstsq(np.vstack([p] * 4), np.ones(4 * len(p))),
    "qr": lambda m, a, p: m.linalg.qr(a, mode="r"),
    "orth": lambda m, a, p: m.linalg.orth(a),
    "null_space": lambda m, a, p: m.linalg.null_space(np.vstack([a[:90], a[:30] @ p])),
    "polar": lambda m, a, p: m.linalg.polar(a),
    "polar of a wide matrix": lambda m, a, p: m.linalg.polar(a[:100], side="left"),
    "polar of a singular matrix": lambda m, a, p: m.linalg.polar(np.hstack([a[:, :90], a[:, :60]])),
    "potrf": lambda m, a, p: m.linalg.lapack.dpotrf(p, clean=0),
    "cho_factor": lambda m, a, p: m.linalg.cho_factor(p),
    "posv": lambda m, a, p: m.linalg.lapack.dposv(p, a),
    "gesv": lambda m, a, p: m.linalg.lapack.dgesv(a, p),
    "expm": lambda m, a, p: m.linalg.expm(p / len(p)),
}


@pytest.mark.parametrize("name", VERIFIED)
def test_verify_accepts_sound_results_of_ill_conditioned_data(name):
    rng = np.random.default_rng(0)
    q = np.linalg.qr(rng.standard_normal((150, 150)))[0]
    for condition in (1e2, 1e8):
        a = (q * np.geomspace(1, 1 / condition, 150)) @ np.linalg.qr(rng.standard_normal((150, 150)))[0]
        p = (q * np.geomspace(1, 1 / condition, 150)) @ q.T
        given = a.copy(), p.copy()
        with engine(RecordingEngine()), trnpy.policy(force=True, verify=1.0), trnpy.trace() as log:
            VERIFIED[name](trnpy, a, p)
        assert log[-1].on_device or log[-1].reason is Reason.VALUE, log[-1]
        np.testing.assert_array_equal((a, p), given)


def test_verify_counts_no_fault_where_the_reference_errs():
    """By as much as the bound, which is drawn at each comparison: SciPy's exponential of some matrices errs by more."""
    a, wrong = np.array([[0.5, 0.2, 0.1], [0.1, -0.3, 0.4], [0.2, 0.6, 0.3]]), 1 + 50 * 2.0**-52
    op = dataclasses.replace(trnpy.linalg.expm.__trnpy_op__, original=lambda a: scipy.linalg.expm(a) * wrong)
    device = RecordingEngine()
    with engine(device), trnpy.policy(force=True, verify=1.0, fallback="log"), trnpy.trace() as log:
        for _ in range(50):
            accelerated(op)(a)
    assert not device.health.causes and any("so does the algorithm's on the host" in d.detail for d in log)


def nudged(x):
    """1 + 1e-9 times the floating-point members of a result."""
    if isinstance(x, tuple):
        return tuple(nudged(part) for part in x)
    return x * (1 + 1e-9) if isinstance(x, np.ndarray) and x.dtype.kind == "f" else x


SEVERAL = ("null_space", "orth", "polar", "polar of a wide matrix", "polar of a singular matrix", "potrf", "cho_factor",
           "posv", "gesv")  # fmt: skip


@pytest.mark.parametrize("name", SEVERAL)
def test_verify_sees_a_wrong_result_of_several_members_or_without_a_unique_basis(name, monkeypatch):
    formed = dispatch._formed
    monkeypatch.setattr(dispatch, "_formed", lambda form, result: nudged(formed(form, result)))
    rng = np.random.default_rng(0)
    a, p = rng.standard_normal((150, 150)), np.eye(150) + 1 / 300
    with engine(RecordingEngine()), trnpy.policy(force=True, verify=1.0, fallback="log"), trnpy.trace() as log:
        VERIFIED[name](trnpy, a, p)
    assert not log[-1].on_device and "differs from the host's result by" in log[-1].detail


def test_traces_are_of_their_own_thread():
    seen = []

    def other():
        with trnpy.trace() as log:
            trnpy.matmul(np.ones((3, 3)), np.ones((3, 3)))
        seen.append(len(log))

    with trnpy.trace() as log:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert seen == [1] and log == []


def test_a_device_asked_for_by_name_must_be_there():
    a = np.ones((200, 200))
    with trnpy.policy(device="neuron"), pytest.raises(RuntimeError, match="TRNPY_DEVICE=neuron"):
        trnpy.matmul(a, a)


def test_a_refused_fallback_is_recorded_before_it_is_raised():
    a = np.ones((64, 64))
    settings = trnpy.policy(force=True, fallback="raise")
    refused = pytest.raises(FallbackError)
    with engine(FaultyEngine("raises")), settings, trnpy.trace() as log, trnpy.profile() as run, refused:
        trnpy.matmul(a, a)
    assert [d.reason for d in log] == [Reason.ERROR] and len(run.calls) == 1


UNATTENDED = """
import asyncio, numpy as np, trnpy
from trnpy._call.dispatch import unattended
from trnpy._settings.policy import Policy, set_process_policy
a = np.eye(100)
assert not unattended()          # nothing is known of the policy yet
trnpy.matmul(a, a)
assert unattended()
set_process_policy(Policy(force=True))
assert not unattended()          # another policy of the process is looked at again
set_process_policy(Policy())
assert not unattended()
trnpy.matmul(a, a)
assert unattended()

async def main():
    async def later():
        await asyncio.sleep(0)
        with trnpy.trace() as log:
            trnpy.matmul(a, a)
        return log
    with trnpy.policy(force=True):
        task = asyncio.create_task(later())
    return await task

(decision,) = asyncio.run(main())
assert decision.on_device        # the task keeps the policy it was started under
trnpy.matmul(a, a)
assert not unattended()
"""


def test_a_process_that_asked_for_nothing_is_not_looked_at_again():
    subprocess.run([sys.executable, "-c", UNATTENDED], check=True)
