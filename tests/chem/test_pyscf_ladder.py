"""PySCF's coupled cluster under the patch: the ladder is one call, or its products are accelerated one by one."""

import contextlib
import itertools

import numpy as np
import pytest
from pyscf import cc, ci, gto, scf
from pyscf.cc import dfccsd, dfuccsd
from systems import WATER

from nkisim.hardware import TRN2
from trnpy import Reason, policy, trace
from trnpy._engine.device import DeviceEngine
from trnpy._engine.engines import engine
from trnpy._nki.simulated import SimulatorRuntime
from trnpy._patch.hook import LIBRARIES
from trnpy._patch.patch import _patched
from trnpy._report.reasons import Unsupported
from trnpy.chem import _ladder, accelerate, patch_pyscf, pyscf_ladder

# PySCF leaves its scratch files to the garbage collector.
pytestmark = pytest.mark.filterwarnings(
    "ignore:unclosed file:ResourceWarning",
    "ignore:Exception ignored in. <_io.FileIO:pytest.PytestUnraisableExceptionWarning",
)

HARTREE = 1e-9  # what energies may differ by
LADDER, FITTED = pyscf_ladder.rows()
HOST = {"device": "none", "force": True}
GEOMETRIES = {"water": WATER, "stretched": WATER.replace("0.7572", "0.8")}


def field(basis="6-31g", spin=0, geometry="water"):
    mol = gto.M(atom=GEOMETRIES[geometry], basis=basis, spin=spin, verbose=0)
    return (scf.UHF if spin else scf.RHF)(mol).run(conv_tol=1e-11)


def converged(mf, make=cc.CCSD, **options):
    return make(mf).set(conv_tol=1e-10, conv_tol_normt=1e-8, **options).run()


def only_the_ladder():
    """The patch of this function alone: all others would be simulated as well."""
    return _patched(pyscf_ladder.rows(), True, LIBRARIES, {})


def ladders(decisions):
    return [d for d in decisions if d.op in (LADDER, FITTED)]


@pytest.mark.parametrize("patched", [patch_pyscf, only_the_ladder])
@pytest.mark.parametrize("settings", [{"device": "none"}, HOST])
def test_energies_of_ccsd_and_of_its_triples_are_pyscf_s(patched, settings):
    mf = field()
    plain = converged(mf)
    expected = plain.e_corr, plain.ccsd_t()
    with patched(), policy(**settings), trace() as decisions:
        ours = converged(mf)
        found = ours.e_corr, ours.ccsd_t()
    np.testing.assert_allclose(found, expected, rtol=0, atol=HARTREE)
    assert len(ladders(decisions)) == ours.cycles
    assert {d.on_device for d in ladders(decisions)} == {"force" in settings}


@pytest.mark.parametrize("settings", [{"device": "none"}, HOST])
def test_energies_with_fitted_integrals_are_pyscf_s_and_changed_ones_are_seen(settings):
    mf = field()

    def energies():
        method = dfccsd.RCCSD(mf).set(conv_tol=1e-10, conv_tol_normt=1e-8)
        eris = method.ao2mo()
        first = method.kernel(eris=eris)[0]
        eris.vvL[...] = 1.01 * np.asarray(eris.vvL)
        return first, method.kernel(eris=eris)[0]

    expected = energies()
    with only_the_ladder(), policy(**settings), trace() as decisions:
        np.testing.assert_allclose(energies(), expected, rtol=0, atol=HARTREE)
    assert abs(expected[1] - expected[0]) > 1e-5
    assert {(d.op, d.on_device) for d in ladders(decisions)} == {(FITTED, "force" in settings)}


def test_integrals_cross_the_link_once_in_a_molecule_through_the_simulator_s_kernels():
    mf = field("cc-pvdz")  # of 6-31G the integrals are so few that nothing is kept
    plain = converged(mf)
    expected = plain.e_corr, plain.ccsd_t()
    on, sent, launched = DeviceEngine(SimulatorRuntime(TRN2)), [], []
    with engine(on), only_the_ladder(), policy(force=True, fallback="raise"), trace() as decisions:
        ours = cc.CCSD(mf).set(conv_tol=1e-10, conv_tol_normt=1e-7, max_cycle=4)
        eris = ours.ao2mo()
        ours.callback = lambda env: sent.append(on.counters.bytes_in)
        ours.kernel(plain.t1 * 1.001, plain.t2 * 1.001, eris)
        found = ours.e_corr, ours.ccsd_t(eris=eris)
        launched += [dict(d.launches) for d in ladders(decisions)]
        other = converged_by_one_cycle(field("cc-pvdz", geometry="stretched"))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-7)  # four cycles
    assert all(launches["words_matmul"] == 2 for launches in launched)
    amplitudes = 15 * 19 * 19 * 8
    assert sent[0] > eris.vvvv.nbytes and all(b - a < 3 * amplitudes for a, b in itertools.pairwise(sent))
    np.testing.assert_allclose(*other, rtol=0, atol=HARTREE)


