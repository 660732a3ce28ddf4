"""Largest elements and their positions: max8, nc_find_index8, nc_match_replace8, topk."""

from __future__ import annotations

from typing import Any

import numpy as np

from nkisim.chip.context import issue, note
from nkisim.chip.dtypes import STORAGE, Array
from nkisim.chip.tensor import NkiTensor
from nkisim.isa import _checks as check
from nkisim.isa._gpsimd import CORE_PARTITIONS
from nkisim.isa._lanes import rows

__all__ = ["max8", "nc_find_index8", "nc_match_replace8", "topk"]

EIGHT = 8  # values that VectorEngine keeps per partition
MIN_ELEMENTS, MAX_ELEMENTS = 8, 16_384
MAX_DIMS = 3
INDEX_DTYPES = ("uint16", "uint32")
TOPK_MIN_N, TOPK_STOP_N, TOPK_STOP_K = 8, 65_536, 32_768


def max8(dst: NkiTensor, src: NkiTensor, name: str | None = None) -> Any:
    """The 8 largest elements of each partition of src in descending order, dst (P, 8)."""
    this = "max8"
    check.on_chip(this, dst=dst, src=src)
    _check_searched(this, "src", src)
    _check_eight(this, src, dst=dst)

    def compute() -> None:
        x = rows(src)
        largest = np.partition(x, x.shape[1] - EIGHT, axis=1)[:, -EIGHT:]
        if np.isnan(largest).any():
            note(33, "max8 of NaN: the order of NaN and numbers is not documented")
        dst.write(np.sort(largest, axis=1)[:, ::-1])

    return issue(this, "vector", {"src": src}, {"dst": dst}, compute, {}, name)


def nc_find_index8(dst: NkiTensor, data: NkiTensor, vals: NkiTensor, name: str | None = None) -> Any:
    """Positions in data of the 8 vals of each partition, dst (P, 8) uint16 or uint32; all bits set if absent.

    Equal vals get successive positions, in ascending order.
    """
    this = "nc_find_index8"
    check.on_chip(this, dst=dst, data=data, vals=vals)
    _check_searched(this, "data", data)
    _check_eight(this, data, dst=dst, vals=vals)
    check.dtype_in(this, INDEX_DTYPES, None, dst=dst)

    def compute() -> None:
        dst.write(_match(rows(data), rows(vals), range(EIGHT), STORAGE[dst.dtype]))

    return issue(this, "vector", {"data": data, "vals": vals}, {"dst": dst}, compute, {}, name)


def nc_match_replace8(
    dst: NkiTensor,
    data: NkiTensor,
    vals: NkiTensor,
    imm: float,
    dst_idx: NkiTensor | None = None,
    name: str | None = None,
) -> Any:
    """dst = data with one occurrence of each of the 8 vals replaced by imm; their positions in dst_idx (P, 8).

    Vals are processed from the last to the first, so equal vals get successive positions in descending order.
    """
    this = "nc_match_replace8"
    check.on_chip(this, dst=dst, data=data, vals=vals)
    check.same_size(this, dst, data=data)
    _check_searched(this, "data", data)
    writes = {"dst": dst}
    if dst_idx is not None:
        check.on_chip(this, dst_idx=dst_idx)
        check.dtype_in(this, INDEX_DTYPES, None, dst_idx=dst_idx)
        _check_eight(this, data, dst_idx=dst_idx)
        writes["dst_idx"] = dst_idx
    _check_eight(this, data, vals=vals)
    if isinstance(imm, NkiTensor) or check.scalar_operand(this, "imm", imm, data.shape[0]):
        check.refuse(this, "imm is a tile; a float constant is needed", 28)

    def compute() -> None:
        x = rows(data)
        positions = _match(x, rows(vals), range(EIGHT - 1, -1, -1), STORAGE["uint32"])
        found = positions != np.iinfo(np.uint32).max
        replaced = x.copy()
        lines = np.nonzero(found)[0]
        replaced[lines, positions[found].astype(np.int64)] = imm
        dst.write(replaced)
        if dst_idx is not None:
            # An absent value sets all bits in both index widths.
            dst_idx.write(positions.astype(STORAGE[dst_idx.dtype]))

    return issue(this, "vector", {"data": data, "vals": vals}, writes, compute, {}, name)


