"""The rows of singular values and what is made of them: SciPy's and NumPy's options, costs and checks."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from trnpy._call import guards
from trnpy._call.dispatch import Op, Problem, Reason, Unsupported
from trnpy._engine import lapack
from trnpy._engine.engines import Engine
from trnpy._engine.precision import probe
from trnpy._engine.stand_ins import usual
from trnpy._host import stacks
from trnpy._settings.host_rates import FLOPS
from trnpy.linalg import _eigh, _refine, _routes, _svd
from trnpy.linalg._matrices import SMALL, hermitian, norm, square, tolerance, useful

MOST_ELEMENTS = 2**31 - 1  # of a basis: as many as LAPACK's integers of 32 bits count
LARGEST_EXPONENT = 500  # of the largest entry
_SVDResult = type(np.linalg.svd(np.eye(1)))


def _refuse(reason: bool, what: str) -> None:
    if reason:
        raise Unsupported(Reason.PARAM, what)


def _matrix(a: Any) -> np.ndarray:
    """``a`` as one non-empty matrix (m, n) of float64 or complex128."""
    m = guards.array(a)
    dtype = guards.floating(m)
    if m.ndim != 2 or m.size == 0:
        raise Unsupported(Reason.LAYOUT, f"shape {m.shape} is not one non-empty matrix")
    if dtype.char not in "dD":
        raise Unsupported(Reason.DTYPE, f"{dtype} singular vectors: the host's start is the answer already")
    return m


def _problem(a: Any, kind: str, *params: Any, after: float = 0.0, full: bool = False) -> Problem:
    """The singular value decomposition of ``a``, and products of ``after`` operations; ``full``: the whole basis."""
    a = _matrix(a)
    dtype = guards.floating(a)
    m, n = max(a.shape), min(a.shape)
    if m * (m if full else n) > MOST_ELEMENTS:
        raise Unsupported(Reason.LAYOUT, f"a basis of {m} rows: SciPy has a message of its own")
    host, size = "svdvals" if kind == "svdvals" else "svd", (m * n * n) ** (1 / 3)
    results = n if kind == "svdvals" else (m + n) * n
    cost = useful(host, size, FLOPS[kind] * m * n**2 + after, (a,), dtype, results)
    return Problem((a,), dtype, cost, params, methods=_svd.methods(n, dtype))


def _moderate(a: np.ndarray) -> None:
    """Refuse what is not finite, and what scaling by a power of two could overflow."""
    guards.finite(a)
    exponent = int(usual(np.frexp(np.abs(a).max())[1], 0))
    if abs(exponent) > LARGEST_EXPONENT:
        raise Unsupported(Reason.VALUE, f"largest entry near 2^{exponent}")


def _decomposed(problem: Problem, engine: Engine) -> _svd.Factors:
    (a,) = problem.arrays
    _moderate(a)
    try:
        return _svd.svd(a.astype(problem.dtype, copy=False), engine, problem.method or "start")
    except _refine.NotConverged as why:
        raise Unsupported(Reason.ACCURACY, str(why)) from why


# --- U diag(s) V^H ----------------------------------------------------------------------------------------------------


def prepare_svd(
    a: Any, full_matrices: Any = True, compute_uv: Any = True, overwrite_a: Any = False, check_finite: Any = True,
    lapack_driver: Any = "gesdd",
) -> Problem:  # fmt: skip
    _refuse(not isinstance(lapack_driver, str) or lapack_driver != "gesdd", f"lapack_driver={lapack_driver!r}")
    if not compute_uv:
        return prepare_svdvals(a)
    if _routes.is_stack(a):
        return _routes.stack("svd", (a,), stacks.svd, bool(full_matrices))
    return _problem(a, "svd", bool(full_matrices), tuple, full=bool(full_matrices))


def prepare_svdvals(a: Any, overwrite_a: Any = False, check_finite: Any = True) -> Problem:
    if _routes.is_stack(a):
        return _routes.stack("svdvals", (a,), stacks.svdvals)
    return _problem(a, "svdvals")


def prepare_numpy_svd(a: Any, full_matrices: Any = True, compute_uv: Any = True, hermitian: Any = False) -> Problem:
    _refuse(bool(hermitian), f"hermitian={hermitian!r}")
    if not compute_uv:
        return _problem(a, "svdvals")
    return _problem(a, "svd", bool(full_matrices), _SVDResult, full=bool(full_matrices))


def prepare_numpy_svdvals(x: Any, /) -> Problem:
    return _problem(x, "svdvals")


def run_svd(problem: Problem, engine: Engine) -> Any:
    full, make = problem.params
    u, s, v = _decomposed(problem, engine)
    if full:
        u, v = _svd.complete(u, len(u), engine), _svd.complete(v, len(v), engine)
    vh = v.conj().T
    return (u, s, vh) if make is tuple else make(u, s, vh)


def run_svdvals(problem: Problem, engine: Engine) -> np.ndarray:
    return _decomposed(problem, engine)[1]


def _orthonormal_error(x: np.ndarray) -> float:
    """|X^H X - I| on probes."""
    v = probe(x.shape[1], x.dtype)
    return norm(x.conj().T @ (x @ v) - v) / math.sqrt(v.size) if v.size else 0.0


def svd_error(problem: Problem, result: Any) -> float:
    (a,), (u, s, vh) = problem.arrays, result
    k = len(s)
    v = probe(a.shape[1], problem.dtype)
    residual = norm(a @ v - u[:, :k] @ (s[:, np.newaxis] * (vh[:k] @ v)))
    size = norm(a) * math.sqrt(v.shape[1])
    return max(
        svdvals_error(problem, s), residual / size if size else residual, _orthonormal_error(u),
        _orthonormal_error(vh.conj().T),
    )  # fmt: skip


def svdvals_error(problem: Problem, s: np.ndarray) -> float:
    """What values alone can be checked for: sign, order, and that the sum of their squares is |A|_F^2."""
    if not np.isfinite(s).all() or (s < 0).any() or (np.diff(s) > 0).any():
        return math.inf
    size = norm(problem.arrays[0])
    return abs(norm(s) - size) / size if size else norm(s)


# --- Pseudo-inverses --------------------------------------------------------------------------------------------------


def prepare_pinv(
    a: Any, *, atol: Any = None, rtol: Any = None, return_rank: Any = False, check_finite: Any = True
) -> Problem:
    options = tolerance("atol", atol), tolerance("rtol", rtol), bool(return_rank)
    if _routes.is_stack(a):
        return _routes.stack("pinv", (a,), stacks.pinv, *options)
    m, n = _matrix(a).shape
    return _problem(a, "pinv", *options, after=2.0 * m * n * min(m, n))


def prepare_numpy_pinv(a: Any, rcond: Any = None, hermitian: Any = False, *, rtol: Any = None) -> Problem:
    _refuse(bool(hermitian) or rcond is not None or rtol is not None, "rcond, hermitian or rtol")
    m, n = _matrix(a).shape
    # NumPy's default, not SciPy's.
    return _problem(a, "pinv", None, 1e-15, False, after=2.0 * m * n * min(m, n))


def prepare_pinvh(
    a: Any, atol: Any = None, rtol: Any = None, lower: Any = True, return_rank: Any = False, check_finite: Any = True
) -> Problem:
    options = tolerance("atol", atol), tolerance("rtol", rtol), bool(return_rank)
    if _routes.is_stack(a):
        return _routes.stack("pinvh", (a,), stacks.pinvh, bool(lower), *options)
    a = square(_matrix(a))
    n, dtype = len(a), guards.floating(a)
    cost = useful("eigh", n, FLOPS["pinvh"] * float(n) ** 3, (a,), dtype, a.size)
    return Problem((a,), dtype, cost, (bool(lower), *options), methods=_eigh.methods(n, dtype))


def _kept(s: np.ndarray, shape: tuple[int, ...], atol: float | None, rtol: float | None) -> np.ndarray:
    """Which of the singular values s (k,) count; Unsupported where none does, or rounding decides."""
    relative = max(shape) * float(np.finfo(s.dtype).eps) if rtol is None else rtol
    threshold = (atol or 0.0) + s.max() * relative
    if usual(((s > threshold / stacks.NEAR) & (s < threshold * stacks.NEAR)).any(), False):
        raise Unsupported(Reason.VALUE, "a singular value near the threshold")
    kept: np.ndarray = usual(s > threshold, np.ones(len(s), bool))
    if not kept.any():
        raise Unsupported(Reason.VALUE, "rank zero")
    return kept


def run_pinv(problem: Problem, engine: Engine) -> Any:
    (a,), (atol, rtol, return_rank) = problem.arrays, problem.params
    u, s, v = _decomposed(problem, engine)
    kept = _kept(s, a.shape, atol, rtol)
    x = engine.matmul(v[:, kept] / s[kept], u[:, kept].conj().T)
    return (x, kept.sum()) if return_rank else x


def run_pinvh(problem: Problem, engine: Engine) -> Any:
    (a,), (lower, atol, rtol, return_rank) = problem.arrays, problem.params
    _moderate(a)
    try:
        w, x = _eigh.eigh(hermitian(a, lower, problem.dtype), engine, problem.method or "start")
    except _refine.NotConverged as why:
        raise Unsupported(Reason.ACCURACY, str(why)) from why
    kept = _kept(np.abs(w), a.shape, atol, rtol)
    inverse = engine.matmul(x[:, kept] / w[kept], x[:, kept].conj().T)
    return (inverse, kept.sum()) if return_rank else inverse


def pinv_error(problem: Problem, result: Any) -> float:
    """|A X A - A| on probes, the first of Penrose's conditions; |X A X - X|, the second, where a tolerance cuts A."""
    (a,), (*_, atol, rtol, return_rank) = problem.arrays, problem.params
    x = result[0] if return_rank else result
    if len(problem.params) == 4:
        a = hermitian(a, problem.params[0], problem.dtype)
    if atol is not None or (rtol or 0.0) > 1e-15:  # NumPy's default cuts no more than rounding does
        a, x = x, a
    v = probe(a.shape[1], problem.dtype)
    av = a @ v
    return norm(a @ (x @ av) - av) / (norm(a) ** 2 * norm(x) * math.sqrt(v.shape[1]))


