"""Launches a kernel on the simulator: arguments in, one run per core, outputs and traces out."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from nkisim.chip.backend import check_cores, check_program, check_size, check_stored
from nkisim.chip.context import CURRENT, DEFAULT_TARGET, TURNS, Domains, Mode, Run, current
from nkisim.chip.core_threads import CoreGroup
from nkisim.chip.dialects import DEFAULT, DIALECTS, PARSER, SEVEN, Dialect
from nkisim.chip.dtypes import STORAGE, WIDE, Array, dtype_name
from nkisim.chip.errors import KERNEL, SimulatorError
from nkisim.chip.memory import Storage, check_capacity, fresh
from nkisim.chip.objects import NKIObject
from nkisim.chip.record import Buffer, Trace
from nkisim.chip.reorder import Scheduler
from nkisim.chip.sharing import Ownership
from nkisim.chip.strictness import BEYOND, UNINITIALISED, Strictness, checked, refuse
from nkisim.chip.tape import Tape
from nkisim.chip.tensor import NkiTensor, whole
from nkisim.hardware import MACHINES, Hardware
from nkisim.lint.source import lint_source
from nkisim.run.torch_arrays import as_array, as_tensor, is_tensor

TARGETS = {
    "trn1": "trn1", "inf2": "trn1", "gen2": "trn1",
    "trn2": "trn2", "gen3": "trn2", "trn3": "trn3", "gen4": "trn3",
}  # fmt: skip
MODES: tuple[Mode, ...] = ("run", "trace", "reorder")
LNC_DEGREES = (1, 2)  # physical cores of one logical NeuronCore


@dataclass(frozen=True, slots=True)
class Specification:
    """Shape and dtype of an argument without data, for trace-only launches."""

    shape: tuple[int, ...]
    dtype: Any = np.float32


@dataclass(frozen=True, slots=True)
class Result:
    """Outputs of a launch (None in trace-only mode), one trace per core, and shapes and dtypes of the outputs."""

    outputs: Any
    traces: tuple[Trace, ...]
    returned: tuple[Specification, ...] = ()

    @property
    def trace(self) -> Trace:
        return self.traces[0]


class _Docstring:
    """The kernel function's docstring, on the object that ``nki.jit`` returns; a class keeps its own docstring."""

    def __init__(self, own: str | None) -> None:
        self.own = own

    def __get__(self, kernel: Kernel | None, owner: type) -> str | None:
        return self.own if kernel is None else kernel.function.__doc__


@dataclass(frozen=True, slots=True)
class Kernel:
    """The result of ``nki.jit``: a kernel function and the number of cores of its launch."""

    __doc__ = _Docstring(__doc__)
    function: Callable[..., Any]
    lnc: int = 1
    grid: bool = False  # whether it was indexed, as kernel[lnc]
    target: str = DEFAULT_TARGET  # for a direct call
    schedule: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # instruction -> its predecessors

    @property
    def __name__(self) -> str:
        return self.function.__name__

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        """The function, in which ``inspect`` finds the signature and the source."""
        return self.function

    def __getitem__(self, lnc: Any) -> Kernel:
        degree = lnc[0] if isinstance(lnc, tuple) and len(lnc) == 1 else lnc
        if degree not in LNC_DEGREES:
            raise SimulatorError(f"{self.__name__}[{lnc}]: the launch grid is the LNC degree, 1 or 2", rule=37)
        return replace(self, lnc=degree, grid=True)

    def with_schedule(self, edges: Sequence[tuple[str, str | Sequence[str]]]) -> Kernel:
        """The kernel with further dependencies: pairs of an instruction's name and the names of its predecessors.

        Source: how-to-scheduling-apis.rst. A name is the ``name=`` of an instruction. The kernel must issue an
        instruction after its predecessors, because this simulator schedules in program order.
        """
        schedule = dict(self.schedule)
        for consumer, producers in edges:
            before = (producers,) if isinstance(producers, str) else tuple(producers)
            schedule[consumer] = (*schedule.get(consumer, ()), *before)
        return replace(self, schedule=schedule)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        run = CURRENT.get()
        if run is not None:
            refuse(run, 5, f"{self.__name__} is decorated with nki.jit and is called from a kernel: undecorate it")
            return self.function(*args, **kwargs)
        return Simulation(self, self.target)(*args, **kwargs)


