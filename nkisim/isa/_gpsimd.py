"""GpSimd Engine: affine index patterns, gathers inside partitions and partition groups, nonzero."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nkisim.chip.context import issue, register_value
from nkisim.chip.dtypes import Array, convert
from nkisim.chip.operators import ALU
from nkisim.chip.registers import VirtualRegister
from nkisim.chip.tensor import NkiTensor
from nkisim.isa import _checks as check
from nkisim.isa._copy import partly_written
from nkisim.isa._lanes import raw_rows, rows, write_integers

__all__ = ["affine_select", "iota", "local_gather", "nc_n_gather", "nonzero_with_count", "sequence_bounds"]

INT32_LIMITS = np.iinfo(np.int32)
MAX_PATTERN_DIMS = 4
CORE_PARTITIONS = 16  # partitions per GpSimd core, of which there are eight (arch)
ELEMENTS_PER_INDEX = (1, 2, 4, 8, 16, 32)
MAX_INDICES_PER_CORE = 4096
GATHER_GROUP = 512  # elements per partition of one group of instructions of nc_n_gather
COMPARISONS = ("equal", "not_equal", "greater_equal", "greater", "less_equal", "less")


# --- affine patterns ------------------------------------------------------------------------------------


def iota(dst: NkiTensor, pattern: Any, offset: Any = 0, channel_multiplier: int = 0, name: str | None = None) -> Any:
    """``dst[p, w, z, y, x] = offset + p * channel_multiplier + sum(step * index)`` in int32 arithmetic.

    pattern: up to four [step, count]; the counts multiply to the elements per partition of dst (SBUF).
    """
    this = "iota"
    check.on_chip(this, dst=dst)
    check.sbuf_only(this, dst=dst)
    steps = _pattern(this, pattern, dst)
    start = _offset(this, offset)
    multiplier = check.whole_number(this, "channel_multiplier", channel_multiplier)
    if start is not None:
        _check_int32(this, steps, start, multiplier, dst.shape[0])

    def compute() -> None:
        assert start is not None
        write_integers(this, dst, _affine(steps, start, multiplier, dst.shape[0]))

    return issue(this, "gpsimd", {}, {"dst": dst}, compute, {}, name)


def affine_select(
    dst: NkiTensor,
    pattern: Any,
    channel_multiplier: int,
    on_true_tile: NkiTensor,
    on_false_value: float,
    cmp_op: Any = None,
    offset: Any = 0,
    name: str | None = None,
) -> Any:
    """on_true_tile where ``cmp_op(affine value, 0)``, else on_false_value; ``iota`` defines the affine values."""
    this = "affine_select"
    check.on_chip(this, dst=dst, on_true_tile=on_true_tile)
    check.sbuf_only(this, dst=dst, on_true_tile=on_true_tile)
    check.same_size(this, dst, on_true_tile=on_true_tile)
    comparison = ALU["equal"] if cmp_op is None else check.one_of(this, "cmp_op", cmp_op, COMPARISONS)
    if check.scalar_operand(this, "on_false_value", on_false_value, dst.shape[0]):
        check.refuse(this, "on_false_value is a tile; a float32 constant is needed", 28)
    steps = _pattern(this, pattern, dst)
    start = _offset(this, offset)
    multiplier = check.whole_number(this, "channel_multiplier", channel_multiplier)
    if start is not None:
        _check_int32(this, steps, start, multiplier, dst.shape[0])

    def compute() -> None:
        assert start is not None
        chosen = comparison.compute(_affine(steps, start, multiplier, dst.shape[0]), 0) != 0
        if on_true_tile.dtype == dst.dtype:
            otherwise = convert(np.asarray(on_false_value, np.float32), dst.dtype)
            dst.write(np.where(chosen, raw_rows(on_true_tile), otherwise))
        else:
            dst.write(np.where(chosen, rows(on_true_tile), np.float32(on_false_value)))

    return issue(this, "gpsimd", {"on_true_tile": on_true_tile}, {"dst": dst}, compute, {"op": comparison.name}, name)


def _pattern(this: str, pattern: Any, dst: NkiTensor) -> list[tuple[int, int]]:
    """Up to four [step, count], whose counts multiply to the elements per partition of dst."""
    steps = []
    for pair in pattern if isinstance(pattern, (list, tuple)) else ():
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            check.refuse(this, f"pattern {pattern!r}; a list of [step, count] is needed")
        steps.append((check.whole_number(this, "step", pair[0]), check.whole_number(this, "count", pair[1], 1)))
    if not 1 <= len(steps) <= MAX_PATTERN_DIMS:
        check.refuse(this, f"pattern {pattern!r}; one to {MAX_PATTERN_DIMS} pairs [step, count] are needed")
    if math.prod(count for _, count in steps) != dst.free_size:
        check.refuse(this, f"pattern {pattern!r} for dst {dst.shape}; counts must multiply to {dst.free_size}")
    return steps


def _offset(this: str, offset: Any) -> int | None:
    """A compile-time integer, or the current value of a register (None if unknown in a trace)."""
    if isinstance(offset, VirtualRegister):
        return register_value(offset, this)
    return check.whole_number(this, "offset", offset)


def _check_int32(this: str, steps: list[tuple[int, int]], offset: int, multiplier: int, partitions: int) -> None:
    """Refuse values outside int32, the type of the arithmetic: overflow has no documented result."""
    spans = [step * (count - 1) for step, count in steps] + [multiplier * (partitions - 1)]
    low, high = offset + sum(s for s in spans if s < 0), offset + sum(s for s in spans if s > 0)
    if low < INT32_LIMITS.min or high > INT32_LIMITS.max:
        check.refuse(this, f"values reach {low if low < INT32_LIMITS.min else high}, outside int32", 32)


def _affine(steps: list[tuple[int, int]], offset: int, multiplier: int, partitions: int) -> Array:
    """The affine values (P, elements per partition) as int64."""
    row = np.zeros(1, np.int64)
    for step, count in steps:
        row = (row[:, None] + step * np.arange(count, dtype=np.int64)).reshape(-1)
    result: Array = offset + multiplier * np.arange(partitions, dtype=np.int64)[:, None] + row
    return result


# --- gathers --------------------------------------------------------------------------------------------


def nc_n_gather(dst: NkiTensor, data: NkiTensor, indices: NkiTensor, name: str | None = None) -> Any:
    """``dst[p, i] = data[p, indices[p, i]]`` with the free dimensions flattened; indices uint32, all in SBUF."""
    this = "nc_n_gather"
    check.on_chip(this, dst=dst, data=data, indices=indices)
    check.sbuf_only(this, dst=dst, data=data, indices=indices)
    check.same_dtype(this, dst, None, data=data)
    check.dtype_in(this, ("uint32",), None, indices=indices)
    check.same_size(this, dst, indices=indices)
    if data.shape[0] != dst.shape[0]:
        check.refuse(this, f"data {data.shape} and dst {dst.shape}; the same partitions are needed", 28)

    def compute() -> None:
        index = raw_rows(indices)
        _check_bounds(this, index, data.free_size)
        dst.write(np.take_along_axis(raw_rows(data), index.astype(np.int64), 1))

    groups = -(-dst.free_size // GATHER_GROUP)
    return issue(this, "gpsimd", {"data": data, "indices": indices}, {"dst": dst}, compute, {"groups": groups}, name)


def _check_bounds(this: str, index: Array, limit: int) -> None:
    if index.size and int(index.max()) >= limit:
        partition, column = np.unravel_index(int(index.argmax()), index.shape)
        check.refuse(
            this, f"index {index[partition, column]} at [{partition}, {column}] is out of bounds for {limit} elements"
        )


def local_gather(
    dst: NkiTensor,
    src_buffer: NkiTensor,
    index: NkiTensor,
    num_elem_per_idx: int = 1,
    num_valid_indices: int | None = None,
    name: str | None = None,
) -> Any:
    """Gather the same elements from every partition of a group of 16.

    The uint16 indices of a group, partition first, are element offsets into the partitions of
    src_buffer; each index copies num_elem_per_idx elements. dst holds
    num_valid_indices x num_elem_per_idx elements per partition.
    """
    this = "local_gather"
    check.on_chip(this, dst=dst, src_buffer=src_buffer, index=index)
    check.sbuf_only(this, dst=dst, src_buffer=src_buffer, index=index)
    check.same_dtype(this, dst, None, src_buffer=src_buffer)
    check.dtype_in(this, ("uint16",), None, index=index)
    partitions = src_buffer.shape[0]
    if index.shape[0] != partitions or dst.shape[0] != partitions or partitions % CORE_PARTITIONS:
        check.refuse(
            this,
            f"src_buffer, index and dst have {partitions}, {index.shape[0]} and {dst.shape[0]} partitions; the same "
            f"multiple of {CORE_PARTITIONS} is needed",
        )
    if num_elem_per_idx not in ELEMENTS_PER_INDEX:
        check.refuse(this, f"num_elem_per_idx={num_elem_per_idx!r}; one of {ELEMENTS_PER_INDEX} is needed")
    available = index.free_size * CORE_PARTITIONS
    if num_valid_indices is None:
        check.refuse(this, "num_valid_indices is not given: 0.6 then ignores num_elem_per_idx; pass both", 36)
    valid = check.whole_number(this, "num_valid_indices", num_valid_indices, 1, min(available, MAX_INDICES_PER_CORE))
    if valid * num_elem_per_idx != dst.free_size:
        check.refuse(this, f"dst {dst.shape} for {valid} indices of {num_elem_per_idx} elements; they must agree", 36)

    def compute() -> None:
        source, result = raw_rows(src_buffer), np.empty((partitions, dst.free_size), raw_rows(src_buffer).dtype)
        for first in range(0, partitions, CORE_PARTITIONS):
            group = slice(first, first + CORE_PARTITIONS)
            offsets = raw_rows(index)[group].T.reshape(-1)[:valid].astype(np.int64)
            elements = (offsets[:, None] + np.arange(num_elem_per_idx)).reshape(1, -1)
            _check_bounds(this, elements, src_buffer.free_size)
            result[group] = source[group][:, elements[0]]
        dst.write(result)

    reads = {"src_buffer": src_buffer, "index": index}
    options = {"indices": valid, "elements_per_index": num_elem_per_idx}
    return issue(this, "gpsimd", reads, {"dst": dst}, compute, options, name)


# --- nonzero and segments -----------------------------------------------------------------------------------


def nonzero_with_count(
    dst: NkiTensor, src: NkiTensor, index_offset: int = 0, padding_val: int = -1, name: str | None = None
) -> Any:
    """Partitions 0, 16, ..., 112 of dst receive the indices of the nonzero elements, padding, and last their number.

    src is (P, T) float32 or int32, dst (P, T + 1) int32, both in SBUF. Other partitions of dst are unchanged.
    """
    this = "nonzero_with_count"
    check.needs_generation(this, 3)
    check.on_chip(this, dst=dst, src=src)
    check.sbuf_only(this, dst=dst, src=src)
    check.dtype_in(this, ("float32", "int32"), None, src=src)
    check.dtype_in(this, ("int32",), None, dst=dst)
    if src.shape[0] != dst.shape[0] or dst.free_size != src.free_size + 1:
        check.refuse(this, f"dst {dst.shape} for src {src.shape}; one more element per partition is needed")
    offset = check.whole_number(this, "index_offset", index_offset)
    padding = check.whole_number(this, "padding_val", padding_val)

    def compute() -> None:
        source, result = raw_rows(src), raw_rows(dst).copy()
        for partition in range(0, src.shape[0], CORE_PARTITIONS):
            found = np.flatnonzero(source[partition])
            result[partition, :-1] = padding
            result[partition, : found.size] = found + offset
            result[partition, -1] = found.size
        dst.write(result)
        written = np.zeros(dst.shape, np.bool_)
        written[::CORE_PARTITIONS] = True
        dst.mark(written)

    # Each core reads only its first partition, so the others may be uninitialised. A single access reads
    # all first partitions, so the rule for start partitions applies to the first of them.
    heads = {f"src[{p}]": src[p : p + 1] for p in range(0, src.shape[0], CORE_PARTITIONS)}
    for head in list(heads.values())[1:]:
        head.checked = True
    return issue(this, "gpsimd", heads, {"dst": dst}, compute, {}, name, keeps=partly_written("dst"))


def sequence_bounds(dst: NkiTensor, segment_ids: NkiTensor, name: str | None = None) -> Any:
    """First and one-past-last index of each element's segment; (n, -1) for padding (id 0).

    segment_ids is (1, n), dst (1, 2, n), both float32 or int32.
    """
    this = "sequence_bounds"
    check.on_chip(this, dst=dst, segment_ids=segment_ids)
    check.sbuf_only(this, dst=dst, segment_ids=segment_ids)
    check.dtype_in(this, ("float32", "int32"), None, dst=dst, segment_ids=segment_ids)
    n = segment_ids.free_size
    if segment_ids.shape[0] != 1 or dst.shape != (1, 2, n):
        check.refuse(this, f"segment_ids {segment_ids.shape} and dst {dst.shape}; (1, n) and (1, 2, n) are needed")

    def compute() -> None:
        ids = rows(segment_ids)[0]
        if ids.min(initial=0) < 0:
            check.refuse(this, f"segment id {ids.min():g}; ids are not negative")
        change = np.flatnonzero(np.diff(ids)) + 1
        start = np.repeat(np.r_[0, change], np.diff(np.r_[0, change, n]))
        stop = np.repeat(np.r_[change, n], np.diff(np.r_[0, change, n]))
        padding = ids == 0
        bounds = np.stack([np.where(padding, n, start), np.where(padding, -1, stop)])
        dst.write(bounds.astype(np.float32)[None])

    return issue(this, "gpsimd", {"segment_ids": segment_ids}, {"dst": dst}, compute, {}, name)