# --- Polar factors and subspaces --------------------------------------------------------------------------------------


def prepare_polar(a: Any, side: Any = "right") -> Problem:
    _refuse(not isinstance(side, str) or side not in ("right", "left"), f"side={side!r}")
    m, n = _matrix(a).shape
    k, factor = min(m, n), n if side == "right" else m
    return _problem(a, "svd", side == "right", after=2.0 * k * (m * n + factor**2))


def run_polar(problem: Problem, engine: Engine) -> tuple[np.ndarray, np.ndarray]:
    (right,) = problem.params
    w, s, v = _decomposed(problem, engine)
    basis = v if right else w
    return engine.matmul(w, v.conj().T), engine.matmul(basis * s, basis.conj().T)


def polar_error(problem: Problem, result: tuple[np.ndarray, np.ndarray]) -> float:
    (a,), (right,), (u, p) = problem.arrays, problem.params, result
    v = probe(a.shape[1], problem.dtype)
    residual = norm(a @ v - (u @ (p @ v) if right else p @ (u @ v))) / math.sqrt(v.shape[1])
    return max(residual / norm(a) if a.any() else residual, _orthonormal_error(u if len(u) >= u.shape[1] else u.T))


def prepare_orth(A: Any, rcond: Any = None) -> Problem:
    return _problem(A, "svd", tolerance("rcond", rcond))


