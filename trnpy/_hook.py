"""Stand-ins for NumPy's and SciPy's functions, which call the original unless they are active here and now."""

from __future__ import annotations

import functools
import pkgutil
import sys
import time
import types
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from trnpy import _report
from trnpy._dispatch import Decision, Op, Reason, _trace, routed

LIBRARIES = frozenset({"numpy", "scipy"})  # their calls of their own public names stay original


@dataclass(frozen=True, slots=True)
class Activation:
    """Which names are accelerated, and for which callers they are not."""

    names: frozenset[str]
    exclude: frozenset[str] = LIBRARIES  # packages and modules
    verdicts: dict[str, bool] = field(default_factory=dict, compare=False)  # module of the caller -> excluded

    def excludes(self, caller: str) -> bool:
        """Whether calls from module ``caller`` stay original."""
        parts = str(caller).split(".")  # a namespace of exec may hold anything
        prefixes = {".".join(parts[: i + 1]) for i in range(len(parts))}
        verdict = self.verdicts[caller] = not self.exclude.isdisjoint(prefixes) or parts[0] == "trnpy"
        return verdict


NOTHING = Activation(frozenset())
own: ContextVar[Activation | None] = ContextVar("trnpy_activation", default=None)


class Process:
    """The activation of threads and tasks that have none of their own."""

    activation: Activation = NOTHING


def resolve(name: str) -> Any:
    """What stands under a dotted name of an imported module now; None when nothing does."""
    module, _, attribute = name.rpartition(".")
    return getattr(sys.modules[module], attribute, None)


def active() -> Activation:
    """What is accelerated here: in this thread or task, else in the process."""
    return own.get() or Process.activation


class Hook:
    """Stands in for a function of NumPy or SciPy: its name, doc, signature, attributes, pickle, hash and class."""

    def __init__(self, name: str, op: Op) -> None:
        original = op.reference
        functools.update_wrapper(self, original)
        module, _, attribute = name.rpartition(".")
        # Where it stands, not where SciPy defines it: pickle looks the object up there.
        self.__module__, self.__name__ = module, attribute
        self.__trnpy_op__ = op
        self._name = name
        self._original = original
        self._accelerated = routed(op)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        here = own.get() or Process.activation
        if self._name not in here.names:
            return self._original(*args, **kwargs)
        caller = sys._getframe(1).f_globals.get("__name__", "")
        excluded = here.verdicts.get(caller)
        if excluded or (excluded is None and here.excludes(caller)):
            return self._excluded(caller, args, kwargs)
        # What an accelerated function calls in turn is part of it: nothing is routed or recorded twice.
        token = own.set(NOTHING)
        try:
            return self._accelerated(*args, **kwargs)
        finally:
            own.reset(token)

    def _excluded(self, caller: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        ledger, log = _report.Process.ledger, _trace.get()
        if (ledger is None and log is None) or caller.partition(".")[0] == "trnpy":
            return self._original(*args, **kwargs)
        started = time.perf_counter()
        result = self._original(*args, **kwargs)
        decision = _from_excluded(self._name, caller)
        if ledger is not None:
            ledger.add(decision, started, time.perf_counter() - started, sys._getframe(2))
        if log is not None:
            log.append(decision)
        return result

    def __reduce__(self) -> str | tuple[Any, ...]:
        if resolve(self._name) is self:
            return str(self.__name__)  # as a global of its module: the original where trnpy is not there
        return pkgutil.resolve_name, (f"{self.__module__}:{self.__name__}",)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        # NumPy's and SciPy's functions become methods of a class that has them as attributes; ufuncs do not.
        binds = instance is not None and hasattr(type(self._original), "__get__")
        return types.MethodType(self, instance) if binds else self

    def __getattr__(self, name: str) -> Any:
        if name == "_original":  # not built yet: copy and pickle look before __init__ has run
            raise AttributeError(name)
        return getattr(self._original, name)

    # isinstance(np.matmul, np.ufunc), inspect.isfunction and help() see what they saw before.
    __class__ = property(lambda self: type(self._original))

    # NumPy hands the original to __array_function__ and __array_ufunc__, whose tables of overrides a
    # library may have filled while patched, or before.
    def __eq__(self, other: object) -> bool:
        return self is other or self._original is other

    def __hash__(self) -> int:
        return hash(self._original)

    def __repr__(self) -> str:
        return f"<{self._name} patched by trnpy>"


@functools.cache
def _from_excluded(name: str, caller: str) -> Decision:
    return Decision(name, False, Reason.EXCLUDED_CALLER, f"called from {caller}")
