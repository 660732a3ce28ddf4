"""The start time of each instruction in a trace: in-order engines, dependencies, 16 DMA queues, PE throttle."""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter, defaultdict, deque
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace

from nkisim.chip.record import Allocation, Instruction, Trace
from nkisim.hardware import Hardware
from nkisim.price.dependencies import dependencies
from nkisim.price.durations import (
    DMA_ENGINES,
    FULL_RATE_BYTES,
    Duration,
    Transfer,
    compute_duration,
    hops_s,
    tensor_duration,
    transfer,
)

RINGS = frozenset({"sync ring", "scalar ring", "software ring"})
REORDERED = RINGS | {"tensor"}  # the compiler may change their order
SHARED = {"psum": ("vector", "scalar"), "sbuf": ("vector", "gpsimd")}  # one of these engines at a time, on trn1 (arch)


@dataclass(frozen=True, slots=True)
class Schedule:
    """Start and end of every instruction in modelled seconds, and the bytes moved and the time lost."""

    start: tuple[float, ...]
    end: tuple[float, ...]
    transfers: tuple[Transfer | None, ...]
    queue_s: float  # total of the 16 DMA queues
    throttled_s: float  # TensorEngine time lost to the dI/dt limit
    table_loads: int
    table: str | None  # ScalarEngine's function table at the end
    begins: tuple[tuple[float, ...], ...] = ()  # start of each transfer on each of its queues, if requested

    @property
    def total_s(self) -> float:
        return max(self.end, default=0.0)


def schedule(
    trace: Trace, machine: Hardware, table: str | None = None, crowded: bool = False, queues: bool = False
) -> Schedule:
    """Run the trace on the model of one NeuronCore, in time proportional to its length.

    ``table`` is ScalarEngine's function table at the start. ``crowded``: transfers have filled the part of SBUF that
    they write at full speed. ``queues``: also return the start of each transfer on each of its queues.

    Vector, Scalar and GpSimd engines execute in program order. The compiler distributes transfers over rings and
    interleaves matrix products over banks (in published profiles TensorEngine is busy while one bank waits for its
    operands). On a ring and on TensorEngine, the earliest instruction whose operands are ready starts first.
    """
    return _Run(trace, machine, table, crowded, queues).run()


class _Throttle:
    """The dI/dt limit: half speed until the engine has been busy for half of the documented window."""

    def __init__(self, machine: Hardware) -> None:
        timing = machine.timing
        self.window = timing.throttle_window_s
        self.needed = timing.throttle_utilisation * timing.throttle_window_s
        self.factor = timing.throttle_factor
        self.recent: deque[tuple[float, float, float]] = deque()  # start, end, useful seconds
        self.useful = 0.0
        self.lost = 0.0

    def stretch(self, start: float, busy: float) -> float:
        """Seconds that a product takes from ``start``; ``busy`` is its time without throttling."""
        if not self.window:
            return busy
        recent, opens = self.recent, start - self.window
        while recent and recent[0][1] <= opens:
            self.useful -= recent.popleft()[2]
        useful = self.useful
        if recent and recent[0][0] < opens:
            first = recent[0]
            useful -= first[2] * (opens - first[0]) / (first[1] - first[0])
        # An engine at half speed is busy exactly half of the time: rounding must not keep it there.
        taken = busy if useful >= self.needed * (1 - 1e-6) else busy * self.factor
        recent.append((start, start + taken, busy))
        self.useful += busy
        self.lost += taken - busy
        return taken


