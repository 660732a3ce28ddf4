"""AWS's spectral Navier-Stokes sample on the simulator: its stages against float64, its steps against measured times.

The kernels run unmodified: the stage for one NeuronCore, and the one for several ranks, which exchange data twice.
Three stages are a step of a Runge-Kutta method of low storage, in rotational form, with the 2/3 rule (docs/method.md of
the sample). The reference is our own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._measured import SPECTRAL_STEPS_MS
from nkisim.chip.replicas import run_ranks
from nkisim.chip.strictness import Strictness
from nkisim.price.cost import price
from nkisim.run.launch import Result, Specification, run
from nkisim.run.loader import load
from nkisim.table import print_table

ONE, MANY = "tgv_stage_nki.py", "tgv_fused_wide_nki.py"
A, B = (1 / 3, 15 / 16, 8 / 15), (0.0, -5 / 9, -153 / 128)  # Williamson, J. Comput. Phys. 35 (1980), case 7
VISCOSITY = 1 / 1600
ERROR, OFF = 3e-7, 0.15  # of results and of prices, at most
# The stage for several ranks reads a tile of its buffers before it writes them, and adds it to an output of its own.
RULES: Mapping[int, Strictness] = {16: "off"}
CONSTANT = (128, 512)  # the shape in which that stage takes the numbers of the scheme

Array = np.ndarray[Any, Any]
Spectra = Array  # of the velocity or its rate: complex (3, n, n, n)
Stage = Callable[[Spectra, Spectra, int], tuple[Spectra, Spectra]]  # velocity, rate, which of the three


@dataclass(frozen=True)
class Grid:
    """Wavenumbers of n points in each direction, and what a stage multiplies by."""

    n: int

    @property
    def dt(self) -> float:
        return float(np.pi / self.n)

    @property
    def waves(self) -> Array:
        k = np.fft.fftfreq(self.n, 1 / self.n)
        return np.array(np.meshgrid(k, k, k, indexing="ij"))

    @property
    def squares(self) -> Array:
        """k^2, and 1 for the mean."""
        found = (self.waves**2).sum(axis=0)
        found[0, 0, 0] = 1.0
        return np.asarray(found)

    @property
    def kept(self) -> Array:
        return np.asarray((np.abs(self.waves) < self.n / 3).all(axis=0))

    @property
    def decay(self) -> Array:
        found = np.exp(-VISCOSITY * self.squares * self.dt)
        found[0, 0, 0] = 1.0
        return np.asarray(found)

    def solenoidal(self, u: Spectra) -> Spectra:
        return np.asarray(u - self.waves * ((self.waves * u).sum(axis=0) / self.squares))

    def stage(self, u: Spectra, rate: Spectra, which: int) -> tuple[Spectra, Spectra]:
        """The next velocity and rate, in float64."""
        curl = 1j * np.cross(self.waves, u, axis=0)
        velocity, vorticity = (np.fft.ifftn(x, axes=(1, 2, 3)).real for x in (u, curl))
        force = np.fft.fftn(np.cross(velocity, vorticity, axis=0), axes=(1, 2, 3)) * self.kept
        rate = B[which] * rate + self.dt * self.solenoidal(force)
        u = u + A[which] * rate
        return (u * self.decay if which == len(A) - 1 else u), rate

    def start(self, disturbance: float) -> Spectra:
        """A Taylor-Green vortex and, if not 0, a random field of so much of its largest coefficient."""
        x = 2 * np.pi * np.arange(self.n) / self.n
        x, y, z = np.meshgrid(x, x, x, indexing="ij")
        vortex = np.array([np.sin(x) * np.cos(y) * np.cos(z), -np.cos(x) * np.sin(y) * np.cos(z), 0 * x])
        u = np.fft.fftn(vortex, axes=(1, 2, 3))
        if disturbance:
            noise = np.fft.fftn(np.random.default_rng(7).standard_normal(u.shape), axes=(1, 2, 3))
            noise = self.solenoidal(noise * self.kept * np.exp(-self.squares / (self.n / 6) ** 2))
            u = u + noise * (disturbance * np.abs(u).max() / np.abs(noise).max())
        return np.asarray(u)

    def sums(self, u: Spectra) -> Array:
        """Energy and enstrophy."""
        each = (np.abs(u) ** 2).sum(axis=0) / self.n**6 / 2
        return np.array([each.sum(), (each * self.squares).sum() - each[0, 0, 0]])


@dataclass(frozen=True)
class Sample:
    """The stage of the sample for so many ranks on one grid, with its layouts."""

    folder: Path
    grid: Grid
    ranks: int

    def module(self) -> Any:
        found: Any = load(self.folder / "kernels" / (ONE if self.ranks == 1 else MANY))
        if self.ranks > 1:
            found.N_GLOBAL, found.R_RANKS = self.grid.n, self.ranks
        return found

    def laid_out(self, field: Array) -> list[Array]:
        """Each rank's part of a field: the last two axes exchanged, or an equal share of the columns of (n, n^2)."""
        n = self.grid.n
        parts = [field.transpose(0, 2, 1)] if self.ranks == 1 else np.split(field.reshape(n, n * n), self.ranks, axis=1)
        return [np.ascontiguousarray(part, dtype=np.float32) for part in parts]

    def together(self, parts: Sequence[Array]) -> Array:
        n = self.grid.n
        return parts[0].transpose(0, 2, 1) if self.ranks == 1 else np.concatenate(parts, axis=1).reshape(n, n, n)

    def constants(self, which: int) -> list[tuple[Array, ...]]:
        """What follows the state among the arguments of each rank."""
        grid, n = self.grid, self.grid.n
        angle = 2 * np.pi * np.outer(np.arange(n), np.arange(n)) / n
        c, s = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
        decay = grid.decay if self.ranks == 1 or which == len(A) - 1 else np.ones_like(grid.decay)
        fields = zip(*(self.laid_out(x) for x in (*grid.waves, 1 / grid.squares, grid.kept, decay)), strict=True)
        numbers = [np.full(CONSTANT, x, np.float32) for x in (A[which], B[which], grid.dt)] if self.ranks > 1 else []
        return [(c, s, -s, *rank, *numbers) for rank in fields]

    def launched(self, module: Any, which: int, arguments: list[tuple[Any, ...]], mode: Any) -> list[Result]:
        if self.ranks > 1:
            return run_ranks(module.tgv_fused, arguments, target="trn1", mode=mode, rules=RULES)
        module.STAGE_A, module.STAGE_B, module.STAGE_DT = A[which], B[which], self.grid.dt
        module.STAGE_DECAY = which == len(A) - 1
        return [run(module.tgv_stage, arguments[0], target="trn1", mode=mode)]

    def stages(self) -> Stage:
        """The kernel as a function of spectra in the standard layout."""
        module, constants = self.module(), [self.constants(which) for which in range(len(A))]

        def stage(u: Spectra, rate: Spectra, which: int) -> tuple[Spectra, Spectra]:
            parts = [self.laid_out(x) for field in (*u, *rate) for x in (field.real, field.imag)]
            arguments = [(*state, *constants[which][rank]) for rank, state in enumerate(zip(*parts, strict=True))]
            found = [result.outputs[: len(parts)] for result in self.launched(module, which, arguments, "run")]
            whole = [self.together(x).astype(np.float64) for x in zip(*found, strict=True)]
            spectra = np.array([re + 1j * im for re, im in zip(whole[::2], whole[1::2], strict=True)])
            return spectra[:3], spectra[3:]

        return stage

    def step_ms(self) -> float:
        """The modelled time of three stages on the device, without the launches."""
        n, module = self.grid.n, self.module()
        shape = (n, n, n) if self.ranks == 1 else (n, n * n // self.ranks)
        field, square, constant = Specification(shape), Specification((n, n)), Specification(CONSTANT)
        numbers = [constant] * 3 if self.ranks > 1 else []
        arguments: tuple[Any, ...] = (*[field] * 12, *[square] * 3, *[field] * 6, *numbers)
        # The first two stages have the same instructions, and all of several ranks have.
        times = {2: 3} if self.ranks > 1 else {0: 2, 2: 1}
        traced = {which: self.launched(module, which, [arguments] * self.ranks, "trace")[0] for which in times}
        return sum(times[which] * price(found.trace).device_s for which, found in traced.items()) * 1e3


def errors(stage: Stage, grid: Grid, steps: int, disturbance: float) -> Iterator[tuple[float, float, float]]:
    """After every step: errors of velocity, relative to its largest coefficient, of energy and of enstrophy."""
    u = right = grid.start(disturbance)
    for _ in range(steps):
        rate = right_rate = np.zeros_like(u)
        for which in range(len(A)):
            u, rate = stage(u, rate, which)
            right, right_rate = grid.stage(right, right_rate, which)
        off = np.abs(grid.sums(u) / grid.sums(right) - 1)
        yield float(np.abs(u - right).max() / np.abs(right).max()), float(off[0]), float(off[1])


def main(folder: Path, points: int, steps: int) -> int:
    """Print both tables; 1 if a result or a price is off, 2 if the kernels are not there."""
    if absent := [name for name in (ONE, MANY) if not (folder / "kernels" / name).is_file()]:
        print(f"conformance nki: {folder} has no kernels/{absent[0]}: docs/hardware.md says where the sample is")
        return 2
    grid, rows, bad = Grid(points), [], 0
    for ranks in (1, 2):
        for disturbance in (0.0, 0.3):
            stage = Sample(folder, grid, ranks).stages()
            most = [max(x) for x in zip(*errors(stage, grid, steps, disturbance), strict=True)]
            bad += max(most) > ERROR
            start = "vortex and random field" if disturbance else "Taylor-Green vortex"
            rows.append((str(ranks), start, *(f"{x:.1e}" for x in most), "NO" if max(most) > ERROR else "yes"))
    heads = ("ranks", "start", "velocity", "energy", "enstrophy", f"within {ERROR:.0e}")
    title = f"spectral stages, {points}^3, largest errors after any of {steps} steps, float32 against float64"
    print_table(title, heads, rows)
    rows = []
    for (n, ranks), measured in SPECTRAL_STEPS_MS.items():
        ratio = (modelled := Sample(folder, Grid(n), ranks).step_ms()) / measured
        bad += abs(ratio - 1) > OFF
        word = "NO" if abs(ratio - 1) > OFF else "yes"
        rows.append((f"{n}^3", str(ranks), f"{measured:.4g}", f"{modelled:.4g}", f"{ratio:.2f}", word))
    heads = ("grid", "ranks", "measured ms", "modelled ms", "ratio", f"within {100 * OFF:.0f} %")
    print_table("a step of three stages on trn1 or inf2, against docs/results.md of the sample", heads, rows)
    return 1 if bad else 0
