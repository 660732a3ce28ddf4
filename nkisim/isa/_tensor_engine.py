"""TensorEngine: matrix product and transpose.

Arithmetic: operands are converted exactly to float32. One pass over the contraction dimension (at most 128
rows, 256 with double_row) is a float32 product. The hardware's order of additions is undocumented; here BLAS
chooses it. Passes accumulate in PSUM in program order, with one float32 addition per element and pass.
Products of bfloat16, float16 and fp8 are exact in float32. Products of float32 are exact up to rounding here, or
perturbed by 2^-16 if the run requests it. Published hardware tests bound their error only by about 13 bits
(trn2) and 15 bits (trn1), so no algorithm may rely on more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from nkisim.chip.backend import check_product
from nkisim.chip.context import NkiInstruction, current, hardware, issue, note
from nkisim.chip.dtypes import STORAGE, Array
from nkisim.chip.errors import SimulatorError
from nkisim.chip.names import engine as Engine
from nkisim.chip.names import matmul_perf_mode
from nkisim.chip.tensor import NkiTensor
from nkisim.hardware import PARTITIONS, PSUM_BANK_BYTES, PSUM_BANKS
from nkisim.isa._psum import added, check_places, store_product

__all__ = ["nc_matmul", "nc_transpose"]

GEN3, GEN4 = 3, 4
MOVING_MAX = 512  # columns on trn1 and trn2: one PSUM bank of float32
WIDE = frozenset({"float32", "tfloat32"})
FP8 = frozenset({"float8_e4m3", "float8_e5m2", "float8_e4m3fn"})
MATMUL_DTYPES = FP8 | WIDE | {"bfloat16", "float16"}
PSUM_WORD = 4  # bytes
VECTOR_TRANSPOSE = 32  # rows and columns of a VectorEngine transpose
PERTURBATION = 2.0**-17  # of each operand; products change by up to 2^-16


def nc_matmul(
    dst: NkiTensor,
    stationary: NkiTensor,
    moving: NkiTensor,
    is_stationary_onezero: bool = False,
    is_moving_onezero: bool = False,
    is_transpose: bool = False,
    accumulate: bool | None = None,
    tile_position: tuple[int, ...] = (),
    tile_size: tuple[int, ...] = (),
    perf_mode: matmul_perf_mode = matmul_perf_mode.none,
    name: str | None = None,
) -> NkiInstruction:
    """dst (M, N) = or += stationary (K, M)^T @ moving (K, N), float32 in PSUM.

    Source: nki.isa.nc_matmul.
    """
    double = perf_mode == matmul_perf_mode.double_row
    check_places("nc_matmul", dst, stationary=stationary, moving=moving)
    _check_dtypes(dst, stationary, moving, double, is_transpose)
    tile = _check_tiling(tuple(tile_position), tuple(tile_size), double)
    _check_shapes(dst, stationary, moving, double, is_transpose, tile)
    _check_aligned("nc_matmul", dst)
    addition = added("nc_matmul", dst, accumulate, is_transpose)
    run = current()
    position = len(run.instructions)
    if run.recording and not is_transpose:
        check_product(run, dst, accumulate, addition is True)
    # A product with 0 or 1 is exact whatever the array does with the other factor.
    onezero = is_stationary_onezero or is_moving_onezero
    perturbed = run.perturb_fp32 and stationary.dtype == "float32" and not onezero

    def compute() -> None:
        a, b = _rows(stationary), _rows(moving)
        if is_stationary_onezero:
            _check_onezero("stationary", a)
        if is_moving_onezero:
            _check_onezero("moving", b)
        if is_transpose:
            _transpose_by_identity(dst, a, b)
            return
        if perturbed:
            a, b = _perturbed(a, b, position)
        if double:  # contract over the two halves of the columns as well
            a, b = a.reshape(2 * a.shape[0], -1), b.reshape(2 * b.shape[0], -1)
        store_product(dst, a, b, addition)

    options = {
        "accumulate": addition is not False,
        "is_transpose": is_transpose,
        "is_stationary_onezero": is_stationary_onezero,
        "is_moving_onezero": is_moving_onezero,
        "perf_mode": perf_mode.value,
        "tile_position": tile.position,
        "tile_size": tile.size,
    }
    reads = {"stationary": stationary, "moving": moving}
    if addition is True:
        reads["dst"] = dst
    handle = issue("nc_matmul", "tensor", reads, {"dst": dst}, compute, options, name)
    if not is_transpose and dst.storage.products is not None:
        dst.storage.products.add(dst)
    return handle


@dataclass(frozen=True, slots=True)
class Tile:
    """The rows and columns of the array that a product uses."""

    position: tuple[int, int] = (0, 0)
    size: tuple[int, int] = (PARTITIONS, PARTITIONS)


def _check_dtypes(dst: NkiTensor, stationary: NkiTensor, moving: NkiTensor, double: bool, transpose: bool) -> None:
    pair = {stationary.dtype, moving.dtype}
    if not pair <= MATMUL_DTYPES:
        raise SimulatorError(
            f"nc_matmul: operands are {stationary.dtype} and {moving.dtype}; need {', '.join(sorted(MATMUL_DTYPES))}",
            rule=23,
        )
    if (stationary.dtype in WIDE) != (moving.dtype in WIDE):
        raise SimulatorError(
            f"nc_matmul: stationary is {stationary.dtype}, moving {moving.dtype}: float32 pairs with float32 only",
            rule=23,
        )
    generation = hardware().generation
    if pair == {"float8_e4m3fn", "float8_e4m3"}:
        raise SimulatorError("nc_matmul: float8_e4m3fn does not mix with float8_e4m3 (EOCP001)", rule=23)
    if double and (generation < GEN3 or not pair <= FP8):
        raise SimulatorError(
            f"nc_matmul: double_row needs trn2 and fp8 operands, got {', '.join(sorted(pair))} on {hardware().name}",
            rule=23,
        )
    results = {"float32"} if generation < GEN4 else {"float32", "bfloat16"}
    if transpose:
        # A bit-accurate transpose keeps the dtype (trainium2_arch.rst, "Built-in Transpose Support").
        results = {"float32"} if generation < GEN3 else {stationary.dtype}
    if dst.dtype not in results:
        raise SimulatorError(
            f"nc_matmul: dst is {dst.dtype}; need {' or '.join(sorted(results))} on {hardware().name}", rule=23
        )


def _check_tiling(position: tuple[int, ...], size: tuple[int, ...], double: bool) -> Tile:
    if not position and not size:
        return Tile()
    if len(position) != 2 or len(size) != 2:
        raise SimulatorError(f"nc_matmul: tile_position {position} and tile_size {size} must both be pairs", rule=23)
    smallest = 64 if hardware().generation < GEN3 else 32
    for extent, start in zip(size, position, strict=True):
        if extent not in (32, 64, 128) or extent < smallest or start % extent or not 0 <= start <= PARTITIONS - extent:
            raise SimulatorError(
                f"nc_matmul: tile_position {position}, tile_size {size}: sizes of {smallest} to 128 in powers of two, "
                f"starts at their multiples",
                rule=23,
            )
    if size[1] != PARTITIONS:
        if double:
            raise SimulatorError("nc_matmul: double_row does not combine with column tiling", rule=23)
        note(23, "column tiling: one place of nki.isa.nc_matmul allows it, another asks for column_size 128")
    return Tile((position[0], position[1]), (size[0], size[1]))


def _check_shapes(
    dst: NkiTensor, stationary: NkiTensor, moving: NkiTensor, double: bool, transpose: bool, tile: Tile
) -> None:
    shapes = f"stationary {stationary.shape}, moving {moving.shape}, dst {dst.shape}"
    if double and (
        transpose or not stationary.ndim == moving.ndim == 3 or stationary.shape[1] != 2 or moving.shape[1] != 2
    ):
        raise SimulatorError(f"nc_matmul: double_row needs [K, 2, M] and [K, 2, N] and no transpose: {shapes}", rule=23)
    split = 2 if double else 1
    k, m, n = stationary.shape[0], stationary.free_size // split, moving.free_size // split
    starts = stationary.partitions[0], moving.partitions[0]
    if starts[0] != starts[1]:
        note(
            13, f"nc_matmul: operands start at partitions {starts[0]} and {starts[1]}; rows of the array are partitions"
        )
    if moving.shape[0] != k or dst.shape[0] != m or dst.free_size != n:
        raise SimulatorError(
            f"nc_matmul: dst [M, N] = stationary [K, M]^T @ moving [K, N] does not fit: {shapes}", rule=23
        )
    if k > tile.size[0] or m > tile.size[1]:
        raise SimulatorError(
            f"nc_matmul: K = {k} and M = {m} must not exceed the PE tile {tile.size}: {shapes}", rule=23
        )
    if transpose and n != k:
        raise SimulatorError(f"nc_matmul: is_transpose needs a square identity as moving: {shapes}", rule=25)
    if hardware().generation < GEN4:
        region = dst.region
        if n > MOVING_MAX:
            raise SimulatorError(f"nc_matmul: N = {n} exceeds {MOVING_MAX} on {hardware().name}: {shapes}", rule=23)
        if region.start // PSUM_BANK_BYTES != (region.stop - 1) // PSUM_BANK_BYTES:
            raise SimulatorError(
                f"nc_matmul: dst covers bytes {region.start} to {region.stop}, across PSUM banks of {PSUM_BANK_BYTES}",
                rule=11,
            )
    elif n > PSUM_BANKS * PSUM_BANK_BYTES // dst.itemsize:
        raise SimulatorError(f"nc_matmul: N = {n} exceeds all of PSUM: {shapes}", rule=23)


def _check_aligned(opcode: str, dst: NkiTensor) -> None:
    """Refuse an unaligned dst: PSUM has words of 4 bytes, and TensorEngine writes whole words."""
    if dst.region.start % PSUM_WORD:
        raise SimulatorError(
            f"{opcode}: dst starts at byte {dst.region.start} of PSUM; a multiple of {PSUM_WORD} is needed",
            rule=11,
        )


def _check_onezero(role: str, values: Array) -> None:
    if not np.isin(values, (0.0, 1.0)).all():
        raise SimulatorError(f"nc_matmul: is_{role}_onezero, but {role} holds other values than 0 and 1", rule=26)


def _rows(tensor: NkiTensor) -> Array:
    """The operand as (K, free) float32; a double_row operand has its second half below the first."""
    values = tensor.float32()
    if values.ndim == 2:
        return values
    return values.reshape(values.shape[0], -1)


def _perturbed(a: Array, b: Array, position: int) -> tuple[Array, Array]:
    """Operands with random relative errors, to test an algorithm with 16-bit products."""
    noise = np.random.default_rng([current().core, position])
    low, high = 1 - PERTURBATION, 1 + PERTURBATION
    return (
        a * noise.uniform(low, high, a.shape).astype(np.float32),
        b * noise.uniform(low, high, b.shape).astype(np.float32),
    )


def _transpose_by_identity(dst: NkiTensor, a: Array, b: Array) -> None:
    if not np.array_equal(b, np.eye(b.shape[0], dtype=np.float32)):
        raise SimulatorError("nc_matmul: is_transpose with a moving tile that is not the identity", rule=25)
    # Before trn2 a transpose is an ordinary product, which spreads NaN and infinity.
    values = a.T @ b if hardware().generation < GEN3 else a.T
    dst.write(values.reshape(dst.shape))


def nc_transpose(
    dst: NkiTensor, data: NkiTensor, engine: Engine = Engine.unknown, name: str | None = None
) -> NkiInstruction:
    """dst (F, P) = data (P, F) transposed, free dimensions flattened; bit-exact from trn2 on.

    Source: nki.isa.nc_transpose.
    """
    for role, tensor in (("dst", dst), ("data", data)):
        if not isinstance(tensor, NkiTensor) or not tensor.on_chip:
            raise SimulatorError(f"nc_transpose: {role} must be a tile in SBUF or PSUM", rule=25)
    rows, columns = data.shape[0], data.free_size
    if dst.shape[0] != columns or dst.free_size != rows:
        raise SimulatorError(f"nc_transpose: dst {dst.shape} is not the transpose of data {data.shape}", rule=25)
    where = _transpose_engine(dst, data, engine)
    # Before trn2 TensorEngine's transpose is a product, whose results are float32.
    wanted = "float32" if where == "tensor" and hardware().generation < GEN3 else data.dtype
    if dst.dtype != wanted:
        raise SimulatorError(f"nc_transpose: dst is {dst.dtype}, data {data.dtype}; dst must be {wanted}", rule=25)
    if where == "tensor":
        _check_aligned("nc_transpose", dst)

    def compute() -> None:
        values = data.read().reshape(rows, columns)
        if where == "tensor" and hardware().generation < GEN3 and values.dtype.kind not in "iu":
            spread = values.astype(np.float32)
            values = (np.eye(rows, dtype=np.float32) @ spread).astype(STORAGE[dst.dtype])
        dst.write(values.T.reshape(dst.shape))

    return issue("nc_transpose", where, {"data": data}, {"dst": dst}, compute, {"is_transpose": True}, name)


def _transpose_engine(dst: NkiTensor, data: NkiTensor, engine: Engine) -> Any:
    """TensorEngine for a transpose from SBUF to PSUM, VectorEngine for other small tiles."""
    rows, columns = data.shape[0], data.free_size
    small = rows <= VECTOR_TRANSPOSE and columns <= VECTOR_TRANSPOSE
    placed = data.storage.buffer == "sbuf" and dst.storage.buffer == "psum"
    if engine == Engine.unknown:
        engine = Engine.tensor if placed else Engine.vector
    if engine == Engine.tensor:
        if not placed:
            raise SimulatorError("nc_transpose: TensorEngine reads SBUF and writes PSUM", rule=25)
        if rows > PARTITIONS or columns > PARTITIONS:
            raise SimulatorError(f"nc_transpose: data {data.shape} exceeds 128 x 128 on TensorEngine", rule=25)
        if dst.itemsize == 1 and hardware().generation >= GEN3 and dst.strides[-1] != 2 and dst.shape[-1] > 1:
            raise SimulatorError(
                f"nc_transpose: TensorEngine writes {dst.dtype} as 16-bit words; give dst a free stride of 2 elements",
                rule=25,
            )
        return "tensor"
    if engine != Engine.vector:
        raise SimulatorError(f"nc_transpose: engine {engine}; TensorEngine or VectorEngine transposes", rule=25)
    if not small:
        raise SimulatorError(
            f"nc_transpose: data {data.shape} exceeds 32 x 32 on VectorEngine (TensorEngine needs SBUF to PSUM)",
            rule=25,
        )
    return "vector"
