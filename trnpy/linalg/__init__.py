"""scipy.linalg's functions, those that only numpy.linalg has, inv_sqrtm, and BLAS by one name for all types.

The accelerated ones are rows of ``_ops`` and ``_inv_sqrtm``; ``_level3`` calls those of ``blas``. Names are made at
first use, so that the rows of numpy.linalg can be loaded without SciPy.
"""

from __future__ import annotations

import importlib as _importlib
from typing import Any as _Any


def _names() -> dict[str, _Any]:
    """All names, made and put into this module."""
    made: dict[str, _Any] = _importlib.import_module(f"{__name__}._namespace").NAMES
    globals().update(made)
    return made


def __getattr__(name: str) -> _Any:
    if name == "interpolative":
        return _importlib.import_module(f"{__name__}.{name}")
    # The import of a submodule looks up its name here first.
    if (not name.startswith("_") or name == "__all__") and name in (made := _names()):
        return made[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*(name for name in _names() if name != "__all__"), "interpolative"})