class _Run:
    """State of one scheduling pass: the time at which each unit is free, and the dependencies still open."""

    def __init__(self, trace: Trace, machine: Hardware, table: str | None, crowded: bool, queues: bool) -> None:
        self.instructions = trace.instructions
        self.machine = machine
        count = len(self.instructions)
        self.start = [0.0] * count
        self.end = [0.0] * count
        self.transfers: list[Transfer | None] = [None] * count
        self.begins: list[tuple[float, ...]] = [()] * count if queues else []
        self.ready = [0.0] * count
        self.after: list[list[int]] = [[] for _ in range(count)]
        self.waiting = [0] * count
        for index, before in enumerate(dependencies(trace, machine)):
            self.waiting[index] = len(before)
            for earlier in before:
                self.after[earlier].append(index)
        self.free: dict[str, float] = {}
        self.shared = [_shared(x, machine) for x in trace.instructions]
        self.memories: dict[str, tuple[str, float]] = {}  # the last engine that used it, and the end of that use
        self.lanes = _lanes(trace, machine)
        lanes = set(self.lanes)
        self.queued: dict[str, deque[int]] = {lane: deque() for lane in lanes - REORDERED}
        self.coming: dict[str, list[tuple[float, int]]] = {lane: [] for lane in lanes & REORDERED}  # by ready time
        self.startable: dict[str, list[int]] = {lane: [] for lane in lanes & REORDERED}  # by place in the program
        self.queues = [0.0] * DMA_ENGINES
        self.queue_s = 0.0
        self.throttle = _Throttle(machine)
        self.table = table
        self.crowded_factor = machine.timing.dma_written_factor if crowded else 1.0
        self.table_loads = 0
        self.durations: dict[object, Duration] = {}
        self.moved: dict[object, Transfer] = {}

    def run(self) -> Schedule:
        for index, lane in enumerate(self.lanes):
            if lane in self.queued:
                self.queued[lane].append(index)
            elif not self.waiting[index]:
                heapq.heappush(self.coming[lane], (0.0, index))
        lanes = (*self.coming, *self.queued)
        for _ in self.instructions:
            now, lane = min((self._opens(lane), lane) for lane in lanes)
            index = self._take(lane, now)
            if self.instructions[index].engine == "dma":
                self._move(index)
            else:
                self._compute(index)
            self._release(index)
        return Schedule(
            tuple(self.start),
            tuple(self.end),
            tuple(self.transfers),
            self.queue_s,
            self.throttle.lost,
            self.table_loads,
            self.table,
            tuple(self.begins),
        )

    def _opens(self, lane: str) -> float:
        """The earliest time at which the engine or ring can start its next instruction, as known now."""
        free = self.free.get(lane, 0.0)
        if lane in self.queued:
            queue = self.queued[lane]
            if not queue or self.waiting[queue[0]]:
                return math.inf
            return max(free, self.ready[queue[0]], self._admitted(queue[0]))
        if lane in RINGS:
            free = max(free, min(self.queues) - self.machine.timing.dma_start_s)
        if self.startable[lane]:
            return free
        return max(free, self.coming[lane][0][0]) if self.coming[lane] else math.inf

    def _admitted(self, index: int) -> float:
        """The time at which no other engine uses the instruction's memories."""
        engine, at = self.instructions[index].engine, 0.0
        for memory in self.shared[index]:
            last, until = self.memories.get(memory, (engine, 0.0))
            if last != engine:
                at = max(at, until + self.machine.timing.semaphore_s)
        return at

    def _take(self, lane: str, now: float) -> int:
        if lane in self.queued:
            return self.queued[lane].popleft()
        coming, startable = self.coming[lane], self.startable[lane]
        while coming and coming[0][0] <= now:
            heapq.heappush(startable, heapq.heappop(coming)[1])
        return heapq.heappop(startable)

    def _release(self, index: int) -> None:
        """Give this instruction's end to those that wait for it."""
        timing = self.machine.timing
        instructions, engine, end = self.instructions, self.instructions[index].engine, self.end[index]
        for later in self.after[index]:
            other = instructions[later].engine
            if engine == other == "tensor":
                at = self.free[engine]  # products that add to one bank stream through the array
            elif engine == other or engine == "dma":
                at = end
            elif other == "dma":
                at = end + timing.dma_wait_s
            else:
                at = end + timing.semaphore_s
            if at > self.ready[later]:
                self.ready[later] = at
            self.waiting[later] -= 1
            if not self.waiting[later] and self.lanes[later] in self.coming:
                heapq.heappush(self.coming[self.lanes[later]], (self.ready[later], later))

    def _compute(self, index: int) -> None:
        instruction = self.instructions[index]
        engine = instruction.engine
        key = _signature(instruction)
        duration = self.durations.get(key)
        if duration is None:
            duration = self.durations[key] = _duration(instruction, self.machine)
        start = max(self.free.get(engine, 0.0), self.ready[index], self._admitted(index))
        busy = duration.busy_s
        if engine == "tensor":
            busy = self.throttle.stretch(start, busy)
        elif engine == "scalar":
            table = instruction.options.get("table")
            if table is not None and table != self.table:
                self.table = table
                self.table_loads += 1
                start += self.machine.timing.table_load_s
        self.start[index] = start
        self.free[engine] = start + busy
        for memory in self.shared[index]:
            self.memories[memory] = engine, start + busy
        self.end[index] = start + busy + duration.latency_s

    def _move(self, index: int) -> None:
        instruction, timing = self.instructions[index], self.machine.timing
        key = _signature(instruction)
        moved = self.moved.get(key)
        if moved is None:
            moved = transfer(instruction, self.machine)
            if instruction.writes[0].region.buffer == "sbuf":
                moved = replace(moved, engine_s=moved.engine_s * self.crowded_factor)
            self.moved[key] = moved
        self.transfers[index] = moved
        pool = moved.software or bool(timing.pool_trigger_s)
        generator = "gpsimd" if pool else self.lanes[index]
        generation = _generation_s(instruction, moved, self.machine)
        trigger = max(self.ready[index], self.free.get(generator, 0.0))
        self.free[generator] = trigger + generation
        opens = trigger + timing.dma_start_s + (generation if pool else 0.0)
        queues, first, last = self.queues, float("inf"), 0.0
        if self.begins:
            places = enumerate(moved.engines)
            self.begins[index] = tuple(max(queues[e], opens + place * timing.dma_stagger_s) for place, e in places)
        for place, engine in enumerate(moved.engines):
            begins = opens + place * timing.dma_stagger_s
            if queues[engine] > begins:
                begins = queues[engine]
            finishes = begins + moved.engine_s
            queues[engine] = finishes
            if begins < first:
                first = begins
            if finishes > last:
                last = finishes
        if instruction.options.get("dge") == "hwdge":
            self.free[generator] = max(trigger + generation, last - timing.dma_start_s)
        self.queue_s += moved.engine_s * len(moved.engines)
        self.start[index] = first
        self.end[index] = max(last, first + timing.dma_floor_s) + hops_s(instruction, self.machine)


