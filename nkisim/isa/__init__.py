"""nki.isa: all instructions of NKI 0.6 that the simulator executes, collected from the files of this package."""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
from enum import Enum
from typing import Any

from nkisim.chip.errors import MissingName
from nkisim.isa import _enums
from nkisim.isa._checks import member

constants = _enums


def _gather() -> dict[str, Any]:
    """The public names of the files of this package, from their ``__all__``."""
    names: dict[str, Any] = {}
    for file in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{file.name}")
        names |= {name: _numbered(getattr(module, name)) for name in getattr(module, "__all__", ())}
    return names


def _numbered(instruction: Any) -> Any:
    """The instruction, wrapped to accept numbers for members of enumerations, as the compiler does."""
    if not inspect.isfunction(instruction):
        return instruction
    parameters = inspect.signature(instruction).parameters.values()
    kinds = {p.name: type(p.default) for p in parameters if isinstance(p.default, Enum)}
    if not kinds:
        return instruction
    places = [(at, p.name) for at, p in enumerate(parameters) if p.name in kinds]

    @functools.wraps(instruction)
    def taking_numbers(*args: Any, **kwargs: Any) -> Any:
        for name, kind in kinds.items():
            if name in kwargs and not isinstance(kwargs[name], kind):
                kwargs[name] = member(instruction.__name__, name, kwargs[name], kind)
        if len(args) > places[0][0]:
            given = list(args)
            for at, name in places:
                if at < len(given):
                    given[at] = member(instruction.__name__, name, given[at], kinds[name])
            args = tuple(given)
        return instruction(*args, **kwargs)

    return taking_numbers


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    if not _NAMES:
        _NAMES.update(_gather())
        globals().update(_NAMES)
    if name in _NAMES:
        return _NAMES[name]
    raise MissingName(f"nisa.{name} is not an instruction of NKI 0.6 that this simulator supports")


_NAMES: dict[str, Any] = {}
