"""Condition numbers, ranks and norms of a matrix from its singular values: cond, matrix_rank and norm."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from trnpy._base.records import record
from trnpy._call.dispatch import Problem, Reason, Unsupported
from trnpy._engine.abstract_arrays import usual
from trnpy._engine.engines import Engine
from trnpy.linalg import _svd
from trnpy.linalg._matrices import SMALL, doubled, real_type, refuse, tolerance
from trnpy.linalg._reference_forms import numpy_function, scipy_function
from trnpy.linalg._svd_rows import SingularValues, decomposed, problem, significant

# The orders whose norms need singular values. All other norms read each element once, so memory bounds them.
ORDERS = {2: "largest", -2: "smallest", "nuc": "sum"}


@record(kw_only=True)
class Values(Problem):
    """A number computed from the singular values, in the precision in which NumPy computes it."""

    error = SingularValues.error

    def rounded(self, factors: _svd.Factors) -> np.ndarray:
        """The values in the type that NumPy's svd returns: float32 for float32 and complex64 matrices."""
        values: np.ndarray = factors[1].astype(real_type(self.arrays[0].dtype), copy=False)
        return values

    def above_rounding(self, factors: _svd.Factors, least: Any) -> _svd.Factors:
        """``factors``; Unsupported if ``least``, a value or a threshold, is as small as the values' rounding errors."""
        s = factors[1]
        if usual(least <= max(self.arrays[0].shape) * np.finfo(s.dtype).eps * s[0], False):
            raise Unsupported(Reason.VALUE, "a singular value that is zero to rounding")
        return factors


@record(kw_only=True)
class Condition(Values):
    """The largest singular value over the smallest, or the inverse."""

    inverse: bool

    def run(self, engine: Engine) -> _svd.Factors:
        factors = decomposed(self, engine)
        return self.above_rounding(factors, factors[1][-1])

    def deliver(self, factors: _svd.Factors) -> Any:
        s = self.rounded(factors)
        return s[-1] / s[0] if self.inverse else s[0] / s[-1]


@record(kw_only=True)
class Rank(Values):
    """The number of singular values above a threshold, absolute or relative to the largest."""

    unproven: ClassVar[str] = "the rank, if a singular value is near the threshold"
    atol: float | None
    rtol: float | None

    def run(self, engine: Engine) -> _svd.Factors:
        factors = decomposed(self, engine)
        self._above(factors)
        least = self.atol if self.atol is not None else None if self.rtol is None else self.rtol * factors[1][0]
        return factors if least is None else self.above_rounding(factors, least)

    def deliver(self, factors: _svd.Factors) -> Any:
        return np.count_nonzero(self._above(factors), axis=-1)

    def _above(self, factors: _svd.Factors) -> np.ndarray:
        relative = 0.0 if self.atol is not None else self.rtol
        return significant(self.rounded(factors), self.arrays[0].shape, self.atol, relative)


@record(kw_only=True)
class Norm(Values):
    """The largest or the smallest singular value, or the sum of all."""

    which: str  # of ORDERS
    keepdims: bool

    def run(self, engine: Engine) -> _svd.Factors:
        return decomposed(self, engine)

    def deliver(self, factors: _svd.Factors) -> Any:
        s = self.rounded(factors)
        value = s.max() if self.which == "largest" else s.min() if self.which == "smallest" else s.sum()
        return value.reshape(1, 1) if self.keepdims else value


def _of_numpy(make: Any, a: Any, **options: Any) -> Problem:
    return problem(make, a, "svdvals", promoted=doubled, **options)


def prepare_cond(x: Any, p: Any = None) -> Problem:
    order = _order(p)
    refuse(p is not None and order not in (2, -2), f"p={p!r}: its norms need the inverse")
    return _of_numpy(Condition, x, inverse=order == -2)


def prepare_matrix_rank(A: Any, tol: Any = None, hermitian: Any = False, *, rtol: Any = None) -> Problem:
    refuse(bool(hermitian), f"hermitian={hermitian!r}")
    refuse(tol is not None and rtol is not None, "tol and rtol")
    return _of_numpy(Rank, A, atol=tolerance("tol", tol), rtol=tolerance("rtol", rtol))


def prepare_norm(x: Any, ord: Any = None, axis: Any = None, keepdims: Any = False) -> Problem:
    order = _order(ord)
    if order is None:
        raise Unsupported(Reason.MEMORY_BOUND, f"ord={ord!r} reads each element once")
    if np.ndim(x) < 2:
        raise Unsupported(Reason.MEMORY_BOUND, "the norm of a vector reads each element once")
    refuse(axis is not None and not _both(axis), f"axis={axis!r}")
    return _of_numpy(Norm, x, which=ORDERS[order], keepdims=bool(keepdims))


def prepare_scipy_norm(
    a: Any, ord: Any = None, axis: Any = None, keepdims: Any = False, check_finite: Any = True
) -> Problem:
    return prepare_norm(a, ord, axis, keepdims)


def _order(order: Any) -> Any:
    """The key of ORDERS that is equal to ``order``, or None."""
    if isinstance(order, bool) or not isinstance(order, (int, float, str, np.integer, np.floating)):
        return None
    return next((known for known in ORDERS if order == known), None)


def _both(axis: Any) -> bool:
    """Whether ``axis`` names the two axes of a matrix."""
    return axis in ((0, 1), (1, 0), (-2, -1), (-1, -2), (0, -1), (-1, 0), (1, -2), (-2, 1))


OPS = (
    numpy_function("cond", prepare_cond, small=SMALL),
    numpy_function("matrix_rank", prepare_matrix_rank, small=SMALL),
    numpy_function("norm", prepare_norm, small=SMALL),
    scipy_function("norm", prepare_scipy_norm, small=SMALL),
)