def _check_searched(this: str, role: str, tile: NkiTensor) -> None:
    if tile.ndim > MAX_DIMS:
        check.refuse(this, f"{role} has {tile.ndim} dimensions; at most {MAX_DIMS} are allowed", 36)
    if not MIN_ELEMENTS <= tile.free_size <= MAX_ELEMENTS:
        check.refuse(
            this, f"{role} has {tile.free_size} elements per partition; {MIN_ELEMENTS} to {MAX_ELEMENTS} are needed", 36
        )


def _check_eight(this: str, searched: NkiTensor, **tiles: NkiTensor) -> None:
    """Refuse tiles other than (P, 8): results have two dimensions, vals up to three."""
    for role, tile in tiles.items():
        dims = MAX_DIMS if role == "vals" else 2
        if tile.shape[0] != searched.shape[0] or tile.free_size != EIGHT or tile.ndim > dims:
            check.refuse(this, f"{role} has shape {tile.shape}; ({searched.shape[0]}, {EIGHT}) is needed", 36)


def _match(data: Array, vals: Array, order: range, dtype: np.dtype[Any]) -> Array:
    """Positions (P, 8) of vals in data (P, N), each position used once, searched in the given order of vals."""
    lines = np.arange(data.shape[0])
    positions = np.full(vals.shape, np.iinfo(dtype).max, dtype)
    free = np.ones(data.shape, np.bool_)
    for i in order:
        matches = (data == vals[:, i : i + 1]) & free
        first = matches.argmax(axis=1)
        found = matches[lines, first]
        positions[found, i] = first[found]
        free[lines[found], first[found]] = False
    return positions


def topk(val_dst: NkiTensor, idx_dst: NkiTensor, src: NkiTensor, n: int, name: str | None = None) -> Any:
    """The K largest of the n bfloat16 elements of each group of 16 partitions, ascending, and their indices.

    Element i of a group is in its partition i % 16, column i // 16. val_dst is (P, K) bfloat16, idx_dst
    (P, K) uint32. The documentation contradicts itself: partitions are independent, and a group is one
    list. Here every partition of a group receives the group's K results. The order of equal values is
    undocumented.
    """
    this = "topk"
    check.on_chip(this, val_dst=val_dst, idx_dst=idx_dst, src=src)
    check.sbuf_only(this, val_dst=val_dst, idx_dst=idx_dst, src=src)
    check.dtype_in(this, ("bfloat16",), None, val_dst=val_dst, src=src)
    check.dtype_in(this, ("uint32",), None, idx_dst=idx_dst)
    partitions, k = src.shape[0], val_dst.free_size
    if partitions % CORE_PARTITIONS:
        check.refuse(this, f"src has {partitions} partitions; a multiple of {CORE_PARTITIONS} is needed")
    for role, tile in (("val_dst", val_dst), ("idx_dst", idx_dst)):
        if tile.shape != (partitions, k):
            check.refuse(this, f"{role} has shape {tile.shape}; ({partitions}, {k}) is needed")
    check.whole_number(this, "n", n, TOPK_MIN_N, TOPK_STOP_N - 1)
    if not 1 <= k <= min(n, TOPK_STOP_K - 1):
        check.refuse(this, f"K={k} of n={n}; 1 <= K <= n and K < {TOPK_STOP_K} are needed")
    if src.free_size * CORE_PARTITIONS < n:
        check.refuse(this, f"src {src.shape} holds {src.free_size * CORE_PARTITIONS} elements per group; n={n}")

    def compute() -> None:
        x = rows(src)
        best = np.empty((partitions, k), np.float32)
        where = np.empty((partitions, k), np.uint32)
        for first in range(0, partitions, CORE_PARTITIONS):
            group = slice(first, first + CORE_PARTITIONS)
            listed = x[group].T.reshape(-1)[:n]
            order = np.argsort(listed, kind="stable")[n - k :]
            best[group], where[group] = listed[order], order
        val_dst.write(best)
        idx_dst.write(where)

    return issue(
        this, "gpsimd", {"src": src}, {"val_dst": val_dst, "idx_dst": idx_dst}, compute, {"n": n, "k": k}, name
    )
