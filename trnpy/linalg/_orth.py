"""Orthonormal bases of ranges and null spaces, from singular vectors: orth and null_space."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from trnpy._base.records import record
from trnpy._call.dispatch import Problem
from trnpy._engine.engines import Engine
from trnpy._engine.proof.weights import probe
from trnpy.linalg import _svd
from trnpy.linalg._matrices import SMALL, norm, refuse, tolerance
from trnpy.linalg._reference_forms import scipy_function
from trnpy.linalg._svd_rows import decomposed, orthonormal_error, problem, significant

COLUMNS = 2  # by which two bases are compared: two different spaces agree in none of them, except through rounding


def projected(q: np.ndarray) -> np.ndarray:
    """Q Q^H W for fixed random columns W, which is equal for every orthonormal basis Q (m, r) of one space."""
    w = np.random.default_rng(0).standard_normal((len(q), COLUMNS))
    projection: np.ndarray = q @ (q.conj().T @ w)
    return projection


@record(kw_only=True)
class Range(Problem):
    """An orthonormal basis of the range."""

    unproven: ClassVar[str] = "the rank, if a singular value is near the threshold"
    rcond: float | None

    def run(self, engine: Engine) -> np.ndarray:
        (a,) = self.arrays
        u, s, _ = decomposed(self, engine)
        return u[:, significant(s, a.shape, None, self.rcond)]

    def unique(self, result: Any) -> Any:
        return projected(result)

    def error(self, q: np.ndarray) -> float:
        """The loss of orthogonality or, without a tolerance, the part of A outside the span, if that is larger."""
        (a,) = self.arrays
        av = a @ probe(a.shape[1], self.dtype)
        outside = norm(av - q @ (q.conj().T @ av)) / (norm(a) * math.sqrt(av.shape[1]))
        return max(orthonormal_error(q), outside if self.rcond is None else 0.0)


def prepare_orth(A: Any, rcond: Any = None) -> Problem:
    return problem(Range, A, "svd", rcond=tolerance("rcond", rcond))


@record(kw_only=True)
class NullSpace(Problem):
    """An orthonormal basis of the null space."""

    unproven: ClassVar[str] = "the rank, if a singular value is near the threshold"
    rcond: float | None

    def run(self, engine: Engine) -> np.ndarray:
        (a,) = self.arrays
        _, s, v = decomposed(self, engine)
        rank = int(significant(s, a.shape, None, self.rcond).sum())
        return _svd.complete(v, len(v), engine)[:, rank:]

    def unique(self, result: Any) -> Any:
        return projected(result)

    def error(self, q: np.ndarray) -> float:
        (a,) = self.arrays
        v = probe(q.shape[1], self.dtype)
        left = norm(a @ (q @ v)) / (norm(a) * math.sqrt(v.shape[1]))
        return max(orthonormal_error(q), left if self.rcond is None else 0.0)


def prepare_null_space(
    A: Any, rcond: Any = None, *, overwrite_a: Any = False, check_finite: Any = True, lapack_driver: Any = "gesdd"
) -> Problem:
    refuse(not isinstance(lapack_driver, str) or lapack_driver != "gesdd", f"lapack_driver={lapack_driver!r}")
    return problem(NullSpace, A, "svd", basis=True, rcond=tolerance("rcond", rcond))


OPS = (
    scipy_function("orth", prepare_orth, small=SMALL),
    scipy_function("null_space", prepare_null_space, small=SMALL),
)
