"""Records: dataclasses with slots that compile no method before a program needs it often."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field
from functools import partial
from operator import attrgetter
from types import FunctionType
from typing import Any, TypeVar, dataclass_transform

Class = TypeVar("Class")
SHARED = ("ClassVar", "typing.ClassVar")  # annotations of attributes that are not fields
LISTED = ("__dataclass_fields__", "__dataclass_params__", "__match_args__",
          *("__replace__",) * (sys.version_info >= (3, 13)))  # fmt: skip
MANY = 100  # instances: compiling ``__init__`` takes 0.15 ms, and without it an instance takes 1 to 2 us longer


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(
    *, eq: bool = True, kw_only: bool = False, frozen: bool | None = None
) -> Callable[[type[Class]], type[Class]]:
    """``dataclass(slots=True)``, which takes 0.5 ms on Python 3.11, in a tenth of the time.

    The type checker rejects assignments to a field; with ``frozen=True`` they also raise at run time, and with
    ``frozen=False`` they are allowed. Filling in the fields takes three times as long if assignments raise at run
    time, so only classes whose instances users get do so. Without ``eq``, instances are compared by identity.
    """

    def made(body: type[Class]) -> type[Class]:
        members = {name: value for name, value in vars(body).items() if name not in ("__dict__", "__weakref__")}
        members["__qualname__"] = body.__qualname__
        slots = members.pop("__slots__", ())
        form = _Form(body, members, kw_only, bool(frozen))
        new: dict[str, Any] = {name: _Listed(form, name) for name in LISTED}
        new |= {"__init__": _Init(form), "__repr__": _shown, "_form": form}
        if eq:
            new |= _comparison(form, mutable=frozen is False)
        if frozen:
            new |= FROZEN
        inherited = {slot for base in body.__mro__[1:] for slot in vars(base).get("__slots__", ())}
        new |= {name: value for name, value in members.items() if name not in form.own}
        new["__slots__"] = (*slots, *[name for name in form.own if name not in inherited])
        kind: Any = type(body)
        form.cls = kind(body.__name__, body.__bases__, new)
        return form.cls  # type: ignore[no-any-return]  # a class

    return made


class _Form:
    """The fields of one class, with those of its bases first: keyword or not, compared or not, and the default."""

    __slots__ = ("checks", "cls", "fields", "left", "members", "options", "own", "places")

    def __init__(self, body: type, members: dict[str, Any], kw_only: bool, frozen: bool) -> None:
        self.members, self.left = members, MANY
        self.cls: Any = body  # until it is replaced
        self.checks = getattr(body, "__post_init__", None) is not None
        self.places: list[tuple[str, Callable[[Any, Any], None]]] = []
        self.options = {"repr": False, "eq": False, "kw_only": kw_only, "frozen": frozen}
        self.own = [name for name, kind in body.__annotations__.items() if not str(kind).startswith(SHARED)]
        self.fields: dict[str, tuple[bool, bool, Any, Any]] = {}
        for base in body.__mro__[:0:-1]:
            if "_form" in vars(base):
                self.fields |= vars(base)["_form"].fields
        for name in self.own:
            given = members.get(name, MISSING)
            if isinstance(given, Field):
                self.fields[name] = kw_only, given.compare, given.default, given.default_factory
            else:
                self.fields[name] = kw_only, True, given, MISSING

    def dataclass(self, init: bool) -> Any:
        """A dataclass with the members of the body, from which the record class copies its members."""
        new = type(self.cls)(self.cls.__name__, self.cls.__bases__, dict(self.members))
        return dataclass(init=init, **self.options)(new)

    def fill(self, instance: Any, *values: Any, **named: Any) -> None:
        """Do the same as the compiled ``__init__``, which raises the error for wrong arguments."""
        given = dict(zip([name for name, (keyword, *_) in self.fields.items() if not keyword], values, strict=False))
        wrong = len(given) < len(values) or not given.keys().isdisjoint(named)
        given |= named
        for name, (_, _, default, factory) in self.fields.items():
            if name not in given and (default is not MISSING or factory is not MISSING):
                given[name] = default if factory is MISSING else factory()
        if wrong or given.keys() != self.fields.keys():
            vars(self.dataclass(init=True))["__init__"](instance, *values, **named)
            return
        self.places = self.places or [(name, getattr(self.cls, name).__set__) for name in self.fields]
        for name, put in self.places:
            put(instance, given[name])
        if self.checks:
            instance.__post_init__()


class _Init:
    """``__init__`` of the first MANY instances; afterwards, and for introspection, the compiled one."""

    __slots__ = ("form",)

    def __init__(self, form: _Form) -> None:
        self.form = form

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        form = self.form
        if type(instance) is form.cls and form.left > 0:
            form.left -= 1
            return partial(form.fill, instance)
        form.cls.__init__ = made = vars(form.dataclass(init=True))["__init__"]
        return made.__get__(instance, owner)


class _Listed:
    """Attributes that the functions of ``dataclasses`` and patterns read of a class, made at the first lookup."""

    __slots__ = ("form", "name")

    def __init__(self, form: _Form, name: str) -> None:
        self.form, self.name = form, name

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        cls, like = self.form.cls, self.form.dataclass(init=False)
        for name in LISTED:
            setattr(cls, name, vars(like)[name])
        found = vars(cls)[self.name]
        return found.__get__(instance, owner) if isinstance(found, FunctionType) else found


def _comparison(form: _Form, mutable: bool) -> dict[str, Any]:
    """``__eq__``, and ``__hash__`` unless the record is mutable, which Python requires to be unhashable."""
    names = [name for name, (_, compared, *_) in form.fields.items() if compared] or ["__class__"]
    values = attrgetter(*names * (1 + (len(names) == 1)))  # of at least two names: a tuple, as dataclasses compare

    def __eq__(self: Any, other: Any) -> Any:
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    def __hash__(self: Any) -> int:
        return hash(values(self))

    return {"__eq__": __eq__} if mutable else {"__eq__": __eq__, "__hash__": __hash__}


def _shown(self: Any) -> str:
    return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in self._form.fields)})"


def _unassigned(self: Any, name: str, value: object) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _undeleted(self: Any, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: Any) -> list[Any]:
    return [getattr(self, name) for name in self._form.fields]


def _restored(self: Any, state: list[Any]) -> None:
    for name, value in zip(self._form.fields, state, strict=True):
        object.__setattr__(self, name, value)


FROZEN = {"__setattr__": _unassigned, "__delattr__": _undeleted, "__getstate__": _state, "__setstate__": _restored}
