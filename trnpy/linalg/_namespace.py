"""The names of ``trnpy.linalg``: scipy.linalg, what only numpy.linalg has, and inv_sqrtm."""

from __future__ import annotations

import importlib
from typing import Any

import numpy.linalg
import scipy.linalg

from trnpy._call.names import public, rows
from trnpy.linalg._inv_sqrtm import OWN_OPS
from trnpy.linalg._ops import NUMPY_OPS, OPS

HOME = "trnpy.linalg"
LAZY = ("interpolative",)  # not loaded here, because it loads half of scipy.sparse

NAMES: dict[str, Any] = public(numpy.linalg) | rows(NUMPY_OPS, HOME) | public(scipy.linalg, LAZY) | rows(OPS, HOME)
NAMES |= rows(OWN_OPS, HOME)
for _name in ("blas", "lapack"):  # trnpy.linalg.blas and .lapack
    NAMES[_name] = importlib.import_module(f"{HOME}.{_name}")
    NAMES[f"get_{_name}_funcs"] = getattr(NAMES[_name], f"get_{_name}_funcs")

# Without NumPy's outer, cross and trace: a star import of them would hide numpy.outer, numpy.cross and numpy.trace.
NAMES["__all__"] = scipy.linalg.__all__
