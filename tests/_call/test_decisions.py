"""Decisions: the device is taken where it pays by a margin, each reason is reached, and figures say what they are."""

import dataclasses
import importlib
import re

import numpy as np
import pytest

import trnpy
from nkisim.hardware import ERROR_FACTOR, TRN1, TRN2, TRN3
from trnpy._call.decisions import work_of
from trnpy._call.dispatch import Problem, Reason, decide
from trnpy._settings.host_rates import DEFAULT_CURVES, HostRates
from trnpy._settings.policy import Policy

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
        (gemm(8192), TRN2, Policy(device_memory=1e3), False, Reason.LAYOUT),  # as the dry run refuses it
        (gemm(8192), TRN2, Policy(device_memory=1e3, force=True), True, Reason.FORCED),
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