def run_orth(problem: Problem, engine: Engine) -> np.ndarray:
    (a,), (rcond,) = problem.arrays, problem.params
    u, s, _ = _decomposed(problem, engine)
    return u[:, _kept(s, a.shape, None, rcond)]


def orth_error(problem: Problem, q: np.ndarray) -> float:
    """Orthogonality; and what of A is outside the span, where no tolerance was given."""
    (a,), (rcond,) = problem.arrays, problem.params
    av = a @ probe(a.shape[1], problem.dtype)
    outside = norm(av - q @ (q.conj().T @ av)) / (norm(a) * math.sqrt(av.shape[1]))
    return max(_orthonormal_error(q), outside if rcond is None else 0.0)


def prepare_null_space(
    A: Any, rcond: Any = None, *, overwrite_a: Any = False, check_finite: Any = True, lapack_driver: Any = "gesdd"
) -> Problem:
    _refuse(not isinstance(lapack_driver, str) or lapack_driver != "gesdd", f"lapack_driver={lapack_driver!r}")
    return _problem(A, "svd", tolerance("rcond", rcond), full=True)


def run_null_space(problem: Problem, engine: Engine) -> np.ndarray:
    (a,), (rcond,) = problem.arrays, problem.params
    _, s, v = _decomposed(problem, engine)
    rank = int(_kept(s, a.shape, None, rcond).sum())
    return _svd.complete(v, len(v), engine)[:, rank:]


