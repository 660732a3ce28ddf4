"""Which earlier instructions each instruction must wait for: data hazards and reuse of on-chip memory."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

from trnpy._nki.hardware import PSUM_BANK_BYTES, PSUM_BANKS, Hardware
from trnpy._nki.simulator.durations import itemsize
from trnpy._nki.simulator.record import Operand, Region, Trace


@dataclass(slots=True)
class _Access:
    """Last writer and the readers since, of one region of one storage, and the regions it overlaps."""

    region: Region
    row: tuple[int, int, int] | None  # row pitch, first and past-last byte within a row, of an HBM box
    writer: int = -1
    readers: dict[str | int, int] = field(default_factory=dict)
    overlaps: list[_Access] = field(default_factory=list)


def dependencies(trace: Trace, machine: Hardware) -> list[Sequence[int]]:
    """For each instruction the indices of those it waits for: read after write, write after read or write.

    Storages of HBM that are only read, or only written, order nothing. Tiles that no longer fit
    beside the live ones take the memory of tiles whose last use lies earlier in the program, and wait
    for that use, as with a static allocation that goes round the whole memory.
    """
    read, written = _storages(trace, "reads"), _storages(trace, "writes")
    tracked = (read & written) | {a.storage for a in trace.allocations if a.buffer != "hbm"}
    seen: dict[int, dict[object, _Access]] = {}
    reuse = _Reuse(trace, machine)
    explicit: dict[int, list[int]] = {}
    for consumer, producer in trace.dependencies:
        explicit.setdefault(consumer, []).append(producer)
    result: list[Sequence[int]] = []
    for index, instruction in enumerate(trace.instructions):
        before: set[int] = set(explicit.get(index, ()))
        engine: str | int = instruction.engine if instruction.engine != "dma" else index
        for operand in instruction.reads:
            storage = operand.region.storage
            if storage in tracked:
                access = _access(seen.setdefault(storage, {}), operand)
                for other in access.overlaps:
                    before.add(other.writer)
                access.readers[engine] = index
        for operand in instruction.writes:
            storage = operand.region.storage
            if storage in tracked:
                accesses = seen.setdefault(storage, {})
                known = len(accesses)
                access = _access(accesses, operand)
                if len(accesses) != known:
                    before.update(reuse.waits(storage, index))
                for other in access.overlaps:
                    before.add(other.writer)
                    before.update(other.readers.values())
                    if _inside(other.region, access.region):
                        other.writer = index
                        other.readers.clear()
                access.writer = index
        reuse.touched(instruction.reads, instruction.writes, instruction.engine, index)
        before.discard(-1)
        before.discard(index)
        result.append(tuple(before))
    return result


def _storages(trace: Trace, side: str) -> set[int]:
    return {o.region.storage for i in trace.instructions for o in getattr(i, side)}


def _access(accesses: dict[object, _Access], operand: Operand) -> _Access:
    region = operand.region
    row = _row(operand)
    key = (region.partitions, region.start, region.stop, row)
    access = accesses.get(key)
    if access is None:
        access = _Access(region, row)
        for other in accesses.values():
            if _overlap(access, other):
                access.overlaps.append(other)
                other.overlaps.append(access)
        access.overlaps.append(access)
        accesses[key] = access
    return access


def _row(operand: Operand) -> tuple[int, int, int] | None:
    """A 2-D box of HBM, whose hull would cover its neighbours: pitch of a row and the bytes used of it."""
    if operand.region.buffer != "hbm" or len(operand.shape) != 2 or operand.strides[1] != 1:
        return None
    pitch = operand.strides[0] * itemsize(operand)
    width = operand.shape[1] * itemsize(operand)
    first = operand.region.start % pitch if pitch else 0
    return (pitch, first, first + width) if pitch and first + width <= pitch else None


def _overlap(one: _Access, other: _Access) -> bool:
    a, b = one.region, other.region
    if a.start >= b.stop or b.start >= a.stop:
        return False
    if a.partitions[0] >= b.partitions[1] or b.partitions[0] >= a.partitions[1]:
        return False
    if one.row and other.row and one.row[0] == other.row[0]:
        return one.row[1] < other.row[2] and other.row[1] < one.row[2]
    return True


def _inside(inner: Region, outer: Region) -> bool:
    return (
        outer.start <= inner.start
        and inner.stop <= outer.stop
        and outer.partitions[0] <= inner.partitions[0]
        and inner.partitions[1] <= outer.partitions[1]
    )


class _Reuse:
    """Gives every tile memory in program order, and remembers whose memory it was."""

    def __init__(self, trace: Trace, machine: Hardware) -> None:
        self.unused = {"sbuf": machine.sbuf_bytes_per_partition, "psum": PSUM_BANKS * PSUM_BANK_BYTES}
        self.allocations = {a.storage: a for a in trace.allocations if a.buffer != "hbm"}
        self.dead: dict[str, list[tuple[int, int, int]]] = {"sbuf": [], "psum": []}  # last use, bytes, storage
        for a in self.allocations.values():
            heapq.heappush(self.dead[a.buffer], (a.last, _bytes(a.buffer, a.bytes_per_partition), a.storage))
        self.rest: dict[str, tuple[int, ...]] = {"sbuf": (), "psum": ()}  # last uses of a part not yet taken
        self.users: dict[int, dict[str, int]] = {}
        self.before: dict[int, tuple[int, ...]] = {}

    def touched(self, reads: Sequence[Operand], writes: Sequence[Operand], engine: str, index: int) -> None:
        for operand in (*reads, *writes):
            if operand.region.buffer != "hbm":
                self.users.setdefault(operand.region.storage, {})[engine] = index

    def waits(self, storage: int, index: int) -> tuple[int, ...]:
        """Last uses of the memory that this storage takes over; empty while there is unused memory."""
        allocation = self.allocations.get(storage)
        if allocation is None:
            return ()
        known = self.before.get(storage)
        if known is not None:
            return known
        buffer = allocation.buffer
        need = _bytes(buffer, allocation.bytes_per_partition)
        uses = list(self.rest[buffer]) if self.unused[buffer] else []
        dead = self.dead[buffer]
        while self.unused[buffer] < need and dead and dead[0][0] < index:
            _, freed, former = heapq.heappop(dead)
            self.unused[buffer] += freed
            self.rest[buffer] = tuple(self.users.get(former, {}).values())
            uses += self.rest[buffer]
        self.unused[buffer] -= need
        self.before[storage] = tuple(uses)
        return self.before[storage]


def _bytes(buffer: str, size: int) -> int:
    return -(-size // PSUM_BANK_BYTES) * PSUM_BANK_BYTES if buffer == "psum" else size
