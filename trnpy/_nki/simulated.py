"""The kernels of trnpy on the simulator: a Runtime that needs no device."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nkisim.chip.errors import SimulatorError
from nkisim.hardware import Hardware
from nkisim.run.launch import Kernel, Simulation, Specification, run
from nkisim.run.loader import load_kernel
from nkisim.run.replay import Arrays, Program, places, record
from trnpy._base.locks import Lock
from trnpy._nki.kernels import located, source
from trnpy._nki.runtime import Buffer, CompileError, DeviceMemory, LaunchCounters, Operand, fetched

PROGRAM_BYTES = 2**28  # of the memory of recorded programs; one of a 512 x 512 float64 product needs 40 MB


@functools.cache
def kernel(name: str) -> Kernel:
    """The kernel ``name`` of trnpy/_nki/kernels, or ``file.name`` if a file has several; KeyError if there is none."""
    return load_kernel(source(name), located(name)[1])


def loops_of(
    name: str, shapes: Sequence[tuple[tuple[int, ...], str] | None], parameters: Mapping[str, Any], hardware: Hardware
) -> int:
    """The device loops in the program of kernel ``name`` for operands of these shapes and dtypes."""
    operands = tuple(None if x is None else Specification(*x) for x in shapes)
    return len(run(kernel(name), operands, dict(parameters), target=hardware.name, mode="trace").trace.loops)


class _Programs:
    """Launches by kernel, shapes, dtypes and parameters. The second launch of each is recorded and later run again.

    The least recently used programs are dropped if all need more than PROGRAM_BYTES.
    """

    def __init__(self) -> None:
        self._known: dict[Any, Program | None] = {}  # None: launched once, or the program depends on values
        self._once: set[Any] = set()
        self._lock = Lock()

    def outputs(self, simulation: Simulation, name: str, arrays: Arrays, parameters: Mapping[str, Any]) -> Any:
        """The outputs of one launch; SimulatorError if the simulator refuses it."""
        shapes = tuple(None if a is None else (a.shape, a.dtype) for a in arrays)
        key = name, shapes, places(arrays), tuple(sorted(parameters.items()))
        with self._lock:
            program = self._known.get(key)
            if program is not None:
                self._known[key] = self._known.pop(key)  # the most recently used is the last
            recorded = key in self._known or key not in self._once
            self._once.add(key)
        if program is not None and (outputs := program.again(arrays)) is not None:
            return outputs
        if recorded:
            return simulation(*arrays, **parameters)
        result, program = record(simulation, arrays, parameters)
        with self._lock:
            self._known[key] = program
            while sum(p.nbytes for p in self._known.values() if p is not None) > PROGRAM_BYTES:
                del self._known[next(k for k, p in self._known.items() if p is not None)]
        return result.outputs


class SimulatorRuntime:
    """Launches kernels on the simulator of one machine, and counts compiles and bytes as a device would."""

    name = "simulator"
    executes = True
    compiles = False
    parallel = False

    def __init__(self, hardware: Hardware, perturb_fp32: bool = False) -> None:
        self.hardware = hardware
        self.perturb_fp32 = perturb_fp32
        self.counters = LaunchCounters()
        self.memory = DeviceMemory(hardware.hbm_bytes)
        self._programs = _Programs()

    def put(self, array: np.ndarray) -> Buffer:
        """A copy of ``array`` in the simulator's HBM; DeviceMemoryError if it does not fit."""
        copy = np.array(array, order="C")
        self.counters.bytes_in += copy.nbytes
        return self.memory.hold(Buffer(copy, copy.shape, copy.dtype), "put")

    def get(self, buffer: Buffer) -> np.ndarray:
        """A copy of ``buffer``."""
        self.counters.bytes_out += buffer.nbytes
        return np.array(buffer.value)

    def part(self, buffer: Buffer, rows: slice, columns: slice, shape: tuple[int, int], unit: bool = False) -> Buffer:
        """A block of a matrix, padded with zeros to ``shape``, and with ones on the padding's diagonal if ``unit``."""
        block = buffer.value[rows, columns]
        padded = np.zeros(shape, buffer.dtype)
        padded[: block.shape[0], : block.shape[1]] = block
        if unit:
            rest = range(block.shape[0], shape[0])
            padded[rest, rest] = 1
        return self._output(padded, "part")

    def reshaped(self, buffer: Buffer, shape: tuple[int, ...]) -> Buffer:
        """The elements of ``buffer`` in the same order, in another shape."""
        return self._output(buffer.value.reshape(shape), "reshaped")

    def run(self, name: str, /, *operands: Operand, **parameters: Any) -> Any:
        """Outputs of one launch of ``name``: a Buffer or a tuple of them. Operands that are None are left out.

        Raises DeviceMemoryError if operands and outputs do not fit the machine's HBM, and CompileError if the
        simulator refuses the kernel.
        """
        buffers = [self.put(x) if isinstance(x, np.ndarray) else x for x in operands]
        arrays = [None if b is None else b.value for b in buffers]
        try:
            outputs = self._programs.outputs(
                Simulation(kernel(name), self.hardware.name, perturb_fp32=self.perturb_fp32), name, arrays, parameters
            )
        except SimulatorError as why:
            raise CompileError(str(why)) from why
        self.counters.count(name, buffers, parameters)
        if isinstance(outputs, tuple):
            return tuple(self._output(o, name) for o in outputs)
        return self._output(outputs, name)

    def _output(self, array: np.ndarray, name: str) -> Buffer:
        return self.memory.hold(Buffer(array, array.shape, array.dtype), name)

    def launch(self, name: str, /, *operands: Operand, **parameters: Any) -> Any:
        """Outputs of one launch as arrays: one, or a tuple."""
        return fetched(self, self.run(name, *operands, **parameters))
