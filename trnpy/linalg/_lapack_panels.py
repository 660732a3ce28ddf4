"""The host's part of blocked algorithms: LAPACK for narrow panels and small problems, with costs for dry runs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from trnpy._engine import lapack
from trnpy._engine.abstract_arrays import operations, priced, real_dtype
from trnpy._settings.host_rates import FLOPS
from trnpy._settings.tile import length

T = TypeVar("T")
PIVOT = np.dtype(np.int32)
BLOCK = length(128)  # columns of a panel, as of a tile: the host factors one in less time than a launch takes


def split(n: int, block: int = BLOCK) -> int:
    """Where to cut n > block columns: after about half of the full blocks."""
    return block * -(-n // (2 * block))


def in_one_launch(ndim: int, dtype: np.dtype) -> bool:
    """Whether engines have a kernel for such triangular systems."""
    return ndim == 2 and dtype == np.float32


def adjoint(a: np.ndarray) -> np.ndarray:
    """A^H of every matrix (..., m, n); a view of real ones."""
    return (a.conj() if a.dtype.kind == "c" else a).swapaxes(-1, -2)


def _price(kind: str, flops: Callable[..., float], results: Callable[..., tuple[Any, ...]]) -> Callable[[T], T]:
    """``priced`` for stacks: ``flops`` for one matrix (m, n); ``results``: (shape, whether real) of each result."""

    def price(a: Any, *rest: Any, **_: Any) -> tuple[float, tuple[Any, ...]]:
        count = math.prod(a.shape[:-2])
        found = tuple((shape, real_dtype(a.dtype) if real else a.dtype) for shape, real in results(a, *rest))
        return count * operations(flops(*a.shape[-2:], *rest), a.dtype), found

    return priced(kind, price)


@_price("cholesky", lambda m, n: n**3 / 3, lambda a: ((a.shape, False),))
def cholesky(a: np.ndarray) -> np.ndarray:
    """Lower L of (..., n, n), of which the lower triangle is read; LinAlgError if a matrix is not definite."""
    l: np.ndarray
    (l,) = _each(lambda m: (lapack.cholesky(m, lower=True, check_finite=False),), a)
    return l


@priced("lu panel", lambda a: (_lu_flops(a), ((a.shape, a.dtype), ((*a.shape[:-2], min(a.shape[-2:])), PIVOT))))
def lu(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Packed LU (..., m, n) and pivots (..., min(m, n)): row i was swapped with row pivot[i], in order of i."""
    (getrf,) = lapack.lapack.get_lapack_funcs(("getrf",), (a,))
    packed, pivots = _each(lambda m: getrf(m)[:2], a)
    return packed, pivots


def qr(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """R above V, packed (..., m, n), and T (..., k, k), k = min(m, n): Q = I - V T V^H, V unit lower trapezoidal."""
    packed, t = _geqrt(a)
    return packed, np.triu(t)


@_price("qr panel", lambda m, n: 2.0 * m * n * min(m, n), lambda a: ((a.shape, False), (_inner(a), False)))
def _geqrt(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    (geqrt,) = lapack.lapack.get_lapack_funcs(("geqrt",), (a,))
    k = min(a.shape[-2:])
    packed, t = _each(lambda m: geqrt(k, m)[:2], a)
    return packed, t


@_price("panel substitution", lambda m, n, b, *_: 1.0 * n * n * b.shape[-1], lambda a, b, *_: ((b.shape, False),))
def substitution(a: np.ndarray, b: np.ndarray, lower: bool, unit: bool) -> np.ndarray:
    """X (..., n, k) of A X = B for triangular (..., n, n)."""
    options: dict[str, Any] = {"lower": lower, "unit_diagonal": unit, "check_finite": False}
    x: np.ndarray
    (x,) = _each(lambda l, c: (lapack.solve_triangular(l, c, **options),), a, b)
    return x


def upper_inverse(u: np.ndarray) -> np.ndarray:
    """The inverse of the upper triangle of (..., n, n), zero below."""
    return np.triu(_trtri(u))


@_price("triangular inverse", lambda m, n: n**3 / 3, lambda a: ((a.shape, False),))
def _trtri(u: np.ndarray) -> np.ndarray:
    (trtri,) = lapack.lapack.get_lapack_funcs(("trtri",), (u,))
    inverse: np.ndarray = _each(lambda m: trtri(m)[:1], u)[0]
    return inverse


@_price("eigh evd", lambda m, n: FLOPS["eigh"] * n**3, lambda a: ((a.shape[:-1], True), (a.shape, False)))
def eigh(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues (n,), ascending, and eigenvectors (n, n) of Hermitian (n, n), by divide and conquer."""
    w, x = lapack.eigh(a, driver="evd", check_finite=False)
    return w, x


@_price("eigh evd", lambda m, n, b: FLOPS["eigh"] * n**3, lambda a, b: ((a.shape[:-1], True), (a.shape, False)))
def eigh_of_two(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues (n,), ascending, and eigenvectors (n, n) of A x = w B x, b (n, n) positive definite."""
    w, q = lapack.eigh(a, b, driver="gvd", check_finite=False)
    return w, q


@_price("svd", lambda m, n: FLOPS["svd"] * n**3, lambda a: ((a.shape, False), (a.shape[:-1], True), (a.shape, False)))
def svd(a: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """U, s and V^H of (n, n)."""
    u, s, vh = lapack.svd(a, check_finite=False)
    return u, s, vh


@_price("svdvals", lambda m, n: FLOPS["svdvals"] * n**3, lambda a: ((a.shape[:-1], True),))
def svdvals(a: np.ndarray) -> np.ndarray:
    """The singular values (n,) of (n, n)."""
    s: np.ndarray = lapack.svd(a, compute_uv=False, check_finite=False)
    return s


@_price("condition", lambda m, n, *_: 1.0 * n * n, lambda a, *_: (((), True),))
def reciprocal_condition(a: np.ndarray, routine: str, *norm: Any, **options: Any) -> float:
    """LAPACK's estimate from a factor (n, n) with ``routine`` pocon, gecon or trcon; it solves about five systems."""
    (estimate,) = lapack.lapack.get_lapack_funcs((routine,), (a,))
    return float(estimate(a, *norm, **options)[0])


def _lu_flops(a: Any) -> float:
    m, n = a.shape[-2:]
    k = min(m, n)
    flops: float = math.prod(a.shape[:-2]) * operations(1.0 * m * n * k - k**3 / 3, a.dtype)
    return flops


def _inner(a: Any) -> tuple[int, ...]:
    k = min(a.shape[-2:])
    return (*a.shape[:-2], k, k)


def _each(function: Any, *stacks: np.ndarray) -> Any:
    """Apply ``function`` to one matrix of each stack at a time and stack the results."""
    batch = stacks[0].shape[:-2]
    if not batch:
        return function(*stacks)
    flat = [function(*m) for m in zip(*(a.reshape(-1, *a.shape[-2:]) for a in stacks), strict=True)]
    return [np.stack(x).reshape(*batch, *x[0].shape) for x in zip(*flat, strict=True)]
