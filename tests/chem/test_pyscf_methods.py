"""PySCF objects accelerated one at a time: the same energies wherever calls go, undone exactly."""

import contextlib
import functools
import threading

import numpy as np
import pytest
import scipy.linalg
from doubles import FaultyEngine, RecordingEngine
from pyscf import cc, gto, lib, mp, scf
from systems import SYSTEMS, WATER, converged, method

import trnpy.chem
from trnpy import Reason, policy, trace
from trnpy._engine.engines import engine
from trnpy.chem import accelerate
from trnpy.chem.pyscf_methods import AcceleratedDFMP2, AcceleratedDFSCF

# PySCF leaves its scratch files to the garbage collector.
pytestmark = pytest.mark.filterwarnings(
    "ignore:unclosed file:ResourceWarning",
    "ignore:Exception ignored in. <_io.FileIO:pytest.PytestUnraisableExceptionWarning",
)

HARTREE = 1e-9  # what energies may differ by
POLICIES = {"none": {"device": "none"}, "null": {"device": "null"}, "forced": {"device": "none", "force": True}}
SMALL = ("H2O", "NH2")
MEAN_FIELDS = {
    "RHF": lambda mol: scf.RHF(mol),
    "RKS": lambda mol: scf.RKS(mol, xc="b3lyp"),
    "LDA": lambda mol: scf.RKS(mol, xc="lda,vwn"),
    "UHF": lambda mol: scf.UHF(mol),
    "ROHF": lambda mol: scf.ROHF(mol),
}


def molecule(name):
    spin = 0 if name in ("RHF", "RKS", "LDA") else 2
    return gto.M(atom=WATER, basis="6-31g", spin=spin, verbose=0)


def fitted(name, **options):
    return MEAN_FIELDS[name](molecule(name)).density_fit(**options)


