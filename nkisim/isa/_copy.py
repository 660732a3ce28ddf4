"""Instructions that move or fill tiles on chip: tensor_copy, tensor_copy_predicated, memset, nc_stream_shuffle."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nkisim.chip.context import current, hardware, issue
from nkisim.chip.dtypes import PACKED, STORAGE, convert, is_integer
from nkisim.chip.tensor import NkiTensor
from nkisim.isa import _checks as check
from nkisim.isa._enums import engine as Engine
from nkisim.isa._lanes import raw_rows, values

__all__ = ["memset", "nc_stream_shuffle", "tensor_copy", "tensor_copy_predicated"]

PREDICATES = frozenset({"uint8", "uint16", "uint32", "bool_"})  # a bool_ is stored as uint8
QUADRANT = 32  # partitions among which nc_stream_shuffle moves data
UNMODIFIED = 255  # in a shuffle mask: leave the output partition unchanged


def tensor_copy(dst: NkiTensor, src: NkiTensor, engine: Engine = Engine.unknown, name: str | None = None) -> Any:
    """``dst = src``: bit for bit if the dtypes agree, otherwise through float32."""
    this = "tensor_copy"
    check.on_chip(this, dst=dst, src=src)
    check.same_size(this, dst, src=src)
    allowed = ("vector", "gpsimd") if hardware().generation < 3 else ("vector", "scalar", "gpsimd")
    where = check.one_engine(this, engine, allowed, "vector")
    if where == "gpsimd":
        check.sbuf_only(this, dst=dst, src=src)

    def compute() -> None:
        dst.write(src.read() if src.dtype == dst.dtype else values(src))

    return issue(this, where, {"src": src}, {"dst": dst}, compute, {}, name)


def tensor_copy_predicated(
    dst: NkiTensor, src: Any, predicate: NkiTensor, reverse_pred: bool = False, name: str | None = None
) -> Any:
    """``dst = src where predicate != 0`` (``== 0`` if reversed); other elements keep their value.

    src: a number, or a tile with the dtype of dst. predicate: uint8, uint16 or uint32, as large as dst.
    """
    this = "tensor_copy_predicated"
    check.on_chip(this, dst=dst, predicate=predicate)
    check.same_size(this, dst, predicate=predicate)
    check.dtype_in(this, PREDICATES, 36, predicate=predicate)
    reads = {"predicate": predicate}
    if isinstance(src, NkiTensor):
        check.on_chip(this, src=src)
        check.same_size(this, dst, src=src)
        check.same_dtype(this, dst, 36, src=src)
        check.not_both_psum(this, "src", src, "predicate", predicate)
        reads["src"] = src
    else:
        check.scalar_operand(this, "src", src, dst.shape[0])

    def compute() -> None:
        chosen = (predicate.read() == 0 if reverse_pred else predicate.read() != 0).reshape(dst.shape)
        if isinstance(src, NkiTensor):
            source = src.read().reshape(dst.shape)
        else:
            source = convert(np.asarray(src, np.float32), dst.dtype)
        dst.write(np.where(chosen, source, dst.read()))
        dst.mark(chosen)

    return issue(this, "vector", reads, {"dst": dst}, compute, {}, name, keeps=partly_written("dst"))


def partly_written(*roles: str) -> tuple[str, ...]:
    """The roles whose elements ``compute`` marks itself; none in a trace, which treats every write as complete."""
    return () if current().mode == "trace" else roles


def memset(dst: NkiTensor, value: Any, engine: Engine = Engine.unknown, name: str | None = None) -> Any:
    """Fill dst with a compile-time number that its dtype can hold."""
    this = "memset"
    check.on_chip(this, dst=dst)
    where = check.one_engine(this, engine, ("vector", "gpsimd"), "vector")
    if where == "gpsimd":
        check.sbuf_only(this, dst=dst)
    fill = _fill(this, value, dst.dtype)

    def compute() -> None:
        dst.write(fill)

    return issue(this, where, {}, {"dst": dst}, compute, {"value": value}, name)


def _fill(this: str, value: Any, dtype: str) -> Any:
    """The literal as one element of dtype; refused if its type or value does not fit."""
    if isinstance(value, (bool, np.bool_)) and dtype != "bool_":
        check.refuse(this, f"value={value!r} for a dst of {dtype}; a number is needed", 31)
    if not isinstance(value, (int, float, np.integer, np.floating)):
        check.refuse(this, f"value={value!r}; a compile-time number is needed", 31)
    storage = STORAGE[dtype]
    if dtype in PACKED:
        if value != 0:
            check.refuse(this, f"value={value!r} for a dst of {dtype}; only 0 fills packed types", 31)
        return np.zeros((), storage)
    if is_integer(dtype):
        limits = np.iinfo(storage)
        if isinstance(value, (float, np.floating)):
            check.refuse(this, f"value={value!r} for a dst of {dtype}; an integer literal is needed", 31)
        if not limits.min <= value <= limits.max:
            check.refuse(this, f"value={value!r} is outside {dtype}", 31)
        return np.asarray(value, storage)
    filled = convert(np.asarray(value, np.float32), dtype)
    if math.isfinite(value) and not np.isfinite(filled.astype(np.float32)):
        check.refuse(this, f"value={value!r} is outside {dtype}", 31)
    return filled


def nc_stream_shuffle(dst: NkiTensor, src: NkiTensor, shuffle_mask: Any, name: str | None = None) -> Any:
    """``dst[32q + i] = src[32q + shuffle_mask[i]]`` for every quadrant q; 255 leaves a partition unchanged."""
    this = "nc_stream_shuffle"
    check.on_chip(this, dst=dst, src=src)
    check.same_dtype(this, dst, None, src=src)
    if src.free_size != dst.free_size:
        check.refuse(this, f"src {src.shape} and dst {dst.shape}; the same elements per partition are needed", 28)
    _check_shuffle_start(this, dst, src)
    targets, sources = _shuffle_pairs(this, shuffle_mask, dst.shape[0], src.shape[0])

    def compute() -> None:
        result = raw_rows(dst).copy()
        result[targets] = raw_rows(src)[sources]
        dst.write(result)
        if len(targets) < dst.shape[0]:
            written = np.zeros(dst.shape, np.bool_)
            written[targets] = True
            dst.mark(written)

    keeps = partly_written("dst") if len(targets) < dst.shape[0] else ()
    return issue(this, "vector", {"src": src}, {"dst": dst}, compute, {}, name, keeps=keeps)


def _shuffle_pairs(this: str, shuffle_mask: Any, written: int, read: int) -> tuple[list[int], list[int]]:
    """The partitions of dst that change, and the partitions of src that are copied to them."""
    mask = list(shuffle_mask) if isinstance(shuffle_mask, (list, tuple)) else []
    if len(mask) != QUADRANT:
        check.refuse(this, f"shuffle_mask={shuffle_mask!r}; a list of {QUADRANT} integers is needed")
    for lane, wanted in enumerate(mask):
        check.whole_number(this, f"shuffle_mask[{lane}]", wanted, 0, UNMODIFIED)
    targets = [partition for partition in range(written) if mask[partition % QUADRANT] != UNMODIFIED]
    sources = [partition - partition % QUADRANT + mask[partition % QUADRANT] for partition in targets]
    for target, source in zip(targets, sources, strict=True):
        wanted = mask[target % QUADRANT]
        if wanted >= QUADRANT or source >= read:
            check.refuse(
                this,
                f"shuffle_mask[{target % QUADRANT}]={wanted} reads partition {source} of a src of {read} partitions",
            )
    return targets, sources


def _check_shuffle_start(this: str, dst: NkiTensor, src: NkiTensor) -> None:
    """Check start partitions; the legal ones depend on the active partitions in whole quadrants of both tensors."""
    active = -(-max(dst.shape[0], src.shape[0]) // QUADRANT) * QUADRANT
    allowed = (0, 32, 64, 96) if active == 32 else (0, 64) if active == 64 else (0,)
    for role, tile in (("src", src), ("dst", dst)):
        if tile.partitions[0] not in allowed:
            check.refuse(
                this,
                f"{role} starts at partition {tile.partitions[0]} with {active} active partitions; "
                f"{' or '.join(map(str, allowed))} is needed",
                12,
            )
