"""Quantum chemistry on one core of trn2 by the cost model, beside published figures of similar packages."""

from __future__ import annotations

import argparse
import functools
import sys
from dataclasses import dataclass
from typing import NamedTuple

import ml_dtypes
import numpy as np

from benchmarks._measure import gate
from nkisim.hardware import ERROR_FACTOR, MACHINES, Hardware
from nkisim.price.cost import Cost, price
from nkisim.run.launch import Specification, run
from nkisim.table import print_table
from trnpy._nki.kernels.chem import ao_to_mo_reference, mp2_energy_reference
from trnpy._nki.kernels.shared.parameters import for_digits
from trnpy._nki.simulated import kernel
from trnpy._settings.host_rates import current_rates
from trnpy._settings.host_steps import SIZES
from trnpy.chem import _pairs
from trnpy.chem._transform import FIRST, SECOND
from trnpy.chem.dfmp2 import DIGITS

BF16 = np.dtype(ml_dtypes.bfloat16)
NOCC = 64  # orbitals of the transformation
NBASIS, MATRICES = 572, 448  # atomic orbitals, and matrices (L|mn) of one launch: digits of up to 2 GiB
SCREENED = 4096
PLACE_BYTES = 128 * 6 * 4  # of the kernel's result, for each entry of its tables
TESTS = ("mp2_energy", "ao_to_mo", "schwarz_screened_spmm")
# Measurements of others on trn1 and an A10G (docs/comparison.md#other-packages).
PEERS_AO = "none: nbasis above 512 raised until 0.7"
PEERS_SPMM = "none; drops elements up to 1e-5 at a threshold of 1e-10"


class Orbitals(NamedTuple):
    """The numbers of orbitals of a shape that trnblas publishes, and the times that others have published for it."""

    occupied: int
    virtual: int
    auxiliary: int
    peers: str

    @property
    def elements(self) -> int:
        return self.occupied * self.virtual * self.auxiliary

    @property
    def pairs(self) -> int:
        return self.occupied * (self.occupied + 1) // 2


MEDIUM = Orbitals(
    64, 448, 1536,
    "9.91 s trnblas on trn1, 0.266 s an A10G; 206 ms, 403,039 instructions trntensor on trn1 (size not given)",
)  # fmt: skip
LARGE = Orbitals(96, 672, 2304, "2.018 s trnblas on an A10G, from AO integrals; not run on trn1")


@dataclass(frozen=True, slots=True)
class Line:
    """One case, its modelled seconds, what limits them, and published figures of others."""

    case: str
    launches: int
    seconds: float
    busy: str
    instructions: int
    peers: str
    results: int = 0  # bytes that the host fetches

    def row(self) -> tuple[str, ...]:
        return (
            self.case, str(self.launches), f"{self.seconds * 1e3:,.1f} ms", self.busy, f"{self.instructions:,}",
            self.peers,
        )  # fmt: skip


def busy(cost: Cost) -> str:
    """Shares of the time for which engines are busy, the busiest first."""
    shares = sorted(((s / cost.device_s, name) for name, s in cost.busy_s.items()), reverse=True)
    return ", ".join(f"{name} {share:.0%}" for share, name in shares if share >= 0.01)