@pytest.mark.parametrize("where", POLICIES)
@pytest.mark.parametrize("name", SMALL)
def test_dfmp2_gives_pyscf_s_energies_and_amplitudes(name, where):
    plain = method(name).run()
    with policy(**POLICIES[where]), trace() as decisions:
        ours = accelerate(method(name)).run()
    for attribute in ("e_corr", "e_corr_os", "e_corr_ss", "e_tot"):
        assert abs(getattr(ours, attribute) - getattr(plain, attribute)) < HARTREE
    for t2, expected in zip(*(m.t2 if SYSTEMS[name][2] else [m.t2] for m in (ours, plain)), strict=True):
        np.testing.assert_allclose(t2, expected, rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(ours.make_rdm1(), plain.make_rdm1(), rtol=0, atol=1e-12)
    (decision,) = [d for d in decisions if d.op == "trnpy.chem.dfmp2_energy"]
    assert decision.on_device == (where == "forced")


def test_dfmp2_without_amplitudes_and_with_frozen_orbitals():
    expected = mp.dfmp2.DFMP2(converged("H2O"), frozen=1).run(with_t2=False).e_corr
    with trace() as decisions:
        energy, t2 = accelerate(mp.dfmp2.DFMP2(converged("H2O"), frozen=1)).kernel(with_t2=False)
    assert t2 is None and abs(energy - expected) < HARTREE and len(decisions) == 1


def amplitudes(dfmp2):
    return dfmp2.t2 if isinstance(dfmp2.t2, tuple) else (dfmp2.t2,)


@pytest.mark.parametrize("name", SMALL)
def test_a_device_makes_the_energies_of_a_run_and_amplitudes_are_computed_when_they_are_read(name):
    plain = method(name).run()
    with policy(device="simulator", force=True), trace() as decisions:
        ours = accelerate(method(name)).run()
        assert len(decisions) == 1 and dict(decisions[0].launches)["mp2_energy"] > 0
        assert abs(ours.e_corr - plain.e_corr) < HARTREE
        read = ours.t2
    assert len(decisions) == 2 and ours.t2 is read and type(read) is type(plain.t2)
    for t2, expected in zip(amplitudes(ours), amplitudes(plain), strict=True):
        assert type(t2) is np.ndarray
        np.testing.assert_allclose(t2, expected, rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(ours.make_rdm1(), plain.make_rdm1(), rtol=0, atol=1e-12)


def test_what_kernel_returns_and_an_object_that_is_undone_have_amplitudes():
    expected = method("H2O").run().t2
    with policy(device="simulator", force=True):
        ours = accelerate(method("H2O"))
        t2 = ours.kernel()[1]
        assert t2 is ours.t2
        other = accelerate(method("H2O")).run()
        copied, undone = other.copy(), other.undo_trnpy()
    assert type(undone).__mro__ == type(method("H2O")).__mro__
    for found in (t2, copied.t2, undone.t2):
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-13)
    ours.t2 = None
    assert ours.t2 is None


@pytest.mark.parametrize("where", POLICIES)
@pytest.mark.parametrize("name", MEAN_FIELDS)
def test_density_fitted_fields_have_pyscf_s_energies(name, where):
    plain = fitted(name).run(conv_tol=1e-11)
    with policy(**POLICIES[where]), trace() as decisions:
        ours = accelerate(fitted(name)).run(conv_tol=1e-11)
    assert ours.converged and abs(ours.e_tot - plain.e_tot) < HARTREE
    taken = [d for d in decisions if d.op == "trnpy.chem.build_jk_df"]
    assert taken or name == "LDA"  # whose J alone PySCF computes without forming the integrals
    exchange = {d.on_device for d in taken if d.reason != Reason.MEMORY_BOUND}
    assert exchange == ({where == "forced"} if name != "LDA" else set())


def test_products_of_a_field_and_of_mp2_go_through_the_engine():
    recording = RecordingEngine()
    with engine(recording), policy(force=True, fallback="raise"), trace() as decisions:
        mf = accelerate(fitted("RHF")).run(conv_tol=1e-11)
        products = len(recording.shapes)
        energy = accelerate(mp.dfmp2.DFMP2(mf)).run().e_corr
    assert 0 < products < len(recording.shapes)
    assert {d.op for d in decisions} == {"trnpy.chem.build_jk_df", "trnpy.chem.dfmp2_energy", "scipy.linalg.eigh"}
    plain = fitted("RHF").run(conv_tol=1e-11)
    assert abs(energy - mp.dfmp2.DFMP2(plain).run().e_corr) < HARTREE


@pytest.mark.parametrize("fault", ["raises", "nan", "wrong", "oom"])
def test_energies_survive_a_faulty_engine(fault):
    plain = fitted("RHF").run(conv_tol=1e-11)
    expected = mp.dfmp2.DFMP2(plain).run().e_tot
    faulty = FaultyEngine(fault)
    with engine(faulty), policy(force=True, fallback="log"), trace() as decisions:
        mf = accelerate(fitted("RHF")).run(conv_tol=1e-11)
        assert abs(accelerate(mp.dfmp2.DFMP2(mf)).run().e_tot - expected) < HARTREE
    assert faulty.products and not any(d.on_device for d in decisions)


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("sets", [0, 1, 3])
def test_j_and_k_of_any_density_are_pyscf_s(symmetric, sets):
    plain, ours = fitted("RHF"), accelerate(fitted("RHF"))
    nao = plain.mol.nao
    dm = np.random.default_rng(sets).standard_normal((sets, nao, nao) if sets else (nao, nao))
    dm = dm + dm.swapaxes(-1, -2) if symmetric else dm
    for options in ({}, {"with_j": False}):
        for theirs, mine in zip(
            plain.get_jk(dm=dm, hermi=int(symmetric), **options),
            ours.get_jk(dm=dm, hermi=int(symmetric), **options),
            strict=True,
        ):
            if theirs is not None and np.ndim(theirs):
                np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-10)
            else:
                assert mine is None


def test_what_is_not_covered_is_pyscf_s_own():
    plain, ours = fitted("RHF").run(), accelerate(fitted("RHF"))
    dm = plain.make_rdm1()
    with trace() as decisions:
        for options in ({"omega": 0.3}, {"dm": dm * (1 + 0j)}):
            arguments = {"dm": dm, **options}
            for theirs, mine in zip(plain.get_jk(**arguments), ours.get_jk(**arguments), strict=True):
                np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-10)
        only_j = accelerate(fitted("RHF", only_dfj=True)).run()
        assert abs(only_j.e_tot - fitted("RHF", only_dfj=True).run().e_tot) < HARTREE
        outcore = mp.dfmp2.DFMP2(plain)
        outcore.force_outcore = True
        assert abs(accelerate(outcore).run().e_corr - mp.dfmp2.DFMP2(plain).run().e_corr) < HARTREE
    assert not [d for d in decisions if d.op not in ("trnpy.chem.build_jk_df", "scipy.linalg.eigh")]
    short = accelerate(mp.dfmp2.DFMP2(plain))
    short.max_memory = 1
    short.verbose = 0
    with pytest.raises(MemoryError):
        short.kernel()


