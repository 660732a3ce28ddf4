"""DScribe: SOAP, Coulomb matrices and symmetry functions of small molecules, and their similarity."""

import numpy as np
from ase.build import molecule
from dscribe.descriptors import ACSF, SOAP, CoulombMatrix
from dscribe.kernels import AverageKernel

names = ["H2O", "CH3OH", "C6H6", "CH3CH2OH", "C2H6", "CH3COOH", "C4H4O", "C5H5N"]
systems = [molecule(name) for name in names] * 8
species = ["H", "C", "O", "N"]
soap = SOAP(species=species, r_cut=5.0, n_max=8, l_max=6)
features = [np.asarray(f) for f in soap.create(systems)]
CoulombMatrix(n_atoms_max=12, permutation="eigenspectrum").create(systems)
acsf = ACSF(species=species, r_cut=6.0, g2_params=[[1, 1], [1, 2]], g4_params=[[1, 1, 1], [1, 2, -1]])
acsf.create(systems)
print(AverageKernel(metric="linear").create(features).shape)
