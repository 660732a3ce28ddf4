"""Triangular systems and stacks of them; the host solves small ones and diagonal blocks."""

from __future__ import annotations

from typing import Any

import numpy as np

from trnpy._base.records import record
from trnpy._call import guards
from trnpy._call.dispatch import Problem, Reason, Unsupported
from trnpy._engine import triangular
from trnpy._engine.abstract_arrays import usual
from trnpy._engine.engines import Engine
from trnpy.linalg import _lapack_panels
from trnpy.linalg._lapack_panels import BLOCK, adjoint, in_one_launch
from trnpy.linalg._matrices import SMALL, norm, right_hand_sides, square, system_error, useful
from trnpy.linalg._reference_forms import scipy_function


def solve(
    a: np.ndarray, b: np.ndarray, engine: Engine, *, lower: bool, side: str = "left", trans: str = "N",
    unit: bool = False,
) -> np.ndarray:  # fmt: skip
    """X of op(A) X = B, or of X op(A) = B for ``side`` "right"; ``trans``, "N", "T" or "C", gives op.

    One triangle of A (..., n, n) is read, in the dtype of B. The caller tests its diagonal for zeros. Without a kernel,
    the host solves the diagonal blocks, because engines would invert them to use products.
    """
    if a.shape[-1] > BLOCK and in_one_launch(a.ndim, a.dtype):
        return engine.trsm(a, b, side=side, lower=lower, trans=trans, unit=unit)
    t, right, down = triangular.oriented(a, b, side, lower, trans)
    x = triangular.solve(t, right, down, unit, engine.matmul, _lapack_panels.substitution, BLOCK)
    return x if side == "left" else x.swapaxes(-1, -2)


# --- Rows -------------------------------------------------------------------------------------------------------------


@record(kw_only=True)
class TriangularSystem(Problem):
    """op(A) x = b for a triangle of a matrix (n, n)."""

    trans: str
    lower: bool
    unit: bool

    def run(self, engine: Engine) -> np.ndarray:
        a, b = self.arrays
        guards.finite(a, b)
        if not self.unit and not usual(a.diagonal().all(), True):
            raise Unsupported(Reason.VALUE, "singular: a zero on the diagonal")
        full, columns = (x.astype(self.dtype, copy=False) for x in (a, b.reshape(len(b), -1)))
        x = solve(full, columns, engine, lower=self.lower, trans=self.trans, unit=self.unit)
        return x.reshape(b.shape)

    def error(self, x: np.ndarray) -> float:
        a, b = self.arrays
        t = triangular.triangle(a, self.lower, self.unit)
        t = {"N": t, "T": t.T, "C": adjoint(t)}[self.trans]
        return system_error(t @ x - b, norm(t), x, b)


def prepare_solve_triangular(
    a: Any, b: Any, trans: Any = 0, lower: Any = False, unit_diagonal: Any = False, overwrite_b: Any = False,
    check_finite: Any = True,
) -> Problem:  # fmt: skip
    op = {0: "N", 1: "T", 2: "C", "N": "N", "T": "T", "C": "C"}.get(trans)
    if op is None:
        raise Unsupported(Reason.PARAM, f"trans={trans!r}")
    a = square(a)
    b = right_hand_sides(a, b)
    dtype, n = guards.floating(a, b), len(a)
    cost = useful("trsm", n, 1.0 * n * b.size, (a,), dtype, 2 * b.size)
    return TriangularSystem((a, b), dtype, cost, trans=op, lower=bool(lower), unit=bool(unit_diagonal))


OPS = (scipy_function("solve_triangular", prepare_solve_triangular, small=SMALL),)
