"""The DF-MP2 energy step from (ov|L): trnpy on the host against the C kernel of pyscf.mp.dfmp2, side by side."""

from __future__ import annotations

import argparse

import numpy as np

from benchmarks._measure import gate, header, interleaved
from benchmarks._threads import alone

TARGET = 1.9  # times PySCF's kernel (docs/baselines.md#alternatives)
CC, CH = 1.3915, 1.0800  # Angstrom: D6h equilibrium distances, rounded
BASES = ("cc-pvdz", "cc-pvtz")
ROUNDS = 9


def benzene(basis: str):
    from pyscf import gto

    angles = np.arange(6) * np.pi / 3
    ring = [(s, (r * np.cos(t), r * np.sin(t), 0.0)) for s, r in (("C", CC), ("H", CC + CH)) for t in angles]
    return gto.M(atom=ring, basis=basis, verbose=0)


def measure(basis: str) -> float:
    """Print one line; returns how many times as fast trnpy is."""
    from pyscf import mp, scf

    from trnpy.chem import dfmp2_energy

    mf = scf.RHF(benzene(basis)).density_fit().run()
    method = mp.dfmp2.DFMP2(mf)
    eris = method.ao2mo()
    occ, vir = method.split_mo_energy()[1:3]
    nocc, nvir = len(occ), len(vir)
    b = eris.ovL.reshape(nocc, nvir, -1)
    naux = b.shape[2]
    theirs, _ = mp.dfmp2.kernel(method, eris=eris, with_t2=False)
    off = abs(dfmp2_energy(b, occ, vir).total - theirs)
    seconds = interleaved(
        {
            "PySCF": lambda: mp.dfmp2.kernel(method, eris=eris, with_t2=False),
            "trnpy": lambda: dfmp2_energy(b, occ, vir),
        },
        rounds=ROUNDS,
        rests=not alone(),
    )
    gflop = nocc * (nocc + 1) * nvir**2 * naux / 1e9
    ratio = seconds["PySCF"] / seconds["trnpy"]
    rates = "".join(f"{s * 1e3:9.1f} ms {gflop / s:6.1f} GF/s" for s in seconds.values())
    verdict = "" if ratio >= TARGET else f"   below {TARGET}"
    print(f"{basis:9}{nocc:5}{nvir:5}{naux:6}{rates}{ratio:7.2f}{off:10.1e}{verdict}", flush=True)
    return ratio


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks mp2", description=__doc__)
    parser.add_argument("--basis", choices=BASES, action="append", help="default: all")
    options = parser.parse_args(argv)
    bases = options.basis or BASES
    gate("tests/chem/test_dfmp2.py")
    header("DF-MP2 energy of benzene from (ov|L)")
    print(f"{'basis':9} nocc nvir  naux{'PySCF':>25}{'trnpy':>25}  ratio  |dE| Ha   target {TARGET}", flush=True)
    missed = sum(measure(basis) < TARGET for basis in bases)
    print(f"\n{missed} of {len(bases)} below {TARGET}")
    return int(missed > 0)
