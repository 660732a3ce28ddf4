"""The interface of a device to an engine: memory, counted launches, time limits, and typed errors."""

from __future__ import annotations

import functools
import math
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any, Protocol

import numpy as np

from nkisim.hardware import Hardware
from trnpy._base.locks import Lock
from trnpy._base.records import record


class DeviceError(RuntimeError):
    """The device, its driver or its compiler failed."""


class DeviceUnavailable(DeviceError):
    """There is no device of the requested kind; the message names the missing part."""


class DeviceMemoryError(DeviceError, MemoryError):
    """The operands do not fit the device's memory."""


class DeviceTimeout(DeviceError, TimeoutError):
    """A launch did not finish within the policy's time limit."""


class CompileError(DeviceError):
    """The compiler refused a kernel."""


@functools.cache
def bfloat16() -> np.dtype:
    """The NumPy dtype of bfloat16, from ml_dtypes, which takes 11 ms to load."""
    import ml_dtypes

    found: np.dtype = np.dtype(ml_dtypes.bfloat16)
    return found


def dtype_of(form: str) -> np.dtype:
    """NumPy's dtype of the format ``form``."""
    return bfloat16() if form == "bfloat16" else np.dtype(form)


@record(frozen=False)
class LaunchCounters:
    """Counts of launches, compilations and their times since a runtime was created."""

    launches: Counter[str] = field(default_factory=Counter)  # by kernel name
    compiles: Counter[str] = field(default_factory=Counter)  # by kernel name
    bytes_in: int = 0
    bytes_out: int = 0
    seconds: dict[str, float] = field(default_factory=dict)  # by kernel name, measured until the device has answered
    compile_s: dict[str, float] = field(default_factory=dict)  # by kernel name, for the last launch that compiled
    variants: set[Any] = field(default_factory=set)

    def count(self, kernel: str, operands: Sequence[Buffer | None], parameters: Mapping[str, Any]) -> bool:
        """Count one launch. Returns True if it compiles: no launch before had these shapes, dtypes and parameters."""
        self.launches[kernel] += 1
        shapes = tuple(b and (b.shape, b.dtype.name) for b in operands)
        variant = (kernel, shapes, tuple(sorted(parameters.items())))
        new = variant not in self.variants
        if new:
            self.variants.add(variant)
            self.compiles[kernel] += 1
        return new


@record(eq=False)
class Buffer:
    """An array in a device's memory. ``value`` is the runtime's own object; the memory is freed with the object."""

    __slots__ = ("__weakref__",)
    value: Any
    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


class DeviceMemory:
    """The buffers in a device's memory. A buffer uses its bytes until the last reference to it is dropped."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._held = 0
        self._freed: deque[int] = deque()  # bytes of freed buffers; they may be freed at any time, in any thread
        self._lock = Lock()

    @property
    def used(self) -> int:
        with self._lock:
            return self._counted()

    def _counted(self) -> int:
        while self._freed:
            self._held -= self._freed.popleft()
        return self._held

    def hold(self, buffer: Buffer, what: str) -> Buffer:
        """Count the new ``buffer`` and return it; DeviceMemoryError if it does not fit."""
        with self._lock:
            used = self._counted()
            if used + buffer.nbytes > self.limit:
                raise DeviceMemoryError(f"{what}: {buffer.nbytes} bytes do not fit, {used} of {self.limit} are in use")
            self._held += buffer.nbytes
        weakref.finalize(buffer, self._freed.append, buffer.nbytes).atexit = False
        return buffer


Operand = np.ndarray | Buffer | None  # None: the kernel's argument is left out


class Runtime(Protocol):
    """Launches kernels by name, on arrays or on buffers that stay on the device."""

    name: str
    hardware: Hardware
    executes: bool  # False if results always come from the host
    compiles: bool  # whether a launch of new shapes takes seconds
    parallel: bool  # whether it works in parallel with other runtimes if it is called from its own thread
    counters: LaunchCounters

    def put(self, array: np.ndarray) -> Buffer:
        """A copy of ``array`` on the device."""
        ...

    def get(self, buffer: Buffer) -> np.ndarray:
        """A copy of ``buffer`` on the host."""
        ...

    def part(self, buffer: Buffer, rows: slice, columns: slice, shape: tuple[int, int], unit: bool = False) -> Buffer:
        """A block of a matrix, padded with zeros to ``shape``, without a host-device transfer.

        ``unit``: put ones on the diagonal of the padding, so that a square block stays invertible.
        """
        ...

    def reshaped(self, buffer: Buffer, shape: tuple[int, ...]) -> Buffer:
        """The elements of ``buffer`` in the same order, in another shape. They are not moved."""
        ...

    def run(self, kernel: str, /, *operands: Operand, **parameters: Any) -> Any:
        """Outputs of one launch, a Buffer or a tuple of them. Operands that are arrays are put first."""
        ...

    def launch(self, kernel: str, /, *operands: Operand, **parameters: Any) -> Any:
        """Outputs of one launch as arrays on the host: one, or a tuple."""
        ...


def fetched(runtime: Runtime, outputs: Any) -> Any:
    """The results of ``Runtime.run`` as arrays on the host."""
    if isinstance(outputs, tuple):
        return tuple(runtime.get(buffer) for buffer in outputs)
    return runtime.get(outputs)


POLL_S = 1e-3  # between checks of a launch that has not finished


def wait(finished: Callable[[], bool], time_limit_s: float, what: str) -> None:
    """Return when ``finished()`` is true; DeviceTimeout if it is still false after ``time_limit_s``."""
    deadline = time.monotonic() + time_limit_s
    while not finished():
        if time.monotonic() >= deadline:
            raise DeviceTimeout(f"{what} did not finish within {time_limit_s:g} s (policy time_limit)")
        time.sleep(POLL_S)
