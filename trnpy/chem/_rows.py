"""How a function of trnpy.chem becomes a row: decided, forced, traced and reported like any other."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import numpy as np

from trnpy._call.dispatch import ALLOWED_ERROR, Op, Problem, Reason, Unsupported, accelerated
from trnpy._engine.engines import Engine
from trnpy._engine.precision import eps, norms, probe
from trnpy._settings.policy import current_policy

REAL = np.dtype(np.float64)
MIB = 2**20
MEMORY = 256 * MIB  # bytes of workspace unless told: rows of pairs of a 500-virtual molecule, little of any computer
STACK = 32  # matrices (nao, nao) at a time on the host: more do not stay in its last cache, fewer are thin products
SMALL = 64 * 64 * 2  # elements in all: below, a launch alone takes longer than the host, as for NumPy's products

# (m, k) (k, n) -> (m, n), in ``out`` or, where the engine has memory of its own, beside it; stacks broadcast.
Product = Callable[[np.ndarray, np.ndarray, np.ndarray | None], np.ndarray]
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Transform:
    """Both half transformations of a stack of matrices, and how many of them one stack has."""

    run: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]  # (n, nao, nao), (nao, l), (nao, r) -> (l, r, n)
    matrices: Callable[[np.ndarray, np.ndarray], int]  # of (nao, l) and (nao, r)


def row(
    prepare: Callable[..., Problem], run: Callable[[Problem, Engine], Any], error: Callable[[Problem, Any], float]
) -> Callable[[F], F]:
    """The decorator that makes the host's function the reference of a row of its own name."""

    def decorate(reference: F) -> F:
        op = Op(f"trnpy.chem.{reference.__name__}", reference, prepare, run, error, SMALL)
        return cast(F, accelerated(op))

    return decorate


def host_product(a: np.ndarray, b: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """BLAS; never trnpy's own, whatever is patched."""
    result: np.ndarray = np.matmul(a, b, out=out)
    return result


def checked_product(engine: Engine) -> Product:
    """Products by ``engine``, each compared with the host's on random signs: Unsupported where one is wrong.

    Energies are no linear functions of the products, so that a wrong one cannot be told from the result.
    """

    def product(a: np.ndarray, b: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        c = engine.matmul(a, b)
        _check(a, b, c)
        return c

    return product


def checked_gram(engine: Engine) -> Callable[[np.ndarray], np.ndarray]:
    """a a^T by ``engine``, with the work of one triangle where it has such a kernel; checked alike."""

    def gram(a: np.ndarray) -> np.ndarray:
        c = engine.gram(a)
        _check(a, a.T, c)
        return c

    return gram


def _check(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    """Unsupported where c, on random signs, is not a b."""
    signs = probe(b.shape[-1], REAL)
    wrong = norm(c @ signs - a @ (b @ signs))
    allowed = ALLOWED_ERROR * max(a.shape + b.shape) * eps(REAL, current_policy().precision)
    if not relative(wrong, norm(a) * norm(b)) <= allowed:  # also catches NaN
        raise Unsupported(Reason.ACCURACY, f"a product {a.shape} {b.shape} is wrong by {wrong:.2g}")


def norm(x: np.ndarray) -> float:
    """Frobenius, of any scale."""
    return float(norms(x))


def relative(wrong: float, scale: float) -> float:
    """``wrong`` over ``scale``, or over the smallest normal number where that is larger: below it all is absolute."""
    return wrong / max(scale, float(np.finfo(REAL).tiny))


def stack_size(nao: int, copies: int, memory: float, most: float = math.inf) -> int:
    """Matrices (nao, nao) of a stack, ``copies`` of each at work; ValueError where ``memory`` bytes hold not one."""
    each = copies * max(nao, 1) ** 2 * REAL.itemsize
    if memory < each:
        raise ValueError(f"memory={memory:.0f} bytes: one matrix of {nao} atomic orbitals takes {each} bytes")
    return int(min(memory // each, most))


def real_array(name: str, a: Any, expected: str, *dimensions: int) -> np.ndarray:
    """``a`` as float64, of one of ``dimensions``; TypeError or ValueError say what came and what is expected."""
    array = np.asarray(a)
    if array.dtype.kind not in "iuf":
        raise TypeError(f"{name} is {array.dtype}: expected real numbers {expected}")
    if array.ndim not in dimensions:
        raise ValueError(f"{name} has shape {array.shape}: expected {expected}")
    return array.astype(REAL, copy=False)


def cube(m: float, n: float, k: float) -> float:
    """The n of a cube that BLAS multiplies as efficiently as (m, k) (k, n): the harmonic mean."""
    return 3.0 / (1 / m + 1 / n + 1 / k)
