"""The array API standard over arrays whose operations are recorded: ``trnpy.Array``.

``trnpy.xp`` is a namespace like ``numpy``: version 2024.12 of https://data-apis.org/array-api with ``linalg`` and
``fft``. Its products and factorizations are accelerated like those of ``trnpy``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trnpy._settings.policy import Attention
from trnpy.xp import _creation, _elementwise, _operators, _products, _reductions, _shapes
from trnpy.xp._array import DEVICE, Array
from trnpy.xp._common import at_once, check_device
from trnpy.xp._creation import *  # noqa: F403
from trnpy.xp._elementwise import *  # noqa: F403
from trnpy.xp._products import *  # noqa: F403
from trnpy.xp._reductions import *  # noqa: F403
from trnpy.xp._shapes import *  # noqa: F403

API_VERSIONS = ("2021.12", "2022.12", "2023.12", "2024.12")
__array_api_version__ = "2024.12"

e, inf, nan, pi, newaxis = np.e, np.inf, np.nan, np.pi, None
int8 = np.dtype("int8")
int16 = np.dtype("int16")
int32 = np.dtype("int32")
int64 = np.dtype("int64")
uint8 = np.dtype("uint8")
uint16 = np.dtype("uint16")
uint32 = np.dtype("uint32")
uint64 = np.dtype("uint64")
float32 = np.dtype("float32")
float64 = np.dtype("float64")
complex64 = np.dtype("complex64")
complex128 = np.dtype("complex128")
bool = np.dtype("bool")
_DTYPES = (
    bool, int8, int16, int32, int64, uint8, uint16, uint32, uint64, float32, float64, complex64, complex128,
)  # fmt: skip

from trnpy.xp import fft, linalg  # noqa: E402  (they import functions from here)

__all__ = [
    "Array", "__array_api_version__", "__array_namespace_info__", "bool", "complex64", "complex128", "e", "fft",
    "float32", "float64", "inf", "int8", "int16", "int32", "int64", "linalg", "nan", "newaxis", "pi", "uint8", "uint16",
    "uint32", "uint64",
]  # fmt: skip
__all__ += [*_creation.__all__, *_elementwise.__all__, *_products.__all__, *_reductions.__all__, *_shapes.__all__]
_operators.attach()
Attention.arrays, Attention.array, Attention.asked = at_once, Array, True  # from now on calls look for Arrays


class __array_namespace_info__:
    """The dtypes, devices and capabilities of this namespace."""

    def capabilities(self) -> dict[str, Any]:
        """Shapes that depend on values are computed at once."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}

    def default_device(self) -> str:
        return DEVICE

    def devices(self) -> list[str]:
        return [DEVICE]

    def default_dtypes(self, *, device: Any = None) -> dict[str, np.dtype]:
        check_device(device)
        names = {"real floating": "float64", "complex floating": "complex128", "integral": "int64", "indexing": "int64"}
        return {kind: np.dtype(name) for kind, name in names.items()}

    def dtypes(self, *, device: Any = None, kind: Any = None) -> dict[str, np.dtype]:
        check_device(device)
        return {dtype.name: dtype for dtype in _DTYPES if kind is None or np.isdtype(dtype, kind)}
