"""The names of scipy.sparse. Classes are trnpy's subclasses of SciPy's, and constructors return them."""

from __future__ import annotations

import importlib as _importlib
from typing import Any as _Any

from scipy import sparse as _scipy

from trnpy._call.namespace import public as _public
from trnpy.sparse import _analysis, _masks
from trnpy.sparse._classes import SCIPY as _SCIPY
from trnpy.sparse._classes import makers as _makers

_SUBMODULES = ("csgraph", "linalg")
_PLAIN = """csgraph find get_index_dtype issparse isspmatrix isspmatrix_bsr isspmatrix_coo isspmatrix_csc isspmatrix_csr
    isspmatrix_dia isspmatrix_dok isspmatrix_lil linalg safely_cast_index_arrays save_npz test"""

__all__ = _scipy.__all__

_names = _public(_scipy, lazy=_SUBMODULES) | {cls.__name__: cls for cls in _SCIPY} | _makers(_scipy, _PLAIN, __name__)
_OWN = (
    _analysis.block_analysis,
    _analysis.morton_order,
    _masks.block_mask_matmul,
    _masks.block_mask_matmul_gradients,
    _masks.local_mask,
    _masks.masked_attention,
    _masks.masked_attention_gradients,
)
_names |= {function.__name__: function for function in _OWN}
globals().update(_names)


def __getattr__(name: str) -> _Any:
    if name in (*_SUBMODULES, "torch_bridge"):
        return _importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*_names, *_SUBMODULES})
