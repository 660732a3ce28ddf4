"""Abstract arrays: NumPy's functions pass on shapes and dtypes, and count the bytes they would read and write."""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import field
from typing import Any, NamedTuple, TypeVar

import numpy as np

from trnpy._base.records import record
from trnpy._engine.unallocated import ALLOCATED, COMPLEX, FIRST_ADDRESS, REAL, outer_to_inner, reshaped, unallocated
from trnpy._settings.host_steps import BESIDE, OPERATIONS, PASS, STEPS, order_of, order_of_copy

T = TypeVar("T")
Spec = tuple[tuple[int, ...], np.dtype]  # the shape and dtype of a result

# Replaces bfloat16, of which a dry run needs only the size: NumPy has it from ml_dtypes, which takes 11 ms to load.
TWO_BYTES = np.dtype("V2")


FUNCTIONS: dict[str, Callable[..., Any]] = {}  # NumPy's functions other than ufuncs, by name (abstract_functions.py)


class Shape(NamedTuple):
    """The description of an operand, from which a dry run makes an abstract array."""

    shape: tuple[int, ...]
    dtype: np.dtype
    order: str
    at: int  # operands with equal numbers are one array, or an array and its transpose


def shapes_of(value: Any, seen: dict[Any, int]) -> Any:
    """``value``, or the items of a tuple, with each array replaced by its Shape; ``seen``: the arrays so far."""
    if isinstance(value, np.ndarray):
        flags = value.flags
        at = seen.setdefault(_identity(value), len(seen))
        return Shape(value.shape, value.dtype, "F" if flags.f_contiguous and not flags.c_contiguous else "C", at)
    return tuple([shapes_of(item, seen) for item in value]) if type(value) is tuple else value


def _identity(a: np.ndarray) -> Any:
    """A key that is equal for an array and its transpose, also as other objects."""
    axes = a.shape, a.strides
    turned = a.shape[::-1], a.strides[::-1]
    return a.__array_interface__["data"][0], a.dtype, min(axes, turned)


def stand_ins_of(value: Any, made: list[StandIn], count: Count) -> Any:
    """``value``, or the items of a tuple, with an abstract array for each Shape; ``made``: those made so far."""
    if isinstance(value, Shape):
        if value.at >= len(made):
            made.append(new(value.shape, value.dtype, count, value.order))
        x = made[value.at]
        return x.T if x.shape != value.shape or x.flags.c_contiguous != (value.order == "C") else x
    if isinstance(value, Outline):
        return value.stand_in(count)
    return tuple([stand_ins_of(item, made, count) for item in value]) if type(value) is tuple else value


@record()
class Outline:
    """The properties that determine the cost of an operand that is not an array, such as a sparse matrix."""

    resident: frozenset[str]  # methods of the call whose operands are already device-resident

    @property
    def nbytes(self) -> int:
        """The bytes of its elements."""
        raise NotImplementedError

    def stand_in(self, count: Count) -> Valueless:
        """An object without values that replaces the operand in a dry run."""
        raise NotImplementedError


class Valueless:
    """A replacement for an operand that is not an array. Functions that accept it are ``priced``."""

    shape: tuple[int, ...]
    dtype: np.dtype
    count: Count


class Unknown(TypeError):
    """A dry run reached a step that depends on values: the call has no modelled cost."""


@record(frozen=False)
class Count:
    """The host's work, counted by a dry run."""

    # By (kind, size, dtype): the amount of a host step in its unit, or operations of another kind of HostRates.curves.
    work: dict[tuple[str, int, str], float] = field(default_factory=lambda: defaultdict(float))
    address: int = FIRST_ADDRESS  # of the next abstract array without memory

    def moved(self, nbytes: float, turned: bool = False) -> None:
        """NumPy reads and writes ``nbytes`` in all; ``turned``: one array by rows and another by columns."""
        if nbytes:
            kind = "turned copy" if turned else "copy"
            self.work[kind, order_of_copy(nbytes), "B"] += nbytes


