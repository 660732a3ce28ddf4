"""The run in progress on this core, and ``issue``, the function that every instruction calls.

An instruction is a function with the documented signature. It checks its own constraints and calls ``issue``:

    def negate(dst, src, name=None):                      # an imaginary instruction
        check.on_chip("negate", dst=dst, src=src)         # documented constraints -> SimulatorError
        check.same_size("negate", dst, src=src)

        def compute() -> None:                            # the arithmetic; may run later or never
            dst.write(-src.float32())                     # read() / float32() in, write() converts

        return issue("negate", "vector", {"src": src}, {"dst": dst}, compute, {"op": "negate"}, name)

``reads`` and ``writes`` map parameter names to tensors. Other values are ignored, so an operand may be a scalar or a
tile. List dst in both if it is also read. ``issue`` refuses uninitialised reads, bad start partitions and tensors
of a finished loop, records the instruction, runs ``compute`` (never in trace mode; later in reorder mode), and marks
the written elements initialised. Use values only inside ``compute``. ``keeps`` names written tensors in which
``compute`` may leave elements unchanged; it then calls ``tensor.mark(mask)`` itself. ``state`` names hidden state of
an engine (an accumulator register); instructions that share it stay in order. ``hardware()`` returns the target,
``current()`` the run, and ``note(rule, message)`` adds a note for the lint.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from nkisim.chip import backend
from nkisim.chip.dialects import DEFAULT, SEVEN, Dialect
from nkisim.chip.dtypes import WIDE
from nkisim.chip.errors import HERE, SimulatorError, source_location
from nkisim.chip.indirect import resolve_scalar, rows_of
from nkisim.chip.record import Allocation, Buffer, Engine, Instruction, Loop, Note, Operand, Trace
from nkisim.chip.registers import VirtualRegister
from nkisim.chip.reorder import Pending, Scheduler
from nkisim.chip.sharing import MEETINGS, Contested
from nkisim.chip.strictness import UNINITIALISED, Strictness, refuse
from nkisim.chip.tape import Tape
from nkisim.chip.tensor import NkiTensor
from nkisim.hardware import MACHINES, PARTITIONS, Hardware

if TYPE_CHECKING:
    from types import FrameType

    from nkisim.chip.interfaces import LaunchState

Mode = Literal["run", "trace", "reorder"]
Domains = Literal["refuse", "warn"]
DEFAULT_TARGET = "trn2"
TURNS = 1_000_000  # most iterations of one while_loop: 20 s at 20 µs of device time each
MAX_COUNT = 2**16 - 1  # elements along one dimension of a pattern: uint16
OF_WIDE = ("dma_copy", "scalar_load", "scalar_store")  # instructions of NKI 0.7 that accept int64
MAX_STRIDE = 2**15 - 1  # elements: int16


@dataclass(slots=True)
class Life:
    """An allocation of this run and the instructions that touched it first and last."""

    name: str
    buffer: Buffer
    dtype: str
    shape: tuple[int, ...]
    row_bytes: int
    file: str
    line: int
    address: tuple[int, int] | None
    first: int
    last: int
    loop: LoopRecord | None = None  # the innermost loop in whose body it was allocated

    def allocation(self, ident: int, places: Mapping[int, int]) -> Allocation:
        """The record for the trace; ``places`` maps the id of a LoopRecord to its position among all loops."""
        return Allocation(
            ident, self.name, self.buffer, self.dtype, self.shape, self.row_bytes, self.file, self.line,
            self.first, self.last, self.address, places.get(id(self.loop)),
        )  # fmt: skip


@dataclass(slots=True)
class Scope:
    """One iteration of a device loop: tensors allocated in it cannot be used after it."""

    loop: LoopRecord
    open: bool = True


@dataclass(slots=True)
class LoopRecord:
    """A device loop while it is being recorded."""

    first: int
    stop: int
    executions: int | None
    file: str
    line: int
    constant: bool = False  # both bounds are compile-time constants
    children: list[LoopRecord] = field(default_factory=list)
    cursor: int = 0  # the next child, in iterations after the first


@dataclass(slots=True)
class Run:
    """State of one core's execution of one kernel."""

    kernel: str
    hardware: Hardware
    mode: Mode
    launch: LaunchState
    core: int = 0
    perturb_fp32: bool = False
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    instructions: list[Instruction] = field(default_factory=list)
    lives: dict[int, Life] = field(default_factory=dict)
    notes: dict[Note, None] = field(default_factory=dict)  # an ordered set
    dependencies: list[tuple[int, int]] = field(default_factory=list)
    loops: list[LoopRecord] = field(default_factory=list)
    loop_stack: list[LoopRecord] = field(default_factory=list)
    scopes: list[Scope] = field(default_factory=list)
    repetitions: int | None = 1  # how often the device executes the current code (trace mode); None: unknown
    recording: bool = True  # False from the second iteration of a device loop on
    schedule: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # names of Kernel.with_schedule
    named: dict[str, NkiInstruction] = field(default_factory=dict)
    meetings: int = 0  # number so far with the other core
    shared_allocations: int = 0  # number so far; it matches the nl.shared_hbm tensors of the cores
    ordered: int = 0  # depth of nl.no_reorder blocks
    engine_state: dict[str, Any] = field(default_factory=dict)  # accumulator registers, random generators
    domains: Domains = "refuse"  # the reaction to an activation's input outside the documented range
    nki: Dialect = DEFAULT  # the front end that the kernel is for
    turns: int = TURNS  # most turns of one while_loop
    rules: Mapping[int, Strictness] = field(default_factory=dict)  # rules that are relaxed
    scheduler: Scheduler | None = None
    tape: Tape | None = None  # records the arithmetic, to run it again

    def trace(self) -> Trace:
        """The record of this run, without peaks of memory."""
        places = {id(record): place for place, record in enumerate(self.loops)}
        allocations = tuple(life.allocation(i, places) for i, life in self.lives.items())
        loops = tuple(
            Loop(r.first, r.stop, r.executions, r.file, r.line, "constant" if r.constant else "run time")
            for r in self.loops
        )
        return Trace(
            self.kernel, self.hardware.name, tuple(self.instructions), allocations, self.core, loops,
            tuple(self.notes), tuple(self.dependencies),
        )  # fmt: skip


