"""Every accelerated function of scipy.linalg and numpy.linalg: the table of their rows."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import numpy as np

from trnpy._call.dispatch import Op, Problem
from trnpy.linalg._eigh import NUMPY_EIGH_OPS, eigh_ops
from trnpy.linalg._factor_rows import NUMPY_FACTOR_OPS, factor_ops
from trnpy.linalg._function_rows import NUMPY_FUNCTION_OPS, function_ops
from trnpy.linalg._matrices import form
from trnpy.linalg._orthogonal_rows import NUMPY_ORTHOGONAL_OPS, orthogonal_ops
from trnpy.linalg._solve_rows import NUMPY_SOLVE_OPS, solve_ops
from trnpy.linalg._svd_rows import NUMPY_SVD_OPS, svd_ops


@functools.cache
def _scipys() -> tuple[Op, ...]:
    """Rows of scipy.linalg, which this imports."""
    rows = (*eigh_ops(), *factor_ops(), *solve_ops(), *orthogonal_ops(), *svd_ops(), *function_ops())
    return tuple(replace(row, form=form) for row in rows)


def __getattr__(name: str) -> tuple[Op, ...]:
    if name == "OPS":
        return _scipys()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _in_c_order(row: Op) -> Op:
    """``row`` with results in C order, as NumPy's gufuncs give; SciPy has an order for each function and version."""

    def deliver(problem: Problem, result: Any) -> Any:
        delivered = row.deliver(problem, result)
        if isinstance(delivered, tuple):
            ordered = [np.asarray(x, order="C") if isinstance(x, np.ndarray) else x for x in delivered]
            return tuple(ordered) if type(delivered) is tuple else type(delivered)(*ordered)
        return np.asarray(delivered, order="C") if isinstance(delivered, np.ndarray) else delivered

    return replace(row, deliver=deliver)


_GUFUNCS = (*NUMPY_EIGH_OPS, *NUMPY_FACTOR_OPS, *NUMPY_SOLVE_OPS, *NUMPY_SVD_OPS)
NUMPY_OPS = (*map(_in_c_order, _GUFUNCS), *NUMPY_ORTHOGONAL_OPS, *NUMPY_FUNCTION_OPS)
