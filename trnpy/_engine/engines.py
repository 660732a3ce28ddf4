"""The products algorithms are written over, and which engine computes them here."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import os
from collections.abc import Callable, Hashable, Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, overload

import numpy as np

from trnpy._base import distribution
from trnpy._engine import triangular
from trnpy._engine.handles import BY_DIGITS, Handle, Held, HostHandle, Operand, Refused, combined, hermitian
from trnpy._engine.residency import Cache
from trnpy._engine.tuning import Compiles
from trnpy._nki.device import NeuronRuntime, detect, instance_machine, neuron_route
from trnpy._nki.hardware import MACHINES, Hardware
from trnpy._nki.kernels import located
from trnpy._nki.runtime import FAULTS_BEFORE_REST, Counters, DeviceUnavailable, Health
from trnpy._settings.policy import Attention, Policy, current_policy, process_policy

if TYPE_CHECKING:
    from trnpy._engine.device import DeviceEngine

T = TypeVar("T")


def __getattr__(name: str) -> Any:
    """DeviceEngine, and what it rests on, where there is something to run it: half of what importing trnpy takes."""
    if name != "DeviceEngine":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from trnpy._engine.device import DeviceEngine

    return DeviceEngine


class Engine(Protocol):
    """A few products and the kernels, on arrays or on what stays with the engine. Algorithms know no more of a device.

    Products keep the dtype of their operands. With a handle among these the result is a handle. Handles have
    ``shape``, ``dtype``, and ``T`` and ``H`` for free; nothing that becomes of an array changes the handle that was
    made of it. A device launches a kernel; the host runs its NumPy twin, which computes the same from the same
    operands; the what-if counts a launch and takes the host's result.
    """

    name: str
    hardware: Hardware | None  # what its times are modelled on; None for the host
    executes: bool  # False: decisions and times are modelled, results come from the reference
    health: Health
    compiles: Compiles  # what compiling for a call would take
    cache: Cache  # operands that are with the device already

    @property
    def counters(self) -> Counters: ...  # of its launches

    def put(self, a: np.ndarray) -> Handle: ...  # (rows, columns)

    def get(self, h: Handle | Held) -> np.ndarray: ...  # a copy, in the handle's dtype

    def block(self, h: Handle, rows: slice, columns: slice) -> Handle: ...

    def kernel(self, name: str, /, *operands: np.ndarray | Handle | Held | None, **parameters: Any) -> Any:
        """Outputs of one launch of the kernel ``name``, which stay with the engine: one, or a tuple; ``get`` fetches.

        Operands are arrays, matrices of ``put`` (one array of numbers each, of shape ``padded``), arrays of ``hold``
        or outputs; None leaves one out. Refused where a limit of the engine is met, DeviceError when the device fails.
        """
        ...

    def hold(self, array: np.ndarray) -> Held: ...  # as it is, for kernels

    def matrix(self, output: Held, shape: tuple[int, int]) -> Handle: ...  # its first rows and columns; 0 is the rest

    def keep(self, operand: np.ndarray, form: Hashable, make: Callable[[], T]) -> T:
        """``make()``, or what it returned before for the same contents of ``operand`` in this ``form``.

        The arrays in it, in tuples and lists, are held ones: the engine forgets them when it needs their memory.
        """
        ...

    def format(self, dtype: np.dtype) -> str:
        """What kernels multiply for products of ``dtype`` under the policy's precision.

        The name of a format: numbers are converted to it; BY_DIGITS: exact products of digits of eight bits stand for
        those of float64; "": the engine has neither as accurate as it must be.
        """
        ...

    @property
    def machine(self) -> Hardware: ...  # whose limits the shapes of operands of kernels keep

    @property
    def room(self) -> float: ...  # bytes of operands and results that one call may have in the engine's memory

    # alpha A B + beta C: (..., m, k) (..., k, n) -> (..., m, n); stacks broadcast as in numpy.matmul. Where handles of
    # float64 or complex128 are multiplied by digits, ``digits`` are enough: the error is 256^(1-digits) of the largest
    # terms of each sum, nothing is certified, and the caller checks what it makes of the product.
    @overload
    def matmul(
        self, a: np.ndarray, b: np.ndarray, *, alpha: complex = 1.0, beta: complex = 0.0, c: np.ndarray | None = None
    ) -> np.ndarray: ...
    @overload
    def matmul(
        self, a: Handle, b: Operand, *, alpha: complex = 1.0, beta: complex = 0.0, c: Operand | None = None,
        digits: int | None = None,
    ) -> Handle: ...  # fmt: skip
    @overload
    def matmul(
        self, a: np.ndarray, b: Handle, *, alpha: complex = 1.0, beta: complex = 0.0, c: Operand | None = None,
        digits: int | None = None,
    ) -> Handle: ...  # fmt: skip

    # A A^H: (..., m, k) -> (..., m, m), Hermitian to the last bit; complex64 kept on a device only to rounding
    @overload
    def gram(self, a: np.ndarray) -> np.ndarray: ...
    @overload
    def gram(self, a: Handle, *, digits: int | None = None) -> Handle: ...

    # alpha X + beta Y of matrices, or alpha X
    @overload
    def axpby(self, alpha: complex, x: np.ndarray, beta: complex = 0.0, y: np.ndarray | None = None) -> np.ndarray: ...
    @overload
    def axpby(self, alpha: complex, x: Handle, beta: complex = 0.0, y: Operand | None = None) -> Handle: ...
    @overload
    def axpby(self, alpha: complex, x: np.ndarray, beta: complex, y: Handle) -> Handle: ...

    # X of op(A) X = B, or of X op(A) = B for side "right": A (n, n) triangular, op by trans "N", "T" or "C"
    @overload
    def trsm(
        self, a: np.ndarray, b: np.ndarray, *, side: str = "left", lower: bool = True, trans: str = "N",
        unit: bool = False,
    ) -> np.ndarray: ...  # fmt: skip
    @overload
    def trsm(
        self, a: Handle, b: Operand, *, side: str = "left", lower: bool = True, trans: str = "N", unit: bool = False
    ) -> Handle: ...
    @overload
    def trsm(
        self, a: np.ndarray, b: Handle, *, side: str = "left", lower: bool = True, trans: str = "N", unit: bool = False
    ) -> Handle: ...


def _array(x: Any) -> Any:
    return x.array if isinstance(x, HostHandle) else x


def _kept(result: np.ndarray, *operands: Any) -> Any:
    """``result``, as a handle when there is one among the operands."""
    return HostHandle(result) if any(isinstance(x, HostHandle) for x in operands) else result


HOST_ROOM = 2.0**30  # bytes: twins hold their operands several times over, and the host has other work


@functools.cache
def _twin(name: str) -> tuple[Callable[..., Any], frozenset[str]]:
    """The NumPy twin of the kernel ``name``, or ``file.name`` of a file with several; and its parameters' names."""
    module, function = located(name)
    twin = getattr(importlib.import_module(f"{module}_reference"), function)
    return twin, frozenset(inspect.signature(twin).parameters)