@functools.cache
def mp2(machine: Hardware, digits: int, of: Orbitals = MEDIUM) -> tuple[Line, Cost]:
    """All pairs of occupied orbitals, in launches of as many as one takes."""
    cut = _pairs.shape((of.virtual, of.virtual), of.auxiliary, digits, machine)
    most = _pairs.most_pairs(cut)
    launches, count = -(-of.pairs // most), min(of.pairs, most)
    columns = of.occupied * cut.left * cut.span
    cells, others = _pairs._cells(cut, [(0, 0)] * count, exchange=True)
    operands = (
        Specification((digits, -(-of.auxiliary // 128) * 128, columns), BF16 if digits > 1 else np.float32),
        Specification((3, columns)),
        Specification((1, mp2_energy_reference.groups_of(digits))),
        Specification(cells.shape, np.int32),
        None if others is None else Specification(others.shape, np.int32),
    )
    options = {"span": cut.span, "k_tiles": cut.k_tiles}
    trace = run(kernel("mp2_energy"), operands, options, mode="trace", target=machine.name).trace
    cost = price(trace)
    how = f"{digits * (digits + 1) // 2 + (digits % 2 == 0)} passes of bf16" if digits > 1 else "float32"
    case = f"MP2 energy, {of.occupied} occupied, {of.virtual} virtual, {of.auxiliary} auxiliary: {how}, {machine.name}"
    seconds = cost.device_s * of.pairs / count
    places = cells.shape[1] + (0 if others is None else others.shape[1])
    results = PLACE_BYTES * places * of.pairs // count
    return Line(case, launches, seconds, busy(cost), len(trace.instructions), of.peers, results), cost


def split(machine: Hardware, rows: int, columns: int, digits: int) -> float:
    """Modelled seconds to make digits of float64 numbers that are on the device, with a given scale for each row."""
    operands = Specification((rows, 2 * columns), np.int32), Specification((rows, 1))
    options = {"digits": digits}
    return price(run(kernel("float64_digits"), operands, options, mode="trace", target=machine.name).trace).device_s


@functools.cache
def transformation(machine: Hardware) -> Line:
    """MATRICES matrices to NOCC by NBASIS - NOCC molecular orbitals."""
    first, second = for_digits(FIRST, machine), for_digits(SECOND, machine)
    shapes = (FIRST, MATRICES * NBASIS, NBASIS), (FIRST, NBASIS, NOCC), (SECOND, NBASIS, NBASIS - NOCC)
    options = {
        "top": FIRST + ao_to_mo_reference.HEADROOM,
        "words": (ao_to_mo_reference.WORDS,) * 2,
        "first_tiles": (first.m_tiles, first.k_tiles),
        "second_tiles": (second.m_tiles, second.k_tiles),
    }
    operands = tuple(Specification(shape, BF16) for shape in shapes)
    trace = run(kernel("ao_to_mo"), operands, options, mode="trace", target=machine.name).trace
    cost = price(trace)
    case = f"AO to MO, nbasis {NBASIS}, {MATRICES} matrices, float64-accurate, {machine.name}"
    return Line(case, 1, cost.device_s, busy(cost), len(trace.instructions), PEERS_AO)


@functools.cache
def screened(machine: Hardware) -> Line:
    """A product of which no element is screened away: the worst case, which shows the cost of masks."""
    n = SCREENED
    operands = (*[Specification((7, n, n), BF16)] * 2, Specification((1, n)))
    trace = run(kernel("schwarz_screened_spmm"), operands, {"words": 3}, mode="trace", target=machine.name).trace
    cost = price(trace)
    case = f"screened product {n} x {n} x {n}, all kept, float64-accurate, {machine.name}"
    return Line(case, 1, cost.device_s, busy(cost), len(trace.instructions), PEERS_SPMM)


def from_host(machine: Hardware, of: Orbitals, line: Line) -> str:
    """Modelled seconds of an energy from arrays of the host, and what takes them."""
    parts = {
        "scales on the host": current_rates().step_s("largest entry", SIZES[-1], _pairs.SIZES_READ * of.elements),
        "link": 8 * of.elements / machine.link_bytes_per_s,
        "digits on the device": split(machine, of.occupied * of.virtual, of.auxiliary, DIGITS),
        f"{line.launches + 1} launches": (line.launches + 1) * machine.launch_s,
        "energies": line.seconds,
        "back": line.results / machine.unlink_bytes_per_s,
    }
    return f"{sum(parts.values()):.2f} s: " + ", ".join(f"{name} {s * 1e3:,.1f} ms" for name, s in parts.items())


def main(argv: list[str]) -> int:
    """Print the table; 1 if VectorEngine limits the MP2 energy of digits."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks chem-model", description=__doc__)
    parser.add_argument("--machine", choices=sorted(MACHINES), default="trn2")
    machine = MACHINES[parser.parse_args(argv).machine]
    gate(*(f"tests/_nki/kernels/test_{name}.py" for name in TESTS))
    energies = {of: mp2(machine, DIGITS, of) for of in (MEDIUM, LARGE)}
    lines = [line for of, (whole, _) in energies.items() for line in (whole, mp2(machine, 1, of)[0])]
    lines += [transformation(machine), screened(machine)]
    margin = f"modelled within a factor of {ERROR_FACTOR:g}"
    title = f"{margin}, one core; operands on the device, launch and link aside; nothing here ran on a Trainium of ours"
    heads = ("case", "launches", "modelled", "busy", "instructions", "peers have published")
    print_table(title, heads, [x.row() for x in lines])
    for of, (line, _) in energies.items():
        print(f"MP2 of {of.occupied} occupied orbitals from host arrays, modelled: {from_host(machine, of, line)}")
    back = MATRICES * NOCC * (NBASIS - NOCC)
    combined_s = current_rates().step_s("combine", SIZES[-1], back)
    print(f"AO to MO results, modelled: {(back * 12 / machine.unlink_bytes_per_s + combined_s) * 1e3:.0f} ms back")
    cost = energies[MEDIUM][1]
    bound = max(cost.busy_s, key=lambda name: cost.busy_s[name])
    print(f"what bounds the MP2 energy, modelled: {bound}")
    return int(bound == "vector")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
