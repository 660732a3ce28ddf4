"""Patching NumPy's and SciPy's functions, and putting the originals back.

A *hook* replaces a function such as ``numpy.einsum`` in its module while at least one patch needs it. ``numpy.matmul``,
which ``a @ b`` also calls, stays in place and its calls enter the hook. An *activation* determines whether the hook
accelerates a call: the activation of the thread or task (``patched``) or else of the process (``patch``). If there is
none, the hook calls the original.
"""

from __future__ import annotations

import contextlib
import copyreg
import functools
import importlib
import pkgutil
import sys
import types
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack

from trnpy._base.context_settings import Block
from trnpy._base.locks import Lock
from trnpy._base.records import record
from trnpy._call.rows import TABLE, row
from trnpy._call.rows import names as names_in
from trnpy._patch.hook import (
    LIBRARIES,
    NOTHING,
    Activation,
    Hook,
    ProcessActivation,
    active,
    behind,
    blocks,
    hooked,
    resolve,
)
from trnpy._report.sampler import Hooked
from trnpy._settings.policy import Policy, Settings, changed, current_policy, policy, process_policy, set_process_policy

if TYPE_CHECKING:
    from trnpy._call.dispatch import Op

Names = str | Iterable[str] | None
P = ParamSpec("P")
R = TypeVar("R")


def _select(names: Names) -> list[str]:
    """The dotted ``names``, by default of all functions; ValueError if one is not an accelerated function.

    Imports the functions' modules, but not their rows: the first call that needs a row loads it.
    """
    known = [f"{namespace}.{name}" for namespace in TABLE for name in names_in(namespace)]
    chosen = known if names is None else [names] if isinstance(names, str) else list(names)
    for name in chosen:
        if name not in known:
            import difflib

            hint = "".join(f"did you mean {near}? " for near in difflib.get_close_matches(name, known, 1))
            listed = ", ".join(sorted(known))
            raise ValueError(f"{name!r} is not an accelerated function: {hint}expected one of {listed}")
    for namespace in {name.rpartition(".")[0] for name in chosen}:
        importlib.import_module(namespace)
    return chosen


@record(frozen=False)
class _Installed:
    """The hooks and patches of this process. They change only under ``lock``."""

    lock: Lock = field(default_factory=Lock)  # re-entrant, because unpatch() calls undo()
    # Hooks are never dropped: names imported while patched refer to them and must work under a later patch.
    hooks: dict[str, Hook] = field(default_factory=dict)
    uses: dict[object, frozenset[str]] = field(default_factory=dict)  # the names that each patch or open block needs
    placed: set[str] = field(default_factory=set)  # names whose hooks have been put in place
    rebound: list[tuple[types.ModuleType, str, Hook]] = field(default_factory=list)
    patches: list[Patch] = field(default_factory=list)  # made by patch() and in force, oldest first
    policy: Policy | None = None  # the process' policy before the first patch that changes it
    reducers: dict[type, Any] = field(default_factory=dict)  # entries of copyreg's table that trnpy has replaced

    @property
    def users(self) -> Counter[str]:
        """How many patches and open blocks need the hook of each name."""
        return Counter(name for names in self.uses.values() for name in names)

    def in_place(self) -> dict[str, Hook]:
        """The hooks that are in use, by name."""
        return {name: self.hooks[name] for name, users in self.users.items() if users}


_here = _Installed()


def _locked(function: Callable[P, R]) -> Callable[P, R]:
    """``function``, which holds the lock while it runs."""
    return functools.partial(_here.lock.run, function)


@_locked
def _install(rows: Mapping[str, Op | None], rebind: bool, exclude: frozenset[str], use: object) -> None:
    """Put the hooks of ``rows`` in place for ``use``. ``_uninstall(use)`` reverts this, even if it was interrupted."""
    users = _here.users
    for name, op in rows.items():
        if not users[name]:
            found, hook = resolve(name), _here.hooks.get(name)
            if hook is None or (found is not hook.placed and found is not hook._original):
                # Other code may have replaced NumPy's function; then its function is the original.
                hook = _here.hooks[name] = hooked(
                    name, found, functools.partial(_referring, name, op, found), name if op is None else op.name
                )
                if not hook.enters:
                    Hooked.originals[id(found)] = found, name
    _here.uses[use] = frozenset(rows)
    for name in rows:
        if name not in _here.placed:
            _here.placed.add(name)
            _here.hooks[name].put()
    _pickle_originals()
    for module, attribute, hook in _escaped(exclude) if rebind else ():
        _here.rebound.append((module, attribute, hook))
        setattr(module, attribute, hook)