CURRENT: ContextVar[Run | None] = ContextVar("run", default=None)


def current() -> Run:
    """The run in progress; SimulatorError outside of one."""
    run = CURRENT.get()
    if run is None:
        raise SimulatorError("nki.isa and nki.language work only inside a kernel that is being simulated")
    return run


def since_seven(what: str) -> None:
    """Refuse a feature of NKI 0.7 in a run for an earlier front end."""
    dialect = current().nki
    if dialect != SEVEN:
        raise SimulatorError(f"{what} is NKI 0.7's, traced; the run is for {dialect}", rule=10)


def hardware() -> Hardware:
    """The target of the run in progress, or the default one outside (module-level nl.tile_size)."""
    run = CURRENT.get()
    return MACHINES[DEFAULT_TARGET] if run is None else run.hardware


def note(rule: int, message: str) -> None:
    """Add a note at the kernel's current line to the trace, for the lint."""
    file, line = source_location()
    current().notes[Note(file, line, rule, message)] = None


class NkiInstruction:
    """An instruction that has been issued."""

    __slots__ = ("_pending", "_position", "_run")

    def __init__(self, run: Run, position: int, pending: Pending | None) -> None:
        self._run = run
        self._position = position
        self._pending = pending

    def depends_on(self, *producers: NkiInstruction) -> NkiInstruction:
        """Run this instruction after the producers; returns itself."""
        for producer in producers:
            if producer._position >= self._position:
                raise SimulatorError("depends_on: an instruction can only depend on earlier ones")
            self._run.dependencies.append((self._position, producer._position))
            if self._pending is not None and producer._pending is not None:
                self._pending.after.append(producer._pending)
        return self


