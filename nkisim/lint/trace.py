"""Lint rules on a recorded run: code that the simulator accepts, but that is slow or may be wrong on the device."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence

from nkisim.chip.errors import SimulatorError
from nkisim.chip.record import Instruction, Operand, Trace
from nkisim.chip.sharing import MEETINGS
from nkisim.hardware import MACHINES, PSUM_BANKS
from nkisim.lint.rules import Finding, Severity
from nkisim.price.durations import free_size, itemsize, transfer
from nkisim.price.loops import executions

MANY_INSTRUCTIONS = 20_000  # from this number on, compiling takes minutes (docs/launches.md#compile-cost)
TOO_MANY_INSTRUCTIONS = 200_000  # from this number on, compiling takes hours and fills the memory of a large host
SMALL_DESCRIPTOR = 512  # bytes; HBM writes below it become read-modify-write (dma overview)
TINY_DESCRIPTOR = 64
FEW_PARTITIONS = 16  # with fewer, DMA engines are idle
SMALL_TRANSFER = 16 * 1024  # bytes; the latency dominates a smaller transfer, whatever its layout
BANK_TAKER = "NKI_DMA_TRANSPOSE_AS_PE_TRANSPOSE"  # a variable of the compiler
TABLE_SWITCHES = 8  # loads of an activation table from one line that count as a loop that switches tables


def lint_trace(traces: Sequence[Trace]) -> tuple[Finding, ...]:
    """Findings of one launch, ordered by line, at most one for each line and rule; one trace per core."""
    found: dict[tuple[str, int, int], Finding] = {}
    for trace in traces:
        for check in (_size, _banks, _overlaps, _descriptors, _accumulation, _tables, _notes):
            for finding in check(trace):
                found.setdefault((finding.file, finding.line, finding.rule), finding)
    for finding in _shared_writes(traces):
        found.setdefault((finding.file, finding.line, finding.rule), finding)
    return tuple(sorted(found.values()))


def from_error(error: SimulatorError) -> Finding:
    """The simulator's refusal as a finding; its rule is 0 if no lint rule applies."""
    return Finding(error.file, error.line, error.rule or 0, "E", error.message)


def _at(instruction: Instruction, rule: int, severity: Severity, message: str) -> Finding:
    return Finding(instruction.file, instruction.line, rule, severity, f"{instruction.opcode}: {message}")


def _notes(trace: Trace) -> Iterator[Finding]:
    for note in trace.notes:
        yield Finding(note.file, note.line, note.rule, "W", note.message)


def _size(trace: Trace) -> Iterator[Finding]:
    """Rule 9: the number of instructions after the compiler has unrolled loops."""
    count = len(trace.instructions)
    if count > MANY_INSTRUCTIONS:
        severity: Severity = "E" if count > TOO_MANY_INSTRUCTIONS else "W"
        line, uses = Counter((i.file, i.line) for i in trace.instructions).most_common(1)[0]
        message = f"{count:,} unrolled instructions, {uses:,} from this line; tile on the host or use nl.fori_loop"
        yield Finding(*line, 9, severity, message)


def _banks(trace: Trace) -> Iterator[Finding]:
    """Rule 11: if this variable is set, DMA transposes run on TensorEngine and occupy one bank."""
    if BANK_TAKER in os.environ and trace.psum_peak_banks == PSUM_BANKS:
        where = next(a for a in trace.allocations if a.buffer == "psum")
        message = f"{PSUM_BANKS} PSUM banks are live at once and {BANK_TAKER} occupies one of them"
        yield Finding(where.file, where.line, 11, "E", message)


def _overlaps(trace: Trace) -> Iterator[Finding]:
    """Rule 17: an instruction that overwrites its input at another place or pace."""
    for instruction in trace.instructions:
        for written in instruction.writes:
            for read in instruction.reads:
                if not _share(written, read) or _same(written, read):
                    continue
                where = f"dst and {read.role} overlap with different access patterns"
                yield _at(instruction, 17, "W", f"{where}; elements may be read after they were overwritten")


def _share(a: Operand, b: Operand) -> bool:
    x, y = a.region, b.region
    return (
        x.storage == y.storage
        and x.start < y.stop
        and y.start < x.stop
        and x.partitions[0] < y.partitions[1]
        and y.partitions[0] < x.partitions[1]
        and not _interleaved(a, b)
    )


def _interleaved(a: Operand, b: Operand) -> bool:
    """Whether equal strides with a common factor keep the two on different elements, such as even and odd columns."""
    if a.strides != b.strides or len(a.strides) != 2 or a.strides[1] < 2:
        return False
    return (a.region.start - b.region.start) % (a.strides[1] * itemsize(a)) != 0


def _same(a: Operand, b: Operand) -> bool:
    return a.region == b.region and a.shape == b.shape and a.strides == b.strides and a.dtype == b.dtype