@dataclass(slots=True)
class Launch:
    """The state that the cores of one launch share: storage numbers and shared memory."""

    hardware: Hardware
    mode: Mode
    cores: CoreGroup
    grid: bool = False
    nki: Dialect = DEFAULT
    torch: bool = False  # whether an argument is a torch tensor; if so, the outputs are torch tensors
    widened: frozenset[tuple[str, int]] = frozenset()  # file and line of tiles to make in float32 (precision.py)
    garbage: bool = False  # whether uninitialised data was read
    other: bool = False  # whether fresh memory holds the values of a second run
    ownership: Ownership = field(default_factory=Ownership)
    idents: Any = field(default_factory=itertools.count)
    shared: dict[Any, Storage] = field(default_factory=dict)  # key: order of allocation, or the constant
    inputs: dict[Any, Storage] = field(default_factory=dict)  # key: the memory
    arguments: list[Storage] = field(default_factory=list)
    made: list[Storage] = field(default_factory=list)  # HBM tensors of the kernel
    copies: list[tuple[Array, Array]] = field(default_factory=list)  # (caller's array, contiguous stand-in)

    @property
    def many(self) -> bool:
        """Arguments are nl.hbm on one core and nl.shared_hbm on two (nki_simulator.rst, "Execution")."""
        return self.cores.size > 1

    def allocate(
        self, shape: tuple[int, ...], dtype: str, buffer: Buffer, *, shared: bool = False, name: str = "",
        location: tuple[str, int] = ("", 0), address: tuple[int, int] | None = None,
    ) -> Storage:  # fmt: skip
        """New storage with hostile values; in trace-only mode, storage without memory."""
        self._exists(dtype, name or "a tensor")
        tracing = self.mode == "trace"
        if location in self.widened:
            dtype = "float32"
        data = None if tracing else fresh(shape, dtype, self.other)
        # If HBM has no data, no read needs a check, and the shadow masks would be large.
        storage = Storage(
            next(self.idents), shape, dtype, buffer, name=name, shared=shared, data=data,
            written=tracing and buffer == "hbm", location=location, address=address,
        )  # fmt: skip
        if buffer == "hbm" and current().recording:
            self.made.append(storage)
        return storage

    def _exists(self, dtype: str, name: str) -> None:
        if dtype == WIDE and self.nki != SEVEN:
            raise SimulatorError(f"{name} is int64, which is NKI 0.7's; the run is for {self.nki}", rule=10)

    def argument(self, value: Any, name: str) -> Any:
        """A kernel argument: arrays, also inside containers, become HBM tensors on the caller's memory."""
        if isinstance(value, tuple) and not hasattr(value, "_fields"):
            return tuple(self.argument(v, f"{name}[{i}]") for i, v in enumerate(value))
        if isinstance(value, list):
            raise SimulatorError(f"argument {name} is a list: pass a tuple", rule=2)
        if isinstance(value, Specification):
            return self._specified(value.shape, value.dtype, name)
        if isinstance(value, np.ndarray):
            return self._array(value, name)
        if is_tensor(value):
            self.torch = True
            return self._array(as_array(value, name), name)
        if isinstance(value, dict):
            return {key: self.argument(v, f"{name}[{key!r}]") for key, v in value.items()}
        if isinstance(value, NKIObject):
            # The device gets a copy of the object's attributes (nki-language-guide.rst, "Class Support").
            twin = copy.copy(value)
            vars(twin).update({key: self.argument(v, f"{name}.{key}") for key, v in vars(value).items()})
            return twin
        return value

    def _specified(self, shape: tuple[int, ...], dtype: Any, name: str) -> NkiTensor:
        if self.mode != "trace":
            raise SimulatorError(f"argument {name} has no data: only mode='trace' accepts specifications")
        device_dtype = _argument_dtype(dtype, name)
        self._exists(device_dtype, f"argument {name}")
        storage = Storage(
            next(self.idents), tuple(shape), device_dtype, "hbm", name=name, shared=self.many, written=True
        )
        return self._given(storage)

    def _array(self, array: Array, name: str) -> NkiTensor:
        dtype = _argument_dtype(array.dtype, name)
        self._exists(dtype, f"argument {name}")
        shape = array.shape or (1,)
        if 0 in shape:
            raise SimulatorError(f"argument {name} has shape {array.shape}: tensors have no empty dimensions")
        if self.mode == "trace":
            return self._specified(shape, array.dtype, name)
        key = (array.__array_interface__["data"][0], array.shape, array.strides, dtype)
        storage = self.inputs.get(key)
        if storage is None:
            flat = array
            if not array.flags.c_contiguous:
                flat = np.ascontiguousarray(array)
                self.copies.append((array, flat))
            data = flat.reshape(-1).view(np.uint8)
            storage = Storage(
                next(self.idents), shape, dtype, "hbm", name=name, shared=self.many, data=data, written=True
            )
            storage.readonly = not array.flags.writeable
            self.inputs[key] = storage
        return self._given(storage)

    def _given(self, storage: Storage) -> NkiTensor:
        storage.argument = True
        self.arguments.append(storage)
        return whole(storage)

    def output(self, value: Any) -> Any:
        """A returned tensor as an array; if it is an input, its array is copied."""
        if isinstance(value, (tuple, list)):
            return tuple(self.output(v) for v in value)
        if value is None:
            return None
        if not isinstance(value, NkiTensor) or value.on_chip:
            raise SimulatorError(f"a kernel returns tensors in nl.shared_hbm, this one returned {value!r}", rule=15)
        if self.mode == "trace":
            return None
        written = value.storage.written
        if not written.covers(value):
            raise SimulatorError(
                f"output {value!r} was never written at {list(written.first_missing(value))}: "
                "the caller would read uninitialised memory",
                rule=15,
                line=value.storage.line,
                file=value.storage.file,
            )
        return value.read() if value.storage not in self.inputs.values() else value.read().copy()


