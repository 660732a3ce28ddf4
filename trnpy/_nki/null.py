"""The what-if runtime: computes on the host, counts launches and bytes as if on a chosen machine."""

from __future__ import annotations

from typing import Any

import numpy as np

from trnpy._nki.hardware import Hardware
from trnpy._nki.runtime import Counters


class NullRuntime:
    """Host results at full speed; ``hardware`` is what the predicted times are for."""

    name = "null"
    executes = False

    def __init__(self, hardware: Hardware) -> None:
        self.hardware = hardware
        self.counters = Counters()

    def launch(self, kernel: str, *operands: np.ndarray, **parameters: Any) -> np.ndarray:
        """The host's result of ``kernel``: "matmul" of (..., m, k) and (..., k, n)."""
        if kernel != "matmul":
            raise ValueError(f"kernel {kernel!r}: expected matmul")
        a, b = operands
        result: np.ndarray = np.matmul(a, b)
        self.counters.launches[kernel] += 1
        self.counters.bytes_in += a.nbytes + b.nbytes
        self.counters.bytes_out += result.nbytes
        return result
