"""Shared parts of the rows of trnpy.chem: the decorator that makes a row, checked products, argument checks, limits."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np

from trnpy._base.records import record
from trnpy._call.dispatch import ALLOWED_ERROR, Op, Problem, Reason, Unsupported, accelerated
from trnpy._engine.abstract_arrays import usual
from trnpy._engine.engines import Engine
from trnpy._engine.precision import eps, norms
from trnpy._engine.proof.weights import probe
from trnpy._settings.policy import current_policy

REAL = np.dtype(np.float64)
MIB = 2**20
MEMORY = 256 * MIB  # default workspace in bytes: integrals of over 100 pairs of a molecule with 500 virtual orbitals
STACK = 32  # matrices (nao, nao) at a time on the host: more leave its last-level cache, fewer make thin products
SMALL = 64 * 64 * 2  # elements of all operands up to which a launch takes longer than the host, as in NumPy's rows

# (m, k) (k, n) -> (m, n); stacks broadcast. The third argument is ``out``; engines ignore it and return a new array.
Product = Callable[[np.ndarray, np.ndarray, np.ndarray | None], np.ndarray]
F = TypeVar("F", bound=Callable[..., Any])


@record()
class Transform:
    """A function that transforms a stack of matrices (n, nao, nao) from both sides, and the size of a stack."""

    run: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]  # (n, nao, nao), (nao, l), (nao, r) -> (l, r, n)
    matrices: Callable[[np.ndarray, np.ndarray], int]  # n, for coefficients (nao, l) and (nao, r)


def row(prepare: Callable[..., Problem]) -> Callable[[F], F]:
    """Decorator that makes a host function the original function of a row with the same name."""

    def decorate(reference: F) -> F:
        op = Op(f"trnpy.chem.{reference.__name__}", reference, prepare, small=SMALL, kind=None)
        return cast(F, accelerated(op))

    return decorate


def host_product(a: np.ndarray, b: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """a b in BLAS. NumPy computes it under a patch, too, because patches leave out trnpy's own calls."""
    result: np.ndarray = np.matmul(a, b, out=out)
    return result


def checked_product(engine: Engine) -> Product:
    """Products on ``engine``, each checked with random signs; a wrong product raises Unsupported.

    Each product is checked, because the energy is not linear in the products and a check of it would miss an error.
    """

    def product(a: np.ndarray, b: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        c = engine.matmul(a, b)
        _check(a, b, c)
        return c

    return product


def checked_gram(engine: Engine) -> Callable[[np.ndarray], np.ndarray]:
    """Products a a^T on ``engine``, which may compute only one triangle; checked like those of `checked_product`."""

    def gram(a: np.ndarray) -> np.ndarray:
        c = engine.gram(a)
        _check(a, a.T, c)
        return c

    return gram


def _check(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    """Raise Unsupported if c w differs from a (b w) for random signs w."""
    signs = probe(b.shape[-1], REAL)
    wrong = norm(c @ signs - a @ (b @ signs))
    allowed = ALLOWED_ERROR * max(a.shape + b.shape) * eps(REAL, current_policy().products)
    if not relative(wrong, norm(a) * norm(b)) <= allowed:  # true for NaN as well
        raise Unsupported(Reason.ACCURACY, f"a product {a.shape} {b.shape} is wrong by {wrong:.2g}")


def norm(x: np.ndarray) -> float:
    """Frobenius norm without intermediate overflow or underflow; 0 in dry runs, so all products pass their checks."""
    return float(usual(norms(x), 0.0))


def relative(wrong: float, scale: float) -> float:
    """``wrong`` over ``scale``, or over the smallest normal number if that is larger; inf if ``scale`` overflows."""
    return wrong / max(scale, float(np.finfo(REAL).tiny)) if scale != math.inf else math.inf


def stack_size(nao: int, copies: int, memory: float, most: float = math.inf) -> int:
    """The number of matrices (nao, nao), ``copies`` arrays each, in ``memory`` bytes; ValueError if none fits."""
    each = copies * max(nao, 1) ** 2 * REAL.itemsize
    if memory < each:
        raise ValueError(f"memory={memory:.0f} bytes: one matrix of {nao} atomic orbitals takes {each} bytes")
    return int(min(memory // each, most))


def real_array(name: str, a: Any, expected: str, *dimensions: int) -> np.ndarray:
    """``a`` in float64. TypeError unless it is real, ValueError unless its ndim is among ``dimensions``."""
    array = np.asarray(a)
    if array.dtype.kind not in "iuf":
        raise TypeError(f"{name} is {array.dtype}: expected real numbers {expected}")
    if array.ndim not in dimensions:
        raise ValueError(f"{name} has shape {array.shape}: expected {expected}")
    return array.astype(REAL, copy=False)


def cube(m: float, n: float, k: float) -> float:
    """The order of the square product that BLAS computes at the rate of (m, k) (k, n): the harmonic mean."""
    return 3.0 / (1 / m + 1 / n + 1 / k)