def converged_by_one_cycle(mf):
    """Amplitudes after one cycle, from MP2's, of the engine and of PySCF alone."""
    found = []
    for on in (contextlib.nullcontext(), policy(device="none", force=False)):
        with on:
            method = cc.CCSD(mf).set(max_cycle=1)
            method.kernel()
            found.append(method.t2)
    return found


def test_a_molecule_whose_integrals_change_gets_new_ones():
    mf, other = field(), field(geometry="stretched")
    method = cc.CCSD(mf)
    expected = [converged(mf).e_corr, converged(other).e_corr]
    with only_the_ladder(), policy(**HOST):
        found = [converged(mf).e_corr]
        method = cc.CCSD(mf).set(conv_tol=1e-10, conv_tol_normt=1e-8).run()
        method.reset(other.mol)
        method.mo_coeff, method.mo_occ, method._scf = other.mo_coeff, other.mo_occ, other
        found.append(method.kernel()[0])
    np.testing.assert_allclose(found, expected, rtol=0, atol=HARTREE)


def test_a_wrong_sum_is_found_and_pyscf_s_result_is_taken(monkeypatch):
    mf, right = field(), _ladder._product

    def wrong(*arguments):
        found = right(*arguments)
        found[0, 0] += 1e-6
        return found

    expected = converged(mf).e_corr
    monkeypatch.setattr(_ladder, "_product", wrong)
    with only_the_ladder(), policy(**HOST, fallback="log"), trace() as decisions:
        found = converged(mf).e_corr
    assert abs(found - expected) < HARTREE
    assert {d.reason for d in ladders(decisions)} <= {Reason.ACCURACY, Reason.ERROR} and ladders(decisions)


LAMBDA = "lambda"  # equations, whose amplitudes are contracted with the same integrals


@pytest.mark.parametrize("make", [cc.CCSD, cc.QCISD, ci.CISD, LAMBDA])
def test_other_methods_with_the_same_integrals_take_the_same_call(make):
    mf = field()

    def energy():
        if make is LAMBDA:
            method = converged(mf)
            method.solve_lambda()
            return float(np.linalg.norm(method.l2))
        if make is ci.CISD:
            return ci.CISD(mf).set(conv_tol=1e-10).run().e_corr
        return converged(mf, make).e_corr

    expected = energy()
    with only_the_ladder(), policy(**HOST), trace() as decisions:
        assert abs(energy() - expected) < (1e-7 if make is LAMBDA else HARTREE)
    assert ladders(decisions) and all(d.on_device for d in ladders(decisions))


def outcore(mf):
    method = cc.CCSD(mf).set(conv_tol=1e-10, max_memory=0)
    method.incore_complete = False
    eris = cc.ccsd._make_eris_outcore(method)
    return method.kernel(eris=eris)[0]


UNCOVERED = {
    "direct": lambda: converged(field(), direct=True).e_corr,
    "outcore": lambda: outcore(field()),
    "unrestricted": lambda: converged(field(spin=2), cc.UCCSD).e_corr,
    "fitted, unrestricted": lambda: dfuccsd.UCCSD(field(spin=2)).set(conv_tol=1e-10).run().e_corr,
    "fitted, short of memory": lambda: converged(field(), dfccsd.RCCSD, max_memory=0).e_corr,
    "general": lambda: cc.GCCSD(scf.addons.convert_to_ghf(field("sto-3g"))).set(conv_tol=1e-10).run().e_corr,
}


@pytest.mark.parametrize("name", UNCOVERED)
def test_what_is_not_covered_is_pyscf_s_own_and_its_products_are_accelerated_one_by_one(name):
    expected = UNCOVERED[name]()
    with patch_pyscf(), policy(**HOST), trace() as decisions:
        assert abs(UNCOVERED[name]() - expected) < HARTREE
    assert not ladders(decisions)
    assert name == "general" or any(d.op == "pyscf.lib._dgemm" and d.on_device for d in decisions)


def test_incore_complete_is_covered():
    mf = field()
    expected = converged(mf).e_corr
    with only_the_ladder(), policy(**HOST), trace() as decisions:
        assert abs(converged(mf, incore_complete=True).e_corr - expected) < HARTREE
    assert ladders(decisions) and all(d.on_device for d in ladders(decisions))


def test_one_object_is_accelerated():
    mf = field()
    expected = converged(mf).e_corr
    with policy(**HOST), trace() as decisions:
        method = accelerate(cc.CCSD(mf).set(conv_tol=1e-10, conv_tol_normt=1e-8))
        assert abs(method.kernel()[0] - expected) < HARTREE
        taken = len(ladders(decisions))
        converged(mf)
    assert taken == method.cycles == len(ladders(decisions))


@pytest.mark.parametrize("integrals", [[[1.0]], np.ones((1, 1, 1))], ids=["a list", "three axes"])
def test_integrals_of_another_form_are_refused(integrals):
    with pytest.raises(Unsupported, match="are not in memory, or not of pairs"):
        pyscf_ladder.prepare_ladder(None, None, integrals, np.ones((1, 1, 1, 1)))