def _lanes(trace: Trace, machine: Hardware) -> list[str]:
    """The executor of each instruction: its engine, or the ring of its transfer.

    On trn1 GpSimd issues every DMA (docs/hardware.md#dma). Later NeuronCores have two descriptor generators,
    behind SyncE and ScalarE (trainium2_arch.rst). The compiler's choice between them is not documented. In this model,
    transfers whose generator the compiler chooses alternate; of the others, loads use one and stores the other.
    """
    lanes: list[str] = []
    turns = itertools.cycle(("sync ring", "scalar ring"))
    for instruction in trace.instructions:
        engine, dge = instruction.options.get("engine"), instruction.options.get("dge")
        if instruction.engine != "dma":
            lane: str = instruction.engine
        elif dge == "swdge" or machine.timing.pool_trigger_s:
            lane = "software ring"
        elif engine is None and dge == "unknown":
            lane = next(turns)
        else:
            stores = any(o.region.buffer == "hbm" for o in instruction.writes)
            lane = "scalar ring" if engine == "scalar" or (engine is None and stores) else "sync ring"
        lanes.append(lane)
    return lanes


def _shared(instruction: Instruction, machine: Hardware) -> tuple[str, ...]:
    """The memories of an instruction that only one of two engines can use at a time."""
    if not machine.timing.one_at_a_time:
        return ()
    used = {o.region.buffer for o in (*instruction.reads, *instruction.writes)}
    return tuple(m for m, engines in SHARED.items() if m in used and instruction.engine in engines)


