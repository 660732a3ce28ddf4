"""``trnpy.Array``: an array whose operations are recorded, and computed when its values are read."""

from __future__ import annotations

import importlib
import operator
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from trnpy.xp import _rules
from trnpy.xp._graph import SCALARS, Counters, Node, assigned, compute, leaf, record, settle

DEVICE = "trnpy"  # all Arrays: where an operation is computed is decided for each, as for NumPy's arrays
_OLDER_DLPACK = np.lib.NumpyVersion(np.__version__) < "2.1.0"  # exports no array that must not be written
_BASIC = (int, slice, type(None), type(Ellipsis), np.integer)


class Array:
    """An array of the array API standard whose operations are recorded and computed when its values are read.

    ``np.asarray(x)``, ``float(x)``, ``print(x)`` and ``x.block_until_ready()`` compute; what nothing reads is never
    computed. Shapes, dtypes and errors in arguments are known at once; an error of values, such as a singular matrix,
    is raised where they are read, with a note that names the line that recorded it. An Array is made by
    ``trnpy.asarray`` and the functions of ``trnpy.xp``.

    Examples
    --------
    >>> import trnpy
    >>> x = trnpy.asarray([[1.0, 2.0], [3.0, 4.0]])
    >>> float((x @ x).sum())
    54.0
    """

    __slots__ = ("__weakref__", "_node")
    _node: Node

    def __init__(self) -> None:
        raise TypeError("use trnpy.asarray")

    @classmethod
    def _of(cls, node: Node) -> Array:
        array: Array = object.__new__(cls)
        array._node = node
        return array

    # --- What it is ---------------------------------------------------------------------------------------------------

    @property
    def dtype(self) -> np.dtype:
        return self._node.dtype

    @property
    def device(self) -> str:
        return DEVICE

    @property
    def shape(self) -> tuple[int, ...]:
        return self._node.shape

    @property
    def ndim(self) -> int:
        return len(self._node.shape)

    @property
    def size(self) -> int:
        return _rules._product(self._node.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def T(self) -> Array:
        if self.ndim != 2:
            raise ValueError("T needs two dimensions; of stacks of matrices, mT is the transpose")
        return self.mT

    @property
    def mT(self) -> Array:
        return Array._of(_rules.viewed(np.matrix_transpose, self._node))

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        xp = importlib.import_module("trnpy.xp")
        if api_version not in (None, *xp.API_VERSIONS):
            raise ValueError(f"array API version {api_version!r}: known are {', '.join(xp.API_VERSIONS)}")
        return xp

    # --- Values -------------------------------------------------------------------------------------------------------

    def block_until_ready(self) -> Array:
        """Compute the values, if they are not yet; raise their error, if they have one."""
        compute(self._node)
        return self

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        values: np.ndarray = compute(self._node)
        if dtype is not None and np.dtype(dtype) != values.dtype:
            if copy is False:
                raise ValueError("a copy is needed for another dtype")
            return values.astype(dtype)
        if copy:
            return values.copy()
        values = values.view()
        values.flags.writeable = False
        return values

    def __bool__(self) -> bool:
        return bool(compute(self._node))

    def __int__(self) -> int:
        return int(compute(self._node))

    def __float__(self) -> float:
        return float(compute(self._node))

    def __complex__(self) -> complex:
        return complex(compute(self._node))

    def __index__(self) -> int:
        return operator.index(compute(self._node))

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of unsized object")
        return self.shape[0]

    def __iter__(self) -> Iterator[Array]:
        if not self.shape:
            raise TypeError("iteration over a 0-d array")
        settle(self._node)
        return iter([self[i] for i in range(len(self))])

    def __contains__(self, value: Any) -> bool:
        return value in np.asarray(self)

    def __repr__(self) -> str:
        return np.array_repr(np.asarray(self)).replace("array(", "Array(", 1)

    def __str__(self) -> str:
        return str(np.asarray(self))

    def __format__(self, spec: str) -> str:
        return format(compute(self._node)[()], spec)

    def __reduce__(self) -> Any:
        return _unpickled, (np.asarray(self),)

    def tolist(self) -> Any:
        return np.asarray(self).tolist()

    def item(self) -> Any:
        return np.asarray(self).item()

    # --- Other libraries ----------------------------------------------------------------------------------------------

    def to_device(self, device: Any, /, *, stream: Any = None) -> Array:
        if device != DEVICE or stream is not None:
            raise ValueError(f"device {device!r}, stream {stream!r}: Arrays know {DEVICE!r} only, without streams")
        return self

    def __dlpack__(
        self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None
    ) -> Any:
        values: np.ndarray = compute(self._node)
        if copy or max_version is None or max_version < (1, 0):  # older ones cannot say that it is not to be written
            values = values.copy()
        else:
            values = np.asarray(self)
        if stream is not None:
            raise ValueError("stream: the values are on the host, which has none")
        if _OLDER_DLPACK:
            return values.copy().__dlpack__()
        return values.__dlpack__(max_version=max_version, dl_device=dl_device)

    def __dlpack_device__(self) -> tuple[int, int]:
        return np.empty(0).__dlpack_device__()  # after evaluation

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        out = options.get("out")
        lazy = method == "__call__" and ufunc.nout == 1 and ufunc.signature is None and not options
        operands = [operand(x) for x in inputs]
        if lazy and not any(x is None for x in operands):
            return Array._of(_rules.elementwise(ufunc, *operands))
        plain = [np.asarray(x) if isinstance(x, Array) else x for x in inputs]
        if out is not None and any(isinstance(x, Array) for x in out):
            raise TypeError("out is an Array, which is not written in place")
        options = {k: np.asarray(v) if isinstance(v, Array) else v for k, v in options.items()}
        found = getattr(ufunc, method)(*plain, **options)
        return found if out is not None else wrapped(found)

    def __array_function__(self, function: Callable[..., Any], types: Any, args: Any, kwargs: Any) -> Any:
        return importlib.import_module("trnpy.xp._numpy").call(function, args, kwargs)

    # --- Elements -----------------------------------------------------------------------------------------------------

    def __getitem__(self, key: Any, /) -> Array:
        items = key if type(key) is tuple else (key,)
        if all(isinstance(x, _BASIC) and type(x) is not bool for x in items):
            return Array._of(_item(self._node, items))
        return Array._of(_rules.at_once(_taken, self._node, key=_host(key)))

    def __setitem__(self, key: Any, value: Any, /) -> None:
        node, key = self._node, _host(key)
        new = operand(value)
        if new is None:
            new = leaf(np.asarray(value), copy=False)
        target = _rules.outline(node)[key]
        given = new.shape if isinstance(new, Node) else ()
        kind = new.dtype if isinstance(new, Node) else type(new)
        if np.broadcast_shapes(given, target.shape) != target.shape:
            raise ValueError(f"could not broadcast input array from shape {given} into shape {target.shape}")
        if isinstance(new, Node) and not np.can_cast(kind, node.dtype, "same_kind"):
            raise TypeError(f"Cannot cast array data from {kind!r} to {node.dtype!r}")
        self._node = record(assigned, (node, new), {"key": key}, node.shape, node.dtype, 2)

    def astype(self, dtype: Any, copy: bool = True) -> Array:
        """The values in another dtype."""
        if not copy and self.dtype == np.dtype(dtype):
            return self
        return Array._of(_rules.cast(self._node, np.dtype(dtype)))

    def reshape(self, *shape: Any) -> Array:
        """The values in another shape."""
        wanted = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
        return Array._of(_rules.reshaped(self._node, wanted))


def _item(node: Node, items: tuple[Any, ...]) -> Node:
    shape = _rules.outline(node)[items].shape
    return record(_taken, (node,), {"key": items}, shape, node.dtype, 3)


def _taken(a: np.ndarray, *, key: Any) -> Any:
    return a[key]


def _host(key: Any) -> Any:
    """An index without Arrays."""
    if isinstance(key, tuple):
        return tuple([np.asarray(x) if isinstance(x, Array) else x for x in key])
    return np.asarray(key) if isinstance(key, Array) else key


def _unpickled(values: np.ndarray) -> Array:
    return Array._of(leaf(values, copy=False))


def operand(x: Any) -> Any:
    """The node or the scalar of an operand; None for what is neither."""
    if isinstance(x, Array):
        return x._node
    if type(x) in SCALARS:
        return x
    if isinstance(x, np.ndarray) and type(x) is np.ndarray and x.dtype.kind in "biufc":
        return leaf(x, copy=may_change(x))
    if isinstance(x, np.generic) and x.dtype.kind in "biufc":
        return leaf(np.asarray(x), copy=False)
    return None


def may_change(values: np.ndarray) -> bool:
    """Whether anybody may write the memory."""
    owner: Any = values
    while isinstance(owner, np.ndarray):
        if owner.flags.writeable:
            return True
        owner = owner.base
    return owner is not None


def wrapped(found: Any) -> Any:
    """NumPy's results as Arrays."""
    if isinstance(found, (tuple, list)):
        made = [wrapped(x) for x in found]
        return type(found)(*made) if hasattr(found, "_fields") else type(found)(made)
    numeric = isinstance(found, (np.ndarray, np.generic)) and found.dtype.kind in "biufc"
    return Array._of(leaf(np.asarray(found), copy=False)) if numeric else found


# --- Operators --------------------------------------------------------------------------------------------------------


def _binary(function: Callable[..., Any], turned: bool = False) -> Callable[[Array, Any], Any]:
    def method(self: Array, other: Any, /) -> Any:
        x = other._node if type(other) is Array else operand(other)
        if x is None:
            return NotImplemented
        node = _rules.elementwise(function, *((x, self._node) if turned else (self._node, x)))
        return Array._of(node)

    return method


def _in_place(function: Callable[..., Any]) -> Callable[[Array, Any], Any]:
    def method(self: Array, other: Any, /) -> Any:
        x = operand(other)
        if x is None:
            return NotImplemented
        node = _rules.elementwise(function, self._node, x)
        if node.shape != self.shape:
            raise ValueError(
                f"non-broadcastable output operand with shape {self.shape} doesn't match the broadcast shape "
                f"{node.shape}"
            )
        if node.dtype != self.dtype:
            if not np.can_cast(node.dtype, self.dtype, "same_kind"):
                name = "power" if function is operator.pow else function.__name__
                raise TypeError(f"Cannot cast ufunc {name!r} output from {node.dtype!r} to {self.dtype!r}")
            node = record(np.ndarray.astype, (node,), {"dtype": self.dtype}, node.shape, self.dtype, 2)
        self._node = node
        return self

    return method


def _unary(function: Callable[..., Any]) -> Callable[[Array], Array]:
    def method(self: Array, /) -> Array:
        return Array._of(_rules.elementwise(function, self._node))

    return method


# ``a ** 2`` is no call of np.power: NumPy multiplies.
_OPERATORS: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "truediv": np.true_divide, "floordiv": np.floor_divide,
    "mod": np.remainder, "pow": operator.pow, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "lshift": np.left_shift, "rshift": np.right_shift,
}  # fmt: skip
_COMPARISONS: dict[str, np.ufunc] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal
}  # fmt: skip
_UNARY: dict[str, np.ufunc] = {"neg": np.negative, "pos": np.positive, "abs": np.absolute, "invert": np.bitwise_not}


