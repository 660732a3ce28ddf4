"""The products that algorithms are written with, and the choice of the engine that computes them."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import os
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast, overload

import numpy as np

from nkisim.hardware import Hardware
from trnpy._engine import triangular
from trnpy._engine.handles import BY_DIGITS, Handle, Held, HostHandle, Operand, Refused, combined, hermitian
from trnpy._engine.health import FAULTS_BEFORE_REST, Health
from trnpy._engine.residency import Cache
from trnpy._engine.tuning import Compiles
from trnpy._nki.device import detect, instance_machine, runtimes
from trnpy._nki.instances import hardware_of
from trnpy._nki.kernels import located
from trnpy._nki.runtime import DeviceUnavailable, LaunchCounters, Runtime
from trnpy._settings.policy import Attention, Policy, _override, current_policy, process_policy

if TYPE_CHECKING:
    from trnpy._engine.device import DeviceEngine

T = TypeVar("T")


def __getattr__(name: str) -> Any:
    """DeviceEngine, imported only if a device needs it: its modules take half the time of importing trnpy."""
    if name != "DeviceEngine":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from trnpy._engine.device import DeviceEngine

    return DeviceEngine


class Engine(Protocol):
    """A few products and the kernels, on arrays or on operands that the engine keeps: all that algorithms use.

    A product has the dtype of its operands, and is a handle if one of them is. Handles have ``shape``, ``dtype``, and
    the views ``T`` and ``H``, which cost nothing. Changing an array does not change a handle that was made from it. A
    device engine launches a kernel; the host engine runs the kernel's NumPy reference implementation, which computes
    the same from the same operands.
    """

    name: str
    hardware: Hardware | None  # the machine for which times are modelled; None for the host
    executes: bool  # False: decisions and times are modelled, and the original function computes results
    cores: int  # the number that it can use
    health: Health
    compiles: Compiles  # predicts the compile time of the kernels of a call
    cache: Cache  # device-resident operands

    @property
    def counters(self) -> LaunchCounters: ...  # of its launches

    @property
    def parallel(self) -> bool: ...  # whether it can run in a thread of its own beside the engines of other cores

    @property
    def overlaps(self) -> bool: ...  # whether rows of a product may arrive while others are computed

    @property
    def most_loops(self) -> int | None: ...  # device loops that a program may have; None if any number

    # (rows, columns). ``stay``: float64 results of its products are device operands without a transfer to the host
    def put(self, a: np.ndarray, stay: bool = False, copy: bool = True) -> Handle: ...  # no copy: ``a`` must not change

    def get(self, h: Handle | Held, copy: bool = True) -> np.ndarray: ...  # no copy: only to be read

    def block(self, h: Handle, rows: slice, columns: slice) -> Handle: ...

    def kernel(self, name: str, /, *operands: np.ndarray | Handle | Held | None, **parameters: Any) -> Any:
        """Outputs of one launch of the kernel ``name``, which stay on the engine: one, or a tuple; ``get`` fetches.

        Operands are arrays, matrices of ``put`` (one array of numbers each, of shape ``padded``), of ``hold``, or
        outputs; None omits one. Refused if the call exceeds a limit of the engine, DeviceError if the device fails.
        """
        ...

    def hold(self, array: np.ndarray) -> Held: ...  # unchanged, for kernels

    def reshaped(self, output: Held, shape: tuple[int, ...]) -> Held: ...  # its elements, in the same order

    def matrix(self, output: Held, shape: tuple[int, int]) -> Handle: ...  # its first rows and columns; 0 is the rest

    def keep(self, operand: np.ndarray, form: Hashable, make: Callable[[], T], again: bool = False) -> T:
        """``make()``, or its earlier result for the same contents of ``operand`` in this ``form``.

        The result consists of held arrays, also in tuples and lists. It is cached from the second use of ``operand``,
        or from the first if the caller sets ``again``. The engine drops it when it needs the memory.
        """
        ...

    def format(self, dtype: np.dtype) -> str:
        """The format that kernels multiply for products of ``dtype`` under the policy's precision.

        A format such as float32: operands are converted to it. BY_DIGITS: float64 products are computed exactly from
        digits of eight bits. "": the engine has no product that is accurate enough.
        """
        ...

    def shares(self, flops: float, form: str, launched: int, sent: float) -> Sequence[Engine]:
        """The engines of the cores on which kernels of ``flops`` operations in a format finish first.

        The operations are divided; each core adds ``launched`` launches and ``sent`` bytes of operands that all need.
        """
        ...

    @property
    def machine(self) -> Hardware: ...  # its limits bound the operand shapes of kernels

    @property
    def room(self) -> float: ...  # bytes of operands and results that one call may have in the engine's memory

    # alpha A B + beta C: (..., m, k) (..., k, n) -> (..., m, n); stacks broadcast as in numpy.matmul. ``digits``: for
    # handles of float64 or complex128, multiply with this many digits without an error bound. The error is
    # 256^(1-digits) of the largest terms of each sum. ``proved=False``: the caller checks its own result instead.
    @overload
    def matmul(
        self, a: np.ndarray, b: np.ndarray, *, alpha: complex = 1.0, beta: complex = 0.0, c: np.ndarray | None = None
    ) -> np.ndarray: ...
    @overload
    def matmul(
        self, a: Handle, b: Operand, *, alpha: complex = 1.0, beta: complex = 0.0, c: Operand | None = None,
        digits: int | None = None, proved: bool = True,
    ) -> Handle: ...  # fmt: skip
    @overload
    def matmul(
        self, a: np.ndarray, b: Handle, *, alpha: complex = 1.0, beta: complex = 0.0, c: Operand | None = None,
        digits: int | None = None, proved: bool = True,
    ) -> Handle: ...  # fmt: skip

    # A A^H: (..., m, k) -> (..., m, m), Hermitian to the last bit; device handles of complex64 only to rounding
    @overload
    def gram(self, a: np.ndarray) -> np.ndarray: ...
    @overload
    def gram(self, a: Handle, *, digits: int | None = None, proved: bool = True) -> Handle: ...

    # alpha X + beta Y of matrices, or alpha X
    @overload
    def axpby(self, alpha: complex, x: np.ndarray, beta: complex = 0.0, y: np.ndarray | None = None) -> np.ndarray: ...
    @overload
    def axpby(self, alpha: complex, x: Handle, beta: complex = 0.0, y: Operand | None = None) -> Handle: ...
    @overload
    def axpby(self, alpha: complex, x: np.ndarray, beta: complex, y: Handle) -> Handle: ...

    # Solve op(A) X = B, or X op(A) = B for side "right": A (n, n) is triangular, trans "N", "T" or "C" gives op
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
    """``result``, as a handle if an operand is one."""
    return HostHandle(result) if any(isinstance(x, HostHandle) for x in operands) else result


HALF = np.dtype(np.float16)
HOST_ROOM = 2.0**30  # bytes: reference implementations copy their operands, and other programs need memory


@functools.cache
def _twin(name: str) -> tuple[Callable[..., Any], frozenset[str]]:
    """The NumPy reference of kernel ``name`` (``file.name`` if a file has several), and its parameter names."""
    module, function = located(name)
    twin = getattr(importlib.import_module(f"{module}_reference"), function)
    return twin, frozenset(inspect.signature(twin).parameters)


class HostEngine:
    """BLAS and the kernels' reference implementations: tests compare other engines with it; used by ``force``.

    With a ``machine`` it is the engine of device="null": decisions and times are for that machine, and it executes
    nothing unless forced.
    """

    name = "host"
    hardware: Hardware | None = None
    executes = True
    cores = 1
    parallel = False
    overlaps = False
    most_loops: int | None = None

    def __init__(self, machine: Hardware | None = None) -> None:
        if machine is not None:
            self.name, self.hardware, self.executes = "null", machine, False
        self.health = Health()
        self.compiles = Compiles()
        self.cache = Cache()
        self.counters = LaunchCounters()

    def product(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """A B. All products of the engine call it, but triangular systems and other kernels do not."""
        self.counters.launches["product"] += 1
        if a.dtype == b.dtype == HALF:  # NumPy's own sums are also float32, but take 40 times as long
            a, b = a.astype(np.float32), b.astype(np.float32)
            return np.asarray(np.matmul(a, b).astype(HALF))
        result: np.ndarray = np.matmul(a, b)
        return result

    def put(self, a: np.ndarray, stay: bool = False, copy: bool = True) -> HostHandle:
        return HostHandle(a.copy() if copy else a)

    def get(self, h: Handle | Held, copy: bool = True) -> np.ndarray:
        return np.array(_array(h)) if copy else _array(h)

    def block(self, h: Handle, rows: slice, columns: slice) -> HostHandle:
        return HostHandle(_array(h)[rows, columns])

    def kernel(self, name: str, /, *operands: Any, **parameters: Any) -> Any:
        twin, known = _twin(name)
        self.counters.launches[name] += 1
        # Tile sizes do not change the result, and few reference implementations have parameters for them.
        chosen = {k: v for k, v in parameters.items() if k in known or not k.endswith("tiles")}
        if "product" in known:
            chosen["product"] = self.product
        found = twin(*map(_array, operands), **chosen)
        return tuple(map(HostHandle, found)) if isinstance(found, tuple) else HostHandle(found)

    def hold(self, array: np.ndarray) -> HostHandle:
        return HostHandle(array)

    def reshaped(self, output: Held, shape: tuple[int, ...]) -> HostHandle:
        return HostHandle(_array(output).reshape(shape))

    def matrix(self, output: Held, shape: tuple[int, int]) -> HostHandle:
        return HostHandle(_array(output)[: shape[0], : shape[1]])

    def keep(self, operand: np.ndarray, form: Hashable, make: Callable[[], T], again: bool = False) -> T:
        return make()

    def format(self, dtype: np.dtype) -> str:
        return np.empty(0, dtype).real.dtype.name

    def shares(self, flops: float, form: str, launched: int, sent: float) -> Sequence[Engine]:
        return (self,)

    @property
    def machine(self) -> Hardware:
        return self.hardware or hardware_of(current_policy().machine)

    @property
    def room(self) -> float:
        return HOST_ROOM

    def matmul(
        self, a: Any, b: Any, *, alpha: complex = 1.0, beta: complex = 0.0, c: Any = None, digits: int | None = None,
        proved: bool = True,
    ) -> Any:  # fmt: skip
        return _kept(combined(alpha, self.product(_array(a), _array(b)), beta, _array(c)), a, b)

    def gram(self, a: Any, *, digits: int | None = None, proved: bool = True) -> Any:
        x = _array(a)
        return _kept(hermitian(self.product(x, x.conj().swapaxes(-1, -2))), a)

    def axpby(self, alpha: complex, x: Any, beta: complex = 0.0, y: Any = None) -> Any:
        return _kept(combined(alpha, _array(x), beta, _array(y)), x, y)

    def trsm(
        self, a: Any, b: Any, *, side: str = "left", lower: bool = True, trans: str = "N", unit: bool = False
    ) -> Any:
        self.counters.launches["trsm"] += 1
        t, right = _array(a), _array(b)
        from trnpy._engine import lapack  # imported late: like scipy.sparse, trnpy.sparse loads no scipy.linalg

        triangular.check(t, right, side, trans)
        t, right, down = triangular.oriented(t, right, side, lower, trans)
        x = lapack.solve_triangular(t, right, lower=down, unit_diagonal=unit, check_finite=False)
        x = x.astype(np.result_type(t, right), copy=False)
        return _kept(x if side == "left" else x.T, a, b)


HOST: Engine = HostEngine()


@contextlib.contextmanager
def engine(e: Engine) -> Iterator[Engine]:
    """Use engine ``e`` within a ``with`` block, whatever the policy's device: for tests and experiments."""
    Attention.asked = Attention.apart = True
    token = _override.set(e)
    try:
        yield e
    finally:
        _override.reset(token)


