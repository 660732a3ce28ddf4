"""Routing: the decision is pure, every reason can be reached, and a fault never costs the user the result."""

import dataclasses
import importlib
import random
import re
import subprocess
import sys
import threading
import warnings

import numpy as np
import pytest
import scipy.linalg
from doubles import FaultyEngine, Float32Engine, ReadOnlyEngine, RecordingEngine

import trnpy
from nkisim.hardware import ERROR_FACTOR, TRN1, TRN2, TRN3
from trnpy._call import dispatch
from trnpy._call.decisions import work_of
from trnpy._call.dispatch import FallbackError, NkiFallbackWarning, Problem, Reason, accelerated, decide
from trnpy._engine.engines import FAULTS_BEFORE_REST, engine
from trnpy._settings.host_rates import DEFAULT_CURVES, HostRates
from trnpy._settings.policy import Policy
from trnpy.linalg import _triangular

# A chip that multiplies a hundredth as fast.
SLOW = dataclasses.replace(TRN2, flops_per_s={form: rate / 100 for form, rate in TRN2.flops_per_s.items()})
RATES = HostRates(DEFAULT_CURVES, 1e10, False, "a test")


def gemm(n, dtype="f8", columns=None):
    return trnpy.matmul.__trnpy_op__.prepare(np.empty((n, n), dtype), np.empty((n, columns or n), dtype))


def decided(problem, machine, policy, **options):
    return decide("numpy.matmul", problem, machine, policy, RATES, work=work_of(problem), **options)


@pytest.mark.parametrize(
    "problem, machine, policy, on_device, reason",
    [
        (gemm(64), TRN2, Policy(), False, Reason.SMALL),
        (gemm(8192), TRN2, Policy(), True, Reason.FASTER),
        (gemm(8192), None, Policy(), False, Reason.NO_DEVICE),
        (gemm(4), TRN2, Policy(force=True), True, Reason.FORCED),
        (gemm(8192), TRN2, Policy(min_flops=1e15), False, Reason.POLICY),
        (gemm(576), TRN2, Policy(), False, Reason.SLOWER),
        (gemm(4096, "f4", 1), TRN2, Policy(), False, Reason.MEMORY_BOUND),
        (gemm(8192, "f4"), TRN1, Policy(), True, Reason.FASTER),
    ],
)
def test_decide(problem, machine, policy, on_device, reason):
    decision = decided(problem, machine, policy)
    assert (decision.on_device, decision.reason) == (on_device, reason)


@pytest.mark.parametrize("problem", [gemm(64), gemm(8192), gemm(4096, "f4", 1)], ids=["small", "faster", "moved"])
def test_a_modelled_figure_in_a_reason_is_an_interval_and_says_that_it_is_modelled(problem):
    detail = decided(problem, TRN2, Policy()).detail
    assert "modelled" in detail
    ((least, most),) = re.findall(r"([\d.e-]+) to ([\d.e-]+) (?:s|times)", detail)
    assert float(most) / float(least) == pytest.approx(ERROR_FACTOR**2, rel=0.1)


@pytest.mark.parametrize("overlaps, dtype, said", [(True, "f8", True), (False, "f8", False), (True, "f4", False)])
def test_a_decision_says_that_the_runtime_overlaps_transfers_where_the_call_gains_by_it(overlaps, dtype, said):
    machine = dataclasses.replace(TRN2, overlaps=overlaps)
    decision = decided(gemm(4096, dtype), machine, Policy())
    assert decision.on_device and ("with transfers beside launches" in str(decision)) == said
    if said:
        assert decision.device_s < decided(gemm(4096), TRN2, Policy()).device_s


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


@pytest.mark.parametrize("n", [64, 512, 8192])
def test_without_a_device_a_decision_has_the_models_reason(n):
    here, there = decided(gemm(n), None, Policy()), decided(gemm(n), TRN2, Policy())
    assert (here.reason, here.model_reason, here.model_detail) == (Reason.NO_DEVICE, there.reason, there.detail)
    assert there.model_reason is None
    assert sum(here.parts) == pytest.approx(here.device_s or 0.0, rel=1e-12)


def test_an_instance_is_modelled_as_a_core_of_its_chips():
    of_instance = decided(gemm(8192), None, Policy(machine="trn2.48xlarge"))
    assert (of_instance.machine, of_instance.device_s) == ("trn2", decided(gemm(8192), TRN2, Policy()).device_s)


def test_decide_waits_for_a_compile_only_when_it_pays():
    assert decided(gemm(8192), TRN2, Policy(), compile_s=60.0).reason is Reason.NOT_COMPILED
    assert decided(gemm(8192), TRN2, Policy(), compile_s=0.1).reason is Reason.FASTER


def test_decide_names_the_engine_when_it_is_what_is_slow():
    decision = decided(gemm(8192), SLOW, Policy())
    assert decision.reason is Reason.SLOWER


def test_decide_asks_for_hysteresis():
    """Nothing is sent to the device for less than the stated margin."""
    for n in range(256, 8192, 128):
        for machine in (TRN1, TRN2, TRN3):
            decision = decided(gemm(n), machine, Policy())
            if decision.device_s is None:  # no longer than the launches
                continue
            assert decision.on_device == (decision.device_s * 1.2 <= decision.host_s)


def test_a_memory_bound_contraction_never_leaves_the_host():
    a = np.ones((2000, 2000))
    for subscripts, operands in (("ij,ij->", (a, a)), ("pq,pqr->pr", (a[:200, :200], np.ones((200, 200, 50))))):
        with trnpy.policy(device="null"):
            decision = trnpy.explain(trnpy.einsum, subscripts, *operands)
        assert not decision.on_device and decision.device_s > 5 * decision.host_s
        assert decision.reason in (Reason.MEMORY_BOUND, Reason.SMALL, Reason.ROUTE)  # the last: by the host's BLAS


def test_low_precision_by_name_is_faster():
    matched, fp32 = (decided(gemm(4096), TRN2, Policy(precision=p)).device_s for p in ("matched", "fp32"))
    assert fp32 < matched


def test_a_decision_says_modelled_and_uncalibrated():
    text = str(decided(gemm(512), TRN2, Policy()))
    assert "modelled" in text and "uncalibrated" in text and "trn2" in text


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


def kinds_below(kind):
    return [below for one in kind.__subclasses__() for below in (one, *kinds_below(one))]


def test_no_kind_of_problem_overrides_what_another_defines():
    """Problem's own methods are there to be defined; what its subclasses define is final, but for stubs."""
    importlib.import_module("trnpy.linalg.lapack")
    importlib.import_module("trnpy._call.rows")
    for kind in {k for k in kinds_below(Problem) if k.__module__.startswith("trnpy.")}:
        for base in kind.__mro__[1:]:
            if issubclass(base, Problem) and base is not Problem:
                overridden = {
                    name
                    for name in vars(kind).keys() & vars(base).keys()
                    if callable(vars(base)[name])
                    and not name.startswith("__")
                    and "NotImplementedError" not in vars(base)[name].__code__.co_names
                }
                assert not overridden, (kind, base, overridden)