def _matmul(self: Array, other: Any, /) -> Any:
    x = operand(other)
    return Array._of(_rules.matmul(self._node, x)) if isinstance(x, Node) else NotImplemented


def _rmatmul(self: Array, other: Any, /) -> Any:
    x = operand(other)
    return Array._of(_rules.matmul(x, self._node)) if isinstance(x, Node) else NotImplemented


def _imatmul(self: Array, other: Any, /) -> Any:
    x = operand(other)
    if not isinstance(x, Node):
        return NotImplemented
    made = _rules.matmul(self._node, x)
    if made.shape != self.shape:
        raise ValueError(f"the product has shape {made.shape}, not {self.shape}")
    self._node = made
    return self


def _numpys(name: str) -> Callable[..., Any]:
    """A method that NumPy's arrays have, with NumPy's arguments."""
    function = getattr(np, name)

    def method(self: Array, *args: Any, **kwargs: Any) -> Any:
        return self.__array_function__(function, (), (self, *args), kwargs)

    method.__doc__ = f"As the method of NumPy's arrays: ``numpy.{name}(x, ...)``."
    return method


def _named(name: str, method: Any) -> None:
    method.__name__, method.__qualname__ = name, f"Array.{name}"
    setattr(Array, name, method)


for _name, _function in _OPERATORS.items():
    _named(f"__{_name}__", _binary(_function))
    _named(f"__r{_name}__", _binary(_function, turned=True))
    _named(f"__i{_name}__", _in_place(_function))
for _name, _function in _COMPARISONS.items():
    _named(f"__{_name}__", _binary(_function))
for _name, _function in _UNARY.items():
    _named(f"__{_name}__", _unary(_function))
for _name, _method in {"__matmul__": _matmul, "__rmatmul__": _rmatmul, "__imatmul__": _imatmul}.items():
    _named(_name, _method)
_NUMPYS = (
    "all", "any", "argmax", "argmin", "clip", "conj", "copy", "dot", "max", "mean", "min", "prod", "ravel", "round",
    "squeeze", "std", "sum", "swapaxes", "take", "trace", "transpose", "var",
)  # fmt: skip
for _name in _NUMPYS:
    _named(_name, _numpys(_name))
Array.__hash__ = None  # type: ignore[assignment]  # as of all arrays: equality is elementwise

__all__ = ["DEVICE", "Array", "Counters", "may_change", "operand", "wrapped"]
