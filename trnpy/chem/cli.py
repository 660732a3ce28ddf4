"""``python -m trnpy chem``: energies of a molecule from a file, timings, and modelled times of a device."""

from __future__ import annotations

import argparse
import importlib
import math
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from nkisim.status import Status
from trnpy import dist
from trnpy._base.distribution import install
from trnpy._base.ranks_env import first, launched, positive
from trnpy._engine.engines import current_engine
from trnpy._nki.runtime import DeviceUnavailable
from trnpy._report import ledger as _ledger
from trnpy._settings.policy import CHOICES, policy
from trnpy.chem._mp2_ranks import TooLittleMemory
from trnpy.dist._collectives import report
from trnpy.dist._launch import run

UNITS = {"K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
PLACE = 3  # decimals, in Angstrom, to which positions are compared: atoms are never closer than 0.1 Angstrom
Atom = tuple[str, tuple[float, float, float]]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"trnpy chem: {message}\n")


def main(argv: list[str]) -> int:
    """Run the command. Returns 0, or 1 if the SCF does not converge; exits with 2 and one line for wrong arguments."""
    parser = _parser()
    options = parser.parse_args(argv)
    if options.ranks > 1:
        if launched() > 1:
            parser.error(f"--ranks {options.ranks}: mpiexec has started {launched()} ranks already")
        try:
            return run(options.ranks, ["-m", "trnpy", "chem", *argv, "--ranks", "1"])
        except FileNotFoundError as why:
            parser.error(str(why))
    changes = {name: getattr(options, name) for name in ("device", "machine") if getattr(options, name) is not None}
    try:
        atoms = read_xyz(options.molecule)
        with policy(**changes) as settings:
            current_engine(settings)
        # Imported only now: PySCF may be missing, and importing it takes a second.
        methods = importlib.import_module("trnpy.chem.pyscf_methods")
        mol = methods.molecule(atoms, options.basis, options.charge, options.spin)
    except ModuleNotFoundError as why:
        if why.name != "pyscf":
            raise
        parser.error(f"PySCF is missing: {install('pyscf')}")
    except (ValueError, DeviceUnavailable) as why:
        parser.error(str(why))
    over_ranks = launched() > 1 or options.memory or options.checkpoint
    with policy(**changes):
        if not over_ranks:
            return mp2(mol, options, methods)
        try:
            return mp2_over_ranks(mol, options, methods)
        except TooLittleMemory as why:  # on all ranks
            if dist.comm().rank == 0:
                parser.error(f"--memory: {why}")
            return 2


def _parser() -> _Parser:
    parser = _Parser(prog="python -m trnpy chem", description="Energies of molecules, by PySCF and trnpy.")
    commands = parser.add_subparsers(metavar="command", required=True)
    command = commands.add_parser(
        "mp2",
        help="Hartree-Fock and density-fitted MP2",
        description="Hartree-Fock (UHF if --spin is not 0) and density-fitted MP2, all electrons correlated.\n"
        "Prints energies in Hartree and seconds, then where each part ran and a prediction for a device (modelled).",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = command.add_argument
    add("molecule", type=Path, help="an .xyz file: number of atoms, a comment, then symbol x y z in Angstrom")
    add("--basis", default="cc-pvdz", help="PySCF's name of the orbital basis (default %(default)s)")
    add("--charge", type=int, default=0, help="of the molecule (default 0)")
    add("--spin", type=int, default=0, metavar="2S", help="number of unpaired electrons (default 0)")
    add("--device", metavar="D", help=f"{', '.join(CHOICES['device'])} (default TRNPY_DEVICE, or auto)")
    add("--machine", metavar="M", help=f"that null and the report model: {', '.join(CHOICES['machine'])}")
    add("--ranks", type=positive, default=1, metavar="N", help="processes that share the work (default 1)")
    add("--memory", type=_bytes, metavar="M", help="bytes of integrals in each process: 500M, 2G; the rest is on disk")
    add("--checkpoint", type=Path, metavar="DIR", help="folder for finished parts, from which a killed run continues")
    return parser


def _bytes(text: str) -> float:
    """The number of bytes in a text such as 500M or 2G."""
    unit = UNITS.get(text[-1:].upper(), 1.0)
    try:
        found = unit * float(text[:-1] if unit > 1 else text)
    except ValueError:
        found = 0.0
    if not 0 < found < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r}: expected bytes, such as 500M or 2G")
    return found


def read_xyz(path: Path) -> list[Atom]:
    """Read symbols and positions in Angstrom; ValueError names the wrong line of ``path`` and the expected content."""
    try:
        lines = path.read_text().splitlines()
    except UnicodeDecodeError:
        raise ValueError(f"{path}: not a text file") from None
    except OSError as why:
        raise ValueError(f"{path}: {why.strerror}") from why
    try:
        count = int(lines[0])
    except (IndexError, ValueError):
        first = repr(lines[0][:40]) if lines else "nothing"
        raise ValueError(f"{path}, line 1: {first}: expected the number of atoms") from None
    atoms: list[Atom] = []
    places: dict[tuple[float, ...], int] = {}
    for number, line in enumerate(lines[2 : 2 + count], 3):
        try:
            symbol, *words = line.split()[:4]
            x, y, z = map(float, words)
            if not math.isfinite(x + y + z):
                raise ValueError
        except ValueError:
            raise ValueError(f"{path}, line {number}: {line!r}: expected symbol x y z in Angstrom") from None
        earlier = places.setdefault((round(x, PLACE), round(y, PLACE), round(z, PLACE)), number)
        if earlier != number:
            raise ValueError(f"{path}, line {number}: the atom of line {earlier} is at the same place")
        atoms.append((symbol, (x, y, z)))
    if count < 1 or len(atoms) != count:
        raise ValueError(f"{path}: {len(atoms)} atoms, but line 1 promises {count}")
    return atoms


