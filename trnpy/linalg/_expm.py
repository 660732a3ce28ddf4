"""The matrix exponential by scaling, Taylor polynomial and squaring, all of which are matrix products."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from trnpy._base.records import record
from trnpy._call import guards
from trnpy._call.dispatch import Problem, Reason, Unsupported
from trnpy._engine import lapack
from trnpy._engine.abstract_arrays import priced, usual
from trnpy._engine.engines import Engine
from trnpy._engine.proof.weights import probe
from trnpy._settings.host_rates import FLOPS
from trnpy.linalg._matrices import SMALL, native, norm, real_type, useful
from trnpy.linalg._reference_forms import scipy_function

GROUP = 3  # number of powers of A that are computed


class Polynomial(NamedTuple):
    """Taylor polynomial in groups of GROUP coefficients: Paterson & Stockmeyer, SIAM J. Comput. 2 (1973)."""

    degree: int
    # For norms below this the polynomial has a backward error of at most u: Al-Mohy & Higham, SIAM J. Sci. Comput. 33
    # (2011), eq. 3.6; its table 3.1 has every fifth degree.
    reach: float
    largest: float  # largest entry whose third power cannot overflow

    @property
    def products(self) -> int:
        return GROUP - 1 + (self.degree + 1) // GROUP - 1


# Degree 14 in float32 reaches 1.96 with one more product, which equals the number of squarings saved.
POLYNOMIALS = {np.float64: Polynomial(17, 0.93, 1e100), np.float32: Polynomial(11, 1.22, 1e12)}
ACTION_DEGREE, ACTION_REACH = 30, 3.54  # from the same table, for e^A V through products of A with V
# Above these limits the check, whose number of steps grows with the norm, takes longer than SciPy's function: for
# nearly normal matrices of norm 1e6 its root needs 2^11 powers and 140 steps.
LARGEST_NORM, MOST_STEPS = 1e6, 4096
USUAL_SQUARINGS = 3  # default estimate, for a norm of 5


@record()
class RootedExponential:
    """e^A (..., n, n); for the check, a root with root^(2^squarings) = e^A, and the number of squarings (...)."""

    value: np.ndarray
    root: np.ndarray
    squarings: np.ndarray


@record(kw_only=True)
class Exponential(Problem):
    """e^A of matrices a (..., n, n)."""

    def run(self, engine: Engine) -> RootedExponential:
        (a,) = self.arrays
        guards.finite(a)
        largest = polynomial(self.dtype).largest
        if usual(np.abs(a).max() > largest, False):
            raise Unsupported(Reason.VALUE, f"an entry above {largest:.0e}")
        sizes = one_norm(a)
        if usual(sizes.max() > LARGEST_NORM, False):
            raise Unsupported(Reason.VALUE, f"a norm above {LARGEST_NORM:.0e}: the check takes longer than SciPy")
        if _triangular(a):
            raise Unsupported(Reason.LAYOUT, "triangular: SciPy computes two of its diagonals without products")
        with np.errstate(all="ignore"):  # an overflow is visible in the result
            result = expm(a.astype(self.dtype, copy=False), engine)
        guards.finite(result.value, result.root)
        if usual((np.ldexp(sizes, -result.squarings) > MOST_STEPS * ACTION_REACH).any(), False):
            raise Unsupported(Reason.VALUE, "far from normal: the check takes longer than SciPy")
        return result

    def error(self, result: Any) -> float:
        """Compare root V with e^(A/2^s) V, then e^A V with powers of the root, for random test vectors V."""
        a = self.arrays[0].astype(np.result_type(self.dtype, np.float64), copy=False)
        if not isinstance(result, RootedExponential):  # a result of the original function
            result = RootedExponential(result, result, np.zeros(a.shape[:-2], int))
        v = probe(a.shape[-1], a.dtype)
        width, worst = math.sqrt(v.shape[1]), 0.0
        info = np.finfo(self.dtype)
        least = len(v) * float(info.tiny) / float(info.eps)  # smaller exponentials underflow or are inexact
        for i in np.ndindex(a.shape[:-2]):
            x, root, squarings = result.value[i], result.root[i], int(result.squarings[i])
            b = np.ldexp(1.0, -squarings) * a[i]
            once, powers = expm_action(b, v), v
            for _ in range(2**squarings):
                powers = root @ powers
            # The condition number of e^B is at least |B| (Higham, Functions of Matrices, SIAM 2008, sec. 10.2).
            # The condition number of a power is its exponent.
            condition, times = max(norm(b), 1.0), 2.0**squarings
            worst = max(worst, norm(root @ v - once) / (condition * (norm(root) + least) * width))
            worst = max(worst, norm(x @ v - powers) / (times * (norm(x) + least) * width))
        return worst

    def deliver(self, result: RootedExponential) -> np.ndarray:
        return result.value


def prepare_expm(A: Any) -> Problem:
    a = guards.array(A)
    dtype = guards.floating(a)
    if a.ndim < 2 or a.shape[-1] != a.shape[-2] or a.size == 0 or a.shape[-1] == 1:
        raise Unsupported(Reason.LAYOUT, f"shape {a.shape} is not of non-empty square matrices")
    native(a)
    n = a.shape[-1]
    return Exponential((a,), dtype, useful("expm", n, FLOPS["expm"] * float(n) ** 3, (a,), dtype, a.size))


@priced("", lambda a: (a.nbytes, (False,)))
def _triangular(a: np.ndarray) -> bool:
    """Whether any matrix of a (..., n, n) is triangular."""
    return any(0 in lapack.bandwidth(matrix) for matrix in a.reshape(-1, *a.shape[-2:]))


def polynomial(dtype: np.dtype) -> Polynomial:
    """The Taylor polynomial for matrices of ``dtype``."""
    return POLYNOMIALS[real_type(dtype)]


def one_norm(a: np.ndarray) -> np.ndarray:
    """Largest column sums (...) of a (..., n, n)."""
    sums: np.ndarray = np.abs(a).sum(axis=-2).max(axis=-1)
    return sums


def expm(a: np.ndarray, engine: Engine) -> RootedExponential:
    """e^A of a (..., n, n), floating or complex, with entries below the polynomial's ``largest``.

    The norms of A^2 and A^3, not that of A, decide the scaling: Al-Mohy & Higham, SIAM J. Matrix Anal. Appl. 31 (2009),
    thm. 4.2.
    """
    stack, series = a.reshape(-1, *a.shape[-2:]), polynomial(a.dtype)
    # Scaled so that powers neither overflow nor underflow; a cost dry run does not know the norms.
    first = usual(_halvings(one_norm(stack), series.reach), np.full(len(stack), USUAL_SQUARINGS))
    b = stack * _scale(first, a.dtype)
    b2 = engine.matmul(b, b)
    b3 = engine.matmul(b2, b)
    norms = np.maximum(one_norm(b2) ** (1 / 2), one_norm(b3) ** (1 / 3))
    further = usual(_halvings(norms, series.reach, -first), np.zeros_like(first))
    scale = _scale(further, a.dtype)
    x = _taylor(series.degree, b * scale, b2 * scale**2, b3 * scale**3, engine)
    squarings = first + further
    most = int(squarings.max())
    # The check uses a root of norm about sqrt(|A|): its own error and its powers then cost about the same.
    last = min(most, (most + 3) // 2)
    root = x.copy()
    for step in range(most):
        some = squarings > step
        # Matrices that need fewer squarings are complete and stay unchanged.
        x = np.where(some[:, np.newaxis, np.newaxis], engine.matmul(x, x), x) if not some.all() else engine.matmul(x, x)
        if step + 1 == most - last:
            root = x.copy()
    left = np.maximum(squarings - (most - last), 0)
    return RootedExponential(x.reshape(a.shape), root.reshape(a.shape), left.reshape(a.shape[:-2]))


def _halvings(norm: np.ndarray, reach: float, least: np.ndarray | int = 0) -> np.ndarray:
    """The number of halvings that brings each norm below ``reach``; at least ``least``."""
    with np.errstate(divide="ignore"):
        return np.maximum(np.ceil(np.log2(norm / reach)), least).astype(int)


def _scale(halvings: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """2^-halvings (count, 1, 1) for matrices of ``dtype``."""
    return np.asarray(np.ldexp(real_type(dtype)(1), -halvings)[:, np.newaxis, np.newaxis])


def _taylor(degree: int, b: np.ndarray, b2: np.ndarray, b3: np.ndarray, engine: Engine) -> np.ndarray:
    """The sum of b^k / k! up to ``degree``, by Horner's rule in b^3."""
    eye = np.eye(b.shape[-1], dtype=b.dtype, like=b)

    def group(k: int) -> np.ndarray:
        c = [1 / math.factorial(k + i) for i in range(GROUP)]
        return c[0] * eye + c[1] * b + c[2] * b2

    x = group(degree + 1 - GROUP)
    for k in range(degree + 1 - 2 * GROUP, -1, -GROUP):
        x = engine.matmul(x, b3) + group(k)
    return x


