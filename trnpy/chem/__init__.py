"""Quantum chemistry: PySCF's own contractions and eigenproblems, accelerated in place."""

from __future__ import annotations

from typing import Any

__all__ = ["patch_pyscf", "unpatch_pyscf"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'trnpy.chem' has no attribute {name!r}")
    try:
        from trnpy.chem import pyscf_patch  # here, because it imports PySCF, which takes a second and may be missing
    except ModuleNotFoundError as why:
        if why.name != "pyscf":
            raise
        raise ModuleNotFoundError(f"trnpy.chem.{name} needs PySCF: pip install 'trnpy[pyscf]'", name="pyscf") from why
    return getattr(pyscf_patch, name)


def __dir__() -> list[str]:
    return sorted(__all__)
