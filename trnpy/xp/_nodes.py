"""Nodes of the graph of recorded operations: what an operation is, its values, and who needs them."""

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
    """The most elements of a small Array, whose operations are computed at once: about a cache of a core (1 MiB).

    From there on blocks save passes over memory, which pays for recording (python -m benchmarks arrays).
    """

    elements = 2**17


def resting() -> bool:
    """Whether no device may compute."""
    return at_rest(current_policy())


class GraphCounters:
    """What this process recorded and computed, for tests and reports."""

    recorded = computed = shared = reused = 0  # operations; subexpressions computed once; buffers written again
    copied = 0  # bytes of operands that are kept, because their arrays may change


class Node:
    """One operation: a function of arrays and scalars, or an array (``function`` is None).

    Who needs the values is counted here and not by the interpreter, whose own counts differ between versions: Arrays by
    a weak reference, operations that wait by ``uses``, everybody else by ``lent``. An operation that was dropped unread
    stays in ``uses``, so that a buffer may be kept needlessly, but is never written while somebody needs it.
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
        self.inputs = inputs  # nodes and Python's scalars, in the order of the function's arguments
        self.options = options
        self.shape = shape
        self.dtype = dtype
        self.depth = depth  # of the operations that wait
        self.code = code  # of the line that recorded it, with the instruction
        self.lasti = lasti
        self.value: Any = None  # an array, or a tuple of arrays of functions with several results
        self.error: Exception | None = None
        self.holder: Any = None  # a weak reference to the Array whose values these are
        self.lent = False  # whether the memory of the value may belong to somebody else, too
        self.uses = 0  # as operands of operations that wait

    @property
    def held(self) -> bool:
        """Whether an Array has these values."""
        array = None if self.holder is None else self.holder()
        return array is not None and array._node is self

    @property
    def line(self) -> str:
        """Where the operation was recorded."""
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
    """The node of an array: of a copy if it may change; ``lent`` if it is not ours to write."""
    if copy:
        array = _copy(array)
        GraphCounters.copied += array.nbytes
    node = (Copied if copy else Node)(None, (), {}, array.shape, array.dtype)
    node.value, node.lent = array, lent
    return node


def _copy(array: np.ndarray) -> np.ndarray:
    """A copy that takes no more memory than the elements that differ."""
    if 0 not in array.strides:
        return array.copy("K")
    one = array[tuple([slice(None) if step else slice(1) for step in array.strides])].copy()
    return np.broadcast_to(one, array.shape)


def owner(value: np.ndarray) -> Any:
    """The array that has the memory."""
    while isinstance(value.base, np.ndarray):
        value = value.base
    return value


def may_change(values: np.ndarray) -> bool:
    """Whether anybody may write the memory."""
    array: Any = values
    while isinstance(array, np.ndarray):
        if array.flags.writeable:
            return True
        array = array.base
    return array is not None
