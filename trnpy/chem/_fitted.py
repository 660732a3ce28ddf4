"""J and K on a device: the integrals stay on the device, and half-transformed integrals never leave it.

The integrals B[L, m, n] of some auxiliary functions are sent as one matrix with rows (m, L) and columns n. Its product
with the orbitals C has rows (m, L) and columns i. Its elements, in the same order, are also a matrix H with rows m and
columns (L, i), and K is the sum of H H^T. J is d P P^T, where d are the densities and P has a row for each pair mn. If
the operands of these products exceed the device's memory, B stays as it was sent, and the host computes J. If B exceeds
it as well, several cores have auxiliary functions each, and their parts of J and K are added.

J and K are each checked as a whole, with two matrices that are computed from the integrals once: for weights x and y,
x^T K y is the sum over mn of D[m, n] M[m, n], where M is the sum over L of (B_L x) (B_L y)^T, and likewise for J.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from nkisim.hardware import FLOAT64_PASSES
from trnpy._call import guards
from trnpy._engine.abstract_arrays import priced, usual
from trnpy._engine.at_once import each
from trnpy._engine.engines import BY_DIGITS, Engine
from trnpy._engine.precision import norms
from trnpy._engine.proof.weights import weights
from trnpy._engine.tuning import BLOCK
from trnpy._nki.kernels.products import float64_matmul_reference, matmul_reference
from trnpy.chem._ao2mo import unpacked
from trnpy.chem._formats import DIGITS, GRAIN, Format, Operand, Sent, format_of, largest, padded
from trnpy.chem._rows import REAL, STACK, norm, relative

WORD_BYTES = 8  # of an integral in a host-device transfer
PROBES = 4  # pairs of weights; they stay the same, so an error that one pair misses is missed by it each time


class Layout(NamedTuple):
    """The blocks of the integrals, padded to shape buckets."""

    nao: int
    step: int  # auxiliary functions of one matrix of squares
    naux: int  # of one matrix of pairs
    pairs: int  # in one matrix; 0 if the device has no room for them, so the host computes J
    ready: bool  # whether squares stay as operands, not only as sent: then each call splits them into digits


class Integrals(NamedTuple):
    """The integrals as the device keeps them."""

    squares: tuple[Operand | Sent, ...]  # rows (m, L), columns n
    pairs: tuple[tuple[Operand, Operand], ...]  # rows mn, columns L; for sums over mn and over L


class Probes(NamedTuple):
    """Random weights and sums that check J and K, kept with the integrals."""

    weights: tuple[np.ndarray, np.ndarray]  # x and y, (PROBES, nao)
    sums: tuple[np.ndarray, np.ndarray]  # M for K and for J, (PROBES, nao, nao)
    size: float  # the Frobenius norm of all integrals


class Matrices(NamedTuple):
    """J and K (n, nao, nao), and the largest error in the check, relative to the norms of integrals and densities."""

    j: np.ndarray | None
    k: np.ndarray
    wrong: float


def layout(b: np.ndarray, widths: list[int], form: Format, memory: float, engine: Engine) -> Layout | None:
    """The layout of the integrals; None if one matrix exceeds a launch, or all matrices exceed the device's memory."""
    nao, naux = _nao(b), len(b)
    npair, wide, many = nao * (nao + 1) // 2, padded(nao), max(padded(n, GRAIN // 2) for n in widths)
    most = min(
        memory / (4 * WORD_BYTES * wide * wide), float64_matmul_reference.LARGEST / (DIGITS * wide * wide),
        matmul_reference.LARGEST / (wide * max(wide, many)), float64_matmul_reference.longest_k(DIGITS) / many,
    )  # fmt: skip
    if most < 1 or max(wide, naux, many) > BLOCK:
        return None
    count = -(-naux // min(int(most), naux))  # matrices, of one size
    found = Layout(wide, -(-naux // count), padded(naux), min(padded(npair), BLOCK), True)
    square, pair = form.bytes_of
    squares = wide**2 * count * found.step
    if square * squares + pair * found.naux * -(-npair // found.pairs) * found.pairs > engine.room:
        found = found._replace(pairs=0, ready=square * squares <= engine.room)
    return found if found.ready or form.sent_bytes * squares <= engine.room else None


def _nao(b: np.ndarray) -> int:
    return b.shape[2] if b.ndim == 3 else int((8 * b.shape[1] + 1) ** 0.5 - 1) // 2


def by_kernels(
    engine: Engine, b: np.ndarray, densities: np.ndarray, sets: tuple[np.ndarray, ...] | None, with_j: bool,
    memory: float,
) -> Matrices | None:  # fmt: skip
    """J and K of densities C C^T with integrals that stay on the device; None if this path does not support them."""
    widths = [] if sets is None else [c.shape[1] for c in sets]
    if not widths or 0 in widths:
        return None
    form = format_of(engine)
    if form is None:
        return None
    name, sent = engine.format(REAL), 1.0 * form.sent_bytes * sum(widths) * _nao(b)
    passes, name = (FLOAT64_PASSES, "bfloat16") if name == BY_DIGITS else (1, name)
    flops = 4.0 * passes * sum(widths) * len(b) * _nao(b) ** 2
    available = engine.shares(flops, name, 2 * len(widths), sent)
    found = next((n for n in range(1, len(available) + 1) if layout(_part(b, 0, n), widths, form, memory, engine)), 0)
    if not found:
        return None
    assert sets is not None

    def work(core: Engine, n: int) -> tuple[np.ndarray | None, np.ndarray, Probes | None]:
        """The contribution of the auxiliary functions of one core; J is None if the host computes it."""
        mine, part = format_of(core), _part(b, n, found)
        assert mine is not None
        cut = layout(part, widths, mine, memory, core)
        assert cut is not None
        key = ("fitted", *cut, mine.bytes_of, n, found)
        probes, kept = core.keep(b, key, lambda: (None if n else _probes(b), _sent(part, mine, cut)))
        k = np.stack([_exchange(mine, kept.squares, c, cut) for c in sets])[:, : _nao(b), : _nao(b)]
        return _coulomb(mine, kept.pairs, densities, cut) if with_j and kept.pairs else None, k, probes

    parts = each(available[:found], work)
    k, probes = functools.reduce(np.add, (k for _, k, _ in parts)), parts[0][2]
    assert probes is not None
    of_cores = [j for j, _, _ in parts if j is not None]
    j = None
    if with_j:
        j = functools.reduce(np.add, of_cores) if len(of_cores) == found else coulomb(b, densities)
    return Matrices(j, k, float(usual(_wrong(probes, densities, j, k), 0.0)))


def _part(b: np.ndarray, n: int, count: int) -> np.ndarray:
    """The integrals of the auxiliary functions of core ``n`` of ``count``; the first has most."""
    first, last = (-(-len(b) * at // count) for at in (n, n + 1))
    return b[first:last]


def _exchange(form: Format, squares: tuple[Operand | Sent, ...], orbitals: np.ndarray, cut: Layout) -> np.ndarray:
    """K (padded) of one density."""
    c = np.zeros_like(orbitals, shape=(cut.nao, padded(orbitals.shape[1], GRAIN // 2)))
    c[: len(orbitals), : orbitals.shape[1]] = orbitals
    (right,) = form.put(c, largest(orbitals), True)
    operands = (form.operand(x, False) if isinstance(x, Sent) else x for x in squares)
    return form.added_squares(form.as_rows(form.product(x, right), cut.nao) for x in operands)


def _coulomb(
    form: Format, pairs: tuple[tuple[Operand, Operand], ...], densities: np.ndarray, cut: Layout
) -> np.ndarray:
    """J of each density: (mn|L) is summed over mn in blocks of pairs, then over L."""
    d, n = _packed(densities), len(densities)
    many = padded(n, GRAIN // 2)
    scale, q = largest(d), np.zeros_like(densities, shape=(many, cut.naux))
    for i, (over_pairs, _) in enumerate(pairs):
        part = d[:, i * cut.pairs : (i + 1) * cut.pairs]
        columns = np.zeros_like(densities, shape=(cut.pairs, many))
        columns[: part.shape[1], :n] = part.T
        (left,) = form.put(columns, scale, True)
        q = q + form.values(form.product(left, over_pairs))
    (left,) = form.put(q.T.copy(), largest(q), True)
    found = [form.values(form.product(left, over_l))[:n] for _, over_l in pairs]
    return unpacked(np.concatenate(found, axis=1)[:, : d.shape[1]])


def coulomb(b: np.ndarray, densities: np.ndarray) -> np.ndarray:
    """J of each density, (n, nao, nao), on the host, in two passes over ``b``."""
    nao = densities.shape[-1]
    if b.ndim == 3:
        flat = b.reshape(len(b), nao * nao)
        j: np.ndarray = densities.reshape(len(densities), nao * nao) @ flat.T @ flat
        return j.reshape(densities.shape)
    return unpacked(_packed(densities) @ b.T @ b)


def _sent(b: np.ndarray, form: Format, cut: Layout) -> Integrals:
    """The integrals on the device, in both orders."""
    nao, scale = _nao(b), largest(b)
    squares: list[Operand | Sent] = []
    for start in range(0, len(b), cut.step):
        stack = unpacked(b[start : start + cut.step])  # (L, m, n)
        square = np.zeros_like(stack, shape=(cut.nao, cut.step, cut.nao))
        square[:nao, : len(stack), :nao] = stack.swapaxes(0, 1)
        rows = square.reshape(-1, cut.nao)
        squares += form.put(rows, scale, False) if cut.ready else (form.send(rows, scale),)
    pairs, packed = [], _triangles(b) if cut.pairs else b
    for start in range(0, packed.shape[1], cut.pairs) if cut.pairs else ():
        some = packed[:, start : start + cut.pairs]
        pair = np.zeros_like(b, shape=(cut.pairs, cut.naux))
        pair[: some.shape[1], : len(b)] = some.T
        over_pairs, over_l = form.put(pair, scale, True, False)
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
    """The largest error for any pair of weights, relative to the norms of the integrals and of the density."""
    (x, y), found = probes.weights, [0.0]
    for results, sums in zip((k, j), probes.sums, strict=True):
        for result, d in zip(() if results is None else results, densities, strict=results is not None):
            wrong = np.vecdot(x @ result, y) - np.tensordot(sums, d)  # (PROBES,)
            found.append(relative(float(np.abs(wrong).max()), probes.size * float(norms(d)) * probes.size))
    return float(np.max(found))  # NaN if one of them is