def _referring(name: str, op: Op | None, found: Any) -> Op:
    """``op``, or the row of that name, with the function ``found`` as its original."""
    op, function = op or row(name), behind(name, found)
    return op if op.reference is function else replace(op, original=function, theirs=op.reference is not found)


@_locked
def _uninstall(use: object) -> None:
    """End ``use`` and restore the originals whose hooks no other use needs. A second call changes nothing."""
    _here.uses.pop(use, None)
    users, covered = _here.users, []
    for name in sorted(_here.placed):
        hook = _here.hooks[name]
        if not users[name]:
            if not hook.take() and resolve(name) is not hook._original:
                covered.append(name)
            _here.placed.discard(name)
    for entry in [entry for entry in _here.rebound if not users[entry[2]._name]]:
        module, attribute, hook = entry
        if vars(module).get(attribute) is hook:
            setattr(module, attribute, hook._original)
        _here.rebound.remove(entry)
    _pickle_originals()
    if covered:
        warnings.warn(
            f"{', '.join(covered)} has been replaced by {resolve(covered[0])!r} since trnpy patched it, "
            "and stays so; trnpy's hook below it is switched off",
            RuntimeWarning,
            stacklevel=6,
        )


def _pickle_originals() -> None:
    """Make originals picklable while patched: pickle refuses an object if its name refers to another one.

    Python functions need no entry: SciPy defines them in modules that are not patched, where pickle finds them.
    """
    wanted = {type(h._original) for h in _here.in_place().values() if not h.enters} - {types.FunctionType}
    for kind in wanted - _here.reducers.keys():
        _here.reducers[kind] = copyreg.dispatch_table.get(kind)
        copyreg.pickle(kind, functools.partial(_reduce_original, _here.reducers[kind]))
    for kind in _here.reducers.keys() - wanted:
        earlier = _here.reducers[kind]
        if earlier is None:
            copyreg.dispatch_table.pop(kind, None)
        else:
            copyreg.pickle(kind, earlier)
        del _here.reducers[kind]


def _reduce_original(earlier: Callable[[Any], Any] | None, function: Any) -> Any:
    for hook in _here.in_place().values():
        if hook._original is function:
            return pkgutil.resolve_name, (hook._name,)
    return earlier(function) if earlier is not None else function.__reduce__()


def _escaped(exclude: frozenset[str]) -> list[tuple[types.ModuleType, str, Hook]]:
    """Global names outside ``exclude`` that hold an original, because they were imported before the patch."""
    originals = {id(hook._original): hook for hook in _here.in_place().values() if not hook.enters}
    activation = Activation(frozenset(), exclude)
    found = {
        (id(module), attribute): (module, attribute, originals[id(value)])
        for name, module in list(sys.modules.items())
        if isinstance(module, types.ModuleType) and not activation.excludes(name)
        for attribute, value in list(vars(module).items())
        if id(value) in originals
    }
    return list(found.values())


def patched(
    names: Names = None, *, rebind: bool = False, exclude: Iterable[str] = (), **changes: Unpack[Settings]
) -> Block:
    """Accelerate NumPy and SciPy in a block or a decorated function, in this thread or task.

    Parameters
    ----------
    names : str or iterable of str, optional
        Dotted names, such as "numpy.einsum". The default is all accelerated functions.
    rebind : bool, optional
        Whether to replace global names imported before (``from numpy import einsum``) as well, until the block ends.
    exclude : str or iterable of str, optional
        Packages and modules whose own calls are not accelerated. Calls from NumPy and SciPy never are.
    **changes
        Fields of `Policy` for the block.

    Returns
    -------
    Block
        A context manager and decorator. Blocks nest: an inner one adds to the outer one.

    Raises
    ------
    ValueError
        If a name is not an accelerated function, or the value of a setting is wrong.
    TypeError
        If there is no such setting, or its value is of the wrong type.

    Examples
    --------
    >>> import numpy as np, trnpy
    >>> with trnpy.patched("numpy.einsum"):
    ...     trnpy.is_patched("numpy.einsum"), trnpy.is_patched("numpy.dot")
    (True, False)
    """
    rows, excluded = dict.fromkeys(_select(names)), LIBRARIES | _packages(exclude)
    if changes:
        changed(current_policy(), changes, "patched")  # raises when the block is made, not when it is entered
    return Block(functools.partial(_patched, rows, rebind, excluded, changes))


