"""nl.NKIObject: the base class of classes that kernels use."""

from __future__ import annotations

import dataclasses
from typing import Any


class NKIObject:
    """Fields are the annotations and plain attributes of the class.

    A class that defines no ``__init__`` accepts its fields in order or by name, with or without the ``dataclass``
    decorator. A missing field has the class's value or None (nki-language-guide.rst, "Class Support"). Then
    ``__post_init__`` runs.
    """

    def __init_subclass__(cls) -> None:
        # In the class's own dictionary, so that dataclass does not replace it.
        if "__init__" not in vars(cls):
            cls.__init__ = _initialise  # type: ignore[method-assign,assignment]

    def __post_init__(self) -> None:
        pass


def _initialise(self: NKIObject, *args: Any, **kwargs: Any) -> None:
    defaults = _defaults(type(self))
    given = dict(zip(defaults, args, strict=False)) | kwargs
    if len(args) > len(defaults) or not set(given) <= set(defaults):
        raise TypeError(f"{type(self).__name__}({', '.join(defaults)}) got {args} {kwargs}")
    for name, default in defaults.items():
        if name not in given and isinstance(default, dataclasses.Field):
            factory = default.default_factory
            given[name] = None if factory is dataclasses.MISSING else factory()
        object.__setattr__(self, name, given.get(name, default))
    self.__post_init__()


def _defaults(cls: type) -> dict[str, Any]:
    """Fields of a class and their defaults, annotated fields first."""
    found: dict[str, Any] = {}
    for owner in reversed(cls.__mro__[: cls.__mro__.index(NKIObject)]):
        own = vars(owner)
        plain = {name: value for name, value in own.items() if not name.startswith("__") and not _is_member(value)}
        factories = {n: f for n, f in own.get("__dataclass_fields__", {}).items() if n not in plain}
        found |= dict.fromkeys(own.get("__annotations__", {})) | factories | plain
    return found


def _is_member(value: Any) -> bool:
    return callable(value) or isinstance(value, (property, staticmethod, classmethod))
