"""Chains of elementwise functions on large arrays, computed block by block, which saves passes over memory.

NumPy writes every intermediate result of a chain to memory and reads it again. Here a block of elements goes through
the whole chain while it is in the cache. The same NumPy functions compute each element.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from trnpy.xp._nodes import Node

BLOCK = 2**15  # elements of a block: 256 KiB in float64, of which a chain has three or four in a cache of 1 MiB
LEAST = 2 * BLOCK  # elements of an array that is computed in blocks
FUNCTIONS: set[Any] = {operator.pow}  # elementwise functions that are not ufuncs


def _elementwise(node: Node) -> bool:
    function = node.function
    if node.options:
        return False
    return (type(function) is np.ufunc and function.signature is None and function.nout == 1) or function in FUNCTIONS


def chained(
    order: list[Node], same: Mapping[int, Node], regional: set[int]
) -> tuple[list[Node], dict[int, list[Node]]]:
    """``order`` with the nodes of each chain behind one another, and the chains, of two or more nodes, by the id of
    their first node. A node that does not depend on the chain, such as the view of another array, goes before it.
    """
    found: dict[int, list[Node]] = {}
    result: list[Node] = []
    chain: list[Node] = []
    inside: set[int] = set()

    def close() -> None:
        if len(chain) > 1:
            found[id(chain[0])] = chain.copy()
        result.extend(chain)
        chain.clear()
        inside.clear()

    for node in order:
        first = same.get(id(node), node)
        if first is node and id(node) not in regional and _elementwise(node) and _large(node):
            if chain and node.shape != chain[0].shape:
                close()
            chain.append(node)
            inside.add(id(node))
            continue
        needed = {id(first)} if first is not node else {id(same.get(id(x), x)) for x in node.inputs}
        if id(node) in regional or not inside.isdisjoint(needed):
            close()
        result.append(node)
    close()
    return result, found


def _large(node: Node) -> bool:
    return math.prod(node.shape) >= LEAST


def compute_chain(
    nodes: list[Node], original: Callable[[Any], Any], values: Mapping[int, np.ndarray], wanted: set[int]
) -> dict[int, np.ndarray] | None:
    """The values of those nodes that are ``wanted``, by id.

    None if blocks would change the order of the elements in memory, or if a function warns or raises. Each function is
    then called for the whole array, so that it warns or raises as in NumPy.
    """
    shape = nodes[0].shape
    whole = [v for v in values.values() if v.shape == shape]
    flat = all(v.shape == shape or v.size == 1 for v in values.values())
    if all(v.flags.c_contiguous for v in whole):
        order = "C"
    elif flat and all(v.flags.f_contiguous for v in whole):
        order = "F"
    else:
        return None
    length = math.prod(shape) if flat else shape[0]
    rows = BLOCK if flat else BLOCK * length // math.prod(shape)
    if not rows:
        return None
    results = {id(n): np.empty(shape, n.dtype, order) for n in nodes if id(n) in wanted}  # type: ignore[call-overload]
    program = _Program(nodes, original, values, results, flat, rows)
    modes = {kind: mode if mode == "ignore" else "raise" for kind, mode in np.geterr().items()}
    try:
        with np.errstate(**modes):  # type: ignore[arg-type]
            for start in range(0, length, rows):
                program.run(start, min(start + rows, length))
    except (ArithmeticError, TypeError, ValueError):
        return None
    return results


class _Program:
    """Functions in order of execution, with slots that hold the blocks of their operands and results."""

    def __init__(
        self,
        nodes: list[Node],
        original: Callable[[Any], Any],
        values: Mapping[int, np.ndarray],
        results: Mapping[int, np.ndarray],
        flat: bool,
        rows: int,
    ) -> None:
        self.slots: list[Any] = []
        self.moving: list[tuple[int, np.ndarray]] = []  # slots that hold a part of an array
        self.steps: list[tuple[Any, list[int], int]] = []  # a function, its operands, its result
        self.buffers: list[int] = []
        self.rows = rows
        shape = nodes[0].shape
        place: dict[Any, int] = {}
        for i, v in values.items():
            split = v.shape == shape or (not flat and v.ndim == len(shape) and v.shape[0] == shape[0] > 1)
            place[i] = self._slot(_flat(v) if flat else v, split)
        for i, v in results.items():
            place[i] = self._slot(_flat(v) if flat else v, True)
        uses: dict[int, int] = {}
        for node in nodes:
            for x in map(original, node.inputs):
                uses[id(x)] = uses.get(id(x), 0) + 1
        free: dict[np.dtype, list[int]] = {}
        block = (rows,) if flat else (rows, *shape[1:])
        for node in nodes:
            operands = []
            for x in map(original, node.inputs):
                if not isinstance(x, Node):
                    operands.append(self._slot(x, False))
                    continue
                operands.append(place[id(x)])
                uses[id(x)] -= 1
                if not uses[id(x)] and id(x) not in values and id(x) not in results:
                    free.setdefault(x.dtype, []).append(place[id(x)])
            if id(node) not in results:
                spare = free.get(node.dtype)
                if not spare:
                    self.buffers.append(len(self.slots))
                    spare = [self._slot(np.empty(block, node.dtype), False)]
                place[id(node)] = spare.pop()
            self.steps.append((node.function, operands, place[id(node)]))

    def _slot(self, value: Any, split: bool) -> int:
        if split:
            self.moving.append((len(self.slots), value))
        self.slots.append(value)
        return len(self.slots) - 1

    def run(self, start: int, stop: int) -> None:
        """Compute elements, or rows, from ``start`` to ``stop``."""
        slots = self.slots
        for i, array in self.moving:
            slots[i] = array[start:stop]
        if stop - start < self.rows:
            for i in self.buffers:
                slots[i] = slots[i][: stop - start]
        for function, operands, result in self.steps:
            if type(function) is np.ufunc:
                function(*[slots[i] for i in operands], out=slots[result])
            else:
                slots[result][...] = function(*[slots[i] for i in operands])


def _flat(values: np.ndarray) -> np.ndarray:
    """All elements in one dimension, in the order of the memory."""
    if values.size == 1:
        return values.reshape(())
    return values.reshape(-1) if values.flags.c_contiguous else values.T.reshape(-1)
