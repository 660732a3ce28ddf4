"""Shapes and tiles that kernels are compiled for: shape buckets, slices of a product, and a tuning file.

The tuning file of a runtime and machine has the best tiles of its kernels, their compile times, and the calls that are
compiled. It lies beside the calibration. A file of other software or other kernels, or an unreadable one, is ignored;
``ignored`` gives the reason.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from nkisim.hardware import EFFICIENCY, FLOAT64_PASSES, Hardware, compiling_s
from trnpy._base import store
from trnpy._base.records import record
from trnpy._engine.precision import launches
from trnpy._nki import kernels
from trnpy._nki.device import compile_cache, identity
from trnpy._nki.kernels.shared.parameters import TILINGS, Parameters, Tiles
from trnpy._nki.runtime import Runtime
from trnpy._settings import tile

BLOCK = tile.length(8192)  # longest extent of one launch: 8192^3 takes 57 ms in float32 (modelled), a launch far less
STEPS = 4  # shape buckets per octave: an extent is padded by at most 25 %
SHORT = (16, 32, 64)  # below one tile of 128 the padding only costs transfers
LADDER = (*SHORT, *(128 * (STEPS + i) * 2**octave // STEPS for octave in range(6) for i in range(STEPS)))
FINE = (*(r for r in LADDER if r < BLOCK), BLOCK)
COARSE = (*(r for r in (32, 128, 512, 2048) if r < BLOCK), BLOCK)
VARIANTS = 64  # shapes of one kernel with fine buckets; all further shapes are padded to coarse buckets
OWN = 11  # shapes of array products with kernels of their own; all further products are cut into fixed lengths

Lengths = tuple[int, ...]  # of slices, the shortest first
Cut = tuple[slice, int]  # a slice of an extent, and its padded length

# Sums of few of these are close to any extent. They were found by simulated annealing over random products
# (docs/programs.md#how-a-product-is-launched); fewer than three lengths pad by more than a quarter.
ALONG = tile.length(384, least=16), tile.length(640, least=32), tile.length(2048, least=64)
# Slices of K with digits: each has a result of its own, which is transferred, so there should be few.
ALONG_DIGITS = tile.length(1024, least=16), tile.length(2048, least=32), tile.length(4096, least=64)
# Fraction of a launch's time. With 1, products of extents up to 4096 are padded by 30 % and take 3 % less time.
LAUNCH_SHARE = 1 / 3
WAYS = 6  # to cut one extent
ODD = 4  # multiple of the longest slice: beyond it an extent has only longest slices

Extents = tuple[int, int, int]  # m, k, n
TileKey = tuple[str, str, Extents]  # a kernel, the form of its operands, and the octaves of their extents

ALIKE: Mapping[str, str] = MappingProxyType({"float16": "bfloat16"})  # forms of equal size and speed share tiles


def octaves(extents: Extents) -> Extents:
    """The shapes that share one choice of tiles: extents rounded up to powers of two between a tile and BLOCK."""
    m, k, n = (min(max(128, 1 << (e - 1).bit_length()), BLOCK) for e in extents)
    return m, k, n


def rung(extent: int, ladder: tuple[int, ...] = FINE) -> int:
    """The smallest shape bucket that holds ``extent``, which is at most BLOCK."""
    return next(r for r in ladder if r >= extent)


class Cuts(NamedTuple):
    """Slices of m, k and n, and whether they have the fixed lengths of this file."""

    rows: list[Cut]
    inner: list[Cut]
    columns: list[Cut]
    fixed: bool


@record()
class Price:
    """Modelled costs of a product's launches in seconds, and the lengths into which K may be cut."""

    launch_s: float
    flop_s: float
    send_s: float  # per element of an operand
    fetch_s: float  # per element of a result
    along: Lengths
    fetched: bool  # whether the result of each slice of K is transferred; if not, they are added on the device
    parts: int = 1  # real products of each slice

    def adds(self, slices: int) -> bool:
        """Whether launches for ``slices`` slices of K add to the sums of earlier ones."""
        return not self.fetched and slices * self.parts > 1

    def seconds(self, ways: tuple[Lengths, ...]) -> float:
        """Seconds of launches along m, k and n in slices of these lengths."""
        m, k, n = map(sum, ways)
        results = len(ways[1]) if self.fetched else 1
        launched = self.launch_s * LAUNCH_SHARE * math.prod(map(len, ways))
        return launched + self.flop_s * 2 * m * k * n + self.send_s * (m + n) * k + self.fetch_s * m * n * results