def issue(
    opcode: str,
    engine: Engine,
    reads: Mapping[str, Any],
    writes: Mapping[str, Any],
    compute: Callable[[], None] | None = None,
    options: Mapping[str, Any] | None = None,
    name: str | None = None,
    *,
    keeps: tuple[str, ...] = (),
    state: str | None = None,
    skip: bool = False,
) -> NkiInstruction:
    """Check, record and execute one instruction; the module's docstring describes the arguments.

    ``skip``: omit elements whose run-time index is out of bounds, instead of refusing (oob_mode.skip).
    """
    run = CURRENT.get()
    if run is None:
        raise SimulatorError(f"{opcode}: instructions work only inside a kernel that is being simulated")
    sources, targets = _operands(reads), _operands(writes)
    for role, tensor in [*sources, *targets]:
        if tensor.index is not None and isinstance(tensor.index.source, NkiTensor):
            sources.append((f"{role}.index", tensor.index.source))
        if tensor.storage.scope is not None and not tensor.storage.scope.open:
            raise SimulatorError(f"{opcode}: {role} was made inside a device loop that has ended", rule=7)
        if tensor.fault is not None:
            raise SimulatorError(f"{opcode}: {role}: {tensor.fault}", rule=12)
        if tensor.dtype == WIDE and opcode not in OF_WIDE:
            raise SimulatorError(f"{opcode}: {role} is int64; only {' and '.join(OF_WIDE)} accept it", rule=28)
        if engine != "dma" and tensor.storage.buffer != "hbm" and not tensor.checked:
            _check_access(opcode, role, tensor)
            tensor.checked = True
    if run.scheduler is not None and (keeps or _needs_values(run, sources, targets)):
        run.scheduler.flush()
    unsure = [(role, tensor) for role, tensor in sources if not tensor.storage.written.full]
    # Check indices first: an uninitialised index would be reported as out of bounds.
    for role, tensor in sorted(unsure, key=lambda operand: operand[1].index is not None):
        _check_initialised(run, opcode, role, tensor, skip)
    if run.launch.cores.size > 1 and run.mode != "trace":
        compute = _check_sharing(run, opcode, sources, targets, skip, compute)
    for role, tensor in targets:
        if tensor.storage.readonly:
            raise SimulatorError(f"{opcode}: {role} is a constant or a read-only input array and cannot be written")
    position = -1
    if run.recording:
        backend.check_instruction(run, opcode, engine, sources, targets, options or {})
        if engine == "dma":
            backend.check_dma(run, opcode, sources, targets, skip)
        position = _record(run, opcode, engine, sources, targets, options, name)
    if run.tape is not None:
        compute = run.tape.add(opcode, compute, sources, targets, keeps, state)
    pending: Pending | None = None
    if compute is not None and run.mode != "trace":
        if run.scheduler is None or keeps:
            _execute(opcode, compute)
        else:
            regions = [t.region for _, t in sources], [t.region for _, t in targets]
            deferred = partial(_execute, opcode, compute, source_location())
            pending = run.scheduler.add(deferred, *regions, state, bool(run.ordered))
    # A trace has no values, so it cannot know which elements compute keeps: all count as written.
    kept = keeps if run.mode != "trace" else ()
    for role, tensor in targets:
        _mark(run, role, tensor, kept, skip)
    if opcode in MEETINGS:
        run.meetings += 1
    handle = NkiInstruction(run, position, pending)
    if name and run.schedule and run.recording:
        run.named[name] = handle
        handle.depends_on(*[run.named[p] for p in run.schedule.get(name, ()) if p in run.named])
    return handle


def _check_sharing(
    run: Run,
    opcode: str,
    sources: list[tuple[str, NkiTensor]],
    targets: list[tuple[str, NkiTensor]],
    skip: bool,
    compute: Callable[[], None] | None,
) -> Callable[[], None] | None:
    """Refuse unordered accesses of two cores to shared HBM; two writes of equal bytes are allowed."""
    ownership = run.launch.ownership
    for role, tensor in sources:
        if tensor.storage.shared:
            why = ownership.check(tensor, f"{opcode}: {role}", run.core, run.meetings, skip)
            if why:
                refuse(run, 37, why)
    contested: list[Contested] = []
    for role, tensor in targets:
        if tensor.storage.shared and opcode not in MEETINGS:
            contested += ownership.claim(tensor, f"{opcode}: {role}", run.core, run.meetings, skip)
    if not contested or compute is None:
        return compute
    execute = compute

    def compare() -> None:
        before = [[np.array(view.array()).tobytes() for view in one.views] for one in contested]
        execute()
        for one, old in zip(contested, before, strict=True):
            if [np.array(view.array()).tobytes() for view in one.views] != old:
                refuse(run, 37, one.message)

    return compare


def _operands(tensors: Mapping[str, Any]) -> list[tuple[str, NkiTensor]]:
    return [(role, tensor) for role, tensor in tensors.items() if isinstance(tensor, NkiTensor)]


def _execute(opcode: str, compute: Callable[[], None], location: tuple[str, int] | None = None) -> None:
    """Run an instruction's arithmetic; an error inside NumPy becomes a SimulatorError with the kernel's line.

    ``location`` is the kernel's line that issued the instruction, if its frame is no longer on the stack.
    """
    try:
        compute()
    except SimulatorError as error:
        if location is not None:
            error.file, error.line = location
        raise
    except Exception as error:  # NumPy may raise any exception for a kernel's operands
        file, line = location or source_location()
        raise SimulatorError(f"{opcode}: {type(error).__name__}: {error}", file=file, line=line) from error


