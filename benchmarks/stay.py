"""Programs whose products each go to a device and back, against the same with results that stay there: modelled.

The programs run on the device engine over a runtime that only adds up (a dry run): launches and bytes are those of a
device, times are modelled. The exit code is 1 if products that stay take more launches or bytes than is asked.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks._measure import gate
from trnpy._engine.device import DeviceEngine
from trnpy._engine.dry import DryRuntime
from trnpy._engine.dry import tally as added_up
from trnpy._engine.handles import combined
from trnpy._engine.precision import Facts
from trnpy._engine.proof.engine import Proving
from trnpy._engine.stand_ins import new
from trnpy._engine.tally import Tally
from trnpy._engine.tuning import Tuning
from trnpy._nki.hardware import ERROR_FACTOR, MACHINES, Hardware
from trnpy._nki.simulator.table import print_table
from trnpy._settings.host_rates import current_rates

N, OCCUPIED = 512, 100
MOST_LAUNCHES = 1.2  # a product of a chain: one, and those that make digits of the inputs and round the result
MOST_BYTES = 1.02  # of inputs and results: 1.5 KiB a product certify it


class Calls:
    """Each product is one call of arrays."""

    def __init__(self, engine: DeviceEngine) -> None:
        self.engine: Any = Proving(engine)
        self.put = self.get = lambda x: x

    def product(self, a: Any, b: Any) -> Any:
        return self.engine.matmul(a, b)

    def sum(self, alpha: float, a: Any, beta: float, b: Any) -> Any:
        return combined(alpha, a, beta, b)


class Stays:
    """Products of handles; only what ``get`` asks for comes back."""

    def __init__(self, engine: DeviceEngine) -> None:
        self.engine: Any = Proving(engine)
        self.get, self.product = self.engine.get, self.engine.matmul

    def put(self, x: Any) -> Any:
        return self.engine.put(x, stay=True)

    def sum(self, alpha: float, a: Any, beta: float, b: Any) -> Any:
        return self.engine.axpby(alpha, a, beta, b)


Program = Callable[[Any, Callable[..., Any]], int]  # (how products are made, a new matrix) -> products


def chain(on: Any, matrix: Callable[..., Any]) -> int:
    """X B B ... B, 20 products."""
    x, b = on.put(matrix(N, N)), on.put(matrix(N, N))
    for _ in range(20):
        x = on.product(x, b)
    on.get(x)
    return 20


def basis(on: Any, matrix: Callable[..., Any]) -> int:
    """An SCF iteration but for its eigh, which is the host's: X^T F X; then C = X V and the density 2 C C^T."""
    x, f = on.put(matrix(N, N)), on.put(matrix(N, N))
    on.get(on.product(on.product(x.T, f), x))
    c = on.product(x, on.put(matrix(N, OCCUPIED)))
    on.get(on.product(c, c.T))
    return 4


def newton_schulz(on: Any, matrix: Callable[..., Any]) -> int:
    """X <- 1.5 X - 0.5 X X^T X, ten times."""
    x = on.put(matrix(N, N))
    for _ in range(10):
        x = on.sum(1.5, x, -0.5, on.product(on.product(x, x.T), x))
    on.get(x)
    return 20


@dataclass(frozen=True, slots=True)
class Row:
    """One program on one kind of operands."""

    name: str
    program: Program
    dtype: str
    limited: bool  # whether it must keep to MOST_LAUNCHES and MOST_BYTES


ROWS = (
    Row("chain of 20", chain, "float64", True), Row("SCF, products", basis, "float64", False),
    Row("Newton-Schulz, 10 steps", newton_schulz, "float64", False), Row("chain of 20", chain, "float32", True),
    Row("Newton-Schulz, 10 steps", newton_schulz, "float32", False),
)  # fmt: skip


def tally(row: Row, way: type, machine: Hardware) -> tuple[Tally, int, int]:
    """What a program adds up to, its products, and the bytes of its inputs and results."""
    runtime = DryRuntime(machine)
    on, sizes = way(DeviceEngine(runtime, Tuning(), Facts())), [0]

    def matrix(*shape: int) -> Any:
        x = new(shape, np.dtype(row.dtype), runtime.count)
        sizes[0] += x.nbytes
        return x

    get = on.get

    def read(x: Any) -> Any:
        found = get(x)
        sizes[0] += found.nbytes
        return found

    on.get = read
    with np.errstate(all="ignore"):
        products = row.program(on, matrix)
    return added_up([runtime]), products, sizes[0]


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks stay", description=__doc__)
    parser.add_argument("--machine", choices=sorted(MACHINES), default="trn2")
    machine = MACHINES[parser.parse_args(argv).machine]
    gate("tests/_engine/test_staying.py")
    lines, failed = [], False
    rates = current_rates()
    for row in ROWS:
        times = []
        for way in (Calls, Stays):
            found, products, needed = tally(row, way, machine)
            moved = found.bytes_in + found.bytes_out
            times.append(found.seconds(machine, rates))
            each = found.launched / products
            lines.append(
                (
                    f"{row.name}, {row.dtype}", "stays" if way is Stays else "per call", f"{found.launched}",
                    f"{each:.2f}", f"{found.bytes_in / 1e6:.1f}", f"{found.bytes_out / 1e6:.1f}",
                    f"{moved / needed:.2f}", f"{times[-1] * 1e3:.2f}", f"{times[0] / times[-1]:.1f}",
                )
            )  # fmt: skip
        failed |= row.limited and (each > MOST_LAUNCHES or moved > MOST_BYTES * needed)
    heads = ("program", "products", "launches", "each", "MB in", "MB out", "of in and out", "modelled ms", "gain")
    print_table(f"{machine.name}, matrices of {N}; modelled within a factor of {ERROR_FACTOR:g}", heads, lines)
    return int(failed)