def _packages(exclude: Iterable[str]) -> frozenset[str]:
    return frozenset([exclude] if isinstance(exclude, str) else exclude)


@contextlib.contextmanager
def _patched(
    rows: Mapping[str, Op | None], rebind: bool, exclude: frozenset[str], changes: Mapping[str, Any]
) -> Iterator[None]:
    def added(outer: Activation) -> Activation:
        return Activation(outer.names | rows.keys(), outer.exclude | exclude)

    use = object()
    try:
        try:
            _install(rows, rebind, exclude, use)
            with (
                blocks.block(ProcessActivation.activation, added),
                policy(**changes) if changes else contextlib.nullcontext(),
            ):
                yield
        finally:
            _uninstall(use)
    finally:  # again, because an interrupt may end the first attempt at any line
        _uninstall(use)


def original() -> Block:
    """Call NumPy and SciPy unpatched in a block or a decorated function, in this thread or task.

    Returns
    -------
    Block
        A context manager and decorator.

    Examples
    --------
    >>> import trnpy
    >>> with trnpy.patched("numpy.einsum"), trnpy.original():
    ...     trnpy.is_patched("numpy.einsum")
    False
    """
    return Block(_original)


@contextlib.contextmanager
def _original() -> Iterator[None]:
    with blocks.block(ProcessActivation.activation, lambda outer: NOTHING):
        yield


@record(frozen=True, eq=False)
class Patch:
    """One ``patch()`` of the process. ``undo()`` removes it."""

    names: frozenset[str]
    exclude: frozenset[str]
    changes: Mapping[str, Any]

    def undo(self) -> None:
        """Remove this patch; RuntimeError if it has been undone already."""
        _undo(self)


@_locked
def _undo(patch: Patch | None) -> None:
    """Remove ``patch``, or the latest one."""
    if patch is None:
        if not _here.patches:
            raise RuntimeError("unpatch(): no patch() is in force")
        patch = _here.patches[-1]
    if patch not in _here.patches:
        raise RuntimeError("this patch has been undone already")
    try:
        _leave_out(patch)
        _uninstall(patch)
    finally:  # again, because an interrupt may end the first attempt at any line
        _leave_out(patch)
        _uninstall(patch)


def _leave_out(patch: Patch) -> None:
    """Set the process' activation and policy as without ``patch``."""
    _here.patches[:] = [other for other in _here.patches if other is not patch]
    _settle(bool(patch.changes))


def patch(
    names: Names = None, *, rebind: bool = False, exclude: Iterable[str] = (), **changes: Unpack[Settings]
) -> Patch:
    """Accelerate NumPy and SciPy in the whole process until `unpatch`.

    Parameters
    ----------
    names : str or iterable of str, optional
        Dotted names, such as "numpy.einsum". The default is all accelerated functions.
    rebind : bool, optional
        Whether to replace global names imported before (``from numpy import einsum``) as well. Otherwise they stay as
        they are, and ``patch_status()["escaped"]`` lists them.
    exclude : str or iterable of str, optional
        Packages and modules whose own calls are not accelerated. Calls from NumPy and SciPy never are.
    **changes
        Fields of `Policy` for the process.

    Returns
    -------
    Patch
        ``undo()`` removes this patch.

    Raises
    ------
    ValueError
        If a name is not an accelerated function, or the value of a setting is wrong.
    TypeError
        If there is no such setting, or its value is of the wrong type.

    Notes
    -----
    Patches accumulate: each needs its own `unpatch`, and the last one restores the original functions.

    Examples
    --------
    >>> import numpy as np, trnpy
    >>> einsum = np.einsum
    >>> patch = trnpy.patch(["numpy.einsum", "scipy.linalg.eigh"])
    >>> trnpy.unpatch()
    >>> np.einsum is einsum
    True
    """
    return patch_rows(dict.fromkeys(_select(names)), rebind, LIBRARIES | _packages(exclude), changes)


