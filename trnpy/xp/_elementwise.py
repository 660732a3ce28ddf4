"""Elementwise functions of one or several operands."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from trnpy.xp import _rules
from trnpy.xp._array import Array
from trnpy.xp._common import array, direct, like, node_of, operand_of
from trnpy.xp._graph import Node

Dtype = Any


def _of_integers(function: np.ufunc) -> Callable[..., Any]:
    """ceil, floor or trunc that returns integers unchanged, as NumPy does since 2.1."""

    @functools.wraps(function)
    def rounded(x: np.ndarray) -> Any:
        return np.positive(x) if x.dtype.kind in "iu" else function(x)

    return rounded


def _unary(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @direct(function, 1)
    @like(function)
    def of_one(x: Array, /) -> Array:
        return Array._of(_rules.elementwise(function, node_of(x)))

    of_one.__name__ = of_one.__qualname__ = name
    return of_one


def _binary(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @direct(function, 2)
    @like(function)
    def of_two(x1: Any, x2: Any, /) -> Array:
        a, b = operand_of(x1), operand_of(x2)
        if not isinstance(a, Node) and not isinstance(b, Node):
            a, b = node_of(x1), node_of(x2)
        return Array._of(_rules.elementwise(function, a, b))

    of_two.__name__ = of_two.__qualname__ = name
    return of_two


abs = _unary("abs", np.abs)
acos = _unary("acos", np.acos)
acosh = _unary("acosh", np.acosh)
asin = _unary("asin", np.asin)
asinh = _unary("asinh", np.asinh)
atan = _unary("atan", np.atan)
atanh = _unary("atanh", np.atanh)
bitwise_invert = _unary("bitwise_invert", np.bitwise_invert)
conj = _unary("conj", np.conj)
cos = _unary("cos", np.cos)
cosh = _unary("cosh", np.cosh)
exp = _unary("exp", np.exp)
expm1 = _unary("expm1", np.expm1)
imag = _unary("imag", np.imag)
isfinite = _unary("isfinite", np.isfinite)
isinf = _unary("isinf", np.isinf)
isnan = _unary("isnan", np.isnan)
log = _unary("log", np.log)
log1p = _unary("log1p", np.log1p)
log2 = _unary("log2", np.log2)
log10 = _unary("log10", np.log10)
logical_not = _unary("logical_not", np.logical_not)
negative = _unary("negative", np.negative)
positive = _unary("positive", np.positive)
real = _unary("real", np.real)
reciprocal = _unary("reciprocal", np.reciprocal)
round = _unary("round", np.round)
sign = _unary("sign", np.sign)
signbit = _unary("signbit", np.signbit)
sin = _unary("sin", np.sin)
sinh = _unary("sinh", np.sinh)
square = _unary("square", np.square)
sqrt = _unary("sqrt", np.sqrt)
tan = _unary("tan", np.tan)
tanh = _unary("tanh", np.tanh)
ceil = _unary("ceil", _of_integers(np.ceil))
floor = _unary("floor", _of_integers(np.floor))
trunc = _unary("trunc", _of_integers(np.trunc))
add = _binary("add", np.add)
atan2 = _binary("atan2", np.atan2)
bitwise_and = _binary("bitwise_and", np.bitwise_and)
bitwise_left_shift = _binary("bitwise_left_shift", np.bitwise_left_shift)
bitwise_or = _binary("bitwise_or", np.bitwise_or)
bitwise_right_shift = _binary("bitwise_right_shift", np.bitwise_right_shift)
bitwise_xor = _binary("bitwise_xor", np.bitwise_xor)
copysign = _binary("copysign", np.copysign)
divide = _binary("divide", np.divide)
equal = _binary("equal", np.equal)
floor_divide = _binary("floor_divide", np.floor_divide)
greater = _binary("greater", np.greater)
greater_equal = _binary("greater_equal", np.greater_equal)
hypot = _binary("hypot", np.hypot)
less = _binary("less", np.less)
less_equal = _binary("less_equal", np.less_equal)
logaddexp = _binary("logaddexp", np.logaddexp)
logical_and = _binary("logical_and", np.logical_and)
logical_or = _binary("logical_or", np.logical_or)
logical_xor = _binary("logical_xor", np.logical_xor)
maximum = _binary("maximum", np.maximum)
minimum = _binary("minimum", np.minimum)
multiply = _binary("multiply", np.multiply)
nextafter = _binary("nextafter", np.nextafter)
not_equal = _binary("not_equal", np.not_equal)
pow = _binary("pow", np.pow)
remainder = _binary("remainder", np.remainder)
subtract = _binary("subtract", np.subtract)


def _clipped(x: np.ndarray, *bounds: Any, given: tuple[bool, bool]) -> Any:
    """x within bounds, in the dtype of x."""
    left = iter(bounds)
    low, high = (next(left) if there else None for there in given)
    if low is None and high is None:
        return np.positive(x) if x.dtype.kind != "b" else x.copy()
    return np.clip(x, low, high).astype(x.dtype, copy=False)


@like(np.clip)
def clip(x: Array, /, min: Any = None, max: Any = None) -> Array:
    given = (min is not None, max is not None)
    bounds = [operand_of(b) for b in (min, max) if b is not None]
    return array(_rules.elementwise(_clipped, node_of(x), *bounds, given=given))


@direct(np.where, 3)
@like(np.where)
def where(condition: Array, x1: Any = None, x2: Any = None, /) -> Any:
    if x1 is None and x2 is None:  # as NumPy, which scikit-learn relies on
        return tuple([array(found) for found in _rules.at_once(np.nonzero, node_of(condition))])
    return array(_rules.elementwise(np.where, node_of(condition), operand_of(x1), operand_of(x2)))


__all__ = [
    "abs",
    "acos",
    "acosh",
    "add",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "bitwise_and",
    "bitwise_invert",
    "bitwise_left_shift",
    "bitwise_or",
    "bitwise_right_shift",
    "bitwise_xor",
    "ceil",
    "clip",
    "conj",
    "copysign",
    "cos",
    "cosh",
    "divide",
    "equal",
    "exp",
    "expm1",
    "floor",
    "floor_divide",
    "greater",
    "greater_equal",
    "hypot",
    "imag",
    "isfinite",
    "isinf",
    "isnan",
    "less",
    "less_equal",
    "log",
    "log1p",
    "log2",
    "log10",
    "logaddexp",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "maximum",
    "minimum",
    "multiply",
    "negative",
    "nextafter",
    "not_equal",
    "positive",
    "pow",
    "real",
    "reciprocal",
    "remainder",
    "round",
    "sign",
    "signbit",
    "sin",
    "sinh",
    "sqrt",
    "square",
    "subtract",
    "tan",
    "tanh",
    "trunc",
    "where",
]
