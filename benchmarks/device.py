"""Calls on trn2 from arrays of the host: kernel, link, digits, host steps and launches apart, modelled.

The parts are those of ``explain``, with the rates of this machine's calibration or the defaults. docs/hardware.md has
the figures of an earlier version beside those of this one.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

import trnpy.linalg
from benchmarks._measure import header
from nkisim.hardware import ERROR_FACTOR, MACHINES
from nkisim.table import print_table
from trnpy.chem import dfmp2_energy


def empty(*shape: int, dtype: Any = np.float64) -> np.ndarray:
    """An array of this shape that takes no memory; each is an operand of its own."""
    return np.broadcast_to(np.zeros((), dtype), shape)


def orbitals(occupied: int, virtual: int, auxiliary: int) -> tuple[np.ndarray, ...]:
    return empty(occupied, virtual, auxiliary), empty(occupied), empty(virtual)


CALLS: Mapping[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = MappingProxyType(
    {
        "matmul f32 1024^3": (trnpy.matmul, (empty(1024, 1024, dtype="f4"), empty(1024, 1024, dtype="f4"))),
        "matmul f64 4096^3": (trnpy.matmul, (empty(4096, 4096), empty(4096, 4096))),
        "matmul f64 512 x 256^3": (trnpy.matmul, (empty(512, 256, 256), empty(512, 256, 256))),
        "MP2 64 occupied, 448 virtual": (dfmp2_energy, orbitals(64, 448, 1536)),
        "MP2 96 occupied, 672 virtual": (dfmp2_energy, orbitals(96, 672, 2304)),
        "solve_triangular f64 2048 x 512": (trnpy.linalg.solve_triangular, (empty(2048, 2048), empty(2048, 512))),
        "solve f64 2000": (trnpy.linalg.solve, (empty(2000, 2000), empty(2000))),
        "eigh f64 1000": (trnpy.linalg.eigh, (empty(1000, 1000),)),
    }
)


def row(name: str, machine: str, cores: int = 1) -> tuple[str, ...]:
    """The table's row of one call, in milliseconds."""
    function, arguments = CALLS[name]
    with trnpy.policy(device="null", machine=machine, cores=cores):
        found = trnpy.explain(function, *arguments)
    p = found.parts
    seconds = (
        p.engine_s, p.send_s + p.fetch_s, p.to_digits_s, p.from_digits_s, p.host_steps_s, p.launch_s, sum(p),
        found.host_s or 0.0,
    )  # fmt: skip
    return (name, *(f"{1e3 * s:,.2f}" for s in seconds), "device" if found.on_device else "host")


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks device", description=__doc__)
    parser.add_argument("--machine", choices=sorted(MACHINES), default="trn2")
    parser.add_argument("--cores", type=int, default=1, help="that a call may use, if it is faster on several")
    options = parser.parse_args(argv)
    machine, cores = options.machine, options.cores
    used = "one core" if cores == 1 else f"up to {cores} cores"
    header(f"calls from host arrays on {used} of {machine}", f"modelled within a factor of {ERROR_FACTOR:g}")
    heads = (
        "call, ms", "kernel", "link", "to digits", "from digits, checks", "host steps", "launches", "device", "host",
        "runs on",
    )  # fmt: skip
    print_table("modelled; nothing here ran on a Trainium", heads, [row(name, machine, cores) for name in CALLS])
    return 0
