"""Views at run-time addresses: scalar and vector offsets, gather and scatter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from nkisim.chip.dtypes import STORAGE, WIDE, Array, dtype_name
from nkisim.chip.errors import SimulatorError
from nkisim.chip.registers import NkiScalar, VirtualRegister

if TYPE_CHECKING:
    from nkisim.chip.interfaces import TensorView, View


@dataclass(frozen=True, slots=True)
class Index:
    """A run-time index from 0 to ``extent`` - 1, in units of ``stride`` elements of storage.

    A scalar index moves the whole view. A vector index replaces dimension ``dim`` (always 0) with one
    index per row of the view.
    """

    kind: Literal["scalar", "vector"]
    source: Any  # VirtualRegister or TensorView
    stride: int
    extent: int
    dim: int | None


def index_rows(source: TensorView) -> int:
    """The number of indices in a vector offset, after checking it."""
    if source.storage.buffer != "sbuf" or source.dtype not in ("int32", "uint32") or source.ndim != 2:
        raise SimulatorError(f"vector_offset {source!r}: need a 2-d int32 or uint32 tile in SBUF", rule=19)
    return source.size


def index_source(index: Any, tensor: TensorView, what: str) -> Any:
    """The scalar index, after checking it: a register, or a (1, 1) integer tile in SBUF."""
    if isinstance(index, VirtualRegister):
        if tensor.on_chip and isinstance(index, NkiScalar) and index.dtype == WIDE:
            raise SimulatorError(f"{what}: an int64 scalar addresses HBM only; load an int32 scalar", rule=19)
        return index
    if index.storage.buffer != "sbuf" or index.size != 1 or index.dtype not in ("int32", "uint32"):
        raise SimulatorError(
            f"{what}: the index must be a register or a (1, 1) int32 or uint32 tile in SBUF, got {index!r}", rule=19
        )
    return index


def access_pattern(
    tensor: View,
    pattern: Sequence[Sequence[int]],
    offset: int | None,
    scalar_offset: Any,
    vector_offset: TensorView | None,
    indirect_dim: int,
    dtype: Any,
) -> View:
    """``tensor.ap(...)``: a pattern over the storage, not over the view ``tensor``."""
    name = tensor.dtype if dtype is None else dtype_name(dtype)
    try:
        pairs = [(int(step), int(count)) for step, count in pattern]
    except (TypeError, ValueError):
        raise SimulatorError(f"ap pattern {pattern!r}: need [[stride, count], ...]", rule=14) from None
    if not pairs or any(step < 0 or count < 1 for step, count in pairs):
        raise SimulatorError(f"ap pattern {pattern!r}: strides must not be negative, counts must be positive", rule=14)
    size = STORAGE[name].itemsize
    # If no offset is given, the view's own is used, converted by bytes (nki-aps.rst, "offset").
    start = tensor.offset * tensor.itemsize // size if offset is None else offset
    if not isinstance(start, (int, np.integer)) or start < 0:
        raise SimulatorError(f"ap offset {offset!r}: need a compile-time integer >= 0", rule=14)
    if scalar_offset is not None and vector_offset is not None:
        raise SimulatorError("ap: scalar_offset and vector_offset exclude each other", rule=19)
    index: Index | None = None
    if scalar_offset is not None or vector_offset is not None:
        if tensor.index is not None:
            raise SimulatorError("ap with a run-time offset on a view that already has one", rule=19)
        if not 0 <= indirect_dim < tensor.ndim:
            raise SimulatorError(f"ap: indirect_dim {indirect_dim} of a tensor of shape {tensor.shape}", rule=19)
        stride, extent = tensor.strides[indirect_dim], tensor.shape[indirect_dim]
        if vector_offset is not None:
            if tensor.on_chip or indirect_dim != 0:
                raise SimulatorError("ap: vector_offset needs an HBM tensor and indirect_dim=0", rule=19)
            if index_rows(vector_offset) < pairs[0][1]:
                raise SimulatorError(
                    f"ap: {pairs[0][1]} rows from {vector_offset.size} indices of shape {vector_offset.shape}", rule=19
                )
            # The pattern's leading stride is ignored; the base tensor's is used (nki-aps.rst).
            index = Index("vector", vector_offset, stride, extent, 0)
        else:
            if tensor.on_chip and indirect_dim == 0:
                raise SimulatorError("ap: scalar_offset on the partition dimension of an on-chip tensor", rule=19)
            index = Index("scalar", index_source(scalar_offset, tensor, "ap"), stride, extent, None)
    shape, strides = tuple(count for _, count in pairs), tuple(step for step, _ in pairs)
    view: View = cast("Any", type(tensor))(tensor.storage, shape, strides, int(start), name, index)
    view.fault = _out_of_bounds(view)
    return view


def _out_of_bounds(view: TensorView) -> str | None:
    """Message if the static part of a pattern leaves the storage or, on chip, its partitions; otherwise None."""
    row = view.row_elements
    inner = sum((n - 1) * s for n, s in zip(view.shape[1:], view.strides[1:], strict=True))
    if view.on_chip:
        if view.strides[0] != row:
            raise SimulatorError(
                f"ap: the first stride is {view.strides[0]}, the partition stride of this storage is {row}", rule=14
            )
        partition, column = divmod(view.offset, row)
        if column + inner >= row or partition + view.shape[0] > view.storage.partitions:
            return (
                f"ap {view.get_pattern()} at offset {view.offset} leaves storage of "
                f"{view.storage.partitions} x {row} {view.dtype}"
            )
        return None
    first = 0 if view.index is not None and view.index.kind == "vector" else (view.shape[0] - 1) * view.strides[0]
    if view.offset + first + inner >= row:
        return f"ap {view.get_pattern()} at offset {view.offset} leaves storage of {row} {view.dtype}"
    return None


def scalar_value(index: Index) -> int:
    """Current value of a scalar index."""
    if isinstance(index.source, VirtualRegister):
        if index.source.value is None:
            raise SimulatorError("a register is used as an index before it holds a value", rule=16)
        return index.source.value
    return int(index.source.array().reshape(-1)[0])


def vector_values(view: TensorView) -> Array:
    """Indices of the view's rows in order (column-major over the index tile)."""
    assert view.index is not None
    values: Array = view.index.source.array().T.reshape(-1)[: view.shape[0]].astype(np.int64)
    return values


