"""The cache key of a call: everything that a decision about it depends on."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy import ndarray

OPERANDS = 32  # longest list argument, and size of the largest array that may be an option, of a call with a key


def kind_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The cache key of a call: shapes and dtypes of its arrays, values of its options; None if an argument has no key.

    A small array of integers, or of no dimensions, may be an option, such as the axes of tensordot: the key has its
    values. A call with an array as a keyword, such as ``out``, has no key: its writeable flag can differ between calls.
    """
    try:
        kinds = [
            (a.shape, a.dtype) if type(a) is ndarray and a.size > OPERANDS else a if type(a) is str else _kind(a)
            for a in args
        ]
        for name, value in kwargs.items():
            if type(value) is ndarray:
                return None
            kinds += name, _kind(value)
    except _Unknown:
        return None
    return tuple(kinds)


class _Unknown(Exception):
    """This argument has no cache key."""


def _kind(a: Any) -> Any:
    if type(a) is ndarray:
        operand = a.size > OPERANDS or (a.ndim and a.dtype.kind not in "iu")
        return (a.shape, a.dtype) if operand else (a.shape, a.dtype, a.tobytes())
    if type(a) in (list, tuple) and len(a) <= OPERANDS:
        return type(a), *[_kind(x) for x in a]
    if isinstance(a, (str, int, float, complex, np.generic, np.dtype, type, type(None), type(...))):
        return type(a), a  # with the type, because 1 == True
    raise _Unknown
