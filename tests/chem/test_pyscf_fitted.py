"""PySCF's density-fitted methods under the patch: taken over as methods where forced, untouched where not."""

import numpy as np
import pytest
from dry_runs import assert_dry_is_the_run
from pyscf import df, gto, lib, mp, scf
from pyscf.mp import dfmp2, dfump2
from systems import WATER

import trnpy
from trnpy import Reason, policy, trace
from trnpy.chem import patch_pyscf, pyscf_fitted

# PySCF leaves its scratch files to the garbage collector.
pytestmark = pytest.mark.filterwarnings(
    "ignore:unclosed file:ResourceWarning",
    "ignore:Exception ignored in. <_io.FileIO:pytest.PytestUnraisableExceptionWarning",
)

HARTREE = 1e-9  # what energies may differ by
FIELDS = {
    "RHF": lambda mol: scf.RHF(mol),
    "UHF": lambda mol: scf.UHF(mol),
    "RKS": lambda mol: scf.RKS(mol, xc="b3lyp"),
    "camb3lyp": lambda mol: scf.RKS(mol, xc="camb3lyp"),
    "ROHF": lambda mol: scf.ROHF(mol),
}
JK, MP2, UMP2 = pyscf_fitted.rows()


def field(name, basis="6-31g"):
    spin = 2 if name in ("UHF", "ROHF") else 0
    mol = gto.M(atom=WATER, basis=basis, spin=spin, verbose=0)
    return FIELDS[name](mol).density_fit().run(conv_tol=1e-11)


@pytest.mark.parametrize("forced", [False, True])
@pytest.mark.parametrize("name", FIELDS)
def test_energies_of_fields_are_pyscf_s_and_j_and_k_are_one_call(name, forced):
    plain = field(name)
    with patch_pyscf(), policy(device="none", force=forced), trace() as decisions:
        ours = field(name)
    assert ours.converged and abs(ours.e_tot - plain.e_tot) < HARTREE
    taken = [d for d in decisions if d.op == JK]
    assert len(taken) >= ours.cycles and {d.on_device for d in taken if d.reason is not Reason.LAYOUT} == {forced}


@pytest.mark.parametrize("forced", [False, True])
@pytest.mark.parametrize("with_t2", [False, True])
@pytest.mark.parametrize("name", ["RHF", "UHF"])
def test_energies_and_amplitudes_of_mp2_are_pyscf_s(name, with_t2, forced):
    mf = field(name)
    make = dfump2.DFUMP2 if name == "UHF" else dfmp2.DFMP2
    plain, ours = make(mf), make(mf)
    plain.kernel(with_t2=with_t2)
    with patch_pyscf(), policy(device="none", force=forced), trace() as decisions:
        ours.kernel(with_t2=with_t2)
    for attribute in ("e_corr", "e_corr_os", "e_corr_ss"):
        assert abs(getattr(ours, attribute) - getattr(plain, attribute)) < HARTREE
    if with_t2:
        for t2, expected in zip(*(m.t2 if name == "UHF" else [m.t2] for m in (ours, plain)), strict=True):
            np.testing.assert_allclose(t2, expected, rtol=1e-10, atol=1e-13)
    else:
        assert ours.t2 is None
    (decision,) = [d for d in decisions if d.op in (MP2, UMP2)]
    assert decision.on_device == forced


def test_a_molecule_through_the_simulator_s_kernels():
    """Half-transformed integrals stay: J and K take products of words, MP2 without amplitudes its fused kernel."""
    plain = field("RHF", "sto-3g")
    expected = dfmp2.DFMP2(plain).kernel()[0]
    with patch_pyscf(), policy(device="simulator", force=True, fallback="raise"), trace() as decisions:
        mf = FIELDS["RHF"](plain.mol).density_fit()
        mf.max_cycle = 3
        mf.kernel(dm0=plain.make_rdm1())
        found, _ = dfmp2.DFMP2(mf).kernel(with_t2=False)
    assert mf.converged and abs(mf.e_tot - plain.e_tot) < HARTREE and abs(found - expected) < HARTREE
    launches = {d.op: dict(d.launches) for d in decisions if d.on_device}
    assert launches[JK]["words_matmul"] == 4 and "mp2_energy" in launches[MP2]


