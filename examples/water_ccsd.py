"""CCSD of one water molecule in a triple-zeta basis, and the T1 diagnostic."""

from pyscf import cc, gto, scf

mol = gto.M(atom="O 0 0 0.1173; H 0 0.7572 -0.4692; H 0 -0.7572 -0.4692", basis="cc-pvtz", verbose=0)
mf = scf.RHF(mol)
mf.conv_tol = 1e-10
mf.kernel()
ccsd = cc.CCSD(mf)
ccsd.conv_tol = 1e-9
ccsd.kernel()
print(f"E(RHF)       = {mf.e_tot:.10f}")
print(f"E(CCSD corr) = {ccsd.e_corr:.10f}")
print(f"E(CCSD)      = {ccsd.e_tot:.10f}")
print(f"T1 diagnostic {ccsd.get_t1_diagnostic():.4f}")