def of_numbers(hardware: Hardware, dtype: np.dtype, form: str) -> Price:
    """The cost of a product of ``dtype`` that TensorE multiplies as ``form``; sums are float32."""
    parts, itemsize = (2 if dtype.kind == "c" else 1), 4 if form == "float32" else 2
    flop_s = parts**2 / (hardware.flops_per_s[form] * EFFICIENCY)
    send_s, fetch_s = parts * itemsize / hardware.link_bytes_per_s, parts * 4 / hardware.unlink_bytes_per_s
    return Price(parts**2 * hardware.launch_s, flop_s, send_s, fetch_s, ALONG, False, parts**2)


def of_digits(hardware: Hardware, dtype: np.dtype) -> Price:
    """The cost of a product with digits: seven for float64, and one for each byte of an integer."""
    parts, each = (4 if dtype.kind == "c" else 1), dtype.itemsize
    passes = FLOAT64_PASSES if dtype.kind in "fc" else each * (each + 1) / 2
    flop_s = parts * passes / (hardware.flops_per_s["bfloat16"] * EFFICIENCY)
    send_s, fetch_s = each / hardware.link_bytes_per_s, each / hardware.unlink_bytes_per_s
    launch_s = launches(dtype, "matched") * hardware.launch_s
    return Price(launch_s, flop_s, send_s, fetch_s, ALONG_DIGITS, True)


def cheapest(extents: tuple[int, int, int], sizes: tuple[int, int, int], price: Price) -> Cuts:
    """The slices of m, k and n, within ``sizes``, that take the least time."""
    found = [
        ways(extent, tuple(x for x in lengths if x <= size) or lengths[:1])
        for extent, size, lengths in zip(extents, sizes, (ALONG, price.along, ALONG), strict=True)
    ]
    best = min(itertools.product(*found), key=price.seconds)
    rows, inner, columns = (_placed(extent, slices) for extent, slices in zip(extents, best, strict=True))
    return Cuts(rows, inner, columns, fixed=True)


@functools.lru_cache(maxsize=4096)
def ways(extent: int, lengths: Lengths) -> tuple[Lengths, ...]:
    """Slices of ``lengths``, the longest first, that cover ``extent``: one way for each number that reduces padding."""
    longest = lengths[-1]
    whole = max(math.ceil(extent / longest) - ODD, 0)
    rest = extent - whole * longest
    found: list[Lengths] = []
    for count in itertools.count(math.ceil(rest / longest)):
        covering = [x for x in itertools.combinations_with_replacement(lengths[::-1], count) if sum(x) >= rest]
        least = min(covering, key=sum)
        if not found or sum(least) < sum(found[-1]):
            found.append(least)
        if len(found) == WAYS or count * lengths[0] >= rest:
            return tuple((longest,) * whole + x for x in found)
    raise AssertionError("there are enough of the shortest slices")


def _placed(extent: int, slices: Lengths) -> list[Cut]:
    starts = itertools.accumulate(slices, initial=0)
    return [(slice(at, min(at + length, extent)), length) for at, length in zip(starts, slices, strict=False)]


