"""python -m benchmarks eigh: eigh by divide and conquer, modelled on trn2, against SciPy's, measured on this host.

The modelled time and the break-even are those of ``explain``: one function predicts all. Every launch of the algorithm
is also traced and priced by the simulator's cost model, which must agree with the prediction to 10 %. A dry run gives
the shapes of the launches, so the sizes may be large. Up to MEASURED rows, or with ``--measure``, the algorithm also
runs with the kernels' reference versions, and once more with the recorded results of the launches: then only the host's
work between launches takes processor time, which is printed beside its prediction. SciPy's times are processor times
if BLAS has one thread (``OPENBLAS_NUM_THREADS=1``), otherwise elapsed times. No time here is a device's.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.linalg

import trnpy.linalg
from benchmarks._measure import gate, header
from benchmarks._threads import alone
from nkisim.hardware import ERROR_FACTOR, TRN2, Hardware
from nkisim.price.cost import Cost, price
from nkisim.run.launch import Specification, run
from nkisim.table import print_table
from trnpy._call.decisions import decide, prepared, work_of
from trnpy._engine.abstract_arrays import TWO_BYTES, new
from trnpy._engine.cost_model import DryRuntime, tally
from trnpy._engine.engines import HOST, DeviceEngine
from trnpy._engine.time_parts import Parts
from trnpy._nki.kernels.spectra.polynomial_sign_reference import LONGEST
from trnpy._nki.runtime import Buffer
from trnpy._nki.simulated import SimulatorRuntime, kernel
from trnpy._report.reasons import Decision
from trnpy._settings.host_rates import FLOPS, HostRates, current_rates
from trnpy._settings.policy import current_policy
from trnpy.linalg import _eigh, _refinement

SIZES = (512, 1000, 2000, 4000)
MEASURED = 2000  # rows up to which the host's work is measured by default: 4000 take 15 minutes
ROUNDS = 3
DRIVERS = "evr", "evd"  # SciPy's default, and that of trnpy's fast path
FLOAT32_STAGE = ("polynomial_sign", "orthonormal_polar", "projected_matrix", "matmul")
GOAL = 0.6  # of TensorE's float32 peak, at n = 2000
AGREEMENT = 1.1  # of explain with the simulator's prices of the launches
SPARED = 2  # launches that depend on the values of the matrix
MOST_LAUNCHES = 60  # at n = 512 and 1000


class PricedRuntime(DryRuntime):
    """A dry run whose launches are traced by their shapes and priced by the simulator's cost model."""

    def __init__(self, hardware: Hardware) -> None:
        super().__init__(hardware)
        self.costs: dict[Any, Cost] = {}
        self.device_s: Counter[str] = Counter()
        self.flops: Counter[str] = Counter()

    def run(self, name: str, /, *operands: Any, **parameters: Any) -> Any:
        """Abstract outputs of the kernel; the modelled time of its launch is added."""
        shapes = tuple(x if x is None else Specification(x.shape, _format(x.dtype)) for x in operands)
        key = (name, shapes, *sorted(parameters.items()))
        if key not in self.costs:
            self.costs[key] = price(
                run(kernel(name), shapes, parameters, target=self.hardware.name, mode="trace").trace
            )
        self.device_s[name] += self.costs[key].device_s
        self.flops[name] += self.costs[key].flops
        return super().run(name, *operands, **parameters)


def _format(dtype: np.dtype) -> str:
    return "bfloat16" if dtype == TWO_BYTES else dtype.name


class RecordingRuntime(SimulatorRuntime):
    """Results of launches come from the kernels' reference versions; the arrays that are fetched are recorded."""

    def __init__(self, hardware: Hardware) -> None:
        super().__init__(hardware)
        self.fetched: list[np.ndarray] = []

    def run(self, name: str, /, *operands: Any, **parameters: Any) -> Any:
        buffers = [self.put(x) if isinstance(x, np.ndarray) else x for x in operands]
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
class Modelled:
    """One eigh of order n on trn2: the prediction of ``explain``, and the simulator's prices of its launches."""

    n: int
    launches: int
    device_s: float  # by the simulator, of all kernels
    float32_share: float  # of TensorE's float32 peak, during the float32 stage
    link_s: float
    steps_s: float  # the host's work between launches, with the checks that a device hides
    parts: Parts  # by ``explain``

    @property
    def predicted_s(self) -> float:
        return sum(self.parts)

    @property
    def traced_s(self) -> float:
        """As ``predicted_s``, with the simulator's prices of the launches."""
        p = self.parts
        host_s = p.to_digits_s + p.from_digits_s + p.host_steps_s
        return self.device_s + self.launches * TRN2.launch_s + self.link_s + host_s


@dataclass(frozen=True)
class Measured:
    """The host's seconds for one eigh of order n: SciPy's by driver, and of the processor between the launches."""

    scipy_s: dict[str, float]
    launches: int | None = None  # of the run with reference versions; None if there was none
    between_s: float | None = None


