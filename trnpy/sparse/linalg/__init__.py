"""The names of scipy.sparse.linalg; those in the table of rows are accelerated."""

from __future__ import annotations

from scipy.sparse import linalg as _scipy

from trnpy._call.namespace import public as _public
from trnpy._call.namespace import rows as _rows
from trnpy._call.rows import rows as _rows_of
from trnpy._call.unsupported import strict as _strict
from trnpy.sparse._classes import adopting as _adopting
from trnpy.sparse._classes import makers as _makers
from trnpy.sparse._classes import settled as _settled

_PLAIN = """aslinearoperator bicg bicgstab cgs eigs factorized funm_multiply_krylov gcrotmk is_sptriangular lgmres lsmr
    lsqr minres norm onenormest qmr spbandwidth spilu splu spsolve_triangular svds test tfqmr use_solver"""

__all__ = _scipy.__all__

_names = _public(_scipy) | _makers(_scipy, _PLAIN, __name__) | _rows(_rows_of("scipy.sparse.linalg"), __name__)
_names |= _settled([_adopting(_names["expm"])], __name__)  # of a sparse matrix its result is sparse
_names |= _strict(_names, __name__, ("inv", "matrix_power"))
globals().update(_names)


def __dir__() -> list[str]:
    return sorted(_names)