class Buckets:
    """The (m, k, n) and tiles that kernels are compiled for: at most VARIANTS fine shapes each, then coarse ones."""

    def __init__(self, tiles: Mapping[TileKey, Tiles] = MappingProxyType({})) -> None:
        self._known: dict[str, set[Extents]] = {}
        self._cut: dict[str, set[tuple[int, int, int, int]]] = {}
        self._tiles = tiles

    def tiles(self, kernel: str, form: str, extents: Extents, default: Parameters) -> Parameters:
        """``default``, with the best tiles for such operands if the tuning file has any."""
        found = self._tiles.get((kernel, ALIKE.get(form, form), octaves(extents)))
        return default if found is None else replace(default, m_tiles=found[0], n_tiles=found[1], k_tiles=found[2])

    def fit(self, kernel: str, extents: Extents) -> Extents:
        """The extents of the compiled variant to launch, each at least that of ``extents``."""
        fine = (rung(extents[0]), rung(extents[1]), rung(extents[2]))
        known = self._known.setdefault(kernel, set())
        if fine in known or len(known) < VARIANTS:
            known.add(fine)
            return fine
        return rung(extents[0], COARSE), rung(extents[1], COARSE), rung(extents[2], COARSE)

    def owns(self, kernel: str, extents: Extents) -> bool:
        """Whether launches of these extents, with fine buckets, are among the first OWN variants of products."""
        m, k, n = (rung(e) for e in extents)
        return self._take(kernel, {(m, k, n, 0)})

    def _take(self, kernel: str, variants: set[tuple[int, int, int, int]]) -> bool:
        """Add variants to those of a kernel, if there are at most OWN of them afterwards."""
        known = self._cut.setdefault(kernel, set())
        if len(known | variants) > OWN:
            return False
        known |= variants
        return True

    def cut(self, kernel: str, extents: Extents, sizes: Extents, price: Price) -> Cuts:
        """How a product of arrays is divided into launches whose blocks are at most ``sizes``.

        The first shapes are cut as little as possible and padded to fine buckets; they may use OWN variants. All other
        shapes are cut into fixed lengths, so that a kernel has at most OWN + 27 variants in any program.
        """
        limits = list(zip(extents, sizes, strict=True))
        least: list[list[Cut]] = [[(s, rung(s.stop - s.start)) for s in pieces(e, size)] for e, size in limits]
        variants = range(2 if price.adds(len(least[1])) else 1)  # without and with an earlier sum
        fine = {(m[1], k[1], n[1], v) for m, k, n in itertools.product(*least) for v in variants}
        if self._take(kernel, fine) or any(size < min(e, ALONG[0]) for e, size in limits):  # or memory is short
            return Cuts(least[0], least[1], least[2], fixed=False)
        m, k, n = (rung(size) for size in sizes)
        return cheapest(extents, (m, k, n), price)