@pytest.mark.parametrize("make", [lambda: fitted("UHF"), lambda: mp.dfmp2.DFMP2(converged("H2O"))])
def test_objects_are_accelerated_in_place_and_undone_exactly(make, capsys):
    plain = make()
    kind, state = type(plain), dict(vars(plain))
    ours = accelerate(plain)
    assert ours is plain and accelerate(ours) is plain
    assert isinstance(ours, (AcceleratedDFMP2, AcceleratedDFSCF)) and isinstance(ours, kind)
    assert type(ours).__name__ == kind.__name__ and type(make()) is kind
    ours.verbose = 3
    ours.run()
    assert "trnpy" not in "".join(capsys.readouterr()) and "Overwritten" not in "".join(capsys.readouterr())
    assert ours.undo_trnpy() is plain and type(plain) is kind
    assert not [name for name in vars(plain).keys() - state.keys() if "trnpy" in name]
    with trace() as decisions:
        plain.run()
    assert not [d for d in decisions if d.op.startswith("trnpy.chem")]


def test_copies_are_accelerated_for_themselves():
    mf = accelerate(fitted("RHF"))
    copy = mf.copy()
    copy.with_df = None
    mf.run()
    assert type(copy) is type(mf) and copy.undo_trnpy() is copy and type(mf) is not type(copy)


def test_the_patch_and_an_accelerated_object_work_together():
    expected = method("H2O").run().e_tot
    with trnpy.chem.patch_pyscf(), policy(force=True), trace() as decisions:
        assert abs(accelerate(method("H2O")).run().e_tot - expected) < HARTREE
    assert {d.op for d in decisions if d.by_device_path} >= {"trnpy.chem.dfmp2_energy", "scipy.linalg.cholesky"}


JOBS = {  # what is accelerated, and what of it must have been on the device path when forced
    "RHF": (lambda mol: scf.RHF(mol), {"scipy.linalg.eigh"}),
    "UHF": (lambda mol: scf.UHF(mol), {"scipy.linalg.eigh"}),
    "RKS": (lambda mol: scf.RKS(mol, xc="b3lyp"), {"scipy.linalg.eigh"}),
    "DF-RHF": (lambda mol: scf.RHF(mol).density_fit(), {"scipy.linalg.eigh", "trnpy.chem.build_jk_df"}),
    "MP2": (lambda mol: mp.MP2(field(mol)), {"numpy.einsum"}),
    "UMP2": (lambda mol: mp.UMP2(scf.UHF(mol).run(conv_tol=1e-11)), {"numpy.einsum"}),
    "DF-MP2": (lambda mol: mp.dfmp2.DFMP2(field(mol)), {"trnpy.chem.dfmp2_energy"}),
    "CCSD": (
        lambda mol: cc.CCSD(field(mol)),
        {"pyscf.lib.einsum", "pyscf.cc.ccsd._contract_vvvv_t2", "pyscf.lib.ddot"},
    ),
    "UCCSD": (lambda mol: cc.UCCSD(scf.UHF(mol).run(conv_tol=1e-11)), {"pyscf.lib.einsum", "numpy.einsum"}),
}


@functools.cache
def field(mol):
    return scf.RHF(mol).run(conv_tol=1e-11)


@functools.cache
def water():
    return gto.M(atom=WATER, basis="sto-3g", verbose=0)


def solved(method):
    for name, value in (("conv_tol", 1e-11), ("conv_tol_normt", 1e-9)):
        if hasattr(method, name):
            setattr(method, name, value)
    return method.run()


@functools.cache
def plain_energy(job):
    return solved(JOBS[job][0](water())).e_tot