def _descriptors(trace: Trace) -> Iterator[Finding]:
    """Rule 22: transfers that spend their time on descriptors instead of bytes."""
    machine = MACHINES[trace.target]
    times = executions(trace)
    seen: set[tuple[object, ...]] = set()
    for index, instruction in enumerate(trace.instructions):
        if instruction.engine != "dma" or (instruction.file, instruction.line) in seen:
            continue
        operands = [o for o in (*instruction.writes, *instruction.reads) if not o.role.endswith(".index")]
        payload = sum(_bytes(o) for o in instruction.writes)
        moved = transfer(instruction, machine)
        if {o.region.buffer for o in operands} == {"sbuf"} and instruction.opcode == "dma_copy":
            seen.add((instruction.file, instruction.line))
            yield _at(instruction, 22, "W", "SBUF to SBUF; nisa.tensor_copy avoids the DMA's latency of 2 us")
        elif payload * times[index] >= SMALL_TRANSFER and moved.descriptor_bytes < SMALL_DESCRIPTOR:
            seen.add((instruction.file, instruction.line))
            severity: Severity = "W" if moved.descriptor_bytes >= TINY_DESCRIPTOR or payload < SMALL_TRANSFER else "E"
            message = f"{moved.descriptor_bytes} contiguous bytes per descriptor, {SMALL_DESCRIPTOR} are needed"
            yield _at(instruction, 22, severity, f"{message} and 2048 are good")
        elif payload >= SMALL_TRANSFER and any(
            o.region.buffer == "sbuf" and o.shape[0] < FEW_PARTITIONS for o in operands
        ):
            seen.add((instruction.file, instruction.line))
            yield _at(instruction, 22, "W", f"{payload} bytes through fewer than {FEW_PARTITIONS} partitions")


def _bytes(operand: Operand) -> int:
    return operand.shape[0] * free_size(operand) * itemsize(operand)


def _accumulation(trace: Trace) -> Iterator[Finding]:
    """Rule 24: a bank that is read between two products that add to it."""
    state: dict[tuple[int, int, int], str] = {}
    for instruction in trace.instructions:
        for operand in instruction.reads:
            if operand.region.buffer == "psum" and instruction.engine != "tensor":
                key = (operand.region.storage, operand.region.start, operand.region.stop)
                if state.get(key) == "product":
                    state[key] = "read"
        if instruction.opcode != "nc_matmul":
            continue
        for operand in instruction.writes:
            key = (operand.region.storage, operand.region.start, operand.region.stop)
            adds = instruction.options.get("accumulate")
            if state.get(key) == "read" and adds is not False:
                yield _at(instruction, 24, "W", "adds to a PSUM region that was read since its last product")
            state[key] = "product"


def _tables(trace: Trace) -> Iterator[Finding]:
    """Rule 35: activation functions of different tables in alternation."""
    loaded: str | None = None
    switches: Counter[tuple[str, int]] = Counter()
    last: dict[tuple[str, int], Instruction] = {}
    times = executions(trace)
    for index, instruction in enumerate(trace.instructions):
        table = instruction.options.get("table") if instruction.engine == "scalar" else None
        if table is not None:
            if loaded is not None and table != loaded:
                line = (instruction.file, instruction.line)
                switches[line] += times[index]
                last[line] = instruction
            loaded = str(table)
    for line, count in switches.items():
        if count >= TABLE_SWITCHES:
            yield _at(
                last[line], 35, "W", f"loads its function table {count} times, 1.3 us each; group equal functions"
            )


def _shared_writes(traces: Sequence[Trace]) -> Iterator[Finding]:
    """Rule 37: two cores that write the same bytes of HBM in no defined order."""
    written: dict[int, list[tuple[int, Operand]]] = {}
    for trace in traces:
        for instruction in trace.instructions:
            for operand in instruction.writes:
                if operand.region.buffer != "hbm" or instruction.opcode in MEETINGS:
                    continue  # a barrier is recorded as a write of the memory that it guards
                others = written.setdefault(operand.region.storage, [])
                if any(core != trace.core and _collide(o, operand) for core, o in others):
                    yield _at(instruction, 37, "E", f"core {trace.core} writes HBM that another core writes too")
                others.append((trace.core, operand))


def _collide(a: Operand, b: Operand) -> bool:
    """Whether two writes into one HBM tensor share an element; columns side by side do not."""
    if a.region.start >= b.region.stop or b.region.start >= a.region.stop:
        return False
    if a.strides == b.strides and len(a.strides) == 2 and a.strides[1] == b.strides[1] == 1:
        pitch = a.strides[0] * itemsize(a)
        first, second = a.region.start % pitch, b.region.start % pitch
        inside = max(first + a.shape[1] * itemsize(a), second + b.shape[1] * itemsize(b)) <= pitch
        if inside:
            return first < second + b.shape[1] * itemsize(b) and second < first + a.shape[1] * itemsize(a)
    return True
