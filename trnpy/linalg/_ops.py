"""Every accelerated function of scipy.linalg and numpy.linalg, one row each: options, costs and checks."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from trnpy._base import conventions
from trnpy._call import guards
from trnpy._call.dispatch import Cost, Op, Problem, Reason, Route, Unsupported
from trnpy._engine import lapack
from trnpy._engine.engines import Engine
from trnpy._engine.precision import probe
from trnpy._engine.stand_ins import usual
from trnpy._host import stacks
from trnpy._settings.host_rates import FLOPS
from trnpy.linalg import _eigh, _refine, _routes
from trnpy.linalg._factor_rows import NUMPY_FACTOR_OPS, factor_ops
from trnpy.linalg._function_rows import NUMPY_FUNCTION_OPS, function_ops
from trnpy.linalg._matrices import SMALL
from trnpy.linalg._matrices import hermitian as _hermitian
from trnpy.linalg._matrices import norm as _norm
from trnpy.linalg._matrices import square as _square
from trnpy.linalg._orthogonal_rows import NUMPY_ORTHOGONAL_OPS, orthogonal_ops
from trnpy.linalg._routes import real as _real
from trnpy.linalg._solve_rows import NUMPY_SOLVE_OPS, solve_ops
from trnpy.linalg._svd_rows import NUMPY_SVD_OPS, svd_ops

LARGEST_EXPONENT = 500  # of the largest entry: beyond it scaling by a power of two could overflow

_EighResult = type(np.linalg.eigh(np.eye(1)))


# --- Hermitian eigenproblems ------------------------------------------------------------------------------------------


def _eigen_problem(
    a: Any, b: Any, vectors: bool, params: tuple[Any, ...],
    route: Callable[[np.ndarray, bool, np.dtype], Route | None] | None = None,
) -> Problem:  # fmt: skip
    a = _square(a)
    arrays = (a,) if b is None else (a, _square(b))
    dtype = guards.floating(*arrays)
    other = None if route is None else route(a, params[0], dtype)
    if dtype.char not in "dD" and other is None:
        raise Unsupported(Reason.DTYPE, f"{dtype} eigenproblems: the host's start is the answer already")
    if arrays[-1].shape != a.shape:
        raise Unsupported(Reason.PARAM, f"shapes {a.shape} and {arrays[-1].shape}")
    n = len(a)
    cube = _real(dtype) * float(n) ** 3
    kind = "eigh" if vectors else "eigvalsh"
    useful = FLOPS[kind] * cube + (0.0 if b is None else 3 * cube)
    moved = sum(m.nbytes for m in arrays), dtype.itemsize * (n * n + n if vectors else n)
    cost = Cost(kind, n, useful, *moved, launches=0)
    on_device = dtype.char in "dD"
    methods = _eigh.methods(n, dtype) if on_device else ()
    return Problem(arrays, dtype, cost, params, other, on_device=on_device, methods=methods)


def _selection(n: int, by_index: Any, by_value: Any) -> tuple[str, tuple[float, float]] | None:
    """Which eigenvalues are wanted: ("index", (first, last)) inclusive or ("value", (low, high]) half-open."""
    if by_index is not None and by_value is not None:
        raise Unsupported(Reason.PARAM, "two subsets")
    if by_index is not None:
        first, last = (operator.index(i) for i in by_index)
        if not 0 <= first <= last < n:
            raise Unsupported(Reason.PARAM, f"subset_by_index {first}, {last} of {n}")
        return "index", (first, last)
    if by_value is not None:
        low, high = (float(x) for x in by_value)
        if not low < high:
            raise Unsupported(Reason.PARAM, f"subset_by_value {low}, {high}")
        return "value", (low, high)
    return None


def prepare_eigh(
    a: Any, b: Any = None, *, lower: Any = True, eigvals_only: Any = False, overwrite_a: Any = False,
    overwrite_b: Any = False, type: Any = 1, check_finite: Any = True, subset_by_index: Any = None,
    subset_by_value: Any = None, driver: Any = None,
) -> Problem:  # fmt: skip
    kind = operator.index(type)
    if kind not in (1, 2, 3):
        raise Unsupported(Reason.PARAM, f"type={type!r}")
    if _routes.is_stack(a) and b is driver is subset_by_index is subset_by_value is None:
        run = stacks.eigvalsh if eigvals_only else stacks.eigh
        return _routes.stack("eigvalsh" if eigvals_only else "eigh", (a,), run, bool(lower))
    selection = _selection(np.shape(a)[0] if np.ndim(a) else 0, subset_by_index, subset_by_value)
    drivers = ("ev", "evd", "evr", "evx") if b is None else ("gv", "gvd", "gvx")
    if driver is not None and (driver not in drivers or selection is not None):
        raise Unsupported(Reason.PARAM, f"driver={driver!r}")
    plain = b is None and selection is None and driver is None and not eigvals_only
    params = (bool(lower), not eigvals_only, kind, selection, tuple)
    return _eigen_problem(a, b, not eigvals_only, params, _routes.evd if plain else None)


def prepare_eigvalsh(
    a: Any, b: Any = None, *, lower: Any = True, overwrite_a: Any = False, overwrite_b: Any = False, type: Any = 1,
    check_finite: Any = True, subset_by_index: Any = None, subset_by_value: Any = None, driver: Any = None,
) -> Problem:  # fmt: skip
    return prepare_eigh(
        a, b, lower=lower, eigvals_only=True, type=type, subset_by_index=subset_by_index,
        subset_by_value=subset_by_value, driver=driver,
    )  # fmt: skip


def _numpy_eigen(a: Any, uplo: Any, vectors: bool) -> Problem:
    if not isinstance(uplo, str) or uplo.upper() not in ("L", "U"):
        raise Unsupported(Reason.PARAM, f"UPLO={uplo!r}")
    return _eigen_problem(a, None, vectors, (uplo.upper() == "L", vectors, 1, None, _EighResult))


def prepare_numpy_eigh(a: Any, UPLO: Any = "L") -> Problem:
    return _numpy_eigen(a, UPLO, True)


def prepare_numpy_eigvalsh(a: Any, UPLO: Any = "L") -> Problem:
    return _numpy_eigen(a, UPLO, False)


def run_eigh(problem: Problem, engine: Engine) -> Any:
    lower, vectors, kind, selection, make = problem.params
    guards.finite(*problem.arrays)
    full = [_hermitian(m, lower, problem.dtype) for m in problem.arrays]
    for m in full:
        exponent = int(usual(np.frexp(np.abs(m).max())[1], 0))
        if abs(exponent) > LARGEST_EXPONENT:
            raise Unsupported(Reason.VALUE, f"largest entry near 2^{exponent}")
    method = problem.method or "start"
    try:
        if len(full) == 1:
            w, x = _eigh.eigh(full[0], engine, method)
        else:
            w, x = _eigh.generalized(full[0], full[1], kind, engine, method)
    except _refine.NotConverged as why:
        raise Unsupported(Reason.ACCURACY, str(why)) from why
    if selection is not None:
        by, (low, high) = selection
        chosen = slice(int(low), int(high) + 1) if by == "index" else usual((w > low) & (w <= high), slice(None))
        w, x = w[chosen], x[:, chosen]
    if not vectors:
        return w
    return make((w, x)) if make is tuple else make(w, x)


def eigh_error(problem: Problem, result: Any) -> float:
    lower, vectors, kind, selection, _ = problem.params
    a, *rest = (_hermitian(m, lower, problem.dtype) for m in problem.arrays)
    norm = _norm(a)
    if not vectors:
        return _spectrum_error(a, rest, result, selection, norm)
    w, x = result
    v = probe(len(w), problem.dtype)
    if not len(w):
        return 0.0
    xv, xwv = x @ v, x @ (w[:, np.newaxis] * v)
    width = float(np.sqrt(v.size))
    if not rest:
        orthogonality = _norm(x.conj().T @ xv - v) / width
        return max(orthogonality, _norm(a @ xv - xwv) / (norm * width) if norm else _norm(xwv))
    (b,) = rest
    left, right = {1: (a @ xv, b @ xwv), 2: (a @ (b @ xv), xwv), 3: (b @ (a @ xv), xwv)}[kind]
    scale = {1: norm + _norm(b) * np.abs(w).max(), 2: norm * _norm(b), 3: norm * _norm(b)}[kind] * _norm(x) * width
    return float(_norm(left - right) / scale)


def _spectrum_error(a: np.ndarray, rest: list[np.ndarray], w: np.ndarray, selection: Any, norm: float) -> float:
    """What eigenvalues alone can be checked for: order, size, and where all are there trace and Frobenius norm."""
    if not np.isfinite(w).all() or (np.diff(w) < 0).any():
        return np.inf
    if rest or selection is not None:
        return 0.0 if rest or not len(w) or np.abs(w).max() <= 1.001 * norm else np.inf
    if norm == 0:
        return _norm(w)
    trace = abs(w.sum() - a.diagonal().real.sum()) / (norm * np.sqrt(len(w)))
    return float(max(trace, abs(_norm(w) - norm) / norm))


def _form(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        return conventions.form(function, args, kwargs)
    except conventions.Refused as why:
        raise Unsupported(Reason.PARAM, str(why)) from why


@functools.cache
def _scipys() -> tuple[Op, ...]:
    """Rows of scipy.linalg, which this imports."""
    eigh, eigvalsh = lapack.linalg.eigh, lapack.linalg.eigvalsh
    rows = (
        Op("scipy.linalg.eigh", eigh, prepare_eigh, run_eigh, eigh_error, SMALL, look=_routes.look_eigh, dry=True),
        Op("scipy.linalg.eigvalsh", eigvalsh, prepare_eigvalsh, run_eigh, eigh_error, SMALL,
           look=_routes.stacked("eigvalsh"), dry=True),
        *factor_ops(),
        *solve_ops(),
        *orthogonal_ops(),
        *svd_ops(),
        *function_ops(),
    )  # fmt: skip
    return tuple(replace(row, form=_form) for row in rows)


def __getattr__(name: str) -> tuple[Op, ...]:
    if name == "OPS":
        return _scipys()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _in_c_order(row: Op) -> Op:
    """``row`` with results in C order, as NumPy's gufuncs give; SciPy has an order for each function and version."""

    def deliver(problem: Problem, result: Any) -> Any:
        delivered = row.deliver(problem, result)
        if isinstance(delivered, tuple):
            ordered = [np.asarray(x, order="C") if isinstance(x, np.ndarray) else x for x in delivered]
            return tuple(ordered) if type(delivered) is tuple else type(delivered)(*ordered)
        return np.asarray(delivered, order="C") if isinstance(delivered, np.ndarray) else delivered

    return replace(row, deliver=deliver)


_GUFUNCS = (
    Op("numpy.linalg.eigh", np.linalg.eigh, prepare_numpy_eigh, run_eigh, eigh_error, SMALL, dry=True),
    Op("numpy.linalg.eigvalsh", np.linalg.eigvalsh, prepare_numpy_eigvalsh, run_eigh, eigh_error, SMALL, dry=True),
    *NUMPY_FACTOR_OPS,
    *NUMPY_SOLVE_OPS,
    *NUMPY_SVD_OPS,
)
NUMPY_OPS = (*map(_in_c_order, _GUFUNCS), *NUMPY_ORTHOGONAL_OPS, *NUMPY_FUNCTION_OPS)
