"""Molecules and converged mean fields that the tests of chemistry share, each computed once in a run."""

import functools

from pyscf import gto, mp, scf

WATER = "O 0 0 0.1173; H 0 0.7572 -0.4692; H 0 -0.7572 -0.4692"
METHANE = "C 0 0 0; H .6276 .6276 .6276; H -.6276 -.6276 .6276; H .6276 -.6276 -.6276; H -.6276 .6276 -.6276"
AMMONIA = "N 0 0 .1; H 0 .9377 -.2816; H .8121 -.4689 -.2816; H -.8121 -.4689 -.2816"
TETRAMER = "; ".join(
    f"{symbol} {x + dx:.4f} {y + dy:.4f} {z + dz:.4f}"
    for x, y, z, turn in ((0, 0, 0, 1), (2.8, 0, 0.3, -1), (0, 2.8, 0.3, -1), (2.8, 2.8, 0, 1))
    for symbol, dx, dy, dz in (("O", 0, 0, 0), ("H", 0.76 * turn, 0.2, 0.55), ("H", -0.3 * turn, -0.6, 0.69))
)
BENZENE = "; ".join(
    f"{symbol} {radius * x:.6f} {radius * y:.6f} 0"
    for symbol, radius in (("C", 1.3915), ("H", 2.4715))
    for x, y in ((1, 0), (0.5, 0.8660254), (-0.5, 0.8660254), (-1, 0), (-0.5, -0.8660254), (0.5, -0.8660254))
)
SYSTEMS = {  # name -> geometry, basis, unpaired electrons
    "H2O": (WATER, "cc-pvdz", 0),
    "CH4": (METHANE, "cc-pvdz", 0),
    "NH3": (AMMONIA, "cc-pvdz", 0),
    "H2O/TZ": (WATER, "cc-pvtz", 0),
    "(H2O)4": (TETRAMER, "cc-pvdz", 0),
    "C6H6": (BENZENE, "cc-pvdz", 0),
    "O2": ("O 0 0 0; O 0 0 1.2075", "cc-pvdz", 2),
    "NH2": ("N 0 0 0; H 0 .8034 .6347; H 0 -.8034 .6347", "cc-pvdz", 1),
}


@functools.cache
def converged(name, fitted=False):
    """A mean field of the system, by plain PySCF."""
    geometry, basis, spin = SYSTEMS[name]
    mol = gto.M(atom=geometry, basis=basis, spin=spin, verbose=0)
    mf = scf.UHF(mol) if spin else scf.RHF(mol)
    return (mf.density_fit() if fitted else mf).run(conv_tol=1e-10)


def method(name):
    """A fresh DF-MP2 of PySCF on it."""
    mf = converged(name)
    return mp.dfump2.DFUMP2(mf) if SYSTEMS[name][2] else mp.dfmp2.DFRMP2(mf)


@functools.cache
def reference(name):
    """PySCF's own (E opposite spin, E same spin), and the arguments of ``dfmp2_energy`` for the same."""
    mp2 = method(name)
    eris = mp2.ao2mo()
    mp2.kernel(eris=eris, with_t2=False)
    if SYSTEMS[name][2]:
        _, occ, vir, *_ = zip(*mp2.split_mo_energy(), strict=True)
        b = tuple(x.reshape(len(o), len(v), -1) for x, o, v in zip(eris.ovL, occ, vir, strict=True))
    else:
        occ, vir = mp2.split_mo_energy()[1:3]
        b = eris.ovL.reshape(len(occ), len(vir), -1)
    return (float(mp2.e_corr_os), float(mp2.e_corr_ss)), (b, occ, vir)
