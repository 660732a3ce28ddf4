"""Evaluation of recorded operations: their order, equal operations, and reuse of memory for results."""

from __future__ import annotations

import operator
import threading
from typing import Any

import numpy as np

from trnpy.xp._blocks import chained, compute_chain
from trnpy.xp._nodes import GraphCounters, Node, owner
from trnpy.xp._regions import Region, grouped

_lock = threading.RLock()


def compute(node: Any) -> Any:
    """The values of a node; raises the error of its operation or of an operand's. An array is its own value."""
    if not isinstance(node, Node):
        return node
    settle(node)
    if node.error is not None:
        raise node.error
    return node.value


def settle(node: Node) -> None:
    """Compute the values of a node, or store its error."""
    if node.value is None and node.error is None:
        with _lock:
            if node.value is None and node.error is None:
                if any(map(_waits, node.inputs)):
                    _Run(_order(node)).compute()
                else:
                    _alone(node)


def _waits(x: Any) -> bool:
    return isinstance(x, Node) and x.value is None and x.error is None


def _alone(node: Node) -> None:
    """Compute a node whose operands are all computed."""
    failed = next((x.error for x in node.inputs if isinstance(x, Node) and x.error is not None), None)
    if failed is not None:
        node.error = failed
    else:
        GraphCounters.computed += 1
        try:
            node.value = _call(node, [x.value if isinstance(x, Node) else x for x in node.inputs], None)
        except Exception as error:
            _fail(node, error)
        else:
            _lend([node])
    _release([node])


def _release(nodes: list[Node]) -> None:
    """Drop the references of computed nodes to their operands."""
    for node in nodes:
        for x in node.inputs:
            if isinstance(x, Node):
                x.uses -= 1
        node.inputs, node.options, node.depth = (), {}, 0


def _lend(nodes: list[Node]) -> None:
    """Mark nodes that share memory with others, among the computed ones and their operands."""
    owned: dict[int, Node] = {}
    views = []
    for node in nodes:
        for x in (node, *node.inputs):
            values = x.value if isinstance(x, Node) else None
            for value in values if isinstance(values, tuple) else (values,):
                if value is None:
                    continue
                memory = owner(value)
                if memory is not value or value.base is not None:
                    x.lent = True
                    views.append(memory)
                elif owned.setdefault(id(memory), x) is not x:
                    x.lent = owned[id(memory)].lent = True
    for memory in views:
        if id(memory) in owned:
            owned[id(memory)].lent = True


def _fail(node: Node, error: Exception) -> None:
    error.add_note(f"recorded at {node.line}")
    node.error = error


def _order(target: Node) -> list[Node]:
    """The nodes that ``target`` needs and that are not computed, in topological order, the first operand first."""
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
    """A key that is equal for operations with equal results, or unique if equality cannot be decided."""
    inputs = tuple([id(same.get(id(x), x)) if isinstance(x, Node) else (type(x), repr(x)) for x in node.inputs])
    try:
        key = (node.function, inputs, tuple(node.options.items()))
        hash(key)
    except TypeError:
        return id(node)
    return key


def _same(order: list[Node]) -> dict[int, Node]:
    """The first of several equal nodes, by the ids of the others."""
    same: dict[int, Node] = {}
    alike: dict[Any, list[Node]] = {}  # by function and first operand, which are faster to compare than all operands
    for node in order:
        x = node.inputs[0]
        others = alike.setdefault((node.function, id(same.get(id(x), x))), [])
        if others:
            key = _key(node, same)
            found = next((other for other in others if _key(other, same) == key), None)
            if found is not None:
                same[id(node)] = found
                GraphCounters.shared += 1
                continue
        others.append(node)
    return same


