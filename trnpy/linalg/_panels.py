"""What blocked algorithms leave to the host: LAPACK on narrow panels, one matrix of a stack after the other."""

from __future__ import annotations

from typing import Any

import numpy as np

from trnpy._engine import lapack

BLOCK = 128  # columns of a panel, one PE tile: the host factors it in less than a launch takes


def split(n: int, block: int = BLOCK) -> int:
    """Where to cut n columns, n > block: whole blocks, about half of them."""
    return block * -(-n // (2 * block))


def in_one_launch(ndim: int, dtype: np.dtype) -> bool:
    """Whether engines have a kernel for triangular systems of such matrices."""
    return ndim == 2 and dtype == np.float32


def adjoint(a: np.ndarray) -> np.ndarray:
    """A^H of every matrix (..., m, n); of real ones a view."""
    return (a.conj() if a.dtype.kind == "c" else a).swapaxes(-1, -2)


def cholesky(a: np.ndarray) -> np.ndarray:
    """Lower L of (..., n, n), whose upper triangle is not read; lapack.LinAlgError."""
    l: np.ndarray
    (l,) = _each(lambda m: (lapack.cholesky(m, lower=True, check_finite=False),), a)
    return l


def lu(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Packed LU (..., m, n) and pivots (..., min(m, n)): row i was swapped with row pivot[i], one i after the other."""
    (getrf,) = lapack.lapack.get_lapack_funcs(("getrf",), (a,))
    packed, pivots = _each(lambda m: getrf(m)[:2], a)
    return packed, pivots


def qr(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """R above V, packed (..., m, n), and T (..., k, k), k = min(m, n): Q = I - V T V^H, V unit lower trapezoidal."""
    (geqrt,) = lapack.lapack.get_lapack_funcs(("geqrt",), (a,))
    k = min(a.shape[-2:])
    packed, t = _each(lambda m: geqrt(k, m)[:2], a)
    return packed, np.triu(t)


def substitution(a: np.ndarray, b: np.ndarray, lower: bool, unit: bool) -> np.ndarray:
    """X (..., n, k) of A X = B for triangular (..., n, n)."""
    options: dict[str, Any] = {"lower": lower, "unit_diagonal": unit, "check_finite": False}
    x: np.ndarray
    (x,) = _each(lambda l, c: (lapack.solve_triangular(l, c, **options),), a, b)
    return x


def upper_inverse(u: np.ndarray) -> np.ndarray:
    """The inverse of the upper triangle of (..., n, n), zero below."""
    (trtri,) = lapack.lapack.get_lapack_funcs(("trtri",), (u,))
    return np.triu(_each(lambda m: trtri(m)[:1], u)[0])


def _each(function: Any, *stacks: np.ndarray) -> Any:
    """``function`` of the matrices of stacks of equal batches, one by one; its results stacked."""
    batch = stacks[0].shape[:-2]
    if not batch:
        return function(*stacks)
    flat = [function(*m) for m in zip(*(a.reshape(-1, *a.shape[-2:]) for a in stacks), strict=True)]
    return [np.stack(x).reshape(*batch, *x[0].shape) for x in zip(*flat, strict=True)]
