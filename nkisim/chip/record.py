"""The record of instructions that cost model, lint and timeline read."""

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

    ``start`` and ``stop`` bound the bytes inside one partition (for HBM: inside the whole allocation).
    For a strided operand they are its hull, from which dependencies are computed.
    """

    storage: int  # number of the allocation within one run
    buffer: Buffer
    partitions: tuple[int, int]  # first and one past the last; (0, 1) for HBM
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Operand:
    """One tensor argument of an instruction, as passed."""

    role: str  # the parameter's name: "dst", "stationary", "data1"
    dtype: str
    shape: tuple[int, ...]  # partition dimension first
    strides: tuple[int, ...]  # in elements
    region: Region


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction as issued, with all inputs to its cost and its checks."""

    opcode: str  # the nisa name: "nc_matmul"
    engine: Engine
    file: str
    line: int  # of the kernel's source
    reads: tuple[Operand, ...]
    writes: tuple[Operand, ...]
    options: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """Arguments other than tensors, and properties found during execution, by name:
    op, op0, accumulate, perf_mode, table, dge, descriptors, descriptor_bytes, indirect ..."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """One tensor's storage and the span of instructions in which it is live."""

    storage: int
    name: str
    buffer: Buffer
    dtype: str
    shape: tuple[int, ...]
    bytes_per_partition: int  # for HBM: the whole size
    file: str
    line: int
    first: int  # index of the first instruction that uses it
    last: int  # index of the last one
    address: tuple[int, int] | None = None  # (partition, byte) if the kernel placed it by hand
    loop: int | None = None  # index in Trace.loops of the innermost loop whose body allocated it


@dataclass(frozen=True, slots=True)
class Loop:
    """A device loop (nl.fori_loop, nl.while_loop): its body is recorded once.

    Instructions ``first`` to ``stop`` - 1 execute ``executions`` times in total, including every iteration of
    enclosing loops; None if the trip count is known only at run time. An instruction inside several loops
    belongs to the innermost. The instruction count of a program is ``len(instructions)``: device loops are
    not unrolled, but loops with constant ``bounds`` may be (price/written_out.py).
    """

    first: int
    stop: int
    executions: int | None
    file: str
    line: int
    bounds: Literal["run time", "constant", "written out"] = "run time"


@dataclass(frozen=True, slots=True)
class Note:
    """A doubt found during execution, for the lint's report."""

    file: str
    line: int
    rule: int  # a key of rules.RULES
    message: str


@dataclass(frozen=True, slots=True)
class Trace:
    """One simulated launch of one kernel on one core."""

    kernel: str
    target: str  # a key of hardware.MACHINES
    instructions: tuple[Instruction, ...]
    allocations: tuple[Allocation, ...]
    core: int = 0
    loops: tuple[Loop, ...] = ()  # outer loops before inner ones
    notes: tuple[Note, ...] = ()
    dependencies: tuple[tuple[int, int], ...] = ()  # (consumer, producer) of NkiInstruction.depends_on
    sbuf_peak_bytes: int = 0  # per partition
    psum_peak_banks: int = 0
