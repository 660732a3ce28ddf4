"""The names of ``trnpy.linalg``: scipy.linalg, those only in numpy.linalg, inv_sqrtm, and BLAS of any type."""

from __future__ import annotations

import importlib
from typing import Any

import numpy.linalg
import scipy.linalg

from trnpy._call.namespace import public, rows
from trnpy._call.rows import rows as rows_of
from trnpy._call.unsupported import strict
from trnpy.linalg import _inv_sqrtm

HOME = "trnpy.linalg"
LAZY = ("interpolative",)  # not loaded here, because it loads half of scipy.sparse

NAMES: dict[str, Any] = (
    public(numpy.linalg)
    | rows(rows_of("numpy.linalg"), HOME)
    | public(scipy.linalg, LAZY)
    | rows(rows_of("scipy.linalg"), HOME)
)
NAMES |= rows(_inv_sqrtm.OPS, HOME) | strict(NAMES, HOME)
for _name in ("blas", "lapack"):  # trnpy.linalg.blas and .lapack
    NAMES[_name] = importlib.import_module(f"{HOME}.{_name}")
    NAMES[f"get_{_name}_funcs"] = getattr(NAMES[_name], f"get_{_name}_funcs")
_level3 = importlib.import_module(f"{HOME}._level3")  # which needs blas
NAMES |= {_name: getattr(_level3, _name) for _name in _level3.__all__}

# Without NumPy's outer, cross and trace, because a star import would hide numpy.outer, numpy.cross and numpy.trace.
NAMES["__all__"] = scipy.linalg.__all__
