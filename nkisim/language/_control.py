"""A kernel's control flow: loops, launch grid, predicates of buffers, and ordering."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from nkisim.chip import backend
from nkisim.chip.context import LoopRecord, Run, Scope, current, note, register_value
from nkisim.chip.dialects import SEVEN
from nkisim.chip.dtypes import WIDE
from nkisim.chip.errors import SimulatorError, source_location
from nkisim.chip.names import MemoryRegion
from nkisim.chip.registers import NkiScalar, VirtualRegister
from nkisim.chip.strictness import doubt
from nkisim.chip.views import DynamicSlice

__all__ = [
    "affine_range", "ds", "dynamic_range", "fori_loop", "is_hbm", "is_on_chip", "is_psum", "is_sbuf", "no_reorder",
    "num_programs", "program_id", "program_ndim", "sequential_range", "static_range", "while_loop",
]  # fmt: skip


def ds(start: Any, size: int) -> DynamicSlice:
    """A slice of ``size`` elements that starts at an integer or a register."""
    return DynamicSlice(start, size)


def affine_range(start: int, stop: int | None = None, step: int = 1) -> range:
    """Python's range: the loop is unrolled."""
    if any(isinstance(bound, VirtualRegister) for bound in (start, stop, step)):
        raise SimulatorError("a register as the bound of a static loop: use nl.fori_loop", rule=6)
    return range(start) if stop is None else range(start, stop, step)


sequential_range = affine_range
static_range = affine_range


def dynamic_range(start: Any, stop: Any = None, step: int = 1) -> Iterator[VirtualRegister]:
    """A device loop in the syntax that 0.6 deprecates; the loop variable is a register."""
    run = current()
    if run.nki == SEVEN:
        raise SimulatorError("nl.dynamic_range was removed in NKI 0.7: use nl.fori_loop", rule=6)
    note(6, "nl.dynamic_range is deprecated, and removed in 0.7: use nl.fori_loop")
    lower, upper = (0, start) if stop is None else (start, stop)
    values, executions = _trips(run, lower, upper, step, "dynamic_range")
    with _device_loop(run) as record:
        for value in values:
            with _iteration(run, record, executions):
                yield VirtualRegister(value, frozen=True)


def fori_loop(lower: Any, upper: Any, body_fun: Callable[[VirtualRegister], Any], step: int = 1) -> None:
    """Device loop over range(lower, upper, step), bounds integers or registers.

    The body runs once per iteration with a new read-only register (in 0.7 a scalar, if no bound is a register)
    and is recorded once. Tensors made in it cannot be used outside. In trace-only mode it runs once.
    """
    run = current()
    values, executions = _trips(run, lower, upper, step, "fori_loop")
    constant = isinstance(lower, int) and isinstance(upper, int)
    if run.recording and constant:
        message = "the compiler may write out a loop with constant bounds, and both ways are priced"
        doubt(run, 57, f"{message}: pass nisa.register_alloc(bound), or use Python's range")
    registers = [b for b in (lower, upper) if isinstance(b, VirtualRegister) and not isinstance(b, NkiScalar)]
    scalars = run.nki == SEVEN and not registers
    with _device_loop(run) as record:
        record.constant = constant
        for value in values:
            with _iteration(run, record, executions):
                returned = body_fun(NkiScalar(value) if scalars else VirtualRegister(value, frozen=True))
            if returned is not None:
                raise SimulatorError("fori_loop: the body returns a value; it must write its results to memory", rule=7)


def while_loop(init: VirtualRegister, body_fun: Callable[[VirtualRegister], VirtualRegister]) -> None:
    """Device loop while a register is not zero: the body receives its value and returns the next one."""
    run = current()
    if not isinstance(init, VirtualRegister):
        raise SimulatorError(f"while_loop: init is {type(init).__name__}; a register is needed", rule=6)
    condition = register_value(init, "while_loop")
    turns = 0
    with _device_loop(run) as record:
        while condition is None or condition != 0:
            with _iteration(run, record, None if run.mode == "trace" else 1):
                following = body_fun(VirtualRegister(condition, frozen=False))
            turns += 1
            if turns >= run.turns:
                raise SimulatorError(
                    f"while_loop: not done after {turns} turns: does the condition ever become 0?", rule=7
                )
            if not isinstance(following, VirtualRegister):
                raise SimulatorError("while_loop: the body must return the next condition register", rule=7)
            if run.mode == "trace":
                break
            condition = register_value(following, "while_loop")