class StandIn(np.lib.mixins.NDArrayOperatorsMixin):
    """An abstract array: only its shape, dtype and layout are known.

    NumPy's functions return abstract arrays for abstract arrays and count the bytes that they would read and write.
    Reading a value is an error; an algorithm that needs one gives a default estimate with ``usual``.
    """

    __slots__ = ("__weakref__", "count", "dtype", "few", "identity", "memory", "trusted", "writes")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, memory: np.ndarray, dtype: np.dtype, count: Count, writes: list[int] | None = None) -> None:
        self.memory = memory  # with the layout of the array
        self.dtype = dtype
        self.count = count
        self.writes = [0] if writes is None else writes  # how often the array or a view of it was written to
        # few: some elements of a product with it are sums of few large terms, as for a triangle or I plus a matrix.
        self.few = self.identity = False
        self.trusted = False  # whether it is read-only, so that its contents are not compared

    # --- what an array is ---------------------------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, ...]:
        return self.memory.shape

    @property
    def ndim(self) -> int:
        return self.memory.ndim

    @property
    def size(self) -> int:
        return self.memory.size

    @property
    def strides(self) -> tuple[int, ...]:
        return self.memory.strides

    @property
    def flags(self) -> Any:
        return self.memory.flags

    @property
    def nbytes(self) -> int:
        return self.memory.size * self.dtype.itemsize

    def __len__(self) -> int:
        return len(self.memory)

    def __repr__(self) -> str:
        return f"<stand-in {self.dtype} {self.shape}>"

    def _value(self, *_: Any, **__: Any) -> Any:
        raise Unknown(f"{self!r} has no values: the algorithm must give a default estimate")

    __bool__ = __float__ = __int__ = __index__ = __complex__ = __array__ = item = tolist = _value

    # --- views --------------------------------------------------------------------------------------------------------

    def _view(self, memory: np.ndarray) -> StandIn:
        view = StandIn(memory, self.dtype, self.count, self.writes)
        view.trusted = self.trusted
        view.few = self.few and self._on_diagonal(memory)
        return view

    def _on_diagonal(self, memory: np.ndarray) -> bool:
        """Whether a view begins on the diagonal of this matrix."""
        if self.ndim < 2 or memory.ndim < 2:
            return False
        step = sum(self.memory.strides[-2:])
        return step == 0 or (memory.ctypes.data - self.memory.ctypes.data) % step == 0

    @property
    def T(self) -> StandIn:
        return self._view(self.memory.T)

    @property
    def mT(self) -> StandIn:
        return self._view(self.memory.mT)

    @property
    def real(self) -> StandIn:
        return self._part("re")

    @real.setter
    def real(self, value: Any) -> None:
        self._part("re")[...] = value

    @property
    def imag(self) -> StandIn:
        return self._part("im") if self.dtype.kind == "c" else self._new(self.shape)

    @imag.setter
    def imag(self, value: Any) -> None:
        self._part("im")[...] = value

    def _part(self, name: str) -> StandIn:
        if self.dtype.kind != "c":
            return self
        return StandIn(self.memory[name], real_dtype(self.dtype), self.count, self.writes)

    def swapaxes(self, first: int, second: int) -> StandIn:
        return self._view(self.memory.swapaxes(first, second))

    def transpose(self, *axes: Any) -> StandIn:
        return self._view(self.memory.transpose(*axes))

    def reshape(self, *shape: Any) -> StandIn:
        try:
            return self._view(reshaped(self.memory, shape[0] if len(shape) == 1 else shape))
        except ValueError:
            wanted = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple) else shape
            rest = -math.prod(wanted) if -1 in wanted else 1
            return self._read()._new(tuple(self.size // rest if extent == -1 else extent for extent in wanted))

    def ravel(self, order: str = "C") -> StandIn:
        return self.reshape(-1) if order == "C" else self._view(_memory((self.size,), self.dtype, self.count))

    def view(self, dtype: Any) -> StandIn:
        dtype = np.dtype(dtype)
        shape = (*self.shape[:-1], self.shape[-1] * self.dtype.itemsize // dtype.itemsize)
        return StandIn(_memory(shape, dtype, self.count), dtype, self.count, self.writes)

    def diagonal(self, offset: int = 0, axis1: int = 0, axis2: int = 1) -> StandIn:
        return self._view(self.memory.diagonal(offset, axis1, axis2))

    def __getitem__(self, key: Any) -> StandIn:
        keys = key if isinstance(key, tuple) else (key,)
        if all(k is None or k is Ellipsis or isinstance(k, (int, np.integer, slice)) for k in keys):
            return self._view(self._place(keys))
        result = self._new(_chosen(self.shape, keys))
        self.count.moved(2 * result.nbytes)
        return result

    def _place(self, keys: tuple[Any, ...]) -> np.ndarray:
        """The view with these indices; a zero-dimensional one is an array too, because a NumPy scalar would be read."""
        keys = keys if any(k is Ellipsis for k in keys) else (*keys, Ellipsis)
        place: np.ndarray = self.memory[keys]
        return place

    def __setitem__(self, key: Any, value: Any) -> None:
        keys = key if isinstance(key, tuple) else (key,)
        self.writes[0] += 1
        if all(k is None or k is Ellipsis or isinstance(k, (int, np.integer, slice)) for k in keys):
            place = self._place(keys)
            if isinstance(value, StandIn) and _same(value.memory, place):  # x[...] op= y stores the same view again
                return
            self.few |= isinstance(value, StandIn) and value.few
            size = place.size
        elif any(isinstance(k, StandIn) and k.dtype.kind == "b" for k in keys):
            size = self.size
        else:
            size = math.prod(_chosen(self.shape, keys))
        moved, turned = size * self.dtype.itemsize, False
        if isinstance(value, (StandIn, np.ndarray)):
            np.broadcast_shapes(value.shape[-1:], ())
            moved, turned = moved + value.nbytes, by_columns(value) != by_columns(self)
        self.count.moved(moved, turned)

    def __iter__(self) -> Any:
        return (self[i] for i in range(len(self)))

    def fingerprint(self) -> tuple[int, int]:
        """Like the fingerprint of a real array (``residency``), it changes with each write."""
        if not self.trusted:
            self.count.work["fingerprint", order_of(self.shape), self.dtype.char] += self.nbytes
        return self.writes[0], 0

    # --- copies and reductions ----------------------------------------------------------------------------------------

    def _new(self, shape: tuple[int, ...], dtype: Any = None, order: str = "C") -> StandIn:
        return new(shape, self.dtype if dtype is None else dtype, self.count, order)

    def _read(self) -> StandIn:
        self.count.moved(self.nbytes)
        return self

    def _written(self) -> StandIn:
        self.count.moved(self.nbytes)
        return self

    def astype(self, dtype: Any, order: str = "K", casting: str = "unsafe", copy: bool = True) -> StandIn:
        dtype = np.dtype(dtype)
        ordered = order == "K" or self.memory.flags["C_CONTIGUOUS" if order == "C" else "F_CONTIGUOUS"]
        if not copy and dtype == self.dtype and ordered:
            return self
        memory = _memory(self.shape, dtype, self.count, order, self.memory)
        result = StandIn(memory, dtype, self.count)
        self.count.moved(self.nbytes + result.nbytes, by_columns(self) != by_columns(result))
        result.few = self.few
        return result

    def copy(self, order: str = "C") -> StandIn:
        return self.astype(self.dtype, order)

    def conj(self) -> StandIn:
        result: StandIn = self.__array_ufunc__(np.conjugate, "__call__", self)
        return result

    conjugate = conj

    def _reduced(self, axis: Any = None, keepdims: bool = False, dtype: Any = None, **_: Any) -> StandIn:
        gone = range(self.ndim) if axis is None else (axis,) if isinstance(axis, int) else axis
        gone = {a % self.ndim for a in gone}
        shape = (1 if i in gone else e for i, e in enumerate(self.shape) if keepdims or i not in gone)
        return self._read()._new(tuple(shape), dtype)

    sum = mean = prod = _reduced

    def max(self, axis: Any = None, **options: Any) -> StandIn:
        return self._reduced(axis, options.get("keepdims", False))

    min = max

    def all(self, axis: Any = None, **options: Any) -> StandIn:
        return self._reduced(axis, options.get("keepdims", False), np.bool_)

    any = all

    def trace(self, *_: Any, **__: Any) -> StandIn:
        return self.diagonal(0, -2, -1).sum(axis=-1)

    # --- NumPy's functions --------------------------------------------------------------------------------------------

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        if method != "__call__":
            return inputs[0]._reduced(options.get("axis", 0), options.get("keepdims", False))
        out = options.get("out")
        if ufunc.__name__ == "matmul":  # np.matmul may be patched
            return self._product(inputs[0], inputs[1])
        shape = broadcast(*inputs)
        matrices = [x for x in inputs if isinstance(x, (StandIn, np.ndarray))]
        moved, turned = sum(x.nbytes for x in matrices), len({by_columns(x) for x in matrices if x.ndim > 1}) > 1
        if out is not None:
            (place,) = out
            place.writes[0] += 1
            self.count.moved(moved + place.nbytes, turned)
            return place
        like = next((x.memory for x in inputs if isinstance(x, StandIn) and x.shape == shape), None)
        results = [
            StandIn(_memory(shape, dtype, self.count, "C" if like is None else "K", like), dtype, self.count)
            for dtype in _dtypes(ufunc, inputs)
        ]
        self.count.moved(moved + sum(result.nbytes for result in results), turned)
        whole = [x for x in inputs if isinstance(x, StandIn) and x.ndim > 1]
        few = all(x.few for x in whole) or any(x.identity for x in whole)
        for result in results:
            result.few = few and result.ndim > 1
            result.identity = any(x.identity for x in whole)
        return results[0] if len(results) == 1 else tuple(results)

    def _product(self, a: Any, b: Any) -> StandIn:
        """A B, computed on the host."""
        dtype = np.result_type(a.dtype, b.dtype)
        m, k, n = (a.shape[-2] if a.ndim > 1 else 1), a.shape[-1], (b.shape[-1] if b.ndim > 1 else 1)
        stack = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        shape = (*stack, *a.shape[-2:-1], *(b.shape[-1:] if b.ndim > 1 else ()))
        self.count.work["matmul", round((m * k * n) ** (1 / 3)), dtype.char] += operations(
            2 * m * k * n * math.prod(stack), dtype
        )
        self.count.moved(a.nbytes + b.nbytes)  # takes most of the time of a matrix times a vector
        return self._new(shape, dtype)

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        found = FUNCTIONS.get(function.__name__)
        if found is None:
            raise Unknown(f"numpy.{function.__name__} of an abstract array: not supported in dry runs")
        return found(self, *args, **options)


def by_columns(x: Any) -> bool:
    """Whether the elements of a column are nearer to each other in memory than those of a row."""
    strides = x.strides[-2:]
    return len(strides) == 2 and min(x.shape[-2:]) > 1 and abs(strides[0]) < abs(strides[1])


def real_dtype(dtype: np.dtype) -> np.dtype:
    return np.dtype(dtype.char.lower()) if dtype.kind == "c" else dtype


def operations(flops: float, dtype: np.dtype) -> float:
    """Real operations of ``flops`` multiplications and additions of ``dtype``."""
    return flops * (4 if dtype.kind == "c" else 1)


def _memory(
    shape: tuple[int, ...], dtype: np.dtype, count: Count, order: Any = "C", like: np.ndarray | None = None
) -> np.ndarray:
    """The memory of a new abstract array, in ``order``; "K" is the order of ``like``."""
    form = COMPLEX if dtype.kind == "c" else REAL
    nbytes = math.prod(shape) * form.itemsize
    if nbytes <= ALLOCATED:
        return np.empty(shape, form, order) if like is None else np.empty_like(like, form, order)
    axes = outer_to_inner(len(shape), order, like)
    address, count.address = count.address, count.address + nbytes
    return unallocated(shape, form, address, axes)


def new(shape: tuple[int, ...], dtype: Any, count: Count, order: str = "C") -> StandIn:
    """A new abstract array."""
    dtype = np.dtype(dtype)
    return StandIn(_memory(shape, dtype, count, order), dtype, count)


def _same(a: np.ndarray, b: Any) -> bool:
    return (
        isinstance(b, np.ndarray) and a.shape == b.shape and a.strides == b.strides and a.ctypes.data == b.ctypes.data
    )


def broadcast(*operands: Any) -> tuple[int, ...]:
    return np.broadcast_shapes(*(x.shape if isinstance(x, StandIn) else np.shape(x) for x in operands))


def _chosen(shape: tuple[int, ...], keys: tuple[Any, ...]) -> tuple[int, ...]:
    """The shape of x[keys], where keys may include arrays of integers."""
    keys = tuple(np.asarray(k) if isinstance(k, list) else k for k in keys)
    there = sum(k is not None and k is not Ellipsis for k in keys)
    if Ellipsis not in [k for k in keys if not isinstance(k, (StandIn, np.ndarray))]:
        keys = (*keys, Ellipsis)
    result: list[Any] = []
    axis, advanced, at = 0, [], -1
    for k in keys:
        if k is None:
            result.append(1)
        elif k is Ellipsis:
            rest = len(shape) - there
            result += shape[axis : axis + rest]
            axis += rest
        elif isinstance(k, slice):
            result.append(len(range(*k.indices(shape[axis]))))
            axis += 1
        elif isinstance(k, (StandIn, np.ndarray)):
            if at < 0:
                at = len(result)
            if k.dtype.kind != "b":
                advanced.append(k.shape)
            elif isinstance(k, StandIn):
                raise Unknown("a mask of an abstract array: estimate with `usual` how many elements it keeps")
            else:
                advanced.append((int(np.count_nonzero(k)),))
            axis += 1
        else:
            axis += 1
    return (*result[:at], *np.broadcast_shapes(*advanced), *result[at:])


_TRUTH = frozenset(
    {"equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "isfinite", "isnan", "isinf", "signbit",
     "logical_and", "logical_or", "logical_not"}
)  # fmt: skip


def _dtypes(ufunc: np.ufunc, inputs: tuple[Any, ...]) -> list[np.dtype]:
    """The dtypes of the results of a ufunc."""
    if ufunc.__name__ in _TRUTH:
        return [np.dtype(bool)]
    dtype = np.result_type(*(x.dtype if isinstance(x, (StandIn, np.ndarray, np.generic)) else x for x in inputs))
    if ufunc is np.absolute:
        return [real_dtype(dtype)]
    if ufunc is np.frexp:
        return [dtype, np.dtype("i4")]
    if ufunc is np.ldexp:
        return [inputs[0].dtype if hasattr(inputs[0], "dtype") else np.dtype(float)]
    if dtype.kind in "biu" and ufunc.__name__ in ("divide", "true_divide", "sqrt", "log2", "log", "exp"):
        return [np.dtype(float)]
    return [dtype]


def usual(value: T, otherwise: Any) -> T:
    """``value``, or in a dry run, which has no values, the default estimate ``otherwise``."""
    return otherwise if isinstance(value, StandIn) else value


def few_terms(*operands: Any) -> bool:
    """Whether, in a dry run, an operand makes some elements of a product sums of few large terms."""
    return any(isinstance(x, StandIn) and x.few for x in operands)


def priced(kind: str | Callable[..., str], price: Callable[..., tuple[float, tuple[Any, ...]]]) -> Callable[[T], T]:
    """A decorator for a function of a host library: a dry run counts its cost instead of calling it.

    ``price(*arguments)`` returns the amount and the results. The amount is in the unit of a host step (``kind``, or
    the step that ``kind(*arguments)`` names), or in operations of another key of HostRates.curves; "" means PASS. An
    array result is a shape and a dtype.
    """

    def decorated(function: Any) -> Any:
        @functools.wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            first = next((x for x in args if isinstance(x, (StandIn, Valueless))), None)
            if first is None:
                return function(*args, **options)
            amount, results = price(*args, **options)
            name = (kind if isinstance(kind, str) else kind(*args, **options)) or PASS
            if amount:
                first.count.work[name, _size(name, first.shape), first.dtype.char] += amount
            found = tuple(new(r[0], r[1], first.count) if _is_spec(r) else r for r in results)
            return found[0] if len(found) == 1 else found

        return call

    return decorated


def _size(name: str, shape: tuple[int, ...]) -> int:
    """The size that selects the rate: the order of all elements, or for LAPACK that of one matrix of a stack."""
    step = STEPS.get(name.removeprefix(BESIDE))
    if step is None:
        return min(shape[-2:], default=1)
    return order_of(shape[-2:] if step.unit == OPERATIONS else shape)


def _is_spec(x: Any) -> bool:
    return isinstance(x, tuple) and len(x) == 2 and isinstance(x[1], np.dtype)
