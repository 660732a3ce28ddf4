"""J and K on a device: the integrals stay there, and the half-transformed ones never leave it.

The integrals B[L, m, n] of some auxiliary functions are sent as one matrix with rows (m, L) and columns n. Its product
with the orbitals C has rows (m, L) and columns i. Its elements, in the same order, are also a matrix H with rows m and
columns (L, i), and K is the sum of H H^T. J is d P P^T, where d are the densities and P has a row for each pair mn.

float64 is multiplied by digits with one exponent for each operand as a whole: errors are relative to its largest
element. So J and K are checked as wholes, by two matrices that are made with the integrals: for weights x and y,
x^T K y is the sum over mn of D[m, n] M[m, n], where M is the sum over L of (B_L x) (B_L y)^T, and likewise for J.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple, Protocol

import numpy as np

from trnpy._call import guards
from trnpy._call.dispatch import Reason, Unsupported
from trnpy._engine import certified, staying
from trnpy._engine import digits as _digits
from trnpy._engine.engines import BY_DIGITS, Engine, Held
from trnpy._engine.precision import norms
from trnpy._engine.proof.weights import weights
from trnpy._engine.stand_ins import priced, usual
from trnpy._engine.tuning import BLOCK
from trnpy._nki.kernels.products import digits_matmul_reference, float64_digits_reference, matmul_reference
from trnpy._nki.kernels.products.words_matmul_reference import HEADROOM
from trnpy._nki.kernels.shared.parameters import for_bounds, for_digits, for_numbers
from trnpy.chem._ao2mo import unpacked
from trnpy.chem._rows import REAL, STACK, norm, relative

DIGITS = _digits.DIGITS
WORD_BYTES = 8  # of an integral on the link
DEVICE_BYTES = 2 * DIGITS + 2, 2 * 2 * DIGITS + 2  # of a square and of a pair: digits in one order or two, magnitudes
GRAIN = 32  # extents are padded to multiples of it, and densities and orbitals to multiples of half of it
PROBES = 4  # pairs of weights: kept with the integrals, so a matrix that one of them misses is missed again
LEAST_EXPONENT = -1000  # of float32 operands: its power of two and the inverse are numbers
ORDINARY = 24  # exponent of float32 operands up to which products of four of them are far from the ends of its range
ONE = np.ones((1, 1), np.float32)
USUAL_LARGEST = 2.0**60  # of the integers of a half transformation, in a dry run


class Operand(NamedTuple):
    """A matrix on the device: digits with K on their rows, or numbers as they are; magnitudes, for digits."""

    held: Held
    magnitudes: Held | None
    k_first: bool  # whether K is on the rows of numbers and magnitudes
    exponent: int = 0
    top: int = 0  # of words: their digits, from the first that is not zero in all elements


class Format(Protocol):
    """How matrices are multiplied."""

    bytes_of: tuple[int, int]  # on the device, of an integral of the squares and of the pairs

    def put(self, x: np.ndarray, largest: float, *k_first: bool) -> tuple[Operand, ...]:
        """A matrix for products over its rows, or over its columns, or both."""
        ...

    def product(self, a: Operand, b: Operand) -> Operand: ...

    def as_rows(self, x: Operand, rows: int) -> Operand:
        """The elements of a product in the same order, in so many rows; later products sum over the columns."""
        ...

    def added_squares(self, terms: Iterator[Operand]) -> np.ndarray:
        """The sum of A A^T over ``terms``, in float64."""
        ...

    def values(self, x: Operand) -> np.ndarray: ...


class ByDigits:
    """float64 by seven digits, without a certificate of single sums."""

    bytes_of = DEVICE_BYTES

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        best = for_digits(DIGITS, engine.machine)
        self._tiles = {
            "digits": DIGITS, "words": best.words, "m_tiles": best.m_tiles, "k_tiles": best.k_tiles,
            "bound_tiles": tuple(for_bounds().of_numbers().values()),
        }  # fmt: skip

    def put(self, x: np.ndarray, largest: float, *k_first: bool) -> tuple[Operand, ...]:
        top = certified.shift_of(DIGITS, int(_digits.shift_for(np.array(usual(largest, 1.0)))))
        if top < float64_digits_reference.FAINTEST:
            raise Unsupported(Reason.VALUE, f"the largest element of an operand is {largest:.3g}")
        words = self._engine.hold(certified.link_words(x, x.shape))
        exponent = -certified.shift_of(DIGITS, top)
        scale = np.array([[top]], np.float32)

        def split(first: bool) -> Operand:
            digits, sizes = self._engine.kernel("float64_digits", words, scale, by_rows=not first, digits=DIGITS)
            return Operand(digits, sizes, first, exponent)

        return tuple(map(split, k_first))

    def product(self, a: Operand, b: Operand, turned: tuple[bool, bool] = (False, False)) -> Operand:
        words, magnitudes, extremes = self._engine.kernel(
            "words_matmul", a.held, b.held, a.magnitudes, b.magnitudes, tops=(a.top, b.top), turned=turned,
            rows=(not a.k_first, b.k_first), **self._tiles,
        )  # fmt: skip
        largest = float(usual(self._engine.get(extremes)[:, 0].max(), USUAL_LARGEST))
        top = next((t for t in range(1, DIGITS + HEADROOM + 1) if largest < 0.498 * 256.0**t), 0)
        if not top:
            raise Unsupported(Reason.ACCURACY, f"sums of digits reach {largest:.3g}")
        return Operand(words, magnitudes, False, a.exponent + b.exponent + _digits.BITS * (DIGITS - 1), top)

    def as_rows(self, x: Operand, rows: int) -> Operand:
        planes, height, width = x.held.shape
        shape = rows, height * width // rows
        assert x.magnitudes is not None
        return Operand(
            self._engine.reshaped(x.held, (planes, *shape)), self._engine.reshaped(x.magnitudes, shape), False,
            x.exponent + _digits.BITS * (x.top - DIGITS), x.top,
        )  # fmt: skip

    def added_squares(self, terms: Iterator[Operand]) -> np.ndarray:
        return sum(self.values(self.product(h, h._replace(k_first=False), (False, True))) for h in terms)  # type: ignore[return-value]

    def values(self, x: Operand) -> np.ndarray:
        found = staying.without_halves(self._engine.get(x.held), DIGITS)
        shift = np.array([[_digits.unit(DIGITS) - x.exponent]])
        return _digits.assemble(found, DIGITS, shift, np.zeros((1, 1), np.int64))


class Single:
    """Numbers of float32, in which a policy asks for less than float64; large and small operands are scaled."""

    bytes_of = 4, 4

    def __init__(self, engine: Engine) -> None:
        self._engine, self._tiles = engine, for_numbers(4)

    def put(self, x: np.ndarray, largest: float, *k_first: bool) -> tuple[Operand, ...]:
        exponent = max(math.frexp(largest)[1], LEAST_EXPONENT)
        if abs(exponent) <= ORDINARY:  # a pass over all integrals is saved
            exponent = 0
        scaled = x * 2.0**-exponent if exponent else x
        held = self._engine.hold(scaled.astype(np.float32))
        return tuple(Operand(held, None, first, exponent) for first in k_first)

    def product(self, a: Operand, b: Operand) -> Operand:
        rows = {"a_rows": not a.k_first, "b_rows": b.k_first}
        c = self._engine.kernel("matmul", a.held, b.held, **rows, **self._tiles.of_numbers())
        return Operand(c, None, False, a.exponent + b.exponent)

    def as_rows(self, x: Operand, rows: int) -> Operand:
        height, width = x.held.shape
        return x._replace(held=self._engine.reshaped(x.held, (rows, height * width // rows)))

    def added_squares(self, terms: Iterator[Operand]) -> np.ndarray:
        total, exponent = None, 0
        for h in terms:
            exponent = 2 * h.exponent  # the same of all
            so_far = () if total is None else (ONE, total, ONE)
            total = self._engine.kernel("syrk", h.held, *so_far, a_rows=True, **self._tiles.of_squares())
        assert total is not None
        return self.values(Operand(total, None, False, exponent))

    def values(self, x: Operand) -> np.ndarray:
        found: np.ndarray = np.ldexp(self._engine.get(x.held).astype(REAL), x.exponent)
        return found


class Layout(NamedTuple):
    """How integrals are cut and padded: extents that kernels are compiled for."""

    nao: int
    step: int  # auxiliary functions of one matrix of squares
    naux: int  # of one matrix of pairs
    pairs: int  # in one matrix; 0 if the device has no room for them: then J is the host's


class Integrals(NamedTuple):
    """What a device keeps of the integrals."""

    squares: tuple[Operand, ...]  # rows (m, L), columns n
    pairs: tuple[tuple[Operand, Operand], ...]  # rows mn, columns L; for sums over mn and over L


class Probes(NamedTuple):
    """What checks J and K. It is kept with the integrals."""

    weights: tuple[np.ndarray, np.ndarray]  # x and y, (PROBES, nao)
    sums: tuple[np.ndarray, np.ndarray]  # M for K and for J, (PROBES, nao, nao)
    size: float  # the Frobenius norm of all integrals


class Matrices(NamedTuple):
    """J and K (n, nao, nao), and the largest error of the probes over the norms of integrals and densities."""

    j: np.ndarray | None
    k: np.ndarray
    wrong: float


def layout(b: np.ndarray, widths: list[int], form: Format, memory: float, engine: Engine) -> Layout | None:
    """How the integrals are cut; None if a matrix does not fit a launch, or all of them what a device keeps."""
    nao, naux = _nao(b), len(b)
    npair, wide, many = nao * (nao + 1) // 2, _padded(nao), max(_padded(n, GRAIN // 2) for n in widths)
    most = min(
        memory / (4 * WORD_BYTES * wide * wide), digits_matmul_reference.LARGEST / (DIGITS * wide * wide),
        matmul_reference.LARGEST / (wide * max(wide, many)), digits_matmul_reference.longest_k(DIGITS) / many,
    )  # fmt: skip
    if most < 1 or max(wide, naux, many) > BLOCK:
        return None
    count = -(-naux // min(int(most), naux))  # matrices, of one size
    found = Layout(wide, -(-naux // count), _padded(naux), min(_padded(npair), BLOCK))
    square, pair = form.bytes_of
    squares = square * wide**2 * count * found.step
    if squares + pair * found.naux * -(-npair // found.pairs) * found.pairs > engine.room:
        found = found._replace(pairs=0)
    return found if squares <= engine.room else None


def _padded(extent: int, grain: int = GRAIN) -> int:
    return -(-extent // grain) * grain


def _nao(b: np.ndarray) -> int:
    return b.shape[2] if b.ndim == 3 else int((8 * b.shape[1] + 1) ** 0.5 - 1) // 2


def by_kernels(
    engine: Engine, b: np.ndarray, densities: np.ndarray, sets: tuple[np.ndarray, ...] | None, with_j: bool,
    memory: float,
) -> Matrices | None:  # fmt: skip
    """J and K of densities C C^T with integrals that stay on the device; None if there is no such path for them."""
    widths = [] if sets is None else [c.shape[1] for c in sets]
    if not widths or 0 in widths:
        return None
    name = engine.format(REAL)
    if name not in (BY_DIGITS, "float32"):
        return None
    form: Format = ByDigits(engine) if name == BY_DIGITS else Single(engine)
    cut = layout(b, widths, form, memory, engine)
    if cut is None:
        return None
    probes, kept = engine.keep(b, ("fitted", *cut, form.bytes_of), lambda: (_probes(b), _sent(b, form, cut)))
    assert sets is not None
    k = np.stack([_exchange(form, kept.squares, c, cut) for c in sets])[:, : _nao(b), : _nao(b)]
    j = None
    if with_j:
        j = _coulomb(form, kept.pairs, densities, cut) if kept.pairs else coulomb(b, densities)
    return Matrices(j, k, float(usual(_wrong(probes, densities, j, k), 0.0)))


def _exchange(form: Format, squares: tuple[Operand, ...], orbitals: np.ndarray, cut: Layout) -> np.ndarray:
    """K (padded) of one density."""
    c = np.zeros_like(orbitals, shape=(cut.nao, _padded(orbitals.shape[1], GRAIN // 2)))
    c[: len(orbitals), : orbitals.shape[1]] = orbitals
    (right,) = form.put(c, _largest(orbitals), True)
    return form.added_squares(form.as_rows(form.product(x, right), cut.nao) for x in squares)


def _coulomb(
    form: Format, pairs: tuple[tuple[Operand, Operand], ...], densities: np.ndarray, cut: Layout
) -> np.ndarray:
    """J of each density: (mn|L) is summed over mn by blocks of pairs, then over L."""
    d, n = _packed(densities), len(densities)
    many = _padded(n, GRAIN // 2)
    largest, q = _largest(d), np.zeros_like(densities, shape=(many, cut.naux))
    for i, (over_pairs, _) in enumerate(pairs):
        part = d[:, i * cut.pairs : (i + 1) * cut.pairs]
        padded = np.zeros_like(densities, shape=(cut.pairs, many))
        padded[: part.shape[1], :n] = part.T
        (left,) = form.put(padded, largest, True)
        q = q + form.values(form.product(left, over_pairs))
    (left,) = form.put(q.T.copy(), _largest(q), True)
    found = [form.values(form.product(left, over_l))[:n] for _, over_l in pairs]
    return unpacked(np.concatenate(found, axis=1)[:, : d.shape[1]])


def coulomb(b: np.ndarray, densities: np.ndarray) -> np.ndarray:
    """J of each density, (n, nao, nao), by the host, in two passes over ``b``."""
    nao = densities.shape[-1]
    if b.ndim == 3:
        flat = b.reshape(len(b), nao * nao)
        j: np.ndarray = densities.reshape(len(densities), nao * nao) @ flat.T @ flat
        return j.reshape(densities.shape)
    return unpacked(_packed(densities) @ b.T @ b)


def _sent(b: np.ndarray, form: Format, cut: Layout) -> Integrals:
    """The integrals on the device, in both orders."""
    nao, largest = _nao(b), _largest(b)
    squares: list[Operand] = []
    for start in range(0, len(b), cut.step):
        stack = unpacked(b[start : start + cut.step])  # (L, m, n)
        square = np.zeros_like(stack, shape=(cut.nao, cut.step, cut.nao))
        square[:nao, : len(stack), :nao] = stack.swapaxes(0, 1)
        squares += form.put(square.reshape(-1, cut.nao), largest, False)
    pairs, packed = [], _triangles(b) if cut.pairs else b
    for start in range(0, packed.shape[1], cut.pairs) if cut.pairs else ():
        some = packed[:, start : start + cut.pairs]
        pair = np.zeros_like(b, shape=(cut.pairs, cut.naux))
        pair[: some.shape[1], : len(b)] = some.T
        over_pairs, over_l = form.put(pair, largest, True, False)
        pairs.append((over_pairs, over_l))
    return Integrals(tuple(squares), tuple(pairs))


def _probes(b: np.ndarray) -> Probes:
    """Weights, and the sums of the integrals with them, a few matrices at a time."""
    guards.finite(b)
    nao = _nao(b)
    x, y = weights(PROBES, nao), weights(PROBES, nao)
    sums = np.zeros_like(b, shape=(2, PROBES, nao, nao))
    for start in range(0, len(b), STACK):
        sums = sums + _sums(unpacked(b[start : start + STACK]), x, y)
    return Probes((x, y), (sums[0], sums[1]), norm(b))


def _largest(a: np.ndarray) -> float:
    return float(usual(np.abs(a).max(), 1.0)) or 1.0


def _triangles(b: np.ndarray) -> np.ndarray:
    """Triangles (n, nao (nao + 1) / 2), row by row, of symmetric matrices or of their triangles."""
    return b if b.ndim == 2 else b[:, *np.tril_indices(b.shape[1])]


def _packed(densities: np.ndarray) -> np.ndarray:
    """D + D^T of each density as triangles, the diagonal once: their products with triangles are sums over all mn."""
    rows, columns = np.tril_indices(densities.shape[-1])
    both = densities[:, rows, columns] + densities[:, columns, rows]
    packed: np.ndarray = np.where(rows == columns, both / 2, both)
    return packed


@priced(
    "matmul",
    lambda b, x, y: (4.0 * b.size * 2 * PROBES, (((2, PROBES, b.shape[1], b.shape[1]), REAL),)),
)
def _sums(stack: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The parts of M for K and for J of some auxiliary functions, (2, PROBES, nao, nao)."""
    left, right = stack @ x.T, stack @ y.T  # (L, m, PROBES)
    exchange = np.stack([left[..., p].T @ right[..., p] for p in range(PROBES)])
    coulomb = np.einsum("pm,Lmp->pL", x, right) @ stack.reshape(len(stack), -1)
    return np.stack([exchange, coulomb.reshape(exchange.shape)])


@priced("", lambda probes, densities, j, k: (PROBES * 4.0 * k.nbytes, (((), REAL),)))
def _wrong(probes: Probes, densities: np.ndarray, j: np.ndarray | None, k: np.ndarray) -> float:
    """The largest error of a probe, over the norms of the integrals and of the density."""
    (x, y), found = probes.weights, [0.0]
    for results, sums in zip((k, j), probes.sums, strict=True):
        for result, d in zip(() if results is None else results, densities, strict=results is not None):
            wrong = np.vecdot(x @ result, y) - np.tensordot(sums, d)  # (PROBES,)
            found.append(relative(float(np.abs(wrong).max()), probes.size * float(norms(d)) * probes.size))
    return float(np.max(found))  # NaN if one of them is
