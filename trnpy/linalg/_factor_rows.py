"""The rows of factorizations and linear systems: SciPy's and NumPy's options, costs and checks."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.linalg as reference

from trnpy import _guards, _host
from trnpy._dispatch import Cost, Op, Problem, Reason, Unsupported
from trnpy._engine import Engine
from trnpy._precision import probe
from trnpy.linalg import _cholesky, _lu, _routes, _stacks
from trnpy.linalg._matrices import SMALL, hermitian, norm, square
from trnpy.linalg._routes import real

# --- Cholesky ---------------------------------------------------------------------------------------------------------


def prepare_cholesky(a: Any, lower: Any = False, overwrite_a: Any = False, check_finite: Any = True) -> Problem:
    a = square(a)
    dtype = _guards.floating(a)
    n = len(a)
    flops = real(dtype) * n**3 / 3
    panels = -(-n // _cholesky.BLOCK)
    # Each trailing product takes a panel in and a full square out.
    moved = dtype.itemsize * n * n * panels
    cost = Cost("cholesky", n, flops, moved // 4 + a.nbytes, moved // 3, 2 * flops, flops / panels, panels)
    return Problem((a,), dtype, cost, (bool(lower),))


def prepare_scipy_cholesky(a: Any, lower: Any = False, overwrite_a: Any = False, check_finite: Any = True) -> Problem:
    if _routes.is_stack(a):
        return _routes.stack("cholesky", (a,), _stacks.cholesky, bool(lower))
    return prepare_cholesky(a, lower)


def run_cholesky(problem: Problem, engine: Engine) -> np.ndarray:
    (a,), (lower,) = problem.arrays, problem.params
    _guards.finite(a)
    try:
        l = _cholesky.cholesky(hermitian(a, lower, problem.dtype), engine)
    except _host.LinAlgError as why:
        raise Unsupported(Reason.VALUE, "not positive definite") from why
    return l if lower else l.conj().T


def cholesky_error(problem: Problem, result: np.ndarray) -> float:
    (a,), (lower,) = problem.arrays, problem.params
    h = hermitian(a, lower, problem.dtype)
    l = result if lower else result.conj().T
    v = probe(len(a), problem.dtype)
    return norm(l @ (l.conj().T @ v) - h @ v) / (norm(h) * float(np.sqrt(v.shape[1])))


def prepare_numpy_cholesky(a: Any, /, *, upper: Any = False) -> Problem:
    return prepare_cholesky(a, lower=not upper)


# --- Linear systems ---------------------------------------------------------------------------------------------------

STRUCTURES = {
    None: "detect",
    "gen": "general",
    "general": "general",
    "sym": "symmetric",
    "symmetric": "symmetric",
    "her": "hermitian",
    "hermitian": "hermitian",
    "pos": "positive",
    "positive definite": "positive",
}


def prepare_solve(
    a: Any, b: Any, lower: Any = False, overwrite_a: Any = False, overwrite_b: Any = False, check_finite: Any = True,
    assume_a: Any = None, transposed: Any = False,
) -> Problem:  # fmt: skip
    if transposed or assume_a not in STRUCTURES:
        raise Unsupported(Reason.PARAM, f"assume_a={assume_a!r}, transposed={transposed!r}")
    a, b = square(a), _guards.array(b)
    if b.ndim not in (1, 2) or len(b) != len(a) or b.size == 0 or len(a) == 1:
        raise Unsupported(Reason.LAYOUT, f"matrix {a.shape} and right-hand side {b.shape}")
    _guards.floating(b)
    dtype = _guards.floating(a, b)
    n = len(a)
    flops = real(dtype) * (2 / 3 * n**3 + 2.0 * n * b.size)
    panels = -(-n // _lu.BLOCK)
    moved = dtype.itemsize * n * n * panels // 3
    cost = Cost("solve", n, flops, a.nbytes + moved, moved, flops, flops / panels, panels)
    return Problem((a, b), dtype, cost, (STRUCTURES[assume_a], bool(lower), True))


def prepare_scipy_solve(
    a: Any, b: Any, lower: Any = False, overwrite_a: Any = False, overwrite_b: Any = False, check_finite: Any = True,
    assume_a: Any = None, transposed: Any = False,
) -> Problem:  # fmt: skip
    if _routes.is_stack(a) and not transposed and assume_a in (None, "gen", "general"):
        b = _guards.array(b)
        if a.shape[-1] == 1 or b.ndim == 0 or a.shape[-1] != b.shape[max(b.ndim - 2, 0)]:
            raise Unsupported(Reason.LAYOUT, f"matrices {a.shape} and right-hand sides {np.shape(b)}")
        return _routes.stack("solve", (a, b), _stacks.solve)
    return prepare_solve(a, b, lower, assume_a=assume_a, transposed=transposed)


def prepare_numpy_solve(a: Any, b: Any) -> Problem:
    problem = prepare_solve(a, b, assume_a="gen")
    return Problem(problem.arrays, problem.dtype, problem.cost, ("general", False, False))


def run_solve(problem: Problem, engine: Engine) -> np.ndarray:
    (a, b), (structure, lower, warns) = problem.arrays, problem.params
    _guards.finite(a, b)
    full, b = a.astype(problem.dtype, copy=False), b.astype(problem.dtype, copy=False)
    if structure == "detect":
        below, above = _host.bandwidth(full)
        if min(below, above) == 0 or max(below, above) == 1:
            raise Unsupported(Reason.LAYOUT, f"bandwidths {below} and {above}: the host solves it in O(n^2)")
        positive = np.array_equal(full, full.conj().T) and (full.diagonal().real > 0).all()
        structure = "maybe positive" if positive else "general"
    if structure in ("hermitian", "positive"):
        full = hermitian(full, lower, problem.dtype)
    if structure == "symmetric":
        triangle = np.tril(full, -1) if lower else np.triu(full, 1)
        full = triangle + triangle.T + np.diag(full.diagonal())
    columns = b.reshape(len(b), -1)
    x = _solve_factored(full, columns, structure, warns, engine)
    return x.reshape(b.shape)


def _solve_factored(a: np.ndarray, b: np.ndarray, structure: str, warns: bool, engine: Engine) -> np.ndarray:
    """x (n, k) of A x = b; Unsupported where SciPy would warn or raise, so that SciPy does."""
    norm = np.abs(a).sum(axis=0).max()
    if structure in ("positive", "maybe positive"):
        try:
            l = _cholesky.cholesky(a, engine)
        except _host.LinAlgError as why:
            if structure == "positive":
                raise Unsupported(Reason.VALUE, "not positive definite") from why
        else:
            (pocon,) = _host.lapack.get_lapack_funcs(("pocon",), (a,))
            _check_condition(pocon(l, norm, uplo="L")[0], a.dtype, warns)
            y = _host.solve_triangular(l, b, lower=True, check_finite=False)
            x: np.ndarray = _host.solve_triangular(l, y, lower=True, trans="C", check_finite=False)
            return x
    try:
        lu, p = _lu.factor(a, engine)
    except _lu.Singular as why:
        raise Unsupported(Reason.VALUE, str(why)) from why
    (gecon,) = _host.lapack.get_lapack_funcs(("gecon",), (a,))
    _check_condition(gecon(lu, norm)[0], a.dtype, warns)
    return _lu.solve(lu, p, b)


def _check_condition(rcond: float, dtype: np.dtype, warns: bool) -> None:
    if warns and rcond < np.finfo(dtype).eps:
        raise Unsupported(Reason.VALUE, f"ill-conditioned: rcond {rcond:.1e}")


def solve_error(problem: Problem, x: np.ndarray) -> float:
    (a, b), (structure, lower, _) = problem.arrays, problem.params
    if structure in ("hermitian", "positive"):
        a = hermitian(a, lower, problem.dtype)
    if structure == "symmetric":
        triangle = np.tril(a, -1) if lower else np.triu(a, 1)
        a = triangle + triangle.T + np.diag(a.diagonal())
    scale = norm(a) * norm(x) + norm(b)
    return norm(b - a @ x) / scale if scale else 0.0


FACTOR_OPS = (
    Op("scipy.linalg.cholesky", reference.cholesky, prepare_scipy_cholesky, run_cholesky, cholesky_error, SMALL,
       routed=_routes.stacked("cholesky")),
    Op("scipy.linalg.solve", reference.solve, prepare_scipy_solve, run_solve, solve_error, SMALL,
       routed=_routes.stacked("solve")),
)  # fmt: skip
NUMPY_FACTOR_OPS = (
    Op("numpy.linalg.cholesky", np.linalg.cholesky, prepare_numpy_cholesky, run_cholesky, cholesky_error, SMALL),
    Op("numpy.linalg.solve", np.linalg.solve, prepare_numpy_solve, run_solve, solve_error, SMALL),
)
