"""Indexing and reshaping arithmetic of strided views."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from nkisim.chip.errors import SimulatorError
from nkisim.chip.indirect import Index, index_source
from nkisim.chip.registers import VirtualRegister

if TYPE_CHECKING:
    from nkisim.chip.interfaces import TensorView, View


@dataclass(frozen=True, slots=True)
class DynamicSlice:
    """``nl.ds(start, size)``: ``size`` elements starting at an integer or a register."""

    start: Any
    size: int


def _off_partitions(tensor: TensorView, dim: int) -> None:
    """Refuse a run-time index over partitions: each is wired to a lane."""
    if tensor.on_chip and dim == 0:
        raise SimulatorError("a run-time index on the partition dimension of an on-chip tensor", rule=12)


def _complete(tensor: TensorView, key: Any) -> list[Any]:
    """One entry per dimension: ``...`` and missing entries become full slices."""
    keys = list(key) if isinstance(key, tuple) else [key]
    ellipses = sum(1 for k in keys if k is Ellipsis)
    if ellipses > 1 or len(keys) - ellipses > tensor.ndim:
        raise SimulatorError(f"index {key!r} of a tensor of shape {tensor.shape}: too many entries")
    if ellipses:
        at = next(i for i, k in enumerate(keys) if k is Ellipsis)
        keys[at : at + 1] = [slice(None)] * (tensor.ndim - len(keys) + 1)
    return keys + [slice(None)] * (tensor.ndim - len(keys))


def resolve_key(tensor: View, key: Any) -> View:
    """``tensor[key]`` for integers, slices, ``...`` and nl.ds (nki-language-guide.rst, "Tensor Indexing").

    On chip an integer keeps the partition dimension with size 1, and the result has at least two
    dimensions. In HBM an integer removes its dimension; at least one remains.
    """
    keys = _complete(tensor, key)
    drop: list[int] = []
    shape, strides, offset = list(tensor.shape), list(tensor.strides), tensor.offset
    dynamic: tuple[Any, int, int] | None = None  # register, stride, extent
    fault = tensor.fault
    fixed = -1 if tensor.index is None or tensor.index.dim is None else tensor.index.dim
    for dim, k in enumerate(keys):
        if isinstance(k, slice) and k == slice(None):
            continue
        if dim == fixed:
            raise SimulatorError(f"index {key!r}: dimension {dim} is addressed through a vector of indices", rule=19)
        if isinstance(k, DynamicSlice):
            if isinstance(k.start, VirtualRegister):
                if dynamic is not None or tensor.index is not None:
                    raise SimulatorError("more than one run-time index in a view", rule=19)
                if not 0 < k.size <= shape[dim]:
                    raise SimulatorError(f"nl.ds of {k.size} elements of dimension {dim} of {tensor.shape}", rule=12)
                _off_partitions(tensor, dim)
                dynamic = (index_source(k.start, tensor, "nl.ds"), strides[dim], shape[dim] - k.size + 1)
                shape[dim] = k.size
                continue
            k = slice(k.start, k.start + k.size)
        if isinstance(k, VirtualRegister):
            if dynamic is not None or tensor.index is not None:
                raise SimulatorError("more than one run-time index in a view", rule=19)
            _off_partitions(tensor, dim)
            dynamic = (index_source(k, tensor, "index"), strides[dim], shape[dim])
            shape[dim] = 1
            drop.append(dim)
        elif isinstance(k, slice):
            start, count, step, outside = _slice(k, shape[dim], dim, tensor)
            fault = fault or outside
            offset += start * strides[dim]
            shape[dim], strides[dim] = count, strides[dim] * step
        elif isinstance(k, (int, np.integer)) and not isinstance(k, bool):
            if not -shape[dim] <= k < shape[dim]:
                raise SimulatorError(f"index {k} is out of bounds for dimension {dim} of {tensor.shape}", rule=12)
            offset += (int(k) % shape[dim]) * strides[dim]
            shape[dim] = 1
            drop.append(dim)
        else:
            raise SimulatorError(
                f"index {k!r} of type {type(k).__name__}: need an integer, a slice, nl.ds or ...", rule=1
            )
    if tensor.on_chip:
        drop = [dim for dim in drop if dim != 0]
        if tensor.ndim - len(drop) < 2 and drop:
            drop.pop()
    elif len(drop) == tensor.ndim:
        drop.pop()
    kept = [dim for dim in range(tensor.ndim) if dim not in drop]
    view: View = tensor.relaid([shape[d] for d in kept], [strides[d] for d in kept], offset)
    view.fault = fault
    if dynamic is not None:
        view.index = Index("scalar", dynamic[0], dynamic[1], dynamic[2], None)
    return view


def _slice(k: slice, extent: int, dim: int, tensor: TensorView) -> tuple[int, int, int, str | None]:
    """First element, count, step, and the message if it is out of bounds (Python would shorten such a slice)."""
    for bound in (k.start, k.stop, k.step):
        if bound is not None and (isinstance(bound, bool) or not isinstance(bound, (int, np.integer))):
            raise SimulatorError(
                f"slice bound {bound!r} of type {type(bound).__name__}: need compile-time integers", rule=6
            )
    step = 1 if k.step is None else int(k.step)
    if step < 1:
        raise SimulatorError(f"slice step {step} of dimension {dim}: only positive steps exist", rule=12)
    start = 0 if k.start is None else int(k.start)
    stop = extent if k.stop is None else int(k.stop)
    start, stop = (start + extent if start < 0 else start), (stop + extent if stop < 0 else stop)
    fault = None
    if not 0 <= start < stop <= extent:
        fault = f"slice {k.start}:{k.stop} is out of bounds or empty for dimension {dim} of {tensor.shape}"
        start, stop = min(max(start, 0), extent - 1), max(stop, start + 1)
    if dim == 0 and step != 1 and tensor.on_chip:
        raise SimulatorError(f"slice step {step} on the partition dimension: partitions are contiguous", rule=12)
    return start, -(-(stop - start) // step), step, fault


def merge_strides(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, int] | None:
    """Extent and stride of the dimensions merged into one; None if the layout does not allow it."""
    extent, stride, reach = 1, 1, 0
    for n, s in zip(reversed(shape), reversed(strides), strict=True):
        if n == 1:
            continue
        if extent == 1:
            stride = s
        elif s != reach:
            return None
        extent *= n
        reach = s * n
    return extent, stride


def reshape_strides(shape: Sequence[int], strides: Sequence[int], wanted: Sequence[int]) -> list[int] | None:
    """Strides of the same elements in the wanted shape; None if no view has them.

    Runs of old and new dimensions with equal products are matched from the outermost inwards; each run of
    the old shape must be mergeable.
    """
    result: list[int] = []
    i = j = 0
    while i < len(shape) or j < len(wanted):
        old_end, new_end = i + 1, j + 1
        old = shape[i] if i < len(shape) else 1
        new = wanted[j] if j < len(wanted) else 1
        while old != new:
            if old < new:
                old *= shape[old_end]
                old_end += 1
            else:
                new *= wanted[new_end]
                new_end += 1
        merged = merge_strides(shape[i:old_end], strides[i:old_end])
        if merged is None:
            return None
        step = merged[1]
        run: list[int] = []
        for extent in reversed(wanted[j:new_end]):
            run.insert(0, step)
            step *= extent
        result += run
        i, j = old_end, new_end
    return result
