"""Launches kernels without torch: through Neuron's library libnrt, from NEFF files that nki compiles here.

nrt.h and nrt_async.h declare the functions (Neuron 2.29: neuron-runtime/api). ``NrtRuntime`` compiles a kernel once for
new shapes, keeps its NEFF file for later processes, and keeps operands in HBM.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from ctypes import POINTER, byref, c_bool, c_char_p, c_int, c_int32, c_size_t, c_uint32, c_uint64, c_void_p
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from nkisim.hardware import Hardware
from trnpy._base.locks import Lock
from trnpy._base.records import record
from trnpy._base.store import folder
from trnpy._nki import neff
from trnpy._nki.guarded import Guard
from trnpy._nki.kernels import FOLDER
from trnpy._nki.kernels.outputs import outputs
from trnpy._nki.runtime import Buffer, DeviceMemory, DeviceUnavailable, LaunchCounters, Operand, dtype_of, fetched

NAME = "libnrt.so.1"
INSTALLED = Path("/opt/aws/neuron/lib")  # of the package aws-neuronx-runtime-lib
SUCCESS, NO_FRAMEWORK, ON_DEVICE, ALL_OF_IT = 0, 1, 0, -1  # of nrt.h; vnc_count is always -1 there
NAN = 1003  # NRT_EXEC_COMPLETED_WITH_NUM_ERR: the launch completed with a NaN, which NumPy also returns
HANDLE, OUT = c_void_p, POINTER(c_void_p)
FUNCTIONS: Mapping[str, tuple[Any, ...]] = {
    "nrt_init": (c_int, c_char_p, c_char_p),
    "nrt_get_visible_vnc_count": (POINTER(c_uint32),),
    "nrt_load": (c_char_p, c_size_t, c_int32, c_int32, OUT),
    "nrt_tensor_allocate": (c_int, c_int, c_size_t, c_char_p, OUT),
    "nrt_tensor_write": (HANDLE, c_void_p, c_size_t, c_size_t),
    "nrt_tensor_read": (HANDLE, c_void_p, c_size_t, c_size_t),
    "nrt_tensor_copy": (HANDLE, c_size_t, HANDLE, c_size_t, c_size_t),
    "nrt_tensor_memset": (HANDLE, c_uint64, c_int, c_size_t),
    "nrt_allocate_tensor_set": (OUT,),
    "nrt_add_tensor_to_tensor_set": (HANDLE, c_char_p, HANDLE),
    "nrt_execute": (HANDLE, HANDLE, HANDLE),
}
# Functions of nrt_async.h, since Neuron 2.29: they enqueue a request; each execution unit runs its queue in parallel
# with other units. The last two arguments return the status of a request and its number.
STATUS, NUMBER = POINTER(c_int), POINTER(c_uint64)
ENQUEUED: Mapping[str, tuple[Any, ...]] = {
    "nrta_tensor_write": (HANDLE, c_void_p, c_uint64, c_uint64, c_int, STATUS, NUMBER),
    "nrta_tensor_read": (c_void_p, HANDLE, c_uint64, c_uint64, c_int, STATUS, NUMBER),
    "nrta_execute_schedule": (HANDLE, HANDLE, HANDLE, c_int, STATUS, NUMBER),
}
COMPLETED = "nrta_is_completed"
OF_2_28 = "nrta_error_tracker_create"  # in 2.28 the status is another kind of object
LAUNCHES, WRITES, READS = 0, 0, 1  # queues: one for launches, two for transfers
SPIN_S, NAP_S = 1e-3, 1e-4  # a request is polled continuously at first, then at intervals
WITHOUT_STATUS: Mapping[str, tuple[Any, ...]] = {"nrt_tensor_free": (OUT,), "nrt_destroy_tensor_set": (OUT,)}


class NrtError(RuntimeError):
    """A function of libnrt returned a status other than success; the message has libnrt's name of the status."""


def library() -> str:
    """The location of libnrt: a path, or a name that the loader finds; "" if it is not installed."""
    if (INSTALLED / NAME).exists():
        return str(INSTALLED / NAME)
    places = os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    return next((str(Path(p) / NAME) for p in places if p and (Path(p) / NAME).exists()), "")


