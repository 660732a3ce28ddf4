"""svd and svdvals, and the operands, costs and checks that pinv, polar and orth share with them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from trnpy._base.records import record
from trnpy._call import guards
from trnpy._call.dispatch import Problem, Reason, Unsupported
from trnpy._engine.abstract_arrays import usual
from trnpy._engine.engines import Engine
from trnpy._engine.proof.weights import probe
from trnpy._settings.host_rates import FLOPS
from trnpy.linalg import _svd
from trnpy.linalg._matrices import NEAR, SMALL, doubled, moderate, norm, refuse, useful
from trnpy.linalg._reference_forms import numpy_function, scipy_function

MOST_ELEMENTS = 2**31 - 1  # of a basis: LAPACK's integers have 32 bits
_SVDResult = type(np.linalg.svd(np.eye(1)))


def matrix(a: Any) -> np.ndarray:
    """``a`` as one non-empty matrix (m, n) of a dtype with a device path."""
    m = guards.array(a)
    guards.floating(m)
    if m.ndim != 2 or m.size == 0:
        raise Unsupported(Reason.LAYOUT, f"shape {m.shape} is not one non-empty matrix")
    return m


def problem(
    make: Callable[..., Problem], a: Any, kind: str, *, after: float = 0.0, basis: bool = False,
    promoted: Callable[..., np.dtype] = guards.floating, **options: Any,
) -> Problem:  # fmt: skip
    """The problem of decomposing ``a``, with ``after`` more operations; ``basis``: whether bases are complete."""
    a = matrix(a)
    dtype = promoted(a)
    m, n = max(a.shape), min(a.shape)
    if m * (m if basis else n) > MOST_ELEMENTS:
        raise Unsupported(Reason.LAYOUT, f"a basis of {m} rows: SciPy has a message of its own")
    host, size = "svdvals" if kind == "svdvals" else "svd", (m * n * n) ** (1 / 3)
    results = n if kind == "svdvals" else (m + n) * n
    cost = useful(host, size, FLOPS[kind] * m * n**2 + after, (a,), dtype, results)
    found = _svd.methods(n, dtype)
    refusal = None if found else (Reason.DTYPE, f"{dtype} singular values of {n:,} columns: above the kernel limit")
    return make((a,), dtype, cost, on_device=bool(found), refusal=refusal, methods=found, **options)


def decomposed(problem: Problem, engine: Engine) -> _svd.Factors:
    (a,) = problem.arrays
    guards.finite(a)
    moderate(a)
    return _svd.svd(a.astype(problem.dtype, copy=False), engine, problem.method)


@record(kw_only=True)
class Svd(Problem):
    """A = U diag(s) V^H."""

    unproven: ClassVar[str] = "vectors of singular values that are nearly equal"
    full: bool  # whether both bases are complete
    make: Callable[..., Any]  # builds the caller's result from U, s and V^H

    def run(self, engine: Engine) -> Any:
        u, s, v = decomposed(self, engine)
        if self.full:
            u, v = _svd.complete(u, len(u), engine), _svd.complete(v, len(v), engine)
        vh = v.conj().T
        return (u, s, vh) if self.make is tuple else self.make(u, s, vh)

    def error(self, result: Any) -> float:
        return factors_error(self.arrays[0], *result)

    def unique(self, result: Any) -> Any:
        return result[1]  # the values


@record(kw_only=True)
class SingularValues(Problem):
    """Singular values alone."""

    def run(self, engine: Engine) -> _svd.Factors:
        return decomposed(self, engine)

    def error(self, result: _svd.Factors) -> float:
        u, s, v = result
        return factors_error(self.arrays[0], u, s, v.conj().T)

    def deliver(self, result: _svd.Factors) -> np.ndarray:
        return result[1]


def _vectors(a: Any, full: bool, make: Callable[..., Any], **options: Any) -> Problem:
    return problem(functools.partial(Svd, full=full, make=make), a, "svd", basis=full, **options)


def prepare_svd(
    a: Any, full_matrices: Any = True, compute_uv: Any = True, overwrite_a: Any = False, check_finite: Any = True,
    lapack_driver: Any = "gesdd",
) -> Problem:  # fmt: skip
    refuse(not isinstance(lapack_driver, str) or lapack_driver != "gesdd", f"lapack_driver={lapack_driver!r}")
    if not compute_uv:
        return prepare_svdvals(a)
    return _vectors(a, bool(full_matrices), tuple)


def prepare_svdvals(a: Any, overwrite_a: Any = False, check_finite: Any = True) -> Problem:
    return problem(SingularValues, a, "svdvals")


def prepare_numpy_svd(a: Any, full_matrices: Any = True, compute_uv: Any = True, hermitian: Any = False) -> Problem:
    refuse(bool(hermitian), f"hermitian={hermitian!r}")
    if not compute_uv:
        return prepare_numpy_svdvals(a)
    return _vectors(a, bool(full_matrices), _SVDResult, promoted=doubled)


def prepare_numpy_svdvals(x: Any, /) -> Problem:
    return problem(SingularValues, x, "svdvals", promoted=doubled)


def factors_error(a: np.ndarray, u: np.ndarray, s: np.ndarray, vh: np.ndarray) -> float:
    """|A - U S V^H| / |A|, |U^H U - I| and |V^H V - I| on test vectors; infinity if s has the wrong order or sign.

    If both bases have a small residual, each value is a singular value of A. Values alone could only match its norm.
    """
    if not np.isfinite(s).all() or (s < 0).any() or (np.diff(s) > 0).any():
        return math.inf
    k, v = len(s), probe(a.shape[1], u.dtype)
    residual = norm(a @ v - u[:, :k] @ (s[:, np.newaxis] * (vh[:k] @ v)))
    size = norm(a) * math.sqrt(v.shape[1])
    return max(residual / size if size else residual, orthonormal_error(u), orthonormal_error(vh.conj().T))


def orthonormal_error(x: np.ndarray) -> float:
    """|X^H X - I| on random test vectors."""
    v = probe(x.shape[1], x.dtype)
    return norm(x.conj().T @ (x @ v) - v) / math.sqrt(v.size) if v.size else 0.0


def significant(s: np.ndarray, shape: tuple[int, ...], atol: float | None, rtol: float | None) -> np.ndarray:
    """Which singular values s (k,) are above the threshold; Unsupported if none is, or if rounding decides."""
    relative = max(shape) * float(np.finfo(s.dtype).eps) if rtol is None else rtol
    threshold = (atol or 0.0) + s.max() * relative
    if usual(((s > threshold / NEAR) & (s < threshold * NEAR)).any(), False):
        raise Unsupported(Reason.VALUE, "a singular value near the threshold")
    kept: np.ndarray = usual(s > threshold, np.ones(len(s), bool))
    if not kept.any():
        raise Unsupported(Reason.VALUE, "rank zero")
    return kept


OPS = (
    scipy_function("svd", prepare_svd, small=SMALL),
    scipy_function("svdvals", prepare_svdvals, small=SMALL),
    numpy_function("svd", prepare_numpy_svd, small=SMALL),
    numpy_function("svdvals", prepare_numpy_svdvals, small=SMALL),
)
