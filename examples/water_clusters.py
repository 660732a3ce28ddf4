"""RHF of water clusters cut from a cubic ice-like grid; the numbers of molecules are the arguments (2 4 8)."""

import itertools
import sys

import numpy as np
from pyscf import gto, scf

SPACING = 2.9  # Angstrom between oxygen atoms: the distance in liquid water, nearly
WATER = (("O", (0.0, 0.0, 0.0)), ("H", (0.7572, 0.5865, 0.0)), ("H", (-0.7572, 0.5865, 0.0)))


def cluster(molecules):
    """Water molecules on a grid, each turned by a quarter against its neighbours so that they point at them."""
    atoms = []
    sites = sorted(itertools.product(range(3), repeat=3), key=lambda site: (max(site), sum(site), site))
    for site in sites[:molecules]:
        turn = np.roll(np.eye(3), sum(site) % 3, axis=0)
        atoms += [(symbol, turn @ xyz + SPACING * np.array(site)) for symbol, xyz in WATER]
    return gto.M(atom=atoms, basis="6-31g*", verbose=0)


for molecules in [int(word) for word in sys.argv[1:]] or [2, 4, 8]:
    mf = scf.RHF(cluster(molecules))
    mf.conv_tol = 1e-10
    print(f"E(RHF, {molecules} H2O) = {mf.kernel():.10f}")