class Library:
    """The functions of libnrt that a runtime calls; a status other than success becomes an NrtError."""

    def __init__(self, loaded: Any) -> None:
        self._status = loaded.nrt_get_status_as_str
        self._status.argtypes, self._status.restype = (c_int,), c_char_p
        self._functions = {name: getattr(loaded, name) for name in (*FUNCTIONS, *WITHOUT_STATUS)}
        for name, function in self._functions.items():
            function.argtypes = FUNCTIONS.get(name) or WITHOUT_STATUS[name]
            function.restype = c_int if name in FUNCTIONS else None
        self.overlaps = hasattr(loaded, COMPLETED) and not hasattr(loaded, OF_2_28)
        self._enqueueing = Lock()
        if self.overlaps:
            for name, arguments in {**ENQUEUED, COMPLETED: (c_uint64, POINTER(c_bool))}.items():
                function = self._functions[name] = getattr(loaded, name)
                function.argtypes, function.restype = arguments, c_int

    def __call__(self, name: str, *arguments: Any, but: tuple[int, ...] = ()) -> None:
        status = self._functions[name](*arguments)
        if name not in WITHOUT_STATUS:
            self._raised(name, status, but)

    def _raised(self, name: str, status: int, but: tuple[int, ...] = ()) -> None:
        if status not in (SUCCESS, *but):
            raise NrtError(f"{name}: {(self._status(status) or b'unknown').decode()} ({status})")

    def done(self, name: str, *arguments: Any, but: tuple[int, ...] = ()) -> None:
        """Enqueue a request with a function of ENQUEUED and wait for its completion; thread-safe."""
        status, number, completed = c_int(SUCCESS), c_uint64(), c_bool()
        with self._enqueueing:
            self(name, *arguments, byref(status), byref(number))
        started = time.monotonic()
        while not completed:
            time.sleep(0.0 if time.monotonic() - started < SPIN_S else NAP_S)
            with self._enqueueing:
                self(COMPLETED, number, byref(completed))
        self._raised(name, status.value, but)

    def made(self, name: str, *arguments: Any) -> c_void_p:
        """The handle that a function of this name stores in its last argument."""
        handle = c_void_p()
        self(name, *arguments, byref(handle))
        return handle


def runtimes(
    hardware: Hardware, time_limit_s: Callable[[], float], front_end: str, loaded: Any = None
) -> tuple[NrtRuntime, ...]:
    """One runtime for each NeuronCore visible to this process; DeviceUnavailable if there is none."""
    nrt, count = Library(ctypes.CDLL(library()) if loaded is None else loaded), c_uint32()
    nrt("nrt_get_visible_vnc_count", byref(count))
    if not count.value:
        raise DeviceUnavailable(f"{NAME} shows no NeuronCore to this process")
    nrt("nrt_init", NO_FRAMEWORK, b"", b"")
    hardware = replace(hardware, overlaps=nrt.overlaps)
    return tuple(NrtRuntime(hardware, nrt, core, time_limit_s, front_end) for core in range(count.value))


class Tensor:
    """Bytes in the memory of one core; they are freed with the object."""

    def __init__(self, nrt: Library, core: int, nbytes: int) -> None:
        self.nrt, self.nbytes = nrt, nbytes
        self.handle = nrt.made("nrt_tensor_allocate", ON_DEVICE, core, nbytes, None)
        weakref.finalize(self, nrt, "nrt_tensor_free", byref(self.handle)).atexit = False

    def write(self, array: np.ndarray, offset: int = 0) -> None:
        if self.nrt.overlaps:
            self.nrt.done("nrta_tensor_write", self.handle, array.ctypes.data, offset, array.nbytes, WRITES)
        else:
            self.nrt("nrt_tensor_write", self.handle, array.ctypes.data, offset, array.nbytes)

    def read(self, into: np.ndarray) -> None:
        if self.nrt.overlaps:
            self.nrt.done("nrta_tensor_read", into.ctypes.data, self.handle, 0, into.nbytes, READS)
        else:
            self.nrt("nrt_tensor_read", self.handle, into.ctypes.data, 0, into.nbytes)

    def copied(self, to: Tensor, start: int, target: int, nbytes: int) -> None:
        self.nrt("nrt_tensor_copy", self.handle, start, to.handle, target, nbytes)

    def cleared(self) -> None:
        self.nrt("nrt_tensor_memset", self.handle, 0, 0, self.nbytes)