class _Run:
    """One evaluation of nodes in order. Only values that others need are kept."""

    def __init__(self, order: list[Node]) -> None:
        self.uses = _uses(order, {})  # as operands in this evaluation
        self.kept = {id(n) for n in order if n.lent or n.uses > self.uses.get(id(n), 0) or n.held} | {id(order[-1])}
        self.same = _same(order)
        self.left = dict(self.uses)  # remaining uses
        if self.same:
            self.kept |= {id(self.same[i]) for i in self.kept if i in self.same}
            self.left = _uses(order, self.same)
        self.order, self.regions, self.needed = grouped(order, self.same, self.kept)
        self.values: dict[int, Any] = {}  # temporary values
        self.sharing: dict[int, int] = {}  # number of values that share the memory of an array, by its id
        self.done: set[int] = set()  # nodes of regions and chains

    def compute(self) -> None:
        inside = {id(n) for region in self.regions.values() for n in region.nodes}
        order, found = chained(self.order, self.same, inside)
        for node in order:
            if id(node) in self.regions:
                self._compute_region(self.regions[id(node)])
            if id(node) in found:
                self._compute_chain(found[id(node)])
            if id(node) in self.same:
                node.value, node.error = self.same[id(node)].value, self.same[id(node)].error
            elif id(node) in self.done:
                for x in node.inputs:
                    if isinstance(x, Node):
                        self._take(self.same.get(id(x), x))
            else:
                self._compute(node)
        _lend(self.order)
        _release(self.order)

    def _take(self, x: Node) -> tuple[Any, bool]:
        """The value of an operand, None if it failed, and whether this was its last use."""
        self.left[id(x)] -= 1
        last = not self.left[id(x)]
        if x.value is not None:
            return x.value, last and not (id(x) in self.kept or x.lent or x.held or x.uses > self.uses.get(id(x), 0))
        value = self.values.get(id(x))
        if last and value is not None:
            del self.values[id(x)]
            self._share(value, -1)
        return value, last

    def _share(self, value: Any, change: int) -> None:
        for one in value if isinstance(value, tuple) else (value,):
            memory = id(owner(one))
            self.sharing[memory] = self.sharing.get(memory, 0) + change

    def _keep(self, node: Node, value: Any) -> None:
        self._share(value, 1)
        if id(node) in self.kept:
            node.value = value
        else:
            self.values[id(node)] = value

    def _compute_region(self, region: Region) -> None:
        """Compute products on a device if it is selected for them."""
        ids = {id(node) for node in region.nodes}
        try:
            found = region.results(self.needed, self.values)
        except Exception as error:
            error.add_note(f"recorded at {region.nodes[-1].line}")
            for node in region.nodes:
                node.error = error
            self.done |= ids
            return
        if found is not None:
            for node in region.nodes:
                if id(node) in found:
                    self._keep(node, found[id(node)])
            GraphCounters.computed += len(region.nodes)
            self.done |= ids

    def _compute_chain(self, nodes: list[Node]) -> None:
        """Compute a chain of elementwise functions block by block."""
        inside = {id(node) for node in nodes}
        operands = {id(x): x for n in nodes for x in map(self._original, n.inputs) if isinstance(x, Node)}
        outside = {i: x for i, x in operands.items() if i not in inside}
        values: dict[int, Any] = {i: self.values.get(i) if x.value is None else x.value for i, x in outside.items()}
        if any(v is None for v in values.values()):  # one has failed
            return
        found = compute_chain(nodes, self._original, values, self.kept | self._needed_after(nodes))
        if found is not None:
            for node in nodes:
                if id(node) in found:
                    self._keep(node, found[id(node)])
            GraphCounters.computed += len(nodes)
            self.done |= inside

    def _original(self, x: Any) -> Any:
        return self.same.get(id(x), x)

    def _needed_after(self, nodes: list[Node]) -> set[int]:
        """Those of the nodes that are operands of other nodes."""
        uses: dict[int, int] = {}
        for node in nodes:
            for x in node.inputs:
                i = id(self._original(x))
                uses[i] = uses.get(i, 0) + 1
        return {id(n) for n in nodes if self.left.get(id(n), 0) > uses.get(id(n), 0)}

    def _fits(self, value: Any, node: Node) -> bool:
        """Whether the result of a node fits the memory of a value that is no longer needed."""
        fits = type(value) is np.ndarray and value.shape == node.shape and value.dtype == node.dtype
        return fits and value.flags.owndata and not self.sharing.get(id(value))

    def _compute(self, node: Node) -> None:
        """Compute one node."""
        arguments: list[Any] = []
        spare = None
        for x in node.inputs:
            if isinstance(x, Node):
                x = self.same.get(id(x), x)
                value, last = self._take(x)
                if value is None:
                    node.error = node.error or x.error
                elif last and self._fits(value, node):
                    spare = value
                x = value
            arguments.append(x)
        if node.error is not None:
            return
        GraphCounters.computed += 1
        try:
            result = _call(node, arguments, spare)
        except Exception as error:
            _fail(node, error)
        else:
            self._keep(node, result)


def _uses(order: list[Node], same: dict[int, Node]) -> dict[int, int]:
    """The number of uses of each node as an operand in ``order``, by id. The first of equal nodes stands for all."""
    uses: dict[int, int] = {}
    for node in order:
        if id(node) not in same:
            for x in node.inputs:
                if isinstance(x, Node):
                    i = id(same.get(id(x), x))
                    uses[i] = uses.get(i, 0) + 1
    return uses


def _call(node: Node, arguments: list[Any], spare: np.ndarray | None) -> Any:
    """The result, written into ``spare`` if the function supports it."""
    function: Any = node.function
    if spare is not None:
        elementwise = type(function) is np.ufunc and function.signature is None
        if elementwise or (function is assigned and spare is arguments[0]):
            GraphCounters.reused += 1
            return function(*arguments, out=spare, **node.options)
        if function is operator.pow and spare is arguments[0]:
            GraphCounters.reused += 1
            spare **= arguments[1]
            return spare
    result = function(*arguments, **node.options)
    return result if type(result) is np.ndarray else _arrays(result)


def assigned(a: np.ndarray, value: Any, *, steps: Any, key: Any, out: np.ndarray | None = None) -> np.ndarray:
    """``a`` with ``value`` assigned to ``key`` of the view that ``steps`` make of it."""
    new = a.copy("K") if out is None else out
    write(new, steps, key, value)
    return new


def write(a: np.ndarray, steps: Any, key: Any, value: Any) -> None:
    """Write into a view of an array."""
    view = followed(a, steps)
    if view is a or np.may_share_memory(view, a):
        view[key] = value
    else:  # the view was made of other memory: a reshape copies this array because its elements are in another order
        a.flat[followed(np.arange(a.size).reshape(a.shape), steps)[key]] = value


def item(a: np.ndarray, *, key: Any) -> Any:
    """An element or a part. As in the step to a view, the index takes the place of the options."""
    return a[key]


def followed(a: np.ndarray, steps: Any) -> np.ndarray:
    """The view of an array to which steps lead."""
    for function, options in steps:
        a = a[options] if function is item else function(a, **options)
    return a


def _arrays(result: Any) -> Any:
    """NumPy scalars as 0-d arrays, and named tuples as tuples."""
    return tuple([np.asarray(x) for x in result]) if isinstance(result, (tuple, list)) else np.asarray(result)