def _argument_dtype(dtype: Any, name: str) -> str:
    found = np.dtype(dtype) if not isinstance(dtype, str) or dtype not in STORAGE else dtype
    if isinstance(found, np.dtype) and not found.isnative:
        raise SimulatorError(f"argument {name} is {found}: the device needs native byte order")
    try:
        return dtype_name(found)
    except SimulatorError as error:
        raise SimulatorError(f"argument {name}: {error.message}") from None


def machine(target: str) -> Hardware:
    """The hardware row of a target, under any of its documented names."""
    if not isinstance(target, str) or target not in TARGETS:
        raise SimulatorError(f"target {target!r}: expected one of {', '.join(TARGETS)}")
    return MACHINES[TARGETS[target]]


@dataclass(frozen=True, slots=True)
class Simulation:
    """A kernel bound to a target and a mode: call it with arrays.

    Arguments are NumPy arrays (written in place if the kernel writes its inputs), compile-time values, tuples of these,
    or in trace-only mode ``Specification``. Every error is a SimulatorError: one line with the kernel's name and
    source line.
    """

    kernel: Any
    target: str = DEFAULT_TARGET
    mode: Mode = "run"
    perturb_fp32: bool = False
    seed: int = 0
    domains: Domains = "refuse"
    nki: Dialect = DEFAULT
    rules: Mapping[int, Strictness] = field(default_factory=dict)
    turns: int = TURNS
    widened: frozenset[tuple[str, int]] = frozenset()
    tape: Tape | None = None  # receives the arithmetic of a launch on one core (replay.py)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Outputs: an array, or a tuple of them."""
        return self.run(*args, **kwargs).outputs

    def run(self, *args: Any, **kwargs: Any) -> Result:
        """Execute the kernel once on every core of its launch: outputs and traces."""
        kernel = self.kernel
        if not isinstance(kernel, Kernel):
            if not callable(kernel):
                raise SimulatorError(f"{kernel!r} is not a kernel: expected a function or what nki.jit returned")
            kernel = Kernel(kernel)
        if self.mode not in MODES:
            raise SimulatorError(f"mode {self.mode!r}: expected one of {', '.join(MODES)}")
        hardware = machine(self.target)
        if kernel.lnc > 1 and hardware.generation < 3:
            raise SimulatorError(f"{kernel.__name__}[2]: {hardware.name} has no logical cores of two", rule=37)
        token = KERNEL.set(kernel.__name__)
        try:
            if self.nki == PARSER:
                _parse(kernel)
            if self.rules.get(UNINITIALISED) != "propagate" or self.mode == "trace":
                return self._launch(kernel, hardware, args, kwargs)[0]
            again = copy.deepcopy((args, kwargs))
            result, launch = self._launch(kernel, hardware, args, kwargs)
            if launch.garbage:
                _same_memory(result, launch, *self._launch(kernel, hardware, *again, other=True))
            return result
        finally:
            KERNEL.reset(token)

    def _launch(
        self, kernel: Kernel, hardware: Hardware, args: tuple[Any, ...], kwargs: dict[str, Any], other: bool = False
    ) -> tuple[Result, Launch]:
        cores = CoreGroup(kernel.lnc, self.seed if self.mode == "reorder" else None)
        launch = Launch(hardware, self.mode, cores, kernel.grid, self.nki, other=other, widened=self.widened)
        tensors = tuple(launch.argument(value, str(position)) for position, value in enumerate(args))
        named = {key: launch.argument(value, key) for key, value in kwargs.items()}
        runs = [self._core(kernel, launch, rank) for rank in range(kernel.lnc)]
        for storage in launch.arguments:
            code = kernel.function.__code__
            place = {"file": code.co_filename, "line": code.co_firstlineno}
            check_size(runs[0], storage.shape, storage.nbytes, f"argument {storage.name}", **place)
        bodies = [partial(_execute, run, kernel, tensors, named) for run in runs]
        returned = [bodies[0]()] if kernel.lnc == 1 else cores.run(bodies)
        traces = tuple(_finished(run) for run in runs)
        check_cores(runs)
        outputs = launch.output(returned[0])
        if self.tape is not None and kernel.lnc == 1:
            self.tape.run, self.tape.returned = runs[0], returned[0]
        check_stored(runs, launch.made, [t.storage for t in _tensors(returned[0])])
        if launch.torch:
            outputs = as_tensor(outputs)
        for original, flat in launch.copies:
            if original.flags.writeable:
                original[...] = flat
        shapes = tuple(Specification(t.shape, STORAGE[t.dtype]) for t in _tensors(returned[0]))
        return Result(outputs, traces, shapes), launch

    def _core(self, kernel: Kernel, launch: Launch, rank: int) -> Run:
        rng = np.random.default_rng([self.seed, rank])
        scheduler = Scheduler(rng) if self.mode == "reorder" else None
        return Run(
            kernel.__name__, launch.hardware, self.mode, launch, rank, self.perturb_fp32, rng,
            scheduler=scheduler, domains=self.domains, schedule=kernel.schedule, nki=self.nki,
            turns=self.turns, rules=self.rules, tape=self.tape if kernel.lnc == 1 else None,
        )  # fmt: skip


