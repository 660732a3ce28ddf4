"""``python -m trnpy calibrate --kernels``: the best tiles for each kernel, dtype and shape bucket.

The cost model predicts the time of every choice of tiles. If there is a device, the best few are launched and the
fastest is chosen.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from nkisim.hardware import Hardware
from trnpy._base.records import record
from trnpy._engine import tuning
from trnpy._engine.engines import Engine
from trnpy._engine.tuning import Extents, octaves
from trnpy._nki.kernels.shared.parameters import (
    Parameters,
    Tiles,
    digit_tilings,
    for_bounds,
    for_digits,
    for_numbers,
    for_unturned,
    number_tilings,
)
from trnpy._nki.runtime import DeviceError

CUBES = tuple((n, n, n) for n in (128, 256, 512, 1024, 2048, 4096))
PANELS = ((256, 2048, 2048), (2048, 256, 2048), (2048, 2048, 256))
DIGITS = 7  # digits of float64, unless the elements of a row differ by many orders of magnitude
LONG = 8  # digits of int64
BEST = 3  # number of choices, the fastest according to the model, that are launched on a device
REPEATS = 3  # launches of each choice; the fastest counts
MARGIN = 1.01  # another choice must be this many times faster than the default
MODELLED_BUDGET_S = 150.0  # without a device
DEVICE_BUDGET_S = 1800.0  # with a device, for which every choice must be compiled


@record()
class Case:
    """One kernel with a format of operands and a shape bucket."""

    kernel: str  # key of the stored choice; its first word is the name of the kernel
    form: str
    extents: Extents
    shapes: tuple[tuple[int, ...], ...]
    dtype: str
    default: Parameters
    tilings: tuple[Tiles, ...]

    @property
    def name(self) -> str:
        return self.kernel.partition(" ")[0]

    @property
    def flops(self) -> float:
        m, k, n = self.extents
        return 2.0 * m * k * n * max(self.default.digits * (self.default.digits + 1) // 2, 1)

    def keywords(self, tiles: Tiles) -> dict[str, Any]:
        """The compile-time parameters of the kernel for ``tiles``."""
        chosen = Parameters(*tiles, self.default.digits, self.default.bits, self.default.wrap)
        if self.name == "float64_matmul":
            return chosen.of_digits() | ({"halved": True} if "halved" in self.kernel else {})
        if self.name == "syrk":
            return chosen.of_squares()
        return chosen.of_numbers() | ({"a_rows": False} if self.kernel == "matmul" else {})


def cases(machine: Hardware) -> list[Case]:
    """All cases that are timed, in ascending cost."""
    found = []
    for extents in (*CUBES, *PANELS):
        m, k, n = extents
        square = m == k == n

        def digits(kernel: str, count: int, wrap: bool, *widths: int, fit: Extents = extents) -> Case:
            shapes = tuple((count, fit[1], width) for width in widths)
            tilings = digit_tilings(count, machine, wrap)
            return Case(
                kernel, f"{count} digits", fit, shapes, "bfloat16", for_digits(count, machine, wrap), tilings
            )  # fmt: skip

        def numbers(kernel: str, dtype: str, *shapes: tuple[int, ...], fit: Extents = extents) -> Case:
            itemsize = 4 if dtype == "float32" else 2
            turned = kernel != "matmul"
            default = for_numbers(itemsize) if turned else for_unturned(itemsize, machine)
            return Case(kernel, dtype, fit, shapes, dtype, default, number_tilings(itemsize, machine, turned))

        found.append(digits("float64_matmul", DIGITS, False, m, n))
        for dtype in ("float32", "bfloat16"):
            found += [numbers("matmul turned", dtype, (m, k), (k, n)), numbers("matmul", dtype, (k, m), (k, n))]
        if square:
            found.append(digits("float64_matmul halved", DIGITS, False, m))
            found.append(digits("float64_matmul wrap", LONG, True, m, n))
            found.append(replace(numbers("abs_bound", "bfloat16", (m, k), (k, n)), default=for_bounds()))
            found.append(numbers("syrk", "float32", (m, k)))
    return sorted(found, key=lambda case: case.flops)


def modelled_s(case: Case, tiles: Tiles, machine: Hardware) -> float:
    """Seconds on a device according to the simulator's cost model."""
    from nkisim.price.cost import price
    from nkisim.run.launch import Specification, run
    from trnpy._nki.simulated import kernel

    operands = tuple(Specification(shape, case.dtype) for shape in case.shapes)
    result = run(kernel(case.name), operands, case.keywords(tiles), mode="trace", target=machine.name)
    return price(result.trace, machine).device_s


