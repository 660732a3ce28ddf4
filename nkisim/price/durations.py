"""Modelled time of one instruction on its own engine, from shapes and types.

The formulas are from the NKI 2.26 isa documentation (the last that printed costs), corrected by published profiles.
Each gives cycles of the executing engine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from nkisim.chip.record import Instruction, Operand
from nkisim.hardware import PARTITIONS, Hardware

FLOAT32_PASSES = 4.0  # for one product of 128 columns (arch)
WIDEST = 512  # columns of one product, before trn3
MIN_INTERVAL = 64  # least number of cycles between the starts of two instructions of an engine (arch)
SLOW_STORES_FROM = 2**15  # bytes between rows
FULL_RATE_BYTES = 512  # in a descriptor (dma)
PARTITIONS_PER_DMA_ENGINE = 8  # 128 SBUF partitions over 16 engines (dma overview)
DMA_ENGINES = 16
GPSIMD_SLOWDOWN = 2  # relative to VectorEngine: documented as 2 to 4 times slower
GPSIMD_GROUP = 16  # partitions served by each of its eight cores
NARROW = frozenset({"bfloat16", "float16", "int16", "uint16"})
BYTES: Mapping[str, int] = MappingProxyType(
    {"float32": 4, "tfloat32": 4, "int32": 4, "uint32": 4, "bfloat16": 2, "float16": 2, "int16": 2, "uint16": 2}
)  # all others are one byte

# Cycles per element of a partition; two inputs from SBUF share one port (arch).
PER_ELEMENT: Mapping[str, float] = MappingProxyType(
    {
        "reciprocal": 8.0,  # documented up to 0.6; one public trn1 profile implies at most 2.7
        "tensor_tensor_scan": 2.0,
        "scalar_tensor_tensor": 2.0,
        "tensor_copy_predicated": 2.0,
        "bn_aggr": 13 / 3,
        "tensor_partition_reduce": float(GPSIMD_GROUP),  # undocumented: each core processes its partitions one by one
    }
)
# Number of times a collective passes round the ring of its ranks; a permutation is one hop.
RING_ROUNDS: Mapping[str, int] = MappingProxyType(
    {"all_reduce": 2, "all_gather": 1, "all_gather_v": 1, "reduce_scatter": 1, "all_to_all": 1, "all_to_all_v": 1}
)
TWO_INPUTS = frozenset({"tensor_tensor", "scalar_tensor_tensor", "tensor_copy_predicated"})
SELECTIONS = frozenset({"max8", "nc_find_index8", "nc_match_replace8"})
FAST_COPIES = frozenset({"tensor_copy", "tensor_scalar"})
REGISTER_READERS = frozenset({"activation_reduce", "tensor_scalar_reduce", "tensor_scalar_cumulative"})


@dataclass(frozen=True, slots=True)
class Duration:
    """Seconds during which an engine is busy, and further seconds until others may read the result."""

    busy_s: float
    latency_s: float


@dataclass(frozen=True, slots=True)
class Transfer:
    """One DMA instruction: the engines that move it (of 16), the bytes of each, and the descriptors."""

    engines: tuple[int, ...]
    engine_s: float  # time of each of these engines, after the start
    hbm_bytes: int
    descriptors: int
    descriptor_bytes: int
    software: bool  # whether GpSimd writes the descriptors


def hops_s(instruction: Instruction, machine: Hardware) -> float:
    """Seconds that a collective spends on links between cores, in addition to its own transfers.

    Each hop moves one rank's piece of the larger side; a permutation moves all of it.
    """
    ranks = int(instruction.options.get("ranks", 1))
    if ranks < 2:
        return 0.0
    nbytes = max((math.prod(o.shape) * itemsize(o) for o in (*instruction.reads, *instruction.writes)), default=0)
    if instruction.opcode not in RING_ROUNDS:
        return machine.timing.hop_s + nbytes / machine.peer_bytes_per_s
    hops = RING_ROUNDS[instruction.opcode] * (ranks - 1)
    return hops * (machine.timing.hop_s + nbytes / ranks / machine.peer_bytes_per_s)


def itemsize(operand: Operand) -> int:
    return BYTES.get(operand.dtype, 1)


def free_size(operand: Operand) -> int:
    """Elements per partition."""
    return math.prod(operand.shape[1:]) if len(operand.shape) > 1 else 1


def product_columns(instruction: Instruction, machine: Hardware) -> tuple[int, int, int, float]:
    """K, M, streamed columns and passes of one nc_matmul or TensorEngine transpose."""
    if instruction.opcode == "nc_transpose":
        source = instruction.reads[0]
        return source.shape[0], free_size(source), source.shape[0], 1
    by_role = {operand.role: operand for operand in instruction.reads}
    stationary, moving = by_role["stationary"], by_role["moving"]
    rows, depth, columns = stationary.shape[0], free_size(stationary), free_size(moving)
    if "double_row" in str(instruction.options.get("perf_mode", "")):
        return 2 * rows, depth // 2, columns // 2, 1
    wide = stationary.dtype == "float32" and moving.dtype == "float32"
    onezero = instruction.options.get("is_stationary_onezero") or instruction.options.get("is_moving_onezero")
    passes = float32_passes(columns, machine)
    return rows, depth, columns, (passes / 2 if onezero else passes) if wide else 1


def float32_passes(columns: int, machine: Hardware) -> float:
    """Passes of a float32 product: four if it has as many columns as rows, and more for wide ones on trn1."""
    wide = min(max(columns - PARTITIONS, 0) / (WIDEST - PARTITIONS), 1.0)
    return FLOAT32_PASSES + wide * (machine.timing.float32_wide_passes - FLOAT32_PASSES)


def tensor_duration(instruction: Instruction, machine: Hardware) -> Duration:
    """TensorEngine: one column per cycle and pass; the stationary operand is loaded during the stream before."""
    timing = machine.timing
    rows, depth, columns, passes = product_columns(instruction, machine)
    hz = machine.tensor_hz
    if instruction.opcode == "nc_transpose" or instruction.options.get("is_transpose"):
        passes = timing.float32_transpose_passes if instruction.reads[0].dtype == "float32" else 1
    elif passes == 1 and min(rows, depth) < PARTITIONS // 2:
        hz /= timing.narrow_factor  # slower if less than half of the array is used (docs/hardware.md#tensor-engine)
    stream = max(min(MIN_INTERVAL, depth), columns) * passes
    if stream > PARTITIONS:  # shorter products reach the clock rate (docs/hardware.md#tensor-engine)
        hz *= timing.tensor_sustained
    exposed = timing.load_stationary_cycles if stream < MIN_INTERVAL else 0
    cycles = timing.matmul_overhead_cycles + stream + exposed
    return Duration(cycles / hz, timing.matmul_latency_cycles / machine.tensor_hz)


def compute_duration(instruction: Instruction, machine: Hardware) -> Duration:
    """Vector, Scalar and GpSimd engines: a fixed access time, then one element of each partition after another."""
    timing = machine.timing
    operands = (*instruction.writes, *instruction.reads)
    count = max((free_size(o) for o in operands), default=1)
    if instruction.engine == "gpsimd":
        if instruction.opcode == "topk":
            cycles = 4.0 * int(instruction.options.get("n", count)) + free_size(instruction.writes[0])
        else:
            slower = 1 if instruction.opcode in ("iota", "affine_select", "memset") else GPSIMD_SLOWDOWN
            cycles = timing.gpsimd_start_cycles + count * slower * PER_ELEMENT.get(instruction.opcode, 1.0)
        return Duration(cycles / machine.gpsimd_hz, 0.0)
    issue, latency, hz = timing.vector_issue_cycles, timing.vector_latency_cycles, machine.vector_hz
    if instruction.engine == "scalar":
        issue, latency, hz = timing.scalar_issue_cycles, timing.scalar_latency_cycles, machine.scalar_hz
    elements = count * _per_element(instruction, machine)
    if instruction.opcode in REGISTER_READERS or instruction.options.get("reduce_res"):
        elements += timing.accumulator_cycles
    if instruction.opcode in SELECTIONS:
        elements += timing.selection_cycles
    if _mixed(instruction):
        elements += issue + count  # one operand is first converted to the other's type, which costs a copy
    busy = max(MIN_INTERVAL, issue + elements)
    return Duration(busy / hz, (max(MIN_INTERVAL, timing.access_cycles + elements) + latency - busy) / hz)


def _per_element(instruction: Instruction, machine: Hardware) -> float:
    """Cycles per element of a Vector or Scalar instruction; trn2 and later have faster 16-bit modes."""
    opcode = instruction.opcode
    tiles = [o for o in (*instruction.reads, *instruction.writes) if free_size(o) > 1]
    narrow = bool(tiles) and all(o.dtype in NARROW for o in tiles)
    on_psum = any(o.region.buffer == "psum" for o in tiles)
    if opcode in TWO_INPUTS:
        if on_psum or (narrow and machine.generation >= 3):
            return 1.0
        return 2.0
    if opcode in FAST_COPIES and narrow and machine.generation >= 3 and instruction.engine == "vector":
        return 0.5 if on_psum or not all(_contiguous(o) for o in tiles) else 0.25
    if opcode == "tensor_reduce" and narrow:
        return 0.5
    return PER_ELEMENT.get(opcode, 1.0)


def _mixed(instruction: Instruction) -> bool:
    """Whether a Vector instruction reads a tile of float32 and one of a narrower float, both in SBUF."""
    types = {o.dtype for o in instruction.reads if free_size(o) > 1 and o.region.buffer == "sbuf"}
    return instruction.opcode in TWO_INPUTS and "float32" in types and not types.isdisjoint(("bfloat16", "float16"))


def _contiguous(operand: Operand) -> bool:
    return not operand.strides or operand.strides[-1] == 1


def transfer(instruction: Instruction, machine: Hardware) -> Transfer:
    """How a DMA instruction is distributed over the 16 engines and into descriptors.

    An engine serves eight SBUF partitions. A descriptor covers bytes that are contiguous on both sides. Rows
    that are also consecutive in HBM make one descriptor for all eight partitions.
    """
    operands = [o for o in (*instruction.writes, *instruction.reads) if not o.role.endswith(".index")]
    hbm = [o for o in operands if o.region.buffer == "hbm"]
    chip = [o for o in operands if o.region.buffer != "hbm"]
    payload = max((math.prod(o.shape) * itemsize(o) for o in operands), default=0)
    software = instruction.options.get("dge") == "swdge"
    rows = chip[0].shape[0] if chip else PARTITIONS
    first = chip[0].region.partitions[0] if chip else 0
    last = first + rows - 1
    engines = tuple(range(first // PARTITIONS_PER_DMA_ENGINE, last // PARTITIONS_PER_DMA_ENGINE + 1))
    per_engine = payload / len(engines)
    run = min((_run_bytes(o) for o in hbm), default=payload)
    if software and chip:
        run = min(run, payload // rows)
    if chip:
        run = min(run, *(_run_bytes(o, partitioned=True) for o in chip)) if run < payload or software else run
    piece = max(1, min(run, math.ceil(per_engine)))
    pieces = max(1, math.ceil(per_engine / piece))
    rate = machine.hbm_bytes_per_s / DMA_ENGINES
    one = max(machine.dma_descriptor_s + piece / machine.dma_bytes_per_s, piece / rate)
    one *= stride_factor(instruction, rows, machine)
    return Transfer(
        engines,
        pieces * one * max(1, len(instruction.reads) if instruction.opcode == "dma_compute" else 1),
        sum(math.prod(o.shape) * itemsize(o) for o in hbm),
        pieces * len(engines),
        piece,
        software,
    )


def stride_factor(instruction: Instruction, rows: int, machine: Hardware) -> float:
    """Factor on a transfer's time if the distance of its partitions' rows in HBM is a power of two.

    Stores with rows 2^14 bytes apart were measured at the full rate (docs/hardware.md#dma).
    """
    for operands, least in ((instruction.reads, 1), (instruction.writes, SLOW_STORES_FROM)):
        for operand in operands:
            if operand.region.buffer != "hbm" or operand.role.endswith(".index"):
                continue
            step = operand.strides[0] * itemsize(operand) if operand.strides and operand.shape[0] == rows > 1 else 0
            width = math.prod(operand.shape[1:]) * itemsize(operand)
            if step >= least and step > width and step & (step - 1) == 0:
                return machine.timing.power_of_two_factor
    return 1.0


def _run_bytes(operand: Operand, partitioned: bool = False) -> int:
    """Bytes of one contiguous run: within one partition on chip, within the whole operand in HBM."""
    run = 1
    for size, stride in zip(reversed(operand.shape[1:] if partitioned else operand.shape), reversed(
        operand.strides[1:] if partitioned else operand.strides), strict=False):  # fmt: skip
        if size != 1 and stride != run:
            break
        run *= size
    return run * itemsize(operand)
