"""Operations that are recorded and computed when their values are read: nodes of a graph, and their evaluation.

A node is immutable. Its shape and dtype are known when it is recorded; its values are computed by ``compute``, with
all that they need and nothing else, equal subexpressions once.
"""

from __future__ import annotations

import linecache
import operator
import sys
import threading
from collections.abc import Callable
from types import CodeType
from typing import Any

import numpy as np

from trnpy.xp._regions import Region, grouped

MOST_PENDING = 4096  # operations one after another that wait: more are computed without being asked for
LARGEST_COPIES = 2**28  # bytes of copied operands that wait for unread results before these are computed
SCALARS = (bool, int, float, complex)
OWN = 3  # references to a node while it is computed: of the order, of the loop, of the argument of getrefcount
OWN_VALUE = 2  # and to a value that nobody else has: of the loop, of that argument

_lock = threading.RLock()


class Counters:
    """What this process recorded and computed, for tests and reports."""

    recorded = computed = shared = reused = 0  # operations; subexpressions computed once; buffers written again
    copied = 0  # bytes of operands that are kept, because their arrays may change


class Node:
    """One operation: a function of arrays and scalars, or an array (``function`` is None)."""

    __slots__ = ("code", "depth", "dtype", "error", "function", "inputs", "lasti", "options", "shape", "value")

    def __init__(
        self,
        function: Callable[..., Any] | None,
        inputs: tuple[Any, ...],
        options: dict[str, Any],
        shape: tuple[int, ...],
        dtype: np.dtype,
        depth: int,
        code: CodeType | None,
        lasti: int,
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

    @property
    def line(self) -> str:
        """Where the operation was recorded."""
        if self.code is None:
            return ""
        number = _line(self.code, self.lasti)
        text = linecache.getline(self.code.co_filename, number).strip()
        return f"{self.code.co_filename}:{number}" + (f": {text}" if text else "")


class Copied(Node):
    """An array that was copied, because its owner may change it."""

    __slots__ = ()

    def __del__(self) -> None:
        Counters.copied -= self.value.nbytes


def _line(code: CodeType, lasti: int) -> int:
    for start, end, line in code.co_lines():
        if start <= lasti < end and line is not None:
            return line
    return code.co_firstlineno


def leaf(array: np.ndarray, copy: bool) -> Node:
    """The node of an array; a copy of it if it may change."""
    if copy:
        array = array.copy()
        Counters.copied += array.nbytes
    node = (Copied if copy else Node)(None, (), {}, array.shape, array.dtype, 0, None, 0)
    node.value = array
    return node


def record(
    function: Callable[..., Any], inputs: tuple[Any, ...], options: dict[str, Any], shape: tuple[int, ...],
    dtype: np.dtype, caller: int = 3,
) -> Node:  # fmt: skip
    """The node of an operation; ``caller``: how many frames up the line is that recorded it."""
    frame = sys._getframe(caller)
    depth = 1
    for x in inputs:
        if isinstance(x, Node) and x.depth >= depth:
            depth = x.depth + 1
    Counters.recorded += 1
    node = Node(function, inputs, options, shape, dtype, depth, frame.f_code, frame.f_lasti)
    if depth > MOST_PENDING or Counters.copied > LARGEST_COPIES:
        settle(node)
    return node


def compute(node: Node) -> Any:
    """The values of a node; raises what its operation raised, or one that it needs."""
    settle(node)
    if node.error is not None:
        raise node.error
    return node.value


def settle(node: Node) -> None:
    """Compute the values of a node, or find its error."""
    if node.value is None and node.error is None:
        with _lock:
            if node.value is None and node.error is None:
                if any(map(_waits, node.inputs)):
                    _run(_order(node))
                else:
                    _alone(node)


def _waits(x: Any) -> bool:
    return isinstance(x, Node) and x.value is None and x.error is None


def _alone(node: Node) -> None:
    """Compute a node none of whose operands waits."""
    arguments = []
    for x in node.inputs:
        if isinstance(x, Node):
            if x.error is not None:
                node.error = x.error
                return
            x = x.value
        arguments.append(x)
    Counters.computed += 1
    try:
        node.value = _call(node, arguments, None)
    except Exception as error:
        _fail(node, error)
    node.inputs, node.options, node.depth = (), {}, 0


def _fail(node: Node, error: Exception) -> None:
    error.add_note(f"recorded at {node.line}")
    node.error = error


def _order(target: Node) -> list[Node]:
    """What waits for ``target``, each after what it needs, the first operand first."""
    order: list[Node] = []
    seen = {id(target)}
    stack = [(target, iter(target.inputs))]
    while stack:
        node, inputs = stack[-1]
        for x in inputs:
            if id(x) not in seen and _waits(x):
                seen.add(id(x))
                stack.append((x, iter(x.inputs)))
                break
        else:
            order.append(node)
            stack.pop()
    return order


def _key(node: Node, same: dict[int, Node]) -> Any:
    """Equal for operations of equal results; unlike all others where that cannot be said."""
    inputs = tuple([id(same.get(id(x), x)) if isinstance(x, Node) else (type(x), repr(x)) for x in node.inputs])
    try:
        key = (node.function, inputs, tuple(node.options.items()))
        hash(key)
    except TypeError:
        return id(node)
    return key


def _same(order: list[Node]) -> dict[int, Node]:
    """Of equal nodes the first, by the ids of the others."""
    same: dict[int, Node] = {}
    alike: dict[Any, list[Node]] = {}  # by function and first operand, which is quicker to compare than all
    for node in order:
        x = node.inputs[0]
        others = alike.setdefault((node.function, id(same.get(id(x), x))), [])
        if others:
            key = _key(node, same)
            found = next((other for other in others if _key(other, same) == key), None)
            if found is not None:
                same[id(node)] = found
                Counters.shared += 1
                continue
        others.append(node)
    return same


def _run(order: list[Node]) -> None:
    """Compute nodes in their order. Only values that something else refers to are kept."""
    uses = _uses(order, {})
    kept = {id(node) for node in order if sys.getrefcount(node) > uses.get(id(node), 0) + OWN} | {id(order[-1])}
    same = _same(order)
    if same:
        kept |= {id(same[i]) for i in kept if i in same}
        uses = _uses(order, same)
    order, regions, needed = grouped(order, same, kept)
    values: dict[int, Any] = {}
    done: set[int] = set()  # by regions
    for node in order:
        if id(node) in regions:
            done |= _compute_region(regions[id(node)], needed, values, kept)
        if id(node) in same:
            node.value, node.error = same[id(node)].value, same[id(node)].error
        elif id(node) not in done:
            _compute(node, values, same, kept, uses)
        else:
            for x in node.inputs:
                if isinstance(x, Node):
                    _taken(same.get(id(x), x), values, uses)
    for node in order:  # whatever else refers to it
        node.inputs, node.options, node.depth = (), {}, 0


def _uses(order: list[Node], same: dict[int, Node]) -> dict[int, int]:
    """How many operands a node is in ``order``, by id. Of equal nodes the first is in the place of all."""
    uses: dict[int, int] = {}
    for node in order:
        if id(node) not in same:
            for x in node.inputs:
                if isinstance(x, Node):
                    i = id(same.get(id(x), x))
                    uses[i] = uses.get(i, 0) + 1
    return uses


def _taken(x: Node, values: dict[int, Any], left: dict[int, int]) -> tuple[Any, bool]:
    """The value of an operand, None if it failed, and whether this was its last use. Then only the node may keep it."""
    left[id(x)] -= 1
    last = not left[id(x)]
    if x.value is not None:
        return x.value, last
    return (values.pop(id(x), None) if last else values.get(id(x))), last


def _compute_region(region: Region, needed: set[int], values: dict[int, Any], kept: set[int]) -> set[int]:
    """Compute products by a device, if it is to; the ids of the nodes that need no other computation."""
    try:
        found = region.results(needed, values)
    except Exception as error:
        error.add_note(f"recorded at {region.nodes[-1].line}")
        for node in region.nodes:
            node.error = error
        return {id(node) for node in region.nodes}
    if found is None:
        return set()
    for node in region.nodes:
        if id(node) in kept:
            node.value = found[id(node)]
        elif id(node) in found:
            values[id(node)] = found[id(node)]
    Counters.computed += len(region.nodes)
    return {id(node) for node in region.nodes}


def _compute(node: Node, values: dict[int, Any], same: dict[int, Node], kept: set[int], left: dict[int, int]) -> None:
    """Compute one node into ``values``, or into the node itself if it is kept; ``left``: uses that are to come."""
    arguments: list[Any] = []
    spare = None
    for x in node.inputs:
        if isinstance(x, Node):
            x = same.get(id(x), x)
            value, last = _taken(x, values, left)
            if value is None:
                node.error = node.error or x.error
            elif last and type(value) is np.ndarray and value.shape == node.shape and value.dtype == node.dtype:
                others = sys.getrefcount(value) - OWN_VALUE
                if others and arguments:
                    others -= sum([a is value for a in arguments])
                if not others and value.flags.owndata:
                    spare = value  # which no view shares
            x = value
        arguments.append(x)
    if node.error is not None:
        return
    Counters.computed += 1
    try:
        result = _call(node, arguments, spare)
    except Exception as error:
        _fail(node, error)
    else:
        if id(node) in kept:
            node.value = result
        else:
            values[id(node)] = result


def _call(node: Node, arguments: list[Any], spare: np.ndarray | None) -> Any:
    """The result, in the place of ``spare`` if the function can."""
    function: Any = node.function
    if spare is not None:
        elementwise = type(function) is np.ufunc and function.signature is None
        if elementwise or (function is assigned and spare is arguments[0]):
            Counters.reused += 1
            return function(*arguments, out=spare, **node.options)
        if function is operator.pow and spare is arguments[0]:
            Counters.reused += 1
            spare **= arguments[1]
            return spare
    result = function(*arguments, **node.options)
    return result if type(result) is np.ndarray else _arrays(result)


def assigned(a: np.ndarray, value: Any, *, key: Any, out: np.ndarray | None = None) -> np.ndarray:
    """``a`` with ``a[key] = value``."""
    new = a.copy() if out is None else out
    new[key] = value
    return new


def _arrays(result: Any) -> Any:
    """NumPy's scalars as arrays without dimensions, named tuples as tuples."""
    return tuple([np.asarray(x) for x in result]) if isinstance(result, (tuple, list)) else np.asarray(result)
