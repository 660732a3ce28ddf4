"""Triangular systems within larger algorithms, of stacks too: small ones and blocks of the diagonal on the host."""

from __future__ import annotations

import numpy as np

from trnpy._engine import triangular
from trnpy._engine.engines import Engine
from trnpy.linalg import _panels
from trnpy.linalg._panels import BLOCK, in_one_launch


def solve(
    a: np.ndarray, b: np.ndarray, engine: Engine, *, lower: bool, side: str = "left", trans: str = "N",
    unit: bool = False,
) -> np.ndarray:  # fmt: skip
    """X of op(A) X = B, or of X op(A) = B for ``side`` "right"; op by ``trans`` "N", "T" or "C", a and b of one dtype.

    A (..., n, n) of which one triangle is read; a zero on its diagonal is for the caller to find.
    The engine inverts diagonal blocks for products where it has no kernel; here they are nearer to the host.
    """
    if a.shape[-1] > BLOCK and in_one_launch(a.ndim, a.dtype):
        return engine.trsm(a, b, side=side, lower=lower, trans=trans, unit=unit)
    t, right, down = triangular.oriented(a, b, side, lower, trans)
    x = triangular.solve(t, right, down, unit, engine.matmul, _panels.substitution, BLOCK)
    return x if side == "left" else x.swapaxes(-1, -2)
