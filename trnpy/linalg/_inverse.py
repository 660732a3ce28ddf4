"""Inverses: of triangles by recursion, of other matrices from LU or Cholesky factors."""

from __future__ import annotations

from typing import Any

import numpy as np

from trnpy._base.records import record
from trnpy._call import guards
from trnpy._call.dispatch import Problem, Reason, Unsupported
from trnpy._engine.engines import Engine
from trnpy._engine.proof.weights import probe
from trnpy.linalg import _lapack_panels, _lu, _triangular
from trnpy.linalg._lapack_panels import BLOCK, adjoint, split
from trnpy.linalg._matrices import SMALL, in_double, matrices, sizes, useful, worst
from trnpy.linalg._reference_forms import numpy_function, scipy_function
from trnpy.linalg._solve import check_triangle, detected, factored_general, factored_positive, structure_of, whole


def upper(u: np.ndarray, engine: Engine, block: int = BLOCK) -> np.ndarray:
    """The inverse of the upper triangle of u (..., n, n), zero below.

    A system with U22 is solved, so that X U - I is as small as LAPACK's (Du Croz & Higham, IMA J. Numer. Anal. 12, 1
    (1992)); multiplication by the inverse of U22 made U X - I six times as large.
    """
    n = u.shape[-1]
    if n <= block:
        return _lapack_panels.upper_inverse(u)
    h = split(n, block)
    x = np.zeros_like(u)
    x[..., :h, :h] = upper(u[..., :h, :h], engine, block)
    x[..., h:, h:] = upper(u[..., h:, h:], engine, block)
    product = engine.matmul(x[..., :h, :h], u[..., :h, h:])
    x[..., :h, h:] = -_triangular.solve(u[..., h:, h:], product, engine, side="right", lower=False)
    return x


def general(lu: np.ndarray, pivots: np.ndarray, engine: Engine) -> np.ndarray:
    """A^-1 (..., n, n) from ``_lu.factor``: X L = U^-1 is solved, and X A - I is as small as LAPACK's.

    Higham, Accuracy and Stability, 2nd ed., sec. 14.3, method B.
    """
    x = _triangular.solve(lu, upper(lu, engine), engine, side="right", lower=True, unit=True)
    p = np.argsort(_lu.order(pivots, lu.shape[-1]), axis=-1)
    return x[:, p] if p.ndim == 1 else np.take_along_axis(x, p[..., np.newaxis, :], axis=-1)


def positive(l: np.ndarray, engine: Engine) -> np.ndarray:
    """A^-1 (..., n, n), exactly Hermitian, from the lower Cholesky factor of A."""
    half = np.tril(engine.gram(upper(adjoint(l), engine)))
    inverse: np.ndarray = half + adjoint(np.tril(half, -1))
    return inverse


# --- Rows -------------------------------------------------------------------------------------------------------------


@record(kw_only=True)
class Inverse(Problem):
    """A^-1 of matrices a (..., n, n)."""

    structure: str
    lower: bool
    warns: bool

    def run(self, engine: Engine) -> np.ndarray:
        (a,), structure = self.arrays, self.structure
        guards.finite(a)
        full = a.astype(self.dtype, copy=False)
        if structure == "detect":
            structure = detected(full)
        full = whole(full, structure, self.lower, self.dtype)
        if structure in ("lower", "upper"):
            check_triangle(full, structure == "lower")
            u = upper(adjoint(full) if structure == "lower" else full, engine)
            return adjoint(u) if structure == "lower" else u
        if structure in ("positive", "maybe positive"):
            l = factored_positive(full, engine, required=structure == "positive")
            if l is not None:
                return positive(l, engine)
        x = general(*factored_general(full, engine, self.warns), engine)
        if structure in ("symmetric", "hermitian", "maybe positive"):  # exactly symmetric or Hermitian, as in SciPy
            x = (x + (x.T if structure == "symmetric" else adjoint(x))) / 2
        return x

    def error(self, x: np.ndarray) -> float:
        (a,) = self.arrays
        a = whole(a, self.structure, self.lower, self.dtype)
        v = probe(a.shape[-1], self.dtype)
        return worst(a @ (x @ v) - v, sizes(a) * sizes(x), v)


def prepare_inv(
    a: Any, overwrite_a: Any = False, check_finite: Any = True, *, assume_a: Any = None, lower: Any = False
) -> Problem:
    if assume_a in ("symmetric", "hermitian", "positive definite"):  # SciPy 1.17 knows only the short names
        raise Unsupported(Reason.PARAM, f"assume_a={assume_a!r}")
    structure = structure_of(assume_a)
    return _inverse_problem(matrices(a, square=True), structure, bool(lower), True)


def _inverse_problem(a: np.ndarray, structure: str, lower: bool, warns: bool) -> Problem:
    dtype, n = guards.floating(a), a.shape[-1]
    if n == 1 or (a.ndim > 2 and structure not in ("detect", "general")):
        raise Unsupported(Reason.LAYOUT, f"{structure} matrices {a.shape}")
    flops = {"lower": 1 / 3, "upper": 1 / 3, "positive": 1.0}.get(structure, 2.0) * n**3
    cost = useful("inv", n, flops, (a,), dtype, a.size)
    return Inverse((a,), dtype, cost, structure=structure, lower=lower, warns=warns)


def prepare_numpy_inv(a: Any) -> Problem:
    return in_double(_inverse_problem(matrices(a, square=True), "general", False, False))


OPS = (
    scipy_function("inv", prepare_inv, small=SMALL),
    numpy_function("inv", prepare_numpy_inv, small=SMALL),
)