def _generation_s(instruction: Instruction, moved: Transfer, machine: Hardware) -> float:
    """The least seconds during which one transfer's descriptors occupy their generator.

    A hardware generator stores no descriptors (trainium2_arch.rst), so _move also occupies it until the last descriptor
    is done: in three published profiles the transfers of such a ring follow one another, at 152.8, 151.9 and
    245.8 GB/s. The descriptors that GpSimd writes for plain copies are ready within dma_start_s, as measured for such a
    transfer (overview, figure 6). If the compiler chooses, published transfers are static (overview, example 1),
    started by GpSimd (example 2, matmul tutorial) or started by SyncE (skills). The model charges them the hardware's
    time to start, but lets them keep the queues full.
    """
    timing = machine.timing
    if moved.software or timing.pool_trigger_s:
        if not instruction.options.get("indirect"):
            return timing.pool_trigger_s
        # An address from one register shifts all descriptors equally. A vector of addresses is read one descriptor at a
        # time, so that short rows follow one another (docs/hardware.md#dma).
        each_s = timing.software_descriptor_s if moved.software else 0.0
        if moved.software and moved.descriptor_bytes < FULL_RATE_BYTES:
            each_s += moved.descriptor_bytes / machine.dma_bytes_per_s
        return max(timing.software_dge_s, moved.descriptors * each_s)
    return 0.0 if instruction.options.get("dge") == "none" else timing.descriptor_generation_s


def _duration(instruction: Instruction, machine: Hardware) -> Duration:
    if instruction.engine == "tensor":
        return tensor_duration(instruction, machine)
    if instruction.engine == "sync" or not (instruction.reads or instruction.writes):
        return Duration(machine.timing.semaphore_s, 0.0)
    return compute_duration(instruction, machine)


def _signature(instruction: Instruction) -> object:
    """The key of a duration: shapes, types, layout and buffers, but not the location of the data."""
    options = instruction.options
    return (
        instruction.opcode,
        instruction.engine,
        tuple(
            (o.role, o.dtype, o.shape, o.strides, o.region.buffer, o.region.partitions)
            for o in (*instruction.reads, *instruction.writes)
        ),
        str(options.get("perf_mode", "")),
        bool(options.get("is_transpose")),
        bool(options.get("is_stationary_onezero")) or bool(options.get("is_moving_onezero")),
        options.get("dge"),
        bool(options.get("reduce_res")),
    )


def crowded(lives: Sequence[Allocation], written: Container[int], machine: Hardware) -> bool:
    """Whether the live tiles that transfers have ``written`` exceed the part of SBUF that they write at full speed."""
    limit = machine.timing.dma_written_bytes
    events: defaultdict[int, int] = defaultdict(int)
    for a in lives:
        if limit and a.buffer == "sbuf" and a.storage in written:
            events[a.first] += a.bytes_per_partition
            events[a.last + 1] -= a.bytes_per_partition
    return max(itertools.accumulate(events[at] for at in sorted(events)), default=0) >= limit if events else False


def written_by_transfers(trace: Trace) -> frozenset[int]:
    """Tiles of SBUF that a DMA writes only once. Tiles that it writes repeatedly keep the full rate."""
    moves = (x for x in trace.instructions if x.engine == "dma")
    times = Counter(o.region for x in moves for o in x.writes if o.region.buffer == "sbuf")
    return frozenset(r.storage for r, n in times.items() if n == 1)


def covered(spans: Sequence[tuple[float, float]]) -> float:
    """Seconds during which at least one span is open."""
    total, reach = 0.0, 0.0
    for start, end in sorted(spans):
        if end > reach:
            total += end - max(start, reach)
            reach = end
    return total
