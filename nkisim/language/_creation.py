"""New tensors, constants, and copies from and to HBM."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from nkisim import isa
from nkisim.chip.backend import check_size
from nkisim.chip.context import Run, current, issue
from nkisim.chip.dtypes import STORAGE, convert, dtype_name, is_integer
from nkisim.chip.errors import SimulatorError, source_location
from nkisim.chip.memory import Storage
from nkisim.chip.names import MemoryRegion
from nkisim.chip.record import Buffer
from nkisim.chip.strictness import BEYOND, refuse
from nkisim.chip.tensor import MAX_DIMS, NkiTensor, whole
from nkisim.hardware import PARTITIONS, PSUM_BANK_BYTES, PSUM_BANKS

__all__ = [
    "copy", "device_print", "empty_like", "full", "load", "load_transpose2d", "ndarray", "ones", "shared_constant",
    "shared_identity_matrix", "store", "zeros", "zeros_like",
]  # fmt: skip

BUFFERS: dict[MemoryRegion, Buffer] = {
    MemoryRegion.sbuf: "sbuf",
    MemoryRegion.psum: "psum",
    MemoryRegion.private_hbm: "hbm",
    MemoryRegion.shared_hbm: "hbm",
}


def ndarray(
    shape: Sequence[int],
    dtype: Any,
    buffer: MemoryRegion = MemoryRegion.sbuf,
    name: str = "",
    address: tuple[int, int] | None = None,
) -> NkiTensor:
    """An uninitialised tensor; on chip dimension 0 is the partition dimension, at most 128.

    ``address`` = (partition, byte) places it by hand.
    """
    run = current()
    if not isinstance(buffer, MemoryRegion):
        raise SimulatorError(f"buffer {buffer!r}: expected nl.sbuf, nl.psum, nl.private_hbm or nl.shared_hbm", rule=10)
    extents = _shape(shape)
    kind, device_dtype = BUFFERS[buffer], dtype_name(dtype)
    if kind != "hbm":
        _check_on_chip(run, extents, device_dtype, kind, address)
    storage = _storage(run, extents, device_dtype, kind, buffer == MemoryRegion.shared_hbm, name, address)
    return whole(storage)


def _shape(shape: Sequence[int]) -> tuple[int, ...]:
    try:
        extents = tuple(operator.index(n) for n in shape)
    except TypeError:
        raise SimulatorError(f"shape {shape!r}: expected a tuple of compile-time integers") from None
    if not 1 <= len(extents) <= MAX_DIMS or any(n < 1 for n in extents):
        raise SimulatorError(f"shape {extents}: expected 1 to {MAX_DIMS} positive integers")
    return extents


def _check_on_chip(run: Run, shape: tuple[int, ...], dtype: str, kind: Buffer, address: tuple[int, int] | None) -> None:
    """Check the limits of one on-chip allocation."""
    if shape[0] > PARTITIONS:
        raise SimulatorError(f"{kind} tensor {shape}: dimension 0 is the partitions, at most {PARTITIONS}", rule=12)
    row = math.prod(shape[1:]) * STORAGE[dtype].itemsize
    limit = run.hardware.sbuf_bytes_per_partition if kind == "sbuf" else PSUM_BANKS * PSUM_BANK_BYTES
    if row > limit:
        refuse(run, BEYOND, f"{kind} tensor {shape} {dtype} needs {row} bytes per partition, there are {limit}")
    if address is None:
        return
    start, byte = address
    if not 0 <= start <= PARTITIONS - shape[0] or not 0 <= byte <= limit - row:
        raise SimulatorError(f"address {address} places {kind} tensor {shape} outside the memory", rule=11)
    if kind == "psum" and byte % PSUM_BANK_BYTES:
        raise SimulatorError(f"address {address}: a PSUM tensor starts at a bank of {PSUM_BANK_BYTES} bytes", rule=11)


def _storage(
    run: Run,
    shape: tuple[int, ...],
    dtype: str,
    kind: Buffer,
    shared: bool,
    name: str,
    address: tuple[int, int] | None,
) -> Storage:
    """New storage. All cores share one nl.shared_hbm allocation; the order of allocation identifies it."""
    if kind == "hbm":
        check_size(run, shape, math.prod(shape) * STORAGE[dtype].itemsize, name or "tensor")
    location = source_location()
    launch = run.launch
    if not shared or launch.cores.size == 1:
        storage: Storage = launch.allocate(
            shape, dtype, kind, shared=shared, name=name, location=location, address=address
        )
    else:
        key = ("ndarray", run.shared_allocations)
        run.shared_allocations += 1
        found = launch.shared.get(key)
        if found is not None and (found.shape, found.dtype) != (shape, dtype):
            raise SimulatorError(
                f"shared tensor {key[1]} is {found.shape} {found.dtype} on one core, {shape} {dtype} on this one",
                rule=37,
            )
        storage = found or launch.allocate(shape, dtype, kind, shared=True, name=name, location=location)
        launch.shared[key] = storage
    storage.scope = run.scopes[-1] if run.scopes else None
    return storage


def full(
    shape: Sequence[int], fill_value: float, dtype: Any, buffer: MemoryRegion = MemoryRegion.sbuf, name: str = ""
) -> NkiTensor:
    """A tensor filled with one value."""
    tensor = ndarray(shape, dtype, buffer, name)
    value = int(fill_value) if is_integer(tensor.dtype) else float(fill_value)
    if tensor.on_chip:
        isa.memset(dst=tensor, value=value)
        return tensor
    rows = min(PARTITIONS, tensor.shape[0])
    tile = ndarray((rows, tensor.size // tensor.shape[0]), tensor.dtype)
    isa.memset(dst=tile, value=value)
    for start in range(0, tensor.shape[0], rows):
        part = tensor[start : min(start + rows, tensor.shape[0])] if tensor.ndim > 1 else tensor[start : start + rows]
        isa.dma_copy(dst=part, src=tile[0 : part.shape[0]])
    return tensor


def zeros(shape: Sequence[int], dtype: Any, buffer: MemoryRegion = MemoryRegion.sbuf, name: str = "") -> NkiTensor:
    return full(shape, 0, dtype, buffer, name)


def ones(shape: Sequence[int], dtype: Any, buffer: MemoryRegion = MemoryRegion.sbuf, name: str = "") -> NkiTensor:
    return full(shape, 1, dtype, buffer, name)


def zeros_like(x: NkiTensor, dtype: Any = None, buffer: MemoryRegion | None = None, name: str = "") -> NkiTensor:
    return full(x.shape, 0, dtype or x.dtype, buffer or MemoryRegion.sbuf, name)


def empty_like(x: NkiTensor, dtype: Any = None, buffer: MemoryRegion | None = None, name: str = "") -> NkiTensor:
    return ndarray(x.shape, dtype or x.dtype, buffer or x.buffer, name)


def shared_constant(constant: Any) -> NkiTensor:
    """A constant in shared HBM: a NumPy array, or the path of a .npy file."""
    run = current()
    values = np.load(constant) if isinstance(constant, str) else constant
    if not isinstance(values, np.ndarray) or values.size == 0:
        raise SimulatorError(f"shared_constant: {type(constant).__name__}; need a NumPy array or a .npy path")
    dtype = dtype_name(values.dtype)
    values = np.array(values, order="C", copy=True)
    key = ("constant", dtype, values.shape, values.tobytes())
    storage = run.launch.shared.get(key)
    if storage is None:
        storage = Storage(
            next(run.launch.idents), values.shape or (1,), dtype, "hbm", name="constant", shared=True,
            data=values.reshape(-1).view(np.uint8), written=True, location=source_location(),
        )  # fmt: skip
        storage.readonly = True
        run.launch.shared[key] = storage
    return whole(storage)


def shared_identity_matrix(n: int, dtype: Any = "uint8", dst: NkiTensor | None = None) -> NkiTensor:
    """The (n, n) identity in SBUF, loaded from a shared constant."""
    name = dtype_name(dtype)
    source = shared_constant(convert(np.eye(n, dtype=np.float32), name))
    tile = ndarray((n, n), name) if dst is None else dst
    if source.dtype != tile.dtype:
        source = source.view(tile.dtype)
    isa.dma_copy(dst=tile, src=source)
    return tile


def load(src: NkiTensor, dtype: Any = None) -> NkiTensor:
    """A new SBUF tile with the elements of an HBM tensor; dimension 0 becomes the partitions."""
    if src.on_chip:
        raise SimulatorError(f"nl.load: src {src!r} is on chip already; use nl.copy")
    shape = src.shape if src.ndim > 1 else (src.shape[0], 1)
    tile = ndarray(shape, dtype or src.dtype)
    isa.dma_copy(dst=tile, src=src)
    return tile


def store(dst: NkiTensor, value: NkiTensor) -> None:
    """Copy the elements of an SBUF tile to an HBM tensor."""
    if dst.on_chip:
        raise SimulatorError(f"nl.store: dst {dst!r} is on chip; it must be in HBM")
    if not isinstance(value, NkiTensor) or value.storage.buffer != "sbuf":
        raise SimulatorError(f"nl.store: value {value!r} must be a tile in SBUF; copy PSUM there first", rule=34)
    if value.shape != dst.shape:
        raise SimulatorError(f"nl.store: value {value.shape} does not have the shape of dst {dst.shape}", rule=18)
    isa.dma_copy(dst=dst, src=value)


def load_transpose2d(src: NkiTensor, dtype: Any = None) -> NkiTensor:
    """A new SBUF tile with the transpose of a 2-d HBM tensor."""
    if src.on_chip or src.ndim != 2:
        raise SimulatorError(f"nl.load_transpose2d: src {src!r} must be a 2-d tensor in HBM", rule=21)
    tile = ndarray((src.shape[1], src.shape[0]), src.dtype)
    isa.dma_transpose(dst=tile, src=src)
    return tile if dtype is None or dtype_name(dtype) == tile.dtype else copy(tile, dtype)


def copy(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """A copy in SBUF of a tile in SBUF or PSUM."""
    tile = ndarray(x.shape, dtype or x.dtype)
    isa.tensor_copy(dst=tile, src=x)
    return tile


def assign(dst: NkiTensor, value: Any) -> None:
    """``tensor[key] = value``: a copy by an engine that reaches both memories, or a memset."""
    if not isinstance(value, NkiTensor):
        isa.memset(dst=dst, value=value)
    elif dst.storage is value.storage and dst.region == value.region:
        return
    elif dst.on_chip and value.on_chip:
        isa.tensor_copy(dst=dst, src=value)
    else:
        isa.dma_copy(dst=dst, src=value)


NkiTensor._assign = staticmethod(assign)


def device_print(print_prefix: str, tensor: NkiTensor) -> None:
    """Print a prefix and a tensor of SBUF or HBM, at once, to standard output."""
    run = current()
    if not isinstance(print_prefix, str) or not isinstance(tensor, NkiTensor) or tensor.storage.buffer == "psum":
        raise SimulatorError("device_print(prefix, tensor): a constant string and a tensor in SBUF or HBM")
    if run.scheduler is not None:
        run.scheduler.flush()
    issue("device_print", "gpsimd", {"tensor": tensor}, {}, lambda: print(print_prefix, tensor.read()))
    if run.scheduler is not None:
        run.scheduler.flush()