def expm_action(a: np.ndarray, v: np.ndarray, sizes: list[np.ndarray] | None = None) -> np.ndarray:
    """e^A V on the host for a (n, n) and v (n, k): Al-Mohy & Higham, SIAM J. Sci. Comput. 33 (2011), algorithm 3.2.

    The mean of the eigenvalues is subtracted from A, because terms of the series of e^-20 would cancel. ``sizes``
    receives the norms of the columns of e^(A i/s) V for i = 0, 1, ... s.
    """
    mean = a.trace() / len(a)
    a = a - mean * np.eye(len(a))
    steps = max(int(np.ceil(float(one_norm(a)) / ACTION_REACH)), 1)
    for _ in range(steps):
        if sizes is not None:
            sizes.append(np.linalg.norm(v, axis=0))
        term = v
        for k in range(1, ACTION_DEGREE + 1):
            term = (a @ term) / (steps * k)
            v = v + term
        v = v * np.exp(mean / steps)
    if sizes is not None:
        sizes.append(np.linalg.norm(v, axis=0))
    return v


def largest_term(a: np.ndarray, v: np.ndarray, reach: float) -> float:
    """The largest term of the Taylor series of e^(A/s) V over V, for A without its mean and s steps of ``reach``."""
    a = a - a.trace() / len(a) * np.eye(len(a))
    steps, k, size = max(int(np.ceil(float(one_norm(a)) / reach)), 1), 0, float(np.linalg.norm(v))
    term, sizes = v, [size]
    while sizes[-1] > 0.1 * size and k < 2 * reach:  # later terms are smaller
        k += 1
        term = (a @ term) / (steps * k)
        sizes.append(float(np.linalg.norm(term)))
    return max(sizes) / size


OPS = (scipy_function("expm", prepare_expm, small=SMALL),)