def null_space_error(problem: Problem, q: np.ndarray) -> float:
    (a,), (rcond,) = problem.arrays, problem.params
    v = probe(q.shape[1], problem.dtype)
    left = norm(a @ (q @ v)) / (norm(a) * math.sqrt(v.shape[1]))
    return max(_orthonormal_error(q), left if rcond is None else 0.0)


def _op(
    name: str, prepare: Callable[..., Problem], run: Callable[..., Any], error: Callable[..., float],
    look: _routes.Look | None = None,
) -> Op:  # fmt: skip
    module, _, attribute = name.rpartition(".")
    function = getattr(lapack.linalg if module == "scipy.linalg" else np.linalg, attribute)
    return Op(name, function, prepare, run, error, SMALL, look=look, dry=True)


def run_any_svd(problem: Problem, engine: Engine) -> Any:
    """Of svd with and without vectors."""
    return run_svd(problem, engine) if problem.params else run_svdvals(problem, engine)


def any_svd_error(problem: Problem, result: Any) -> float:
    return svd_error(problem, result) if problem.params else svdvals_error(problem, result)


def svd_ops() -> tuple[Op, ...]:
    return (
        _op("scipy.linalg.svd", prepare_svd, run_any_svd, any_svd_error, _routes.stacked("svd")),
        _op("scipy.linalg.svdvals", prepare_svdvals, run_svdvals, svdvals_error, _routes.stacked("svdvals")),
        _op("scipy.linalg.pinv", prepare_pinv, run_pinv, pinv_error, _routes.stacked("pinv")),
        _op("scipy.linalg.pinvh", prepare_pinvh, run_pinvh, pinv_error, _routes.stacked("pinvh")),
        _op("scipy.linalg.polar", prepare_polar, run_polar, polar_error),
        _op("scipy.linalg.orth", prepare_orth, run_orth, orth_error),
        _op("scipy.linalg.null_space", prepare_null_space, run_null_space, null_space_error),
    )


NUMPY_SVD_OPS = (
    _op("numpy.linalg.svd", prepare_numpy_svd, run_any_svd, any_svd_error),
    _op("numpy.linalg.svdvals", prepare_numpy_svdvals, run_svdvals, svdvals_error),
    _op("numpy.linalg.pinv", prepare_numpy_pinv, run_pinv, pinv_error),
)
