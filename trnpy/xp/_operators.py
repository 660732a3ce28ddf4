"""Operators and methods of ``trnpy.Array`` that call NumPy functions."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from trnpy._einsum import rows
from trnpy.xp import _rules
from trnpy.xp._array import Array, operand
from trnpy.xp._evaluate import item
from trnpy.xp._fields import COMPILED, connect
from trnpy.xp._graph import Node, compute
from trnpy.xp._nodes import Small


def _binary(function: Callable[..., Any], turned: bool = False) -> Callable[[Array, Any], Any]:
    def method(self: Array, other: Any, /) -> Any:
        x = operand(other)
        if x is None:
            return NotImplemented
        me = self._operand()
        return Array._of(_rules.elementwise(function, *((x, me) if turned else (me, x))))

    return method


def _in_place(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    change = getattr(operator, f"i{name}")

    def method(self: Array, other: Any, /) -> Any:
        x = operand(other)
        if x is None:
            return NotImplemented
        if self._root()._value is not None and (memory := self._memory()) is not None:
            part = self._known()
            if part is memory or np.may_share_memory(part, memory):
                change(part, compute(x))
                return self
        node = _rules.elementwise(function, self._operand(), x)
        if node.shape != self.shape:
            raise ValueError(
                f"non-broadcastable output operand with shape {self.shape} doesn't match the broadcast shape "
                f"{node.shape}"
            )
        if node.dtype != self.dtype:
            if not np.can_cast(node.dtype, self.dtype, "same_kind"):
                name = "power" if function is operator.pow else function.__name__
                raise TypeError(f"Cannot cast ufunc {name!r} output from {node.dtype!r} to {self.dtype!r}")
            node = _rules.cast(node, self.dtype)
        return _replaced(self, node)

    return method


def _replaced(x: Array, node: Node) -> Array:
    """The Array, with its values replaced by those of a node."""
    if x._root()._value is not None:
        x[...] = Array._of(node)
    elif x._base is None:
        x._bind(node)
    else:
        x._check(..., node)
        x._write(..., node)
    return x


def _unary(function: Callable[..., Any]) -> Callable[[Array], Array]:
    def method(self: Array, /) -> Array:
        return Array._of(_rules.elementwise(function, self._operand()))

    return method


# NumPy computes ``a ** 2`` as a product and does not call np.power.
_OPERATORS: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "truediv": np.true_divide, "floordiv": np.floor_divide,
    "mod": np.remainder, "pow": operator.pow, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "lshift": np.left_shift, "rshift": np.right_shift,
}  # fmt: skip
_COMPARISONS: dict[str, np.ufunc] = {
    "lt": np.less, "le": np.less_equal, "eq": np.equal, "ne": np.not_equal, "gt": np.greater, "ge": np.greater_equal
}  # fmt: skip
_UNARY: dict[str, np.ufunc] = {"neg": np.negative, "pos": np.positive, "abs": np.absolute, "invert": np.bitwise_not}


def _matmul(self: Array, other: Any, /) -> Any:
    return _product(self._operand(), operand(other))


def _rmatmul(self: Array, other: Any, /) -> Any:
    return _product(operand(other), self._operand())


def _product(a: Any, b: Any) -> Any:
    if type(a) is np.ndarray and type(b) is np.ndarray:
        return Array._of(np.asarray(rows.matmul(a, b)))
    known = isinstance(a, _ARRAYS) and isinstance(b, _ARRAYS)
    return Array._of(_rules.matmul(a, b)) if known else NotImplemented


def _imatmul(self: Array, other: Any, /) -> Any:
    x = operand(other)
    if not isinstance(x, _ARRAYS):
        return NotImplemented
    made = _rules.matmul(self._operand(), x)
    if made.shape != self.shape:
        raise ValueError(f"the product has shape {made.shape}, not {self.shape}")
    return _replaced(self, made)


_ARRAYS = (Node, np.ndarray)


# Methods that may return views or several arrays, or multiply, and an option: these call NumPy's function.
_OTHERWISE = {"squeeze", "swapaxes", "ravel", "diagonal", "nonzero", "dot", "out"}


def _numpys(name: str) -> Callable[..., Any]:
    """A method of NumPy arrays, with NumPy's arguments."""
    function = getattr(np, name)

    def method(self: Array, *args: Any, **kwargs: Any) -> Any:
        value = self._value
        if value is not None and not _OTHERWISE & {name, *kwargs} and not any(type(x) is Array for x in args):
            found = np.asarray(getattr(value, name)(*args, **kwargs))
            return Array._of(found if found.base is None else found.copy("K"))
        return self.__array_function__(function, (), (self, *args), kwargs)

    method.__doc__ = f"As the method of NumPy's arrays: ``numpy.{name}(x, ...)``."
    return method