def patch_namespace(namespace: str) -> None:
    """``patch`` with the rows of an imported module; the first call that needs a row loads it.

    Loading a row imports SciPy. That takes longer than NumPy's own import, and a program with only NumPy does not
    need it.
    """
    patch_rows({f"{namespace}.{name}": None for name in names_in(namespace)}, False, LIBRARIES, {})


@_locked
def patch_rows(
    rows: Mapping[str, Op | None], rebind: bool, exclude: frozenset[str], changes: Mapping[str, Any]
) -> Patch:
    """``patch`` with given rows, which need not be NumPy's or SciPy's. None stands for the row of that name."""
    if changes:
        changed(process_policy(), changes, "patch")
    new = Patch(frozenset(rows), exclude, changes)
    try:
        _install(rows, rebind, exclude, new)
        _here.patches.append(new)
        _settle(bool(changes))
        return new
    except BaseException:  # an interrupt, or a warning about a name that cannot be patched: patch nothing
        _leave_out(new)
        _uninstall(new)
        raise


def unpatch() -> None:
    """Remove the latest `patch`.

    Raises
    ------
    RuntimeError
        If no `patch` is in force.

    Examples
    --------
    >>> import trnpy
    >>> patch = trnpy.patch("numpy.einsum")
    >>> trnpy.unpatch()
    >>> trnpy.is_patched()
    False
    """
    _undo(None)


def _settle(policy_too: bool) -> None:
    """Set the activation of the process, and with ``policy_too`` its policy, from the patches in force."""
    names = frozenset[str]().union(*(p.names for p in _here.patches))
    exclude = LIBRARIES.union(*(p.exclude for p in _here.patches))
    ProcessActivation.activation = Activation(names, exclude) if names else NOTHING
    changing = [p.changes for p in _here.patches if p.changes]
    if policy_too and (changing or _here.policy):
        base = _here.policy = _here.policy or process_policy()  # first: an interrupt may follow at any line
        set_process_policy(functools.reduce(changed, changing, base))
        _here.policy = base if changing else None


def is_patched(name: str | None = None) -> bool:
    """Whether calls made here, in this thread or task, are accelerated.

    Parameters
    ----------
    name : str, optional
        Dotted name of a function. By default, whether any function is accelerated.

    Returns
    -------
    bool
        True inside a `patched` block or after `patch`, but not inside an `original` block.

    Raises
    ------
    ValueError
        If `name` is not an accelerated function.

    Examples
    --------
    >>> import trnpy
    >>> with trnpy.patched("numpy.einsum"):
    ...     trnpy.is_patched(), trnpy.is_patched("numpy.dot")
    (True, False)
    """
    names = active().names
    if name is None:
        return bool(names)
    if name not in _here.hooks:
        _select(name)  # ValueError: not the name of anything that can be patched
    return name in names


def patch_status() -> dict[str, Any]:
    """List which functions are patched, and which names a patch did not reach.

    Returns
    -------
    dict
        ``active``: names accelerated in this thread or task. ``installed``: names patched for any thread. ``escaped``:
        global names, imported before the patch, that still are the original function of the given name. ``rebound``:
        such names that ``rebind=True`` replaced. ``covered``: patched names that other code has replaced since.

    Examples
    --------
    >>> import trnpy
    >>> with trnpy.patched("numpy.einsum"):
    ...     trnpy.patch_status()["active"]
    ['numpy.einsum']
    """
    with _here.lock:
        hooks, here = _here.in_place(), active()
        escaped = _escaped(LIBRARIES | here.exclude)
        return {
            "active": sorted(here.names),
            "installed": sorted(hooks),
            "escaped": {f"{m.__name__}.{attribute}": hook._name for m, attribute, hook in escaped},
            "rebound": {f"{m.__name__}.{attribute}": hook._name for m, attribute, hook in _here.rebound},
            "covered": {name: repr(resolve(name)) for name, hook in hooks.items() if resolve(name) is not hook.placed},
        }
