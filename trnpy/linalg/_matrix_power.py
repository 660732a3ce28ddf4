"""Matrix powers: integer ones by repeated squaring, fractional ones from eigenvectors."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from trnpy._base.records import record
from trnpy._call import guards
from trnpy._call.dispatch import Op, Problem, Reason, Unsupported
from trnpy._engine.engines import Engine
from trnpy._engine.precision import eps
from trnpy._engine.proof.weights import probe
from trnpy._settings.policy import current_policy
from trnpy.linalg import _matrix_functions
from trnpy.linalg._matrices import SMALL, norm, refuse, square, useful
from trnpy.linalg._reference_forms import scipy_function

MOST_FACTORS = 128  # of a power, because its check needs the same number of products


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


@record(kw_only=True)
class MatrixPower(Problem):
    """A^n for n > 1."""

    n: int

    def run(self, engine: Engine) -> np.ndarray:
        (a,) = self.arrays
        guards.finite(a)
        with np.errstate(all="ignore"):
            result = power(a.astype(self.dtype, copy=False), self.n, engine)
        guards.finite(result)
        return result

    def error(self, x: np.ndarray) -> float:
        """The distance of X V from A (A ... (A V)), for random test vectors V, over |X| or the allowed rounding error.

        Cancellation may make X smaller than the product of its factors' norms, and later factors multiply rounding
        errors. Unsupported if intermediate powers overflow, or lose by underflow what later factors enlarge to size X.
        """
        (a,) = self.arrays
        v = probe(len(a), self.dtype)
        width, powers, sizes = math.sqrt(v.shape[1]), v, [1.0]
        for _ in range(self.n):
            powers = a @ powers
            sizes.append(norm(powers) / width)  # about |A^i|
        if sizes[1]:  # by chance, test vectors may be small where A acts: by one factor in all powers
            sizes[1:] = [size * (norm(a) / sizes[1]) for size in sizes[1:]]
        # The bound of a check grows with the order of a matrix, but norms of products do not.
        added = rounding(self.n, sizes, eps(self.dtype, current_policy().products)) / len(a)
        info = np.finfo(self.dtype)
        least = float(info.tiny) / float(info.eps)  # smaller powers underflow or are inexact
        size = max(norm(x), added, least)
        if not math.isfinite(added) or least * enlarged(self.n, sizes) > size:
            raise Unsupported(Reason.VALUE, "powers of A overflow or underflow on the way to this one")
        return norm(x @ v - powers) / (size * width)


def enlarged(n: int, sizes: Sequence[float]) -> float:
    """The factor by which an error of A^k may grow in A^n = A^i A^k A^j. ``sizes`` as in ``rounding``."""
    largest = list(itertools.accumulate(sizes[:n], max))
    return max(size * most for size, most in zip(sizes[:n], reversed(largest), strict=True))


def rounding(n: int, sizes: Sequence[float], unit: float) -> float:
    """The rounding error of A^n by ``power``, in ``unit``, if each product adds one unit of its factors' norms.

    ``sizes``: the norms of A^0, A^1, ... A^n.
    """

    def product(x: tuple[int, float], y: tuple[int, float]) -> tuple[int, float]:
        (i, of_x), (j, of_y) = x, y  # powers, and the errors added to them
        return i + j, sizes[i] * sizes[j] + of_x * sizes[j] + sizes[i] * of_y + unit * of_x * of_y

    result, square = None, (1, 0.0)
    while True:
        if n % 2:
            result = square if result is None else product(result, square)
        n //= 2
        if not n:
            assert result is not None
            return result[1]
        square = product(square, square)


def prepare_matrix_power(a: Any, n: Any) -> Problem:
    n = operator.index(n)
    refuse(not 2 <= n <= MOST_FACTORS, f"n={n}: no product, an inverse, or more factors than the check supports")
    a = square(a)
    size, dtype = len(a), guards.floating(a)
    count = n.bit_length() - 1 + n.bit_count() - 1
    return MatrixPower((a,), dtype, useful("matmul", size, 2.0 * count * size**3, (a,), dtype, a.size), n=n)


@record()
class Power:
    """The function w^t; a dataclass, so that equal t compare equal and share one remembered dry run."""

    t: float

    def __call__(self, w: np.ndarray) -> np.ndarray:
        powers: np.ndarray = w**self.t
        return powers


def prepare_fractional_matrix_power(A: Any, t: Any) -> Problem:
    finite = isinstance(t, (int, float)) and math.isfinite(t)
    refuse(not finite or t == int(t), f"t={t!r}: an integer is for products, not for eigenvectors")
    return _matrix_functions.problem("fractional_matrix_power", A, Power(t))


OPS = (
    scipy_function("fractional_matrix_power", prepare_fractional_matrix_power, small=SMALL, dtypes="dD"),
    Op("numpy.linalg.matrix_power", np.linalg.matrix_power, prepare_matrix_power, small=SMALL),
)
