"""Hooks that replace NumPy's and SciPy's functions. A hook calls the original unless it is active for the caller."""

from __future__ import annotations

import functools
import itertools
import math
import pickle
import pkgutil
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import field
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from trnpy._base.context_settings import Blocks
from trnpy._base.conventions import OWN, uncounted
from trnpy._base.records import record
from trnpy._call.fast_path import ENTERED, UNSEEN, Entered, Verdicts, _trace, in_keywords
from trnpy._report import ledger as _ledger
from trnpy._settings import policy as _policy
from trnpy._settings.policy import Attention

try:
    from trnpy._patch import _gate as compiled
    from trnpy._patch._gate import Gated as Gated
except ImportError:  # installed where there is no C compiler: every call runs the hook's Python code
    Gated = compiled = None  # type: ignore[assignment,misc]

if TYPE_CHECKING:
    from trnpy._call.dispatch import Op
    from trnpy._report.small_calls import SmallCalls

LIBRARIES = frozenset({"numpy", "scipy"})  # these call the originals, even by their public names
# Rows whose reference is a method. ``@``, ``dot``, ``*`` and ``**`` of SciPy's sparse classes all call this one.
METHODS = {"scipy.sparse.matmul": ("scipy.sparse._base", "_spbase", "_matmul_dispatch")}
OPERATORS = frozenset({"scipy.sparse._base", "scipy.sparse._coo", "scipy.sparse._matrix"})  # modules of the operators
SMALL_PRODUCT = 1_000_000  # multiply-adds of dense operands: SciPy takes at most 1 ms, and no row has another route


@record()
class Activation:
    """Which names are accelerated, and which callers are excluded."""

    names: frozenset[str]
    exclude: frozenset[str] = LIBRARIES  # packages and modules
    verdicts: dict[str, bool] = field(default_factory=dict, compare=False)  # module of the caller -> excluded

    def excludes(self, caller: str) -> bool:
        """Whether calls from module ``caller`` stay original."""
        parts = str(caller).split(".")  # __name__ may be any object in a namespace of exec
        prefixes = {".".join(parts[: i + 1]) for i in range(len(parts))}
        verdict = self.verdicts[caller] = not self.exclude.isdisjoint(prefixes) or parts[0] in OWN
        return verdict


NOTHING = Activation(frozenset())
blocks: Blocks[Activation] = Blocks("trnpy_activation")
own = blocks.value


class ProcessActivation:
    """The activation of threads and tasks that have none of their own."""

    activation: Activation = NOTHING


def place(name: str) -> tuple[Any, str]:
    """The module or class, and its attribute, that a dotted name stands for."""
    if name in METHODS:
        module, owner, attribute = METHODS[name]
        return getattr(sys.modules[module], owner), attribute
    module, _, attribute = name.rpartition(".")
    return sys.modules[module], attribute


def resolve(name: str) -> Any:
    """The object that a dotted name refers to now; None if there is no such attribute."""
    return getattr(*place(name), None)


def enters(name: str, original: Any) -> bool:
    """Whether a hook of this name stands behind the original object, which then keeps its place."""
    return name == ENTERED and Gated is not None and type(original) is np.ufunc


def behind(name: str, original: Any) -> Any:
    """The function that computes what ``original`` does when it is not patched."""
    return compiled.behind(original) if enters(name, original) else original


def active() -> Activation:
    """The activation of this thread or task; if it has none, that of the process."""
    return own.get() or ProcessActivation.activation


