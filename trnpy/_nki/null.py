"""The what-if runtime: computes on the host, counts launches and bytes as if on a chosen machine."""

from __future__ import annotations

from typing import Any

import numpy as np

from trnpy._nki.hardware import Hardware
from trnpy._nki.runtime import Buffer, Counters, Operand, fetched


class NullRuntime:
    """Host results at full speed; ``hardware`` is what the predicted times are for."""

    name = "null"
    executes = False

    def __init__(self, hardware: Hardware) -> None:
        self.hardware = hardware
        self.counters = Counters()

    def put(self, array: np.ndarray) -> Buffer:
        """The array itself, counted as moved."""
        self.counters.bytes_in += array.nbytes
        return Buffer(array, array.shape, array.dtype)

    def get(self, buffer: Buffer) -> np.ndarray:
        """The array itself, counted as moved."""
        self.counters.bytes_out += buffer.nbytes
        return np.asarray(buffer.value)

    def part(self, buffer: Buffer, rows: slice, columns: slice, shape: tuple[int, int]) -> Buffer:
        """A block of a matrix, padded with zeros to ``shape``."""
        block = buffer.value[rows, columns]
        padded = np.zeros(shape, buffer.dtype)
        padded[: block.shape[0], : block.shape[1]] = block
        return Buffer(padded, shape, buffer.dtype)

    def run(self, kernel: str, /, *operands: Operand, **parameters: Any) -> Any:
        """The host's result of ``kernel``: "matmul" of (..., m, k) and (..., k, n), whatever the dtype."""
        if kernel != "matmul":
            raise ValueError(f"kernel {kernel!r}: expected matmul")
        a, b = (x.value if isinstance(x, Buffer) else self.put(np.asarray(x)).value for x in operands)
        result = np.matmul(a, b)
        self.counters.launches[kernel] += 1
        return Buffer(result, result.shape, result.dtype)

    def launch(self, kernel: str, /, *operands: Operand, **parameters: Any) -> Any:
        """The same as an array."""
        return fetched(self, self.run(kernel, *operands, **parameters))