@record()
class Program:
    """A loaded NEFF file, the names of its operands, and the shapes and dtypes of its outputs."""

    model: c_void_p
    names: tuple[str, ...]
    outputs: tuple[tuple[tuple[int, ...], np.dtype], ...]


class NrtRuntime:
    """Launches kernels on one NeuronCore, on tensors of libnrt in its memory."""

    name = "neuron"
    executes = True
    compiles = True
    parallel = True

    def __init__(
        self,
        hardware: Hardware,
        nrt: Library,
        core: int,
        time_limit_s: Callable[[], float],
        front_end: str,
        kernel: Callable[[str], Any] = neff.nki_kernel,
    ) -> None:
        self.hardware = hardware
        self.counters = LaunchCounters()
        self._counting = Lock()  # threads that send, launch and fetch
        self.memory = DeviceMemory(hardware.hbm_bytes)
        self._nrt = nrt
        self._core = core
        self._front_end = front_end
        self._kernel = kernel
        self._guarded = Guard(time_limit_s)
        self._programs: dict[str, Program] = {}

    def put(self, array: np.ndarray) -> Buffer:
        """A copy of ``array`` on the device; DeviceMemoryError if it does not fit."""
        copy = np.array(array, order="C")

        def moved() -> Tensor:
            tensor = self._tensor(copy.nbytes)
            tensor.write(copy)
            return tensor

        buffer = self._held(self._guarded(moved, "put"), copy.shape, copy.dtype, "put")
        with self._counting:
            self.counters.bytes_in += copy.nbytes
        return buffer

    def get(self, buffer: Buffer) -> np.ndarray:
        """A copy of ``buffer`` on the host."""
        array = np.empty(buffer.shape, buffer.dtype)
        self._guarded(lambda: buffer.value.read(array), "get")
        with self._counting:
            self.counters.bytes_out += array.nbytes
        return array

    def part(self, buffer: Buffer, rows: slice, columns: slice, shape: tuple[int, int], unit: bool = False) -> Buffer:
        """A block of a matrix, padded with zeros to ``shape``, and with ones on the padding's diagonal if ``unit``."""
        first, last, _ = rows.indices(buffer.shape[0])
        left, right, _ = columns.indices(buffer.shape[1])
        each, pitch = buffer.dtype.itemsize, buffer.shape[1] * buffer.dtype.itemsize
        height, width, wide = last - first, (right - left) * each, shape[1] * each

        def copy() -> Tensor:
            padded = self._tensor(shape[0] * wide)
            if (height, right - left) != shape:
                padded.cleared()
            if width == pitch == wide:
                buffer.value.copied(padded, first * pitch, 0, height * pitch)
            else:
                for row in range(height):
                    buffer.value.copied(padded, (first + row) * pitch + left * each, row * wide, width)
            for place in range(height, min(shape) if unit else 0):
                padded.write(np.ones(1, buffer.dtype), place * (wide + each))
            return padded

        return self._held(self._guarded(copy, "part"), shape, buffer.dtype, "part")

    def reshaped(self, buffer: Buffer, shape: tuple[int, ...]) -> Buffer:
        """The elements of ``buffer`` in the same order, in another shape; both share their memory."""
        return self._held(buffer.value, shape, buffer.dtype, "reshaped")

    def run(self, kernel: str, /, *operands: Operand, **parameters: Any) -> Any:
        """Outputs of one launch, a Buffer or a tuple of them, after the device has answered.

        Raises CompileError, DeviceMemoryError, DeviceError, or DeviceTimeout after the policy's time_limit.
        """
        buffers = [self.put(x) if isinstance(x, np.ndarray) else x for x in operands]
        started = time.perf_counter()

        def launch() -> tuple[Program, list[Tensor]]:
            program = self._program(kernel, buffers, parameters)
            tensors = [b.value for b in buffers if b is not None]
            return program, self._executed(program, tensors)

        program, outputs = self._guarded(launch, kernel)
        elapsed_s = time.perf_counter() - started
        with self._counting:
            if self.counters.count(kernel, buffers, parameters):
                self.counters.compile_s[kernel] = elapsed_s
            self.counters.seconds[kernel] = self.counters.seconds.get(kernel, 0.0) + elapsed_s
        like = zip(outputs, program.outputs, strict=True)
        held = tuple(self._held(tensor, shape, dtype, kernel) for tensor, (shape, dtype) in like)
        return held if len(held) > 1 else held[0]

    def launch(self, kernel: str, /, *operands: Operand, **parameters: Any) -> Any:
        """Outputs of one launch as arrays: one, or a tuple."""
        return fetched(self, self.run(kernel, *operands, **parameters))

    def _tensor(self, nbytes: int) -> Tensor:
        return Tensor(self._nrt, self._core, nbytes)

    def _held(self, tensor: Tensor, shape: tuple[int, ...], dtype: np.dtype, what: str) -> Buffer:
        return self.memory.hold(Buffer(tensor, shape, dtype), what)

    def _executed(self, program: Program, operands: Sequence[Tensor]) -> list[Tensor]:
        nrt = self._nrt
        outputs = [self._tensor(int(np.prod(shape)) * dtype.itemsize) for shape, dtype in program.outputs]
        named = [f"output_{n}" for n in range(len(outputs))]
        with _tensor_set(nrt, program.names, operands) as taken, _tensor_set(nrt, named, outputs) as given:
            if nrt.overlaps:
                nrt.done("nrta_execute_schedule", program.model, taken, given, LAUNCHES, but=(NAN,))
            else:
                nrt("nrt_execute", program.model, taken, given, but=(NAN,))
        return outputs

    def _program(self, kernel: str, buffers: Sequence[Buffer | None], parameters: Mapping[str, Any]) -> Program:
        """The program for operands like ``buffers``: already loaded, read from its file, or compiled."""
        like = [None if b is None else (b.shape, b.dtype.name) for b in buffers]
        import json

        key = json.dumps([kernel, like, sorted(parameters.items()), self.hardware.name, self._front_end], default=str)
        if key not in self._programs:
            empty = [None if b is None else np.empty(b.shape, b.dtype) for b in buffers]
            function = self._kernel(kernel)
            names = tuple(neff.names(function, empty, parameters))
            file = self._file(kernel, key)
            if not file.exists():
                self._compile(function, empty, parameters, file)
            content = file.read_bytes()
            model = self._nrt.made("nrt_load", content, len(content), self._core, ALL_OF_IT)
            returned = outputs(kernel, *empty, **parameters)
            self._programs[key] = Program(model, names, tuple((shape, dtype_of(name)) for shape, name in returned))
        return self._programs[key]

    def _file(self, kernel: str, key: str) -> Path:
        """The path of the program; the folder is named after the sources of all kernels."""
        import hashlib  # imported here: OpenSSL takes 3 ms to load, and most processes find no device

        return (
            folder()
            / f"neffs-{neff.sources(FOLDER)}"
            / f"{kernel}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.neff"
        )

    def _compile(self, function: Any, operands: Sequence[Any], parameters: Mapping[str, Any], file: Path) -> None:
        import tempfile

        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=file.parent) as scratch:
            chosen, target = neff.frontend(self._front_end), self.hardware.name
            os.replace(neff.write(function, operands, parameters, chosen, target, Path(scratch)), file)


@contextlib.contextmanager
def _tensor_set(nrt: Library, names: Sequence[str], tensors: Sequence[Tensor]) -> Any:
    held = nrt.made("nrt_allocate_tensor_set")
    try:
        for name, tensor in zip(names, tensors, strict=True):
            nrt("nrt_add_tensor_to_tensor_set", held, name.encode(), tensor.handle)
        yield held
    finally:
        nrt("nrt_destroy_tensor_set", byref(held))
