"""Shapes and tiles that kernels are compiled for: a ladder of extents, blocks that fit a device, and what was found.

Found, for the kernels of one device: their best tiles, how long they compile, what is compiled.  It is kept beside
the calibration, for one runtime and machine; of another software, of other kernels or unreadable it is ignored, and
``ignored`` says why.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from trnpy._base import store
from trnpy._nki import kernels
from trnpy._nki.device import compile_cache, identity
from trnpy._nki.kernels.shared.parameters import TILINGS, Parameters, Tiles
from trnpy._nki.runtime import Runtime

BLOCK = 8192  # longest extent of one launch: 8192^3 takes 55 ms in float32 (modelled), far above a launch
STEPS = 4  # rungs an octave: an extent is padded by 25 % at most
SHORT = (16, 32, 64)  # below one tile of 128 only the link notices
FINE = (*SHORT, *(128 * (STEPS + i) * 2**octave // STEPS for octave in range(6) for i in range(STEPS)), BLOCK)
COARSE = (32, 128, 512, 2048, BLOCK)
VARIANTS = 64  # of one kernel on the fine ladder; a program that needs more shapes shares the coarse one

Extents = tuple[int, int, int]  # m, k, n
TileKey = tuple[str, str, Extents]  # a kernel, what its operands are, and the octaves of their extents

ALIKE: Mapping[str, str] = MappingProxyType({"float16": "bfloat16"})  # forms of one size and rate share their choices


def octaves(extents: Extents) -> Extents:
    """The shape bucket of a choice of tiles: extents rounded up to powers of two from a tile to BLOCK."""
    m, k, n = (min(max(128, 1 << (e - 1).bit_length()), BLOCK) for e in extents)
    return m, k, n


def rung(extent: int, ladder: tuple[int, ...] = FINE) -> int:
    """The first rung that is at least ``extent``, which is at most BLOCK."""
    return next(r for r in ladder if r >= extent)


class Buckets:
    """Which (m, k, n) and tiles each kernel variant is compiled for: at most VARIANTS fine shapes, then coarse ones."""

    def __init__(self, tiles: Mapping[TileKey, Tiles] = MappingProxyType({})) -> None:
        self._known: dict[str, set[Extents]] = {}
        self._tiles = tiles

    def tiles(self, kernel: str, form: str, extents: Extents, default: Parameters) -> Parameters:
        """``default`` with the tiles that were found best for such operands, where any were."""
        found = self._tiles.get((kernel, ALIKE.get(form, form), octaves(extents)))
        return default if found is None else replace(default, m_tiles=found[0], n_tiles=found[1], k_tiles=found[2])

    def fit(self, kernel: str, extents: Extents) -> Extents:
        """The extents, none below its own of ``extents``, of the variant to launch."""
        fine = (rung(extents[0]), rung(extents[1]), rung(extents[2]))
        known = self._known.setdefault(kernel, set())
        if fine in known or len(known) < VARIANTS:
            known.add(fine)
            return fine
        return rung(extents[0], COARSE), rung(extents[1], COARSE), rung(extents[2], COARSE)


def block(extents: Extents, itemsize: int, budget: float) -> Extents | None:
    """The largest blocks, at most BLOCK long, of which A, B, C and the sum so far fit ``budget`` bytes.

    None when not even blocks of the shortest rung do.
    """
    sizes = [min(e, BLOCK) for e in extents]
    while True:
        m, k, n = (rung(s) for s in sizes)
        if itemsize * (m * k + k * n) + 2 * 4 * m * n * max(itemsize // 4, 1) <= budget:
            return sizes[0], sizes[1], sizes[2]
        longest = max(range(3), key=lambda i: sizes[i])
        if sizes[longest] <= SHORT[0]:
            return None
        sizes[longest] = max(math.ceil(sizes[longest] / 2), SHORT[0])


def pieces(extent: int, size: int) -> list[slice]:
    """``extent`` cut into slices of ``size``, the last perhaps shorter."""
    return [slice(start, min(start + size, extent)) for start in range(0, extent, size)]


MOST_COMPILED = 4096  # calls remembered as compiled: beyond it the oldest are forgotten


@dataclass(frozen=True, slots=True)
class Choice:
    """The tiles of one kernel for operands of one form in one bucket of shapes."""

    kernel: str
    form: str  # "float32", "7 digits"
    bucket: Extents
    tiles: Tiles
    seconds: float
    measured: bool  # on a device; else modelled

    @property
    def key(self) -> TileKey:
        return self.kernel, self.form, self.bucket


@dataclass(frozen=True, slots=True)
class Tuning:
    """What the file of one runtime and machine holds."""

    choices: tuple[Choice, ...] = ()
    compile_s: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))  # by kernel, measured
    compiled: tuple[str, ...] = ()  # calls whose kernels the compile cache has
    ignored: str = ""  # why the file was not used

    @property
    def tiles(self) -> dict[TileKey, Tiles]:
        return {c.key: c.tiles for c in self.choices}


def path(runtime: str, machine: str) -> Path:
    return store.folder() / f"kernels-{runtime}-{machine}.json"


@functools.cache
def key(runtime: str) -> str:
    """What findings are valid for: the kernels' source, and on a device the software that compiles them."""
    import hashlib

    digest = hashlib.sha256()
    for source in sorted(kernels.FOLDER.rglob("*.py")):
        digest.update(source.read_bytes())
    return f"kernels {digest.hexdigest()[:12]}, {identity(runtime)}"


