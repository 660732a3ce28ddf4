"""PySCF under the patch: the same energies wherever calls go, the same results call by call, undone exactly."""

import dataclasses
import pickle
import sys
import threading
import types
from collections import Counter

import numpy as np
import pyscf
import pytest
from doubles import FaultyEngine
from dry_runs import assert_dry_is_the_run
from pyscf import cc, gto, lib, mcscf, mp, scf
from pyscf.lib import numpy_helper

import trnpy
import trnpy.chem
from trnpy import FallbackError, NkiFallbackWarning, Reason, policy, trace
from trnpy._call.decisions import Unsupported
from trnpy._engine.engines import engine
from trnpy.chem import pyscf_fitted, pyscf_ladder, pyscf_patch
from trnpy.chem.pyscf_patch import patch_pyscf, unpatch_pyscf

# PySCF leaves its scratch files to the garbage collector.
pytestmark = pytest.mark.filterwarnings(
    "ignore:unclosed file:ResourceWarning",
    "ignore:Exception ignored in. <_io.FileIO:pytest.PytestUnraisableExceptionWarning",
)

HARTREE = 1e-9  # what energies may differ by
POLICIES = {"none": {"device": "none"}, "null": {"device": "null"}, "forced": {"device": "none", "force": True}}
METHODS = pyscf_fitted.rows() | pyscf_ladder.rows()
ROWS = {name: op for name, op in pyscf_patch.rows().items() if name not in METHODS}
WATER = "O 0 0 0.1173; H 0 0.7572 -0.4692; H 0 -0.7572 -0.4692"


@pytest.fixture
def patched():
    with patch_pyscf() as handle:
        yield handle


def water(basis="sto-3g"):
    return gto.M(atom=WATER, basis=basis, verbose=0)


def rhf(mol):
    return scf.RHF(mol).run(conv_tol=1e-11).e_tot


def rhf_by_einsum(mol):
    """An SCF whose Coulomb and exchange matrices are a user's own contractions of tagged density matrices."""
    mf = scf.RHF(mol)
    eri, mf.direct_scf = mol.intor("int2e"), False
    mf.get_jk = lambda mol, dm, *_, **__: [lib.einsum(s, eri, dm) for s in ("pqrs,rs->pq", "prqs,rs->pq")]
    return mf.run(conv_tol=1e-11).e_tot


def dfmp2(mol):
    return mp.dfmp2.DFMP2(scf.RHF(mol).density_fit().run(conv_tol=1e-11)).run().e_tot


def ccsd(mol):
    return cc.CCSD(scf.RHF(mol).run(conv_tol=1e-11)).run(conv_tol=1e-10, conv_tol_normt=1e-8).e_tot


def casci(mol):
    return mcscf.CASCI(scf.RHF(mol).run(conv_tol=1e-11), 4, 4).run().e_tot


JOBS = {  # job -> molecule, and the rows that its forced run must have taken
    rhf: ("6-31g", {"scipy.linalg.eigh"}),
    rhf_by_einsum: ("sto-3g", {"scipy.linalg.eigh", "pyscf.lib.einsum"}),
    dfmp2: ("6-31g", {"scipy.linalg.eigh", "pyscf.df.df_jk.get_jk", "pyscf.mp.dfmp2.kernel"}),
    ccsd: ("6-31g", {"pyscf.lib.einsum", "pyscf.lib.dot", "pyscf.lib.ddot", "pyscf.cc.ccsd._contract_vvvv_t2"}),
    casci: ("sto-3g", {"pyscf.scf.hf.eig", "scipy.linalg.eigh"}),
}


@pytest.mark.parametrize("job", JOBS)
def test_energies_are_those_of_plain_pyscf(job):
    basis, rows = JOBS[job]
    expected = job(water(basis))
    for name, changes in POLICIES.items():
        with patch_pyscf(), policy(**changes), trace() as decisions:
            assert abs(job(water(basis)) - expected) < HARTREE, name
        taken = Counter(d.op for d in decisions if d.on_device)
        assert rows <= {d.op for d in decisions}
        if name == "forced":
            assert rows <= taken.keys()
            # Every call of PySCF's own rows is supported: none of them is refused.
            assert not [d for d in decisions if d.op.startswith("pyscf") and not d.on_device]
        else:
            assert not taken


