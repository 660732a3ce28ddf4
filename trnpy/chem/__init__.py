"""Quantum chemistry: density-fitted MP2, integral transformations, screening, and PySCF accelerated in place."""

from __future__ import annotations

import importlib
from typing import Any

from trnpy._base import distribution

# name -> module that defines it. Modules are loaded at first use, so names that do not need PySCF work without it.
_LAZY = {
    **dict.fromkeys(("MP2Energy", "dfmp2_energy"), "dfmp2"),
    "ao2mo": "_ao2mo",  # importing a module named ao2mo would replace the function of that name
    "build_jk_df": "jk",
    **dict.fromkeys(("sharded_ao2mo", "sharded_ladder"), "_orbitals_ranks"),
    **dict.fromkeys(("schwarz_bounds", "screened_pairs", "screened_spmm"), "schwarz"),
    **dict.fromkeys(("patch_pyscf", "unpatch_pyscf"), "pyscf_patch"),
    "accelerate": "pyscf_methods",
}
__all__ = [*_LAZY]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'trnpy.chem' has no attribute {name!r}")
    try:
        module = importlib.import_module(f"trnpy.chem.{_LAZY[name]}")
    except ModuleNotFoundError as why:
        if why.name != "pyscf":
            raise
        needs = f"trnpy.chem.{name} needs PySCF: {distribution.install('pyscf')}"
        raise ModuleNotFoundError(needs, name="pyscf") from why
    return getattr(module, name)


def __dir__() -> list[str]:
    return sorted(__all__)
