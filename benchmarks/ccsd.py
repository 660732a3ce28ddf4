"""The ladder of CCSD, iteration by iteration: PySCF's products one by one, or one call whose integrals stay; modelled.

An iteration sums amplitudes times integrals (ac|bd) of four virtual orbitals. PySCF unpacks the integrals into blocks
and multiplies one after another. Times of the host are predicted with this machine's rates, those of a device modelled.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import numpy as np

from benchmarks._measure import gate
from nkisim.hardware import ERROR_FACTOR, MACHINES, Hardware
from nkisim.table import print_table
from trnpy._call.decisions import decide, work_of
from trnpy._call.dispatch import Problem
from trnpy._engine.residency import Reuse
from trnpy._settings.host_rates import current_rates
from trnpy._settings.policy import Policy
from trnpy.chem import _ladder

CYCLES = 12  # iterations; water in cc-pVTZ takes 11
BLOCKS, MIRRORED = 10, 6  # of 16 blocks PySCF unpacks 10, and multiplies six of them twice


@dataclass(frozen=True, slots=True)
class Orbitals:
    """How many occupied and virtual orbitals a molecule has."""

    name: str
    nocc: int
    nvir: int


MOLECULES = (
    Orbitals("water, cc-pVDZ", 5, 19), Orbitals("water, cc-pVTZ (examples/water_ccsd.py)", 5, 53),
    Orbitals("water, cc-pVQZ", 5, 110), Orbitals("ethanol, cc-pVDZ", 13, 59), Orbitals("benzene, cc-pVDZ", 21, 93),
    Orbitals("20 and 200 orbitals", 20, 200),
)  # fmt: skip


def block(molecule: Orbitals) -> Problem:
    """A product of PySCF's: of amplitudes with a block of integrals."""
    from trnpy._einsum.rows import _problem

    pairs, wide = molecule.nocc * (molecule.nocc + 1) // 2, molecule.nvir**2 // 4
    operands = np.broadcast_to(0.0, (pairs, wide)), np.broadcast_to(0.0, (wide, wide))
    return _problem(("mk", "kn"), "mn", operands)


def ladder(molecule: Orbitals) -> _ladder.Ladder:
    """All products of an iteration in one call."""
    pairs = molecule.nvir * (molecule.nvir + 1) // 2
    t = np.broadcast_to(0.0, (molecule.nocc * (molecule.nocc + 1) // 2, molecule.nvir, molecule.nvir))
    return _ladder.prepare(np.broadcast_to(0.0, (pairs, pairs)).copy(), t)


def one_by_one(molecule: Orbitals, machine: Hardware) -> float:
    """Seconds of an iteration whose products of blocks each run where they are faster; unpacking is the host's."""
    rates, policy, problem = current_rates(), Policy(), block(molecule)
    found = decide("", problem, machine, policy, rates, 0.0, Reuse(), work_of(problem))
    seconds = found.device_s if found.on_device else found.host_s
    assert seconds is not None
    return (BLOCKS + MIRRORED) * seconds + _ladder.PYSCF_BYTES * molecule.nvir**4 / rates.copy_bytes_per_s


def cycles(molecule: Orbitals, machine: Hardware) -> tuple[float, float, float, str]:
    """Seconds of the host alone, with the device, of one iteration with integrals on it, and where each one ran."""
    rates, policy, problem = current_rates(), Policy(), ladder(molecule)
    work, again = work_of(problem), ((0, False),)
    assert work is not None
    first, later = (w.tally(machine, policy).seconds(machine, rates) for w in (work, work._replace(kept=again)))
    host_s, total_s, where, uses, kept = problem.cost.host_s(rates, problem.dtype), 0.0, "", 0, False
    for _ in range(CYCLES):
        reuse = Reuse(again) if kept else Reuse((), again if uses else (), uses)
        if decide("ladder", problem, machine, policy, rates, 0.0, reuse, work).on_device:
            total_s += later if kept else first
            kept, where = True, where + "d"
        else:
            total_s, uses, where = total_s + host_s, uses + 1, where + "-"
    return host_s * CYCLES, total_s, later, where


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks ccsd", description=__doc__)
    parser.add_argument("--machine", choices=sorted(MACHINES), default="trn2")
    machine = MACHINES[parser.parse_args(argv).machine]
    gate("tests/chem/test_ladder.py")
    lines = []
    for molecule in MOLECULES:
        host_s, total_s, later_s, where = cycles(molecule, machine)
        blocks_s = CYCLES * one_by_one(molecule, machine)
        lines.append(
            (
                molecule.name, f"{molecule.nocc} {molecule.nvir}", f"{host_s:.3g}", f"{blocks_s:.3g}", f"{total_s:.3g}",
                f"{host_s / total_s:.2f}", f"{1e3 * later_s:.3g}", where,
            )
        )  # fmt: skip
    heads = "molecule", "orbitals", "host s", "one by one s", "stays s", "gain", "later ms", "iterations"
    print_table(f"{CYCLES} ladders, {machine.name}; modelled within a factor of {ERROR_FACTOR:g}", heads, lines)
    print("iterations: - on the host, d on the device. later: an iteration whose integrals are there")
    return 0
