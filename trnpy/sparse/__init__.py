"""scipy.sparse's names: its classes as trnpy's subclasses, and its constructors making those."""

from __future__ import annotations

import importlib as _importlib
from typing import TYPE_CHECKING
from typing import Any as _Any

from scipy import sparse as _scipy

from trnpy._names import public as _public
from trnpy.sparse import _classes

if TYPE_CHECKING:
    from scipy.sparse import *  # noqa: F403

_SUBMODULES = ("csgraph", "linalg")
_MAKERS = (
    "block_array",
    "block_diag",
    "bmat",
    "diags",
    "diags_array",
    "expand_dims",
    "eye",
    "eye_array",
    "hstack",
    "identity",
    "kron",
    "kronsum",
    "load_npz",
    "permute_dims",
    "rand",
    "random",
    "random_array",
    "spdiags",
    "swapaxes",
    "tril",
    "triu",
    "vstack",
)

__all__ = _scipy.__all__

globals().update(_public(_scipy, lazy=_SUBMODULES))
globals().update({cls.__name__: cls for cls in _classes.SCIPY})
globals().update(_classes.makers(_scipy, _MAKERS, __name__))


def __getattr__(name: str) -> _Any:
    if name in _SUBMODULES:
        return _importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
