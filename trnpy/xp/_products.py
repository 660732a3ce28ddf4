"""Products of Arrays: the accelerated functions of trnpy."""

from __future__ import annotations

import builtins
from typing import Any

import numpy as np

from trnpy._einsum import rows as products
from trnpy.xp import _rules
from trnpy.xp._array import Array
from trnpy.xp._common import array, direct, like, node_of

Dtype = Any


@direct(products.matmul, 2)
@like(np.matmul)
def matmul(x1: Array, x2: Array, /) -> Array:
    return array(_rules.matmul(node_of(x1), node_of(x2)))


@like(np.tensordot)
def tensordot(x1: Array, x2: Array, /, *, axes: Any = 2) -> Array:
    a, b = node_of(x1), node_of(x2)
    axes = axes if isinstance(axes, int) else tuple([tuple(pair) for pair in axes])
    return array(_rules.product(products.tensordot, a, b, _tensordot_shape(a.shape, b.shape, axes), axes=axes))


def _tensordot_shape(a: tuple[int, ...], b: tuple[int, ...], axes: Any) -> tuple[int, ...] | None:
    """None if the operands do not match."""
    if isinstance(axes, int):
        if not 0 <= axes <= builtins.min(len(a), len(b)):
            return None
        axes = (tuple(range(len(a) - axes, len(a))), tuple(range(axes)))
    left, right = ([i + len(shape) * (i < 0) for i in pair] for pair, shape in zip(axes, (a, b), strict=True))
    inside = {*left} <= {*range(len(a))} and {*right} <= {*range(len(b))}
    if not inside or [a[i] for i in left] != [b[i] for i in right]:
        return None
    return tuple([n for i, n in enumerate(a) if i not in left] + [n for i, n in enumerate(b) if i not in right])


@like(np.vecdot)
def vecdot(x1: Array, x2: Array, /, *, axis: int = -1) -> Array:
    a, b = node_of(x1), node_of(x2)
    shape = None
    if (
        a.shape
        and b.shape
        and -1 >= axis >= -builtins.min(len(a.shape), len(b.shape))
        and a.shape[axis] == b.shape[axis]
    ):
        left, right = (n.shape[: len(n.shape) + axis] + n.shape[len(n.shape) + axis + 1 :] for n in (a, b))
        shape = np.broadcast_shapes(left, right)
    elif axis >= 0:
        raise ValueError(f"axis {axis} must be negative")
    return array(_rules.product(np.vecdot, a, b, shape, axis=axis))


__all__ = [
    "matmul",
    "tensordot",
    "vecdot",
]
