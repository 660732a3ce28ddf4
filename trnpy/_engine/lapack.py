"""NumPy's and SciPy's original routines, unaffected by patching: algorithms call them for small blocks.

SciPy's are bound on first use, so that programs without SciPy need not import it.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from numpy.linalg import LinAlgError

if TYPE_CHECKING:
    from scipy.linalg import bandwidth, cholesky, eigh, expm, inv, lstsq, pinv, pinvh, qr, solve, solve_triangular, svd

    # f2py objects have no types to check.
    blas: Any
    lapack: Any
    linalg: Any  # scipy.linalg itself, patched or not

FUNCTIONS = frozenset(
    {
        "bandwidth", "cholesky", "eigh", "expm", "inv", "lstsq", "pinv", "pinvh", "qr", "solve", "solve_triangular",
        "svd",
    }
)  # fmt: skip
MODULES = frozenset({"blas", "lapack"})
IMPORT_S = 0.3  # processor seconds of importing scipy.linalg after NumPy, with bytecode: 0.28 at best on a busy EPYC


class Scipy:
    """The time that this process has lost by not importing SciPy."""

    lost_s: float = 0.0


def import_s() -> float:
    """Predicted seconds of importing scipy.linalg, minus the time lost without it; 0 if it is imported."""
    return 0.0 if "scipy.linalg" in sys.modules else max(IMPORT_S - Scipy.lost_s, 0.0)


def __getattr__(name: str) -> Any:
    if name == "linalg":
        found = importlib.import_module("scipy.linalg")
    elif name in MODULES:
        found = importlib.import_module(f"scipy.linalg.{name}")
    elif name in FUNCTIONS:
        found = getattr(importlib.import_module("scipy.linalg"), name)
        found = vars(found).get("_original", found)  # the original if the function is patched
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found
    return found


__all__ = [
    "LinAlgError", "bandwidth", "blas", "cholesky", "eigh", "expm", "inv", "lapack", "linalg", "lstsq", "pinv", "pinvh",
    "qr", "solve", "solve_triangular", "svd",
]  # fmt: skip