def _same_memory(result: Result, launch: Launch, other: Result, others: Launch) -> None:
    """Refuse results that depend on the values of uninitialised memory."""
    pairs = list(zip(_flat(result.outputs), _flat(other.outputs), strict=True))
    named = [(f"output {at}", a, b) for at, (a, b) in enumerate(pairs)]
    named += [
        (f"argument {s.name}", s.data.view(STORAGE[s.dtype]).reshape(s.shape), t.data.view(STORAGE[t.dtype]))
        for s, t in zip(launch.arguments, others.arguments, strict=True)
        if s.data is not None and t.data is not None
    ]
    for name, a, b in named:
        if a.tobytes() != b.tobytes():
            raw = [np.ascontiguousarray(x).view(np.uint8).reshape(a.size, -1) for x in (a, b)]
            first = int((raw[0] != raw[1]).any(axis=1).argmax())
            place = [int(i) for i in np.unravel_index(first, a.shape)]
            values = f"{a.reshape(-1)[first]} or {b.reshape(-1)[first]}"
            raise SimulatorError(
                f"{name} at {place} depends on memory that was never written: two contents of it give {values}",
                rule=UNINITIALISED,
            )


def _tensors(returned: Any) -> list[NkiTensor]:
    if isinstance(returned, (tuple, list)):
        return [tensor for one in returned for tensor in _tensors(one)]
    return [returned] if isinstance(returned, NkiTensor) else []


