"""Programs whose products each go to a device and back, against the same with results that stay there: modelled.

The programs run on the device engine over a runtime that only adds up (a dry run): launches and bytes are those of a
device, times are modelled. The exit code is 1 if products that stay take more launches or bytes than is asked.

The ladder of CCSD is PySCF's products of blocks, one by one, against one call an iteration whose integrals stay. 1,000
small eigenproblems have nothing that could stay: LAPACK starts each one, so a line says what each way takes.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from benchmarks._measure import gate
from benchmarks.ccsd import BLOCKS, CYCLES, MIRRORED, MOLECULES, Orbitals, block, ladder
from nkisim.hardware import ERROR_FACTOR, MACHINES, Hardware
from nkisim.table import print_table
from trnpy._call.decisions import work_of
from trnpy._engine.abstract_arrays import new
from trnpy._engine.cost_model import DryRuntime
from trnpy._engine.cost_model import tally as added_up
from trnpy._engine.device import DeviceEngine
from trnpy._engine.handles import combined
from trnpy._engine.launch_counts import Tally
from trnpy._engine.precision import Facts
from trnpy._engine.proof.engine import Proving
from trnpy._engine.tuning import Tuning
from trnpy._settings.host_rates import current_rates
from trnpy._settings.policy import Policy
from trnpy.linalg._eigh import prepare_eigh

N, OCCUPIED = 512, 100
SMALL = 32
MOLECULE = MOLECULES[1]
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


class Sums(NamedTuple):
    """What a program takes."""

    launches: int
    bytes_in: int
    bytes_out: int
    seconds: float

    @property
    def moved(self) -> int:
        return self.bytes_in + self.bytes_out

    @classmethod
    def of(cls, machine: Hardware, *tallies: tuple[int, Tally]) -> Sums:
        """Of tallies, each as often as is said."""
        rates = current_rates()
        return cls(
            sum(times * t.launched for times, t in tallies), sum(times * t.bytes_in for times, t in tallies),
            sum(times * t.bytes_out for times, t in tallies),
            sum(times * t.seconds(machine, rates) for times, t in tallies),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Found:
    """What a program takes if each product is a call, and if results stay."""

    name: str
    ways: tuple[Sums, Sums]
    products: int
    needed: int  # bytes of its inputs and results
    most_launches: float = np.inf  # a product, if results stay
    most_bytes: float = np.inf  # of ``needed`` that may move if results stay

    def lines(self) -> list[tuple[str, ...]]:
        """Of the table."""
        return [
            (
                self.name, way, f"{sums.launches}", f"{sums.launches / self.products:.2f}",
                f"{sums.bytes_in / 1e6:.1f}", f"{sums.bytes_out / 1e6:.1f}", f"{sums.moved / self.needed:.2f}",
                f"{sums.seconds * 1e3:.2f}", f"{self.ways[0].seconds / sums.seconds:.1f}",
            )
            for way, sums in zip(("per call", "stays"), self.ways, strict=True)
        ]  # fmt: skip

    @property
    def failed(self) -> bool:
        stays = self.ways[1]
        return stays.launches > self.most_launches * self.products or stays.moved > self.most_bytes * self.needed


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


def chained(row: Row, machine: Hardware) -> Found:
    """A program of products."""
    (calls, products, needed), (stays, _, _) = (tally(row, way, machine) for way in (Calls, Stays))
    ways = Sums.of(machine, (1, calls)), Sums.of(machine, (1, stays))
    limits = (MOST_LAUNCHES, MOST_BYTES) if row.limited else ()
    return Found(f"{row.name}, {row.dtype}", ways, products, needed, *limits)


def ladders(molecule: Orbitals, machine: Hardware) -> Found:
    """PySCF's product of each block as a call, and iterations whose integrals stay."""
    policy, problem = Policy(), ladder(molecule)
    calls, stays = work_of(block(molecule)), work_of(problem)
    assert calls is not None and stays is not None
    products = CYCLES * (BLOCKS + MIRRORED)
    again = stays._replace(kept=((0, False),))
    ways = (
        Sums.of(machine, (products, calls.tally(machine, policy))),
        Sums.of(machine, (1, stays.tally(machine, policy)), (CYCLES - 1, again.tally(machine, policy))),
    )  # fmt: skip
    name = f"{CYCLES} ladders, {molecule.nocc} and {molecule.nvir} orbitals"
    return Found(name, ways, products, problem.v.nbytes + 2 * CYCLES * problem.t.nbytes, MOST_LAUNCHES)


def eigenproblems(machine: Hardware) -> str:
    """What 1,000 small eigenproblems take on the host, and one by one with a device."""
    a = np.broadcast_to(0.0, (SMALL, SMALL))
    problem = prepare_eigh(a)
    work, rates, policy = work_of(problem), current_rates(), Policy()
    assert work is not None
    found = min(
        work._replace(method=method).tally(machine, policy).seconds(machine, rates) for method in problem.methods
    )
    host = problem.cost.host_s(rates, problem.dtype)
    return (
        f"1,000 eigh of {SMALL} x {SMALL}, float64: {1e6 * host:.0f} ms on the host,"
        f" {1e6 * found:.0f} ms with the device (modelled): the host computes them"
    )


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks stay", description=__doc__)
    parser.add_argument("--machine", choices=sorted(MACHINES), default="trn2")
    machine = MACHINES[parser.parse_args(argv).machine]
    gate("tests/_engine/test_lazy_products.py")
    found = [*(chained(row, machine) for row in ROWS), ladders(MOLECULE, machine)]
    heads = ("program", "products", "launches", "each", "MB in", "MB out", "of in and out", "modelled ms", "gain")
    lines = [line for program in found for line in program.lines()]
    print_table(f"{machine.name}, matrices of {N}; modelled within a factor of {ERROR_FACTOR:g}", heads, lines)
    print(eigenproblems(machine))
    return int(any(program.failed for program in found))
