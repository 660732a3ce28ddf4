"""scipy.linalg, what only numpy.linalg has, and inv_sqrtm; accelerated ones are rows of ``_ops`` and ``_own_rows``."""

from __future__ import annotations

import importlib as _importlib
from typing import TYPE_CHECKING
from typing import Any as _Any

import numpy.linalg as _numpy
import scipy.linalg as _scipy

from trnpy._names import public as _public
from trnpy._names import rows as _rows
from trnpy.linalg._ops import NUMPY_OPS as _NUMPY_OPS
from trnpy.linalg._ops import OPS as _OPS
from trnpy.linalg._own_rows import OWN_OPS as _OWN_OPS

if TYPE_CHECKING:
    from scipy.linalg import *  # noqa: F403

_LAZY = ("interpolative",)  # loads half of scipy.sparse

_names = _public(_numpy) | _rows(_NUMPY_OPS, __name__) | _public(_scipy, _LAZY) | _rows(_OPS, __name__)
_names |= _rows(_OWN_OPS, __name__)
globals().update(_names)

# SciPy's only: NumPy's outer, cross and trace differ from those a star import would hide.
__all__ = _scipy.__all__

for _name in ("blas", "lapack"):  # as attributes, too, the modules that an import of their path gives
    _module = _importlib.import_module(f"{__name__}.{_name}")
    globals()[f"get_{_name}_funcs"] = getattr(_module, f"get_{_name}_funcs")


def __getattr__(name: str) -> _Any:
    if name in _LAZY:
        return _importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*_names, *_LAZY})