def _flat(outputs: Any) -> list[Array]:
    if isinstance(outputs, tuple):
        return [array for one in outputs for array in _flat(one)]
    return [] if outputs is None else [outputs]


def _parse(kernel: Kernel) -> None:
    """Refuse a kernel whose source the parsing front end refuses."""
    code = kernel.function.__code__
    text = Path(code.co_filename).read_text()
    for found in lint_source(text, code.co_filename, code.co_name, (PARSER,)):
        if found.severity == "E" and found.dialects == (PARSER,):
            raise SimulatorError(found.message, rule=found.rule, file=found.file, line=found.line)


def _execute(run: Run, kernel: Kernel, tensors: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Run the program of one core."""
    token = CURRENT.set(run)
    try:
        with np.errstate(all="ignore"):  # device engines raise no floating-point exceptions
            returned = _call(kernel, tensors, named)
            if run.scheduler is not None:
                run.scheduler.flush()
        return returned
    finally:
        CURRENT.reset(token)


def _finished(run: Run) -> Trace:
    _check_schedule(run)
    trace = run.trace()
    check_program(run, trace)

    sbuf, banks = check_capacity(trace.allocations, run.hardware, partial(refuse, run, BEYOND))
    return replace(trace, notes=tuple(run.notes), sbuf_peak_bytes=sbuf, psum_peak_banks=banks)


def _check_schedule(run: Run) -> None:
    """Check that every name of the schedule was issued, and producers before their consumers."""
    order = {name: position for position, name in enumerate(run.named)}
    for consumer, producers in run.schedule.items():
        for name in (consumer, *producers):
            if name not in order:
                raise SimulatorError(f"the schedule names {name!r}, and no instruction has that name")
        late = [p for p in producers if order[p] >= order[consumer]]
        if late:
            raise SimulatorError(
                f"the schedule puts {consumer!r} after {late[0]!r}, which the kernel issues later: this simulator "
                "schedules in program order"
            )


def _call(kernel: Kernel, tensors: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Run the kernel's Python; any exception becomes one line that names the kernel's statement."""
    try:
        return kernel.function(*tensors, **named)
    except SimulatorError:
        raise
    except Exception as error:  # a kernel may raise anything
        own = kernel.function.__code__
        file, line, at = own.co_filename, own.co_firstlineno, error.__traceback__
        while at is not None:
            if at.tb_frame.f_code.co_filename == file:
                line = at.tb_lineno
            at = at.tb_next
        raise SimulatorError(f"{type(error).__name__}: {error}", file=file, line=line) from error


def simulate(
    kernel: Any,
    target: str = DEFAULT_TARGET,
    mode: Mode = "run",
    perturb_fp32: bool = False,
    seed: int = 0,
    domains: Domains = "refuse",
    nki: Dialect = DEFAULT,
    rules: Mapping[int, Strictness] | None = None,
    turns: int = TURNS,
) -> Simulation:
    """``simulate(kernel)(*arrays)``.

    target: trn1, trn2, trn3 or another documented name. mode "trace" records without computing and allocates no memory
    for HBM; "reorder" executes in a random legal order drawn from ``seed``. ``perturb_fp32`` perturbs float32 matrix
    products at 2^-16. ``domains="warn"`` notes activation input outside the documented range instead of refusing it.
    ``nki``: the front end whose refusals apply. ``rules`` maps a rule's number to "strict", "warn" or "off". Rule 16
    also accepts "propagate": uninitialised data may be read if no output depends on it; a second run with other values
    in fresh memory checks this. ``turns``: the greatest number of iterations of one while_loop.

    Arguments may be torch tensors: the kernel writes them in place, too, and the outputs are torch tensors.
    """
    machine(target)
    if nki not in DIALECTS:
        raise SimulatorError(f"nki {nki!r}: expected one of {', '.join(DIALECTS)}")
    return Simulation(kernel, target, mode, perturb_fp32, seed, domains, nki, checked(rules), turns)


def run(kernel: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None, **settings: Any) -> Result:
    """Outputs and traces of one launch: ``simulate(kernel, **settings).run(*args, **kwargs)``."""
    return simulate(kernel, **settings).run(*args, **(kwargs or {}))
