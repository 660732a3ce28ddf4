"""What the simulator writes down of every instruction: the one record that cost, lint and timeline read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

Engine = Literal["tensor", "vector", "scalar", "gpsimd", "sync", "dma"]
Buffer = Literal["sbuf", "psum", "hbm"]


@dataclass(frozen=True, slots=True)
class Region:
    """The part of one allocation that an operand touches: a box of partitions by a range of bytes.

    ``start`` and ``stop`` bound the bytes touched inside one partition (for HBM: inside the whole
    allocation); strided operands give their hull, which is what dependencies are computed from.
    """

    storage: int  # identity of the allocation within one run
    buffer: Buffer
    partitions: tuple[int, int]  # first and one past the last; (0, 1) for HBM
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Operand:
    """One tensor argument of an instruction, as it was passed."""

    role: str  # the parameter's name: "dst", "stationary", "data1"
    dtype: str
    shape: tuple[int, ...]  # partition dimension first
    strides: tuple[int, ...]  # in elements
    region: Region


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction as issued, with everything that its cost and its legality depend on."""

    opcode: str  # the nisa name: "nc_matmul"
    engine: Engine
    file: str
    line: int  # of the kernel's source
    reads: tuple[Operand, ...]
    writes: tuple[Operand, ...]
    options: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """Arguments that are not tensors, and facts found while executing, by name:
    op, op0, accumulate, perf_mode, table, dge, descriptors, descriptor_bytes, indirect ..."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """One tensor storage and the span of instructions over which it is live."""

    storage: int
    name: str
    buffer: Buffer
    dtype: str
    shape: tuple[int, ...]
    bytes_per_partition: int  # for HBM: the whole size
    file: str
    line: int
    first: int  # index of the first instruction that touches it
    last: int  # index of the last one
    address: tuple[int, int] | None = None  # (partition, byte) where the kernel placed it by hand


@dataclass(frozen=True, slots=True)
class Loop:
    """A device loop (nl.fori_loop, nl.while_loop): its body is recorded once.

    Instructions ``first`` to ``stop`` - 1 execute ``executions`` times in all, over every iteration of
    the loops around this one; None when the trip count is only known on the device. An instruction
    inside several loops follows the innermost. The instruction count of a program is
    ``len(instructions)``: device loops are not unrolled.
    """

    first: int
    stop: int
    executions: int | None
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class Note:
    """Something doubtful that was seen while executing, for the lint's report."""

    file: str
    line: int
    rule: int  # a number of rules.RULES
    message: str


@dataclass(frozen=True, slots=True)
class Trace:
    """One simulated launch of one kernel on one core."""

    kernel: str
    target: str  # a name in hardware.MACHINES
    instructions: tuple[Instruction, ...]
    allocations: tuple[Allocation, ...]
    core: int = 0
    loops: tuple[Loop, ...] = ()  # outer loops before inner ones
    notes: tuple[Note, ...] = ()
    dependencies: tuple[tuple[int, int], ...] = ()  # (consumer, producer) of NkiInstruction.depends_on
    sbuf_peak_bytes: int = 0  # per partition
    psum_peak_banks: int = 0