class HostEngine:
    """BLAS and the twins of kernels: the oracle for the others, and what ``force`` uses where there is no device."""

    name = "host"
    hardware: Hardware | None = None
    executes = True

    def __init__(self) -> None:
        self.health = Health()
        self.compiles = Compiles()
        self.cache = Cache()
        self.counters = Counters()

    def product(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """A B: all that the engine does rests on it, but for triangular systems and kernels that are no products."""
        result: np.ndarray = np.matmul(a, b)
        return result

    def put(self, a: np.ndarray) -> HostHandle:
        return HostHandle(a.copy())

    def get(self, h: Handle | Held) -> np.ndarray:
        return np.array(_array(h))

    def block(self, h: Handle, rows: slice, columns: slice) -> HostHandle:
        return HostHandle(_array(h)[rows, columns])

    def kernel(self, name: str, /, *operands: Any, **parameters: Any) -> Any:
        twin, known = _twin(name)
        # The sizes of tiles do not change what is computed: few twins have a use for them.
        chosen = {k: v for k, v in parameters.items() if k in known or not k.endswith("_tiles")}
        if "product" in known:
            chosen["product"] = self.product
        found = twin(*map(_array, operands), **chosen)
        return tuple(map(HostHandle, found)) if isinstance(found, tuple) else HostHandle(found)

    def hold(self, array: np.ndarray) -> HostHandle:
        return HostHandle(array)

    def matrix(self, output: Held, shape: tuple[int, int]) -> HostHandle:
        return HostHandle(_array(output)[: shape[0], : shape[1]])

    def keep(self, operand: np.ndarray, form: Hashable, make: Callable[[], T]) -> T:
        return make()

    def format(self, dtype: np.dtype) -> str:
        return np.empty(0, dtype).real.dtype.name

    @property
    def machine(self) -> Hardware:
        return self.hardware or MACHINES[current_policy().machine]

    @property
    def room(self) -> float:
        return HOST_ROOM

    def matmul(
        self, a: Any, b: Any, *, alpha: complex = 1.0, beta: complex = 0.0, c: Any = None, digits: int | None = None
    ) -> Any:
        return _kept(combined(alpha, self.product(_array(a), _array(b)), beta, _array(c)), a, b)

    def gram(self, a: Any, *, digits: int | None = None) -> Any:
        x = _array(a)
        return _kept(hermitian(self.product(x, x.conj().swapaxes(-1, -2))), a)

    def axpby(self, alpha: complex, x: Any, beta: complex = 0.0, y: Any = None) -> Any:
        return _kept(combined(alpha, _array(x), beta, _array(y)), x, y)

    def trsm(
        self, a: Any, b: Any, *, side: str = "left", lower: bool = True, trans: str = "N", unit: bool = False
    ) -> Any:
        t, right = _array(a), _array(b)
        from trnpy._engine import lapack  # only now: trnpy.sparse alone loads no scipy.linalg, as SciPy's does not

        triangular.check(t, right, side, trans)
        t, right, down = triangular.oriented(t, right, side, lower, trans)
        x = lapack.solve_triangular(t, right, lower=down, unit_diagonal=unit, check_finite=False)
        x = x.astype(np.result_type(t, right), copy=False)
        return _kept(x if side == "left" else x.T, a, b)


class NullEngine:
    """The what-if device: the host's results, with launches and bytes counted as if on a chosen machine."""

    name = "null"
    executes = False

    def __init__(self, machine: Hardware) -> None:
        self.hardware: Hardware | None = machine
        self.machine = machine
        self.health = Health()
        self.compiles = Compiles()
        self.cache = Cache()
        self.counters = Counters()

    @property
    def room(self) -> float:
        return HOST_ROOM

    def put(self, a: np.ndarray) -> HostHandle:
        self.counters.bytes_in += a.nbytes
        return HostHandle(a.copy())

    def get(self, h: Handle | Held) -> np.ndarray:
        found = np.array(_array(h))
        self.counters.bytes_out += found.nbytes
        return found

    def block(self, h: Handle, rows: slice, columns: slice) -> Handle:
        return HOST.block(h, rows, columns)

    def kernel(self, name: str, /, *operands: Any, **parameters: Any) -> Any:
        return self._launch(name, functools.partial(HOST.kernel, name), *operands, **parameters)

    def hold(self, array: np.ndarray) -> HostHandle:
        self.counters.bytes_in += array.nbytes
        return HostHandle(array)

    def matrix(self, output: Held, shape: tuple[int, int]) -> Handle:
        return HOST.matrix(output, shape)

    def keep(self, operand: np.ndarray, form: Hashable, make: Callable[[], T]) -> T:
        return make()

    def format(self, dtype: np.dtype) -> str:
        return HOST.format(dtype)

    def _launch(self, kernel: str, operation: Callable[..., Any], *operands: Any, **options: Any) -> Any:
        """``operation`` on the host; arrays among the operands and an array as result cross the link."""
        self.counters.bytes_in += sum(x.nbytes for x in operands if isinstance(x, np.ndarray))
        result = operation(*operands, **options)
        self.counters.launches[kernel] += 1
        self.counters.bytes_out += result.nbytes if isinstance(result, np.ndarray) else 0
        return result

    def matmul(
        self, a: Any, b: Any, *, alpha: complex = 1.0, beta: complex = 0.0, c: Any = None, digits: int | None = None
    ) -> Any:
        return self._launch("matmul", lambda a, b: HOST.matmul(a, b, alpha=alpha, beta=beta, c=c), a, b)

    def gram(self, a: Any, *, digits: int | None = None) -> Any:
        return self._launch("syrk", HOST.gram, a)

    def axpby(self, alpha: complex, x: Any, beta: complex = 0.0, y: Any = None) -> Any:
        return self._launch("axpby", lambda x, y: HOST.axpby(alpha, x, beta, y), x, y)

    def trsm(
        self, a: Any, b: Any, *, side: str = "left", lower: bool = True, trans: str = "N", unit: bool = False
    ) -> Any:
        return self._launch("trsm", HOST.trsm, a, b, side=side, lower=lower, trans=trans, unit=unit)


HOST: Engine = HostEngine()
_override: ContextVar[Engine | None] = ContextVar("trnpy_engine", default=None)


@contextlib.contextmanager
def engine(e: Engine) -> Iterator[Engine]:
    """Compute products of a block with ``e`` whatever the policy's device is: for tests and experiments."""
    Attention.asked = Attention.apart = True
    token = _override.set(e)
    try:
        yield e
    finally:
        _override.reset(token)


@functools.cache
def _null_engine(machine: str) -> Engine:
    return NullEngine(MACHINES[machine])


def _neuron_engine() -> tuple[Engine | None, str]:
    """The engine on this machine's device, else why there is none."""
    if MISSING:
        return None, MISSING
    device, missing, owner = _opened()
    if device is not None and owner != os.getpid():  # a runtime of Neuron does not survive a fork
        return None, f"the device belongs to process {owner}, which this one was forked from: start it by spawn"
    return device, missing


@functools.cache
def _opened() -> tuple[Engine | None, str, int]:
    """``_neuron_engine`` of the process that asks first, and its number; drivers do not mend while a process lives."""
    from trnpy._engine.device import DeviceEngine

    try:
        hardware = instance_machine(process_policy().machine)
        device = DeviceEngine(NeuronRuntime(hardware, neuron_route(), lambda: current_policy().time_limit))
    except (
        Exception
    ) as why:  # whatever torch's own packages raise where they are imported: under auto the host computes
        return None, f"{type(why).__name__}: {why}", os.getpid()
    return device, "", os.getpid()


@functools.cache
def _simulator_engine(machine: str) -> Engine:
    try:
        from trnpy._nki.simulator.runtime import SimulatorRuntime
    except ImportError as why:
        raise DeviceUnavailable(f"TRNPY_DEVICE=simulator: {why}; {distribution.install('simulator')}") from why
    from trnpy._engine.device import DeviceEngine

    return DeviceEngine(SimulatorRuntime(MACHINES[machine]))


# Why this machine has no Neuron device, "" if it has one; devices do not come and go while a process lives.
MISSING = detect().missing
RESTING = frozenset({"none", "auto"} if MISSING else {"none"})  # values of policy.device that need no engine


def at_rest(policy: Policy) -> bool:
    """Whether there is no engine at hand: the first question of every call, so the shortest answer."""
    return policy.device in RESTING and not policy.force and _override.get() is None


def current_engine(policy: Policy) -> Engine | None:
    """The engine ``policy`` asks for; None where calls stay on the host.

    DeviceUnavailable when a device was asked for by name and there is none.
    """
    if (chosen := _override.get()) is not None:
        return chosen
    if policy.device == "null":
        return _null_engine(policy.machine)
    if policy.device in ("neuron", "auto"):
        device, missing = _neuron_engine()
        if device is not None:
            return device
        if policy.device == "neuron":
            raise DeviceUnavailable(f"TRNPY_DEVICE=neuron: {missing}")
    if policy.device == "simulator":
        return _simulator_engine(policy.machine)
    if policy.force:
        return HOST
    return None


def available() -> tuple[bool, str]:
    """Whether calls can run on a Neuron device, and if not, why.

    Returns
    -------
    available : bool
        True if a device can be used.
    reason : str
        What is missing; empty if a device can be used.

    Examples
    --------
    >>> import trnpy
    >>> available, reason = trnpy.available()
    >>> available == (reason == "")
    True
    """
    _, missing = _neuron_engine()
    return not missing, missing


__all__ = [
    "BY_DIGITS",
    "FAULTS_BEFORE_REST",
    "HOST",
    "DeviceEngine",
    "Engine",
    "Handle",
    "Health",
    "Held",
    "HostEngine",
    "NullEngine",
    "Operand",
    "Refused",
]
