"""Nodes of the graph of recorded operations: the operation, its values, and the users of the values."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterable
from types import CodeType
from typing import Any

import numpy as np

from trnpy._engine.engines import at_rest
from trnpy._settings.policy import current_policy

SCALARS = (bool, int, float, complex)


class Small:
    """The most elements of a small Array, whose operations are computed at once: about the cache of a core (1 MiB).

    For larger Arrays the passes over memory that blocks save outweigh recording (python -m benchmarks arrays).
    """

    elements = 2**17


def resting() -> bool:
    """Whether no device may compute."""
    return at_rest(current_policy())


class GraphCounters:
    """Counts of recorded and computed operations in this process, for tests and reports."""

    recorded = computed = shared = reused = 0  # operations; subexpressions computed once; buffers written again
    copied = 0  # bytes of operands that are kept, because their arrays may change


class Node:
    """One operation: a function of arrays and scalars, or an array (``function`` is None).

    The users of the values are counted here because the interpreter's reference counts differ between versions: an
    Array by a weak reference, uncomputed operations by ``uses``, all others by ``lent``. An operation that was dropped
    unread stays in ``uses``: a buffer may be kept needlessly, but is never overwritten while it is needed.
    """

    __slots__ = (
        "code", "depth", "dtype", "error", "function", "holder", "inputs", "lasti", "lent", "options", "shape", "uses",
        "value",
    )  # fmt: skip

    def __init__(
        self,
        function: Callable[..., Any] | None,
        inputs: tuple[Any, ...],
        options: dict[str, Any],
        shape: tuple[int, ...],
        dtype: np.dtype,
        depth: int = 0,
        code: CodeType | None = None,
        lasti: int = 0,
    ) -> None:
        self.function = function
        self.inputs = inputs  # nodes and Python scalars, in the order of the function's arguments
        self.options = options
        self.shape = shape
        self.dtype = dtype
        self.depth = depth  # of uncomputed operations
        self.code = code  # code object and instruction of the line that recorded it
        self.lasti = lasti
        self.value: Any = None  # an array, or a tuple of arrays if the function has several results
        self.error: Exception | None = None
        self.holder: Any = None  # a weak reference to the Array whose values these are
        self.lent = False  # whether other objects may share the memory of the value
        self.uses = 0  # number of uses as an operand of uncomputed operations

    @property
    def held(self) -> bool:
        """Whether an Array has these values."""
        array = None if self.holder is None else self.holder()
        return array is not None and array._node is self

    @property
    def line(self) -> str:
        """The line that recorded the operation."""
        if self.code is None:
            return ""
        number = _line(self.code, self.lasti)
        text = linecache.getline(self.code.co_filename, number).strip()
        return f"{self.code.co_filename}:{number}" + (f": {text}" if text else "")


def recorded(inputs: Iterable[Any]) -> bool:
    """Whether an operand is a node."""
    for x in inputs:  # noqa: SIM110 (half the time of any)
        if isinstance(x, Node):
            return True
    return False


class Copied(Node):
    """An array that was copied, because its owner may change it."""

    __slots__ = ()

    def __del__(self) -> None:
        GraphCounters.copied -= self.value.nbytes


def _line(code: CodeType, lasti: int) -> int:
    for start, end, line in code.co_lines():
        if start <= lasti < end and line is not None:
            return line
    return code.co_firstlineno


def leaf(array: np.ndarray, *, copy: bool = False, lent: bool = False) -> Node:
    """The node of an array, or of a copy if it may change; ``lent`` if it must not be overwritten."""
    if copy:
        array = _copy(array)
        GraphCounters.copied += array.nbytes
    node = (Copied if copy else Node)(None, (), {}, array.shape, array.dtype)
    node.value, node.lent = array, lent
    return node


def _copy(array: np.ndarray) -> np.ndarray:
    """A copy that stores broadcast elements only once."""
    if 0 not in array.strides:
        return array.copy("K")
    one = array[tuple([slice(None) if step else slice(1) for step in array.strides])].copy()
    return np.broadcast_to(one, array.shape)


def owner(value: np.ndarray) -> Any:
    """The array that owns the memory."""
    while isinstance(value.base, np.ndarray):
        value = value.base
    return value


def may_change(values: np.ndarray) -> bool:
    """Whether the memory may be written through any array."""
    array: Any = values
    while isinstance(array, np.ndarray):
        if array.flags.writeable:
            return True
        array = array.base
    return array is not None