@contextmanager
def _timed(seconds: dict[str, float], step: str) -> Iterator[None]:
    """Store the seconds of the block under ``step``."""
    started = time.perf_counter()
    yield
    seconds[step] = time.perf_counter() - started


@contextmanager
def _cycles(mf: Any) -> Iterator[None]:
    """Show the SCF's cycle and energy on a terminal."""
    if not (first() and sys.stderr.isatty()):
        yield
        return
    with Status("SCF") as status:

        def finished(found: dict[str, Any]) -> None:
            status.step = f"cycle {found['cycle'] + 1}, E = {found['e_tot']:.6f}"

        mf.callback = finished
        try:
            yield
        finally:
            mf.callback = None


def mp2(mol: Any, options: argparse.Namespace, methods: Any) -> int:
    """Print the energies of ``mol``, then the report of the run to standard error."""
    seconds: dict[str, float] = {}
    patch_pyscf = importlib.import_module("trnpy.chem").patch_pyscf
    with _ledger.profile(f"chem mp2 {options.molecule.name} {options.basis}") as ledger, patch_pyscf():
        mf = methods.mean_field(mol)
        with _timed(seconds, "SCF"), _cycles(mf):
            mf.kernel()
        if not mf.converged:
            print(f"trnpy chem: the SCF did not converge in {mf.max_cycle} cycles: no MP2", file=sys.stderr)
            return 1
        method = methods.density_fitted_mp2(mf)
        with _timed(seconds, "integrals (ia|L)"):
            eris = method.ao2mo()
        with _timed(seconds, "MP2 energy"):
            method.kernel(eris=eris, with_t2=False)
    _print_energies(options, mol, mf, method, seconds)
    _ledger.print_report(ledger, sys.stderr)
    return 0


def mp2_over_ranks(mol: Any, options: argparse.Namespace, methods: Any) -> int:
    """The same with the integrals divided over the ranks; the first rank prints, and its report covers all ranks."""
    over = importlib.import_module("trnpy.chem.pyscf_ranks")
    comm, seconds = dist.comm(), dict[str, float]()
    memory = options.memory or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2 / comm.size
    with _ledger.profile(f"chem mp2 {options.molecule.name} {options.basis}") as ledger:
        mf = methods.mean_field(mol)
        with _timed(seconds, "SCF"), _cycles(mf):
            over.converge(mf, memory, options.checkpoint)
        if not mf.converged:
            if comm.rank == 0:
                print(f"trnpy chem: the SCF did not converge in {mf.max_cycle} cycles: no MP2", file=sys.stderr)
            return 1
        method, before = methods.density_fitted_mp2(mf), over.peak_bytes()
        with _timed(seconds, "integrals (ia|L)"):
            integrals = over.OverRanks(method, memory)
        with _timed(seconds, "MP2 energy"):
            energy = integrals.energy(checkpoint=options.checkpoint)
    method.e_hf, method.e_corr = mf.e_tot, energy.total
    method.e_corr_os, method.e_corr_ss = energy.opposite_spin, energy.same_spin
    report(comm, ledger)
    ranks = comm.allgather(np.array([[over.peak_bytes(), before]]))
    if comm.rank == 0:
        _print_energies(options, mol, mf, method, seconds)
        count = f"{comm.size} rank{'s' * (comm.size > 1)}"
        print(f"{count}, {memory / 1e6:.0f} MB each; all (ia|L) {integrals.nbytes / 1e6:.0f} MB")
        print("rank   peak memory   before MP2")
        for rank, (peak, start) in enumerate(ranks):
            print(f"{rank:4d}{peak / 1e6:11.1f} MB{start / 1e6:10.1f} MB")
        sys.stdout.flush()
        _ledger.print_report(ledger, sys.stderr)
    return 0


def _print_energies(options: argparse.Namespace, mol: Any, mf: Any, method: Any, seconds: dict[str, float]) -> None:
    nuclear, reference = mol.energy_nuc(), "UHF" if options.spin else "RHF"
    print(f"{options.molecule.name}, {options.basis}: {mol.natm} atoms, {mol.nelectron} electrons, {mol.nao} orbitals")
    for name, energy in (
        ("E(nuclear)", nuclear),
        (f"E({reference})", mf.e_tot),
        ("E(MP2 opposite spin)", method.e_corr_os),
        ("E(MP2 same spin)", method.e_corr_ss),
        ("E(MP2 correlation)", method.e_corr),
        ("E(MP2)", method.e_tot),
    ):
        print(f"{name:<22}= {float(energy):18.10f} Hartree")
    for step, took in seconds.items():
        print(f"{step:<22}{took:12.3f} s")
    sys.stdout.flush()
