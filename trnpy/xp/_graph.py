"""Operations that are recorded, or computed at once if all operands are small and computed.

The shape and dtype of a node are known when it is recorded. ``compute`` computes its values and only the nodes that
they depend on; equal subexpressions are computed once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from trnpy.xp._evaluate import assigned, compute, settle
from trnpy.xp._nodes import SCALARS, GraphCounters, Node, leaf, recorded

MOST_PENDING = 4096  # largest depth of uncomputed operations: a longer chain is computed without a read
LARGEST_COPIES = 2**28  # bytes of operands copied for unread results; beyond it these are computed
OURS = "trnpy.xp"  # modules whose lines record for others

__all__ = ["SCALARS", "GraphCounters", "Node", "assigned", "compute", "leaf", "now", "record", "settle"]


def record(
    function: Callable[..., Any], inputs: tuple[Any, ...], options: dict[str, Any], shape: tuple[int, ...],
    dtype: np.dtype,
) -> Any:  # fmt: skip
    """The node of an operation, or its result if all operands are arrays and scalars."""
    if not recorded(inputs):
        return now(function, inputs, options)
    inputs = tuple([_fixed(x) if isinstance(x, np.ndarray) else x for x in inputs])
    depth = 0
    for x in inputs:
        if isinstance(x, Node):
            x.uses += 1
            depth = max(depth, x.depth + 1)
    frame: Any = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(OURS):
        frame = frame.f_back
    GraphCounters.recorded += 1
    node = Node(function, inputs, options, shape, dtype, depth, frame.f_code, frame.f_lasti)
    if depth > MOST_PENDING or GraphCounters.copied > LARGEST_COPIES:
        settle(node)
    return node


def _fixed(x: np.ndarray) -> Node:
    """The node of a small Array's values, which its next write copies, or of a copy of a view's values."""
    if x.base is None and x.flags.owndata:
        x.flags.writeable = False
        return leaf(x, lent=True)
    return leaf(x, copy=True)


def now(function: Callable[..., Any], inputs: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """The result of an operation on arrays and scalars, in memory that it shares with no operand."""
    found = function(*inputs, **options)
    if isinstance(found, (tuple, list)):
        return tuple([_apart(np.asarray(x), inputs) for x in found])
    return _apart(found, inputs) if type(found) is np.ndarray else np.asarray(found)


def _apart(found: np.ndarray, inputs: tuple[Any, ...]) -> np.ndarray:
    """The array, or a copy of it if it may share the memory of an operand."""
    if found.base is None and not any(x is found for x in inputs):
        return found
    for x in inputs:
        if isinstance(x, np.ndarray) and np.may_share_memory(found, x):
            return found.copy()
    return found
