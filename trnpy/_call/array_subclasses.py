"""Subclasses of numpy.ndarray that change nothing: their calls are decided as those of plain arrays.

Whether a class changes a function is found by calling the function with small arrays of the class and with plain ones.
The results must agree, and their classes are the pattern of later results.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import numpy as np

from trnpy._call.decisions import Form, Op, Problem, prepared
from trnpy._report.reasons import Decision

Args = tuple[Any, ...]
Kwargs = dict[str, Any]
# Attributes of ndarray that a class may define, because NumPy's and SciPy's functions do not use them. A method
# __array_function__ is not among them: it may warn, count or raise, and the small calls here must not be seen.
HARMLESS = """__and__ __array__ __class_getitem__ __dict__ __dir__ __doc__ __format__ __getattr__
    __init_subclass__ __module__ __new__ __or__ __rand__ __reduce__ __repr__ __ror__ __rxor__ __setstate__ __str__
    __subclasshook__ __xor__"""


class Plain(NamedTuple):
    """The arguments of a call as plain arrays, and the conversion of its result."""

    args: Args
    kwargs: Kwargs
    form: Form


class _Shape(NamedTuple):
    """A small operand: its shape, dtype, and whether it is of the class."""

    shape: tuple[int, ...]
    dtype: str
    of_class: bool


def as_plain(function: Callable[..., Any], args: Args, kwargs: Kwargs) -> Plain | None:
    """The call with plain arrays; None if its class may change the call, or if there are several classes."""
    if kwargs.get("out") is not None:  # the result is the very object
        return None
    operands = [a for a in (*args, *kwargs.values()) if isinstance(a, np.ndarray)]
    kinds: set[Any] = {type(a) for a in operands} - {np.ndarray}
    if len(kinds) != 1 or not _harmless(kind := kinds.pop()) or any(getattr(a, "__dict__", None) for a in operands):
        return None
    extents = sorted({n for a in operands for n in a.shape if n > 1})
    small = {0: 0, 1: 1} | {n: i for i, n in enumerate(extents, 2)}

    def shape(a: Any) -> Any:
        if not isinstance(a, np.ndarray):
            return a
        return _Shape(tuple(small[n] for n in a.shape), a.dtype.str, type(a) is kind)

    shapes = tuple(map(shape, args)), tuple((name, shape(a)) for name, a in kwargs.items())
    if not all(isinstance(a, Hashable) for a in shapes[0]):
        return None
    try:
        pattern = _pattern(function, kind, *shapes)
    except TypeError:  # an option cannot be hashed
        return None
    if pattern is None:
        return None
    plain = [a.view(np.ndarray) if isinstance(a, np.ndarray) else a for a in args]
    named = {name: a.view(np.ndarray) if isinstance(a, np.ndarray) else a for name, a in kwargs.items()}
    return Plain(tuple(plain), named, functools.partial(_classed, pattern, kind))


@functools.cache
def _harmless(kind: Any) -> bool:
    """Whether ``kind`` defines no attribute of ndarray that NumPy's and SciPy's functions use."""
    own = kind.__mro__[: kind.__mro__.index(np.ndarray)]
    return all(name in HARMLESS.split() or not hasattr(np.ndarray, name) for c in own for name in vars(c))


@functools.lru_cache(maxsize=1024)
def _pattern(function: Callable[..., Any], kind: Any, args: Args, kwargs: tuple[tuple[str, Any], ...]) -> Any:
    """For each array of a small result, whether it is of the class; None if the class changes the result."""

    def called(of: type) -> Any:
        def made(a: Any) -> Any:
            return _operand(a, of if a.of_class else np.ndarray) if isinstance(a, _Shape) else a

        return function(*map(made, args), **{name: made(a) for name, a in kwargs})

    try:
        with np.errstate(all="ignore"), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            ours, plain = called(kind), called(np.ndarray)
    except (AttributeError, IndexError, TypeError, ValueError):  # small operands do not suit the options
        return None
    return None if caught else _compared(ours, plain, kind)  # the user's own call will warn


def _operand(a: _Shape, kind: type) -> Any:
    """A vector of increasing numbers, or positive definite matrices, without equal eigenvalues."""
    made = np.zeros(a.shape, a.dtype)
    if len(a.shape) > 1:
        made[..., :, :] = 3 * np.eye(a.shape[-2], a.shape[-1]) * (1 + np.arange(a.shape[-1])) + 0.5
    else:
        made[...] = 1 + np.arange(made.size).reshape(a.shape)
    return made.view(kind)


def _compared(ours: Any, plain: Any, kind: type) -> Any:
    """The pattern of two results; None if they differ in more than the class of arrays."""
    if isinstance(plain, (tuple, list)):
        if type(ours) is not type(plain) or len(ours) != len(plain):
            return None
        found = [_compared(*pair, kind) for pair in zip(ours, plain, strict=True)]
        return None if None in found else tuple(found)
    if isinstance(plain, np.ndarray):
        same = type(ours) in (np.ndarray, kind) and ours.dtype == plain.dtype and ours.shape == plain.shape
        return type(ours) is kind if same and _equal(ours, plain) else None
    return False if type(ours) is type(plain) and _equal(ours, plain) else None


def _equal(ours: Any, plain: Any) -> bool:
    a, b = np.asarray(ours).view(np.ndarray), np.asarray(plain)
    return a.tobytes() == b.tobytes()


def _classed(pattern: Any, kind: type, result: Any) -> Any:
    """``result`` with the arrays that ``pattern`` names as instances of the class."""
    if isinstance(pattern, tuple):
        parts = [_classed(p, kind, r) for p, r in zip(pattern, result, strict=True)]
        return type(result)(parts) if type(result) in (tuple, list) else type(result)(*parts)
    return result.view(kind) if pattern and isinstance(result, np.ndarray) else result


def prepared_as_plain(op: Op, args: Args, kwargs: Kwargs) -> tuple[Problem, Form] | Decision | None:
    """As ``prepared``, for a call with instances of a class that changes nothing; None if there is no such call."""
    plain = as_plain(op.reference, args, kwargs)
    if plain is None:
        return None
    may_route = op.look is not None and op.look(plain.args, plain.kwargs) is True
    ready = prepared(op, may_route, plain.args, plain.kwargs)
    if isinstance(ready, Decision):
        return ready
    problem, form = ready
    return problem, plain.form if form is None else lambda result: plain.form(form(result))
