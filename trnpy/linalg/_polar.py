"""Polar factors, from singular values and vectors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from trnpy._base.records import record
from trnpy._call.dispatch import Problem
from trnpy._engine.engines import Engine
from trnpy._engine.proof.weights import probe
from trnpy.linalg._matrices import SMALL, norm, refuse
from trnpy.linalg._reference_forms import scipy_function
from trnpy.linalg._svd_rows import decomposed, matrix, orthonormal_error, problem


@record(kw_only=True)
class Polar(Problem):
    """A = U P if ``right``, else A = P U."""

    right: bool

    def run(self, engine: Engine) -> tuple[np.ndarray, np.ndarray]:
        w, s, v = decomposed(self, engine)
        basis = v if self.right else w
        return engine.matmul(w, v.conj().T), engine.matmul(basis * s, basis.conj().T)

    def error(self, result: tuple[np.ndarray, np.ndarray]) -> float:
        (a,), (u, p) = self.arrays, result
        v = probe(a.shape[1], self.dtype)
        residual = norm(a @ v - (u @ (p @ v) if self.right else p @ (u @ v))) / math.sqrt(v.shape[1])
        return max(residual / norm(a) if a.any() else residual, orthonormal_error(u if len(u) >= u.shape[1] else u.T))

    def unique(self, result: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """P, and U on the range of P, outside which U is not unique."""
        u, p = result
        return u @ p if self.right else p @ u, p


def prepare_polar(a: Any, side: Any = "right") -> Problem:
    refuse(not isinstance(side, str) or side not in ("right", "left"), f"side={side!r}")
    m, n = matrix(a).shape
    k, factor = min(m, n), n if side == "right" else m
    return problem(Polar, a, "svd", after=2.0 * k * (m * n + factor**2), right=side == "right")


OPS = (scipy_function("polar", prepare_polar, small=SMALL),)
