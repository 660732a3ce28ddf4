"""Stand-ins for NumPy's and SciPy's functions, which call the original unless they are active here and now."""

from __future__ import annotations

import functools
import pkgutil
import sys
import time
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from trnpy._base.blocks import Blocks
from trnpy._base.conventions import uncounted
from trnpy._call.decisions import UNSEEN
from trnpy._call.dispatch import Decision, Op, Reason, _trace, routed
from trnpy._call.quick import small_decision
from trnpy._report import ledger as _ledger
from trnpy._report.tally import SmallCalls
from trnpy._settings import policy as _policy
from trnpy._settings.policy import Attention

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
blocks: Blocks[Activation] = Blocks("trnpy_activation")
own = blocks.value


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

    def __new__(cls, name: str, original: Any, load: Callable[[], Op]) -> Hook:
        # A type of its own, whose call is no method: a method that called it would take as long again.
        return super().__new__(type(cls.__name__, (cls,), {"__call__": staticmethod(_call(name, original, load))}))

    def __init__(self, name: str, original: Any, load: Callable[[], Op]) -> None:
        functools.update_wrapper(cast(Any, self), original)
        module, _, attribute = name.rpartition(".")
        # Where it stands, not where SciPy defines it: pickle looks the object up there.
        self.__module__, self.__name__ = module, attribute
        self._name = name
        self._original = original
        self._load = load

    @property
    def __trnpy_op__(self) -> Op:
        return self._load()

    def __reduce__(self) -> str | tuple[Any, ...]:
        if resolve(self._name) is self:
            return str(self.__name__)  # as a global of its module: the original where trnpy is not there
        return pkgutil.resolve_name, (f"{self.__module__}:{self.__name__}",)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        # NumPy's and SciPy's functions become methods of a class that has them as attributes; ufuncs do not.
        binds = instance is not None and hasattr(type(self._original), "__get__")
        return types.MethodType(cast(Any, self), instance) if binds else self

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


def _call(name: str, original: Any, load: Callable[[], Op]) -> Callable[..., Any]:
    """What a hook does when it is called.

    Small calls of one line, which a program may make by the hundred thousand, are counted here, and each further
    function that took part would be a tenth of them; ``load`` gives the row at the first call that it decides about.
    """
    of_context, process, policies, report, attention = own.get, Process, _policy.Process, _ledger.Process, Attention
    getframe, ndarray, alone = sys._getframe, np.ndarray, name.startswith("numpy.")
    small, unseen, look, accelerated = 0, UNSEEN, None, None
    lines: dict[int, SmallCalls] = {}  # by the address of the instruction that calls, within that of its code

    def loaded() -> Callable[..., Any]:
        nonlocal small, unseen, look, accelerated
        op = load()
        small, unseen, look, accelerated = op.small, op.unseen, op.look, routed(op)
        return accelerated

    @uncounted
    def inside(*args: Any, **kwargs: Any) -> Any:
        """The original, whose own calls of accelerated functions are part of it: neither routed nor recorded twice."""
        token = own.set(NOTHING)
        try:
            return original(*args, **kwargs)
        finally:
            own.reset(token)

    direct = original if alone else inside  # NumPy's rows call none by their public names

    @uncounted
    def call(*args: Any, **kwargs: Any) -> Any:
        here = of_context() or process.activation
        if name not in here.names:
            return original(*args, **kwargs)
        frame, ledger = getframe(1), report.ledger
        if ledger is not None:
            elements = 0
            for a in args:
                if type(a) is ndarray:
                    elements += a.size
                elif a is not None and not isinstance(a, (str, int, float)):
                    break
            else:
                brief = elements <= unseen and len(args) < 5
                if brief or (elements <= small and (look is None or look(args, kwargs) is not True)):
                    calls = lines.get(id(frame.f_code) + frame.f_lasti)
                    policy = _untraced_policy() if attention.apart else policies.policy
                    if (
                        calls is None
                        or calls.ledger is not ledger.small
                        or calls.activation is not here
                        or calls.policy is not policy
                    ):
                        calls = _small_calls(name, small, ledger, frame, here, lines)
                    if calls is not None:
                        if next(calls.count) % calls.every:
                            return direct(*args, **kwargs) if kwargs else direct(*args)  # **{} takes 60 ns
                        return ledger.time(calls, direct, args, kwargs)
        caller = frame.f_globals.get("__name__", "")
        excluded = here.verdicts.get(caller)
        if excluded or (excluded is None and here.excludes(caller)):
            return _excluded(name, original, caller, args, kwargs)
        run = accelerated or loaded()
        token = own.set(NOTHING)
        try:
            return run(*args, **kwargs)
        finally:
            own.reset(token)

    return call


def _untraced_policy() -> _policy.Policy | None:
    """The policy here; None where each call is put into a trace."""
    return _policy.current_policy() if _trace.get() is None else None


def _small_calls(
    name: str,
    small: int,
    ledger: _ledger.Ledger,
    frame: types.FrameType,
    here: Activation,
    lines: dict[int, SmallCalls],
) -> SmallCalls | None:
    """Where ``frame`` counts its small calls of ``name``; None where they are decided about, or are a library's."""
    policy, caller = _untraced_policy(), frame.f_globals.get("__name__", "")
    if policy is None or policy.force or here.verdicts.get(caller, here.excludes(caller)):
        return None
    calls = ledger.small_calls(small_decision(name, small or UNSEEN), frame, here, policy)
    if calls is not None:
        if len(lines) >= _ledger.SITES:
            lines.clear()
        lines[id(frame.f_code) + frame.f_lasti] = calls
    return calls


@uncounted
def _excluded(name: str, original: Any, caller: str, args: Any, kwargs: Any) -> Any:
    ledger, log = _ledger.Process.ledger, _trace.get()
    if (ledger is None and log is None) or caller.partition(".")[0] == "trnpy":
        return original(*args, **kwargs)
    started = time.perf_counter()
    result = original(*args, **kwargs)
    decision = _from_excluded(name, caller)
    if ledger is not None:
        ledger.add(decision, started, time.perf_counter() - started, sys._getframe(2))
    if log is not None:
        log.append(decision)
    return result


@functools.cache
def _from_excluded(name: str, caller: str) -> Decision:
    return Decision(name, False, Reason.EXCLUDED_CALLER, f"called from {caller}")
