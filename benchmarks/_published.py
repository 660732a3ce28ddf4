"""What a published measurement is, and how the model's figure for one is found."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nkisim.chip.record import Trace
from nkisim.hardware import MACHINES, Hardware
from nkisim.price.cost import Cost, price
from nkisim.run.launch import Specification, run
from nkisim.run.loader import load

KERNELS = Path(__file__).parent / "nki_kernels"
FEW, MANY = 16, 272  # repeats of an instruction; the time of one is the difference over 256
STEPS = 1024  # of one call, by which its whole time is divided: launch, steps, and 128 x 512 float32 read back
CALL_S = 4e-6  # calls of an empty program took 137 to 145 us, in medians of 20 (entry 47)
IN_DIFFERENCE, IN_STEP = 2 / (MANY - FEW), 1 / STEPS  # what of the error of a call is in a figure
IN_PROFILE = 0.0
SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3}


@dataclass(frozen=True)
class Launch:
    """One kernel at one size."""

    file: str
    kernel: str
    target: str
    operands: tuple[tuple[tuple[int, ...], str], ...]
    options: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class Measurement:
    """A published figure, and the model's figure for given machines."""

    entry: int  # of docs/model.md#measurements
    group: str
    what: str
    unit: str
    measured: float
    predict: Callable[[Machines], float]
    exact: bool = True  # whether the case can be built exactly; if not, only ratios within its entry count
    remark: str = ""
    calls: float = 1.0  # timed, over what the figure is divided by

    @property
    def error(self) -> float:
        """How far the figure may be off because calls of one program differ: 0 where it is no time."""
        return self.calls * CALL_S / SECONDS[self.unit] if self.unit in SECONDS else 0.0


Machines = Callable[[str], Hardware]  # the machine of a name, possibly with changed constants


def published(name: str) -> Hardware:
    return MACHINES[name]


@functools.cache
def traced(launch: Launch) -> Trace:
    kernel = getattr(load(KERNELS / launch.file), launch.kernel)
    operands = tuple(Specification(shape, dtype) for shape, dtype in launch.operands)
    return run(kernel, operands, dict(launch.options), target=launch.target, mode="trace").trace


def priced(launch: Launch, machines: Machines) -> Cost:
    return price(traced(launch), machines(launch.target))


def wall_s(launch: Launch, machines: Machines) -> float:
    """Seconds of a kernel and of its launch, which is that of an empty kernel."""
    machine = machines(launch.target)
    return priced(launch, machines).device_s - machine.timing.kernel_floor_s + machine.launch_s


def rates(kernel: str, *operands: tuple[tuple[int, ...], str], **options: Any) -> Callable[[Machines], float]:
    """Nanoseconds that one more instruction takes."""

    def predict(machines: Machines) -> float:
        few, many = (
            priced(Launch("rates.py", kernel, "trn1", operands, (*options.items(), ("count", n))), machines).device_s
            for n in (FEW, MANY)
        )
        return (many - few) / (MANY - FEW) * 1e9

    return predict


def per_step(kind: str) -> Callable[[Machines], float]:
    tile = ((128, 128), "bfloat16"), ((128, 512), "bfloat16"), ((128, 1), "float32")
    launch = Launch("rates.py", "steps", "trn1", tile, (("kind", kind), ("count", STEPS)))
    back = 128 * 512 * 4
    return lambda machines: (wall_s(launch, machines) + back / machines("trn1").unlink_bytes_per_s) / STEPS * 1e9


def streams(kernel: str, *operands: tuple[tuple[int, ...], str], **options: Any) -> Launch:
    return Launch("streams.py", kernel, "trn1", operands, tuple(options.items()))


def ms(launch: Launch) -> Callable[[Machines], float]:
    return lambda machines: wall_s(launch, machines) * 1e3


def constant(find: Callable[[Hardware], float], target: str = "trn1") -> Callable[[Machines], float]:
    return lambda machines: find(machines(target))


def queued(launch: Launch) -> Callable[[Machines], float]:
    """Milliseconds without a launch: launches are queued, and one ends while the next begins."""
    return lambda machines: priced(launch, machines).device_s * 1e3
