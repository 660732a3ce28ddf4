"""Microscaled (MX) formats of trn3: quantisation on VectorEngine, products on TensorEngine.

A group of 32 values (8 partitions by 4 neighbours in a row) shares a power of two as its scale. Four values
are packed in one element. The scales of a quadrant of 32 partitions are in 4 partitions of the same quadrant,
at offset 0, 4, 8 or 12 (mxfp-matmul.rst, "Scale Tensor" and "Packing Scale Values").
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from nkisim.chip.context import NkiInstruction, hardware, issue
from nkisim.chip.dtypes import Array, to_float32
from nkisim.chip.errors import SimulatorError
from nkisim.chip.tensor import NkiTensor
from nkisim.hardware import PARTITIONS, PSUM_BANK_BYTES, PSUM_BANKS
from nkisim.isa._psum import added, check_places, store_product

__all__ = ["nc_matmul_mx", "quantize_mx"]

GEN4 = 4
QUADRANT = 32  # partitions
GROUP_ROWS, GROUP_COLUMNS = 8, 4  # extent of the values that share a scale
SCALE_ROWS = QUADRANT // GROUP_ROWS
SCALE_OFFSETS = (0, 4, 8, 12)  # partitions within a quadrant
SCALE_DTYPES = ("float8_e8m0fnu", "uint8")
SCALE_BIAS = 127
MAX_EXPONENT = {"float8_e4m3fn_x4": 8, "float8_e5m2_x4": 15}  # of the formats that quantize_mx writes
ELEMENTS: dict[str, Any] = {
    "float8_e4m3fn_x4": ml_dtypes.float8_e4m3fn,
    "float8_e5m2_x4": ml_dtypes.float8_e5m2,
    "float4_e2m1fn_x4": ml_dtypes.float4_e2m1fn,
}


def quantize_mx(dst: NkiTensor, src: NkiTensor, dst_scale: NkiTensor, name: str | None = None) -> NkiInstruction:
    """Quantise src (P, F) float16 or bfloat16 to dst (P, F/4) packed fp8 and its scales, all in SBUF.

    A scale is 2^(floor(log2 of the group's largest magnitude) - largest exponent of the format + 1).
    Source: nki.isa.quantize_mx.
    """
    this = "quantize_mx"
    _check_target(this)
    for role, tensor in (("dst", dst), ("src", src), ("dst_scale", dst_scale)):
        if not isinstance(tensor, NkiTensor) or tensor.storage.buffer != "sbuf":
            raise SimulatorError(f"{this}: {role} must be a tile in SBUF")
    rows, columns = src.shape[0], src.free_size
    if src.dtype not in ("float16", "bfloat16") or dst.dtype not in MAX_EXPONENT or dst_scale.dtype not in SCALE_DTYPES:
        raise SimulatorError(
            f"{this}: src {src.dtype}, dst {dst.dtype}, dst_scale {dst_scale.dtype}; float16 or bfloat16, "
            f"{' or '.join(MAX_EXPONENT)}, {' or '.join(SCALE_DTYPES)} are needed"
        )
    if rows % QUADRANT or columns % GROUP_COLUMNS or dst.shape[0] != rows or dst.free_size * GROUP_COLUMNS != columns:
        raise SimulatorError(
            f"{this}: src {src.shape}, dst {dst.shape}; P a multiple of {QUADRANT}, F of {GROUP_COLUMNS}, dst (P, F/4)"
        )
    scales = _scale_parts(this, "dst_scale", dst_scale, rows, dst.free_size)
    top = MAX_EXPONENT[dst.dtype]

    def compute() -> None:
        groups = to_float32(src.read()).reshape(rows // GROUP_ROWS, GROUP_ROWS, -1, GROUP_COLUMNS)
        largest = np.abs(groups).max(axis=(1, 3))
        exponents = np.where(largest > 0, np.frexp(largest)[1] - 1 - (top - 1), -SCALE_BIAS)
        exponents = np.clip(exponents, -SCALE_BIAS, SCALE_BIAS)
        scaled = np.ldexp(groups, -exponents[:, None, :, None]).reshape(rows, columns)
        packed = np.ascontiguousarray(scaled.astype(ELEMENTS[dst.dtype])).view(np.uint32)
        dst.write(packed)
        bits = (exponents + SCALE_BIAS).astype(np.uint8)
        for position, part in enumerate(scales.values()):
            values = bits[position * SCALE_ROWS : (position + 1) * SCALE_ROWS]
            part.write(values.view(ml_dtypes.float8_e8m0fnu) if part.dtype != "uint8" else values)

    return issue(this, "vector", {"src": src}, {"dst": dst, **scales}, compute, {}, name)


def nc_matmul_mx(
    dst: NkiTensor,
    stationary: NkiTensor,
    moving: NkiTensor,
    stationary_scale: NkiTensor,
    moving_scale: NkiTensor,
    tile_position: tuple[int, ...] | None = None,
    tile_size: tuple[int, ...] | None = None,
    accumulate: bool | None = None,
    name: str | None = None,
) -> NkiInstruction:
    """dst (M, N) = or += stationary^T @ moving, summed over partitions and the four values of each element.

    Source: nki.isa.nc_matmul_mx.
    """
    this = "nc_matmul_mx"
    _check_target(this)
    check_places(
        this, dst, stationary=stationary, moving=moving, stationary_scale=stationary_scale, moving_scale=moving_scale
    )
    position, size = _row_tile(tile_position or (), tile_size or ())
    _check_operands(dst, stationary, moving, stationary_scale, moving_scale, size)
    rows = stationary.shape[0]
    left = _scale_parts(this, "stationary_scale", stationary_scale, rows, stationary.free_size)
    right = _scale_parts(this, "moving_scale", moving_scale, rows, moving.free_size)
    addition = added(this, dst, accumulate, False)

    def compute() -> None:
        store_product(dst, _dequantised(stationary, left), _dequantised(moving, right), addition)

    reads = {"stationary": stationary, "moving": moving, **left, **right}
    if addition is True:
        reads["dst"] = dst
    options = {"accumulate": addition is not False, "tile_position": position, "tile_size": size}
    handle = issue(this, "tensor", reads, {"dst": dst}, compute, options, name)
    assert dst.storage.products is not None
    dst.storage.products.add(dst)
    return handle


def _check_target(opcode: str) -> None:
    if hardware().generation < GEN4:
        raise SimulatorError(f"{opcode}: MX formats exist on trn3, the target is {hardware().name}", rule=30)


def _row_tile(position: tuple[int, ...], size: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if not position and not size:
        return (0, 0), (PARTITIONS, PARTITIONS)
    rows = size[0] if len(size) == 2 and size[1] == PARTITIONS else 0
    if (
        rows not in (32, 64, 128)
        or len(position) != 2
        or position[1] != 0
        or position[0] not in range(0, PARTITIONS, rows)
    ):
        raise SimulatorError(
            f"nc_matmul_mx: tile_position {position}, tile_size {size}; (k * rows, 0) and (rows, 128) of 32, 64 or 128",
            rule=23,
        )
    return position, size


def _check_operands(
    dst: NkiTensor,
    stationary: NkiTensor,
    moving: NkiTensor,
    stationary_scale: NkiTensor,
    moving_scale: NkiTensor,
    tile: tuple[int, ...],
) -> None:
    this = "nc_matmul_mx"
    data, scales = {stationary.dtype, moving.dtype}, {stationary_scale.dtype, moving_scale.dtype}
    if not data <= set(ELEMENTS) or not scales <= set(SCALE_DTYPES) or dst.dtype not in ("float32", "bfloat16"):
        raise SimulatorError(
            f"{this}: operands {sorted(data)}, scales {sorted(scales)}, dst {dst.dtype}; {' or '.join(ELEMENTS)}, "
            f"{' or '.join(SCALE_DTYPES)}, float32 or bfloat16 are needed",
            rule=23,
        )
    k, m, n = stationary.shape[0], stationary.free_size, moving.free_size
    shapes = f"stationary {stationary.shape}, moving {moving.shape}, dst {dst.shape}"
    if moving.shape[0] != k or k % QUADRANT or k > tile[0] or m % 2 or m > PARTITIONS:
        raise SimulatorError(f"{this}: K a multiple of {QUADRANT} up to {tile[0]}, M even up to 128: {shapes}", rule=23)
    if dst.shape[0] != m or dst.free_size != n or n > PSUM_BANKS * PSUM_BANK_BYTES // dst.itemsize:
        raise SimulatorError(f"{this}: dst must be (M, N) and fit PSUM: {shapes}", rule=23)


def _scale_parts(opcode: str, role: str, scale: NkiTensor, rows: int, columns: int) -> dict[str, NkiTensor]:
    """The four partitions with scales of every quadrant, as separate operands."""
    quadrants = rows // QUADRANT
    needed = (quadrants - 1) * QUADRANT + SCALE_ROWS
    start = scale.partitions[0]
    if (
        scale.shape[0] < needed
        or scale.free_size < columns
        or start % QUADRANT not in SCALE_OFFSETS
        or start >= QUADRANT
    ):
        raise SimulatorError(
            f"{opcode}: {role} {scale.shape} from partition {start} must hold {needed} partitions of {columns} scales, "
            f"from partition {', '.join(map(str, SCALE_OFFSETS))}"
        )
    flat = scale if scale.ndim == 2 else scale.reshape((scale.shape[0], scale.free_size))
    parts = {}
    for quadrant in range(quadrants):
        first = quadrant * QUADRANT
        part = flat[first : first + SCALE_ROWS, 0:columns]
        part.checked = True  # these instructions support the offsets just checked
        parts[f"{role}[{quadrant}]"] = part
    return parts


def _dequantised(packed: NkiTensor, scales: dict[str, NkiTensor]) -> Array:
    """Values (4 K, columns) as float32, with the four values of an element in consecutive rows."""
    words = np.ascontiguousarray(packed.read()).reshape(packed.shape[0], -1)
    rows, columns = words.shape
    element = ELEMENTS[packed.dtype]
    if packed.dtype == "float4_e2m1fn_x4":
        shifts = np.arange(0, 16, 4, dtype=np.uint16)
        values = ((words[..., None] >> shifts) & np.uint16(15)).astype(np.uint8).view(element)
    else:
        values = words.view(element).reshape(rows, columns, GROUP_COLUMNS)
    bits = np.concatenate([np.ascontiguousarray(part.read()).view(np.uint8) for part in scales.values()])
    exponents = np.repeat(bits.astype(np.int32) - SCALE_BIAS, GROUP_ROWS, axis=0)
    wide: Array = np.ldexp(values.astype(np.float32), exponents[..., None])
    return wide.transpose(0, 2, 1).reshape(GROUP_COLUMNS * rows, columns)
