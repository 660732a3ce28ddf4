"""MP2 pair energies by the kernel mp2_energy: orbitals in blocks, their integrals as digits, cells of pairs."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from trnpy._engine.engines import Engine, Held
from trnpy._nki.hardware import Hardware
from trnpy._nki.kernels.chem.mp2_energy_reference import LARGEST, LARGEST_GROUP, MOST_PLACES, finish, groups_of
from trnpy._nki.kernels.shared.parameters import SPARE_BYTES
from trnpy.chem._progress import track

TILE = 128
BASE = 256.0
GRAIN = 16  # virtuals of a block are a multiple: fewer variants to compile
LONGEST_SPAN = 448  # virtuals of a block: digits of 1024 auxiliary functions of two of them fit SBUF twice
GRID_BITS = 16  # of a gap that meets integers of 8 bits: the product is exact in float32
STEPS = 64  # rungs an octave of what a launch has many of: at most 3 % of them are padding
CACHED = 1 << 15  # integrals of a piece: those and their integers stay in the second-level cache
WIDEST_SHIFT = 1000  # binary orders of magnitude that one factor takes out
RESULT_BYTES = 4 * 128 * 6  # of one cell
LARGEST_H = 7  # bits of what integrals are rounded to, with a sign
CHUNKS = (8, 6, 4, 2, 1)  # tiles of 128 auxiliary functions in SBUF at once, twice


class Orbitals(Protocol):
    """What MP2 needs of one spin: b (nocc, nvir, naux), energies occ (nocc,) and vir (nvir,) in Hartree."""

    @property
    def b(self) -> np.ndarray: ...
    @property
    def occ(self) -> np.ndarray: ...
    @property
    def vir(self) -> np.ndarray: ...


class Unfit(Exception):
    """The kernel cannot have these orbitals; a phrase says why."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How the pairs of two spins are cut: blocks of ``span`` virtuals, and the rows of K of one chunk."""

    span: int
    left: int  # blocks of virtuals of the left orbital
    right: int
    digits: int  # 1: float32 numbers
    k_tiles: int

    @property
    def cells(self) -> int:
        """Entries of the tables of one pair."""
        return 2 * self.left * self.right

    def sbuf_bytes(self, naux: int) -> int:
        """Of one partition of SBUF: digits, sums and stores of rows, two sets of work tiles, gaps, tables."""
        item = 4 if self.digits == 1 else 2
        panels = min(2 * self.k_tiles, -(-naux // TILE)) * 2 * self.digits * self.span * item
        rows = -(-self.span // TILE) * self.span * (2 * 4 + 6 * (1 if self.left == self.right == 1 else 2))
        works = 2 * self.span * (9 * 4 + 2 * 2)
        return panels + rows + works + 3 * self.span * 4 + 3 * TILE * 4 + 6 * MOST_PLACES


def shape(nvir: tuple[int, int], naux: int, digits: int, machine: Hardware) -> Shape:
    """The blocks of virtuals that take TensorE the least time, by columns streamed."""

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


@dataclass(frozen=True, slots=True)
class Scaled:
    """Integrals of some occupied orbitals on the device: (ia|jb) = 2^-(shift_i + shift_j) V."""

    columns: Held  # (digits, naux, nocc blocks span)
    gaps: Held  # (3, nocc blocks span)
    shift: np.ndarray  # (nocc,)
    largest: float  # bound of V within one orbital


Columns = tuple[Held, np.ndarray, float]  # digits or numbers, shifts of the orbitals, largest norm squared
Kept = dict[tuple[int, int], Columns]  # of all orbitals of a spin, by its identity and the padding of its virtuals


def energies(
    engine: Engine, left: Orbitals, right: Orbitals, digits: int, memory: float, sent: Kept
) -> tuple[np.ndarray, np.ndarray | None]:
    """(nocc, nocc) direct and, within one spin, exchange energies of pairs, in Hartree.

    digits: of integrals, or 1 for float32 ones; of whole spins they are kept in ``sent``.  ``memory`` bounds the
    workspace of the host.  Unfit where energies of occupied and virtual orbitals overlap, or an orbital is too large.
    """
    same = left is right
    cut = shape((len(left.vir), len(right.vir)), left.b.shape[2], digits, engine.machine)
    gap = (left.vir.min() - left.occ.max()) + (right.vir.min() - right.occ.max())
    if not gap > 0:
        raise Unfit(f"the smallest denominator is {gap:.3g} Hartree, not above zero")
    widest = (left.vir.max() - left.occ.min()) + (right.vir.max() - right.occ.min())
    octave = -math.frexp(gap)[1]  # the smallest gap becomes one half to one
    grid = 2.0 ** (math.frexp(widest * 2.0**octave)[1] - GRID_BITS)
    direct = np.zeros((len(left.occ), len(right.occ)))
    crossed = np.zeros_like(direct) if same else None
    put = functools.partial(_put, engine, cut, octave=octave, grid=grid, sent=sent)
    sizes = [_orbitals(s, n * cut.span, digits, memory, engine.room) for s, n in ((left, cut.left), (right, cut.right))]
    blocks = [
        (i, j)
        for i in range(0, len(left.occ), sizes[0])
        for j in range(0, (i + 1) if same else len(right.occ), sizes[1])
    ]
    kept: dict[int, Scaled] = {}
    for i, j in track(blocks, "DF-MP2 blocks of pairs"):
        if i not in kept:
            kept = {i: put(left, i, sizes[0], cut.left)}
        rows = kept[i]
        columns = rows if same and i == j else put(right, j, sizes[1], cut.right)
        found = _launches(engine, cut, rows, columns, same)
        scale = 2.0**octave * np.ldexp(1.0, -2 * (rows.shift[:, None] + columns.shift))
        shape_of = np.s_[i : i + len(rows.shift), j : j + len(columns.shift)]
        direct[shape_of] = found[0] * scale
        if crossed is not None:
            crossed[shape_of] = found[1] * scale
    if same:
        for e in (direct, crossed):
            assert e is not None
            e += np.tril(e, -1).T
    return direct, crossed


def word_bytes(digits: int) -> int:
    """Of the host's workspace for each integral: those that cross the link."""
    return 4 if digits <= 4 else 8


def _orbitals(spin: Orbitals, columns: int, digits: int, memory: float, room: float) -> int:
    """Occupied orbitals of one block."""
    naux = -(-spin.b.shape[2] // TILE) * TILE
    each = columns * naux
    size: int = min(
        int(memory // (word_bytes(digits) * each)),
        LARGEST // (max(digits, 8) * each),
        int(room // (each * (2 * digits + 8) * 2)),  # two blocks, and their bytes
        len(spin.occ),
    )
    if size < 1:
        raise Unfit(f"one occupied orbital with {columns} columns of {naux} does not fit")
    return size


def _put(
    engine: Engine, cut: Shape, spin: Orbitals, first: int, size: int, blocks: int, *, octave: int, grid: float,
    sent: Kept,
) -> Scaled:  # fmt: skip
    """Occupied orbitals from ``first`` on, their virtuals padded to whole blocks."""
    wide, key = blocks * cut.span, (id(spin), blocks * cut.span)
    occ, nvir = spin.occ[first : first + size], len(spin.vir)
    columns = sent.get(key) or _columns(engine, spin.b[first : first + size], cut.digits, wide)
    if size >= len(spin.occ):
        sent[key] = columns
    x = (spin.vir - occ[:, None]) * 2.0**octave
    gaps = np.ones((3, len(occ), wide))
    coarse = np.rint(x / grid) * grid
    gaps[:, :, :nvir] = x, coarse, x - coarse
    gaps[2, :, nvir:] = 0.0
    table = engine.hold(gaps.reshape(3, -1).astype(np.float32))
    return Scaled(columns[0], table, columns[1], columns[2])


def _columns(engine: Engine, b: np.ndarray, digits: int, wide: int) -> Columns:
    """Integrals of some orbitals on the device, one exponent each; V is in units of the highest group of digits."""
    deep = -(-b.shape[2] // TILE) * TILE
    largest = np.array([max(float(x.max()), -float(x.min())) for x in b])
    top = 1.0 if digits == 1 else 127.0 * (BASE**digits - 1) / (BASE - 1)
    limit, exponent = math.frexp(top * (1 - 2.0**-50))
    fraction, own = np.frexp(np.where(largest > 0, largest, 1.0))
    shift = exponent - own - (fraction > limit)
    if np.abs(shift).max() >= WIDEST_SHIFT:
        raise Unfit(f"integrals of an orbital are at most {largest.min():.3g} or {largest.max():.3g}")
    encode = _numbers if digits == 1 else _digits
    columns, norm = encode(engine, b, np.exp2(shift), digits, wide, deep)
    unit = BASE ** (1 - digits)
    return columns, shift - round(math.log2(1 / unit)), norm * unit * unit


def _pieces(b: np.ndarray, factors: np.ndarray) -> Iterator[tuple[int, slice, np.ndarray]]:
    """(i, virtuals, scaled integrals) of pieces that stay in a cache; each is overwritten by the next."""
    rows = max(1, CACHED // b.shape[2])
    memory = np.empty((rows, b.shape[2]))
    for i, factor in enumerate(factors):
        for start in range(0, b.shape[1], rows):
            part = b[i, start : start + rows]
            yield i, slice(start, start + len(part)), np.multiply(part, factor, out=memory[: len(part)])


def _largest_square(x: np.ndarray) -> float:
    """The largest sum of squares of a row."""
    return float(np.einsum("aL,aL->a", x, x).max())


def _numbers(
    engine: Engine, b: np.ndarray, factors: np.ndarray, digits: int, wide: int, deep: int
) -> tuple[Held, float]:
    """Integrals (1, naux, columns) in float32, and the largest norm, squared, of those of one ia."""
    numbers, norm = np.zeros((deep, len(b), wide), np.float32), 0.0
    for i, virtuals, x in _pieces(b, factors):
        numbers[: b.shape[2], i, virtuals] = x.T
        norm = max(norm, _largest_square(x))
    return engine.hold(numbers.reshape(1, deep, -1)), norm


def _digits(
    engine: Engine, b: np.ndarray, factors: np.ndarray, digits: int, wide: int, deep: int
) -> tuple[Held, float]:
    """Digits (s, naux, columns) of integers, whose bytes cross the link, and the largest norm, squared."""
    signed, word = (np.dtype(f"{kind}{word_bytes(digits)}") for kind in "iu")
    offset = word.type(sum(0x80 << (8 * i) for i in range(word.itemsize)))
    words, norm = np.full((len(b), wide, deep), offset, word), 0.0
    integers = np.empty((max(1, CACHED // b.shape[2]), b.shape[2]), signed)
    for i, virtuals, x in _pieces(b, factors):
        norm = max(norm, _largest_square(x))
        here = integers[: len(x)]
        np.copyto(here, np.rint(x, out=x), casting="unsafe")
        np.add(here.view(word), offset, out=words[i, virtuals, : b.shape[2]])
    raw = words.reshape(-1, deep).view(np.uint8)
    places = tuple(range(digits - 1, -1, -1))
    held: Held = engine.kernel("digits_split", raw, width=word.itemsize, places=places, turned=True)
    return held, norm


def _launches(
    engine: Engine, cut: Shape, rows: Scaled, columns: Scaled, exchange: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Direct and exchange energies of all pairs of two blocks, of one with itself the lower triangle."""
    nocc = len(rows.shift), len(columns.shift)
    bound = math.sqrt(rows.largest * columns.largest)
    if cut.digits > 1 and bound > LARGEST_GROUP:
        raise Unfit(f"sums of digits reach {bound:.3g}, more than float32 holds exactly")
    p = math.frexp(bound)[1] - LARGEST_H
    units = np.ldexp(1.0, -p - 8 * np.arange(groups_of(cut.digits)))[None].astype(np.float32)
    pairs = [(i, j) for i in range(nocc[0]) for j in range(i + 1 if rows is columns else nocc[1])]
    direct, crossed = np.zeros(nocc), np.zeros(nocc)
    b = (None, None) if rows is columns else (columns.columns, columns.gaps)
    most = most_pairs(cut)
    for start in range(0, len(pairs), most):
        some = pairs[start : start + most]
        padded = some + some[:1] * (rung(len(some)) - len(some))
        cells, others = _cells(cut, padded, exchange)
        parts = engine.kernel(
            "mp2_energy", rows.columns, rows.gaps, units, cells, others, *b,
            span=cut.span, exchange=exchange, k_tiles=cut.k_tiles,
        )  # fmt: skip
        sums = finish(engine.get(parts), cells.shape[1]) * np.ldexp(1.0, 2 * p)
        per_pair = cells.shape[1] // len(padded)
        of_pairs = sums[: cells.shape[1]].reshape(len(padded), per_pair, 2).sum(axis=1)
        if others is not None:
            of_pairs += sums[cells.shape[1] :].reshape(len(padded), -1, 2).sum(axis=1)
        i, j = np.array(some).T
        direct[i, j], crossed[i, j] = of_pairs[: len(some)].T
    return direct, crossed


def most_pairs(cut: Shape) -> int:
    """Pairs of one launch: a number that the kernel is compiled for."""
    most = MOST_PLACES // cut.cells
    if not most:
        raise Unfit(f"{cut.left} x {cut.right} blocks of virtuals for one pair")
    return most // _step(most) * _step(most)


def _step(n: int) -> int:
    return max(1, 1 << n.bit_length() >> (STEPS.bit_length()))


def rung(n: int) -> int:
    """The number of pairs of the variant that computes ``n`` of them."""
    return -(-n // _step(n)) * _step(n)


def _cells(cut: Shape, pairs: list[tuple[int, int]], exchange: bool) -> tuple[np.ndarray, np.ndarray | None]:
    """First columns of the blocks of every pair: those on the diagonal, or all of them, and exchanged ones."""

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
