"""Arrays distributed over the processes of a program: `Sharded` arrays, their products, and collective operations."""

from __future__ import annotations

import importlib
from typing import Any

# name -> module that defines it; loaded at first use. Nothing is initialised by an import.
_LAZY = {
    **dict.fromkeys(("Communicator", "MismatchedCalls"), "_collectives"),
    **dict.fromkeys(("comm", "threads"), "_start"),
    "cores": "_core_transport",
    **dict.fromkeys(("Sharded", "gather", "scatter"), "_sharded"),
    **dict.fromkeys(("SparseRows", "scatter_rows"), "_sparse"),
    "load": "_files",
    "linalg": "linalg",
    **dict.fromkeys(("einsum", "einsum_plan", "matmul", "multi_einsum", "tensordot"), "_sharded_products"),
}
__all__ = [*_LAZY]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'trnpy.dist' has no attribute {name!r}")
    module = importlib.import_module(f"trnpy.dist.{_LAZY[name]}")
    return module if name == _LAZY[name] else getattr(module, name)


def __dir__() -> list[str]:
    return sorted(__all__)
