"""What depends on the version of NumPy and SciPy, asked of the installed one and never of its version number.

*Signatures*: an option that the installed function does not have is refused, so that the function says so itself.

*Forms*: whether a function takes stacks of matrices, lists or a dtype, and without a warning; whether its results come
as a list or as a tuple, and whether a number among them is Python's, NumPy's or an array of no dimensions. The first
call of each kind calls the function with identity matrices of a few elements and the same options; what comes back is
kept and is the pattern of all results of that kind.

*Frames*: to whom a warning points. NumPy and SciPy count frames (``stacklevel``) or pass over those of their own
files (``skip_file_prefixes``), either way to the caller's line. ``uncounted`` keeps trnpy's frames out of both.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Mapping
from types import CodeType, FrameType
from typing import Any, TypeVar, cast

import numpy as np

OPERANDS = frozenset({"a", "b", "A"})  # names of parameters that are matrices, throughout scipy.linalg
PLAIN = frozenset({str, bool, int, type(None)})  # kinds of options that may decide on the form
SOME = 0.5  # in place of every tolerance: the values of an identity matrix are on one side of it

Function = TypeVar("Function", bound=Callable[..., Any])
Call = tuple[tuple[str, type | None, Any], ...]  # name, kind and value of an option; name, None and shape of an operand


class Refused(Exception):
    """The installed function does not take such a call; what it says, or would say."""


# --- Forms ------------------------------------------------------------------------------------------------------------


@functools.cache
def parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """The parameters of ``function`` by name, in their order."""
    return inspect.signature(function).parameters


@functools.cache
def leaves_triangle(cho_factor: Callable[..., Any]) -> bool:
    """Whether the triangle of a that ``cho_factor`` is not asked for is in its result."""
    return bool(cho_factor(np.array([[2.0, 1.0], [1.0, 2.0]]))[0][1, 0])


@functools.cache
def loops(function: Callable[..., Any]) -> bool:
    """Whether ``function`` loops over a stack in Python: then it has no answer for an empty one."""
    operands = [name for name, p in parameters(function).items() if name in OPERANDS and p.default is p.empty]
    try:
        function(*[np.empty((0, 2, 2))] * len(operands))
    except ValueError:
        return True
    return False


def form(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """A result of ``function`` as it comes from a call like this one; Refused where there is none.

    Like: operands of as many dimensions, the same extents equal and longer; the same options that are names, truths or
    whole numbers. Tolerances and selections do not change the form. None where what is required is none of these.
    """
    known, call = parameters(function), cast("list[tuple[str, type | None, Any]]", [])
    if len(args) > len(known) or (kwargs and not kwargs.keys() <= known.keys()):
        raise Refused(f"{function.__name__} has the parameters {', '.join(known)}")
    for name, value in (*zip(known, args, strict=False), *kwargs.items()):
        kind = type(value)
        if name in OPERANDS and value is not None:
            operand = value if kind is np.ndarray else np.asarray(value)
            call.append((name, None, (operand.shape, operand.dtype.char, operand is value)))
        elif kind in PLAIN or isinstance(value, np.generic):
            call.append((name, kind, value))
        elif isinstance(value, float):
            call.append((name, float, SOME))
        elif known[name].default is inspect.Parameter.empty:  # factors, of whose forms there is one
            return None
    result = _form(function, tuple(call))
    if isinstance(result, Refused):
        raise result
    return result


@functools.lru_cache(maxsize=4096)  # as long as a small call
def _form(function: Callable[..., Any], call: Call) -> Any:
    """Of operands of the least extents in the same order, from 2 on: 0 and 1 may be cases of their own."""
    extents = {n for _, kind, value in call if kind is None for n in value[0] if n > 1}
    small = {0: 0, 1: 1} | {n: i for i, n in enumerate(sorted(extents), 2)}
    return _asked(
        function, tuple((name, k, v if k else (tuple(small[n] for n in v[0]), *v[1:])) for name, k, v in call)
    )


@functools.lru_cache(maxsize=1024)
def _asked(function: Callable[..., Any], call: Call) -> Any:
    arguments = {name: value if kind else _identity(*value) for name, kind, value in call}
    try:
        with warnings.catch_warnings(record=True) as caught:  # the caller's call warns, from the caller's line
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
    """``value``, arrays and numbers in any containers, in the containers and of the kinds of ``pattern``."""
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
    """``value`` in ``dtype``, but a complex one where roots of the identity matrix are real."""
    array = np.asarray(value)
    if array.dtype == dtype or not np.can_cast(array.dtype, dtype, "same_kind"):
        return array
    return array.astype(dtype)


# --- Frames -----------------------------------------------------------------------------------------------------------

# CPython's warnings pass over frames of files with both words in their names (Lib/warnings.py, _is_internal_frame;
# Python/_warnings.c, is_internal_filename), so that a warning during an import points at the import statement.
_WORDS = ("importlib", "_bootstrap")


def uncounted(function: Function) -> Function:
    """``function``, whose frames are not counted where a warning looks for the caller; tracebacks still show them."""
    code: Any = function
    code.__code__ = _renamed(code.__code__)
    return function


@functools.cache
def _renamed(code: CodeType) -> CodeType:
    """``code`` under a name that says where it is and has both words."""
    return code.replace(co_filename=f"<{code.co_filename}, passed over by warnings like importlib._bootstrap>")


def counted(frame: FrameType) -> bool:
    """Whether warnings count ``frame``."""
    return not all(word in frame.f_code.co_filename for word in _WORDS)
