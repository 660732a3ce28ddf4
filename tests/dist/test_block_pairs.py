"""DF-MP2 over ranks, each with a NeuronCore: energies of the host's, the same bits twice, decisions, faults."""

import functools
import threading
from collections import Counter

import numpy as np
import pytest

import trnpy
from nkisim.hardware import TRN2
from tests.dist.test_mp2_ranks import NAO, NAUX, Held, Killed, orbitals
from trnpy import NkiFallbackWarning, Reason, dist, policy
from trnpy._engine import residency
from trnpy._engine.engines import DeviceEngine, engine
from trnpy._nki.simulated import SimulatorRuntime
from trnpy.chem import _mp2_ranks as over
from trnpy.chem._block_pairs import dfmp2_pairs
from trnpy.chem._checkpoint import Checkpoint
from trnpy.chem.dfmp2 import FINEST

ACCURACY = 1e-9  # Hartree
MATRIX = 8 * (NAO - 1) * NAUX


class Small(Held):
    """Integrals of the size of a molecule's."""

    def fitted(self, b):
        return 0.1 * b


class Doubled(SimulatorRuntime):
    """A link that doubles the sums of the kernel."""

    def get(self, buffer):
        a = super().get(buffer)
        return 2 * a if a.shape[-1] == 6 else a


def program(folder, nocc, memory=10**7, chip=SimulatorRuntime, with_t2=False, kept=None, **settings):
    """The energy, the launches of the kernel of pairs, and the decisions."""
    o, comm = orbitals(*nocc), dist.comm()
    core = DeviceEngine(chip(TRN2)) if chip else None
    share = over.transformed(Small(), o, comm, memory, str(folder))
    checkpoint = None if kept is None else kept()
    with trnpy.trace() as decisions:
        if core is None:
            found = over.energy(share, o, comm, memory, checkpoint, with_t2)
        else:
            with engine(core), policy(force=True, **settings):
                found = over.energy(share, o, comm, memory, checkpoint, with_t2)
    return found, core.counters.launches["mp2_energy"] if core else 0, decisions


def bits(found):
    return b"".join(x.tobytes() for c in found.channels for x in (c.direct, c.exchange) if x is not None)


@pytest.mark.parametrize("memory", [10**7, 60 * MATRIX], ids=["one block", "blocks"])
@pytest.mark.parametrize("nocc", [(6,), (5, 3), (1,), (2, 4)])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_pairs_on_the_cores_of_ranks_have_the_energies_of_the_host_and_the_same_bits_twice(
    tmp_path, ranks, nocc, memory
):
    host, *_ = dist.threads(1, program, tmp_path, nocc, memory, None)[0]
    ours = dist.threads(ranks, program, tmp_path, nocc, memory)
    for found, launches, decisions in ours:
        assert all(d.on_device for d in decisions) and bool(launches) == bool(decisions)
        assert bits(found) == bits(ours[0][0]) and 0 < found.uncertainty <= ACCURACY
        assert abs(found.total - host.total) <= found.uncertainty and bits(found) != bits(host)
        for channel, other in zip(found.channels, host.channels, strict=True):
            np.testing.assert_allclose(channel.direct, other.direct, rtol=0, atol=ACCURACY)
    assert sum(launches > 0 for _, launches, _ in ours) >= min(ranks, sum(nocc))
    assert {bits(found) for found, *_ in dist.threads(ranks, program, tmp_path, nocc, memory)} == {bits(ours[0][0])}


def test_the_digits_of_a_rank_s_own_orbitals_stay_on_its_core(tmp_path, monkeypatch):
    """Of four ranks each has 2 orbitals, which meet themselves and those of two visitors: three blocks are sent."""
    monkeypatch.setattr(residency, "SMALLEST", 0)
    sent = Counter()

    class Counted(SimulatorRuntime):
        def run(self, name, *operands, **parameters):
            sent[threading.current_thread().name] += name == "float64_digits"
            return super().run(name, *operands, **parameters)

    ours = dist.threads(4, program, tmp_path, (8,), 10**7, Counted)
    host, *_ = dist.threads(1, program, tmp_path, (8,), 10**7, None)[0]
    assert sorted(sent.values()) == [3] * 4
    assert abs(ours[0][0].total - host.total) <= ours[0][0].uncertainty


def test_orbitals_that_a_core_has_make_a_visit_faster():
    with policy(device="null", machine="trn2"):
        b = tuple(np.zeros((20, 500, 1500)) for _ in range(2))
        energies = tuple((np.full(20, -1.0), np.ones(500)) for _ in b)
        first = trnpy.explain(dfmp2_pairs, b, energies, (2.0, -1.0), total=16290).parts
        b[0].flags.writeable = False
        with trnpy.resident(b[0]):
            later = trnpy.explain(dfmp2_pairs, b, energies, (2.0, -1.0), total=16290).parts
        # Half of the integrals are sent, split and measured.
        assert later.send_s == pytest.approx(first.send_s / 2, rel=0.01)
        assert later.launch_s < first.launch_s and later.fetch_s == first.fetch_s
        assert later.engine_s < 0.9 * first.engine_s and later.host_steps_s < 0.8 * first.host_steps_s
        assert sum(later) < 0.8 * sum(first)


