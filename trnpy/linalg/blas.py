"""All names of scipy.linalg.blas; level 3 is accelerated."""

import functools as _functools
from typing import Any as _Any

from scipy.linalg import blas as _scipy

from trnpy._call.namespace import public as _public
from trnpy._call.namespace import rows as _rows
from trnpy.linalg._blas_rows import OPS as _BLAS_OPS

__all__ = _scipy.__all__
__doc__ = _scipy.__doc__

_accelerated = _rows(_BLAS_OPS, __name__)
_ours = {id(op.reference): _accelerated[op.name.rpartition(".")[2]] for op in _BLAS_OPS}

globals().update(_public(_scipy) | _accelerated)


@_functools.wraps(_scipy.get_blas_funcs)
def get_blas_funcs(*args: _Any, **kwargs: _Any) -> _Any:
    found = _scipy.get_blas_funcs(*args, **kwargs)
    return [_ours.get(id(f), f) for f in found] if isinstance(found, list) else _ours.get(id(found), found)


get_blas_funcs.__module__ = __name__