def load(runtime: str, machine: str) -> Tuning:
    """The findings kept for a runtime on a machine; none, with the reason, where the file is not for it."""
    found = store.read(path(runtime, machine), key(runtime), _parsed)
    return found.content or Tuning(ignored=found.ignored)


def _parsed(content: Any) -> Tuning:
    choices = tuple(_choice(entry) for entry in content["choices"])
    times = {str(kernel): _seconds(s) for kernel, s in content["compile_s"].items()}
    kept = content["compile_cache"] == compile_cache() and _exists(compile_cache())
    compiled = tuple(str(call) for call in content["compiled"]) if kept else ()
    return Tuning(choices, MappingProxyType(times), compiled)


def _exists(cache: str) -> bool:
    """Whether a compile cache may still hold what was compiled; of a remote one that is taken for granted."""
    return "://" in cache or Path(cache).exists()


def _choice(entry: dict[str, Any]) -> Choice:
    m, k, n = (int(e) for e in entry["bucket"])
    tiles = (int(entry["tiles"][0]), int(entry["tiles"][1]), int(entry["tiles"][2]))
    if tiles not in TILINGS:
        raise ValueError(f"tiles {tiles}")
    if not isinstance(entry["measured"], bool):
        raise ValueError(f"measured is {entry['measured']!r}, neither true nor false")
    return Choice(entry["kernel"], entry["form"], (m, k, n), tiles, _seconds(entry["seconds"]), entry["measured"])


def _seconds(value: Any) -> float:
    if not 0 < float(value) < math.inf:
        raise ValueError(f"{value} s")
    return float(value)


def save(found: Tuning, runtime: str, machine: str) -> Path:
    """Keep ``found``, and of what is kept already what it does not replace."""
    old = load(runtime, machine)
    choices = {c.key: c for c in (*old.choices, *found.choices)}
    compiled = tuple(dict.fromkeys((*old.compiled, *found.compiled)))[-MOST_COMPILED:]
    content = {
        "choices": [
            {"kernel": c.kernel, "form": c.form, "bucket": c.bucket, "tiles": c.tiles, "seconds": c.seconds,
             "measured": c.measured}
            for c in choices.values()
        ],
        # The longest: a kernel that the compile cache has is soon there, and says nothing of compiling.
        "compile_s": {
            k: max(times.get(k, 0.0) for times in (old.compile_s, found.compile_s))
            for k in (*old.compile_s, *found.compile_s)
        },
        "compile_cache": compile_cache(),
        "compiled": compiled,
    }  # fmt: skip
    return store.write(path(runtime, machine), content, key(runtime))