@pytest.mark.parametrize("fault", FaultyEngine.FAULTS)
def test_an_energy_survives_a_faulty_engine(fault, patched):
    with trnpy.original():
        expected = rhf(water())
    threads = threading.active_count()
    faulty = FaultyEngine(fault)
    failing = fault in ("raises", "hangs", "oom")
    with engine(faulty), policy(force=True, fallback="log", time_limit=0.02), trace() as decisions:
        assert abs(rhf(water()) - expected) < HARTREE
    reasons = {d.reason for d in decisions}
    assert faulty.products and reasons & ({Reason.ERROR, Reason.OOM} if failing else {Reason.ACCURACY})
    assert faulty.health.open
    assert threading.active_count() == threads


def test_a_fault_is_warned_of_once_and_raised_where_asked(patched):
    a = np.ones((30, 30))
    with engine(FaultyEngine("raises")), policy(force=True):
        with pytest.warns(NkiFallbackWarning, match=r"pyscf\.lib\.dot ran on the host") as caught:
            np.testing.assert_array_equal(lib.dot(a, a), np.full((30, 30), 30.0))
        assert len(caught) == 1 and caught[0].filename == __file__
        c = np.full((30, 30), 7.0)
        with policy(fallback="raise"), pytest.raises(FallbackError, match=r"pyscf\.lib\.dot"):
            lib.dot(a, a, 1, c, 1)
        assert (c == 7).all()


# --- Putting in place and undoing -------------------------------------------------------------------------------------


def snapshot():
    """Every global of every module of PySCF, by identity."""
    return {
        (name, attribute): id(value)
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] == "pyscf" and isinstance(module, types.ModuleType)
        for attribute, value in vars(module).items()
    }


def test_the_patch_reaches_re_exports_and_names_imported_before_and_is_undone_exactly():
    import pyscf.gw.gw_ac as by_name
    import pyscf.gw.rpa as by_assignment

    before = snapshot()
    originals = {name: op.reference for name, op in ROWS.items()}
    with patch_pyscf():
        hook = numpy_helper.einsum
        assert hook is not originals["pyscf.lib.numpy_helper.einsum"]
        assert hook is lib.einsum is by_name.einsum is by_assignment.einsum
        assert lib.dot is numpy_helper.dot and lib.dot is not originals["pyscf.lib.numpy_helper.dot"]
        assert lib.contract.__trnpy_op__.reference is originals["pyscf.lib.numpy_helper.contract"]
        with patch_pyscf():
            assert lib.einsum is hook
        assert lib.einsum is hook
    assert snapshot() == before
    assert all(numpy_helper.__dict__.get(name.rpartition(".")[2], scf.hf.eig) is f for name, f in originals.items())


def test_a_module_imported_while_patched_is_put_back_too():
    late = types.ModuleType("late")
    sys.modules["late"] = late
    try:
        with patch_pyscf():
            exec("from pyscf.lib import einsum\nfrom numpy import dot", vars(late))
            assert late.einsum is lib.einsum and late.dot is np.dot
        assert late.einsum is lib.einsum is ROWS["pyscf.lib.numpy_helper.einsum"].reference
        assert late.dot is np.dot
    finally:
        del sys.modules["late"]


def test_handles_and_names_undo_the_same_patch():
    handle = patch_pyscf()
    assert trnpy.is_patched("numpy.einsum")
    unpatch_pyscf()
    assert not trnpy.is_patched()
    with pytest.raises(RuntimeError, match="undone already"):
        handle.undo()
    with pytest.raises(RuntimeError, match=r"no patch_pyscf\(\) is in force"):
        unpatch_pyscf()


def test_the_patch_is_undone_when_the_block_raises():
    with pytest.raises(KeyError), patch_pyscf():
        raise KeyError
    assert lib.dot is ROWS["pyscf.lib.numpy_helper.dot"].reference


def test_calls_from_inside_pyscf_are_the_programs_line_beside_pyscfs(patched):
    with trnpy.profile() as ledger:
        rhf(water())
    found = {(t.file, t.through.rpartition(":")[0]) for t in ledger.by_line() if t.op == "scipy.linalg.eigh"}
    assert any(through.endswith("pyscf/scf/hf.py") for _, through in found)
    assert {file for file, _ in found} == {__file__}


def test_other_threads_see_the_patch_and_original_blocks_hide_it(patched):
    seen = []

    def work():
        with trace() as decisions:
            lib.dot(np.eye(3), np.eye(3))
        seen.extend(d.op for d in decisions)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == ["pyscf.lib.dot"]
    with trnpy.original():
        work()
    assert seen == ["pyscf.lib.dot"]


