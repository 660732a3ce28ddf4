"""nki.isa: every instruction of NKI 0.6 that the simulator executes, gathered from the files beside it."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

from trnpy._nki.simulator.errors import SimulatorError


def _gather() -> dict[str, Any]:
    """Public names of the files of this package: those in their ``__all__``."""
    names: dict[str, Any] = {}
    for file in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{file.name}")
        names |= {name: getattr(module, name) for name in getattr(module, "__all__", ())}
    return names


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    if not _NAMES:
        _NAMES.update(_gather())
        globals().update(_NAMES)
    if name in _NAMES:
        return _NAMES[name]
    raise SimulatorError(f"nisa.{name} is not an instruction of NKI 0.6 that this simulator knows")


_NAMES: dict[str, Any] = {}
