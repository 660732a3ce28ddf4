"""``trnpy.Array``: an array whose operations are recorded, and computed when its values are read.

An Array is a root or a view. A small root holds a NumPy array: operations on it are computed at once, and a view of it
is NumPy's view. A large root holds a node of a graph; a view of it is the list of steps that lead to it. A write to a
large Array gives its root another node, unless no other object shares the memory. Views see the write because they read
the node of their root whenever they are used.
"""

from __future__ import annotations

import importlib
import operator
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from trnpy.xp import _rules
from trnpy.xp._evaluate import followed as at
from trnpy.xp._evaluate import item, write
from trnpy.xp._fields import Held
from trnpy.xp._graph import SCALARS, Node, assigned, compute, leaf, record, settle
from trnpy.xp._nodes import Small, may_change, resting
from trnpy.xp._views import Step, as_dtype, as_options, followed, imag, pattern, real, reshaped

DEVICE = "trnpy"  # of all Arrays: each operation is sent to a device or the host, as for NumPy arrays
_OLDER_DLPACK = np.lib.NumpyVersion(np.__version__) < "2.1.0"  # it does not export read-only arrays
_BASIC = (int, slice, type(None), type(Ellipsis), np.integer)
_new: Any = Held.__new__


class Array(Held):
    """An array of the array API standard whose operations are recorded and computed when its values are read.

    ``np.asarray(x)``, ``float(x)``, ``print(x)`` and ``x.block_until_ready()`` compute the values; values that are
    never read are never computed. Operations on small Arrays are computed at once. Shapes, dtypes and errors in
    arguments are known at once. An error of values, such as a singular matrix, is raised when they are read, with a
    note that names the line that recorded the operation. Slices are views that write through, as in NumPy.
    ``trnpy.asarray`` and the functions of ``trnpy.xp`` create Arrays.

    Examples
    --------
    >>> import trnpy
    >>> x = trnpy.asarray([[1.0, 2.0], [3.0, 4.0]])
    >>> float((x @ x).sum())
    54.0
    """

    # _value: the values of a small root. _node: the node of any other root, or the result of a view's steps on _from.
    __slots__ = ()
    _value: np.ndarray | None
    _node: Any
    _base: Array | None
    _steps: tuple[Step, ...]
    _from: Any

    def __init__(self) -> None:
        raise TypeError("use trnpy.asarray")

    @classmethod
    def _of(cls, x: Any) -> Array:
        """The Array of a node, or of an array that no other object uses."""
        array: Array = _new(cls)
        array._base, array._steps, array._from = None, (), None
        if isinstance(x, Node) or x.size > Small.elements:
            array._value = None
            array._bind(x if isinstance(x, Node) else leaf(x))
        else:
            array._value, array._node = x, None
        return array

    @classmethod
    def _made(cls, values: np.ndarray, lent: bool = False) -> Array:
        """An Array of new values. If a device may compute with it, its operations are recorded."""
        if values.size <= Small.elements and resting():
            return cls._of(values)
        return cls._of(leaf(values, lent=lent))

    @classmethod
    def _copied(cls, values: np.ndarray) -> Array:
        """An Array of values that may change."""
        return cls._of(leaf(values, copy=True)) if values.size > Small.elements else cls._made(values.copy("K"))

    def _bind(self, node: Node) -> None:
        """Give a root the values of a node."""
        if node.holder is not None and node.held:
            node.lent = True  # two Arrays share the values
        else:
            node.holder = weakref.ref(self)
        self._node = node

    # --- Its values as they are now -----------------------------------------------------------------------------------

    def _root(self) -> Array:
        root = self._base
        return self if root is None else root

    def _source(self) -> Any:
        """The source of a view: the array of its root if that is computed, else the node."""
        root = self._root()
        if root._value is not None:
            return root._value
        value = root._node.value
        return root._node if value is None else value

    def _known(self) -> Any:
        """The values, or None if they are not computed yet."""
        source = self._value
        if source is not None:
            return source
        if self._base is None:
            return self._node.value
        source = self._source()
        if type(source) is not np.ndarray:
            return None
        if self._from is not source:
            self._node, self._from = at(source, self._steps), source
        return self._node

    def _operand(self) -> Any:
        """The values of a small Array, or the node of a large one."""
        if self._value is not None:
            return self._value
        root = self._base
        if root is None:
            node = self._node
            if node.value is not None and node.value.size <= Small.elements and resting():
                self._value = node.value.copy("K") if node.lent or node.uses else node.value
                self._node = None
                return self._value
            return node
        if root._value is None:
            root._operand()
        value = self._known()
        if value is not None and (root._value is not None or (value.size <= Small.elements and resting())):
            return value
        if value is not None:
            return followed(root._node, self._steps)
        if self._from is not root._node:
            self._node, self._from = followed(root._node, self._steps), root._node
        return self._node

    def _ready(self) -> np.ndarray:
        """The values, which the caller must not write."""
        value = self._known()
        if value is None:
            value = compute(self._operand())
            known = self._known()
            value = value if known is None else known
        return value  # type: ignore[no-any-return]

    def _part(self, function: Callable[..., Any], options: Any, made: Any = None) -> Array:
        """The view that a NumPy function returns, or a copy if it returns a copy."""
        value = self._known()
        steps = (*self._steps, (function, options))
        view: Array = _new(Array)
        if value is None:
            root = self._root()
            node = self._operand()
            made = pattern(root.shape, root.dtype, steps)
            if made is None:
                return Array._of(record(function, (node,), options, options["shape"], node.dtype))
            view._from, view._node = node if root is self else root._node, None
            view._node = record(function, (node,), as_options(function, options), made.shape, made.dtype)
        else:
            made = at(value, steps[-1:]) if made is None else made
            if type(made) is not np.ndarray or not _shares(made, value):
                return Array._of(np.asarray(made) if made.base is None else made.copy())
            view._node, view._from = made, self._source()
        view._base, view._steps, view._value = self._root(), steps, None
        return view

    # --- Writes -------------------------------------------------------------------------------------------------------

    def _memory(self) -> np.ndarray | None:
        """The memory of the root, for writing; None if the write must be recorded."""
        root = self._root()
        root._operand()
        target = root._value
        if target is not None:
            if not target.flags.writeable:
                target = root._value = target.copy("K")
        elif root._node.uses or root._node.lent:
            return None
        else:
            target = root._node.value
            if target is None:
                return None
        return target

    def _write(self, key: Any, value: Any) -> None:
        """Record a write, which gives the root new values."""
        root = self._root()
        node = root._node
        options = {"steps": self._steps, "key": key}
        root._bind(record(assigned, (node, value), options, node.shape, node.dtype))

    # --- Attributes ---------------------------------------------------------------------------------------------------

    @property
    def dtype(self) -> np.dtype:
        value = self._value
        return self._node.dtype if value is None else value.dtype

    @property
    def device(self) -> str:
        return DEVICE

    @property
    def shape(self) -> tuple[int, ...]:
        value = self._value
        return self._node.shape if value is None else value.shape

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return _rules._product(self.shape)

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def _matrix_turned(self) -> Array:
        if self.ndim != 2:
            raise ValueError("T needs two dimensions; use mT for a stack of matrices")
        return self._turned()

    def _turned(self) -> Array:
        value = self._known()
        return self._part(np.matrix_transpose, {}, None if value is None else value.mT)

    @property
    def real(self) -> Array:
        return self._part(real, {})

    @property
    def imag(self) -> Array:
        return self._part(imag, {})

    @property
    def flags(self) -> Any:
        return self._ready().flags

    @property
    def strides(self) -> tuple[int, ...]:
        return self._ready().strides

    def view(self, dtype: Any = None) -> Array:
        """The same memory, as another dtype if one is given."""
        if dtype is None:
            return self._part(item, (Ellipsis,))
        self._ready()
        return self._part(as_dtype, {"dtype": np.dtype(dtype)})

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        xp = importlib.import_module("trnpy.xp")
        if api_version not in (None, *xp.API_VERSIONS):
            raise ValueError(f"array API version {api_version!r}: expected one of {', '.join(xp.API_VERSIONS)}")
        return xp

    # --- Values -------------------------------------------------------------------------------------------------------

    def block_until_ready(self) -> Array:
        """Compute the values, if they are not yet; raise their error, if they have one."""
        self._ready()
        return self

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if dtype is not None and np.dtype(dtype) != self.dtype:
            if copy is False:
                raise ValueError("a copy is needed for another dtype")
            return np.array(self._ready(), dtype)
        return np.array(self._ready()) if copy else self._exposed(copy is None)

    def _exposed(self, copy: bool) -> np.ndarray:
        """The memory, which others may write from now on: operations on it are computed at once, or copy it.

        Values that others also need are copied first if ``copy`` is true; otherwise they must not be written.
        """
        root = self._root()
        memory, node = root._ready(), root._node
        shared = not memory.flags.writeable or (root._value is None and (node.lent or node.uses))
        if shared and not copy:
            return self._shown()
        # A view marks memory that others may write: recorded operations copy it, and no result reuses it.
        root._value, root._node = (memory.copy("K") if shared else memory).view(), None
        return self._ready().view()

    def _shown(self) -> np.ndarray:
        """The values as a read-only array that later writes do not change."""
        root, values = self._root(), self._ready()
        if root._value is not None and root._value.flags.writeable:  # others may also write it if it was exposed
            values = values.copy("K")
        elif root._value is None:
            root._node.lent = True
        values = values.view()
        values.flags.writeable = False
        return values

    def __bool__(self) -> bool:
        return bool(self._ready())

    def __int__(self) -> int:
        return int(self._ready())

    def __float__(self) -> float:
        return float(self._ready())

    def __complex__(self) -> complex:
        return complex(self._ready())

    def __index__(self) -> int:
        return operator.index(self._ready())

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of unsized object")
        return self.shape[0]

    def __iter__(self) -> Iterator[Array]:
        if not self.shape:
            raise TypeError("iteration over a 0-d array")
        self._settle()
        return iter([self[i] for i in range(len(self))])

    def _settle(self) -> None:
        """Compute the values, or keep their error, which is raised when an element is read."""
        if self._known() is None:
            settle(self._operand())

    def __contains__(self, value: Any) -> bool:
        return value in self._ready()

    def __repr__(self) -> str:
        return np.array_repr(self._ready()).replace("array(", "Array(", 1)

    def __str__(self) -> str:
        return str(self._ready())

    def __format__(self, spec: str) -> str:
        return format(self._ready()[()], spec)

    def __reduce__(self) -> Any:
        return _unpickled, (self._ready(),)

    def copy(self, order: str = "C") -> Array:
        """The values as another Array."""
        return Array._of(_rules.elementwise(_copied, self._operand()))

    def tolist(self) -> Any:
        return self._ready().tolist()

    def item(self, *args: Any) -> Any:
        return self._ready().item(*args)

    # --- Other libraries ----------------------------------------------------------------------------------------------

    def to_device(self, device: Any, /, *, stream: Any = None) -> Array:
        if device != DEVICE or stream is not None:
            raise ValueError(f"device {device!r}, stream {stream!r}: expected {DEVICE!r} without a stream")
        return self

    def __dlpack__(
        self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None
    ) -> Any:
        if copy or max_version is None or max_version < (1, 0):  # older versions cannot mark it as read-only
            values = np.array(self)
        else:
            values = self._shown()
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
        plain = [x._ready() if isinstance(x, Array) else x for x in inputs]
        if out is not None and any(isinstance(x, Array) for x in out):
            raise TypeError("out is an Array, which is not written in place")
        options = {k: v._ready() if isinstance(v, Array) else v for k, v in options.items()}
        found = getattr(ufunc, method)(*plain, **options)
        return found if out is not None else wrapped(found)

    def __array_function__(self, function: Callable[..., Any], types: Any, args: Any, kwargs: Any) -> Any:
        return importlib.import_module("trnpy.xp._numpy").call(function, args, kwargs)

    # --- Elements -----------------------------------------------------------------------------------------------------

    def _getitem(self, key: Any, /) -> Array:
        items = key if type(key) is tuple else (key,)
        if not _is_basic(items):
            return Array._of(_rules.at_once(item, self._operand(), key=_host(key)))
        if len(items) == self.ndim and all(isinstance(x, (int, np.integer)) for x in items):
            return self._element(items)
        return self._part(item, items)

    def _element(self, key: tuple[Any, ...]) -> Array:
        """One element: not a view, as in NumPy."""
        value = self._known()
        if value is not None:
            return Array._of(np.asarray(value[key]))
        _rules.outline(self)[key]
        return Array._of(record(item, (self._operand(),), {"key": key}, (), self.dtype))

    def _setitem(self, key: Any, value: Any, /) -> None:
        if type(value) is Array and value._root() is self._root() and self._is_part(value, key):
            self._check(key, None)
            return  # Python assigns the view back that ``x[key] += 1`` has written
        key, new = _host(key), operand(value)
        if new is None:
            new = np.asarray(value)
        target = self._memory()
        if target is None:
            self._check(key, new)
            self._write(key, new)
        else:
            write(target, self._steps, key, compute(new))

    def _is_part(self, view: Array, key: Any) -> bool:
        """Whether a view of the same memory is ``self[key]``."""
        items = key if type(key) is tuple else (key,)
        return _is_basic(items) and view._steps == (*self._steps, (item, items))

    def _check(self, key: Any, new: Any) -> None:
        """Raise NumPy's error for an assignment that does not fit."""
        root = self._root()
        view = pattern(root.shape, root.dtype, self._steps)
        if view is not None and not view.flags.writeable:
            raise ValueError("assignment destination is read-only")
        _rules.assignable(_rules.outline(self)[key], new.shape if isinstance(new, (Node, np.ndarray)) else ())

    def astype(self, dtype: Any, copy: bool = True) -> Array:
        """The values in another dtype."""
        if not copy and self.dtype == np.dtype(dtype):
            return self
        return Array._of(_rules.cast(self._operand(), np.dtype(dtype)))

    def reshape(self, *shape: Any) -> Array:
        """The values in another shape: a view if that needs no copy."""
        wanted = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
        return self._reshaped(wanted)

    def _reshaped(self, shape: Any) -> Array:
        size, wanted = self.size, tuple([operator.index(n) for n in shape])
        if wanted.count(-1) == 1 and (known := -_rules._product(wanted)) > 0 and size % known == 0:
            wanted = tuple([size // known if n == -1 else n for n in wanted])
        if _rules._product(wanted) != size or min(wanted, default=0) < 0:
            np.reshape(_rules.outline(self), wanted)  # raises NumPy's error
        self._settle()  # whether it is a view depends on the order of the elements in memory
        return self._part(reshaped, {"shape": wanted})


def _shares(part: np.ndarray, whole: np.ndarray) -> bool:
    base = part.base
    return base is not None and (base is whole or base is whole.base or np.may_share_memory(part, whole))


def _copied(x: np.ndarray) -> np.ndarray:
    return x.copy()


def _is_basic(items: tuple[Any, ...]) -> bool:
    """Whether an index makes a view."""
    return all(isinstance(x, _BASIC) and type(x) is not bool for x in items)


def _host(key: Any) -> Any:
    """An index without Arrays."""
    if isinstance(key, tuple):
        return tuple([x._ready() if isinstance(x, Array) else x for x in key])
    return key._ready() if isinstance(key, Array) else key


def _unpickled(values: np.ndarray) -> Array:
    return Array._made(values)


def operand(x: Any) -> Any:
    """The node, the array or the scalar of an operand; None for any other object."""
    if isinstance(x, Array):
        return x._operand()
    if type(x) in SCALARS:
        return x
    if isinstance(x, np.ndarray) and type(x) is np.ndarray and x.dtype.kind in "biufc":
        if x.size <= Small.elements:
            return x.view()  # a view, because no Array owns its memory
        changes = may_change(x)
        return leaf(x, copy=changes, lent=not changes)
    if isinstance(x, np.generic) and x.dtype.kind in "biufc":
        return np.asarray(x)
    return None


def wrapped(found: Any) -> Any:
    """NumPy's results as Arrays."""
    if isinstance(found, (tuple, list)):
        made = [wrapped(x) for x in found]
        return type(found)(*made) if hasattr(found, "_fields") else type(found)(made)
    numeric = isinstance(found, (np.ndarray, np.generic)) and found.dtype.kind in "biufc"
    return Array._made(_apart(np.asarray(found))) if numeric else found


def _apart(found: np.ndarray) -> np.ndarray:
    """The array, or a copy if it may share the memory of another."""
    return found if found.base is None and found.flags.owndata else found.copy("K")


__all__ = ["DEVICE", "Array", "may_change", "operand", "wrapped"]
