"""Triangular systems with many right-hand sides, solved with products and inverses of diagonal blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from trnpy._engine.abstract_arrays import operations, priced
from trnpy._engine.handles import Operand
from trnpy._settings.tile import length

LEAF = length(128)  # order of the diagonal blocks that the host inverts: one tile of the device
Product = Callable[[np.ndarray, np.ndarray], np.ndarray]
Leaf = Callable[[np.ndarray, np.ndarray, bool, bool], np.ndarray]  # (a, b, lower, unit) -> x


def oriented(a: np.ndarray, b: np.ndarray, side: str, lower: bool, trans: str) -> tuple[np.ndarray, np.ndarray, bool]:
    """Rewrite op(a) x = b as t x = b, or the transpose of x op(a) = b: (t, b, lower)."""
    if trans != "N":
        a, lower = (a.conj() if trans == "C" else a).swapaxes(-1, -2), not lower
    return (a, b, lower) if side == "left" else (a.swapaxes(-1, -2), b.swapaxes(-1, -2), not lower)


def triangle(a: np.ndarray, lower: bool, unit: bool) -> np.ndarray:
    """The triangle of a (n, n) that a solver reads, with zeros in the other, and ones on a unit diagonal."""
    t: np.ndarray = np.tril(a) if lower else np.triu(a)
    if unit:
        np.fill_diagonal(t, 1)
    return t


def check(a: Operand, b: Operand, side: str, trans: str) -> None:
    """Raise ValueError or TypeError if shapes, dtypes or options of a call do not fit."""
    if side not in ("left", "right") or trans not in ("N", "T", "C"):
        raise ValueError(f"side={side!r}, trans={trans!r}: expected left or right, and N, T or C")
    square = len(a.shape) == len(b.shape) == 2 and a.shape[0] == a.shape[1]
    if not square or b.shape[side == "right"] != a.shape[0]:
        raise ValueError(f"a {a.shape} and b {b.shape}, side={side!r}: expected a square matrix and sides of its order")
    if {a.dtype.kind, b.dtype.kind} - set("fc"):
        raise TypeError(f"a of {a.dtype} and b of {b.dtype}: expected floating-point numbers")


def solve(a: np.ndarray, b: np.ndarray, lower: bool, unit: bool, product: Product, leaf: Leaf, size: int) -> np.ndarray:
    """Solve a x = b for triangular a (..., n, n), by halves down to blocks of ``size``; reads only the triangle."""
    n = a.shape[-1]
    if n <= size:
        return leaf(a, b, lower, unit)
    cut = -(-n // (2 * size)) * size
    known, rest = (slice(cut), slice(cut, n)) if lower else (slice(cut, n), slice(cut))
    x = np.empty_like(b)
    x[..., known, :] = solve(a[..., known, known], b[..., known, :], lower, unit, product, leaf, size)
    left = b[..., rest, :] - product(a[..., rest, known], x[..., known, :])
    x[..., rest, :] = solve(a[..., rest, rest], left, lower, unit, product, leaf, size)
    return x


def by_inverse(product: Product) -> Leaf:
    """Solve a small system through a product with the inverse, which LAPACK computes in double precision.

    Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., sec. 8.2: the residual is as small as with
    substitution if blocks are well-conditioned, 1.9 u: docs/systems.md#triangular-systems.
    """

    def leaf(a: np.ndarray, b: np.ndarray, lower: bool, unit: bool) -> np.ndarray:
        return product(_inverted(a, lower, unit).astype(b.dtype), b)

    return leaf


def _price(a: Any, lower: bool, unit: bool) -> tuple[float, tuple[Any, ...]]:
    return operations(len(a) ** 3 / 3, a.dtype), ((a.shape, np.result_type(a.dtype, np.float64)),)


@priced("triangular inverse", _price)
def _inverted(a: np.ndarray, lower: bool, unit: bool) -> np.ndarray:
    """The inverse of a triangle of a (n, n) in double precision."""
    from trnpy._engine import lapack  # imported late: trnpy.sparse, like scipy.sparse, must not load scipy.linalg

    wide = np.result_type(a, np.float64)
    trtri = lapack.lapack.get_lapack_funcs("trtri", dtype=wide)
    inverse, zero = trtri(np.asarray(a, wide), lower=lower, unitdiag=unit)
    if zero:
        raise np.linalg.LinAlgError(f"singular matrix: element {zero - 1} of the diagonal of a block is zero")
    return triangle(inverse, lower, unit)
