"""Differences between versions of NumPy and SciPy, found by calling the installed one, never from version numbers.

*Signatures*: a call with an option that the installed function lacks is refused; the function then raises the error.

*Forms*: whether a function accepts stacks of matrices, lists or a dtype, without a warning; whether its results are a
list or a tuple, and whether a number among them is Python's, NumPy's or a zero-dimensional array. The first call of
each form calls the function with small identity matrices and the same options; its result is cached as the pattern
of all results of that form.

*Frames*: the line that a warning names. NumPy and SciPy find the caller's line by counting frames (``stacklevel``) or
by skipping those of their own files (``skip_file_prefixes``). ``uncounted`` hides trnpy's frames from both.
"""

from __future__ import annotations

import functools
import inspect
import linecache
import warnings
from collections.abc import Callable, Mapping, Sequence
from types import CodeType, FrameType
from typing import Any, TypeVar, cast

import numpy as np

OWN = frozenset({"trnpy", "nkisim"})  # packages whose own calls of NumPy belong to a call that is already decided
OPERANDS = frozenset({"a", "b", "A"})  # names of parameters that are matrices, throughout scipy.linalg
PLAIN = frozenset({str, bool, int, type(None)})  # types of options that may affect the form
SOME = 0.5  # replaces every tolerance: elements of an identity matrix are clearly above or below it

Function = TypeVar("Function", bound=Callable[..., Any])
Call = tuple[tuple[str, type | None, Any], ...]  # name, kind and value of an option; name, None and shape of an operand


class Refused(Exception):
    """The installed function rejects such a call; the message is the function's, if it has one."""


# --- Forms ------------------------------------------------------------------------------------------------------------


@functools.cache
def parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """The parameters of ``function`` by name, in order."""
    return inspect.signature(function).parameters


# Types of values that an option treats like its default's type. The installed function judges all others.
ORDINARY: dict[type, tuple[type, ...]] = {
    bool: (bool, int), str: (str,),
    int: (int, float, np.integer, list, tuple, str),  # trans may be 0 or "N", tol 0 or 1e-6
}  # fmt: skip
STRINGS = frozenset({"assume_a", "driver", "lapack_driver"})  # options that are strings, None by default


@functools.cache
def _options(function: Callable[..., Any]) -> tuple[tuple[int, str, tuple[type, ...]], ...]:
    """Position, name and normal types of each option of ``function`` whose default is a flag, a string or an int."""
    if str(getattr(function, "__module__", "")).partition(".")[0] not in ("numpy", "scipy"):
        return ()
    try:
        known = list(parameters(function).values())
    except ValueError:  # a function in C without a signature
        return ()
    if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in known):  # einsum's ``optimize`` is a flag or a path
        return ()
    types = [(str, type(None)) if p.name in STRINGS else ORDINARY.get(type(p.default), ()) for p in known]
    return tuple([(i, p.name, ordinary) for i, (p, ordinary) in enumerate(zip(known, types, strict=True)) if ordinary])


