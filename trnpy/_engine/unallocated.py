"""Arrays with a shape, strides and an address, but no memory: the layouts of abstract arrays in dry runs.

Nothing may read their elements. NumPy functions that only make views compute with the address.
"""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np

REAL = np.dtype("i1")  # an abstract array has a byte for each real number, two if complex
COMPLEX = np.dtype([("re", "i1"), ("im", "i1")])
ALLOCATED = 2**16  # bytes up to which NumPy allocates an abstract array's memory, which takes a tenth of the time
FIRST_ADDRESS = 2**60  # beyond the addresses of any process: reading would end it, not return another array's values
RESHAPES_WITHOUT_COPY = "copy" in inspect.signature(np.reshape).parameters  # from NumPy 2.1 on


class _Nowhere:
    """The ``__array_interface__`` of an array that begins at ``address``."""

    def __init__(self, address: int, shape: tuple[int, ...], form: np.dtype) -> None:
        self.__array_interface__ = {
            "version": 3, "data": (address, False), "shape": shape, "typestr": form.str, "descr": form.descr,
        }  # fmt: skip


def unallocated(shape: tuple[int, ...], form: np.dtype, address: int, axes: list[int]) -> np.ndarray:
    """An array at ``address``, contiguous if its ``axes`` are in this order, the outermost first."""
    made = np.asarray(_Nowhere(address, tuple([shape[axis] for axis in axes]), form))
    return made.transpose([axes.index(axis) for axis in range(len(axes))])


def outer_to_inner(ndim: int, order: str, like: np.ndarray | None) -> list[int]:
    """The axes of a new array in ``order`` "C", "F" or "K" (that of ``like``); the outermost first."""
    if order == "K" and like is not None:
        strides = like.strides
        return sorted(range(ndim), key=lambda axis: -abs(strides[axis]))
    return list(range(ndim))[:: -1 if order == "F" else 1]


def reshaped(memory: np.ndarray, shape: Any) -> np.ndarray:
    """A view of ``memory``, which has no contents to copy; ValueError if only a copy could have this shape."""
    if RESHAPES_WITHOUT_COPY:
        return np.reshape(memory, shape, copy=False)
    view = memory.view()
    try:
        view.shape = shape
    except AttributeError as why:
        raise ValueError(str(why)) from why
    return view