def test_a_core_that_errs_is_found_and_the_host_forms_its_pairs(tmp_path):
    host, *_ = dist.threads(1, program, tmp_path, (6,), 10**7, None)[0]
    with pytest.warns(NkiFallbackWarning):
        for found, launches, decisions in dist.threads(3, program, tmp_path, (6,), 10**7, Doubled):
            assert launches and not any(d.on_device for d in decisions)
            assert bits(found) == bits(host) and found.uncertainty == 0.0


def test_an_energy_that_errs_although_no_pair_does_is_the_host_s(tmp_path, monkeypatch):
    host, *_ = dist.threads(1, program, tmp_path, (6,), 10**7, None)[0]
    monkeypatch.setattr(over, "_extrapolated", lambda *_: 2 * ACCURACY)
    for found, launches, decisions in dist.threads(2, program, tmp_path, (6,)):
        half = len(decisions) // 2
        assert launches and [d.on_device for d in decisions] == [True] * half + [False] * half
        assert {d.reason for d in decisions[half:]} == {Reason.ACCURACY}
        assert bits(found) == bits(host) and found.uncertainty == 0.0


def test_pairs_in_float32_say_how_much_the_energy_errs(tmp_path):
    host, *_ = dist.threads(1, program, tmp_path, (6,), 10**7, None)[0]
    low = functools.partial(program, precision="fp32")
    for found, launches, decisions in dist.threads(2, low, tmp_path, (6,)):
        assert launches and all(d.on_device for d in decisions)
        assert 0 < abs(found.total - host.total) < found.uncertainty < 1e-6


@pytest.mark.parametrize("accuracy", [FINEST / 2, FINEST])
def test_energies_finer_than_the_kernel_s_come_from_products(accuracy):
    b = np.random.default_rng(0).standard_normal((3, 4, 6)) / 10
    energies, core = (np.full(3, -1.0), np.ones(4)), DeviceEngine(SimulatorRuntime(TRN2))
    with trnpy.trace() as decisions:
        host = dfmp2_pairs((b,), (energies,), (2.0, -1.0), accuracy=accuracy)
        with engine(core), policy(force=True):
            found = dfmp2_pairs((b,), (energies,), (2.0, -1.0), accuracy=accuracy)
    kernel = accuracy == FINEST
    assert decisions[-1].on_device and bool(core.counters.launches["float64_matmul"]) != kernel
    assert bool(core.counters.launches["mp2_energy"]) == kernel
    np.testing.assert_allclose(found.energies, host.energies, rtol=1e-12, atol=kernel * FINEST)


def test_amplitudes_are_the_host_s(tmp_path):
    for found, launches, decisions in dist.threads(2, program, tmp_path, (4,), 10**7, SimulatorRuntime, True):
        assert not launches and {d.reason for d in decisions} == {Reason.PARAM}
        assert found.channels[0].t2 is not None and found.uncertainty == 0.0


def test_a_run_that_was_killed_goes_on_on_the_cores(tmp_path):
    folder, memory = tmp_path / "kept", 36 * MATRIX
    host, *_ = dist.threads(1, program, tmp_path, (8,), memory, None)[0]
    with pytest.raises(KeyboardInterrupt):
        dist.threads(3, program, tmp_path, (8,), memory, SimulatorRuntime, False, lambda: Killed(folder, "a", 1))
    for found, launches, _ in dist.threads(
        2, program, tmp_path, (8,), memory, SimulatorRuntime, False, lambda: Checkpoint(folder, "a", 0.0)
    ):
        assert launches and found.total == pytest.approx(host.total, rel=0, abs=ACCURACY)


def test_pairs_of_many_orbitals_pay_on_a_core_and_few_do_not():
    with policy(device="null", machine="trn2"):

        def where(n, nvir, naux, blocks=2):
            b = tuple(np.zeros((n, nvir, naux)) for _ in range(blocks))
            energies = tuple((np.full(n, -1.0), np.ones(nvir)) for _ in b)
            return trnpy.explain(dfmp2_pairs, b, energies, (2.0, -1.0), total=16290)

        few, many, own = where(2, 30, 80), where(20, 500, 1500), where(20, 500, 1500, 1)
        assert not few.on_device
        assert many.reason == own.reason == Reason.FASTER
        assert own.device_s < many.device_s < 3 * own.device_s  # 210 pairs, and 400
