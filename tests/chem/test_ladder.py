"""The particle-particle ladder: integrals stay on a device, amplitudes go in and sums come out."""

from collections import Counter

import numpy as np
import pytest
from doubles import FaultyEngine
from dry_runs import Recorded, assert_dry_is_the_run, tallied

import trnpy
from nkisim.hardware import TRN2
from trnpy import Reason, policy, trace
from trnpy._call.decisions import work_of
from trnpy._call.dispatch import Op, accelerated
from trnpy._engine.device import DeviceEngine
from trnpy._engine.engines import engine
from trnpy._nki.simulated import SimulatorRuntime
from trnpy._settings.host_rates import current_rates
from trnpy._settings.policy import Policy
from trnpy.chem import _ladder
from trnpy.chem._ao2mo import unpacked


def integrals(nvir, seed=0):
    """(ac|bd) with all their symmetries, of pairs."""
    b = np.random.default_rng(seed).standard_normal((nvir * (nvir + 1) // 2, 2 * nvir))
    return b @ b.T / nvir


def amplitudes(*shape):
    return np.random.default_rng(1).standard_normal(shape)


def by_definition(v, t):
    full = unpacked(unpacked(v).reshape(len(v), -1).T).reshape(*t.shape[-2:], *t.shape[-2:])  # [b, d, a, c]
    return np.einsum("...cd,bdac->...ab", t, full)


ladder = accelerated(Op("ladder", by_definition, _ladder.prepare, kind=None))


@pytest.fixture
def device():
    e = DeviceEngine(SimulatorRuntime(TRN2))
    with engine(e):
        yield e


@pytest.mark.parametrize("nvir", [1, 2, 3, 7])
@pytest.mark.parametrize("shape", [(), (1,), (5,), (2, 3)])
@pytest.mark.parametrize("block", [2, 5, 8192])
def test_it_is_the_sum_over_both_orbitals_for_any_amplitudes(monkeypatch, nvir, shape, block):
    monkeypatch.setattr(_ladder, "BLOCK", block)
    v, t = integrals(nvir), amplitudes(*shape, nvir, nvir)
    with policy(device="none", force=True), trace() as decisions:
        if np.prod(shape, initial=1) > block:
            assert ladder(v, t).shape == t.shape and decisions[0].reason is Reason.LAYOUT
            return
        found = ladder(v, t)
    assert decisions[0].on_device
    np.testing.assert_allclose(found, by_definition(v, t), rtol=0, atol=1e-13 * nvir**2 * np.abs(v).max())


@pytest.mark.parametrize("precision, kernel", [("matched", "words_matmul"), ("fp32", "matmul")])
@pytest.mark.parametrize("ready", [True, False])
@pytest.mark.parametrize("block, number, size", [(160, 1, 160), (64, 3, 64)])
def test_only_amplitudes_go_in_and_only_sums_come_out(
    monkeypatch, device, precision, kernel, ready, block, number, size
):
    nvir, x = 17, 10
    monkeypatch.setattr(_ladder, "BLOCK", block)
    if not ready:
        monkeypatch.setattr(_ladder, "cut_of", lambda *a, cut=_ladder.cut_of: cut(*a)._replace(ready=False))
    v, t = integrals(nvir), amplitudes(x, nvir, nvir)
    moved = []
    for _ in range(3):
        before = device.counters.bytes_in, device.counters.bytes_out
        with policy(force=True, fallback="raise", precision=precision), trace() as decisions:
            found = ladder(v, t)
        moved.append((device.counters.bytes_in - before[0], device.counters.bytes_out - before[1]))
        unit = 2.0**-52 if precision == "matched" else 2.0**-23
        np.testing.assert_allclose(found, by_definition(v, t), rtol=0, atol=20 * nvir * unit * np.abs(found).max())
    launches = dict(decisions[0].launches)
    assert launches[kernel] == 2 * number**2
    padded_bytes = 8 * 32 * 2 * number * size  # of 10 rows and 153 pairs, of two signs
    sent, came = moved[1]
    assert sent <= padded_bytes + 64 * launches.get("float64_digits", 0) and moved[0][0] > sent + v.nbytes / 2
    extremes = 1536 * launches.get("words_matmul", 0) + 1024 * launches.get("words_sum", 0)
    assert came <= 12 / 8 * padded_bytes + extremes  # words of 12 bytes: so few are rounded on the host
    if precision == "matched":
        splits = 2 * number if ready else 2 * number + 2 * number**2
        assert launches["float64_digits"] == splits and launches.get("words_sum", 0) == 2 * number * (number - 1)


def fitted(nvir, naux):
    return np.random.default_rng(2).standard_normal((nvir * (nvir + 1) // 2, naux))


fitted_ladder = accelerated(
    Op(
        "fitted",
        lambda b, t, *_: by_definition(b @ b.T, t),
        lambda b, t, *read: _ladder.prepare(b, t, True, *read),
        kind=None,
    )
)


def test_fitted_integrals_in_a_file_are_read_in_each_call_and_sent_when_they_change(device):
    file, t, memory, sent = fitted(17, 61), amplitudes(10, 17, 17), np.empty((153, 61)), []
    for change in (0.0, 0.0, 1.0, 0.0):
        file[5, 7] += change
        before = device.counters.bytes_in
        with policy(force=True, fallback="raise"), trace() as decisions:
            found = fitted_ladder(memory, t, lambda out: np.copyto(out, file))
        sent.append(device.counters.bytes_in - before)
        assert decisions[0].on_device
        np.testing.assert_allclose(found, by_definition(file @ file.T, t), rtol=0, atol=1e-11)
    assert sent[0] == sent[2] > sent[1] + 153**2 * 8 and sent[1] == sent[3]


def test_integrals_that_change_are_sent_again(device):
    v, t = integrals(17), amplitudes(10, 17, 17)
    with policy(force=True, fallback="raise"):
        for change in (0.0, 0.0, 0.0, 1.0, -2.0):
            v[3, 5] += change
            v[5, 3] = v[3, 5]
            np.testing.assert_allclose(ladder(v, t), by_definition(v, t), rtol=0, atol=1e-12)
        other = integrals(17, seed=5)
        np.testing.assert_allclose(ladder(other, t), by_definition(other, t), rtol=0, atol=1e-12)


@pytest.mark.parametrize("precision, unit", [("matched", 2.0**-52), ("fp32", 2.0**-23)])
def test_one_wrong_sum_is_noticed(device, monkeypatch, precision, unit):
    """One element is changed on its way back, by a hundred times the error that is allowed."""
    v, t, right = integrals(17), amplitudes(10, 17, 17), _ladder._product
    wrong_by = 100 * 10 * len(v) * unit * np.linalg.norm(v) * np.linalg.norm(t)

    def wrong(*args):
        found = right(*args)
        found[3, 7] += wrong_by
        return found

    monkeypatch.setattr(_ladder, "_product", wrong)
    with policy(force=True, fallback="log", precision=precision), trace() as decisions:
        found = ladder(v, t)
    assert decisions[0].reason is Reason.ACCURACY and "backward error" in decisions[0].detail
    np.testing.assert_array_equal(found, by_definition(v, t))


def test_integrals_without_the_symmetry_of_pairs_are_the_reference_s_and_no_fault(device):
    """(ac|bd) is not (bd|ac) where a, c and b, d are of orbitals of unlike spin."""
    v, t = integrals(17) + np.random.default_rng(3).standard_normal((153, 153)), amplitudes(10, 17, 17)
    with policy(force=True, fallback="log"), trace() as decisions:
        np.testing.assert_array_equal(ladder(v, t), by_definition(v, t))
    assert decisions[0].reason is Reason.ACCURACY and not device.health.causes


@pytest.mark.parametrize("fault", FaultyEngine.FAULTS)
def test_a_faulty_engine_leaves_the_reference_s_sums(fault):
    v, t = integrals(7), amplitudes(3, 7, 7)
    with engine(FaultyEngine(fault)), policy(force=True, fallback="log", time_limit=0.02), trace() as decisions:
        np.testing.assert_array_equal(ladder(v, t), by_definition(v, t))
    assert decisions[0].reason is FaultyEngine.REASONS[fault]


@pytest.mark.parametrize("block", [160, 64])
@pytest.mark.parametrize("ready", [True, False])
def test_a_dry_run_is_the_run(monkeypatch, block, ready):
    monkeypatch.setattr(_ladder, "BLOCK", block)
    if not ready:
        monkeypatch.setattr(_ladder, "cut_of", lambda *a, cut=_ladder.cut_of: cut(*a)._replace(ready=False))
    file = fitted(17, 61)
    assert_dry_is_the_run(
        _ladder.prepare(np.empty((153, 61)), amplitudes(10, 17, 17), True, lambda out: np.copyto(out, file))
    )
    problem = _ladder.prepare(integrals(17), amplitudes(10, 17, 17))
    assert_dry_is_the_run(problem)
    runtime = Recorded()
    on = DeviceEngine(runtime)
    for _ in range(3):
        launched, sent, came = Counter(runtime.counters.launches), runtime.counters.bytes_in, runtime.counters.bytes_out
        problem.run(on)
    later = tallied(problem, work_of(problem)._replace(kept=((0, False),)))
    assert dict(later.launches) == dict(runtime.counters.launches - launched)
    assert (later.bytes_in, later.bytes_out) == (runtime.counters.bytes_in - sent, runtime.counters.bytes_out - came)


def test_a_dry_run_of_results_that_are_rounded_on_the_device_is_the_run():
    assert_dry_is_the_run(_ladder.prepare(integrals(40), amplitudes(40, 40, 40)))


def outlined(nvir, nocc):
    """A problem of stated size, without the memory of its integrals."""
    pairs = nvir * (nvir + 1) // 2
    return _ladder.prepare(
        np.broadcast_to(0.0, (pairs, pairs)), np.broadcast_to(0.0, (nocc * (nocc + 1) // 2, nvir, nvir))
    )


def test_calls_pay_as_soon_as_integrals_stay():
    """Water in cc-pVTZ, and 20 occupied and 200 virtual orbitals, modelled: the first call and all others."""
    rates, policy = current_rates(), Policy()
    for nvir, nocc, faster in ((53, 5, 3.0), (100, 10, 5.0), (200, 20, 4.0)):
        problem = outlined(nvir, nocc)
        work = work_of(problem)
        later = work._replace(kept=((0, False),)).tally(TRN2, policy)
        host_s = problem.cost.host_s(rates, problem.dtype)
        assert faster * later.seconds(TRN2, rates) < host_s < 3 * work.tally(TRN2, policy).seconds(TRN2, rates)
        assert later.bytes_in + later.bytes_out < 2.5 * 2 * problem.t.nbytes + 1e5


def test_fitted_integrals_pay_in_small_molecules_because_pyscf_reads_them_in_slices():
    """Water in cc-pVDZ; PySCF's call takes 26 ms of a processor."""
    problem = _ladder.prepare(np.empty((190, 116)), np.empty((15, 19, 19)), True)
    host_s = problem.cost.host_s(current_rates(), problem.dtype)
    work = work_of(problem)
    assert 0.015 < host_s < 0.040 and 5 * work.tally(TRN2, Policy()).seconds(TRN2, current_rates()) < host_s


def test_integrals_that_no_device_has_room_for_are_refused_in_a_sentence():
    with policy(device="null"):
        decision = trnpy.explain(ladder, *(outlined(300, 20).arrays))
    assert decision.reason is Reason.OOM and "300 virtual orbitals" in decision.detail