@functools.cache
def _null_engine(machine: str) -> Engine:
    return HostEngine(hardware_of(machine))


def _neuron_engine() -> tuple[Engine | None, str]:
    """The engine on this machine's device, or None and the reason."""
    if MISSING:
        return None, MISSING
    device, missing, owner = _opened()
    if device is not None and owner != os.getpid():  # Neuron's runtime does not survive a fork
        return None, f"the device belongs to process {owner}, which this one was forked from: start it by spawn"
    return device, missing


@functools.cache
def _opened() -> tuple[Engine | None, str, int]:
    """The engine or the reason, and the id of the opening process. Failures are final: drivers do not recover."""
    try:
        hardware = instance_machine(process_policy().machine)
        device = _joined(runtimes(hardware, lambda: current_policy().time_limit))
    except Exception as why:  # torch's packages may raise any exception on import: under auto the host computes
        return None, f"{type(why).__name__}: {why}", os.getpid()
    return device, "", os.getpid()


@functools.cache
def _simulator_engine(machine: str, cores: int) -> Engine:
    from trnpy._nki.simulated import SimulatorRuntime

    return _joined([SimulatorRuntime(hardware_of(machine)) for _ in range(cores)])


def _joined(runtimes: Sequence[Runtime]) -> Engine:
    """The engine with this number of cores."""
    from trnpy._engine.device import DeviceEngine
    from trnpy._engine.multicore import Cores

    engines = [DeviceEngine(runtime) for runtime in runtimes]
    return cast(Engine, Cores(engines)) if len(engines) > 1 else engines[0]


def cores(policy: Policy) -> int:
    """The number of cores that a call may use under ``policy``."""
    device = _neuron_engine()[0] if policy.device in ("auto", "neuron") else None
    return policy.cores or 1 if device is None else min(policy.cores or device.cores, device.cores)


# The reason why this machine has no Neuron device, "" if it has one. Detected once per process.
MISSING = detect().missing
RESTING = frozenset({"none", "auto"} if MISSING else {"none"})  # values of policy.device that need no engine


def at_rest(policy: Policy) -> bool:
    """Whether no engine is available. Every call tests this first, so it must be fast."""
    return policy.device in RESTING and not policy.force and _override.get() is None


def current_engine(policy: Policy) -> Engine | None:
    """The engine of ``policy``; None if calls stay on the host.

    DeviceUnavailable if the policy names a device and there is none.
    """
    chosen: Engine | None = _override.get()
    if chosen is not None:
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
        return _simulator_engine(policy.machine, cores(policy))
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
    "Operand",
    "Refused",
]
