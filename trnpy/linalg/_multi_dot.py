"""numpy.linalg.multi_dot as a contraction, whose plan finds the order of the products: its row."""

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
    return products._problem(tuple(labels), output, operands, out)


NUMPY_OPS = (Op("numpy.linalg.multi_dot", np.linalg.multi_dot, prepare_multi_dot, small=SMALL),)
