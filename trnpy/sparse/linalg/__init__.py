"""The names of scipy.sparse.linalg, some of them accelerated; sparse results are of trnpy's classes."""

from __future__ import annotations

from scipy.sparse import linalg as _scipy

from trnpy._call.namespace import public as _public
from trnpy._call.namespace import rows as _rows
from trnpy._call.unsupported import strict as _strict
from trnpy.sparse._classes import makers as _makers
from trnpy.sparse.linalg._eigsh_lobpcg import OPS as _OPS
from trnpy.sparse.linalg._expm_multiply import EXPONENTIAL_OPS as _EXPONENTIAL_OPS

_PLAIN = """aslinearoperator bicg bicgstab cgs eigs factorized funm_multiply_krylov gcrotmk is_sptriangular lgmres lsmr
    lsqr minres norm onenormest qmr spbandwidth spilu splu spsolve_triangular svds test tfqmr use_solver"""

__all__ = _scipy.__all__

_ROWS = _OPS + _EXPONENTIAL_OPS
_names = _public(_scipy) | _makers(_scipy, _PLAIN, __name__) | _rows(_ROWS, __name__)
_names |= _strict(_names, __name__, ("expm", "inv", "matrix_power"))
globals().update(_names)


def __dir__() -> list[str]:
    return sorted(_names)
