"""DF-MP2 pairs divided over several cores: the same bits, each core's errors found, priced as they run."""

import threading

import numpy as np
import pytest
from systems import reference

import trnpy
from nkisim.hardware import TRN2
from nkisim.run.launch import Specification, run
from trnpy import policy
from trnpy._call.decisions import work_of
from trnpy._engine.engines import DeviceEngine, current_engine, engine
from trnpy._engine.multicore import Cores
from trnpy._engine.precision import Facts
from trnpy._nki.simulated import SimulatorRuntime, kernel
from trnpy._settings.policy import Policy
from trnpy.chem import _pairs
from trnpy.chem.dfmp2 import DIGITS, dfmp2_energy

pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
RNG = np.random.default_rng(3)


def random_spin(nocc, nvir, naux):
    """Random integrals of the size of a molecule's."""
    return RNG.standard_normal((nocc, nvir, naux)) * 0.3 / naux**0.5, -1 - RNG.random(nocc), RNG.random(nvir)


SPINS = {
    "RHF": random_spin(5, 20, 40),
    "UHF": tuple(zip(random_spin(4, 20, 40), random_spin(3, 21, 40), strict=True)),
    "one pair": random_spin(1, 20, 40),
}


def several(count=2, *runtimes):
    return Cores([DeviceEngine(r) for r in runtimes or [SimulatorRuntime(TRN2) for _ in range(count)]])


def energies(e, arguments, **options):
    """The bytes of the energies of all pairs, and the launches of the kernel on each core."""
    with engine(e), policy(force=True, fallback="raise"):
        found = dfmp2_energy(*arguments, **options)
    bits = b"".join(x.tobytes() for c in found.channels for x in (c.direct, c.exchange) if x is not None)
    return found, bits, [one.counters.launches["mp2_energy"] for one in e.engines]


@pytest.mark.parametrize("memory", [2**28, 2 * 32 * 128 * 8], ids=["one block", "blocks of two orbitals"])
@pytest.mark.parametrize("spins", SPINS)
def test_any_number_of_cores_gives_the_same_bits(spins, memory):
    one, bits, (whole,) = energies(several(1), SPINS[spins], memory=memory)
    for count in (2, 3):
        found, again, launched = energies(several(count), SPINS[spins], memory=memory)
        assert again == bits and found.total == one.total
        assert all(launched[: 1 if spins == "one pair" else count]) and max(launched) <= whole


def test_molecules_have_pyscf_s_energies_on_two_cores():
    expected, arguments = reference("NH2")
    found, _, launched = energies(several(), arguments)
    assert (found.opposite_spin, found.same_spin) == pytest.approx(expected, rel=0, abs=1e-9)
    assert all(launched)


class Meeting(SimulatorRuntime):
    """A core whose launches of the kernel wait for those of the other: one after another they would wait for ever."""

    parallel = True
    barrier = threading.Barrier(2, timeout=20)
    alone = threading.Lock()  # the simulator runs one kernel at a time

    def run(self, name, *operands, **parameters):
        if name == "mp2_energy":
            self.barrier.wait()
        with self.alone:
            return super().run(name, *operands, **parameters)


def test_two_cores_work_at_the_same_time():
    _, bits, _ = energies(several(1), SPINS["RHF"])
    _, again, launched = energies(several(2, Meeting(TRN2), Meeting(TRN2)), SPINS["RHF"])
    assert launched == [1, 1] and again == bits


@pytest.mark.parametrize("what", ["a sum", "all integrals"])
def test_wrong_bits_of_the_second_core_are_found(what):
    """Sums are checked where they arrive, energies of pairs by sampling them."""

    class Wrong(SimulatorRuntime):
        def run(self, name, *operands, **parameters):
            out = super().run(name, *operands, **parameters)
            if name == "mp2_energy" and what == "a sum":
                out.value[2, 0, 0] += 1e-3 * abs(out.value).max()
            if name in ("float64_digits", "digits_split") and what == "all integrals":
                (out[0] if name == "float64_digits" else out).value[0] += 1
            return out

    arguments = SPINS["RHF"]
    e = several(2, SimulatorRuntime(TRN2), Wrong(TRN2))
    with engine(e), policy(force=True, fallback="log"), trnpy.profile() as p:
        found = dfmp2_energy(*arguments)
    assert found.total == pytest.approx(dfmp2_energy(*arguments).total, rel=1e-12)
    assert e.engines[1].counters.launches["mp2_energy"]
    assert e.health.causes and not any(call.decision.on_device for call in p.calls)