def unusual(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """The first option of a call whose type differs from its default's: a flag given as an array or a float."""
    for position, name, ordinary in _options(function):
        value = args[position] if position < len(args) else kwargs.get(name, ordinary)
        if value is not ordinary and not isinstance(value, ordinary):
            return f"{name} is given as {type(value).__name__}"
    return ""


@functools.cache
def leaves_triangle(cho_factor: Callable[..., Any], overwrite_a: bool) -> bool:
    """Whether the result of ``cho_factor`` still has the other triangle of its operand."""
    return bool(cho_factor(np.array([[2.0, 1.0], [1.0, 2.0]]), overwrite_a=overwrite_a)[0][1, 0])


@functools.cache
def low_rank_residual(lstsq: Callable[..., Any]) -> float | None:
    """The residuals that ``lstsq`` returns for a tall matrix of low rank; None if it returns none."""
    found = lstsq(np.ones((3, 2)), np.ones((3, 1)))[1]
    return float(found[0]) if len(found) else None


@functools.cache
def loops(function: Callable[..., Any]) -> bool:
    """Whether ``function`` loops over a stack in Python, and so raises ValueError for an empty one."""
    operands = [name for name, p in parameters(function).items() if name in OPERANDS and p.default is p.empty]
    try:
        function(*[np.empty((0, 2, 2))] * len(operands))
    except ValueError:
        return True
    return False


def form(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """A small result of ``function`` in the form that this call returns; Refused if the function rejects the call.

    The form depends on the dimensions of the operands, on which extents are equal and how they are ordered, and on
    options that are strings, booleans or integers, but not on tolerances and selections. None if a required argument
    is neither an operand nor such an option.
    """
    known, call = parameters(function), cast("list[tuple[str, type | None, Any]]", [])
    if len(args) > len(known) or (kwargs and not kwargs.keys() <= known.keys()):
        raise Refused(f"{function.__name__} has the parameters {', '.join(known)}")
    for name, value in (*zip(known, args, strict=False), *kwargs.items()):
        kind = type(value)
        if name in OPERANDS and value is not None:
            operand = value if kind is np.ndarray else np.asarray(value)
            call.append((name, None, (operand.shape, operand.dtype.char, isinstance(value, np.ndarray))))
        elif kind in PLAIN or isinstance(value, np.generic):
            call.append((name, kind, value))
        elif isinstance(value, float):
            call.append((name, float, SOME))
        elif known[name].default is inspect.Parameter.empty:  # factors, which have only one form
            return None
    result = _form(function, tuple(call))
    if isinstance(result, Refused):
        raise result
    return result


@functools.lru_cache(maxsize=4096)  # the call below takes as long as a small call of the function
def _form(function: Callable[..., Any], call: Call) -> Any:
    """`_asked` with the smallest extents in the same order: 0 and 1 stay, as special cases; others start at 2."""
    extents = {n for _, kind, value in call if kind is None for n in value[0] if n > 1}
    small = {0: 0, 1: 1} | {n: i for i, n in enumerate(sorted(extents), 2)}
    return _asked(
        function, tuple((name, k, v if k else (tuple(small[n] for n in v[0]), *v[1:])) for name, k, v in call)
    )


@functools.lru_cache(maxsize=1024)
def _asked(function: Callable[..., Any], call: Call) -> Any:
    arguments = {name: value if kind else _identity(*value) for name, kind, value in call}
    try:
        with warnings.catch_warnings(record=True) as caught:  # the user's own call will warn, and name the user's line
            warnings.simplefilter("always")
            result = function(**arguments)
    except (AttributeError, TypeError, ValueError) as why:
        return Refused(f"{function.__name__} of {', '.join(str(v[0]) for _, k, v in call if k is None)}: {why}")
    return Refused(str(caught[0].message)) if caught else result


def _identity(shape: tuple[int, ...], dtype: str, array: bool) -> Any:
    """Identity matrices (..., m, n), or a vector of ones, as an array or as lists."""
    made = np.ones(shape, dtype)
    if len(shape) > 1:
        made *= np.eye(shape[-2], shape[-1]).astype(dtype)
    return made if array else made.tolist()


def poured(pattern: Any, value: Any) -> Any:
    """The arrays and numbers in ``value``, in the containers and types of ``pattern``."""
    if isinstance(pattern, (list, tuple)):
        parts = value if isinstance(value, (list, tuple)) else (value,)
        filled = [poured(*pair) for pair in zip(pattern, parts, strict=True)]
        plain = type(pattern) in (list, tuple)
        return type(pattern)(filled) if plain else type(pattern)(*filled)
    if isinstance(pattern, np.ndarray):
        return _in(pattern.dtype, value)
    if isinstance(pattern, np.generic):
        return _in(pattern.dtype, value)[()]
    return type(pattern)(value) if isinstance(pattern, (int, float)) else value


def _in(dtype: np.dtype, value: Any) -> np.ndarray:
    """``value`` in ``dtype``. A complex value stays complex: roots of the identity matrix, the pattern, are real."""
    array = np.asarray(value)
    if array.dtype == dtype or not np.can_cast(array.dtype, dtype, "same_kind"):
        return array
    return array.astype(dtype)


# --- Frames -----------------------------------------------------------------------------------------------------------

# CPython's warnings skip frames of files with both words in their names (Lib/warnings.py, _is_internal_frame;
# Python/_warnings.c, is_internal_filename), so that a warning during an import points at the import statement.
_WORDS = ("importlib", "_bootstrap")


def uncounted(function: Function) -> Function:
    """Hide the frames of ``function`` from warnings that look for their caller. Tracebacks still show them."""
    code: Any = function
    code.__code__ = _renamed(code.__code__)
    return function


@functools.cache
def _renamed(code: CodeType) -> CodeType:
    """``code`` with a file name that contains both words and the original name, of which tracebacks find the source."""
    name = f"<{code.co_filename}, passed over by warnings like importlib._bootstrap>"
    linecache.cache[name] = 0, None, _Lines(code.co_filename), name  # type: ignore[assignment]  # a sequence will do
    return code.replace(co_filename=name)


class _Lines(Sequence[str]):
    """The lines of a file, which is read when the first of them is asked for."""

    def __init__(self, file: str) -> None:
        self._file = file

    @functools.cached_property
    def _lines(self) -> list[str]:
        return linecache.getlines(self._file)

    def __getitem__(self, i: Any) -> Any:
        return self._lines[i]

    def __len__(self) -> int:
        return len(self._lines)


def counted(frame: FrameType) -> bool:
    """Whether warnings count ``frame`` when they look for their caller."""
    return not all(word in frame.f_code.co_filename for word in _WORDS)
