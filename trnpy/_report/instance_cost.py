"""A run on a rented instance: all its NeuronCores compared with its vCPUs and with this machine, line by line.

The calls of a line run one after another or, if they do not depend on each other, at the same time. A report cannot
tell which, so it has both. One after another, the rows of a product or the pairs of DF-MP2 are split over NeuronCores
if the model predicts a gain; any other call runs on one. At the same time, each call has its own NeuronCore, as far as
there are enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nkisim.hardware import ERROR_FACTOR
from trnpy._base.processors import threads
from trnpy._base.records import record
from trnpy._engine.time_parts import Parts
from trnpy._nki.instances import Instance
from trnpy._report.run_record import Run
from trnpy._report.tally import Tally, saved
from trnpy._report.what_if import predicted

# Real operations per processor core that a call keeps busy: 2,000 x 2,000 matrix products fill 96 cores. LAPACK's
# factorizations, whose panels run on one core, need ten times as many. These assumptions favour the processor; larger
# values mean fewer useful vCPUs.
FLOPS_PER_CORE = 1e8
LAPACK_FLOPS_PER_CORE = 1e9
# Functions that reduce a matrix to a narrow form. Half of the work is matrix-vector products, one after another, which
# are memory-bound and synchronize all threads. OpenBLAS's DSYEVD, which NumPy and SciPy use, was measured 2.2 times as
# fast on 4 of 76 cores, its best, as on one (n = 4096); MKL's SVD was 1.4 times as fast on 44 cores as on 4 (n = 2048;
# docs/launches.md#instances). 4 favours the processor.
REDUCED_CORES = 4
REDUCTIONS = (
    "eigh", "eigvalsh", "eig", "svd", "svdvals", "pinv", "pinvh", "polar", "orth", "null_space", "lstsq", "sqrtm",
    "logm", "fractional_matrix_power",
)  # fmt: skip
# Functions that are split over NeuronCores by rows of the left operand, or by pairs of orbitals.
SPLIT = (
    "numpy.matmul", "numpy.dot", "numpy.einsum", "numpy.tensordot", "numpy.inner", "trnpy.chem.dfmp2_energy",
)  # fmt: skip
ASSUMED = (
    "assumed: two vCPUs are one core, and each core is as fast as one of this machine; a product or DF-MP2 of n "
    f"operations uses at most n / {FLOPS_PER_CORE:.0e} cores, any other call n / {LAPACK_FLOPS_PER_CORE:.0e}, but "
    f"eigenvalues, singular values and what needs them at most {REDUCED_CORES}; small "
    "calls, and what is outside accelerated functions, take as long as here; each chip has a link of its own, and "
    "hands a matrix to all of its cores at once, where trnpy sends each core its own copy so far"
)


@record()
class Line:
    """The calls of one line of the program on the instance."""

    tally: Tally
    cores: int  # NeuronCores that a call, or all calls together, use
    here_s: float  # measured, or predicted if a device computed
    vcpus_s: float  # predicted
    parts: Parts  # modelled with ``cores``
    saved_s: tuple[float, float]  # saved of vcpus_s, at the slow and the fast end of the model's interval


@record()
class Estimate:
    """A run on an instance. ``together``: whether the calls of one line are assumed to run at the same time."""

    instance: Instance
    together: bool
    here_s: float
    vcpus_s: float
    cores_s: tuple[float, float]  # with NeuronCores if they are faster: fast and slow end of the model's interval
    lines: tuple[Line, ...]

    def dollars(self, seconds: float) -> float | None:
        """Dollars for ``seconds`` of the whole instance; None if its price is not public."""
        return None if self.instance.rent is None else seconds / 3600 * self.instance.rent.usd_per_h

    @property
    def speedups(self) -> tuple[float, float]:
        """Speed-up of the instance's NeuronCores over its vCPUs: slow and fast end of the model's interval."""
        fast_s, slow_s = self.cores_s
        return tuple(self.vcpus_s / s if s > 0 else 1.0 for s in (slow_s, fast_s))  # type: ignore[return-value]

    def to_dict(self) -> dict[str, Any]:
        """The figures in JSON types."""
        lines = [
            {
                "file": line.tally.file, "line": line.tally.line, "function": line.tally.op, "calls": line.tally.calls,
                "cores": line.cores, "here_s": line.here_s, "vcpus_s": line.vcpus_s, **line.parts._asdict(),
                "saved_s": line.saved_s,
            }
            for line in self.lines
        ]  # fmt: skip
        rent = self.instance.rent
        return {
            "instance": self.instance._asdict() | {"rent": rent and rent._asdict()},
            "together": self.together, "here_s": self.here_s,
            "vcpus_s": self.vcpus_s, "cores_s": self.cores_s, "vcpus_usd": self.dollars(self.vcpus_s),
            "cores_usd": [self.dollars(s) for s in self.cores_s], "assumed": ASSUMED, "lines": lines,
        }  # fmt: skip


def busy_cores(count: int, calls: int, t: Tally) -> float:
    """How many of ``count`` processor cores stay busy with ``calls`` simultaneous calls like those of ``t``."""
    each = FLOPS_PER_CORE if t.op in SPLIT else LAPACK_FLOPS_PER_CORE
    most = REDUCED_CORES if t.op.rpartition(".")[2] in REDUCTIONS else count
    return max(1.0, min(float(count), min(max(t.flops / t.modelled / each, 1.0), most) * calls))


def spread(parts: Parts, calls: int, instance: Instance, host_cores: int) -> tuple[int, Parts]:
    """The NeuronCores that ``calls`` simultaneous calls use, and the seconds until all are done."""
    cores = min(calls, instance.cores)
    chips, processors = min(cores, instance.chips), min(cores, host_cores)
    shares = (cores, chips, chips, processors, processors, cores, processors)
    return cores, Parts(*(part_s / share for part_s, share in zip(parts, shares, strict=True)))


def split(parts: Parts, op: str, instance: Instance) -> tuple[int, Parts]:
    """The NeuronCores that each call uses, one call after another, and the seconds of all calls.

    On c cores a product has c times the launches, and each core computes 1 / c of the rows; transfers and conversions
    on the host take as long as with one core. The best c is near sqrt(engine_s / launch_s).
    """
    if op not in SPLIT or parts.launch_s <= 0:
        return 1, parts
    cores = max(1, min(instance.cores, round((parts.engine_s / parts.launch_s) ** 0.5)))
    return cores, parts._replace(launch_s=parts.launch_s * cores, engine_s=parts.engine_s / cores)


def estimate(
    tallies: Sequence[Tally], instance: Instance, count: int, elapsed_s: float, accelerated_s: float, together: bool
) -> Estimate:
    """The run of ``tallies``, one per line, on ``instance``; ``count`` is the number of cores of this run."""
    measured_s = sum(t.seconds for t in tallies) or 1.0
    scale = min(accelerated_s / measured_s, 1.0)  # calls nest, and threads run in parallel
    host_cores = instance.host_cores or count
    lines = []
    here_s = vcpus_s = max(elapsed_s - accelerated_s, 0.0)
    for t in tallies:
        here_s += t.without_device_s * scale
        if not t.modelled:
            vcpus_s += t.without_device_s * scale
            continue
        calls = t.modelled if together else 1
        faster = busy_cores(host_cores, calls, t) / busy_cores(count, 1, t)
        own_s = t.sure_s / faster  # the undisturbed time, so that a busy host does not make a device look good
        cores, parts = spread(t.parts, t.modelled, instance, host_cores) if together else split(t.parts, t.op, instance)
        slow_s, fast_s = sum(parts) * ERROR_FACTOR, sum(parts) / ERROR_FACTOR
        gains = saved(own_s, slow_s), saved(own_s, fast_s)
        lines.append(Line(t, cores, t.without_device_s, own_s, parts, gains))
        vcpus_s += own_s * scale
    least_s, most_s = (sum(line.saved_s[end] for line in lines) * scale for end in (0, 1))
    return Estimate(instance, together, here_s, vcpus_s, (vcpus_s - most_s, vcpus_s - least_s), tuple(lines))


def rentals(ledger: Run) -> list[Estimate]:
    """The run on the ledger's instance, with a line's calls one after another and together; empty if none is set."""
    if ledger.instance is None or not ledger.tallies:
        return []
    what_if, lines = predicted(ledger), ledger.by_line()
    return [
        estimate(lines, ledger.instance, threads(), what_if.elapsed_s, what_if.accelerated_s, together)
        for together in (False, True)
    ]
