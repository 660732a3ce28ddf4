"""The rows of singular values and what is made of them: SciPy's and NumPy's options, costs and checks."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
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


def _problem(
    make: Callable[..., Problem], a: Any, kind: str, *, after: float = 0.0, basis: bool = False, **options: Any
) -> Problem:
    """The singular value decomposition of ``a``, and products of ``after`` operations; ``basis``: all of it."""
    a = _matrix(a)
    dtype = guards.floating(a)
    m, n = max(a.shape), min(a.shape)
    if m * (m if basis else n) > MOST_ELEMENTS:
        raise Unsupported(Reason.LAYOUT, f"a basis of {m} rows: SciPy has a message of its own")
    host, size = "svdvals" if kind == "svdvals" else "svd", (m * n * n) ** (1 / 3)
    results = n if kind == "svdvals" else (m + n) * n
    cost = useful(host, size, FLOPS[kind] * m * n**2 + after, (a,), dtype, results)
    return make((a,), dtype, cost, methods=_svd.methods(n, dtype), **options)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Svd(Problem):
    """U diag(s) V^H."""

    full: bool  # all of both bases
    make: Callable[..., Any]  # of the three

    def run(self, engine: Engine) -> Any:
        u, s, v = _decomposed(self, engine)
        if self.full:
            u, v = _svd.complete(u, len(u), engine), _svd.complete(v, len(v), engine)
        vh = v.conj().T
        return (u, s, vh) if self.make is tuple else self.make(u, s, vh)

    def error(self, result: Any) -> float:
        (a,), (u, s, vh) = self.arrays, result
        k = len(s)
        v = probe(a.shape[1], self.dtype)
        residual = norm(a @ v - u[:, :k] @ (s[:, np.newaxis] * (vh[:k] @ v)))
        size = norm(a) * math.sqrt(v.shape[1])
        return max(
            _values_error(a, s), residual / size if size else residual, _orthonormal_error(u),
            _orthonormal_error(vh.conj().T),
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SingularValues(Problem):
    """s alone."""

    def run(self, engine: Engine) -> np.ndarray:
        return _decomposed(self, engine)[1]

    def error(self, s: np.ndarray) -> float:
        return _values_error(self.arrays[0], s)


def _vectors(a: Any, full: bool, make: Callable[..., Any]) -> Problem:
    return _problem(functools.partial(Svd, full=full, make=make), a, "svd", basis=full)


def prepare_svd(
    a: Any, full_matrices: Any = True, compute_uv: Any = True, overwrite_a: Any = False, check_finite: Any = True,
    lapack_driver: Any = "gesdd",
) -> Problem:  # fmt: skip
    _refuse(not isinstance(lapack_driver, str) or lapack_driver != "gesdd", f"lapack_driver={lapack_driver!r}")
    if not compute_uv:
        return prepare_svdvals(a)
    if _routes.is_stack(a):
        return _routes.stack("svd", (a,), stacks.svd, bool(full_matrices))
    return _vectors(a, bool(full_matrices), tuple)


def prepare_svdvals(a: Any, overwrite_a: Any = False, check_finite: Any = True) -> Problem:
    if _routes.is_stack(a):
        return _routes.stack("svdvals", (a,), stacks.svdvals)
    return _problem(SingularValues, a, "svdvals")


def prepare_numpy_svd(a: Any, full_matrices: Any = True, compute_uv: Any = True, hermitian: Any = False) -> Problem:
    _refuse(bool(hermitian), f"hermitian={hermitian!r}")
    if not compute_uv:
        return _problem(SingularValues, a, "svdvals")
    return _vectors(a, bool(full_matrices), _SVDResult)


def prepare_numpy_svdvals(x: Any, /) -> Problem:
    return _problem(SingularValues, x, "svdvals")


def _values_error(a: np.ndarray, s: np.ndarray) -> float:
    """What values alone can be checked for: sign, order, and that the sum of their squares is |A|_F^2."""
    if not np.isfinite(s).all() or (s < 0).any() or (np.diff(s) > 0).any():
        return math.inf
    size = norm(a)
    return abs(norm(s) - size) / size if size else norm(s)


def _orthonormal_error(x: np.ndarray) -> float:
    """|X^H X - I| on probes."""
    v = probe(x.shape[1], x.dtype)
    return norm(x.conj().T @ (x @ v) - v) / math.sqrt(v.size) if v.size else 0.0


# --- Pseudo-inverses --------------------------------------------------------------------------------------------------


def _pinv_error(a: np.ndarray, x: np.ndarray, cut: bool) -> float:
    """|A X A - A| on probes, the first of Penrose's conditions; |X A X - X|, the second, where A is ``cut``."""
    if cut:
        a, x = x, a
    v = probe(a.shape[1], a.dtype)
    av = a @ v
    return norm(a @ (x @ av) - av) / (norm(a) ** 2 * norm(x) * math.sqrt(v.shape[1]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pinv(Problem):
    """Of a matrix, by its singular values above a threshold."""

    atol: float | None
    rtol: float | None
    return_rank: bool

    def run(self, engine: Engine) -> Any:
        (a,) = self.arrays
        u, s, v = _decomposed(self, engine)
        kept = _kept(s, a.shape, self.atol, self.rtol)
        x = engine.matmul(v[:, kept] / s[kept], u[:, kept].conj().T)
        return (x, kept.sum()) if self.return_rank else x

    def error(self, result: Any) -> float:
        return self._error(self.arrays[0], result)

    def _error(self, a: np.ndarray, result: Any) -> float:
        cut = self.atol is not None or (self.rtol or 0.0) > 1e-15  # NumPy's default cuts no more than rounding does
        return _pinv_error(a, result[0] if self.return_rank else result, cut)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pinvh(Pinv):
    """Of a Hermitian matrix, of which one triangle is read."""

    lower: bool

    def run(self, engine: Engine) -> Any:
        (a,) = self.arrays
        _moderate(a)
        try:
            w, x = _eigh.eigh(hermitian(a, self.lower, self.dtype), engine, self.method or "start")
        except _refine.NotConverged as why:
            raise Unsupported(Reason.ACCURACY, str(why)) from why
        kept = _kept(np.abs(w), a.shape, self.atol, self.rtol)
        inverse = engine.matmul(x[:, kept] / w[kept], x[:, kept].conj().T)
        return (inverse, kept.sum()) if self.return_rank else inverse

    def error(self, result: Any) -> float:
        return self._error(hermitian(self.arrays[0], self.lower, self.dtype), result)


def prepare_pinv(
    a: Any, *, atol: Any = None, rtol: Any = None, return_rank: Any = False, check_finite: Any = True
) -> Problem:
    options = tolerance("atol", atol), tolerance("rtol", rtol), bool(return_rank)
    if _routes.is_stack(a):
        return _routes.stack("pinv", (a,), stacks.pinv, *options)
    return _pinv_problem(a, *options)


def _pinv_problem(a: Any, atol: float | None, rtol: float | None, return_rank: bool) -> Problem:
    m, n = _matrix(a).shape
    after = 2.0 * m * n * min(m, n)
    return _problem(Pinv, a, "pinv", after=after, atol=atol, rtol=rtol, return_rank=return_rank)


def prepare_numpy_pinv(a: Any, rcond: Any = None, hermitian: Any = False, *, rtol: Any = None) -> Problem:
    _refuse(bool(hermitian) or rcond is not None or rtol is not None, "rcond, hermitian or rtol")
    return _pinv_problem(a, None, 1e-15, False)  # NumPy's default, not SciPy's


def prepare_pinvh(
    a: Any, atol: Any = None, rtol: Any = None, lower: Any = True, return_rank: Any = False, check_finite: Any = True
) -> Problem:
    options = tolerance("atol", atol), tolerance("rtol", rtol), bool(return_rank)
    if _routes.is_stack(a):
        return _routes.stack("pinvh", (a,), stacks.pinvh, bool(lower), *options)
    a = square(_matrix(a))
    n, dtype = len(a), guards.floating(a)
    cost = useful("eigh", n, FLOPS["pinvh"] * float(n) ** 3, (a,), dtype, a.size)
    absolute, relative, ranks = options
    return Pinvh(
        (a,), dtype, cost, methods=_eigh.methods(n, dtype), lower=bool(lower), atol=absolute, rtol=relative,
        return_rank=ranks,
    )  # fmt: skip


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


# --- Polar factors and subspaces --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Polar(Problem):
    """A = U P, or P U."""

    right: bool

    def run(self, engine: Engine) -> tuple[np.ndarray, np.ndarray]:
        w, s, v = _decomposed(self, engine)
        basis = v if self.right else w
        return engine.matmul(w, v.conj().T), engine.matmul(basis * s, basis.conj().T)

    def error(self, result: tuple[np.ndarray, np.ndarray]) -> float:
        (a,), (u, p) = self.arrays, result
        v = probe(a.shape[1], self.dtype)
        residual = norm(a @ v - (u @ (p @ v) if self.right else p @ (u @ v))) / math.sqrt(v.shape[1])
        return max(residual / norm(a) if a.any() else residual, _orthonormal_error(u if len(u) >= u.shape[1] else u.T))


def prepare_polar(a: Any, side: Any = "right") -> Problem:
    _refuse(not isinstance(side, str) or side not in ("right", "left"), f"side={side!r}")
    m, n = _matrix(a).shape
    k, factor = min(m, n), n if side == "right" else m
    return _problem(Polar, a, "svd", after=2.0 * k * (m * n + factor**2), right=side == "right")


@dataclass(frozen=True, slots=True, kw_only=True)
class Range(Problem):
    """An orthonormal basis of the columns."""

    rcond: float | None

    def run(self, engine: Engine) -> np.ndarray:
        (a,) = self.arrays
        u, s, _ = _decomposed(self, engine)
        return u[:, _kept(s, a.shape, None, self.rcond)]

    def error(self, q: np.ndarray) -> float:
        """Orthogonality; and what of A is outside the span, where no tolerance was given."""
        (a,) = self.arrays
        av = a @ probe(a.shape[1], self.dtype)
        outside = norm(av - q @ (q.conj().T @ av)) / (norm(a) * math.sqrt(av.shape[1]))
        return max(_orthonormal_error(q), outside if self.rcond is None else 0.0)


def prepare_orth(A: Any, rcond: Any = None) -> Problem:
    return _problem(Range, A, "svd", rcond=tolerance("rcond", rcond))


@dataclass(frozen=True, slots=True, kw_only=True)
class NullSpace(Problem):
    """An orthonormal basis of what A takes to zero."""

    rcond: float | None

    def run(self, engine: Engine) -> np.ndarray:
        (a,) = self.arrays
        _, s, v = _decomposed(self, engine)
        rank = int(_kept(s, a.shape, None, self.rcond).sum())
        return _svd.complete(v, len(v), engine)[:, rank:]

    def error(self, q: np.ndarray) -> float:
        (a,) = self.arrays
        v = probe(q.shape[1], self.dtype)
        left = norm(a @ (q @ v)) / (norm(a) * math.sqrt(v.shape[1]))
        return max(_orthonormal_error(q), left if self.rcond is None else 0.0)


def prepare_null_space(
    A: Any, rcond: Any = None, *, overwrite_a: Any = False, check_finite: Any = True, lapack_driver: Any = "gesdd"
) -> Problem:
    _refuse(not isinstance(lapack_driver, str) or lapack_driver != "gesdd", f"lapack_driver={lapack_driver!r}")
    return _problem(NullSpace, A, "svd", basis=True, rcond=tolerance("rcond", rcond))


def _op(name: str, prepare: Callable[..., Problem], look: _routes.Look | None = None) -> Op:
    module, _, attribute = name.rpartition(".")
    function = getattr(lapack.linalg if module == "scipy.linalg" else np.linalg, attribute)
    return Op(name, function, prepare, small=SMALL, look=look, dry=True)


def svd_ops() -> tuple[Op, ...]:
    return (
        _op("scipy.linalg.svd", prepare_svd, _routes.stacked("svd")),
        _op("scipy.linalg.svdvals", prepare_svdvals, _routes.stacked("svdvals")),
        _op("scipy.linalg.pinv", prepare_pinv, _routes.stacked("pinv")),
        _op("scipy.linalg.pinvh", prepare_pinvh, _routes.stacked("pinvh")),
        _op("scipy.linalg.polar", prepare_polar),
        _op("scipy.linalg.orth", prepare_orth),
        _op("scipy.linalg.null_space", prepare_null_space),
    )


NUMPY_SVD_OPS = (
    _op("numpy.linalg.svd", prepare_numpy_svd),
    _op("numpy.linalg.svdvals", prepare_numpy_svdvals),
    _op("numpy.linalg.pinv", prepare_numpy_pinv),
)
