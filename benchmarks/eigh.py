"""python -m benchmarks eigh: eigh by divide and conquer, modelled on trn2, against SciPy's, measured on this host.

The modelled time and the break-even are those of ``explain``: one function predicts all. The algorithm also runs as on
a device, with every launch traced and priced by the simulator's cost model, which must agree with the prediction to
10 %. It runs again with the recorded results of the launches, so that only the host's work between launches takes
processor time: that is measured, and printed beside its prediction. No time here is a device's.
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
from trnpy._engine.abstract_arrays import new
from trnpy._engine.cost_model import DryRuntime, tally
from trnpy._engine.engines import HOST, DeviceEngine
from trnpy._engine.time_parts import Parts
from trnpy._nki.kernels.spectra.polynomial_sign_reference import LONGEST
from trnpy._nki.runtime import Buffer
from trnpy._nki.simulated import SimulatorRuntime, kernel
from trnpy._report.reasons import Decision
from trnpy._settings.host_rates import current_rates
from trnpy.linalg import _divide, _eigh, _refinement

SIZES = (512, 1024, 2048)
ROUNDS = 3
FLOAT32_STAGE = ("polynomial_sign", "orthonormal_polar", "projected_matrix", "matmul")
GOAL = 0.6  # of TensorE's float32 peak, at n = 2048
AGREEMENT = 1.1  # of explain with the simulator's prices of the launches
MOST_LAUNCHES = 60  # at n = 512 and 1024


class TracingRuntime(SimulatorRuntime):
    """Launches are traced without data and priced; results come from the kernels' twins."""

    def __init__(self, hardware: Hardware) -> None:
        super().__init__(hardware)
        self.costs: dict[Any, Cost] = {}
        self.device_s: Counter[str] = Counter()
        self.flops: Counter[str] = Counter()
        self.fetched: list[np.ndarray] = []

    def run(self, name: str, /, *operands: Any, **parameters: Any) -> Any:
        """Outputs of the twin of ``name``; the launch is counted, and its modelled time is added."""
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
        return found if several else found[0]

    def get(self, buffer: Buffer) -> np.ndarray:
        self.fetched.append(super().get(buffer))
        return self.fetched[-1].copy()


class Replay(DryRuntime):
    """A runtime that computes nothing: ``get`` returns the arrays that an earlier run fetched, in their order."""

    executes = True

    def __init__(self, hardware: Hardware, fetched: list[np.ndarray]) -> None:
        super().__init__(hardware)
        self.left = iter(fetched)
        self.copying_s = 0.0  # instead of transfers

    def get(self, buffer: Buffer) -> np.ndarray:
        started = time.process_time()
        found = next(self.left).copy()
        self.copying_s += time.process_time() - started
        return found


@dataclass(frozen=True)
class Run:
    """One eigh of order n."""

    n: int
    launches: int
    device_s: float  # modelled by the simulator, of all kernels
    float32_share: float  # modelled: of TensorE's float32 peak, during the float32 stage
    link_s: float  # modelled
    between_s: float  # measured: the host's work between launches
    steps_s: float  # the same, predicted, with the checks that a device hides
    predicted: Parts  # by ``explain``
    scipy_s: dict[str, float] = field(default_factory=dict)  # measured, by driver

    @property
    def predicted_s(self) -> float:
        return sum(self.predicted)

    @property
    def traced_s(self) -> float:
        """As ``predicted_s``, with the simulator's prices of the launches."""
        p = self.predicted
        host_s = p.to_digits_s + p.from_digits_s + p.host_steps_s
        return self.device_s + self.launches * TRN2.launch_s + self.link_s + host_s


def measured(n: int, rounds: int = ROUNDS, refined: bool = True) -> Run:
    """eigh of a random symmetric (n, n) by divide and conquer; only its float32 stage if not ``refined``."""
    rng = np.random.default_rng(n)
    a = rng.standard_normal((n, n))
    a = (a + a.T) / (2 * np.sqrt(2 * n))
    runtime = TracingRuntime(TRN2)
    engine = DeviceEngine(runtime)
    between_s = 0.0
    if refined:
        w, x = _eigh.eigh(a, engine, "divide")
        between_s = between(a, runtime.fetched)
        assert np.linalg.norm(a @ x - x * w) <= 100 * _refinement.U * n, "the model's eigenvectors are not a's"
    else:
        _divide.eigenvectors(a, engine)
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
    launched, device_s = sum(moved.launches.values()), sum(runtime.device_s.values())
    return Run(n, launched, device_s, share, link_s, between_s, steps_s(n), predicted(n).parts, scipy_s)


def between(a: np.ndarray, fetched: list[np.ndarray]) -> float:
    """Processor seconds of the host's work in eigh of ``a``, without transfers; the least of ROUNDS."""
    found = []
    for _ in range(ROUNDS):
        runtime = Replay(TRN2, fetched)
        engine = DeviceEngine(runtime)
        started = time.process_time()
        _eigh.eigh(a, engine, "divide")
        found.append(time.process_time() - started - runtime.copying_s)
    return min(found)


def steps_s(n: int) -> float:
    """Predicted seconds of the host's work in eigh of order n."""
    runtime = DryRuntime(TRN2)
    _eigh.eigh(new((n, n), np.dtype(np.float64), runtime.count), DeviceEngine(runtime), "divide")
    return sum(tally([runtime]).host_s(current_rates()).values())


def predicted(n: int) -> Decision:
    """The decision of ``explain`` on eigh by divide and conquer of order n on trn2."""
    with trnpy.policy(device="null", machine=TRN2.name, method="divide"):
        return trnpy.explain(trnpy.linalg.eigh, np.broadcast_to(0.0, (n, n)))


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks eigh", description=__doc__)
    parser.add_argument("--n", type=int, action="append", help=f"default: {SIZES}, the last its float32 stage only")
    options = parser.parse_args(argv)
    gate("tests/linalg/test_divide.py")
    margin = f"modelled on one core of trn2, within a factor of {ERROR_FACTOR:g}"
    header(f"eigh of random symmetric matrices by divide and conquer, {margin}")
    print(f"{'host':>62}{'modelled':>19}{'SciPy, measured':>24}")
    print(
        "      n  launches  kernels  launching     link    predicted  measured  explain  traced |      evr        evd"
    )
    missed = 0
    for n in options.n or SIZES:
        refined = bool(options.n) or n < SIZES[-1]
        found = measured(n, refined=refined)
        scipy_s = "".join(f"{s:9.3f} s" for s in found.scipy_s.values()) if refined else ""
        print(
            f"{n:7}{found.launches:10}{found.device_s:8.4f} s{found.launches * TRN2.launch_s:9.4f} s"
            f"{found.link_s:8.4f} s{found.steps_s:13.3f} s{found.between_s:9.3f} s{found.predicted_s:8.3f} s"
            f"{found.traced_s:7.3f} s |{scipy_s}"
            f"   float32 stage: {100 * found.float32_share:.0f} % of PE, modelled{'' if refined else ' (it alone)'}"
        )
        missed += n <= 1024 and found.launches >= MOST_LAUNCHES
        missed += refined and not 1 / AGREEMENT <= found.traced_s / found.predicted_s <= AGREEMENT
        missed += n >= 2048 and found.float32_share < GOAL
    print(f"\nbreak-even with this host's LAPACK, modelled: n = {break_even()}")
    return int(missed > 0)


def break_even() -> int | None:
    """The smallest multiple of 128 from which decide sends eigh to trn2; None if there is none up to the largest."""
    return min((n for n in range(LONGEST, 0, -128) if predicted(n).on_device), default=None)