def modelled(n: int) -> Modelled:
    """eigh of order n by divide and conquer, from a dry run."""
    runtime = PricedRuntime(TRN2)
    _eigh.eigh(new((n, n), np.dtype(np.float64), runtime.count), DeviceEngine(runtime), "divide")
    moved = runtime.counters
    link_s = moved.bytes_in / TRN2.link_bytes_per_s + moved.bytes_out / TRN2.unlink_bytes_per_s
    stage_s = sum(runtime.device_s[name] for name in FLOAT32_STAGE)
    share = sum(runtime.flops[name] for name in FLOAT32_STAGE) / (stage_s * TRN2.flops_per_s["float32"])
    steps_s = sum(tally([runtime]).host_s(current_rates()).values())
    launched, device_s = sum(moved.launches.values()), sum(runtime.device_s.values())
    return Modelled(n, launched, device_s, share, link_s, steps_s, predicted(n, current_rates()).parts)


def measured(n: int, run_it: bool) -> Measured:
    """SciPy's seconds, and with ``run_it`` the host's in a run of the algorithm, for a random symmetric matrix."""
    rng = np.random.default_rng(n)
    a = rng.standard_normal((n, n))
    a = (a + a.T) / (2 * np.sqrt(2 * n))
    scipy_s, clock = {}, time.process_time if alone() else time.perf_counter
    for driver in DRIVERS:
        times = []
        for _ in range(ROUNDS):
            started = clock()
            scipy.linalg.eigh(a, driver=driver)
            times.append(clock() - started)
        scipy_s[driver] = float(np.median(times))
    if not run_it:
        return Measured(scipy_s)
    runtime = RecordingRuntime(TRN2)
    w, x = _eigh.eigh(a, DeviceEngine(runtime), "divide")
    assert np.linalg.norm(a @ x - x * w) <= 100 * _refinement.U * n, "the model's eigenvectors are not a's"
    return Measured(scipy_s, sum(runtime.counters.launches.values()), between(a, runtime.fetched))


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


def predicted(n: int, rates: HostRates) -> Decision:
    """The decision of ``explain`` on eigh by divide and conquer of order n on trn2, for a host of these rates."""
    op: Any = trnpy.linalg.eigh.__trnpy_op__  # type: ignore[attr-defined]
    ready = prepared(op, True, (np.broadcast_to(0.0, (n, n)),), {})
    assert isinstance(ready, tuple), ready
    with trnpy.policy(device="null", machine=TRN2.name, method="divide"):
        return decide(op.name, ready[0], TRN2, current_policy(), rates, work=work_of(ready[0]))


def break_even(rates: HostRates) -> int | None:
    """The smallest multiple of 64 from which decide sends eigh to trn2; None if there is none up to the largest."""
    return min((n for n in range(LONGEST, 0, -64) if predicted(n, rates).on_device), default=None)


def of_this_run(scipy_s: Mapping[str, Mapping[int, float]]) -> HostRates:
    """The host's rates, with those of both drivers of SciPy's eigh as measured in this run."""
    rates = current_rates()
    curves = {
        kind: tuple((float(n), FLOPS["eigh"] * n**3 / s) for n, s in sorted(scipy_s[driver].items()))
        for kind, driver in (("eigh", "evr"), ("eigh evd", "evd"))
    }
    return replace(rates, curves={**rates.curves, **curves})


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks eigh", description=__doc__)
    parser.add_argument("--n", type=int, action="append", help=f"default: {SIZES}")
    parser.add_argument("--measure", action="store_true", help=f"the host's work also above {MEASURED} rows")
    options = parser.parse_args(argv)
    gate("tests/linalg/test_divide.py")
    margin = f"modelled on one core of trn2, within a factor of {ERROR_FACTOR:g}"
    header(f"eigh of random symmetric matrices by divide and conquer, {margin}")
    heads = (
        "n", "launches", "kernels", "launching", "link", "host steps", "host steps, measured", "explain", "traced",
        "traced / explain", "SciPy evr, measured", "evd, measured", "explain's host", "runs on",
    )  # fmt: skip
    rows, missed, scipy_s = [], 0, {driver: {} for driver in DRIVERS}
    for n in sorted(options.n or SIZES):
        found, host = modelled(n), measured(n, options.measure or n <= MEASURED)
        decision, ratio = predicted(n, current_rates()), found.traced_s / found.predicted_s
        for driver, s in host.scipy_s.items():
            scipy_s[driver][n] = s
        seconds = (found.device_s, found.launches * TRN2.launch_s, found.link_s, found.steps_s)
        between_s = "not run" if host.between_s is None else f"{host.between_s:.3f} s"
        times = (*host.scipy_s.values(), decision.host_s or 0.0)
        rows.append((
            str(n), str(found.launches), *(f"{s:.4f} s" for s in seconds), between_s, f"{found.predicted_s:.3f} s",
            f"{found.traced_s:.3f} s", f"{ratio:.2f}", *(f"{s:.3f} s" for s in times),
            "device" if decision.on_device else "host",
        ))  # fmt: skip
        print(f"n = {n}: float32 stage at {100 * found.float32_share:.0f} % of PE, modelled", flush=True)
        missed += n <= 1024 and found.launches >= MOST_LAUNCHES
        missed += abs((host.launches or found.launches) - found.launches) > SPARED
        missed += not 1 / AGREEMENT <= ratio <= AGREEMENT
        missed += n >= 2000 and found.float32_share < GOAL
    print_table("modelled, but for the columns that say measured", heads, rows)
    rates = "this host's calibration" if current_rates().calibrated else "the default rates"
    print(f"\nbreak-even by explain with {rates}: n = {break_even(current_rates())}")
    print(f"break-even by explain with SciPy's times of this run: n = {break_even(of_this_run(scipy_s))}")
    return int(missed > 0)
