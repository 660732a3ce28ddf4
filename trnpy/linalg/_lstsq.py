"""Least squares of tall matrices of full rank, from their QR factors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from trnpy._call import guards
from trnpy._call.dispatch import Op, Problem, Reason, Unsupported
from trnpy._engine import lapack
from trnpy._engine.engines import HOST, Engine
from trnpy._engine.proof import least_squares
from trnpy._engine.stand_ins import usual
from trnpy.linalg import _triangular
from trnpy.linalg._matrices import SMALL, tolerance, useful
from trnpy.linalg._panels import adjoint, svdvals
from trnpy.linalg._qr import TALL, tall_qr

GAP = 2.0  # times the tolerance: the least singular value that counts beyond doubt


class Solved(NamedTuple):
    """The minima x (n, k), squared residuals (k,), singular values, and R (n, n) of A = Q R."""

    x: np.ndarray
    residues: np.ndarray
    s: np.ndarray
    r: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastSquares(Problem):
    """min |A x - b| for a tall matrix of full rank."""

    cond: float | None
    driver: str  # of SciPy, or "numpy" for numpy.linalg

    def run(self, engine: Engine) -> Solved:
        a, b = self.arrays
        guards.finite(a, b)
        a, b = a.astype(self.dtype, copy=False), b.astype(self.dtype, copy=False)
        columns = b.reshape(len(b), -1)
        q, r = tall_qr(a, engine)
        s = svdvals(r)
        least = GAP * max(self.cond or 0.0, len(a) * float(np.finfo(self.dtype).eps))
        if not usual(s[-1] > least * s[0], True):
            raise Unsupported(Reason.VALUE, "not of full rank beyond doubt")
        x = _triangular.solve(r, engine.matmul(adjoint(q), columns), engine, lower=False)
        left = columns - engine.matmul(a, x)
        residues = (np.abs(left) ** 2).sum(axis=0)
        return Solved(x, residues, s, r)

    def error(self, result: Solved) -> float:
        a, b = self.arrays

        def inside(normal: np.ndarray) -> np.ndarray:
            return HOST.trsm(result.r, normal, lower=False, trans="C")

        condition = float(result.s[0] / result.s[-1])
        return least_squares.error(a, b.reshape(len(b), -1), result.x, inside, condition)

    def unique(self, result: tuple[Any, ...]) -> Any:
        return result[0]

    def deliver(self, result: Solved) -> tuple[Any, ...]:
        """x, residues, rank and singular values, as ``driver`` returns them."""
        b, residues, rank = self.arrays[1], result.residues, len(result.s)
        x = result.x.reshape(-1, *b.shape[1:])
        if self.driver == "numpy":
            return x, residues, np.int32(rank), result.s
        if self.driver == "gelsy":
            return x, np.array([], x.dtype), rank, None
        return x, residues[0] if b.ndim == 1 else residues, rank, result.s


def prepare_lstsq(
    a: Any, b: Any, cond: Any = None, overwrite_a: Any = False, overwrite_b: Any = False, check_finite: Any = True,
    lapack_driver: Any = None,
) -> Problem:  # fmt: skip
    # Users may set this attribute, which SciPy documents and its stubs omit.
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
    if a.ndim != 2 or a.size == 0 or len(a) < TALL * a.shape[1]:
        raise Unsupported(Reason.LAYOUT, f"shape {a.shape} is not one matrix of {TALL} rows a column or more")
    if b.ndim not in (1, 2) or len(b) != len(a) or b.size == 0:
        raise Unsupported(Reason.LAYOUT, f"matrix {a.shape} and right-hand sides {b.shape}")
    guards.floating(a)
    guards.floating(b)
    dtype, (m, n), k = guards.floating(a, b), a.shape, b.size // len(b)
    cost = useful("qr", (float(m) * n * n) ** (1 / 3), 2.0 * m * n * (n + k), (a, b), dtype, n * k)
    return LeastSquares((a, b), dtype, cost, cond=cond, driver=driver)


def scipy_ops() -> tuple[Op, ...]:
    return (Op("scipy.linalg.lstsq", lapack.linalg.lstsq, prepare_lstsq, small=SMALL),)


NUMPY_OPS = (Op("numpy.linalg.lstsq", np.linalg.lstsq, prepare_numpy_lstsq, small=SMALL),)
