"""Least squares: from QR factors if a matrix is tall or wide and has full rank, otherwise from singular values.

If there are several minima, the shortest is returned, as in LAPACK.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import numpy as np

from trnpy._base import conventions
from trnpy._base.records import record
from trnpy._call import guards
from trnpy._call.dispatch import Problem, Reason, Unsupported
from trnpy._engine import lapack
from trnpy._engine.abstract_arrays import usual
from trnpy._engine.engines import HOST, Engine
from trnpy._engine.proof import least_squares
from trnpy._engine.proof.checksums import max_nan
from trnpy._settings.host_rates import FLOPS
from trnpy.linalg import _svd, _triangular
from trnpy.linalg._lapack_panels import adjoint, svdvals
from trnpy.linalg._matrices import SMALL, doubled, largest, moderate, times_power, tolerance, useful
from trnpy.linalg._qr import TALL, tall_qr
from trnpy.linalg._reference_forms import numpy_function, scipy_function
from trnpy.linalg._svd_rows import factors_error, significant

GAP = 2.0  # times the tolerance: larger singular values certainly count for the rank


class Solved(NamedTuple):
    """The minima x (n, k), squared residuals (k,), singular values, and R (n, n) of A = Q R."""

    x: np.ndarray
    residues: np.ndarray
    s: np.ndarray
    r: np.ndarray


@record(kw_only=True)
class _LeastSquares(Problem):
    cond: float | None
    driver: str  # of SciPy, or "numpy" for numpy.linalg

    def operands(self) -> tuple[np.ndarray, np.ndarray, int]:
        """A (m, n), right-hand sides as columns (m, k) over 2^exponent, and that exponent.

        The exponent is 0 unless the right-hand sides are so small that sums would be subnormal. LAPACK scales too.
        """
        guards.finite(*self.arrays)
        a, b = (x.astype(self.dtype, copy=False) for x in self.arrays)
        columns, info = b.reshape(len(b), -1), np.finfo(self.dtype)
        exponent = int(usual(np.frexp(largest(columns))[1], 0))
        if exponent >= info.minexp + info.nmant:
            return a, columns, 0
        return a, times_power(columns, -exponent), exponent

    @property
    def rounding(self) -> float:
        """The largest value that a zero singular value may have after rounding, relative to the largest one."""
        found: float = max(self.arrays[0].shape) * float(np.finfo(self.dtype).eps)
        return found

    def full_rank(self, s: np.ndarray) -> None:
        """Unsupported unless all singular values certainly count for the rank."""
        if not usual(s[-1] > GAP * max(self.cond or 0.0, self.rounding) * s[0], True):
            raise Unsupported(Reason.VALUE, "not of full rank beyond doubt")

    def unique(self, result: tuple[Any, ...]) -> Any:
        return result[0]

    def delivered(self, x: np.ndarray, residues: np.ndarray | None, s: np.ndarray, rank: int) -> tuple[Any, ...]:
        """x, residues, rank and singular values, as ``driver`` returns them."""
        b = self.arrays[1]
        x = x.reshape(-1, *b.shape[1:])
        if self.driver == "numpy":
            return x, np.empty(0, s.dtype) if residues is None else residues, np.int32(rank), s
        values = None if self.driver == "gelsy" else s
        if residues is None or values is None:
            return x, np.array([], x.dtype), rank, values
        return x, residues[0] if b.ndim == 1 else residues, rank, values


class Tall(_LeastSquares):
    """min |A x - b| for a tall matrix of full rank, from A = Q R."""

    __slots__ = ()

    def run(self, engine: Engine) -> Solved:
        a, columns, exponent = self.operands()
        q, r = tall_qr(a, engine)
        s = svdvals(r)
        self.full_rank(s)
        x = _triangular.solve(r, engine.matmul(adjoint(q), columns), engine, lower=False)
        left = columns - engine.matmul(a, x)
        residues = (np.abs(left) ** 2).sum(axis=0)
        if not usual(np.isfinite(residues).all(), True):
            raise Unsupported(Reason.VALUE, "squares of residuals overflow")
        return Solved(times_power(x, exponent), times_power(residues, 2 * exponent), s, r)

    def error(self, result: Solved) -> float:
        a, b = self.arrays

        def inside(normal: np.ndarray) -> np.ndarray:
            return HOST.trsm(result.r, normal, lower=False, trans="C")

        condition = float(result.s[0] / result.s[-1])
        return least_squares.error(a, b.reshape(len(b), -1), result.x, inside, condition)

    def deliver(self, result: Solved) -> tuple[Any, ...]:
        return self.delivered(result.x, result.residues, result.s, len(result.s))


class Wide(_LeastSquares):
    """The shortest x with A x = b for a wide matrix of full rank, from A^H = Q R."""

    __slots__ = ()

    def run(self, engine: Engine) -> Solved:
        a, columns, exponent = self.operands()
        q, r = tall_qr(adjoint(a), engine)
        s = svdvals(r)
        self.full_rank(s)
        x = engine.matmul(q, _triangular.solve(adjoint(r), columns, engine, lower=True))
        return Solved(times_power(x, exponent), np.empty(0), s, r)

    def error(self, result: Solved) -> float:
        a, b = self.arrays
        return least_squares.shortest_error(a, b.reshape(len(b), -1), result.x, result.r)

    def deliver(self, result: Solved) -> tuple[Any, ...]:
        return self.delivered(result.x, None, result.s, len(result.s))


class ByValues(NamedTuple):
    """The shortest minima x (n, k), and the singular values of A = U diag(s) V^H that count for the rank."""

    x: np.ndarray
    u: np.ndarray
    s: np.ndarray
    v: np.ndarray
    kept: np.ndarray


class AnyShape(_LeastSquares):
    """The shortest x of least |A x - b| for any matrix, from its singular values and vectors."""

    __slots__ = ()
    unproven: ClassVar[str] = "the rank, if a singular value is near the threshold"

    def run(self, engine: Engine) -> ByValues:
        a, columns, exponent = self.operands()
        moderate(a)
        u, s, v = _svd.svd(a, engine, self.method)
        kept = self.counted(s)
        left, values = adjoint(u[:, kept]), s[kept, np.newaxis]

        def solution(columns: np.ndarray) -> np.ndarray:
            return engine.matmul(v[:, kept], engine.matmul(left, columns) / values)

        x = solution(columns)
        x = x + solution(columns - engine.matmul(a, x))
        return ByValues(times_power(x, exponent), u, s, v, kept)

    def counted(self, s: np.ndarray) -> np.ndarray:
        """Which singular values count for the rank; Unsupported if rounding decides."""
        if self.cond is not None and self.cond >= self.rounding:
            kept = significant(s, self.arrays[0].shape, None, self.cond)
            if self.driver == "gelsy" and usual((s[~kept] > self.rounding * s[0]).any(), False):
                raise Unsupported(Reason.VALUE, "gelsy truncates a pivoted QR factor, not the singular values")
            return kept
        self.full_rank(s)  # the threshold of SciPy's default, one eps, is as small as rounding errors of zero values
        return np.ones(len(s), bool)

    def error(self, result: ByValues) -> float:
        (a, b), (x, u, s, v, kept) = self.arrays, result
        found = least_squares.error_of_factors(b.reshape(len(b), -1), x, u[:, kept], s[kept], v[:, kept])
        return max_nan(found, factors_error(a, u, s, adjoint(v)))

    def deliver(self, result: ByValues) -> tuple[Any, ...]:
        (a, b), rank = self.arrays, int(result.kept.sum())
        residues = None
        if len(a) > a.shape[1] == rank:
            left = b.reshape(len(b), -1) - a @ result.x
            residues = (np.abs(left) ** 2).sum(axis=0)
        elif len(a) > a.shape[1] and self.driver != "numpy":
            each = conventions.low_rank_residual(lapack.linalg.lstsq)
            residues = None if each is None else np.full(b.size // len(b), each, result.s.dtype)
        return self.delivered(result.x, residues, result.s, rank)


def prepare_lstsq(
    a: Any, b: Any, cond: Any = None, overwrite_a: Any = False, overwrite_b: Any = False, check_finite: Any = True,
    lapack_driver: Any = None,
) -> Problem:  # fmt: skip
    # Users may set this attribute; SciPy documents it, but its stubs omit it.
    driver = getattr(lapack.linalg.lstsq, "default_lapack_driver") if lapack_driver is None else lapack_driver  # noqa: B009
    if not isinstance(driver, str) or driver not in ("gelsd", "gelss", "gelsy"):
        raise Unsupported(Reason.PARAM, f"lapack_driver={driver!r}")
    a, b, cond = guards.array(a), guards.array(b), tolerance("cond", cond)
    return _least_squares(a, b, cond, driver)


def prepare_numpy_lstsq(a: Any, b: Any, rcond: Any = None) -> Problem:
    a, b = guards.array(a), guards.array(b)
    if rcond is None:
        rcond = float(np.finfo(np.float64).eps) * max(a.shape, default=1)
    return _least_squares(a, b, None if rcond == -1 else tolerance("rcond", rcond), "numpy")


def _least_squares(a: np.ndarray, b: np.ndarray, cond: float | None, driver: str) -> Problem:
    if a.ndim != 2 or a.size == 0:
        raise Unsupported(Reason.LAYOUT, f"shape {a.shape} is not one non-empty matrix")
    if b.ndim not in (1, 2) or len(b) != len(a) or b.size == 0:
        raise Unsupported(Reason.LAYOUT, f"matrix {a.shape} and right-hand sides {b.shape}")
    guards.floating(a)
    guards.floating(b)
    dtype, k = (doubled if driver == "numpy" else guards.floating)(a, b), b.size // len(b)
    m, n = max(a.shape), min(a.shape)
    size, results = (float(m) * n * n) ** (1 / 3), a.shape[1] * k
    if m >= TALL * n:
        cost = useful("qr", size, 2.0 * m * n * (n + k), (a, b), dtype, results)
        return (Tall if m == len(a) else Wide)((a, b), dtype, cost, cond=cond, driver=driver)
    # LAPACK's drivers compute singular values without vectors, or a pivoted QR factorization.
    kind, flops = ("qr", 2.0 * m * n * n) if driver == "gelsy" else ("svdvals", FLOPS["svdvals"] * m * n * n)
    cost = useful(kind, size, flops + 4.0 * m * n * k, (a, b), dtype, results)
    methods = _svd.methods(n, dtype)
    refusal = None if methods else (Reason.DTYPE, f"{dtype} singular values of {n:,} columns: above the kernel limit")
    return AnyShape(
        (a, b), dtype, cost, on_device=bool(methods), refusal=refusal, methods=methods, cond=cond, driver=driver
    )


OPS = (
    scipy_function("lstsq", prepare_lstsq, small=SMALL),
    numpy_function("lstsq", prepare_numpy_lstsq, small=SMALL),
)
