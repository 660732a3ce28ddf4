"""J and K of a density-fitted SCF, cycle by cycle: where each call runs, and what all of them take, modelled.

Every cycle is one call with the same integrals, as PySCF makes them. A device takes the calls as soon as the model says
that keeping the integrals there pays; it counts the uses so far. Times of the host are predicted with this machine's
rates, those of the device modelled. ``mixed``: the first EARLY cycles in float32.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import numpy as np

from benchmarks._measure import gate
from nkisim.hardware import MACHINES, Hardware
from nkisim.table import print_table
from trnpy._call.decisions import decide, work_of
from trnpy._engine.residency import Reuse
from trnpy._settings.host_rates import current_rates
from trnpy._settings.policy import Policy
from trnpy.chem import build_jk_df

CYCLES, EARLY = 12, 6  # of an SCF; those with an orbital gradient above pyscf_cycles.ROUGH (benzene: 5 of 11)


@dataclass(frozen=True, slots=True)
class Molecule:
    """How many atomic orbitals, auxiliary functions and occupied orbitals a molecule has."""

    name: str
    nao: int
    naux: int
    nocc: int


MOLECULES = (  # with PySCF's own auxiliary functions
    Molecule("water, cc-pVTZ", 58, 139, 5), Molecule("water, cc-pVQZ", 115, 208, 5),
    Molecule("ethanol, 6-31G", 39, 348, 13), Molecule("ethanol, cc-pVDZ", 72, 348, 13),
    Molecule("benzene, STO-3G", 36, 558, 21),
    Molecule("benzene, cc-pVDZ", 114, 558, 21), Molecule("benzene, cc-pVTZ", 264, 654, 21),
    Molecule("naphthalene, cc-pVTZ", 412, 1036, 34), Molecule("40 atoms, cc-pVDZ", 400, 1960, 70),
    Molecule("60 atoms, cc-pVDZ", 600, 2940, 105),
)  # fmt: skip


def cycles(
    molecule: Molecule, machine: Hardware, trusted: bool, early: int, cores: int = 1
) -> tuple[float, float, str]:
    """Seconds of the host alone and with the device, and where each cycle ran: host, float32 or matched."""
    nao, where, total_s, host_s, uses, kept = molecule.nao, "", 0.0, 0.0, 0, set()
    b = np.empty((molecule.naux, nao * (nao + 1) // 2))
    op, rates = build_jk_df.__trnpy_op__, current_rates()  # type: ignore[attr-defined]
    problem = op.prepare(b, np.empty((nao, nao)), orbitals=[np.empty((nao, molecule.nocc))])
    work, again = work_of(problem), ((0, trusted),)
    assert work is not None
    for cycle in range(CYCLES):
        policy = Policy(precision="fp32" if cycle < early else "matched", cores=cores)
        reuse = Reuse(again) if policy.precision in kept else Reuse((), again if uses else (), uses)
        decision = decide("J and K", problem, machine, policy, rates, 0.0, reuse, work)
        assert decision.host_s is not None and (decision.device_s is not None or not decision.on_device)
        host_s += decision.host_s
        if not decision.on_device:
            where, total_s, uses = where + "-", total_s + decision.host_s, uses + 1
            continue
        where += "f" if policy.precision == "fp32" else "m"
        first = work.tally(machine, policy).seconds(machine, rates)
        total_s += (decision.device_s or 0.0) if policy.precision in kept else first
        kept.add(policy.precision)
    return host_s, total_s, where


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks scf", description=__doc__)
    parser.add_argument("--machine", choices=sorted(MACHINES), default="trn2")
    parser.add_argument("--cores", type=int, default=1, help="NeuronCores; used if one has no room for the integrals")
    options = parser.parse_args(argv)
    machine = MACHINES[options.machine]
    gate("tests/chem/test_jk.py")
    lines = []
    for molecule in MOLECULES:
        for trusted in (False, True):
            for early in (0, EARLY):
                host_s, total_s, where = cycles(molecule, machine, trusted, early, options.cores)
                lines.append(
                    (
                        molecule.name, "accelerate" if trusted else "as it is", "mixed" if early else "matched",
                        f"{host_s:.3g}", f"{total_s:.3g}", f"{host_s / total_s:.2f}", where,
                    )
                )  # fmt: skip
    print_table(
        f"J and K of {CYCLES} cycles, {options.cores} NeuronCores of a {machine.name}: host predicted, device modelled",
        ("molecule", "program", "precision", "host s", "with device s", "gain", "cycles"), lines,
    )  # fmt: skip
    print("cycles: - on the host, f in float32, m matched. accelerate: integrals that need not be compared")
    return 0
