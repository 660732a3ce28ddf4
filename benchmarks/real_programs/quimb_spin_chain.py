"""quimb: the ground state of a Heisenberg chain, exactly and by DMRG, and its entanglement."""

import quimb as qu
import quimb.tensor as qtn

h = qu.ham_heis(10, sparse=True)
ground = qu.groundstate(h)
print(qu.entropy_subsys(ground, [2] * 10, range(5)))
mpo = qtn.MPO_ham_heis(12)
dmrg = qtn.DMRG2(mpo, bond_dims=[8, 16], cutoffs=1e-8)
dmrg.solve(max_sweeps=2, tol=1e-5)
print(dmrg.energy)
peps = qtn.PEPS.rand(3, 3, bond_dim=2, seed=0)
print((peps.H & peps).contract(all, optimize="greedy"))