def block(extents: Extents, itemsize: int, budget: float) -> Extents | None:
    """The largest blocks, at most BLOCK long, for which A, B, C and the partial sum fit ``budget`` bytes.

    None if even blocks of the smallest shape bucket do not fit.
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
    """``extent`` cut into slices of ``size``, of which the last may be shorter."""
    return [slice(start, min(start + size, extent)) for start in range(0, extent, size)]


MOST_COMPILED = 4096  # calls in the list of compiled ones; the oldest are dropped


@record()
class Choice:
    """The tiles of one kernel for operands of one form in one bucket of shapes."""

    kernel: str
    form: str  # "float32", "7 digits"
    bucket: Extents
    tiles: Tiles
    seconds: float
    measured: bool  # whether ``seconds`` was measured on a device; otherwise it is modelled

    @property
    def key(self) -> TileKey:
        return self.kernel, self.form, self.bucket


@record()
class Tuning:
    """The tuning file of one runtime and machine."""

    choices: tuple[Choice, ...] = ()
    compile_s: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))  # by kernel, measured
    compiled: tuple[str, ...] = ()  # calls whose kernels are in the compile cache
    ignored: str = ""  # why the file was not used

    @property
    def tiles(self) -> dict[TileKey, Tiles]:
        return {c.key: c.tiles for c in self.choices}


def path(runtime: str, machine: str) -> Path:
    return store.folder() / f"kernels-{runtime}-{machine}.json"


@functools.cache
def key(runtime: str) -> str:
    """The validity key of a tuning file: the kernels' source and, on a device, the compiler's software versions."""
    import hashlib

    digest = hashlib.sha256()
    for source in sorted(kernels.FOLDER.rglob("*.py")):
        digest.update(source.read_bytes())
    return f"kernels {digest.hexdigest()[:12]}, {identity(runtime)}"


def load(runtime: str, machine: str) -> Tuning:
    """The tuning file of a runtime on a machine; empty, with the reason, if the file does not apply."""
    found = store.read(path(runtime, machine), key(runtime), _parsed)
    return found.content or Tuning(ignored=found.ignored)


def _parsed(content: Any) -> Tuning:
    choices = tuple(_choice(entry) for entry in content["choices"])
    times = {str(kernel): _seconds(s) for kernel, s in content["compile_s"].items()}
    kept = content["compile_cache"] == compile_cache() and _exists(compile_cache())
    compiled = tuple(str(call) for call in content["compiled"]) if kept else ()
    return Tuning(choices, MappingProxyType(times), compiled)


def _exists(cache: str) -> bool:
    """Whether the compile cache still exists; a remote one is assumed to."""
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
    """Merge ``found`` into the tuning file."""
    old = load(runtime, machine)
    choices = {c.key: c for c in (*old.choices, *found.choices)}
    compiled = tuple(dict.fromkeys((*old.compiled, *found.compiled)))[-MOST_COMPILED:]
    content = {
        "choices": [
            {"kernel": c.kernel, "form": c.form, "bucket": c.bucket, "tiles": c.tiles, "seconds": c.seconds,
             "measured": c.measured}
            for c in choices.values()
        ],
        # The longest time: a kernel loaded from the compile cache is fast, which does not show the compile time.
        "compile_s": {
            k: max(times.get(k, 0.0) for times in (old.compile_s, found.compile_s))
            for k in (*old.compile_s, *found.compile_s)
        },
        "compile_cache": compile_cache(),
        "compiled": compiled,
    }  # fmt: skip
    return store.write(path(runtime, machine), content, key(runtime))


# Instructions of kernels for 1024^3 (tests/_engine/test_tuning.py compares them with traces).
INSTRUCTIONS: Mapping[str, int] = MappingProxyType(
    {"matmul": 260, "digits_split": 820, "float64_digits": 1700, "abs_bound": 310, "float64_matmul": 5000}
)
NUMBERS = ("matmul",)
DIGITS = ("float64_digits", "float64_digits", "abs_bound", "float64_matmul")  # one split for each operand
INTEGERS = ("digits_split", "digits_split", "float64_matmul")


class Compiles:
    """The compile time of kernels for calls that are new to a device; 0 if the runtime does not compile.

    If only the compile time makes the device slower, the call stays on the host until the accumulated loss equals the
    compile time. This costs at most twice the best choice in hindsight.
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
        """Predicted compile time of the kernels of a call, minus the time lost without them so far."""
        if not self.active:
            return 0.0
        call = kind(op, arrays, dtype, precision)
        if call in self._compiled:
            return 0.0
        return max(sum(map(self._kernel_s, _kernels(dtype, precision))) - self._lost.get(call, 0.0), 0.0)

    def _kernel_s(self, kernel: str) -> float:
        return self._times.get(kernel, compiling_s(INSTRUCTIONS[kernel], regions=0, looped=0))

    def lose(self, op: str, arrays: Iterable[np.ndarray], dtype: np.dtype, precision: str, seconds: float) -> None:
        """Add the ``seconds`` by which the host was slower than the device would have been."""
        if self.active:
            call = kind(op, arrays, dtype, precision)
            self._lost[call] = self._lost.get(call, 0.0) + seconds

    def ran(self, op: str, arrays: Iterable[np.ndarray], dtype: np.dtype, precision: str) -> None:
        """Record, also in the file, that the device has computed a call, and the compile times of its kernels."""
        if not self.active or self._runtime is None:
            return
        call, times = kind(op, arrays, dtype, precision), self._runtime.counters.compile_s
        if call in self._compiled:
            return
        self._compiled.add(call)
        self._times.update({kernel: max(s, self._times.get(kernel, 0.0)) for kernel, s in times.items()})
        # If the file cannot be written, which the doctor reports, the next process queries the compile cache again.
        with contextlib.suppress(OSError):
            save(Tuning(compile_s=dict(times), compiled=(call,)), self._runtime.name, self._runtime.hardware.name)


def _kernels(dtype: np.dtype, precision: str) -> tuple[str, ...]:
    """The kernels that one product launches."""
    if dtype.kind in "iub":
        return INTEGERS
    return DIGITS if precision == "matched" and dtype.char in "dD" else NUMBERS


def kind(op: str, arrays: Iterable[np.ndarray], dtype: np.dtype, precision: str) -> str:
    """A string that identifies all shapes for which the kernels of a call are compiled, rounded to shape buckets."""
    shapes = ("x".join(str(_rounded(e)) for e in np.shape(a)) for a in arrays)
    return " ".join((op, dtype.name, precision, *shapes))


def _rounded(extent: int) -> int:
    return rung(extent) if extent <= FINE[-1] else FINE[-1] * math.ceil(extent / FINE[-1])


__all__ = ["Choice", "Compiles", "Tuning", "kind", "load", "path", "save"]
