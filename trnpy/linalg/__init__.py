"""The functions of scipy.linalg, those only in numpy.linalg, inv_sqrtm, and BLAS under one name for all types.

``_call.rows`` lists the accelerated functions; ``_level3`` calls those of ``blas``. Names are created at first use, so
that numpy.linalg can be accelerated without loading SciPy.
"""

from __future__ import annotations

import importlib as _importlib
from typing import Any as _Any


def _names() -> dict[str, _Any]:
    """Create all names in this module and return them."""
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
