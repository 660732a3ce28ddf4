"""All names of scipy.linalg.lapack; some drivers are accelerated."""

import functools as _functools
from typing import Any as _Any

from scipy.linalg import lapack as _scipy

from trnpy._call.namespace import public as _public
from trnpy._call.namespace import rows as _rows
from trnpy.linalg._lapack_rows import OPS as _LAPACK_OPS

__all__ = _scipy.__all__
__doc__ = _scipy.__doc__

_accelerated = _rows(_LAPACK_OPS, __name__)
_ours = {id(op.reference): _accelerated[op.name.rpartition(".")[2]] for op in _LAPACK_OPS}

globals().update(_public(_scipy) | _accelerated)


@_functools.wraps(_scipy.get_lapack_funcs)
def get_lapack_funcs(*args: _Any, **kwargs: _Any) -> _Any:
    found = _scipy.get_lapack_funcs(*args, **kwargs)
    return [_ours.get(id(f), f) for f in found] if isinstance(found, list) else _ours.get(id(found), found)


get_lapack_funcs.__module__ = __name__
