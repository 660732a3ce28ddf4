"""The kernels of trnpy on the simulator: a Runtime that needs no device."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np

from trnpy._nki import kernels
from trnpy._nki.hardware import Hardware
from trnpy._nki.runtime import CompileError, Counters, DeviceMemoryError
from trnpy._nki.simulator.errors import SimulatorError
from trnpy._nki.simulator.launch import Kernel, Simulation
from trnpy._nki.simulator.loader import load_kernel

SOURCES = Path(kernels.__file__).parent


@functools.cache
def kernel(name: str) -> Kernel:
    """The kernel ``name`` of trnpy/_nki/kernels; KeyError when there is none."""
    path = SOURCES / f"{name}.py"
    if not path.exists():
        raise KeyError(f"kernel {name!r}: there is no {path}")
    return load_kernel(path, name)


class SimulatorRuntime:
    """Launches kernels on the simulator of one machine, and counts what a device would compile and move."""

    name = "simulator"
    executes = True

    def __init__(self, hardware: Hardware, perturb_fp32: bool = False) -> None:
        self.hardware = hardware
        self.perturb_fp32 = perturb_fp32
        self.counters = Counters()
        self._compiled: set[tuple[Any, ...]] = set()

    def launch(self, name: str, *operands: np.ndarray | None, **parameters: Any) -> Any:
        """Outputs of one launch of ``name``: an array or a tuple of them; operands that are None are left out.

        DeviceMemoryError when the operands do not fit the machine's HBM, CompileError when the simulator
        refuses the kernel.
        """
        arrays = [a for a in operands if a is not None]
        needed = sum(a.nbytes for a in arrays)
        if needed > self.hardware.hbm_bytes:
            raise DeviceMemoryError(
                f"{name}: operands of {needed} bytes, {self.hardware.name} has {self.hardware.hbm_bytes}"
            )
        try:
            outputs = Simulation(kernel(name), self.hardware.name, perturb_fp32=self.perturb_fp32)(
                *operands, **parameters
            )
        except SimulatorError as why:
            raise CompileError(str(why)) from why
        self._count(name, arrays, parameters, outputs)
        return outputs

    def _count(self, name: str, arrays: list[np.ndarray], parameters: dict[str, Any], outputs: Any) -> None:
        counters = self.counters
        counters.launches[name] += 1
        counters.bytes_in += sum(a.nbytes for a in arrays)
        counters.bytes_out += sum(o.nbytes for o in (outputs if isinstance(outputs, tuple) else (outputs,)))
        variant = (name, *((a.shape, a.dtype.name) for a in arrays), tuple(sorted(parameters.items())))
        if variant not in self._compiled:
            self._compiled.add(variant)
            counters.compiles[name] += 1