def work(*arguments):
    return work_of(dfmp2_energy.__trnpy_op__.problem(False, *arguments))


@pytest.mark.parametrize("spins", SPINS)
def test_the_model_counts_what_is_launched_on_all_cores(spins):
    told = {"device": "simulator", "force": True, "cores": 2}
    with policy(**told):
        e = current_engine(trnpy.current_policy())
        before, sent = e.counters.launches.copy(), (e.counters.bytes_in, e.counters.bytes_out)
        dfmp2_energy(*SPINS[spins])
        launched = e.counters.launches - before
        sent = e.counters.bytes_in - sent[0], e.counters.bytes_out - sent[1]
    tally = work(*SPINS[spins]).tally(TRN2, Policy(**told))
    assert dict(tally.launches) == dict(launched) and (tally.bytes_in, tally.bytes_out) == sent
    assert tally.cores == 2  # both make digits, also of one pair


def price(nocc, nvir, naux, cores):
    b, occ, vir = np.broadcast_to(0.0, (nocc, nvir, naux)), -np.ones(nocc), np.ones(nvir)
    with policy(device="null", machine="trn2", cores=cores):
        return trnpy.explain(dfmp2_energy, b, occ, vir)


def test_as_many_cores_as_pay_are_taken():
    assert price(20, 100, 400, 8).cores == 1  # sending the integrals to a second core takes longer than the products
    one, several = price(60, 500, 1500, 1), price(60, 500, 1500, 8)
    assert (one.cores, several.cores) == (1, 2)
    arguments = np.broadcast_to(0.0, (60, 500, 1500)), -np.ones(60), np.ones(500)
    first, second = (dict(work(*arguments).tally(TRN2, Policy(device="null", cores=n)).products) for n in (1, 2))
    assert second["bfloat16"] == pytest.approx(first["bfloat16"] / 2, rel=0.01)
    assert second["float32"] == pytest.approx(first["float32"], rel=1e-12)  # each core makes all digits
    assert several.parts.send_s == pytest.approx(2 * one.parts.send_s, rel=0.01)
    assert several.device_s < one.device_s


@pytest.mark.parametrize("wrong", ["offsets", "loops"])
@pytest.mark.parametrize("blocks", [1, 2])
def test_pairs_are_divided_over_programs_that_the_device_runs(wrong, blocks, monkeypatch):
    """Of six pairs, two in a program without loops; pairs of one block of virtual orbitals need one loop only."""
    monkeypatch.setattr(_pairs, "LONGEST_SPAN", 16)
    arguments = random_spin(3, 14 * blocks, 12)
    _, expected, _ = energies(several(1), arguments)
    monkeypatch.setattr(_pairs, "PROGRAM", 22 * blocks**2)
    e = Cores([DeviceEngine(SimulatorRuntime(TRN2), facts=Facts(**{wrong: False}))])
    _, bits, launched = energies(e, arguments)
    assert bits == expected and launched == [1 if (wrong, blocks) == ("loops", 1) else 3]


@pytest.mark.parametrize("nvir, naux", [(448, 1536), (672, 500)])
def test_programs_without_loops_are_short(nvir, naux):
    cut = _pairs.shape((nvir, nvir), naux, DIGITS, TRN2)
    pairs, columns = _pairs.most_pairs(cut, naux, 0), 2 * cut.left * cut.span
    cells, others = _pairs._cells(cut, [(0, 1)] * pairs, True)
    operands = [((DIGITS, -(-naux // 128) * 128, columns), "bfloat16"), ((3, columns), "float32"), ((1, 5), "float32")]
    operands += [(cells.shape, "int32"), None if others is None else (others.shape, "int32")]
    shapes = [x and Specification(*x) for x in operands]
    options = {"span": cut.span, "k_tiles": cut.k_tiles, "offsets": False}
    trace = run(kernel("mp2_energy"), shapes, options, target="trn2", mode="trace").trace
    assert not trace.loops and len(trace.instructions) < 2.5 * _pairs.PROGRAM and pairs > 1