class Hook:
    """Replaces a function of NumPy or SciPy, with its name, doc, signature, attributes, pickle, hash and class."""

    def __new__(cls, name: str, original: Any, load: Callable[[], Op], row: str = "") -> Hook:
        function = behind(name, original)
        call = _method(name, function, load) if name in METHODS else _call(name, function, load, row or name)
        if isinstance(call, Hook):  # compiled: it is called without a way through __call__
            return call
        # Each hook has a type of its own with a static __call__: an ordinary method would double the overhead.
        return super().__new__(type(cls.__name__, (cls,), {"__call__": staticmethod(call)}))

    def __init__(self, name: str, original: Any, load: Callable[[], Op], row: str = "") -> None:
        functools.update_wrapper(cast(Any, self), original)
        module, _, attribute = name.rpartition(".")
        # SciPy's functions keep the module that defines them: tools such as joblib take it for a part of their name.
        self.__module__, self.__name__ = getattr(original, "__module__", None) or module, attribute
        self._name = name
        self._original = original
        self._load = load
        # A method is replaced by a function, which SciPy's classes bind like their own.
        self.placed: Any = functools.update_wrapper(type(self).__call__, original) if name in METHODS else self
        _register(type(self))
        self.enters = enters(name, original)
        if self.enters:
            self.placed = original

    def put(self) -> None:
        """Let calls of the name reach this hook."""
        setattr(*place(self._name), self.placed)
        if self.enters:
            compiled.enter(cast(Any, self))
            Entered.rows[id(self._original)] = self._load

    def take(self) -> bool:
        """Let calls of the name reach the original; False if other code has replaced the hook, which then stays."""
        if self.enters:
            Entered.rows.pop(id(self._original), None)
            compiled.enter(None)
        if resolve(self._name) is not self.placed:
            return False
        setattr(*place(self._name), self._original)
        return True

    @property
    def __trnpy_op__(self) -> Op:
        return self._load()

    def __reduce__(self) -> str | tuple[Any, ...]:
        module, _, attribute = self._name.rpartition(".")
        if module == self.__module__ and resolve(self._name) is self:
            return attribute  # pickled as a global of its module: without trnpy it loads the original
        return pkgutil.resolve_name, (f"{module}:{attribute}",)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        # As attributes of a class, Python functions become methods; ufuncs do not.
        binds = instance is not None and hasattr(type(self._original), "__get__")
        return types.MethodType(cast(Any, self), instance) if binds else self

    def __getattr__(self, name: str) -> Any:
        if name == "_original":  # copy and pickle look up attributes before __init__ has run
            raise AttributeError(name)
        return getattr(self._original, name)

    # isinstance(np.matmul, np.ufunc), inspect.isfunction and help() give the same answers as for the original.
    __class__ = property(lambda self: type(self._original))

    # NumPy passes the original to __array_function__ and __array_ufunc__. A library may have filled its table
    # of overrides with hooks or with originals, so both compare equal.
    def __eq__(self, other: object) -> bool:
        return self is other or self._original is other

    def __hash__(self) -> int:
        return hash(self._original)

    def __repr__(self) -> str:
        return repr(self._original)


def _register(kind: type[Hook]) -> None:
    """Let picklers written in Python, which are those of joblib and dill, write hooks of this type by ``_save``."""
    found: list[Any] = [pickle._Pickler]
    while found:
        pickler = found.pop()
        found += pickler.__subclasses__()
        if "dispatch" in vars(pickler):
            pickler.dispatch[kind] = _save


def _save(pickler: Any, hook: Hook) -> None:
    """Write a function of SciPy's as the original: joblib's hash of it, which is that of its pickle, stays the same."""
    original = hook._original
    home = sys.modules.get(getattr(original, "__module__", None) or "")
    if type(original) is types.FunctionType and getattr(home, original.__name__, None) is original:
        pickler.save(original)
        return
    reduced = hook.__reduce__()
    if isinstance(reduced, str):
        pickler.save_global(hook, reduced)
    else:
        pickler.save_reduce(*reduced, obj=hook)


if Gated is not None:

    class GatedHook(Hook, Gated):
        """A hook whose small calls pass a gate before Python code runs."""


def load_row(load: Callable[[], Op]) -> tuple[Op, Callable[..., Any]]:
    """The row, and the function that routes its calls. They are loaded here, not at the start of a program."""
    from trnpy._call.dispatch import routed

    op = load()
    return op, routed(op)