# Instructions that kernels for 1024^3 compile to (tests/_engine/test_tuning.py holds them to the traces).
INSTRUCTIONS: Mapping[str, int] = MappingProxyType(
    {"matmul": 300, "digits_split": 180, "abs_bound": 150, "digits_matmul": 1300}
)
NUMBERS = ("matmul",)
DIGITS = ("digits_split", "digits_split", "abs_bound", "digits_matmul")  # both operands', and the product's
INTEGERS = ("digits_split", "digits_split", "digits_matmul")


class Compiles:
    """What compiling for a call takes that a device has not seen: nothing where nothing is compiled.

    A call that would pay but for compiling stays on the host until the seconds so lost are those of compiling:
    never more than twice what knowing the future would cost.
    """

    def __init__(self, runtime: Runtime | None = None, tuning: Tuning | None = None) -> None:
        self._runtime = runtime
        self._times = dict(tuning.compile_s) if tuning else {}
        self._compiled = set(tuning.compiled) if tuning else set()
        self._lost: dict[str, float] = {}

    @property
    def active(self) -> bool:
        """Whether a launch of new shapes takes seconds."""
        return self._runtime is not None and self._runtime.compiles

    def seconds(self, op: str, arrays: Iterable[np.ndarray], dtype: np.dtype, precision: str) -> float:
        """Predicted seconds of compiling the kernels of a call, less what waiting for them has cost."""
        if not self.active:
            return 0.0
        call = _call(op, arrays, dtype, precision)
        if call in self._compiled:
            return 0.0
        return max(sum(map(self._kernel_s, _kernels(dtype, precision))) - self._lost.get(call, 0.0), 0.0)

    def _kernel_s(self, kernel: str) -> float:
        from trnpy._nki.simulator.price.cost import compiling_s

        instructions = INSTRUCTIONS[kernel]  # in one loop, as most are
        return self._times.get(kernel, compiling_s(instructions, 1, instructions))

    def lose(self, op: str, arrays: Iterable[np.ndarray], dtype: np.dtype, precision: str, seconds: float) -> None:
        """Note a call that the host computed ``seconds`` slower than the device would have."""
        if self.active:
            call = _call(op, arrays, dtype, precision)
            self._lost[call] = self._lost.get(call, 0.0) + seconds

    def ran(self, op: str, arrays: Iterable[np.ndarray], dtype: np.dtype, precision: str) -> None:
        """Note, and keep, that the device has computed a call, and the seconds that its kernels took to compile."""
        if not self.active or self._runtime is None:
            return
        call, times = _call(op, arrays, dtype, precision), self._runtime.counters.compile_s
        if call in self._compiled:
            return
        self._compiled.add(call)
        self._times.update({kernel: max(s, self._times.get(kernel, 0.0)) for kernel, s in times.items()})
        # Where nothing can be kept, as the doctor says, the next process asks the compile cache again.
        with contextlib.suppress(OSError):
            save(Tuning(compile_s=dict(times), compiled=(call,)), self._runtime.name, self._runtime.hardware.name)


def _kernels(dtype: np.dtype, precision: str) -> tuple[str, ...]:
    """The kernels of one product."""
    if dtype.kind in "iub":
        return INTEGERS
    return DIGITS if precision == "matched" and dtype.char in "dD" else NUMBERS


def _call(op: str, arrays: Iterable[np.ndarray], dtype: np.dtype, precision: str) -> str:
    """A call by what its kernels are compiled for: extents as they are rounded up."""
    shapes = ("x".join(str(_rounded(e)) for e in np.shape(a)) for a in arrays)
    return " ".join((op, dtype.name, precision, *shapes))


def _rounded(extent: int) -> int:
    return rung(extent) if extent <= FINE[-1] else FINE[-1] * math.ceil(extent / FINE[-1])


__all__ = ["Choice", "Compiles", "Tuning", "load", "path", "save"]
