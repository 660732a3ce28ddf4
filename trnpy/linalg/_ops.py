"""Every accelerated function of scipy.linalg and numpy.linalg: the table of their rows."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from trnpy._call.decisions import Form
from trnpy._call.dispatch import Op
from trnpy.linalg._cholesky import NUMPY_CHOLESKY_OPS, cholesky_ops
from trnpy.linalg._det import NUMPY_DET_OPS, det_ops
from trnpy.linalg._eigh import NUMPY_EIGH_OPS, eigh_ops
from trnpy.linalg._expm import expm_ops
from trnpy.linalg._inverse import NUMPY_INVERSE_OPS, inverse_ops
from trnpy.linalg._khatri_rao import khatri_rao_ops
from trnpy.linalg._logm import logm_ops
from trnpy.linalg._lstsq import NUMPY_LSTSQ_OPS, lstsq_ops
from trnpy.linalg._lu import lu_ops
from trnpy.linalg._matrices import form
from trnpy.linalg._matrix_power import NUMPY_MATRIX_POWER_OPS, fractional_matrix_power_ops
from trnpy.linalg._multi_dot import NUMPY_MULTI_DOT_OPS
from trnpy.linalg._orth import orth_ops
from trnpy.linalg._pinv import NUMPY_PINV_OPS, pinv_ops
from trnpy.linalg._polar import polar_ops
from trnpy.linalg._qr import NUMPY_QR_OPS, qr_ops
from trnpy.linalg._solve import NUMPY_SOLVE_OPS, solve_ops
from trnpy.linalg._sqrtm import sqrtm_ops
from trnpy.linalg._svd_rows import NUMPY_SVD_OPS, svd_ops
from trnpy.linalg._triangular import triangular_ops


@functools.cache
def _scipys() -> tuple[Op, ...]:
    """The rows of scipy.linalg, made at first use: each function ``..._ops`` imports scipy.linalg."""
    rows = (
        *eigh_ops(), *cholesky_ops(), *lu_ops(), *det_ops(), *solve_ops(), *triangular_ops(), *inverse_ops(), *qr_ops(),
        *lstsq_ops(), *svd_ops(), *pinv_ops(), *polar_ops(), *orth_ops(), *expm_ops(), *sqrtm_ops(), *logm_ops(),
        *fractional_matrix_power_ops(), *khatri_rao_ops(),
    )  # fmt: skip
    return tuple(replace(row, form=form) for row in rows)


def __getattr__(name: str) -> tuple[Op, ...]:
    if name == "OPS":
        return _scipys()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _in_c_order(result: Any) -> Any:
    """A result in C order, as from NumPy's gufuncs."""
    if isinstance(result, tuple):
        ordered = [np.asarray(x, order="C") if isinstance(x, np.ndarray) else x for x in result]
        return tuple(ordered) if type(result) is tuple else type(result)(*ordered)
    return np.asarray(result, order="C") if isinstance(result, np.ndarray) else result


def _numpy_form(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Form:
    return _in_c_order


_GUFUNCS = (
    *NUMPY_EIGH_OPS, *NUMPY_CHOLESKY_OPS, *NUMPY_DET_OPS, *NUMPY_SOLVE_OPS, *NUMPY_INVERSE_OPS, *NUMPY_SVD_OPS,
    *NUMPY_PINV_OPS, *NUMPY_LSTSQ_OPS,
)  # fmt: skip
NUMPY_OPS = (
    *(replace(row, form=_numpy_form) for row in _GUFUNCS),
    *NUMPY_QR_OPS,
    *NUMPY_MATRIX_POWER_OPS,
    *NUMPY_MULTI_DOT_OPS,
)
