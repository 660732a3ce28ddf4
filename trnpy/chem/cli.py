"""``python -m trnpy chem``: energies of a molecule from a file, timings, and modelled times of a device."""

from __future__ import annotations

import argparse
import importlib
import math
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from trnpy._base.distribution import install
from trnpy._engine.engines import current_engine
from trnpy._nki.runtime import DeviceUnavailable
from trnpy._report import ledger as _ledger
from trnpy._settings.policy import CHOICES, policy

PLACE = 3  # decimals, in Angstrom, to which positions are compared: atoms are never closer than 0.1 Angstrom
Atom = tuple[str, tuple[float, float, float]]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"trnpy chem: {message}\n")


def main(argv: list[str]) -> int:
    """Run the command. Returns 0, or 1 if the SCF does not converge; exits with 2 and one line for wrong arguments."""
    parser = _parser()
    options = parser.parse_args(argv)
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
    with policy(**changes):
        return mp2(mol, options, methods)


def _parser() -> _Parser:
    parser = _Parser(prog="python -m trnpy chem", description="Energies of molecules, by PySCF and trnpy.")
    commands = parser.add_subparsers(metavar="command", required=True)
    command = commands.add_parser(
        "mp2",
        help="Hartree-Fock and density-fitted MP2",
        description="Hartree-Fock (UHF where --spin is not 0) and density-fitted MP2, all electrons correlated.\n"
        "Prints energies in Hartree and seconds, then what ran where and what a device would have done (modelled).",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = command.add_argument
    add("molecule", type=Path, help="an .xyz file: number of atoms, a comment, then symbol x y z in Angstrom")
    add("--basis", default="cc-pvdz", help="of the orbitals, by PySCF's name for it (default %(default)s)")
    add("--charge", type=int, default=0, help="of the molecule (default 0)")
    add("--spin", type=int, default=0, metavar="2S", help="number of unpaired electrons (default 0)")
    add("--device", metavar="D", help=f"{', '.join(CHOICES['device'])} (default: as TRNPY_DEVICE says, else auto)")
    add("--machine", metavar="M", help=f"that null and the report model: {', '.join(CHOICES['machine'])}")
    return parser


def read_xyz(path: Path) -> list[Atom]:
    """Read symbols and positions in Angstrom; ValueError names the wrong line of ``path`` and what it should be."""
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
        raise ValueError(f"{path}: {len(atoms)} atoms where line 1 says {count}")
    return atoms


@contextmanager
def _timed(seconds: dict[str, float], step: str) -> Iterator[None]:
    """Store the seconds that the block takes under ``step``."""
    started = time.perf_counter()
    yield
    seconds[step] = time.perf_counter() - started


def mp2(mol: Any, options: argparse.Namespace, methods: Any) -> int:
    """Print the energies of ``mol``, then the report of the run to standard error."""
    seconds: dict[str, float] = {}
    patch_pyscf = importlib.import_module("trnpy.chem").patch_pyscf
    with _ledger.profile(f"chem mp2 {options.molecule.name} {options.basis}") as ledger, patch_pyscf():
        mf = methods.mean_field(mol)
        with _timed(seconds, "SCF"):
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
