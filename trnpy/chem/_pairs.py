"""MP2 pair energies in the kernel mp2_energy.

Occupied orbitals are sent in blocks, their integrals as digits (integer slices) or float32 numbers. Virtual orbitals
are divided into blocks as well. A launch computes a list of *cells*: a pair of occupied orbitals with a pair of blocks
of virtual orbitals. If there are several NeuronCores, each has all integrals of two blocks of occupied orbitals, and
computes a share of their pairs.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from typing import Any, Protocol

import numpy as np

from nkisim.hardware import Hardware
from trnpy._base.records import record
from trnpy._engine import float64_products
from trnpy._engine.abstract_arrays import StandIn, priced, usual
from trnpy._engine.at_once import beside, each, in_turn
from trnpy._engine.engines import Engine, Held
from trnpy._engine.proof.checksums import Wrong
from trnpy._nki.kernels.chem import mp2_energy_reference as reference
from trnpy._nki.kernels.products import float64_digits_reference
from trnpy._nki.kernels.shared.parameters import SPARE_BYTES
from trnpy.chem._progress import track

TILE = 128
BASE = 256.0
GRAIN = 16  # blocks have a multiple of this many virtual orbitals, so that few variants are compiled
LONGEST_SPAN = 448  # virtuals in a block: twice the digits of two blocks with 1024 auxiliary functions fit in SBUF
GRID_BITS = 16  # of the leading part of a gap: its product with an integer of 8 bits is exact in float32
PROGRAM = 10_000  # products of 128 rows in a program without a loop: up to 25,000 instructions from 512 auxiliaries on
STEPS = 64  # shape buckets of pairs in each octave: at most 3 % of a launch is padding
SPLIT_BYTES = 8 + 8 + 2  # of an integral that becomes digits: its words, those of its integer, and its magnitude
CACHED = 1 << 15  # integrals converted at a time: they and their integers stay in the second-level cache
WIDEST_SHIFT = 1000  # largest binary exponent that one scale factor removes
SQUARABLE = 1e100  # sums of squares of numbers up to it, and of numbers down to its inverse, are normal
SIZES_READ = 1.25  # times the time for the largest entry, because the same pass adds up squares (EPYC, one thread)
LARGEST_H = 7  # bits and a sign of the leading part of an integral
CHUNKS = (8, 6, 4, 2, 1)  # tiles of 128 auxiliary functions in SBUF at once, in two buffers; the largest that fits


class Orbitals(Protocol):
    """Integrals and energies of one spin: b (nocc, nvir, naux), occ (nocc,) and vir (nvir,) in Hartree."""

    @property
    def b(self) -> np.ndarray: ...
    @property
    def occ(self) -> np.ndarray: ...
    @property
    def vir(self) -> np.ndarray: ...


class Unfit(Exception):
    """The kernel cannot compute these orbitals; the message is a phrase that gives the reason."""


@record()
class Shape:
    """The virtual orbitals of two spins in blocks of ``span``, and K in chunks of ``k_tiles`` tiles."""

    span: int
    left: int  # blocks of virtuals that belong to the left occupied orbital
    right: int
    digits: int  # of each integral; 1 means float32 numbers
    k_tiles: int

    @property
    def cells(self) -> int:
        """Entries of one pair in the tables of a launch."""
        return 2 * self.left * self.right

    def sbuf_bytes(self, naux: int) -> int:
        """Bytes in one partition of SBUF: digits, row sums and their stores, two sets of work tiles, gaps, tables."""
        item = 4 if self.digits == 1 else 2
        panels = min(2 * self.k_tiles, -(-naux // TILE)) * 2 * self.digits * self.span * item
        tiles = -(-self.span // TILE)
        rows = self.span * (2 * 4 * max(tiles, 2) + 6 * tiles * (1 if self.left == self.right == 1 else 2))
        works = 2 * self.span * (9 * 4 + 2 * 2)
        return panels + rows + works + 3 * self.span * 4 + 3 * TILE * 4 + 6 * reference.MOST_PLACES


def shape(nvir: tuple[int, int], naux: int, digits: int, machine: Hardware) -> Shape:
    """The blocks for which TensorE streams the fewest columns; Unfit if they do not fit in SBUF."""

    def columns(span: int) -> int:
        blocks = math.prod(-(-n // span) for n in nvir)
        return blocks * -(-span // TILE) * max(span, TILE // 2)

    spans = range(GRAIN, min(LONGEST_SPAN, -(-max(nvir) // GRAIN) * GRAIN) + 1, GRAIN)
    span = min(spans, key=lambda s: (columns(s), -s))
    left, right = (-(-n // span) for n in nvir)
    for k_tiles in CHUNKS:
        found = Shape(span, left, right, digits, k_tiles)
        if found.sbuf_bytes(naux) + SPARE_BYTES <= machine.sbuf_bytes_per_partition:
            return found
    raise Unfit(f"{digits} digits of {span} virtuals do not fit the SBUF of {machine.name}")


@record()
class Scaled:
    """Integrals of some occupied orbitals on each core, scaled: (ia|jb) = 2^-(shift_i + shift_j) V."""

    columns: Sequence[Held]  # (digits, naux, nocc blocks span)
    gaps: Sequence[Held]  # (3, nocc blocks span)
    shift: np.ndarray  # (nocc,)
    largest: float  # bound of V for pairs of these orbitals


# Digits or numbers on each core, shifts of the orbitals, square of the largest norm.
Columns = tuple[Sequence[Held], np.ndarray, float]


@record()
class Plan:
    """The pairs of two spins, or of two parts of one spin, in blocks of occupied orbitals; i >= j within a part."""

    left: Orbitals
    right: Orbitals
    cut: Shape
    sizes: tuple[int, int]  # orbitals of a block of either spin
    blocks: tuple[tuple[int, int], ...]  # the first orbitals of two blocks
    exchange: bool  # whether both are of one spin
    parity: int | None = None  # of i + j, if only such pairs are wanted

    @property
    def same(self) -> bool:
        return self.left is self.right

    @property
    def flops(self) -> float:
        """Operations of the kernel."""
        n, m = len(self.left.occ), len(self.right.occ)
        pairs = n * (n + 1) // 2 if self.same else -(-n * m // (1 if self.parity is None else 2))
        blocks = pairs * self.cut.left * self.cut.right
        return reference.operations(self.cut.digits, padded(self.left), self.cut.span, blocks)


def planned(
    engine: Engine, left: Orbitals, right: Orbitals, digits: int, memory: float, exchange: bool | None = None,
    parity: int | None = None,
) -> Plan:  # fmt: skip
    """The blocks of pairs of two spins for ``engine`` and at most ``memory`` bytes of workspace on the host.

    ``digits`` is the number of digits of an integral, or 1 for float32 numbers. With ``exchange``, both are parts of
    one spin. Raises Unfit if one orbital is too large.
    """
    cut = shape((len(left.vir), len(right.vir)), left.b.shape[2], digits, engine.machine)
    of_left, of_right = (
        _orbitals(s, n * cut.span, digits, memory, engine.room) for s, n in ((left, cut.left), (right, cut.right))
    )
    blocks = tuple(
        (i, j)
        for i in range(0, len(left.occ), of_left)
        for j in range(0, (i + 1) if left is right else len(right.occ), of_right)
    )
    return Plan(left, right, cut, (of_left, of_right), blocks, left is right if exchange is None else exchange, parity)


@record(frozen=False)
class Cores:
    """The cores that share the pairs, and the integrals that they keep."""

    engines: Sequence[Engine]
    room: float  # elements that each core may still keep
    # Keys: the spin, the padded number of virtuals, and the first orbital of the block.
    kept: dict[tuple[int, int, int], Columns] = field(default_factory=dict)

    def keep(self, key: tuple[int, int, int], columns: Columns, elements: int) -> None:
        """Keep a block of orbitals if there is room."""
        if key not in self.kept and elements <= self.room:
            self.kept[key] = columns
            self.room -= elements


def shared(engine: Engine, plans: Sequence[Plan]) -> Cores:
    """The cores of ``engine`` that share the pairs of all ``plans``, as many as pay."""
    digits, naux = plans[0].cut.digits, padded(plans[0].right)
    columns = [plan.cut.right * plan.cut.span for plan in plans]
    spins = {(id(plan.right), n): len(plan.right.occ) * n for plan, n in zip(plans, columns, strict=True)}
    block = max(plan.sizes[1] * n for plan, n in zip(plans, columns, strict=True)) * naux
    blocks, once, item = sum(len(plan.blocks) for plan in plans), sum(spins.values()) * naux, sent_bytes(digits)
    kept = 4 if digits == 1 else 2 * digits  # bytes of an element on the device; ``item`` in a transfer
    while_split = item if digits == 1 else SPLIT_BYTES
    fits = once * kept + block * while_split <= engine.room
    room = once if fits else max(engine.room - 2 * block * (kept + while_split), 0) / kept
    # Each block of pairs needs about one more block of orbitals, which is sent again if it is not kept.
    sent = item * (once + max(blocks * block - once, 0) * (1 - min(room / once, 1)))
    flops, form = sum(plan.flops for plan in plans), "float32" if digits == 1 else "bfloat16"
    return Cores(engine.shares(flops, form, (1 + (digits > 1)) * blocks, sent), room)


def padded(spin: Orbitals) -> int:
    """Auxiliary functions in whole tiles."""
    return int(-(-spin.b.shape[2] // TILE) * TILE)


def energies(cores: Cores, plan: Plan) -> tuple[np.ndarray, np.ndarray | None]:
    """Direct and, within one spin, exchange energies (nocc, nocc) of the pairs, in Hartree; 0 for unwanted pairs.

    Raises Unfit if energies of occupied and virtual orbitals overlap.
    """
    left, right, cut, sizes, same = plan.left, plan.right, plan.cut, plan.sizes, plan.same
    gap = usual((left.vir.min() - left.occ.max()) + (right.vir.min() - right.occ.max()), 1.0)
    if not gap > 0:
        raise Unfit(f"the smallest denominator is {gap:.3g} Hartree, not above zero")
    widest = usual((left.vir.max() - left.occ.min()) + (right.vir.max() - right.occ.min()), 8.0)
    octave = -math.frexp(gap)[1]  # scales the smallest gap to between one half and one
    grid = 2.0 ** (math.frexp(widest * 2.0**octave)[1] - GRID_BITS)
    direct = np.zeros((len(left.occ), len(right.occ)), like=left.b)
    crossed = np.zeros_like(direct) if plan.exchange else None
    put = functools.partial(_put, cores, cut, octave=octave, grid=grid)
    kept: dict[int, Scaled] = {}
    for i, j in track(plan.blocks, "DF-MP2 blocks of pairs"):
        if i not in kept:
            kept = {i: put(left, i, sizes[0], cut.left)}
        rows = kept[i]
        columns = rows if same and i == j else put(right, j, sizes[1], cut.right)
        pairs = [
            (x, y)
            for x in range(len(rows.shift))
            for y in range(x + 1 if rows is columns else len(columns.shift))
            if plan.parity in (None, (i + x + j + y) % 2)
        ]
        found = _launches(cores.engines, cut, rows, columns, pairs, plan.exchange)
        scale = 2.0**octave * np.ldexp(1.0, -2 * (rows.shift[:, None] + columns.shift))
        shape_of = np.s_[i : i + len(rows.shift), j : j + len(columns.shift)]
        direct[shape_of] = found[0] * scale
        if crossed is not None:
            crossed[shape_of] = found[1] * scale
    if same:
        for e in (direct, crossed):
            if e is not None:
                e += np.tril(e, -1).T
    zero = np.zeros(direct.shape)  # of a dry run
    return usual(direct, zero), None if crossed is None else usual(crossed, zero)


def word_bytes(digits: int) -> int:
    """Bytes of an integral that the host splits."""
    return 4 if digits <= 4 else 8


def sent_bytes(digits: int) -> int:
    """Bytes of an integral in a host-device transfer, and in the host's workspace."""
    return 4 if digits == 1 else 8