def resolve_scalar(view: View, skip: bool) -> View | None:
    """The static view that a scalar index selects now; None if it is out of bounds and skipped."""
    assert view.index is not None
    value = scalar_value(view.index)
    offset = view.offset + value * view.index.stride
    hull = sum((n - 1) * s for n, s in zip(view.shape, view.strides, strict=True))
    if view.on_chip:
        row = view.row_elements
        inner = hull - (view.shape[0] - 1) * view.strides[0]
        inside = value >= 0 and offset // row == view.offset // row and offset % row + inner < row
    else:
        inside = value >= 0 and offset + hull < view.row_elements
    if not inside or value >= view.index.extent:
        if skip:
            return None
        raise SimulatorError(
            f"index {value} is out of bounds: {view.index.extent} positions, view {view.shape} of {view.storage.shape}",
            rule=19,
        )
    moved: View = cast("Any", type(view))(view.storage, view.shape, view.strides, offset, view.dtype)
    return moved


def rows_of(view: View, skip: bool) -> tuple[View, Array, Array]:
    """The table from which a vector index selects rows, the row numbers, and the mask of those in bounds."""
    assert view.index is not None
    inner = sum((n - 1) * s for n, s in zip(view.shape[1:], view.strides[1:], strict=True))
    stride = view.index.stride
    fitting = (view.row_elements - 1 - view.offset - inner) // stride + 1 if stride else 1
    extent = min(view.index.extent, fitting)
    rows = vector_values(view)
    valid = (rows >= 0) & (rows < extent)
    if not skip and not valid.all():
        place = int(np.argmin(valid))
        raise SimulatorError(
            f"index {rows[place]} at position {place} is out of bounds for {extent} rows of {view.storage.shape} "
            f"(the device stops with NRT_EXEC_OOB; oob_mode.skip leaves such rows out)",
            rule=19,
        )
    table = cast("Any", type(view))(
        view.storage, (extent, *view.shape[1:]), (stride, *view.strides[1:]), view.offset, view.dtype
    )
    return table, rows, valid


def gather(view: TensorView, skip: bool) -> Array:
    """Elements of an indirect view as a new array; zeros for skipped indices."""
    assert view.index is not None
    if view.index.kind == "scalar":
        at = resolve_scalar(view, skip)
        return np.zeros(view.shape, STORAGE[view.dtype]) if at is None else at.array()
    table, rows, valid = rows_of(view, skip)
    if valid.all():
        picked: Array = table.array()[rows]
        return picked
    result = np.zeros(view.shape, STORAGE[view.dtype])
    result[valid] = table.array()[rows[valid]]
    return result


def scatter(view: TensorView, values: Array, skip: bool) -> None:
    """Store values into an indirect view; refuse to write different values to one row."""
    assert view.index is not None
    if view.index.kind == "scalar":
        at = resolve_scalar(view, skip)
        if at is not None:
            at.array()[...] = values
        return
    table, rows, valid = rows_of(view, skip)
    rows, values = rows[valid], values[valid]
    refuse_conflicts(rows, values)
    table.array()[rows] = values


def refuse_conflicts(rows: Array, values: Array | None) -> None:
    """Refuse a repeated row; if ``values`` are given, only one with different values."""
    order = np.argsort(rows, kind="stable")
    repeated = np.flatnonzero(rows[order][1:] == rows[order][:-1])
    for place in repeated:
        first, second = int(order[place]), int(order[place + 1])
        if values is None or values[first].tobytes() != values[second].tobytes():
            raise SimulatorError(
                f"row {rows[first]} is written by positions {first} and {second} of one scatter: descriptors run in "
                f"no defined order, so the result depends on the run; make indices unique",
                rule=20,
            )
