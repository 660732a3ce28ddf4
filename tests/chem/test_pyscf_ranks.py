"""PySCF's DF-MP2 over ranks: threads that stand for ranks, programs under mpiexec, the command with --ranks."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
from pyscf import df, dft, gto, lib, mp, scf
from systems import SYSTEMS, TETRAMER, converged, method

import trnpy
from trnpy import dist
from trnpy.chem import _jk_ranks, build_jk_df, cli, pyscf_methods, pyscf_ranks
from trnpy.chem._checkpoint import replace

pytestmark = pytest.mark.filterwarnings(
    "ignore:unclosed file:ResourceWarning",
    "ignore:Exception ignored in. <_io.FileIO:pytest.PytestUnraisableExceptionWarning",
)
ROOT = pathlib.Path(__file__).parents[2]
WATER = ROOT / "examples" / "water.xyz"
HARTREE = 1e-10
MPIEXEC = shutil.which("mpiexec", path=os.path.dirname(sys.executable))
mpiexec = pytest.mark.skipif(MPIEXEC is None, reason="mpiexec is not installed beside this Python")


@pytest.fixture
def taken_over():
    undo = pyscf_ranks.take_over()
    yield
    undo()


def energies(name, with_t2, frozen=None, stored=None):
    found = method(name)
    found.frozen = frozen
    if stored is not None:
        found.with_df._cderi = stored
    found.kernel(with_t2=with_t2)
    return np.array([found.e_corr, found.e_corr_os, found.e_corr_ss]), found.t2


@pytest.mark.parametrize(("name", "frozen"), [("H2O", None), ("H2O", 1), ("NH2", None), ("NH2", 1)])
def test_a_program_has_the_energies_and_amplitudes_of_one_rank(taken_over, name, frozen):
    plain, t2 = energies(name, True, frozen)  # alone
    found = dist.threads(3, energies, name, True, frozen)
    for e, amplitudes in found:
        np.testing.assert_allclose(e, plain, rtol=0, atol=HARTREE)
        pairs = [*zip(amplitudes, t2, strict=True)] if SYSTEMS[name][2] else [(amplitudes, t2)]
        for a, b in pairs:
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-9)
    assert len({e.tobytes() for e, _ in found}) == 1


def test_stored_integrals_are_read_in_parts(taken_over, tmp_path, monkeypatch):
    mol = converged("H2O").mol
    path = str(tmp_path / "b.h5")
    fit = df.DF(mol, df.make_auxbasis(mol, mp2fit=True))
    fit.build()
    held = fit._cderi
    df.outcore.cholesky_eri_b(mol, path, auxbasis=fit.auxbasis, dataname="j3c", max_memory=1)
    plain, _ = energies("H2O", False)
    sizes, rows = [], pyscf_ranks.Stored.rows
    monkeypatch.setattr(pyscf_ranks.Stored, "rows", lambda self, i, j: (sizes.append(j - i), rows(self, i, j))[1])
    for stored in (held, path):
        for e, _ in dist.threads(2, energies, "H2O", False, None, stored):
            np.testing.assert_allclose(e, plain, rtol=0, atol=HARTREE)
    assert sum(sizes) == 2 * len(held) and max(sizes) < len(held)


def test_a_singular_auxiliary_basis_is_fitted_as_pyscf_does(taken_over):
    def program():
        found = mp.dfmp2.DFMP2(converged("H2O"))
        basis = df.make_auxbasis(found.mol, mp2fit=True)
        found.with_df.auxmol = df.addons.make_auxmol(found.mol, basis)
        twice = found.with_df.auxmol
        twice._bas = np.vstack([twice._bas, twice._bas[:2]])
        return found.run(with_t2=False).e_corr

    np.testing.assert_allclose(dist.threads(2, program), program(), rtol=0, atol=1e-7)


def fitted_matrices(name, stored, *arguments):
    fit = df.DF(converged(name).mol)
    fit._cderi = stored
    return fit.get_jk(*arguments)


@pytest.mark.parametrize("densities", ["orbitals", "spins", "general"])
@pytest.mark.parametrize("stored", [False, True])
def test_coulomb_and_exchange_matrices_are_those_of_one_rank(taken_over, densities, stored):
    name = "NH2" if densities == "spins" else "H2O"
    mf = converged(name)
    general = np.random.default_rng(0).standard_normal((3, mf.mol.nao, mf.mol.nao))
    dm = general if densities == "general" else mf.make_rdm1()
    held = df.DF(mf.mol).build()._cderi if stored else None
    for with_j, with_k in ((True, True), (True, False), (False, True)):
        plain = fitted_matrices(name, held, dm, 0, with_j, with_k)
        found = dist.threads(3, fitted_matrices, name, held, dm, 0, with_j, with_k)
        assert [x is not None for x in found[0]] == [with_j, with_k]
        for x, y in zip(found[0], plain, strict=True):
            if x is not None:
                np.testing.assert_allclose(x, y, rtol=0, atol=1e-11 * np.abs(y).max())
        assert len({b"".join(m.tobytes() for m in pair if m is not None) for pair in found}) == 1


def test_a_mean_field_converges_over_ranks(taken_over):
    def program():
        mf = dft.RKS(converged("H2O").mol, xc="b3lyp").density_fit().run(conv_tol=1e-11)
        return mf.e_tot, mf.with_df._cderi, mf.with_df

    plain, whole, _ = program()
    for energy, cderi, fit in dist.threads(2, program):
        assert energy == pytest.approx(plain, rel=0, abs=HARTREE) and cderi is None
        assert len(fit._trnpy_held[1]) <= 0.6 * len(whole)


@pytest.mark.parametrize("stored", [False, True])
def test_reproducible_matrices_have_the_same_bits_on_any_number_of_ranks(taken_over, stored):
    mf = converged("H2O")
    held = df.DF(mf.mol).build()._cderi if stored else None
    plain = fitted_matrices("H2O", held, mf.make_rdm1())

    def program():
        with trnpy.policy(reproducible=True):
            return fitted_matrices("H2O", held, mf.make_rdm1())

    found = [program(), *(pair for ranks in (1, 2, 3, 4, 17) for pair in dist.threads(ranks, program))]
    assert len({j.tobytes() + k.tobytes() for j, k in found}) == 1
    for x, y in zip(found[0], plain, strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-11 * np.abs(y).max())
        assert x.tobytes() != y.tobytes()  # or the policy would not be needed


def test_reproducible_matrices_do_not_depend_on_what_is_kept_in_memory():
    rng = np.random.default_rng(1)
    b, c, comm = rng.standard_normal((150, 21 * 20 // 2)), rng.standard_normal((20, 4)), dist.comm()
    leaves = _jk_ranks.shares(range(151), 1, True)[0]
    found = [
        _jk_ranks.matrices(b, c @ c.T, [c], comm, True, True, square, leaves) for square in (None, lib.unpack_tril(b))
    ]
    for x, y in zip(*found, strict=True):
        assert x.tobytes() == y.tobytes()
    for x, y in zip(found[0], build_jk_df(b, c @ c.T, orbitals=c), strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-12 * np.abs(y).max())


def test_ranks_with_different_molecules_are_told_so(taken_over):
    def program(run):
        name = "NH3" if dist.comm().rank else "H2O"
        run(name)

    for run in (lambda name: energies(name, False), lambda name: converged(name).density_fit().get_jk()):
        for name in ("NH3", "H2O"):
            converged(name)
        with pytest.raises(dist.MismatchedCalls, match=r"rank 0: .* of molecule \w+ at .*\n.*rank 1: .* of molecule"):
            dist.threads(2, program, run)


def test_without_ranks_pyscf_is_what_it_was(taken_over):
    found = method("H2O")
    assert isinstance(found.ao2mo().ovL, np.ndarray)


def test_arguments_that_make_no_sense_are_named(capsys):
    for arguments, said in (
        (["--ranks", "0"], "'0': expected a number of processes"),
        (["--memory", "5X"], "'5X': expected bytes, such as 500M or 2G"),
        (["--memory", "5K"], "--memory: memory=5000 bytes: the integrals of one auxiliary shell need "),
    ):
        with pytest.raises(SystemExit, match="2"):
            cli.main(["mp2", str(WATER), *arguments])
        assert said in capsys.readouterr().err


def environment():
    return os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}


def command(*arguments):
    run = [sys.executable, "-m", "trnpy", "chem", "mp2", *map(str, arguments), "--basis", "6-31g"]
    return subprocess.run(run, env=environment(), capture_output=True, text=True, timeout=300, check=False)


def printed(run):
    assert run.returncode == 0, run.stderr
    return {name: float(value) for name, value in re.findall(r"^(E\(.*?\)) *= *(\S+) Hartree$", run.stdout, re.M)}


def test_a_mean_field_that_was_killed_goes_on_from_its_last_density(tmp_path, monkeypatch):
    monkeypatch.setattr(pyscf_ranks._checkpoint, "EVERY_S", 0.0)
    mol = converged("H2O").mol

    def run(folder, cycles):
        mf = scf.RHF(mol).set(max_cycle=cycles)
        pyscf_ranks.converge(mf, 1e9, folder)
        return mf

    plain = run(None, 50)
    killed, again = run(tmp_path, 5), run(tmp_path, 50)
    assert not killed.converged and again.converged and again.cycles < plain.cycles
    assert again.e_tot == pytest.approx(plain.e_tot, rel=0, abs=1e-8)


@mpiexec
def test_the_command_starts_ranks_and_keeps_what_is_finished(tmp_path):
    plain = printed(command(WATER))
    arguments = WATER, "--memory", "20M", "--checkpoint", tmp_path
    first = command(*arguments, "--ranks", 3)
    assert printed(first) == pytest.approx(plain, rel=0, abs=2e-10)  # ten decimals are printed
    assert re.search(r"^3 ranks, 20 MB each; all \(ia\|L\) ", first.stdout, re.M)
    assert len(re.findall(r"^ +[012] +\d+\.\d MB", first.stdout, re.M)) == 3
    assert printed(command(*arguments)) == printed(first)


FULL = """
import resource, sys
from trnpy import dist
from trnpy._cli import runner
if dist.comm().rank == 0:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
sys.exit(runner.main(["chem", "mp2", *sys.argv[1:]]))
"""


@mpiexec
def test_a_full_disk_ends_the_command_with_one_message(tmp_path):
    run = [MPIEXEC, "-n", "2", sys.executable, "-c", FULL, WATER, "--basis", "6-31g", "--checkpoint", tmp_path]
    found = subprocess.run(run, env=environment(), capture_output=True, text=True, timeout=300, check=False)
    assert found.returncode != 0 and "E(MP2)" not in found.stdout
    # PySCF's own file is the first that does not fit.
    said = re.findall(r"^trnpy\.dist: rank 0 of 2 ended the run: .*$", found.stderr, re.M)
    assert len(said) == found.stderr.count("trnpy.dist: ") == 1, found.stderr
    assert "File too large" in found.stderr and "; its last call was work of rank 0 at " in found.stderr
    assert not [*tmp_path.iterdir()]


@mpiexec
def test_a_script_runs_over_ranks_without_an_edit(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "from pyscf import gto, scf\n"
        f"mf = scf.RHF(gto.M(atom={str(WATER)!r}, basis='6-31g', verbose=0)).run(conv_tol=1e-11)\n"
        "found = mf.DFMP2()\n"
        "eris = found.ao2mo()\n"
        "found.kernel(eris=eris)\n"
        "print(type(eris).__name__, f'{found.e_corr:.12f}')\n"
    )
    run = [MPIEXEC, "-n", "2", sys.executable, "-m", "trnpy", "--no-report", script]
    found = subprocess.run(run, env=environment(), capture_output=True, text=True, timeout=300, check=True)
    alone = scf.RHF(gto.M(atom=str(WATER), basis="6-31g", verbose=0)).run(conv_tol=1e-11).DFMP2().run()
    energies = [float(e) for e in re.findall(r"-\d\.\d{12}", found.stdout)]  # ranks print at the same time
    assert found.stdout.count("OverRanks") == len(energies) == 2 and len({*energies}) == 1
    assert energies[0] == pytest.approx(alone.e_corr, rel=0, abs=HARTREE)


PEAK = """
import atexit, sys
from trnpy.chem import cli
atexit.register(lambda: print(*(l for l in open("/proc/self/status") if l.startswith("VmPeak"))))
sys.exit(cli.main(sys.argv[1:]))
"""


@mpiexec
@pytest.mark.slow
def test_a_job_larger_than_the_memory_of_one_rank(tmp_path, capsys):
    """B takes three times the memory of a rank; a rank has 1.25 times that memory beside what a small job takes."""
    memory, ranks = 40_000_000, 4
    mf = scf.RHF(gto.M(atom=TETRAMER, basis="cc-pvtz", verbose=0)).density_fit().run(conv_tol=1e-10)
    mf.with_df = None  # MP2 has an auxiliary basis of its own
    plain = mp.dfmp2.DFMP2(mf)
    plain.force_outcore = True
    plain.kernel(with_t2=False)
    nao, naux = mf.mol.nao, plain.with_df.auxmol.nao
    assert 8 * naux * nao * (nao + 1) // 2 >= 3 * memory
    atoms = [mf.mol.atom_symbol(i) for i in range(mf.mol.natm)]
    xyz = tmp_path / "molecule.xyz"
    places = mf.mol.atom_coords(unit="Angstrom")
    lines = [f"{symbol} {x!r} {y!r} {z!r}" for symbol, (x, y, z) in zip(atoms, places.tolist(), strict=True)]
    xyz.write_text("\n".join([str(len(atoms)), "", *lines]))
    mol = pyscf_methods.molecule(cli.read_xyz(xyz), "cc-pvtz", 0, 0)
    digest = np.array(pyscf_ranks._hash(mol).hexdigest())
    replace(tmp_path / "orbitals.npz", digest=digest, **{n: np.asarray(getattr(mf, n)) for n in pyscf_ranks.STATE})
    limited = 'ulimit -v $1; shift; exec "$@"'
    run = [MPIEXEC, "-n", str(ranks), sys.executable, "-c", PEAK, "mp2"]
    small = subprocess.run([*run, WATER], env=environment(), capture_output=True, text=True, timeout=600, check=True)
    limit = max(map(int, re.findall(r"VmPeak:\s+(\d+)", small.stdout))) + int(1.25 * memory / 1024)
    job = [*run, xyz, "--basis", "cc-pvtz", "--memory", str(memory), "--checkpoint", tmp_path]
    found = subprocess.run(
        ["bash", "-c", limited, "bash", str(limit), *map(str, job)], env=environment(), capture_output=True, text=True,
        timeout=600, check=False,
    )  # fmt: skip
    with capsys.disabled():
        print(f"\nulimit -v {limit}\n{found.stdout}PySCF out of core: {plain.e_corr:.12f} Hartree")
    assert printed(found)["E(MP2 correlation)"] == pytest.approx(plain.e_corr, rel=0, abs=HARTREE)


def test_a_mean_field_may_use_the_memory_beyond_what_the_process_has(monkeypatch):
    monkeypatch.setattr(lib, "current_memory", lambda: (100.0, 200.0))  # MB
    mf = converged("H2O").copy()
    monkeypatch.setattr(mf, "kernel", lambda density: None)
    pyscf_ranks.converge(mf, 5e8, None)
    assert mf.max_memory == 600.0
