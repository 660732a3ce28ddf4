"""Cholesky factors by recursion: the host factors panels, and the engine's products do all other work."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from trnpy._base import conventions
from trnpy._base.records import record
from trnpy._call import guards
from trnpy._call.dispatch import Problem, Reason, Unsupported
from trnpy._engine import lapack
from trnpy._engine.engines import Engine
from trnpy._engine.proof.weights import probe
from trnpy.linalg import _lapack_panels, _triangular
from trnpy.linalg._lapack_panels import BLOCK, adjoint, split
from trnpy.linalg._matrices import (
    SMALL,
    given_factor,
    in_double,
    matrices,
    nonzero,
    norm,
    right_hand_sides,
    sizes,
    square,
    useful,
    worst,
)
from trnpy.linalg._reference_forms import numpy_function, scipy_function

ANOTHER = 1.0  # the error relative to A that is reported if a factor is not triangular with a positive diagonal


def cholesky(a: np.ndarray, engine: Engine, block: int = BLOCK) -> np.ndarray:
    """Lower L with A = L L^H for Hermitian positive-definite a (..., n, n); LinAlgError if a matrix is not definite.

    Only the lower triangles are read. Golub & Van Loan, 4th ed., sec. 4.2.6, with halves instead of block columns: the
    products are larger and a third of the bytes are transferred (Gustavson, IBM J. Res. Dev. 41, 1997).
    """
    l = np.tril(a)
    _factor(l, engine, block)
    return l


def _factor(l: np.ndarray, engine: Engine, block: int) -> None:
    n = l.shape[-1]
    if n <= block:
        l[...] = _lapack_panels.cholesky(l)
        return
    h = split(n, block)
    _factor(l[..., :h, :h], engine, block)
    panel = _triangular.solve(l[..., :h, :h], l[..., h:, :h], engine, side="right", lower=True, trans="C")
    l[..., h:, :h] = panel
    l[..., h:, h:] -= np.tril(engine.gram(panel))
    _factor(l[..., h:, h:], engine, block)


def solve(c: np.ndarray, b: np.ndarray, lower: bool, engine: Engine) -> np.ndarray:
    """X (..., n, k) of A X = B from the factor c (..., n, n) of A: L L^H if ``lower``, else U^H U."""
    order = ("N", "C") if lower else ("C", "N")
    for trans in order:
        b = _triangular.solve(c, b, engine, lower=lower, trans=trans)
    return b


# --- Rows -------------------------------------------------------------------------------------------------------------


def cholesky_factor(a: np.ndarray, lower: bool, dtype: np.dtype, engine: Engine) -> np.ndarray:
    guards.finite(a)
    a = a.astype(dtype, copy=False)
    try:
        l = cholesky(a if lower else adjoint(a), engine)
    except lapack.LinAlgError as why:
        raise Unsupported(Reason.VALUE, "not positive definite") from why
    return l if lower else adjoint(l)


@record(kw_only=True)
class Cholesky(Problem):
    """The Cholesky factor of matrices a (..., n, n), of which one triangle is read."""

    lower: bool
    clean: bool = True  # whether the other triangle is zero; if not, it keeps the elements of a, as in LAPACK

    def run(self, engine: Engine) -> np.ndarray:
        (a,) = self.arrays
        factor = cholesky_factor(a, self.lower, self.dtype, engine)
        return factor if self.clean else beside(factor, a, self.lower)

    def error(self, result: Any) -> float:
        (a,) = self.arrays
        c = result[0] if isinstance(result, tuple) else result
        if not self.clean:
            c = np.tril(c) if self.lower else np.triu(c)
        l, a = (c, a) if self.lower else (adjoint(c), adjoint(a))
        # L L^H is the same if columns are exchanged or change sign, so the factor itself is tested too.
        if np.triu(l, 1).any() or not (np.diagonal(l, axis1=-2, axis2=-1).real > 0).all():
            return ANOTHER
        v = probe(a.shape[-1], self.dtype)
        below = np.tril(a, -1)
        av = below @ v + adjoint(below) @ v + np.diagonal(a, axis1=-2, axis2=-1).real[..., np.newaxis] * v
        return worst(l @ (adjoint(l) @ v) - av, sizes(np.tril(a)), v)

    def unique(self, result: Any) -> np.ndarray:
        """The factor's triangle, also if the result is a tuple that starts with the factor."""
        c = result[0] if isinstance(result, tuple) else result
        return np.tril(c) if self.lower else np.triu(c)