def _record(
    run: Run,
    opcode: str,
    engine: Engine,
    sources: list[tuple[str, NkiTensor]],
    targets: list[tuple[str, NkiTensor]],
    options: Mapping[str, Any] | None,
    name: str | None,
) -> int:
    """Append the instruction to the trace and extend the lives of its operands. Returns its position."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith(HERE):
        frame = frame.f_back
    file, line = ("", 0) if frame is None else (frame.f_code.co_filename, frame.f_lineno)
    facts = dict(options) if options else {}
    if name:
        facts["name"] = name
    read: tuple[Operand, ...] = tuple([t.operand(role) for role, t in sources])
    written: tuple[Operand, ...] = tuple([t.operand(role) for role, t in targets])
    position = len(run.instructions)
    run.instructions.append(Instruction(opcode, engine, file, line, read, written, MappingProxyType(facts)))
    lives = run.lives
    for _, tensor in (*sources, *targets):
        storage = tensor.storage
        life = lives.get(storage.ident)
        if life is None:
            lives[storage.ident] = Life(
                storage.name, storage.buffer, storage.dtype, storage.shape, storage.row_bytes,
                storage.file, storage.line, storage.address, position, position,
                None if storage.scope is None else storage.scope.loop,
            )  # fmt: skip
        else:
            life.last = position
    return position


def _check_access(opcode: str, role: str, tensor: NkiTensor) -> None:
    """Check start partition and pattern limits of the compute engines (trainium_inferentia2_arch.rst)."""
    first, stop = tensor.partitions
    count = stop - first
    if count > PARTITIONS:
        raise SimulatorError(f"{opcode}: {role} spans {count} partitions, an engine reads {PARTITIONS}", rule=12)
    allowed = (0,) if count > 64 else (0, 64) if count > 32 else (0, 32, 64, 96)
    if first not in allowed:
        raise SimulatorError(
            f"{opcode}: {role} of {count} partitions starts at partition {first}; "
            f"it must start at {' or '.join(map(str, allowed))}",
            rule=12,
        )
    sizes: list[tuple[int, int]] = []  # effective free dimensions: [stride, count], inner first
    for stride, extent in zip(reversed(tensor.strides[1:]), reversed(tensor.shape[1:]), strict=True):
        if extent == 1:
            continue
        if sizes and stride == sizes[-1][0] * sizes[-1][1]:
            sizes[-1] = (sizes[-1][0], sizes[-1][1] * extent)
        else:
            sizes.append((stride, extent))
    for stride, extent in sizes:
        if extent > MAX_COUNT or (stride > MAX_STRIDE and extent > 1):
            raise SimulatorError(
                f"{opcode}: {role} walks {extent} elements of stride {stride}; counts are 16-bit, strides int16",
                rule=12,
            )


def _needs_values(run: Run, sources: list[tuple[str, NkiTensor]], targets: list[tuple[str, NkiTensor]]) -> bool:
    """Whether a check depends on run-time indices; if so, earlier instructions must execute first."""
    indirect = [t for _, t in (*sources, *targets) if t.index is not None]
    return any(run.launch.cores.size > 1 or not t.storage.written.full for t in indirect)


def _check_initialised(run: Run, opcode: str, role: str, tensor: NkiTensor, skip: bool) -> None:
    """Refuse a read of elements that nothing has written."""
    if run.rules.get(UNINITIALISED) == "off":
        return
    written = tensor.storage.written
    view: NkiTensor | None = tensor
    if tensor.index is not None:
        if run.mode == "trace":
            return
        if tensor.index.kind == "vector":
            table, rows, valid = rows_of(tensor, skip)
            missing = rows[valid][~written.rows(table, rows[valid])]
            if missing.size:
                _refuse_uninitialised(run, opcode, role, tensor, f"row {missing[0]} of its storage")
            return
        view = resolve_scalar(tensor, skip)
    if view is not None and not written.covers(view):
        _refuse_uninitialised(run, opcode, role, tensor, f"element {list(written.first_missing(view))}")


def _refuse_uninitialised(run: Run, opcode: str, role: str, tensor: NkiTensor, where: str) -> None:
    if run.rules.get(UNINITIALISED) == "propagate":
        run.launch.garbage = True
        return
    storage = tensor.storage
    message = f"{opcode}: {role} is uninitialised at {where} of {tensor!r}, allocated in line {storage.line}"
    refuse(run, UNINITIALISED, message)


def _mark(run: Run, role: str, tensor: NkiTensor, keeps: tuple[str, ...], skip: bool) -> None:
    """Mark the elements of a write as initialised and as not written by a matrix product."""
    storage = tensor.storage
    if storage.products is not None:
        storage.products.discard(tensor)
    if role in keeps or storage.written.full:
        return
    if tensor.index is None:
        storage.written.add(tensor)
    elif run.mode != "trace":
        if tensor.index.kind == "vector":
            table, rows, valid = rows_of(tensor, skip)
            storage.written.add_rows(table, rows[valid])
        else:
            view = resolve_scalar(tensor, skip)
            if view is not None:
                storage.written.add(view)


def register_value(register: VirtualRegister, what: str) -> int | None:
    """Value of a register that an instruction reads; None in trace-only mode."""
    if not register.initialised:
        raise SimulatorError(f"{what}: the register is read before it holds a value", rule=16)
    return register.value