def recorded() -> types.ModuleType:
    """What recording takes, loaded at the first call that is recorded."""
    from trnpy._patch import recorded

    return recorded


def _inside(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, whose own calls of accelerated functions are neither routed nor recorded again."""

    @uncounted
    def inside(*args: Any, **kwargs: Any) -> Any:
        token = own.set(NOTHING)
        try:
            return function(*args, **kwargs)
        finally:
            own.reset(token)

    return inside


def _call(name: str, original: Any, load: Callable[[], Op], row: str) -> Callable[..., Any]:
    """The function that runs when a hook is called.

    A program may make small calls by the hundred thousand. They are counted here, by line, because another function
    call would add a tenth to their time; where trnpy is compiled, most of them pass a gate before this function.
    ``load`` returns the row; it runs at the first call that needs a decision. ``row`` is its name, which reports show.
    """
    of_context, process, policies, report, attention = (
        own.get,
        ProcessActivation,
        _policy.ProcessPolicy,
        _ledger.ProcessLedger,
        Attention,
    )
    memory, getframe, ndarray = Verdicts, sys._getframe, np.ndarray
    small, unseen, look, accelerated = UNSEEN, math.inf, None, None  # no row has a route for so few elements
    covers: Callable[[tuple[Any, ...], dict[str, Any]], bool] | None = None
    lines: dict[int, SmallCalls] = {}  # by the address of the calling instruction in its code object

    def loaded() -> Callable[..., Any]:
        nonlocal small, unseen, look, accelerated, covers
        op, accelerated = load_row(load)
        small, unseen, look, covers = op.small, op.unseen, op.look, op.covers
        return accelerated

    def let_pass(frame: Any, policy: Any, ledger: Any, count: Iterator[object], left: int) -> None:
        """Let the next small calls from this place pass while all settings that decide about them stay."""
        if gate is not None and not attention.apart:
            now = process.activation, policy, ledger, False
            gate._let_pass(frame, of_context(), now, count, left, small, unseen)

    # NumPy's functions call no others by public names.
    direct = original if name.startswith("numpy.") else _inside(original)

    @uncounted
    def call(*args: Any, **kwargs: Any) -> Any:
        here = of_context() or process.activation
        if name not in here.names:
            return original(*args, **kwargs)
        frame, ledger, elements, product = None, report.ledger, 0, 1
        for a in args:
            if type(a) is ndarray:
                size = a.size
                elements += size
                product *= size or 1
            elif a is not None and not isinstance(a, (str, int, float)):
                break
        else:
            if kwargs:
                sizes = in_keywords(kwargs)
                elements += sum(sizes)
                product *= math.prod([size or 1 for size in sizes])
            brief = elements <= small and product <= unseen and len(args) < 5
            if ledger is None:
                if brief and not attention.asked and policies.policy is memory.known.policy:  # ``unattended``
                    if gate is not None:
                        let_pass(getframe(1), policies.policy, None, itertools.repeat(None), sys.maxsize)
                    return direct(*args, **kwargs) if kwargs else direct(*args)
            elif brief or (elements <= small and (look is None or look(args, kwargs) is not True)):
                frame = getframe(1)
                calls = lines.get(id(frame.f_code) + frame.f_lasti)
                policy = _untraced_policy() if attention.apart else policies.policy
                if (
                    calls is None
                    or calls.ledger is not ledger.small
                    or calls.activation is not here
                    or calls.policy is not policy
                ):
                    limit = row, small or UNSEEN, "elements"
                    calls = recorded().small_calls(limit, ledger, frame, here, policy, lines)
                if calls is None:
                    if brief and policy is not None and recorded().unrecorded(name, frame, policy):
                        let_pass(frame, policy, ledger, itertools.repeat(None), sys.maxsize)
                else:
                    if next(calls.count) % calls.every:
                        return direct(*args, **kwargs) if kwargs else direct(*args)  # **{} takes 60 ns
                    if calls.library and ledger.site(frame) is not calls.site:
                        lines.pop(id(frame.f_code) + frame.f_lasti, None)  # another line's counter is to follow
                    elif brief and calls.every > 1:
                        let_pass(frame, policy, ledger, calls.count, calls.every - 1)
                    return ledger.time(calls, direct, args, kwargs)
        caller = (frame or getframe(1)).f_globals.get("__name__", "")
        excluded = here.verdicts.get(caller)
        if excluded or (excluded is None and here.excludes(caller)):
            return recorded().excluded(row, original, caller, args, kwargs)
        run = accelerated or loaded()
        if covers is not None and not covers(args, kwargs):
            return original(*args, **kwargs)
        token = own.set(NOTHING)
        try:
            return run(*args, **kwargs)
        finally:
            own.reset(token)

    settings = (process, "activation"), (policies, "policy"), (report, "ledger"), (attention, "apart")
    gate = None if Gated is None else Gated.__new__(GatedHook, call, direct, own, settings)
    return gate or call


def _untraced_policy() -> _policy.Policy | None:
    """The current policy; None if calls are being traced."""
    return _policy.current_policy() if _trace.get() is None else None


def _method(name: str, original: Any, load: Callable[[], Op]) -> Callable[..., Any]:
    """The function that replaces the product method of SciPy's sparse classes.

    Its caller is the code that used an operator, not SciPy's module that implements the operator.
    """
    process, policies, report, attention, memory = (
        ProcessActivation,
        _policy.ProcessPolicy,
        _ledger.ProcessLedger,
        Attention,
        Verdicts,
    )
    ndarray, getframe = np.ndarray, sys._getframe
    limit = name, SMALL_PRODUCT, "multiply-adds if it were dense"
    lines: dict[int, SmallCalls] = {}
    accelerated = None

    @uncounted
    def inside(run: Callable[..., Any], a: Any, other: Any) -> Any:
        """The result of ``run``, whose own calls of accelerated functions are neither routed nor recorded again."""
        token = own.set(NOTHING)
        try:
            return run(a, other)
        finally:
            own.reset(token)

    @uncounted
    def call(a: Any, other: Any) -> Any:
        nonlocal accelerated
        here = own.get() or process.activation
        if name not in here.names:
            return original(a, other)
        ledger = report.ledger
        if type(other) is ndarray:
            brief = other.size * a._shape[0] < SMALL_PRODUCT
        else:
            brief = type(other) is type(a) and math.prod(other._shape) * a._shape[0] < SMALL_PRODUCT
        if brief and ledger is None and not attention.asked and policies.policy is memory.known.policy:
            return inside(original, a, other)
        frame = getframe(1)
        while frame.f_globals.get("__name__") in OPERATORS and frame.f_back is not None:
            frame = frame.f_back
        if brief and ledger is not None:
            calls, policy = lines.get(id(frame.f_code) + frame.f_lasti), _untraced_policy()
            if (
                calls is None
                or calls.ledger is not ledger.small
                or calls.activation is not here
                or calls.policy is not policy
            ):
                calls = recorded().small_calls(limit, ledger, frame, here, policy, lines)
            if calls is not None:
                if next(calls.count) % calls.every:
                    return inside(original, a, other)
                if calls.library and ledger.site(frame) is not calls.site:
                    lines.pop(id(frame.f_code) + frame.f_lasti, None)
                return ledger.time(calls, inside, (original, a, other), {})
        caller = frame.f_globals.get("__name__", "")
        excluded = here.verdicts.get(caller)
        if excluded or (excluded is None and here.excludes(caller)):
            return recorded().excluded(name, original, caller, (a, other), {})
        if accelerated is None:
            accelerated = load_row(load)[1]
        return inside(accelerated, a, other)

    return call