@pytest.mark.parametrize("where", [*POLICIES, "raises", "wrong", "patched"])
@pytest.mark.parametrize("job", [pytest.param(j, marks=pytest.mark.slow) if j == "UCCSD" else j for j in JOBS])
def test_every_method_gives_pyscf_s_energy(job, where):
    make, expected = JOBS[job]
    method = make(water())
    faulty = FaultyEngine(where) if where in ("raises", "wrong") else None
    changes = POLICIES.get(where, {"force": True, "fallback": "log"})
    before = np.einsum, lib.einsum, scipy.linalg.eigh, lib.dot
    with engine(faulty) if faulty else contextlib.nullcontext(), policy(**changes), trace() as decisions:
        if where == "patched":
            with trnpy.chem.patch_pyscf():
                ours = solved(method)
        else:
            ours = solved(accelerate(method))
    assert abs(ours.e_tot - plain_energy(job)) < HARTREE
    assert before == (np.einsum, lib.einsum, scipy.linalg.eigh, lib.dot)
    if where == "forced":
        assert expected <= {d.op for d in decisions if d.on_device}
    elif faulty:
        # A wrong multiple of a product that is zero by symmetry is right.
        assert faulty.products and (where == "wrong" or not any(d.on_device for d in decisions))
        assert {Reason.ACCURACY if where == "wrong" else Reason.ERROR} <= {d.reason for d in decisions}
    elif where != "patched":
        assert decisions and not any(d.on_device for d in decisions)
        assert ours.undo_trnpy() is method and type(method) is type(make(water()))


def test_what_coupled_cluster_does_afterwards_is_accelerated_too():
    method = accelerate(solved(cc.CCSD(field(water()))))
    plain = solved(cc.CCSD(field(water())))
    with policy(force=True), trace() as decisions:
        assert abs(method.ccsd_t() - plain.ccsd_t()) < HARTREE
        np.testing.assert_allclose(method.make_rdm1(), plain.make_rdm1(), rtol=0, atol=1e-7)
        np.testing.assert_allclose(method.ipccsd(nroots=1)[0], plain.ipccsd(nroots=1)[0], rtol=0, atol=1e-7)
    assert {"numpy.einsum", "pyscf.lib.einsum"} <= {d.op for d in decisions if d.on_device}


def test_another_thread_sees_plain_pyscf_meanwhile(monkeypatch):
    """Accelerated is what the object does, not what others do at the same time."""
    method, seen = accelerate(mp.MP2(field(water()))), []
    make_rdm1 = mp.mp2.make_rdm1

    def beside(*args, **kwargs):
        with trace() as decisions:
            thread = threading.Thread(target=lambda: seen.append(lib.einsum("ij,jk->ik", np.eye(3), np.eye(3))))
            thread.start()
            thread.join()
            seen.append(len(decisions))
            lib.einsum("ij,jk->ik", np.eye(3), np.eye(3))
            seen.append(len(decisions))
        return make_rdm1(*args, **kwargs)

    monkeypatch.setattr(mp.mp2.RMP2, "make_rdm1", beside)
    solved(method).make_rdm1()
    assert seen[1:] == [0, 1]


@pytest.mark.parametrize("other", [lambda: converged("H2O").mol, lambda: np.ones(3)])
def test_other_objects_are_refused_by_name(other):
    with pytest.raises(TypeError, match=r"accelerate\((Mole|ndarray)\): expected a mean field, MP2 or coupled cluster"):
        accelerate(other())


def test_integrals_are_unpacked_once_where_they_fit_and_never_where_not(monkeypatch):
    calls = []
    unpack = lib.unpack_tril
    monkeypatch.setattr(lib, "unpack_tril", lambda b, *rest, **options: calls.append(b) or unpack(b, *rest, **options))
    mf = accelerate(fitted("RHF")).run()
    assert sum(b is mf.with_df._cderi for b in calls) == 1
    small = accelerate(fitted("RHF"))
    small.max_memory = lib.current_memory()[0] + 1e-3
    calls.clear()
    small.with_df.build()
    small.kernel()
    assert not [b for b in calls if b is small.with_df._cderi] and abs(small.e_tot - mf.e_tot) < 1e-7


def test_a_spin_without_electrons_has_no_pairs():
    mf = scf.UHF(gto.M(atom="H 0 0 0", basis="cc-pvdz", spin=1, verbose=0)).run()
    ours, plain = accelerate(mp.dfump2.DFUMP2(mf)).run(), mp.dfump2.DFUMP2(mf).run()
    assert ours.e_corr == plain.e_corr == 0 and [t.shape for t in ours.t2] == [t.shape for t in plain.t2]
