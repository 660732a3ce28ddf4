"""DMA instructions: copy with gather and scatter, transpose, and addition during the transfer.

A DMA copies bits if both sides have the same dtype; otherwise every element passes through float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nkisim.chip.context import NkiInstruction, hardware, issue
from nkisim.chip.dtypes import PACKED, WIDE, Array, to_float32
from nkisim.chip.errors import SimulatorError
from nkisim.chip.indirect import refuse_conflicts, resolve_scalar, rows_of
from nkisim.chip.names import dge_mode as DgeMode
from nkisim.chip.names import engine as Engine
from nkisim.chip.names import oob_mode as OobMode
from nkisim.chip.tensor import NkiTensor

__all__ = ["dma_compute", "dma_copy", "dma_transpose"]

GEN3, GEN4 = 3, 4
COPIED = PACKED | {WIDE}
MAX_SOURCES = 16  # of dma_compute
PRIORITIES = range(4)
TRANSPOSE_AXES = {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}
TRANSPOSE_COLUMNS = 128  # limit of the last dimension if the descriptors transpose
TRANSPOSE_STRIDE = 32  # bytes
TRANSPOSE_ROWS = 16  # granularity of its first dimension


def dma_copy(
    dst: NkiTensor,
    src: NkiTensor,
    priority: int | None = None,
    oob_mode: OobMode = OobMode.error,
    dge_mode: DgeMode = DgeMode.unknown,
    engine: Engine = Engine.unknown,
    name: str | None = None,
) -> NkiInstruction:
    """dst = src between HBM and SBUF, with equally many elements in row-major order.

    Either side may be indirect: a gather or scatter of rows. Source: nki.isa.dma_copy.
    """
    this = "dma_copy"
    _check_places(this, dst=dst, src=src)
    _check_priority(this, priority)
    if src.size != dst.size:
        raise SimulatorError(f"dma_copy: src {src.shape} has {src.size} elements, dst {dst.shape} {dst.size}", rule=18)
    if src.dtype != dst.dtype and not COPIED.isdisjoint((src.dtype, dst.dtype)):
        message = "int64 and packed dtypes are copied, not converted"
        raise SimulatorError(f"dma_copy: {src.dtype} to {dst.dtype}: {message}", rule=18)
    _check_partitions(src, dst)
    dge = _dge(this, src, dst, dge_mode)
    if dge == "hwdge" and src.dtype != dst.dtype:
        raise SimulatorError(f"dma_copy: hwdge does not convert {src.dtype} to {dst.dtype}", rule=18)
    if engine != Engine.unknown and (dge_mode != DgeMode.hwdge or engine not in (Engine.sync, Engine.scalar)):
        raise SimulatorError("dma_copy: engine is sync or scalar, and only with dge_mode=hwdge", rule=18)
    for role, tensor in (("src", src), ("dst", dst)):
        if tensor.index is not None and tensor.index.kind == "vector" and tensor.index.source.shape[1] != 1:
            raise SimulatorError(
                f"dma_copy: {role} has a vector_offset of shape {tensor.index.source.shape}; (P, 1) is needed", rule=19
            )
    skip = oob_mode == OobMode.skip

    def compute() -> None:
        if skip and src.index is not None:
            _copy_valid(dst, src)
        else:
            dst.write(src.read(), skip)

    keeps = ("dst",) if skip and src.index is not None else ()
    options = {"dge": dge, "indirect": src.is_indirect() or dst.is_indirect()}
    if engine != Engine.unknown:
        options["engine"] = engine.name
    return issue(this, "dma", {"src": src}, {"dst": dst}, compute, options, name, keeps=keeps, skip=skip)


def _check_places(opcode: str, **operands: NkiTensor) -> None:
    for role, tensor in operands.items():
        if not isinstance(tensor, NkiTensor):
            raise SimulatorError(f"{opcode}: {role} is {type(tensor).__name__}; a tensor is needed", rule=18)
        if tensor.storage.buffer == "psum":
            raise SimulatorError(
                f"{opcode}: {role} is in PSUM, which DMA does not reach; copy it to SBUF first", rule=18
            )


def _check_partitions(src: NkiTensor, dst: NkiTensor) -> None:
    """Refuse a tile whose partitions differ from the first dimension of the tensor that it is copied from or to."""
    if (src.on_chip or dst.on_chip) and src.ndim > 1 and dst.ndim > 1 and src.shape[0] != dst.shape[0]:
        raise SimulatorError(f"dma_copy: src {src.shape} and dst {dst.shape} differ in their partitions", rule=18)


def _check_priority(opcode: str, priority: int | None) -> None:
    if priority is not None and (hardware().generation < GEN4 or priority not in PRIORITIES):
        raise SimulatorError(f"{opcode}: priority {priority!r}: 0 to 3, on trn3 only", rule=18)


def _dge(opcode: str, src: NkiTensor, dst: NkiTensor, mode: DgeMode) -> str:
    """The unit that generates the descriptors, after checking the requested mode."""
    kinds = {t.index.kind for t in (src, dst) if t.index is not None}
    if mode == DgeMode.hwdge and hardware().generation < GEN3:
        raise SimulatorError(f"{opcode}: hwdge needs trn2 or later, the target is {hardware().name}", rule=18)
    if "vector" in kinds and mode not in (DgeMode.unknown, DgeMode.swdge):
        raise SimulatorError(f"{opcode}: gather and scatter need software descriptors, not {mode.name}", rule=19)
    if kinds and mode == DgeMode.none:
        raise SimulatorError(f"{opcode}: a run-time address needs descriptor generation, dge_mode is none", rule=19)
    if mode == DgeMode.unknown:
        return "swdge" if "vector" in kinds else "unknown"
    return mode.name


def _copy_valid(dst: NkiTensor, src: NkiTensor) -> None:
    """Copy the elements selected by in-bounds indices; the rest of dst keeps its contents."""
    assert src.index is not None
    if src.index.kind == "scalar":
        at = resolve_scalar(src, True)
        if at is not None:
            dst.write(at.array(), True)
            dst.mark()
        return
    _, _, valid = rows_of(src, True)
    where = np.broadcast_to(valid.reshape(-1, *(1,) * (src.ndim - 1)), src.shape).reshape(dst.shape)
    if dst.index is None:
        kept = dst.read().copy()
        dst.write(src.read(skip=True))
        np.copyto(dst.array(), kept, where=~where)
        dst.mark(where)
    elif valid.all():
        dst.write(src.read(), True)
        dst.mark()
    else:
        raise SimulatorError(
            "dma_copy: oob_mode.skip with both sides indirect and rows to skip is not defined", rule=19
        )


def dma_transpose(
    dst: NkiTensor,
    src: NkiTensor,
    axes: Sequence[int] | None = None,
    priority: int | None = None,
    dge_mode: DgeMode = DgeMode.unknown,
    oob_mode: OobMode = OobMode.error,
    name: str | None = None,
) -> NkiInstruction:
    """dst (in SBUF) = src with its dimensions in the order (1,0), (2,1,0) or (3,1,2,0).

    Source: nki.isa.dma_transpose.
    """
    this = "dma_transpose"
    _check_places(this, dst=dst, src=src)
    _check_priority(this, priority)
    order = TRANSPOSE_AXES.get(src.ndim)
    if order is None or (axes is not None and tuple(axes) != order):
        raise SimulatorError(
            f"dma_transpose: axes {axes} of {src.shape}: {' or '.join(map(str, TRANSPOSE_AXES.values()))}", rule=21
        )
    if hardware().generation < GEN3 and src.on_chip:
        raise SimulatorError("dma_transpose: before trn2 src must be in HBM", rule=21)
    if not src.on_chip and src.index is None and src.strides[0] * src.itemsize % TRANSPOSE_STRIDE:
        raise SimulatorError(
            f"dma_transpose: rows of src are {src.strides[0] * src.itemsize} bytes apart; a multiple of "
            f"{TRANSPOSE_STRIDE} is needed", rule=21,
        )  # fmt: skip
    wanted = tuple(src.shape[a] for a in order)
    if dst.storage.buffer != "sbuf" or dst.dtype != src.dtype or dst.shape != wanted:
        raise SimulatorError(f"dma_transpose: dst {dst!r} must be {wanted} {src.dtype} in SBUF", rule=21)
    if src.index is not None:
        _check_indirect_transpose(src, dge_mode)
    else:
        _check_direct_transpose(src, dge_mode, oob_mode)
    skip = oob_mode == OobMode.skip

    def compute() -> None:
        values = src.read(skip).transpose(order)
        if not skip:
            dst.write(values)
            return
        _, _, valid = rows_of(src, True)
        kept = dst.read().copy()
        dst.write(np.where(valid, values, kept))
        dst.mark(np.broadcast_to(valid, dst.shape))

    options = {"dge": "swdge" if src.index is not None else dge_mode.name, "indirect": src.is_indirect()}
    options["axes"] = order
    keeps = ("dst",) if skip else ()
    return issue(this, "dma", {"src": src}, {"dst": dst}, compute, options, name, keeps=keeps, skip=skip)


def _check_direct_transpose(src: NkiTensor, mode: DgeMode, oob: OobMode) -> None:
    if oob == OobMode.skip:
        raise SimulatorError("dma_transpose: oob_mode.skip needs an indirect src", rule=21)
    if mode == DgeMode.swdge:
        raise SimulatorError(f"dma_transpose: dge_mode {mode.name} needs an indirect src", rule=21)
    if mode != DgeMode.hwdge:
        return
    if hardware().generation < GEN3:
        raise SimulatorError(f"dma_transpose: hwdge needs trn2 or later, the target is {hardware().name}", rule=21)
    rows = src.shape[0]
    fits = rows == TRANSPOSE_ROWS if src.ndim == 2 else rows in (1, 2, 4, 8, 16) and rows * src.shape[-2] % 16 == 0
    if not fits or src.shape[-1] > TRANSPOSE_COLUMNS or src.itemsize != 2:
        raise SimulatorError(
            f"dma_transpose: hwdge of {src.shape} {src.dtype}: 16 rows (2-d) or 1 to 16, rows x shape[-2] a multiple "
            f"of 16, at most 128 columns, 2-byte dtype",
            rule=21,
        )


def _check_indirect_transpose(src: NkiTensor, mode: DgeMode) -> None:
    assert src.index is not None
    if hardware().generation < GEN3:
        raise SimulatorError(f"dma_transpose: indices need trn2 or later, the target is {hardware().name}", rule=21)
    if src.index.kind != "vector" or mode not in (DgeMode.unknown, DgeMode.swdge):
        raise SimulatorError("dma_transpose: an indirect src needs a vector_offset and software descriptors", rule=21)
    index = src.index.source
    rows, columns = index.shape
    wide = columns == 1 or rows == TRANSPOSE_COLUMNS
    if index.dtype != "uint32" or not 16 <= rows <= TRANSPOSE_COLUMNS or rows % TRANSPOSE_ROWS or not wide:
        raise SimulatorError(
            f"dma_transpose: indices {index!r}: uint32, 16 to 128 rows in multiples of 16, 128 if several columns",
            rule=21,
        )
    middle = src.ndim != 4 or 1 in (src.shape[1], src.shape[2])
    if src.shape[0] % TRANSPOSE_ROWS or src.shape[-1] > TRANSPOSE_COLUMNS or src.itemsize != 2 or not middle:
        raise SimulatorError(
            f"dma_transpose: gathered {src.shape} {src.dtype}: rows a multiple of 16, at most 128 columns, "
            f"2-byte dtype, and one of the middle dimensions 1",
            rule=21,
        )


def dma_compute(
    dst: NkiTensor,
    srcs: Sequence[NkiTensor],
    reduce_op: Any,
    scales: Sequence[float] | None = None,
    unique_indices: bool = True,
    oob_mode: OobMode = OobMode.error,
    name: str | None = None,
) -> NkiInstruction:
    """dst = the sum of srcs, in float32; with a vector_offset, dst = dst + a source, in place.

    Source: nki.isa.dma_compute.
    """
    this = "dma_compute"
    if not isinstance(srcs, (list, tuple)) or not 1 <= len(srcs) <= MAX_SOURCES:
        raise SimulatorError(f"dma_compute: srcs must be a list of 1 to {MAX_SOURCES} tensors", rule=18)
    operands = {f"srcs[{i}]": src for i, src in enumerate(srcs)}
    _check_places(this, dst=dst, **operands)
    if getattr(reduce_op, "nki_operator", None) != "add":
        raise SimulatorError("dma_compute: reduce_op must be nl.add", rule=18)
    if scales is not None and (len(scales) != len(srcs) or any(s != 1.0 for s in scales)):
        raise SimulatorError(f"dma_compute: scales {scales!r}: one 1.0 for each source, or None", rule=18)
    for role, src in operands.items():
        if src.size != dst.size:
            raise SimulatorError(f"dma_compute: {role} {src.shape} and dst {dst.shape} differ in size", rule=18)
    indirect = [t for t in (dst, *srcs) if t.index is not None]
    if indirect:
        _check_read_modify_write(dst, srcs, unique_indices)
    skip = oob_mode == OobMode.skip

    def compute() -> None:
        for tensor in indirect:
            _, rows, valid = rows_of(tensor, skip)
            refuse_conflicts(rows[valid], None)
        total: Array = to_float32(srcs[0].read(skip)).reshape(dst.shape)
        for src in srcs[1:]:
            total = total + to_float32(src.read(skip)).reshape(dst.shape)
        dst.write(total, skip)

    options = {"dge": "swdge" if indirect else "none", "indirect": bool(indirect), "op": "add"}
    return issue(this, "dma", operands, {"dst": dst}, compute, options, name, skip=skip)


def _check_read_modify_write(dst: NkiTensor, srcs: Sequence[NkiTensor], unique: bool) -> None:
    """dst[i] = dst[i] + src with dst in HBM, or dst = dst + src[i] with dst in SBUF."""
    if len(srcs) != 2 or not unique:
        raise SimulatorError("dma_compute: with indices, two sources and unique_indices=True are needed", rule=20)
    if any(t.index is not None and t.index.kind != "vector" for t in (dst, *srcs)):
        raise SimulatorError("dma_compute: addresses are compile-time, or a vector_offset", rule=19)
    other = [src for src in srcs if not _same_place(src, dst)]
    if len(other) != 1 or (dst.on_chip == other[0].on_chip):
        raise SimulatorError("dma_compute: one source must be dst itself, the other on the other side of HBM", rule=19)
    if dst.on_chip == (other[0].index is None) or (not dst.on_chip and dst.index is None):
        raise SimulatorError("dma_compute: the HBM side carries the vector_offset", rule=19)


def _same_place(a: NkiTensor, b: NkiTensor) -> bool:
    same_index = (a.index is None) == (b.index is None) and (
        a.index is None or b.index is None or a.index.source.region == b.index.source.region
    )
    return a.storage is b.storage and (a.offset, a.shape, a.strides) == (b.offset, b.shape, b.strides) and same_index
