"""numpy.linalg.multi_dot as a contraction in NumPy's order."""

from __future__ import annotations

from typing import Any

import numpy as np

from trnpy._call import guards
from trnpy._call.dispatch import Op, Problem, Reason, Unsupported
from trnpy._einsum import rows as products
from trnpy._einsum.grammar import LETTERS
from trnpy.linalg._matrices import SMALL


def prepare_multi_dot(arrays: Any, *, out: Any = None) -> Problem:
    operands = [guards.array(a, mapped=False) for a in arrays]
    ends = {operands[0].ndim, operands[-1].ndim} if operands else set()
    if not 2 <= len(operands) < len(LETTERS) or not ends <= {1, 2} or any(a.ndim != 2 for a in operands[1:-1]):
        raise Unsupported(Reason.LAYOUT, "not a chain of matrices")
    labels = [LETTERS[i : i + 2] for i in range(len(operands))]
    if operands[0].ndim == 1:
        labels[0] = labels[0][1]
    if operands[-1].ndim == 1:
        labels[-1] = labels[-1][0]
    output = labels[0][: operands[0].ndim - 1] + labels[-1][labels[-1].index(LETTERS[len(operands) - 1]) + 1 :]
    sizes: dict[str, int] = {}
    for label, a in zip(labels, operands, strict=True):
        for c, extent in zip(label, a.shape, strict=True):
            if sizes.setdefault(c, extent) != extent:
                raise Unsupported(Reason.LAYOUT, f"shapes {[a.shape for a in operands]} do not match")
    extents = [operands[0].shape[0] if operands[0].ndim == 2 else 1, *(a.shape[0] for a in operands[1:])]
    extents.append(operands[-1].shape[1] if operands[-1].ndim == 2 else 1)
    return products._problem(tuple(labels), output, operands, out, order_of(extents))


def order_of(extents: list[int]) -> tuple[tuple[int, int], ...]:
    """NumPy's order of multiplying matrices of extents[i] rows and extents[i + 1] columns, as an einsum path.

    It has the fewest multiplications. Ties are broken as in NumPy, because another order may overflow.
    """
    n = len(extents) - 1
    best = {(i, i): (0, i) for i in range(n)}  # for matrices i to j: multiplications, last matrix of the left factor
    for longer in range(1, n):
        for i in range(n - longer):
            j = i + longer
            best[i, j] = min(
                (best[i, k][0] + best[k + 1, j][0] + extents[i] * extents[k + 1] * extents[j + 1], k)
                for k in range(i, j)
            )
    waiting, path = [(i, i) for i in range(n)], []

    def multiply(i: int, j: int) -> None:
        if i < j:
            k = best[i, j][1]
            multiply(i, k)
            multiply(k + 1, j)
            factors = (i, k), (k + 1, j)
            path.append((waiting.index(factors[0]), waiting.index(factors[1])))
            waiting[:] = [x for x in waiting if x not in factors] + [(i, j)]

    multiply(0, n - 1)
    return tuple(path)


OPS = (Op("numpy.linalg.multi_dot", np.linalg.multi_dot, prepare_multi_dot, small=SMALL),)
