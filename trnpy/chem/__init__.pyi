"""Types of trnpy.chem: written by tests/typing/make_stubs.py."""

from trnpy.chem._ao2mo import ao2mo as ao2mo
from trnpy.chem._orbitals_ranks import sharded_ao2mo as sharded_ao2mo, sharded_ladder as sharded_ladder
from trnpy.chem.dfmp2 import MP2Energy as MP2Energy, dfmp2_energy as dfmp2_energy
from trnpy.chem.jk import build_jk_df as build_jk_df
from trnpy.chem.pyscf_methods import accelerate as accelerate
from trnpy.chem.pyscf_patch import patch_pyscf as patch_pyscf, unpatch_pyscf as unpatch_pyscf
from trnpy.chem.schwarz import (
    schwarz_bounds as schwarz_bounds, screened_pairs as screened_pairs, screened_spmm as screened_spmm
)