def _named(name: str, method: Any) -> None:
    method.__name__, method.__qualname__ = name, f"Array.{name}"
    setattr(Array, name, method)


def _transpose(self: Array, *axes: Any) -> Array:
    """The view with permuted axes; by default in the reverse order."""
    return np.transpose(self, (axes if len(axes) > 1 else axes[0]) if axes else None)  # type: ignore[return-value]


def _flatten(self: Array, order: Any = "C") -> Array:
    """A copy in one dimension."""
    return Array._of(_rules.at_once(np.ndarray.flatten, self._operand(), order=order))


def _copy(self: Array, *_: Any) -> Array:
    """The values as another Array."""
    return self.copy()


def _fill(self: Array, value: Any) -> None:
    """Write one value into all elements."""
    self[...] = value


def _sort(self: Array, axis: int = -1, kind: Any = None, order: Any = None, *, stable: Any = None) -> None:
    """Sort the elements in place."""
    self[...] = np.sort(self, axis=axis, kind=kind, order=order, stable=stable)


_METHODS: dict[str, Callable[..., Any]] = {
    "transpose": _transpose, "__copy__": _copy, "__deepcopy__": _copy, "flatten": _flatten, "fill": _fill,
    "sort": _sort,
}  # fmt: skip
_NUMPYS = (
    "all", "any", "argmax", "argmin", "argsort", "clip", "conj", "cumprod", "cumsum", "diagonal", "dot", "max", "mean",
    "min", "nonzero", "prod", "ravel", "repeat", "round", "searchsorted", "squeeze", "std", "sum", "swapaxes", "take",
    "trace", "var",
)  # fmt: skip


def attach() -> None:
    """Give Array its operators and methods."""
    binary = {name: (_binary(f), _binary(f, turned=True)) for name, f in _OPERATORS.items()}
    binary["matmul"] = _matmul, _rmatmul
    changing = {name: _in_place(name, f) for name, f in _OPERATORS.items()} | {"matmul": _imatmul}
    others: dict[str, Callable[..., Any]] = {name: _unary(f) for name, f in _UNARY.items()} | {
        name: _binary(f) for name, f in _COMPARISONS.items()
    }
    others |= {"getitem": Array._getitem, "setitem": Array._setitem}
    turned: dict[str, Any] = {"mT": Array._turned, "T": Array._matrix_turned}
    if COMPILED:
        both = tuple([_either(*pair) for pair in binary.values()])
        slow = (*both, *changing.values(), *others.values(), *turned.values())
        step: tuple[Any, Any] = (np.matrix_transpose, {})
        ufuncs = tuple(_OPERATORS.values())[:4]
        connect(Array, Array._of, item, rows.matmul, step, ufuncs, slow, Small.elements)
    else:
        for name, (forward, reflected) in binary.items():
            _named(f"__{name}__", forward)
            _named(f"__r{name}__", reflected)
            _named(f"__i{name}__", changing[name])
        for name, method in others.items():
            setattr(Array, f"__{name}__", method)
        for name, method in turned.items():
            setattr(Array, name, property(method))
    for name in _NUMPYS:
        _named(name, _numpys(name))
    for name, method in _METHODS.items():
        _named(name, method)
    _named("conjugate", _numpys("conj"))
    Array.__hash__ = None  # type: ignore[assignment]  # like all arrays: equality is elementwise


def _either(forward: Callable[..., Any], reflected: Callable[..., Any]) -> Callable[..., Any]:
    """The operator of two operands if one or both are Arrays."""

    def of_two(a: Any, b: Any) -> Any:
        return forward(a, b) if isinstance(a, Array) else reflected(b, a)

    return of_two
