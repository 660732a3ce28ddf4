"""All names of scipy.linalg.interpolative."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scipy.linalg import interpolative as _scipy

from trnpy._call.names import public as _public

if TYPE_CHECKING:
    from scipy.linalg.interpolative import *  # noqa: F403

__all__ = _scipy.__all__
__doc__ = _scipy.__doc__

globals().update(_public(_scipy))
