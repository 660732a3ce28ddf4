"""MP2 of glycine, its energy split into same-spin and opposite-spin pairs."""

from pyscf import gto, mp, scf

GLYCINE = """
N   1.9312   0.0762   0.0000
C   0.7615  -0.7950   0.0000
C  -0.5619   0.0007   0.0000
O  -0.6346   1.2040   0.0000
O  -1.6508  -0.8005   0.0000
H  -2.4128  -0.2010   0.0000
H   0.7660  -1.4472   0.8790
H   0.7660  -1.4472  -0.8790
H   1.9028   0.6925   0.8108
H   1.9028   0.6925  -0.8108
"""  # Angstrom: the planar-heavy-atom conformer, distances to 0.01

mol = gto.M(atom=GLYCINE, basis="cc-pvdz", verbose=0)
mf = scf.RHF(mol)
mf.conv_tol = 1e-10
mf.kernel()
mp2 = mp.MP2(mf)
mp2.kernel()
print(f"E(RHF)      = {mf.e_tot:.10f}")
print(f"E(MP2 corr) = {mp2.e_corr:.10f}")
print(f"E(MP2)      = {mp2.e_tot:.10f}")
print(f"same spin {mp2.e_corr_ss:.6f}, opposite spin {mp2.e_corr_os:.6f}")