def measured_s(case: Case, tiles: Tiles, engine: Engine) -> float:
    """Seconds of one launch of the compiled kernel on the device, including the host's part."""
    dtype = np.dtype(case.dtype)
    rng = np.random.default_rng(0)
    operands = [engine.hold(rng.integers(0, 128, shape).astype(dtype)) for shape in case.shapes]
    times = []
    for _ in range(1 + REPEATS):  # the first one compiles
        started = time.perf_counter()
        engine.kernel(case.name, *operands, **case.keywords(tiles))
        times.append(time.perf_counter() - started)
    return min(times[1:])


def choose(case: Case, engine: Engine) -> tuning.Choice:
    """The best tiles according to the model or, if the engine has a device, to launches of the best few.

    Raises DeviceError if the device fails with all of them.
    """
    machine, default = engine.machine, case.default.tiles
    seconds = {tiles: modelled_s(case, tiles, machine) for tiles in case.tilings}
    if engine.compiles.active:
        ranked = sorted(seconds, key=lambda tiles: seconds[tiles])
        seconds, why = {}, DeviceError("")
        for tiles in dict.fromkeys((*ranked[:BEST], default)):
            try:
                seconds[tiles] = measured_s(case, tiles, engine)
            except DeviceError as refused:
                why = refused
        if not seconds:
            raise why
    best = min(seconds, key=lambda tiles: seconds[tiles])
    if default in seconds and seconds[default] <= MARGIN * seconds[best]:
        best = default
    return tuning.Choice(case.kernel, case.form, octaves(case.extents), best, seconds[best], engine.compiles.active)


def budget_s(engine: Engine) -> float:
    """Seconds after which ``calibrate`` starts no further case."""
    return DEVICE_BUDGET_S if engine.compiles.active else MODELLED_BUDGET_S


def calibrate(
    engine: Engine, say: Callable[[str], None], progress: Callable[[str, float], None], seconds: float
) -> tuple[int, int]:
    """Choose, store and report tiles until ``seconds`` have passed. Returns the numbers of cases done and of all."""
    work = cases(engine.machine)
    total, done, count = sum(case.flops for case in work), 0.0, 0
    deadline = time.perf_counter() + seconds
    for case, choice in _chosen(work, engine, say):
        tuning.save(tuning.Tuning((choice,)), engine.name, engine.machine.name)
        done, count = done + case.flops, count + 1
        progress(f"{case.kernel} {case.form} {'x'.join(map(str, case.extents))}", done / total)
        if time.perf_counter() > deadline:
            break
    tuning.save(tuning.Tuning(compile_s=engine.counters.compile_s), engine.name, engine.machine.name)
    return count, len(work)


def _chosen(work: list[Case], engine: Engine, say: Callable[[str], None]) -> Iterator[tuple[Case, tuning.Choice]]:
    for case in work:
        shape = "x".join(map(str, case.extents))
        try:
            choice = choose(case, engine)
        except DeviceError as why:
            say(f"{case.kernel:<22}{case.form:<10}{shape:<16}failed: {why}")
            continue
        how = "measured" if choice.measured else "modelled"
        better = "" if choice.tiles == case.default.tiles else f", not {case.default.tiles}"
        say(
            f"{case.kernel:<22}{case.form:<10}{shape:<16}tiles (m, n, k) = {choice.tiles}{better}: "
            f"{choice.seconds * 1e6:.4g} us {how}"
        )
        yield case, choice
