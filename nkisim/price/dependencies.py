"""The earlier instructions that each instruction waits for, because of data hazards or reuse of on-chip memory."""

from __future__ import annotations

import heapq
from array import array
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from nkisim.chip.record import Operand, Region, Trace
from nkisim.hardware import PSUM_BANK_BYTES, PSUM_BANKS, Hardware
from nkisim.price.durations import itemsize

OVERTAKING = frozenset({"dma", "tensor"})  # engines whose instructions may end out of program order


@dataclass(slots=True)
class _Access:
    """Last writer of a region of one storage, its readers since then, and the regions it overlaps."""

    region: Region
    row: tuple[int, int, int] | None  # for a box in HBM: row pitch, and the first and past-last byte within a row
    writer: int = -1
    readers: dict[str | int, int] = field(default_factory=dict)
    overlaps: list[_Access] = field(default_factory=list)


@dataclass(slots=True)
class _Tensor:
    """Reads of one on-chip tile. A write waits for reads by other engines, even of other parts of the tile."""

    reads: list[tuple[str, str | int, int]] = field(default_factory=list)  # engine, its key, and place in the program
    seen: dict[str, int] = field(default_factory=dict)  # writing engine -> number of reads that it has waited for

    def write(self, engine: str) -> set[int]:
        """The reads that a writing instruction waits for: those since the last write by its engine."""
        last = {key: place for e, key, place in self.reads[self.seen.get(engine, 0) :] if e != engine}
        self.seen[engine] = len(self.reads)
        return set(last.values())


@dataclass(slots=True)
class _Storage:
    """The regions of one storage used so far, and their hulls in arrays for searching."""

    accesses: dict[object, _Access] = field(default_factory=dict)
    starts: array[int] = field(default_factory=lambda: array("q"))
    stops: array[int] = field(default_factory=lambda: array("q"))

    def access(self, operand: Operand) -> tuple[_Access, bool]:
        """The record of the operand's region, and whether it is new."""
        region, row = operand.region, _row(operand)
        key = (region.partitions, region.start, region.stop, row)
        known = self.accesses.get(key)
        if known is not None:
            return known, False
        access = _Access(region, row)
        if self.accesses:
            near = np.frombuffer(self.starts, np.int64) < region.stop
            near &= np.frombuffer(self.stops, np.int64) > region.start
            others = list(self.accesses.values()) if near.any() else []
            for place in np.flatnonzero(near):
                other = others[place]
                if _overlap(access, other):
                    access.overlaps.append(other)
                    other.overlaps.append(access)
        access.overlaps.append(access)
        self.accesses[key] = access
        self.starts.append(region.start)
        self.stops.append(region.stop)
        return access, True


def dependencies(trace: Trace, machine: Hardware) -> list[Sequence[int]]:
    """For each instruction, the indices of instructions it waits for: read after write, write after read or write.

    Usually only overlapping parts of a tile cause a wait. A write after reads by other engines waits for all reads of
    the tile (docs/hardware.md#memory). HBM storage that is only read, or only written, causes no waits. If a tile does
    not fit beside the live ones, it reuses the memory of tiles that were last used earlier in the program, and waits
    for that use. A static allocation that cycles through the whole memory behaves in the same way.
    """
    read, written = _storages(trace, "reads"), _storages(trace, "writes")
    tracked = (read & written) | {a.storage for a in trace.allocations if a.buffer != "hbm"}
    seen: dict[int, _Storage] = {}
    tiles: defaultdict[int, _Tensor] = defaultdict(_Tensor)
    reuse = _Reuse(trace, machine)
    explicit: dict[int, list[int]] = {}
    for consumer, producer in trace.dependencies:
        explicit.setdefault(consumer, []).append(producer)
    result: list[Sequence[int]] = []
    for index, instruction in enumerate(trace.instructions):
        before: set[int] = set(explicit.get(index, ()))
        reader: str | int = index if instruction.engine in OVERTAKING else instruction.engine
        for operand in instruction.reads:
            storage = operand.region.storage
            if storage in tracked:
                access, _ = seen.setdefault(storage, _Storage()).access(operand)
                for other in access.overlaps:
                    before.add(other.writer)
                access.readers[reader] = index
            if operand.region.buffer != "hbm":
                tiles[storage].reads.append((instruction.engine, reader, index))
        for operand in instruction.writes:
            storage = operand.region.storage
            if storage in tracked:
                access, new = seen.setdefault(storage, _Storage()).access(operand)
                if new:
                    before.update(reuse.waits(storage, index))
                for other in access.overlaps:
                    before.add(other.writer)
                    before.update(other.readers.values())
                    if _inside(other, access):
                        other.writer = index
                        other.readers.clear()
                access.writer = index
            if operand.region.buffer != "hbm":
                before |= tiles[storage].write(instruction.engine)
        reuse.touched(instruction.reads, instruction.writes, reader, index)
        before.discard(-1)
        before.discard(index)
        result.append(tuple(before))
    return result


def _storages(trace: Trace, side: str) -> set[int]:
    return {o.region.storage for i in trace.instructions for o in getattr(i, side)}


def _row(operand: Operand) -> tuple[int, int, int] | None:
    """Row pitch and byte range within a row, for a 2-D box in HBM, whose hull would also cover its neighbours."""
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


def _inside(inner: _Access, outer: _Access) -> bool:
    """Whether a write to ``outer`` overwrites all of ``inner``."""
    if outer.row and (not inner.row or inner.row[0] != outer.row[0]):
        return False
    if outer.row and inner.row and not (outer.row[1] <= inner.row[1] and inner.row[2] <= outer.row[2]):
        return False
    a, b = inner.region, outer.region
    return (
        b.start <= a.start
        and a.stop <= b.stop
        and b.partitions[0] <= a.partitions[0]
        and a.partitions[1] <= b.partitions[1]
    )


class _Reuse:
    """Allocates memory to every tile in program order, and records the previous owners."""

    def __init__(self, trace: Trace, machine: Hardware) -> None:
        self.unused = {"sbuf": machine.sbuf_bytes_per_partition, "psum": PSUM_BANKS * PSUM_BANK_BYTES}
        self.allocations = {a.storage: a for a in trace.allocations if a.buffer != "hbm"}
        self.dead: dict[str, list[tuple[int, int, int]]] = {"sbuf": [], "psum": []}  # last use, bytes, storage
        for a in self.allocations.values():
            if a.first < 0:  # live before this piece of a program begins, and throughout it
                self.unused[a.buffer] -= _bytes(a.buffer, a.bytes_per_partition)
                continue
            heapq.heappush(self.dead[a.buffer], (a.last, _bytes(a.buffer, a.bytes_per_partition), a.storage))
        self.rest: dict[str, tuple[int, ...]] = {"sbuf": (), "psum": ()}  # last uses of freed memory that is left
        self.users: dict[int, dict[str | int, int]] = {}
        self.before: dict[int, tuple[int, ...]] = {s: () for s, a in self.allocations.items() if a.first < 0}

    def touched(self, reads: Sequence[Operand], writes: Sequence[Operand], reader: str | int, index: int) -> None:
        for operand in (*reads, *writes):
            if operand.region.buffer != "hbm":
                self.users.setdefault(operand.region.storage, {})[reader] = index

    def waits(self, storage: int, index: int) -> tuple[int, ...]:
        """Last uses of the memory that this storage reuses; empty while there is unused memory."""
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
