"""python -m benchmarks eigh: eigh by divide and conquer, modelled on trn2, against SciPy's, measured on this host.

The algorithm runs as on a device: every launch is traced and priced by the cost model, and its results
come from the kernel's NumPy twin. The host's work between launches is measured in CPU time, as SciPy's is, so that
other processes do not count. No time here is a device's.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.linalg

import trnpy.linalg
from benchmarks._measure import gate, header
from nkisim.hardware import ERROR_FACTOR, TRN2, Hardware
from nkisim.price.cost import Cost, price
from nkisim.run.launch import Specification, run
from trnpy._engine.engines import HOST, DeviceEngine
from trnpy._nki.kernels.spectra.polynomial_sign_reference import LONGEST
from trnpy._nki.runtime import Buffer
from trnpy._nki.simulated import SimulatorRuntime, kernel
from trnpy.linalg import _divide, _eigh, _refinement

SIZES = (512, 1024, 2048)
ROUNDS = 3
FLOAT32_STAGE = ("polynomial_sign", "orthonormal_polar", "projected_matrix", "matmul")
GOAL = 0.6  # of TensorE's float32 peak, at n = 2048
MOST_LAUNCHES = 60  # at n = 512 and 1024


class TracingRuntime(SimulatorRuntime):
    """Launches are traced without data and priced; results come from the kernels' twins."""

    def __init__(self, hardware: Hardware) -> None:
        super().__init__(hardware)
        self.costs: dict[Any, Cost] = {}
        self.device_s: Counter[str] = Counter()
        self.flops: Counter[str] = Counter()
        self.here_s = 0.0  # spent on tracing and twins, which a user does not wait for

    def run(self, name: str, /, *operands: Any, **parameters: Any) -> Any:
        """Outputs of the twin of ``name``; the launch is counted, and its modelled time is added."""
        started = time.process_time()
        buffers = [self.put(x) if isinstance(x, np.ndarray) else x for x in operands]
        key = (name, *((b and (b.shape, b.dtype.name)) for b in buffers), *sorted(parameters.items()))
        if key not in self.costs:
            shapes = tuple(b and Specification(b.shape, b.dtype) for b in buffers)
            self.costs[key] = price(
                run(kernel(name), shapes, parameters, target=self.hardware.name, mode="trace").trace
            )
        self.device_s[name] += self.costs[key].device_s
        self.flops[name] += self.costs[key].flops
        self.counters.count(name, buffers, parameters)
        outputs = HOST.kernel(name, *(b and b.value for b in buffers), **parameters)
        several = isinstance(outputs, tuple)
        arrays = [HOST.get(x) for x in (outputs if several else (outputs,))]
        found = tuple(Buffer(x, x.shape, x.dtype) for x in arrays)
        self.here_s += time.process_time() - started
        return found if several else found[0]


@dataclass(frozen=True)
class Run:
    """One eigh of order n."""

    n: int
    launches: int
    device_s: float  # modelled, of all kernels
    float32_share: float  # modelled: of TensorE's float32 peak, during the float32 stage
    link_s: float  # modelled
    between_s: float  # measured: the host's work between launches
    scipy_s: dict[str, float] = field(default_factory=dict)  # measured, by driver

    @property
    def total_s(self) -> float:
        return self.device_s + self.launches * TRN2.launch_s + self.link_s + self.between_s


def measured(n: int, rounds: int = ROUNDS, refined: bool = True) -> Run:
    """eigh of a random symmetric (n, n) by divide and conquer; only its float32 stage if not ``refined``."""
    rng = np.random.default_rng(n)
    a = rng.standard_normal((n, n))
    a = (a + a.T) / (2 * np.sqrt(2 * n))
    runtime = TracingRuntime(TRN2)
    engine = DeviceEngine(runtime)
    started = time.process_time()
    if refined:
        w, x = _eigh.eigh(a, engine, "divide")
        between_s = time.process_time() - started - runtime.here_s
        assert np.linalg.norm(a @ x - x * w) <= 100 * _refinement.U * n, "the model's eigenvectors are not a's"
    else:
        _divide.eigenvectors(a, engine)
        between_s = time.process_time() - started - runtime.here_s
    moved = runtime.counters
    link_s = moved.bytes_in / TRN2.link_bytes_per_s + moved.bytes_out / TRN2.unlink_bytes_per_s
    stage = [runtime.device_s[name] for name in FLOAT32_STAGE]
    share = sum(runtime.flops[name] for name in FLOAT32_STAGE) / (sum(stage) * TRN2.flops_per_s["float32"])
    scipy_s = {}
    for driver in ("evr", "evd") if rounds else ():
        times = []
        for _ in range(rounds):
            started = time.process_time()
            scipy.linalg.eigh(a, driver=driver)
            times.append(time.process_time() - started)
        scipy_s[driver] = float(np.median(times))
    return Run(n, sum(moved.launches.values()), sum(runtime.device_s.values()), share, link_s, between_s, scipy_s)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks eigh", description=__doc__)
    parser.add_argument("--n", type=int, action="append", help=f"default: {SIZES}, the last its float32 stage only")
    options = parser.parse_args(argv)
    gate("tests/linalg/test_divide.py")
    margin = f"modelled on one core of trn2, within a factor of {ERROR_FACTOR:g}"
    header(f"eigh of random symmetric matrices by divide and conquer, {margin}")
    print("      n  launches  kernels  launching     link  host between   modelled | SciPy evr     evd, measured here")
    missed = 0
    for n in options.n or SIZES:
        refined = bool(options.n) or n < SIZES[-1]
        found = measured(n, refined=refined)
        scipy_s = "".join(f"{s:9.3f} s" for s in found.scipy_s.values()) if refined else ""
        print(
            f"{n:7}{found.launches:10}{found.device_s:8.4f} s{found.launches * TRN2.launch_s:9.4f} s"
            f"{found.link_s:8.4f} s{found.between_s:12.3f} s{found.total_s:10.3f} s |{scipy_s}"
            f"   float32 stage: {100 * found.float32_share:.0f} % of PE, modelled{'' if refined else ' (it alone)'}"
        )
        missed += n <= 1024 and found.launches >= MOST_LAUNCHES
        missed += n >= 2048 and found.float32_share < GOAL
    print(f"\nbreak-even with this host's LAPACK, modelled: n = {break_even()}")
    return int(missed > 0)


def break_even() -> int | None:
    """The smallest multiple of 128 from which decide sends eigh to trn2; None if there is none up to the largest."""
    with trnpy.policy(device="null"):
        sizes = range(LONGEST, 0, -128)
        on_device = [n for n in sizes if trnpy.explain(trnpy.linalg.eigh, np.broadcast_to(0.0, (n, n))).on_device]
    return min(on_device, default=None)
