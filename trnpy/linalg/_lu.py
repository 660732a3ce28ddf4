"""Blocked LU with partial pivoting: panels on the host, trailing updates by the engine."""

from __future__ import annotations

import numpy as np

from trnpy import _host
from trnpy._engine import Engine

BLOCK = 128  # one PE tile


class Singular(ArithmeticError):
    """A pivot is exactly zero."""


def factor(a: np.ndarray, engine: Engine, block: int = BLOCK) -> tuple[np.ndarray, np.ndarray]:
    """Packed LU (n, n) of a square a (n, n) and its row order p (n,): a[p] = L U.

    Golub & Van Loan, 4th ed., sec. 3.2.11.
    """
    lu = a.copy()
    n = len(a)
    p = np.arange(n)
    (getrf,) = _host.lapack.get_lapack_funcs(("getrf",), (lu,))
    for j in range(0, n, block):
        here, rest = slice(j, min(j + block, n)), slice(min(j + block, n), n)
        panel, swaps, singular = getrf(lu[j:, here])
        if singular > 0:
            raise Singular(f"pivot {j + singular - 1} is zero")
        order = np.arange(n - j)
        for i, swap in enumerate(swaps):
            order[[i, swap]] = order[[swap, i]]
        lu[j:], p[j:] = lu[j:][order], p[j:][order]
        lu[j:, here] = panel
        if rest.start < n:
            lu[here, rest] = _host.solve_triangular(
                lu[here, here], lu[here, rest], lower=True, unit_diagonal=True, check_finite=False
            )
            lu[rest, rest] -= engine.matmul(lu[rest, here], lu[here, rest])
    return lu, p


def solve(lu: np.ndarray, p: np.ndarray, b: np.ndarray) -> np.ndarray:
    """x (n, k) of A x = b (n, k) from ``factor``."""
    y = _host.solve_triangular(lu, b[p], lower=True, unit_diagonal=True, check_finite=False)
    x: np.ndarray = _host.solve_triangular(lu, y, check_finite=False)
    return x