def test_explain_knows_pyscf(patched):
    a = np.ones((500, 500))
    with policy(device="null"):
        decision = trnpy.explain(lib.dot, a, a)
    assert decision.op == "pyscf.lib.dot" and decision.machine == "trn2" and decision.flops == 2 * 500**3


RNG = np.random.default_rng(0)
A = RNG.standard_normal((150, 150))
CALLS = {  # a call of each row that a device can take
    "einsum": lambda: ("ijk,kl->ijl", A.reshape(15, 10, 150), A),
    "contract": lambda: ("ijk,kl->ijl", A.reshape(15, 10, 150), A),
    "dot": lambda: (A, A, 2.0, A.copy(), 1.0),
    "ddot": lambda: (A, A.T),
    "zdot": lambda: (A + 1j, A * 1j),
    "_dgemm": lambda: ("N", "T", 150, 150, 150, A, A, np.zeros((150, 150))),
    "eig": lambda: (A + A.T, A @ A.T + 150 * np.eye(150)),
}


@pytest.mark.parametrize("name", ROWS)
def test_a_dry_run_is_the_run(name):
    problem = ROWS[name].prepare(*CALLS[name.rpartition(".")[2]]())
    for method in problem.methods or ("",):
        assert_dry_is_the_run(dataclasses.replace(problem, method=method))


def test_the_host_cost_of_a_contraction_is_that_of_the_way_pyscf_takes(patched):
    def kind(subscripts, *shapes, **options):
        op = lib.einsum.__trnpy_op__
        return op.prepare(subscripts, *(np.ones(s) for s in shapes), **options).cost.kind

    assert kind("ij,jk->ik", (30, 30), (30, 30)) == "matmul"
    most = lib.numpy_helper.EINSUM_MAX_SIZE
    assert kind("ij,jk->ik", (2, most // 2), (most // 2, 2)) == "matmul"
    assert kind("ij,jk->ik", (2, most // 2 - 1), (most // 2 - 1, 2)) == "einsum"
    assert kind("ij,jk", (30, 30), (30, 30)) == "einsum"  # no arrow
    assert kind("bij,bjk->bik", (30, 9, 9), (30, 9, 9)) == "einsum"
    assert kind("ijkl,kl->ij", (30, 30, 30, 30), (30, 30)) == "einsum"  # the second is all summed
    assert kind("ij,jk,kl->il", (30, 30), (30, 30), (30, 30)) == "matmul"
    assert kind("ij,jk,kl->il", (30, 30), (30, 30), (30, 30), optimize=False) == "einsum"


def test_pickles_of_hooks_are_pickles_of_pyscf():
    with patch_pyscf():
        stored = pickle.dumps(lib.einsum)
    assert pickle.loads(stored) is ROWS["pyscf.lib.numpy_helper.einsum"].reference


@pytest.mark.parametrize("version", ["2.12.1", "3.0"])
def test_an_untested_pyscf_is_warned_of_and_left_alone(version, monkeypatch):
    einsum = np.einsum
    monkeypatch.setattr(pyscf, "__version__", version)
    with (
        pytest.warns(RuntimeWarning, match=rf"PySCF {version} is not among .* 2\.13 to 2\.14") as caught,
        patch_pyscf(),
    ):
        assert lib.dot is ROWS["pyscf.lib.numpy_helper.dot"].reference
        assert np.einsum is not einsum
    assert caught[0].filename == __file__
    assert np.einsum is einsum


def test_without_pyscf_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyscf", None)
    monkeypatch.delitem(sys.modules, "trnpy.chem.pyscf_patch")
    monkeypatch.delattr(trnpy.chem, "pyscf_patch")
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'trnpy-nki\[pyscf\]'"):
        _ = trnpy.chem.patch_pyscf


def test_this_pyscf_is_a_tested_one():
    release = tuple(int(part) for part in pyscf.__version__.split(".")[:2])
    assert pyscf_patch.TESTED[0] <= release <= pyscf_patch.TESTED[1]


def test_small_and_large_calls_have_one_name_in_reports(patched):
    small, large = np.ones((20, 20)), np.ones((150, 150))
    with trnpy.profile() as ledger:
        lib.dot(small, small)
        lib.dot(large, large)
    assert [t.op for t in ledger.by_function()] == ["pyscf.lib.dot"] * 2


@pytest.mark.parametrize("output", [np.broadcast_to(0.0, (2, 2)), [[0.0]]])
def test_outputs_that_numpy_does_not_write_are_refused(output):
    with pytest.raises(Unsupported, match="output is not a writeable"):
        pyscf_patch._require_output(output, (2, 2), None)
