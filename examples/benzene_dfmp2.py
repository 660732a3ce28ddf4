"""RHF and MP2 of benzene with density fitting, and what the correlated density says about its orbitals.

The basis may be named: benzene_dfmp2.py sto-3g is a small job.
"""

import sys

import numpy as np
import scipy.linalg
from pyscf import df, gto, mp, scf

CC, CH = 1.3915, 1.0800  # Angstrom: D6h equilibrium distances, rounded
ANGLES = np.arange(6) * np.pi / 3

ring = [(symbol, (r * np.cos(t), r * np.sin(t), 0.0)) for symbol, r in (("C", CC), ("H", CC + CH)) for t in ANGLES]
mol = gto.M(atom=ring, basis=sys.argv[1] if len(sys.argv) > 1 else "cc-pvdz", verbose=0)

mf = scf.RHF(mol).density_fit()
mf.conv_tol = 1e-10
mf.kernel()
mp2 = mp.dfmp2.DFMP2(mf)
mp2.with_df = df.DF(mol, auxbasis=df.make_auxbasis(mol, mp2fit=True))
mp2.kernel()
print(f"E(RHF)      = {mf.e_tot:.10f}")
print(f"E(MP2 corr) = {mp2.e_corr:.10f}")
print(f"E(MP2)      = {mp2.e_tot:.10f}")

# (ia|L) in canonical orbitals, then t_ij^ab and the unrelaxed one-particle density of MP2.
nocc = mol.nelectron // 2
c, e = mf.mo_coeff, mf.mo_energy
cderi = df.incore.cholesky_eri(mol, auxbasis=mp2.with_df.auxbasis, aosym="s1").reshape(-1, mol.nao, mol.nao)
half = np.einsum("Lpq,pi->Lqi", cderi, c[:, :nocc], optimize=True)
ial = np.einsum("Lqi,qa->iaL", half, c[:, nocc:], optimize=True)
iajb = np.einsum("iaL,jbL->iajb", ial, ial)
gap = e[:nocc, None] - e[None, nocc:]
t = iajb / (gap[:, :, None, None] + gap[None, None, :, :])
u = 2 * t - t.transpose(0, 3, 2, 1)
print(f"E(MP2 corr) = {np.einsum('iajb,iajb->', u, iajb):.10f}  from the amplitudes")

dm = np.zeros((mol.nao, mol.nao))
dm[:nocc, :nocc] = 2 * np.eye(nocc) - 2 * np.einsum("iakb,jakb->ij", u, t, optimize=True)
dm[nocc:, nocc:] = 2 * np.einsum("iajc,ibjc->ab", u, t, optimize=True)
occupation, natural = scipy.linalg.eigh((dm + dm.T) / 2)
print("natural occupations around the gap:", np.round(occupation[::-1][nocc - 3 : nocc + 3], 4))

# Loewdin populations: the density in symmetrically orthogonalised atomic orbitals.
s, x = scipy.linalg.eigh(mf.get_ovlp())
root = np.einsum("pi,i,qi->pq", x, np.sqrt(s), x, optimize=True)
for name, density in (("RHF", np.diag(mf.mo_occ)), ("MP2", dm)):
    ao = np.einsum("pi,ij,qj->pq", c, density, c, optimize=True)
    population = np.einsum("pq,qr,rp->p", root, ao, root, optimize=True)
    charge = [mol.atom_charge(a) - population[b:e].sum() for a, (_, _, b, e) in enumerate(mol.aoslice_by_atom())]
    print(f"Loewdin charges ({name}): C {charge[0]:+.6f}  H {charge[6]:+.6f}")