def _orbitals(spin: Orbitals, columns: int, digits: int, memory: float, room: float) -> int:
    """The number of occupied orbitals in one block; Unfit if not even one fits."""
    orbital, copied = columns * padded(spin), digits == 1 or spin.b.shape[1:] != (columns, padded(spin))
    size = min(
        int(memory // (sent_bytes(digits) * orbital)) if copied else len(spin.occ),
        reference.LARGEST // (max(digits, 8) * orbital),
        int(room // (orbital * (2 * digits + SPLIT_BYTES) * 2)),  # of two blocks
        len(spin.occ),
    )
    if size < 1:
        raise Unfit(f"one occupied orbital with {columns} columns of {padded(spin)} does not fit")
    return int(size)


def _put(
    cores: Cores, cut: Shape, spin: Orbitals, first: int, size: int, blocks: int, *, octave: int, grid: float
) -> Scaled:
    """Send ``size`` occupied orbitals from ``first`` on to each core, with virtuals padded to whole blocks."""
    wide, key = blocks * cut.span, (id(spin), blocks * cut.span, first)
    occ, nvir = spin.occ[first : first + size], len(spin.vir)
    columns = cores.kept.get(key) or _columns(cores.engines, spin.b[first : first + size], cut.digits, wide)
    cores.keep(key, columns, len(occ) * wide * padded(spin))
    x = (spin.vir - occ[:, None]) * 2.0**octave
    gaps = np.ones((3, len(occ), wide), like=occ)
    coarse = np.rint(x / grid) * grid
    gaps[:, :, :nvir] = x, coarse, x - coarse
    gaps[2, :, nvir:] = 0.0
    table = gaps.reshape(3, -1).astype(np.float32)
    return Scaled(columns[0], each(cores.engines, lambda core, _: core.hold(table)), columns[1], columns[2])


def _columns(cores: Sequence[Engine], b: np.ndarray, digits: int, wide: int) -> Columns:
    """The integrals of some orbitals on each core; a single core may have them from an earlier call."""
    if len(cores) > 1:
        return _sent(cores, b, digits, wide)
    return cores[0].keep(b, ("orbitals", digits, wide), lambda: _sent(cores, b, digits, wide))


def _sent(cores: Sequence[Engine], b: np.ndarray, digits: int, wide: int) -> Columns:
    """Send the integrals of some orbitals to each core, each orbital with one exponent.

    V is in units of the highest group of digits. float64 is sent unchanged, while the host determines the scales, and
    each core makes its digits, unless numbers are too small or naux too large for the kernel.
    """
    deep = -(-b.shape[2] // TILE) * TILE
    there = digits > 1 and deep <= float64_digits_reference.COLUMNS
    measured = _measuring(b, there, cores[0].parallel)
    words = _words(b, wide, deep) if there else b
    held: Sequence[Held] = each(cores, lambda core, _: core.hold(words)) if there else []
    largest, squares = measured()
    if not usual(np.isfinite(squares).all(), True):
        raise Unfit("integrals are not finite")
    top = 1.0 if digits == 1 else 127.0 * (BASE**digits - 1) / (BASE - 1)
    limit, exponent = math.frexp(top * (1 - 2.0**-50))
    fraction, own = np.frexp(np.where(largest > 0, largest, 1.0))
    shift = exponent - own - (fraction > limit)
    if usual(np.abs(shift).max() >= WIDEST_SHIFT, False):
        raise Unfit(f"integrals of an orbital are at most {largest.min():.3g} or {largest.max():.3g}")
    scale = np.exp2(shift)
    norm = usual((squares * np.square(largest * scale)).max(), 1.0)
    tops = float64_products.shift_of(digits, shift)  # shift_of is its own inverse
    if digits == 1:
        numbers = _numbers(b, scale, wide, deep)
        columns = each(cores, lambda core, _: core.hold(numbers))
    elif there and usual(tops.min() >= float64_digits_reference.FAINTEST, True):
        rows = (tops[:, np.newaxis] + np.zeros(wide)).reshape(-1, 1).astype(np.float32)
        columns = each(cores, lambda core, n: core.kernel("float64_digits", held[n], rows, digits=digits)[0])
    else:
        raw = _digits(b, scale, digits, wide, deep)
        split: Any = {"width": word_bytes(digits), "places": tuple(range(digits - 1, -1, -1)), "turned": True}
        columns = each(cores, lambda core, _: core.kernel("digits_split", raw, **split))
    unit = BASE ** (1 - digits)
    return columns, shift - round(math.log2(1 / unit)), float(norm) * unit * unit


def _strips(b: np.ndarray) -> Iterator[tuple[int, slice]]:
    """(i, virtuals) of blocks that stay in a cache."""
    rows = max(1, CACHED // b.shape[2])
    for i in range(len(b)):
        for start in range(0, b.shape[1], rows):
            yield i, slice(start, min(start + rows, b.shape[1]))


def _pieces(b: np.ndarray, factors: np.ndarray) -> Iterator[tuple[int, slice, np.ndarray]]:
    """(i, virtuals, scaled integrals) of blocks that stay in a cache. All blocks share one buffer."""
    memory = np.empty((max(1, CACHED // b.shape[2]), b.shape[2]))
    for i, virtuals in _strips(b):
        part = b[i, virtuals]
        yield i, virtuals, np.multiply(part, factors[i], out=memory[: len(part)])


def _measuring(b: np.ndarray, sent: bool, parallel: bool) -> Callable[[], tuple[np.ndarray, np.ndarray]]:
    """A function that returns ``_sizes(b)``: from another thread, if b is ``sent`` meanwhile and that is possible."""
    measure = (_sizes_beside if sent else _sizes_alone) if isinstance(b, StandIn) else _sizes
    return beside(lambda: measure(b)) if sent and parallel else in_turn(lambda: measure(b))


def _sizes_price(b: np.ndarray) -> tuple[float, tuple[Any, ...]]:
    return SIZES_READ * b.size, (((len(b),), b.dtype), ((len(b),), b.dtype))


def _sizes(b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each orbital, the largest magnitude, and the largest sum over L of squares, relative to its square."""
    largest, squares = np.zeros((2, len(b)))
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        for i, virtuals in _strips(b):
            part = b[i, virtuals]
            largest[i] = np.maximum(largest[i], np.maximum(part.max(), -part.min()))  # NaN, too
            squares[i] = np.maximum(squares[i], np.vecdot(part, part).max())
        far = (largest > SQUARABLE) | (largest < 1 / SQUARABLE)
        squares = squares / np.square(np.where(far, 1.0, largest))
        for orbital in np.flatnonzero(far & (largest > 0)).tolist():
            x = b[orbital] / largest[orbital]
            squares[orbital] = np.vecdot(x, x).max()
    return largest, squares


_sizes_beside, _sizes_alone = (priced(step, _sizes_price)(_sizes) for step in ("beside largest entry", "largest entry"))


@priced("magnitudes", lambda b, _, wide, deep: (b.size, (((1, deep, len(b) * wide), np.dtype(np.float32)),)))
def _numbers(b: np.ndarray, factors: np.ndarray, wide: int, deep: int) -> np.ndarray:
    """Integrals (1, naux, columns) in float32."""
    numbers = np.zeros((deep, len(b), wide), np.float32)
    for i, virtuals, x in _pieces(b, factors):
        numbers[: b.shape[2], i, virtuals] = x.T
    return numbers.reshape(1, deep, -1)


@priced("copy", lambda b, wide, deep: (
    0.0 if b.shape[1:] == (wide, deep) else 3.0 * b.nbytes, (((len(b) * wide, 2 * deep), np.dtype(np.int32)),)
))  # fmt: skip
def _words(b: np.ndarray, wide: int, deep: int) -> np.ndarray:
    """The words of the integrals (columns, 2 naux), lower ones first, padded with zeros."""
    padded = b
    if b.shape[1:] != (wide, deep):
        padded = np.zeros((len(b), wide, deep))
        padded[:, : b.shape[1], : b.shape[2]] = b
    return padded.reshape(-1, deep).view(np.int32)


@priced("split", lambda b, _, digits, wide, deep: (
    b.size, (((len(b) * wide, deep * word_bytes(digits)), np.dtype(np.uint8)),)
))  # fmt: skip
def _digits(b: np.ndarray, factors: np.ndarray, digits: int, wide: int, deep: int) -> np.ndarray:
    """Bytes (columns, naux word) of the digits of the integrals."""
    signed, word = (np.dtype(f"{kind}{word_bytes(digits)}") for kind in "iu")
    offset = word.type(sum(0x80 << (8 * i) for i in range(word.itemsize)))
    words = np.full((len(b), wide, deep), offset, word)
    integers = np.empty((max(1, CACHED // b.shape[2]), b.shape[2]), signed)
    for i, virtuals, x in _pieces(b, factors):
        here = integers[: len(x)]
        np.copyto(here, np.rint(x, out=x), casting="unsafe")
        np.add(here.view(word), offset, out=words[i, virtuals, : b.shape[2]])
    return words.reshape(-1, deep).view(np.uint8)


def _launches(
    cores: Sequence[Engine], cut: Shape, rows: Scaled, columns: Scaled, pairs: list[tuple[int, int]], exchange: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Direct and exchange energies of ``pairs`` of orbitals of two blocks; 0 for other pairs.

    The numbers of pairs of two cores differ by at most one. The energy of a pair has the same bits on any core.
    """
    nocc = len(rows.shift), len(columns.shift)
    bound = math.sqrt(rows.largest * columns.largest)
    if cut.digits > 1 and bound > reference.LARGEST_GROUP:
        raise Unfit(f"sums of digits reach {bound:.3g}, more than float32 holds exactly")
    p = math.frexp(bound)[1] - LARGEST_H
    units = np.ldexp(1.0, -p - 8 * np.arange(reference.groups_of(cut.digits)))[None].astype(np.float32)
    direct, crossed = np.zeros((2, *nocc), like=rows.shift)
    most = most_pairs(cut, rows.columns[0].shape[1], cores[0].most_loops, exchange)

    def share(core: Engine, n: int) -> None:
        b = (None, None) if rows is columns else (columns.columns[n], columns.gaps[n])
        first, last = (-(-len(pairs) * k // len(cores)) for k in (n, n + 1))  # the first core has most
        for start in range(first, last, most):
            some = pairs[start : min(start + most, last)]
            filled = some + some[:1] * (rung(len(some)) - len(some))
            cells, others = _cells(cut, filled, exchange)
            parts = core.kernel(
                "mp2_energy", rows.columns[n], rows.gaps[n], units, cells, others, *b,
                span=cut.span, exchange=exchange, k_tiles=cut.k_tiles,
            )  # fmt: skip
            of_pairs = _sums(core.get(parts), cells.shape[1], len(filled)) * np.ldexp(1.0, 2 * p)
            i, j = np.array(some).T
            direct[i, j], crossed[i, j] = of_pairs[: len(some)].T

    each(cores, share)
    return direct, crossed


@priced("", lambda parts, cells, pairs: (3 * parts.nbytes, (((pairs, 2), np.dtype(np.float64)),)))
def _sums(parts: np.ndarray, cells: int, pairs: int) -> np.ndarray:
    """(pairs, 2) direct and exchange energies from the kernel's results for ``cells`` and padding."""
    if not (error := reference.excess(parts, cells)) <= 1:
        raise Wrong(f"sums of the energies of pairs are wrong by {error:.2g} tolerances")
    sums = reference.finish(parts, cells)
    of_pairs = sums[:cells].reshape(pairs, -1, 2).sum(axis=1)
    if len(sums) > cells:
        of_pairs += sums[cells:].reshape(pairs, -1, 2).sum(axis=1)
    return np.asarray(of_pairs)


def most_pairs(cut: Shape, naux: int = TILE, loops: int | None = None, exchange: bool = True) -> int:
    """The largest shape bucket of pairs for one launch, whose program may have ``loops`` device loops."""
    most = reference.MOST_PLACES // cut.cells
    if not most:
        raise Unfit(f"{cut.left} x {cut.right} blocks of virtuals for one pair")
    tables = 2 if exchange and cut.left > 1 else 1  # each needs a loop
    if loops is not None and loops < tables:
        rows = -(-cut.span // TILE) * TILE
        products = reference.operations(cut.digits, naux, rows, cut.left * cut.right) / (2.0 * TILE * TILE * rows)
        most = min(most, max(int(PROGRAM // products), 1))
    return most // _step(most) * _step(most)


def _step(n: int) -> int:
    """Difference between neighbouring shape buckets near ``n``."""
    return max(1, 1 << n.bit_length() >> (STEPS.bit_length()))


def rung(n: int) -> int:
    """``n`` pairs rounded up to a shape bucket."""
    return -(-n // _step(n)) * _step(n)


def _cells(cut: Shape, pairs: list[tuple[int, int]], exchange: bool) -> tuple[np.ndarray, np.ndarray | None]:
    """First columns of the blocks of virtuals of every cell, (2, cells), and a second table for exchange.

    With exchange the first table has the cells (p, p) of each pair, the second (p, q) with p < q, followed by the
    same cell with p and q exchanged. It is None if there is only one block.
    """

    def table(entries: Iterator[tuple[int, ...]]) -> np.ndarray:
        return np.ascontiguousarray(np.array(list(entries), np.int32).T * cut.span)

    m, n = cut.left, cut.right
    if not exchange:
        return table((i * m + p, j * n + q) for i, j in pairs for p in range(m) for q in range(n)), None
    cells = table((i * m + p, j * m + p) for i, j in pairs for p in range(m))
    if m == 1:
        return cells, None
    blocks = [(p, q) for p in range(m) for q in range(p + 1, m)]
    return cells, table((i * m + p, j * m + q, i * m + q, j * m + p) for i, j in pairs for p, q in blocks)
