"""python -m benchmarks replay: launches of trnpy's kernels on the simulator that repeat, as a whole and recorded.

Each line is one kernel as small forced calls launch it: processor seconds of a launch as a whole, which traces and
checks the kernel, and of its recorded arithmetic. The bits of both must be equal.
"""

from __future__ import annotations

import argparse
import time
from typing import Any
from unittest import mock

import numpy as np

import trnpy
from nkisim.run.launch import Simulation
from nkisim.run.replay import Program, record
from trnpy._nki import simulated

ROUNDS = 7
CALLS = {
    "dot": lambda a: trnpy.dot(a, a),
    "einsum": lambda a: trnpy.einsum("ij,kj->ik", a, a),
    "eigh": lambda a: trnpy.linalg.eigh(a + a.T),
    "svd": lambda a: trnpy.linalg.svd(a),
}


def launches(call: Any, a: np.ndarray) -> list[tuple[Simulation, list[Any], dict[str, Any]]]:
    """The launches of one call: what is launched, its arrays and its parameters."""
    found = []

    def outputs(self: Any, simulation: Simulation, name: str, arrays: list[Any], parameters: Any) -> Any:
        found.append((simulation, [None if x is None else x.copy() for x in arrays], dict(parameters)))
        return simulation(*arrays, **parameters)

    with trnpy.policy(device="simulator", force=True):
        call(a)  # tests of the device come first
        with mock.patch.object(simulated._Programs, "outputs", outputs):
            call(a)
    return found


def seconds(function: Any) -> float:
    """Processor seconds of one call: the least of some rounds."""
    best = []
    for _ in range(ROUNDS):
        started = time.process_time()
        function()
        best.append(time.process_time() - started)
    return min(best)


def same(x: Any, y: Any) -> bool:
    if isinstance(x, tuple):
        return all(same(one, other) for one, other in zip(x, y, strict=True))
    return x is y is None or x.tobytes() == y.tobytes()


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks replay", description=__doc__)
    parser.add_argument("--sizes", default="6,20,128", help="rows of the matrices (default: %(default)s)")
    options = parser.parse_args(arguments)
    print("call    n   launches  recorded    whole    again  ratio  bits")
    for n in map(int, options.sizes.split(",")):
        a = np.random.default_rng(n).standard_normal((n, n))
        for name, call in CALLS.items():
            whole = again = 0.0
            recorded, equal, found = 0, True, launches(call, a)
            for simulation, arrays, parameters in found:
                program: Program | None = record(simulation, arrays, parameters)[1]
                if program is None:
                    continue
                recorded += 1
                whole += seconds(lambda s=simulation, x=arrays, p=parameters: s(*x, **p))
                again += seconds(lambda program=program, x=arrays: program.again(x))
                equal = equal and same(program.again(arrays), simulation(*arrays, **parameters))
            ratio, bits = whole / again if again else float("nan"), "equal" if equal else "DIFFERENT"
            times = f"{1e3 * whole:7.1f}ms {1e3 * again:6.2f}ms"
            print(f"{name:6} {n:3} {len(found):8} {recorded:9} {times} {ratio:6.1f}  {bits}", flush=True)
    return 0