def _trips(run: Run, lower: Any, upper: Any, step: Any, what: str) -> tuple[Iterable[int | None], int | None]:
    """Values of the loop variable to run with, and the number of executions that each value represents."""
    if isinstance(step, bool) or not isinstance(step, int) or step < 1:
        raise SimulatorError(f"{what}: step {step!r} must be a positive compile-time integer", rule=6)
    bounds = []
    for bound in (lower, upper):
        backend.check_bound(bound, what)
        if isinstance(bound, NkiScalar) and bound.dtype == WIDE:
            raise SimulatorError(f"{what}: an int64 scalar cannot be a bound; load an int32 scalar", rule=6)
        if isinstance(bound, VirtualRegister):
            bounds.append(register_value(bound, what))
        elif isinstance(bound, int) and not isinstance(bound, bool):
            bounds.append(bound)
        else:
            raise SimulatorError(f"{what}: bound {bound!r} must be an integer or a register", rule=6)
    first, last = bounds
    if first is None or last is None:
        return [None], None
    values = range(first, last, step)
    if run.mode == "trace" and len(values):
        return [None], len(values)
    return values, 1


@contextmanager
def _device_loop(run: Run) -> Iterator[LoopRecord]:
    """Open the record of a loop: a new one, or its record from an earlier iteration of the loop around it."""
    if run.recording:
        backend.check_nesting(run)
    if run.ordered:
        raise SimulatorError("a device loop inside nl.no_reorder: put nl.no_reorder inside the loop's body", rule=7)
    parent = run.loop_stack[-1] if run.loop_stack else None
    if run.recording:
        file, line = source_location()
        start = len(run.instructions)
        record = LoopRecord(start, start, 0, file, line)
        run.loops.append(record)
        if parent is not None:
            parent.children.append(record)
    else:
        assert parent is not None
        if parent.cursor >= len(parent.children):
            raise SimulatorError("a device loop differs between iterations of the loop around it", rule=7)
        record = parent.children[parent.cursor]
        parent.cursor += 1
    run.loop_stack.append(record)
    recorded = run.recording
    try:
        yield record
    finally:
        run.recording = recorded
        run.loop_stack.pop()
        if recorded:
            _keep_alive(run, record)


@contextmanager
def _iteration(run: Run, record: LoopRecord, executions: int | None) -> Iterator[None]:
    """One run of a loop's body, which represents ``executions`` runs on the device."""
    scope = Scope(record)
    run.scopes.append(scope)
    outer = run.repetitions
    run.repetitions = None if outer is None or executions is None else outer * executions
    record.cursor = 0
    try:
        yield
    finally:
        if record.executions is not None:
            record.executions = None if run.repetitions is None else record.executions + run.repetitions
        run.repetitions = outer
        run.scopes.pop()
        scope.open = False
        if run.recording:
            record.stop = len(run.instructions)
            run.recording = False


def _keep_alive(run: Run, record: LoopRecord) -> None:
    """Extend the life of each tensor that a loop uses to the whole loop (nki-dynamic-loops.rst, "Register Allocation").

    A tensor that was made in the body of an inner loop is live only during that loop.
    """
    if record.stop == record.first:
        return
    inside = range(record.first, record.stop)
    for life in run.lives.values():
        if life.loop is not None and life.loop is not record and life.loop.first >= record.first:
            continue
        if life.first in inside:
            life.first = record.first
        if life.last in inside:
            life.last = record.stop - 1


@contextmanager
def no_reorder() -> Iterator[None]:
    """Instructions of the block execute in program order."""
    run = current()
    run.ordered += 1
    try:
        yield
    finally:
        run.ordered -= 1


def program_id(axis: int = 0) -> int:
    """Index of this core in the launch."""
    _check_axis(axis)
    return current().core


def num_programs(axes: int = 0) -> int:
    """Number of cores of the launch."""
    _check_axis(axes)
    return int(current().launch.cores.size)


def program_ndim() -> int:
    """1 when the kernel was launched with a grid, kernel[lnc], else 0."""
    return int(current().launch.grid)


def _check_axis(axis: Any) -> None:
    if axis not in (0, None):
        raise SimulatorError(f"axis {axis!r}: the launch grid has one axis, 0", rule=37)


def is_hbm(buffer: Any) -> bool:
    return buffer in (MemoryRegion.private_hbm, MemoryRegion.shared_hbm)


def is_psum(buffer: Any) -> bool:
    return bool(buffer == MemoryRegion.psum)


def is_sbuf(buffer: Any) -> bool:
    return bool(buffer == MemoryRegion.sbuf)


def is_on_chip(buffer: Any) -> bool:
    return is_psum(buffer) or is_sbuf(buffer)
