"""Recorded calls without an engine: how often their device path is modelled, and that the bounds used instead hold."""

import functools

import numpy as np
import pytest

import trnpy
import trnpy.linalg
from trnpy._call import decision_cache
from trnpy._call.decision_cache import REFINED
from trnpy._call.decisions import Problem, prepared, priced, work_of
from trnpy._engine import cost_model
from trnpy._engine.precision import launches
from trnpy._nki.instances import hardware_of
from trnpy._settings.host_rates import current_rates
from trnpy._settings.policy import Policy, process_policy

RATES = current_rates()


@pytest.fixture(autouse=True)
def without_engine(monkeypatch):
    monkeypatch.setattr(decision_cache.Verdicts, "known", decision_cache.Known(Policy(), None, {}, {}))
    with trnpy.policy(device="none"):
        yield


@pytest.fixture
def dry_runs(monkeypatch):
    """The shapes of the operands of each dry run."""
    found, run = [], cost_model.run

    def counted(problem, described, *rest):
        found.append(described[0][0].shape)
        return run(problem, described, *rest)

    monkeypatch.setattr(cost_model, "run", counted)
    from trnpy._call import decisions

    decisions._tally.cache_clear()
    decisions._decided.cache_clear()
    yield found
    decisions._tally.cache_clear()
    decisions._decided.cache_clear()


def positive(n):
    a = np.random.default_rng(n).standard_normal((n, n))
    return a @ a.T / n + np.eye(n)


CALLS = {
    "eigh": lambda a: trnpy.linalg.eigh(a),
    "svd": lambda a: trnpy.linalg.svd(a),
    "inv": lambda a: trnpy.linalg.inv(a),
    "solve": lambda a: trnpy.linalg.solve(a, a[0]),
    "qr": lambda a: trnpy.linalg.qr(a),
    "einsum": lambda a: trnpy.einsum("ij,jk->ik", a, a, optimize=True),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_loop_over_growing_matrices_models_only_the_first(name, dry_runs):
    matrices = [positive(n) for n in range(320, 360, 8)]
    with trnpy.profile():
        CALLS[name](matrices[0])
        first = len(dry_runs)
        for a in matrices[1:]:
            CALLS[name](a)
    assert first > 0
    assert set(dry_runs[first:]) == set()


def test_a_smaller_matrix_and_one_that_may_pay_are_modelled(dry_runs):
    with trnpy.profile():
        trnpy.linalg.solve(positive(340), np.ones(340))
        before = set(dry_runs)
        trnpy.linalg.solve(positive(320), np.ones(320))
        assert (320, 320) in set(dry_runs) - before
    # A matrix of 2000 rows takes the host longer than the device takes for one of 320 rows.
    problem, _ = prepared(trnpy.linalg.solve.__trnpy_op__, True, (np.empty((2000, 2000)), np.empty(2000)), {})
    decision_cache.recorded_decision(trnpy.linalg.solve.__trnpy_op__, problem, process_policy())
    assert dry_runs[-1] == (2000, 2000)


def test_explain_models_every_size(dry_runs):
    for n in (320, 328):
        trnpy.explain(trnpy.linalg.solve, positive(n), np.ones(n))
    assert set(dry_runs) == {(320, 320), (328, 328)}
    with trnpy.policy(device="none"):
        decision = trnpy.explain(trnpy.linalg.eigh, positive(100))  # the host takes less than the launches
    assert dry_runs[-1] == (100, 100)
    assert 0 < decision.host_s < decision.device_s


def test_a_larger_call_has_the_reason_that_its_own_dry_run_gives(monkeypatch):
    """The bound changes the modelled seconds, not where a call runs or why."""
    op = trnpy.linalg.qr.__trnpy_op__
    for n in (300, 340, 500):
        problem, _ = prepared(op, False, (positive(n),), {})
        bounded = decision_cache.recorded_decision(op, problem, process_policy())
        exact = trnpy.explain(trnpy.linalg.qr, positive(n))
        assert (bounded.on_device, bounded.model_reason) == (exact.on_device, exact.model_reason)
        assert bounded.device_s <= exact.device_s


SPECTRAL = [
    trnpy.linalg.eigh, trnpy.linalg.eigvalsh, trnpy.linalg.svd, trnpy.linalg.svdvals, trnpy.linalg.pinv,
    trnpy.linalg.pinvh, trnpy.linalg.sqrtm, trnpy.linalg.orth, trnpy.linalg.null_space,
]  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
@pytest.mark.parametrize("function", SPECTRAL, ids=lambda f: f.__name__)
def test_a_method_launches_at_least_the_products_that_spare_its_dry_run(function, dtype):
    a = positive(24).astype(dtype)
    ready = prepared(function.__trnpy_op__, False, (a,), {})
    if not isinstance(ready, tuple) or not isinstance(ready[0], Problem) or not ready[0].methods:
        pytest.skip(f"{function.__name__} of {dtype} has no device path with methods")
    problem, policy = ready[0], Policy()
    for method in problem.methods:
        cost = priced(work_of(problem), (method,), hardware_of("trn2"), policy, RATES)
        assert cost.launches >= REFINED * launches(problem.dtype, policy.products)


def test_families_differ_by_options_and_few_but_not_by_lengths():
    def family(function, *args, **kwargs):
        problem, _ = prepared(function.__trnpy_op__, False, args, kwargs)
        lengths = []
        return decision_cache._family(tuple(work_of(problem)), lengths), lengths

    of = functools.partial(family, trnpy.einsum, "ij,jk->ik")
    small, large = of(positive(40), positive(40)), of(positive(50), positive(50))
    assert small[0] == large[0]
    assert all(a < b for a, b in zip(small[1], large[1], strict=True))
    assert of(positive(40), np.ones((40, 3)))[0] != of(positive(40), np.ones((40, 4)))[0]
    diagonal = family(trnpy.einsum, "ii,ij->j", positive(40), positive(40))[0]
    assert hash(diagonal) != hash(of(positive(40), positive(40))[0])
    assert family(trnpy.linalg.qr, positive(40))[0] != family(trnpy.linalg.qr, positive(40), mode="r")[0]
