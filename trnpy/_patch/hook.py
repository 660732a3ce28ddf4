"""Hooks that replace NumPy's and SciPy's functions. A hook calls the original unless it is active for the caller."""

from __future__ import annotations

import functools
import math
import pickle
import pkgutil
import sys
import types
from collections.abc import Callable
from dataclasses import field
from types import FrameType
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from trnpy._base.context_settings import Blocks
from trnpy._base.conventions import OWN
from trnpy._base.records import record
from trnpy._call.fast_path import ENTERED, Entered
from trnpy._call.gate import OPERATORS, Face, Patched, gated, stand_in

try:
    from trnpy._patch import _entry as compiled
except ImportError:  # installed without a C compiler: numpy.matmul is replaced in its module
    compiled = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from trnpy._call.decisions import Op

LIBRARIES = frozenset({"numpy", "scipy"})  # these call the originals, even through their public names
# Rows whose original function is a method. ``@``, ``dot``, ``*`` and ``**`` of SciPy's sparse classes all call it.
METHODS = {"scipy.sparse.matmul": ("scipy.sparse._base", "_spbase", "_matmul_dispatch")}
# Multiply-adds of a product that SciPy takes about 1 ms for. No device is faster, and there is no CPU fast path.
SMALL_PRODUCT = 1_000_000


@record()
class Activation:
    """The names that are accelerated, and the callers that are excluded."""

    names: frozenset[str]
    exclude: frozenset[str] = LIBRARIES  # packages and modules
    verdicts: dict[str, bool] = field(default_factory=dict, compare=False)  # module of the caller -> excluded

    def excludes(self, caller: str) -> bool:
        """Whether calls from module ``caller`` stay original."""
        verdict = self.verdicts.get(caller)
        if verdict is None:
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
    """The module or class of a dotted name, and the attribute in it."""
    if name in METHODS:
        module, owner, attribute = METHODS[name]
        return getattr(sys.modules[module], owner), attribute
    module, _, attribute = name.rpartition(".")
    return sys.modules[module], attribute


def resolve(name: str) -> Any:
    """The object that a dotted name refers to now; None if there is no such attribute."""
    return getattr(*place(name), None)


def enters(name: str, original: Any) -> bool:
    """Whether the original object stays in place and its calls enter the hook of this name."""
    return name == ENTERED and compiled is not None and type(original) is np.ufunc


def behind(name: str, original: Any) -> Any:
    """The unpatched function of ``original``."""
    return compiled.behind(original) if enters(name, original) else original


def active() -> Activation:
    """The activation of this thread or task; if it has none, the activation of the process."""
    return own.get() or ProcessActivation.activation


class Hook(Face):
    """A replacement for a function of NumPy or SciPy that also has its pickle and hash."""

    _name: str  # under which it is patched
    enters: bool  # whether the original stays in place and its calls enter the hook
    placed: Any  # the object that is put in place

    def put(self) -> None:
        """Let calls of the name reach this hook."""
        setattr(*place(self._name), self.placed)
        if self.enters:
            compiled.enter(self)
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

    def __reduce__(self) -> str | tuple[Any, ...]:
        module, _, attribute = self._name.rpartition(".")
        if module == self.__module__ and resolve(self._name) is self:
            return attribute  # pickled as a global of its module: without trnpy it loads the original
        return pkgutil.resolve_name, (f"{module}:{attribute}",)

    # NumPy passes the original to __array_function__ and __array_ufunc__. A library may have filled its table
    # of overrides with hooks or with originals, so both compare equal.
    def __eq__(self, other: object) -> bool:
        return self is other or self._original is other

    def __hash__(self) -> int:
        return hash(self._original)

    def __repr__(self) -> str:
        return repr(self._original)


def _register(kind: type[Hook]) -> None:
    """Let picklers written in Python, such as those of joblib and dill, write hooks of this type with ``_save``."""
    found: list[Any] = [pickle._Pickler]
    while found:
        pickler = found.pop()
        found += pickler.__subclasses__()
        if "dispatch" in vars(pickler):
            pickler.dispatch[kind] = _save


def _save(pickler: Any, hook: Hook) -> None:
    """Write a SciPy function as the original, so that joblib's hash, which is computed from the pickle, is the same."""
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


class Method(Hook):
    """The replacement of SciPy's method for products of sparse matrices."""


HOOK, METHOD = gated(Hook), gated(Method)


def hooked(name: str, original: Any, load: Callable[[], Op], row: str) -> Hook:
    """The hook that replaces ``original`` under ``name``. ``load`` returns its row, whose name is ``row``."""
    method = name in METHODS
    more = (_small_product, (SMALL_PRODUCT, "multiply-adds"), _above_operators) if method else ()
    patched = Patched(name, own, ProcessActivation, NOTHING, *more)
    kinds = (Method, METHOD) if method else (Hook, HOOK)
    hook: Any = stand_in(*kinds, original, load, row, patched, behind(name, original))
    module, _, attribute = name.rpartition(".")
    # SciPy's functions keep the module that defines them, because tools such as joblib use it in names.
    hook.__module__, hook.__name__ = getattr(original, "__module__", None) or module, attribute
    hook._name, hook.enters = name, enters(name, original)
    hook.placed = hook
    if hook.enters:
        hook.placed = original
    elif method and METHOD is None:  # a function, which classes bind like their own
        hook.placed = functools.update_wrapper(type(hook).__call__, original)
    _register(type(hook))
    return cast(Hook, hook)


def _small_product(a: Any, other: Any) -> bool:
    """Whether a sparse matrix and an operand are small enough to run SciPy's function at once.

    Other formats than CSR and CSC, among them BSR with its CPU fast path, count as if they were dense.
    """
    compressed = a.format in ("csr", "csc")
    if type(other) is np.ndarray:
        columns = other.shape[1] if other.ndim == 2 else 1
        return bool((a.data.size * columns if compressed else other.size * a._shape[0]) < SMALL_PRODUCT)
    if type(other) is not type(a):
        return False
    if compressed:  # each stored element meets the stored ones of a row, which are that many on average
        return bool(a.data.size * other.data.size < SMALL_PRODUCT * other._shape[0])
    return bool(math.prod(other._shape) * a._shape[0] < SMALL_PRODUCT)


def _above_operators(frame: FrameType) -> FrameType:
    """The frame that used an operator, outside SciPy's modules that implement it."""
    while frame.f_globals.get("__name__") in OPERATORS and frame.f_back is not None:
        frame = frame.f_back
    return frame
