"""NumPy and SciPy on AWS Trainium: the same names and results, with large products computed on the device.

Not affiliated with NumPy or SciPy.  Importing trnpy patches nothing.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

# name -> its module, which is loaded at first use, so that importing trnpy takes only a few milliseconds.
_LAZY = {
    **dict.fromkeys(
        ("einsum", "einsum_path", "matmul", "dot", "vdot", "inner", "outer", "tensordot", "kron"), "trnpy._einsum.rows"
    ),
    **dict.fromkeys(("vecdot", "matvec", "vecmat"), "numpy"),  # memory-bound: no device is faster
    "multi_einsum": "trnpy._einsum.multi_einsum",
    **dict.fromkeys(
        ("explain", "trace", "Decision", "Reason", "NkiFallbackWarning", "FallbackError"), "trnpy._call.dispatch"
    ),
    "einsum_plan": "trnpy._einsum.plan_display",
    **dict.fromkeys(("policy", "Policy", "current_policy"), "trnpy._settings.policy"),
    **dict.fromkeys(("available",), "trnpy._engine.engines"),
    **dict.fromkeys(("resident",), "trnpy._engine.residency"),
    **dict.fromkeys(("report", "profile"), "trnpy._report.ledger"),
    **dict.fromkeys(("calibrate",), "trnpy._cli.calibration"),
    **dict.fromkeys(("patch", "patched", "original", "unpatch", "is_patched", "patch_status"), "trnpy._patch.patch"),
    **dict.fromkeys(("Array", "asarray"), "trnpy.xp"),
    **dict.fromkeys(("linalg", "sparse", "chem", "dist", "xp"), ""),  # modules
}

_NEWER = ("matvec", "vecmat")  # not in NumPy 2.0: a star import leaves them out there
__all__ = ["__version__", *(name for name in _LAZY if name not in _NEWER)]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'trnpy' has no attribute {name!r}")
    from trnpy._base.garbage import not_collected

    module = _LAZY[name]
    with not_collected():
        value = getattr(importlib.import_module(module), name) if module else importlib.import_module(f"trnpy.{name}")
    globals()[name] = value
    return value


def load_ipython_extension(shell: Any) -> None:
    """Called by IPython for ``%load_ext trnpy``, which adds ``%%trnpy``."""
    importlib.import_module("trnpy._cli.notebook").load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """Called by IPython for ``%unload_ext trnpy``, which removes ``%%trnpy``."""
    importlib.import_module("trnpy._cli.notebook").unload(shell)


def __dir__() -> list[str]:
    numpy = importlib.import_module("numpy")
    return sorted([*__all__, *(name for name in _NEWER if hasattr(numpy, name))])