@record(kw_only=True)
class ChoFactor(Cholesky):
    """The factor, and ``lower`` as the caller passed it."""

    given: Any

    def deliver(self, result: np.ndarray) -> tuple[np.ndarray, Any]:
        return result, self.given


def prepare_cholesky(a: Any, lower: Any = False, overwrite_a: Any = False, check_finite: Any = True) -> Problem:
    a = matrices(a, square=True)
    dtype, n = guards.floating(a), a.shape[-1]
    return Cholesky((a,), dtype, useful("cholesky", n, n**3 / 3, (a,), dtype, a.size), lower=bool(lower))


def prepare_numpy_cholesky(a: Any, /, *, upper: Any = False) -> Problem:
    return in_double(prepare_cholesky(a, lower=not upper))


def beside(factor: np.ndarray, a: np.ndarray, lower: bool) -> np.ndarray:
    """``factor`` with the other triangle copied from a, because LAPACK does not write it."""
    both: np.ndarray = factor + (np.triu(a, 1) if lower else np.tril(a, -1))
    return both


def prepare_cho_factor(a: Any, lower: Any = False, overwrite_a: Any = False, check_finite: Any = True) -> Problem:
    a = square(a)
    in_place = bool(overwrite_a) and a.flags.forc  # SciPy factors a copy if the layout is any other
    clean = not conventions.leaves_triangle(lapack.linalg.cho_factor, in_place)
    return ChoFactor.of(prepare_cholesky(a, lower), clean=clean, given=lower)


@record(kw_only=True)
class ChoSolve(Problem):
    """A x = b, from the Cholesky factor of A."""

    lower: bool

    def run(self, engine: Engine) -> np.ndarray:
        c, b = self.arrays
        guards.finite(c, b)
        nonzero(c)
        c, columns = (x.astype(self.dtype, copy=False) for x in (c, b.reshape(len(b), -1)))
        return solve(c, columns, self.lower, engine).reshape(b.shape)

    def error(self, x: np.ndarray) -> float:
        c, b = self.arrays
        u = adjoint(np.tril(c)) if self.lower else np.triu(c)
        size = norm(u)  # not zero, but its square may overflow
        # Elements of x and of U x below the smallest normal number are zero or have an absolute error only.
        least = math.sqrt(x.size) * float(np.finfo(x.dtype).tiny)
        return norm(adjoint(u) @ (u @ x) - b) / size / (size * (norm(x) + least) + least + norm(b) / size or 1.0)


def prepare_cho_solve(c_and_lower: Any, b: Any, overwrite_b: Any = False, check_finite: Any = True) -> Problem:
    c, lower = c_and_lower
    c = given_factor(c)
    b = right_hand_sides(c, b)
    dtype, n, k = guards.floating(c, b), len(c), b.size // len(c)
    return ChoSolve((c, b), dtype, useful("trsm", n, 2.0 * n * n * k, (c, b), dtype, b.size), lower=bool(lower))


OPS = (
    scipy_function("cholesky", prepare_cholesky, small=SMALL),
    scipy_function("cho_factor", prepare_cho_factor, small=SMALL),
    scipy_function("cho_solve", prepare_cho_solve, small=SMALL),
    numpy_function("cholesky", prepare_numpy_cholesky, small=SMALL),
)
