"""Functions of matrices from products: the exponential, powers, and the inverse square root by Newton and Schulz."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from trnpy._engine.engines import Engine
from trnpy._engine.stand_ins import usual

DEGREE = 17  # of Taylor's polynomial
PRODUCTS = 7  # of it, by Paterson & Stockmeyer
GROUP = 3  # powers of A that are kept, so that DEGREE + 1 = 6 groups of three coefficients
# Norm below which the polynomial of degree 17 is the exponential of a matrix within 2^-53 of A: Al-Mohy & Higham,
# SIAM J. Sci. Comput. 33 (2011), table 3.1.
REACH = 0.927
LARGEST = 1e100  # entries: the third power does not overflow
ACTION_DEGREE, ACTION_REACH = 30, 3.54  # the same table: products of A with a vector, where powers are not wanted
USUAL_SQUARINGS = 3  # of an exponential of norm 5
USUAL_STEPS = 20  # of Newton and Schulz, three products each: a condition of 1e4
MOST_STEPS = 100  # of Newton and Schulz: a condition of 1e14 takes about 60
SETTLED = 8.0  # sqrt(n) u |Z Y - I|: rounding is all that is left
CLOSE, HALVED = 0.1, 0.5  # a residual below which it should square itself; what is not halved any more has stopped
DIVERGED = 2.0  # of a residual: that of a positive-definite matrix begins below 1 and falls


@dataclass(frozen=True, slots=True)
class Exponential:
    """e^A (..., n, n), and roots that its check needs: root^(2^squarings) = e^A, squarings (...)."""

    value: np.ndarray
    root: np.ndarray
    squarings: np.ndarray


@dataclass(frozen=True, slots=True)
class Convergence:
    """How an iteration ended: steps taken, |X A X - I|_F / sqrt(n) as the iteration knows it, whether it settled."""

    steps: int
    residual: float
    converged: bool


def one_norm(a: np.ndarray) -> np.ndarray:
    """Largest column sums (...) of a (..., n, n)."""
    sums: np.ndarray = np.abs(a).sum(axis=-2).max(axis=-1)
    return sums


def expm(a: np.ndarray, engine: Engine) -> Exponential:
    """e^A of a (..., n, n), float64 or complex128, entries below LARGEST.

    Scaling, Taylor's polynomial and squaring; how far to scale comes from |A^2| and |A^3|, not |A|:
    Al-Mohy & Higham, SIAM J. Matrix Anal. Appl. 31 (2009), thm. 4.2; Paterson & Stockmeyer, SIAM J. Comput. 2 (1973).
    """
    stack = a.reshape(-1, *a.shape[-2:])
    # So that powers neither overflow nor vanish; norms are not known when a call is priced.
    first = usual(_halvings(one_norm(stack)), np.full(len(stack), USUAL_SQUARINGS))
    b = stack * np.ldexp(1.0, -first)[:, np.newaxis, np.newaxis]
    b2 = engine.matmul(b, b)
    b3 = engine.matmul(b2, b)
    further = _halvings(np.maximum(one_norm(b2) ** (1 / 2), one_norm(b3) ** (1 / 3)), -first)
    further = usual(further, np.zeros_like(first))
    scale = np.ldexp(1.0, -further)[:, np.newaxis, np.newaxis]
    x = _taylor(b * scale, b2 * scale**2, b3 * scale**3, engine)
    squarings = first + further
    most = int(squarings.max())
    # A root of norm about sqrt(|A|): checking it and raising it to its power then take about as many products.
    last = min(most, (most + 3) // 2)
    root = x.copy()
    for step in range(most):
        some = squarings > step
        # Those that need fewer squarings are done, and stay.
        x = np.where(some[:, np.newaxis, np.newaxis], engine.matmul(x, x), x) if not some.all() else engine.matmul(x, x)
        if step + 1 == most - last:
            root = x.copy()
    left = np.maximum(squarings - (most - last), 0)
    return Exponential(x.reshape(a.shape), root.reshape(a.shape), left.reshape(a.shape[:-2]))


def _halvings(norm: np.ndarray, least: np.ndarray | int = 0) -> np.ndarray:
    """How often each of the norms is halved until it is within REACH; at least ``least``."""
    with np.errstate(divide="ignore"):
        return np.maximum(np.ceil(np.log2(norm / REACH)), least).astype(int)


def _taylor(b: np.ndarray, b2: np.ndarray, b3: np.ndarray, engine: Engine) -> np.ndarray:
    """The sum of b^k / k! up to DEGREE, by Horner's rule in b^3."""
    eye = np.eye(b.shape[-1], dtype=b.dtype, like=b)

    def group(k: int) -> np.ndarray:
        c = [1 / math.factorial(k + i) for i in range(GROUP)]
        return c[0] * eye + c[1] * b + c[2] * b2

    x = group(DEGREE + 1 - GROUP)
    for k in range(DEGREE + 1 - 2 * GROUP, -1, -GROUP):
        x = engine.matmul(x, b3) + group(k)
    return x


def expm_action(a: np.ndarray, v: np.ndarray) -> np.ndarray:
    """e^A V on the host for a (n, n) and v (n, k): Al-Mohy & Higham, SIAM J. Sci. Comput. 33 (2011)."""
    steps = max(int(np.ceil(float(one_norm(a)) / ACTION_REACH)), 1)
    for _ in range(steps):
        term = v
        for k in range(1, ACTION_DEGREE + 1):
            term = (a @ term) / (steps * k)
            v = v + term
    return v


def power(a: np.ndarray, n: int, engine: Engine) -> np.ndarray:
    """a^n of a (..., m, m) for n >= 1 by repeated squaring."""
    result, square = None, a
    while True:
        if n % 2:
            result = square if result is None else engine.matmul(result, square)
        n //= 2
        if not n:
            assert result is not None
            return result
        square = engine.matmul(square, square)


def inverse_square_root(a: np.ndarray, engine: Engine) -> tuple[np.ndarray, Convergence]:
    """A^(-1/2) of Hermitian positive-definite a (n, n) and how the iteration ended.

    Newton and Schulz, coupled: Y to the square root, Z to its inverse, from products only and quadratically
    convergent once |I - Z Y| < 1: Higham, Functions of Matrices, 2008, sec. 6.3 and (6.35).
    """
    n = len(a)
    norm = float(min(usual(np.abs(a).sum(axis=0).max(), 1.0), usual(np.linalg.norm(a), 1.0)))
    y, z, eye = a / norm, np.eye(n, dtype=a.dtype, like=a), np.eye(n, like=a)
    residual, floor = math.inf, SETTLED * float(np.finfo(a.dtype).eps) / 2
    for step in range(MOST_STEPS):
        product = engine.matmul(z, y)
        left = usual(np.linalg.norm(product - eye), CLOSE if step < USUAL_STEPS else 0.0)
        previous, residual = residual, float(left) / math.sqrt(n)
        if not residual < DIVERGED:
            break
        if residual <= floor or (previous < CLOSE and residual > HALVED * previous):
            return _symmetrized(z) / math.sqrt(norm), Convergence(step, residual, True)
        t = (3 * eye - product) / 2
        y, z = engine.matmul(y, t), engine.matmul(t, z)
    return _symmetrized(z) / math.sqrt(norm), Convergence(step, residual, False)


def _symmetrized(z: np.ndarray) -> np.ndarray:
    mean: np.ndarray = (z + z.conj().T) / 2
    return mean