def test_what_is_not_covered_is_pyscf_s_own():
    mf = field("RHF")
    dm = np.asarray(mf.make_rdm1())
    plain = mf.get_jk(dm=dm * (1 + 0j))
    with patch_pyscf(), policy(device="none", force=True), trace() as decisions:
        np.testing.assert_allclose(mf.get_jk(dm=dm * (1 + 0j)), plain, rtol=0, atol=1e-10)
        only_j = mf.get_jk(dm=dm, with_k=False)
        only_k = mf.with_df.get_jk(dm, with_j=False)
        outcore = mp.dfmp2.DFMP2(mf)
        outcore.force_outcore = True
        outcore.run()
        transformed = mp.dfmp2.kernel(mp.dfmp2.DFMP2(mf))[0]  # PySCF's function itself, without integrals
        short = mp.dfmp2.DFMP2(mf)
        integrals = short.ao2mo()
        short.max_memory = 1
        with pytest.raises(MemoryError):
            short.kernel(eris=integrals)
    assert [d.reason for d in decisions if d.op == JK] == [Reason.DTYPE, Reason.MEMORY_BOUND, Reason.FORCED]
    # A call that raises is not traced.
    assert [d.reason for d in decisions if d.op == MP2] == [Reason.LAYOUT, Reason.PARAM]
    assert transformed == pytest.approx(outcore.e_corr, rel=1e-9)
    expected = mf.with_df.get_jk(dm)
    np.testing.assert_allclose(only_j[0], expected[0], rtol=0, atol=1e-12)
    np.testing.assert_allclose(only_k[1], expected[1], rtol=0, atol=1e-10)
    assert only_k[0] == mf.with_df.get_jk(dm, with_j=False)[0] == 0


def test_other_densities_are_pyscf_s_own():
    """PySCF leaves out negative occupations; of int64 and float32, release 2.14 raises an IndexError."""
    mf = field("RHF", "sto-3g")
    dm, single = mf.make_rdm1(), np.eye(mf.mol.nao, dtype="f4")
    negative = lib.tag_array(np.asarray(dm), mo_coeff=dm.mo_coeff, mo_occ=-dm.mo_occ)

    def outcome(density):
        try:
            return mf.with_df.get_jk(density)
        except IndexError as why:
            return str(why)

    for density in (negative, single, single.astype(int)):
        expected = outcome(density)
        with patch_pyscf(), policy(device="none", force=True), trace() as decisions:
            found = outcome(density)
        np.testing.assert_array_equal(found, expected)
        assert not any(d.on_device for d in decisions if d.op == JK)


def test_methods_are_put_in_place_and_taken_out():
    before = [vars(kind)[name] for kind, name, _ in pyscf_fitted.WRAPPED]
    with patch_pyscf():
        assert not [f for (kind, name, _), f in zip(pyscf_fitted.WRAPPED, before, strict=True) if vars(kind)[name] is f]
        with patch_pyscf():
            pass
        assert vars(df.DF)["get_jk"] is not before[2]
    assert [vars(kind)[name] for kind, name, _ in pyscf_fitted.WRAPPED] == before


def test_a_dry_run_is_the_run():
    mf = field("UHF", "sto-3g")
    method = dfump2.DFUMP2(mf)
    rows = pyscf_fitted.rows()
    for arguments in ((JK, mf.with_df, mf.make_rdm1()), (UMP2, method, None, None, method.ao2mo(), False)):
        assert_dry_is_the_run(rows[arguments[0]].prepare(*arguments[1:]))


def test_a_decision_without_a_device_has_the_modelled_time_of_the_method():
    mf = field("RHF", "cc-pvtz")
    with patch_pyscf(), trnpy.profile(), trace() as decisions:
        mf.get_jk()
    (decision,) = [d for d in decisions if d.op == JK]
    assert decision.reason is Reason.NO_DEVICE and decision.device_s and decision.model_reason is Reason.SLOWER
