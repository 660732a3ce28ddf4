"""Pseudo-inverses, from singular values or, for Hermitian matrices, from eigenvectors."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from trnpy._base.records import record
from trnpy._call import guards
from trnpy._call.dispatch import Problem, Reason, Unsupported
from trnpy._engine.abstract_arrays import usual
from trnpy._engine.engines import Engine
from trnpy._engine.proof import pseudo_inverses
from trnpy._settings.host_rates import FLOPS
from trnpy.linalg import _eigh, _svd
from trnpy.linalg._matrices import SMALL, doubled, hermitian, moderate, refuse, square, tolerance, useful
from trnpy.linalg._reference_forms import numpy_function, scipy_function
from trnpy.linalg._svd_rows import decomposed, matrix, problem, significant


@record(kw_only=True)
class _PseudoInverse(Problem):
    """The pseudo-inverse of A = U diag(s) V^H, from the elements of s above a threshold in magnitude."""

    unproven: ClassVar[str] = "the rank, if a singular value is near the threshold"
    atol: float | None
    rtol: float | None
    return_rank: bool

    def whole(self) -> np.ndarray:
        """A (m, n)."""
        raise NotImplementedError

    def factors(self, engine: Engine) -> _svd.Factors:
        """U, s and V."""
        raise NotImplementedError

    def run(self, engine: Engine) -> Any:
        u, s, v = self.factors(engine)
        kept = significant(np.abs(s), (len(u), len(v)), self.atol, self.rtol)
        largest = np.finfo(np.result_type(self.arrays[0], np.float32)).max  # numpy.linalg rounds results to float32
        if usual((np.abs(s[kept]) < 1 / largest).any(), False):
            raise Unsupported(Reason.VALUE, "the pseudo-inverse overflows")
        x = engine.matmul(v[:, kept] / s[kept], u[:, kept].conj().T)
        return (x, kept.sum()) if self.return_rank else x

    def error(self, result: Any) -> float:
        # NumPy's default tolerance, 1e-15, cuts only rounding errors.
        cut = self.atol is not None or (self.rtol or 0.0) > 1e-15
        return pseudo_inverses.error(self.whole(), result[0] if self.return_rank else result, cut)


class Pinv(_PseudoInverse):
    """The pseudo-inverse of any matrix, from singular values."""

    __slots__ = ()

    def whole(self) -> np.ndarray:
        return self.arrays[0]

    def factors(self, engine: Engine) -> _svd.Factors:
        return decomposed(self, engine)


@record(kw_only=True)
class Pinvh(_PseudoInverse):
    """The pseudo-inverse of a Hermitian matrix, of which one triangle is read, from signed eigenvalues."""

    lower: bool

    def whole(self) -> np.ndarray:
        return hermitian(self.arrays[0], self.lower, self.dtype)

    def factors(self, engine: Engine) -> _svd.Factors:
        guards.finite(*self.arrays)
        a = self.whole()
        moderate(a)
        w, x = _eigh.eigh(a, engine, self.method)
        return x, w, x


def prepare_pinv(
    a: Any, *, atol: Any = None, rtol: Any = None, return_rank: Any = False, check_finite: Any = True
) -> Problem:
    return _pinv_problem(a, tolerance("atol", atol), tolerance("rtol", rtol), bool(return_rank))


def _pinv_problem(a: Any, atol: float | None, rtol: float | None, return_rank: bool, **options: Any) -> Problem:
    m, n = matrix(a).shape
    after = 2.0 * m * n * min(m, n)
    return problem(Pinv, a, "pinv", after=after, atol=atol, rtol=rtol, return_rank=return_rank, **options)


def prepare_numpy_pinv(a: Any, rcond: Any = None, hermitian: Any = False, *, rtol: Any = None) -> Problem:
    refuse(bool(hermitian) or rcond is not None or rtol is not None, "rcond, hermitian or rtol")
    return _pinv_problem(a, None, 1e-15, False, promoted=doubled)  # NumPy's default


def prepare_pinvh(
    a: Any, atol: Any = None, rtol: Any = None, lower: Any = True, return_rank: Any = False, check_finite: Any = True
) -> Problem:
    absolute, relative = tolerance("atol", atol), tolerance("rtol", rtol)
    a = square(a)
    n, dtype = len(a), guards.floating(a)
    cost = useful("eigh", n, FLOPS["pinvh"] * float(n) ** 3, (a,), dtype, a.size)
    return Pinvh(
        (a,), dtype, cost, **_eigh.by_methods(n, dtype), lower=bool(lower), atol=absolute, rtol=relative,
        return_rank=bool(return_rank),
    )  # fmt: skip


OPS = (
    scipy_function("pinv", prepare_pinv, small=SMALL),
    scipy_function("pinvh", prepare_pinvh, small=SMALL),
    numpy_function("pinv", prepare_numpy_pinv, small=SMALL),
)
