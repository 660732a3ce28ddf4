"""Linear systems, according to the structure of their matrices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from trnpy._base.records import record
from trnpy._call import guards
from trnpy._call.dispatch import Cost, Problem, Reason, Unsupported
from trnpy._engine import lapack
from trnpy._engine.abstract_arrays import priced, usual
from trnpy._engine.engines import Engine
from trnpy.linalg import _cholesky, _lu, _triangular
from trnpy.linalg._lapack_panels import adjoint, reciprocal_condition
from trnpy.linalg._matrices import (
    SMALL,
    hermitian,
    in_double,
    matrices,
    right_hand_sides,
    sizes,
    square,
    stack_size,
    useful,
)
from trnpy.linalg._reference_forms import numpy_function, scipy_function

STRUCTURES: Mapping[str | None, str] = MappingProxyType(
    {
        None: "detect", "gen": "general", "general": "general", "sym": "symmetric", "symmetric": "symmetric",
        "her": "hermitian", "hermitian": "hermitian", "pos": "positive", "positive definite": "positive",
        "lower triangular": "lower", "upper triangular": "upper",
    }
)  # fmt: skip
ON_THE_HOST = ("diagonal", "tridiagonal", "banded")


def structure_of(assume_a: Any) -> str:
    if assume_a in ON_THE_HOST:
        raise Unsupported(Reason.PARAM, f"assume_a={assume_a!r}: the host solves it in O(n)")
    if not (assume_a is None or isinstance(assume_a, str)) or assume_a not in STRUCTURES:
        raise Unsupported(Reason.PARAM, f"assume_a={assume_a!r}")
    return STRUCTURES[assume_a]


def whole(a: np.ndarray, structure: str, lower: bool, dtype: np.dtype) -> np.ndarray:
    """The matrices (..., n, n) of ``structure``, completed from the triangle that is read."""
    if structure in ("hermitian", "positive"):
        if a.ndim == 2:
            return hermitian(a, lower, dtype)
        triangle = np.tril(a, -1) if lower else np.triu(a, 1)
        diagonal = np.eye(a.shape[-1], like=a) * np.diagonal(a, axis1=-2, axis2=-1).real[..., np.newaxis]
        full: np.ndarray = triangle + adjoint(triangle) + diagonal
        return full.astype(dtype, copy=False)
    if structure == "symmetric":
        triangle = np.tril(a, -1) if lower else np.triu(a, 1)
        full = (np.tril(a) if lower else np.triu(a)) + triangle.swapaxes(-1, -2)
        return full.astype(dtype, copy=False)
    if structure in ("lower", "upper"):
        return (np.tril(a) if structure == "lower" else np.triu(a)).astype(dtype, copy=False)
    return a.astype(dtype, copy=False)


@record(kw_only=True)
class LinearSystem(Problem):
    """A x = b of matrices (..., n, n)."""

    structure: str  # "detect": found as in SciPy
    lower: bool
    warns: bool = True  # whether the original function warns about ill-conditioned matrices

    def run(self, engine: Engine) -> np.ndarray:
        (a, b), structure = self.arrays, self.structure
        guards.finite(a, b)
        full, b = a.astype(self.dtype, copy=False), b.astype(self.dtype, copy=False)
        if structure == "detect":
            structure = detected(full)
        columns = b.reshape(len(b), -1) if a.ndim == 2 else b
        x = _solved(whole(full, structure, self.lower, self.dtype), columns, structure, self.warns, engine)
        return x.reshape(b.shape)

    def error(self, x: np.ndarray) -> float:
        a, b = self.arrays
        a = whole(a, self.structure, self.lower, self.dtype)
        columns, x = (m.reshape(len(m), -1) if a.ndim == 2 else m for m in (b, x))
        # Elements of x below the smallest normal number are zero or have an absolute error only.
        least = len(x) * float(np.finfo(x.dtype).tiny)
        scale = sizes(a) * (sizes(x) + least) + sizes(columns)
        return float((sizes(columns - a @ x) / np.where(scale > 0, scale, 1)).max())


def _system_cost(a: np.ndarray, k: int, structure: str, dtype: np.dtype) -> Cost:
    """The cost of k right-hand sides for each matrix a (..., n, n)."""
    n = a.shape[-1]
    kind, flops = "solve", (1 / 3 if structure == "positive" else 2 / 3) * n**3 + 2.0 * n * n * k
    if structure in ("lower", "upper"):
        kind, flops = "trsm", 1.0 * n * n * k
    return useful(kind, n, flops, (a,), dtype, 2 * stack_size(a) * n * k)


def prepare_solve(
    a: Any, b: Any, lower: Any = False, overwrite_a: Any = False, overwrite_b: Any = False, check_finite: Any = True,
    assume_a: Any = None, transposed: Any = False,
) -> LinearSystem:  # fmt: skip
    structure = structure_of(assume_a)
    a = square(a)
    b = right_hand_sides(a, b)
    dtype, n = guards.floating(a, b), len(a)
    if n == 1 or (transposed and dtype.kind == "c"):
        raise Unsupported(Reason.PARAM, f"{n} unknowns, transposed={transposed!r} of {dtype}")
    if transposed:  # the transpose of a symmetric matrix has the same structure
        a, lower = a.T, not lower
        structure = {"lower": "upper", "upper": "lower"}.get(structure, structure)
    cost = _system_cost(a, b.size // n, structure, dtype)
    return LinearSystem((a, b), dtype, cost, structure=structure, lower=bool(lower))


def _is_stack(a: Any) -> bool:
    return type(a) is np.ndarray and a.ndim > 2


def prepare_scipy_solve(
    a: Any, b: Any, lower: Any = False, overwrite_a: Any = False, overwrite_b: Any = False, check_finite: Any = True,
    assume_a: Any = None, transposed: Any = False,
) -> Problem:  # fmt: skip
    if not _is_stack(a):
        return prepare_solve(a, b, lower, assume_a=assume_a, transposed=transposed)
    b = guards.array(b)
    return _stack_problem(a, b, structure_of(assume_a), bool(lower), bool(transposed))


def _stack_problem(a: np.ndarray, b: np.ndarray, structure: str, lower: bool, transposed: bool) -> LinearSystem:
    """A stack a (..., n, n) with right-hand sides b (..., n, k) of the same batch dimensions."""
    a = matrices(a, square=True)
    if structure not in ("detect", "general", "positive") or transposed:
        raise Unsupported(Reason.PARAM, f"stacks of {structure} matrices, transposed={transposed!r}")
    if b.ndim < 3 or b.shape[:-1] != a.shape[:-1] or b.size == 0:
        raise Unsupported(Reason.LAYOUT, f"matrices {a.shape} and right-hand sides {b.shape}")
    dtype = guards.floating(a, b)
    cost = _system_cost(a, b.shape[-1], structure, dtype)
    return LinearSystem((a, b), dtype, cost, structure=structure, lower=lower)


def prepare_numpy_solve(a: Any, b: Any) -> Problem:
    if _is_stack(a):
        problem = _stack_problem(a, guards.array(b), "general", False, False)
    else:
        problem = prepare_solve(a, b, assume_a="gen")
    return in_double(replace(problem, warns=False))


@priced("", lambda a: (3 * a.nbytes, ("general",)))
def detected(a: np.ndarray) -> str:
    """The structure that SciPy finds in a (..., n, n); Unsupported if the host solves it fast or stacks are mixed."""
    if a.ndim == 2:
        below, above = lapack.bandwidth(a)
        if min(below, above) == 0 or max(below, above) == 1:
            raise Unsupported(Reason.LAYOUT, f"bandwidths {below} and {above}: the host solves it in O(n^2)")
    elif not (a[..., 0, -1].all() and a[..., -1, 0].all()):
        raise Unsupported(Reason.LAYOUT, "a corner is zero: a matrix may be triangular or banded")
    hermitian = (a == adjoint(a)).all(axis=(-2, -1))
    if not hermitian.any():
        return "general"
    if not hermitian.all():
        raise Unsupported(Reason.VALUE, "some matrices are Hermitian")
    positive = (np.diagonal(a, axis1=-2, axis2=-1).real > 0).all()
    return "maybe positive" if positive else "hermitian"


def _solved(a: np.ndarray, b: np.ndarray, structure: str, warns: bool, engine: Engine) -> np.ndarray:
    """x (..., n, k) of A x = b; Unsupported if SciPy would warn or raise: then SciPy runs."""
    if structure in ("lower", "upper"):
        lower = structure == "lower"
        check_triangle(a, lower)
        return _triangular.solve(a, b, engine, lower=lower)
    if structure in ("positive", "maybe positive"):
        l = factored_positive(a, engine, required=structure == "positive", warns=warns)
        if l is not None:
            return _cholesky.solve(l, b, True, engine)
    lu, pivots = factored_general(a, engine, warns)
    return _lu.solve(lu, pivots, b, engine)


def factored_positive(a: np.ndarray, engine: Engine, required: bool, warns: bool = True) -> np.ndarray | None:
    """L of well-conditioned positive-definite a (..., n, n); None if one is indefinite, unless ``required``."""
    try:
        l = _cholesky.cholesky(a, engine)
    except lapack.LinAlgError as why:
        if required:
            raise Unsupported(Reason.VALUE, "not positive definite") from why
        return None
    n = a.shape[-1]
    for one, norm_1 in zip(l.reshape(-1, n, n), np.abs(a).sum(axis=-2).max(axis=-1).ravel(), strict=True):
        _check_condition(reciprocal_condition(one, "pocon", norm_1, uplo="L"), a.dtype, warns)
    return l


def factored_general(a: np.ndarray, engine: Engine, warns: bool = True) -> tuple[np.ndarray, np.ndarray]:
    """LU and pivots of well-conditioned a (..., n, n)."""
    lu, pivots = _lu.factor(a, engine)
    if not usual(np.diagonal(lu, axis1=-2, axis2=-1).all(), True):
        raise Unsupported(Reason.VALUE, "singular: a pivot is zero")
    n, size = a.shape[-1], np.abs(a)
    # Some versions of SciPy divide a row norm by a column norm of the inverse for the warning: use the larger norm.
    norms = np.maximum(size.sum(axis=-2).max(axis=-1), size.sum(axis=-1).max(axis=-1)).ravel()
    for one, norm in zip(lu.reshape(-1, n, n), norms, strict=True):
        _check_condition(reciprocal_condition(one, "gecon", norm), a.dtype, warns)
    return lu, pivots


def check_triangle(a: np.ndarray, lower: bool, warns: bool = True) -> None:
    """Refuse triangles (..., n, n) that are singular, or so nearly singular that SciPy warns."""
    if not usual(np.diagonal(a, axis1=-2, axis2=-1).all(), True):
        raise Unsupported(Reason.VALUE, "singular: a zero on the diagonal")
    for one in a.reshape(-1, *a.shape[-2:]):
        _check_condition(reciprocal_condition(one, "trcon", uplo="L" if lower else "U"), a.dtype, warns)


def _check_condition(rcond: float, dtype: np.dtype, warns: bool) -> None:
    if warns and not usual(rcond, 1.0) >= np.finfo(dtype).eps:
        raise Unsupported(Reason.VALUE, f"ill-conditioned: rcond {rcond:.1e}")


OPS = (
    scipy_function("solve", prepare_scipy_solve, small=SMALL),
    numpy_function("solve", prepare_numpy_solve, small=SMALL),
)
