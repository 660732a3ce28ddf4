"""The particle-particle ladder of coupled cluster on a device that keeps the integrals of four virtual orbitals.

H[x, a, b] is the sum over c and d of T[x, c, d] (ac|bd), for pairs x of occupied orbitals. The parts of H that are
symmetric and antisymmetric in the virtual orbitals are two products, each over pairs c >= d and a >= b:

    H+-[x, ab] = sum of T+-[x, cd] W+-[cd, ab] / 2,    W+-[cd, ab] = (ac|bd) +- (ad|bc)

They need half the operations of one product over all c and d. W+ and W- are symmetric: blocks of pairs below the
diagonal also serve as those above it. If a device has no room for digits in both directions, it keeps nvir^4 / 4
numbers, as many as PySCF, and splits them into digits in every call. Only T and H are transferred; sums over blocks
are added on the device. Scuseria, Janssen and Schaefer, J. Chem. Phys. 89, 7382 (1988).

H is checked as a whole, with matrices that are computed from the integrals once: for weights u and w, the sum over a
and b of u[a] w[b] H[x, a, b] equals the sum over c and d of T[x, c, d] M[c, d] with M[c, d] = sum of u[a] w[b] (ac|bd).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from trnpy._base.records import record
from trnpy._call import guards
from trnpy._call.dispatch import Cost, Problem, Reason, Unsupported
from trnpy._engine.abstract_arrays import priced, usual
from trnpy._engine.engines import Engine
from trnpy._engine.precision import norms
from trnpy._engine.proof.weights import weights
from trnpy._engine.tuning import BLOCK
from trnpy.chem._ao2mo import _triangle, unpacked
from trnpy.chem._formats import Arrays, Operand, Products, Sent, format_of, largest, padded
from trnpy.chem._rows import REAL, STACK, cube, norm, relative

PROBES = 4  # pairs of weights; they stay the same, so an error that one pair misses is missed by it each time
# The host's time of NumPy's take and sums as bytes at 10 GB/s: for each element of W, of T or H, and of the integrals
# in the check. Measured: 4 to 6, 2 to 4 and 5 to 7 ns on one thread of an EPYC for 53 to 100 virtual orbitals.
BUILT_BYTES, PARTED_BYTES, PROBED_BYTES = 60, 30, 60
# The same for PySCF, for each of nvir^4 integrals: it unpacks 10 of 16 blocks twice before BLAS reads them.
PYSCF_BYTES = 12.5
FITTED = 0.625  # of nvir^4 naux multiply-adds: PySCF makes these blocks of fitted integrals with so many in each call
# For each of the 10 blocks it reads them in slices of nvir / 4 pairs. At 10 GB/s this is the 70 us of h5py and BLAS for
# a slice (calls with 8, 19 and 53 virtual orbitals take 12, 26 and 148 ms on one thread of an EPYC).
SLICE_BYTES = 0.7e6


class Cut(NamedTuple):
    """The blocks of pairs of virtual orbitals, and the form in which a block stays on the device."""

    number: int  # of blocks
    size: int  # pairs in each, padded
    ready: bool  # whether operands stay, one for each direction; otherwise the numbers that they are made of stay


Block = Sent | tuple[Operand, ...]  # of two operands the first is for sums over rows


class Kept(NamedTuple):
    """W+ or W- as the device keeps it: blocks (i, j) of rows i and columns j, up to the diagonal."""

    blocks: tuple[tuple[Block, ...], ...]


class Probes(NamedTuple):
    """Random weights and sums that check H, kept with the integrals."""

    weights: tuple[np.ndarray, np.ndarray]  # u and w, (PROBES, nvir)
    sums: np.ndarray  # M, (PROBES, nvir, nvir)
    size: float  # the Frobenius norm of the integrals


class Contracted(NamedTuple):
    """H, and the error in its check, relative to the norms of integrals and amplitudes."""

    h: np.ndarray
    wrong: float


def cut_of(nvir: int, form: Products, room: float) -> Cut:
    """The blocks of W+ and W-; Unsupported if a device has no room for them."""
    pairs = nvir * (nvir + 1) // 2
    count = -(-pairs // BLOCK)
    size = padded(-(-pairs // count))
    below = count * (count - 1) // 2
    ready = 2 * form.bytes_of[0] * size * size * count + 2 * form.bytes_of[1] * size * size * below
    sent = 2 * form.sent_bytes * size * size * (count + below)
    if sent > room:
        raise Unsupported(Reason.OOM, f"integrals of {nvir} virtual orbitals need {sent:.3g} of {room:.3g} bytes")
    return Cut(count, size, ready <= room)


@functools.lru_cache(maxsize=8)
def _places(nvir: int) -> np.ndarray:
    """The index of each pair of virtual orbitals, in either order, among the pairs c >= d: (nvir, nvir)."""
    c, d = np.indices((nvir, nvir))
    high, low = np.maximum(c, d), np.minimum(c, d)
    return np.asarray(high * (high + 1) // 2 + low)


def _first(pair: int) -> int:
    """The larger of the two orbitals of the pair with a given index."""
    return int((np.sqrt(8.0 * pair + 1) - 1) / 2 + 1e-9)


# --- Integrals --------------------------------------------------------------------------------------------------------


def _kept(v: np.ndarray, form: Products, cut: Cut) -> tuple[Kept, Kept]:
    """W+ and W- on the device, from integrals (ac|bd) of pairs ac and bd, (npair, npair)."""
    scale = 2 * largest(v)  # at least the largest sum of two
    pairs = len(v)
    found: tuple[list[tuple[Block, ...]], list[tuple[Block, ...]]] = [], []
    for i in range(cut.number):
        new: tuple[list[Block], list[Block]] = [], []
        for j in range(i + 1):
            rows, columns = (slice(n * cut.size, min((n + 1) * cut.size, pairs)) for n in (i, j))
            both = _block(v, rows, columns, cut.size)
            for sign in range(2):
                if cut.ready:
                    new[sign].append(form.put(both[sign], scale, *((True,) if i == j else (True, False))))
                else:
                    new[sign].append(form.send(both[sign], scale))
        for sign in range(2):
            found[sign].append(tuple(new[sign]))
    return Kept(tuple(found[0])), Kept(tuple(found[1]))


@priced("", lambda v, rows, columns, size: (BUILT_BYTES * 2.0 * size * size, (((2, size, size), REAL),)))
def _block(v: np.ndarray, rows: slice, columns: slice, size: int) -> np.ndarray:
    """W+ and W- (2, size, size) of the pairs ``rows`` (a >= b) and ``columns`` (c >= d), padded with zeros."""
    found = np.zeros((2, size, size))
    places = _places(_triangle(len(v)))
    most = _first(rows.stop - 1) + 1  # a and b are below it
    a, b = (x[rows] for x in np.tril_indices(most))
    straight, swapped = a * most + b, b * most + a
    for c in range(_first(columns.start), _first(columns.stop - 1) + 1):
        start = c * (c + 1) // 2
        d = slice(max(columns.start - start, 0), min(columns.stop - start, c + 1))
        of_c = v.take(places[:most, c], axis=0).take(places[:most, d].reshape(-1), axis=1)  # (ac|bd)
        of_c = of_c.reshape(most * most, -1)
        one, other = of_c.take(straight, axis=0), of_c.take(swapped, axis=0)
        to = slice(start + d.start - columns.start, start + d.stop - columns.start)
        np.add(one, other, out=found[0, : len(a), to])
        np.subtract(one, other, out=found[1, : len(a), to])
    return found


def _probes(v: np.ndarray) -> Probes:
    """Weights, and the integrals contracted with them."""
    guards.finite(v)
    nvir = _triangle(len(v))
    u, w = weights(PROBES, nvir), weights(PROBES, nvir)
    return Probes((u, w), _sums(v, u, w), norm(v))


@priced("", lambda v, u, w: (PROBED_BYTES * 1.0 * v.size, (((PROBES, u.shape[1], u.shape[1]), REAL),)))
def _sums(v: np.ndarray, u: np.ndarray, w: np.ndarray) -> np.ndarray:
    """M[c, d] = sum of u[a] w[b] (ac|bd) for each pair of weights."""
    nvir = u.shape[1]
    half = np.empty((len(v), nvir, PROBES))  # (ac, d): summed over b
    for start in range(0, len(v), STACK):
        half[start : start + STACK] = unpacked(v[start : start + STACK]) @ w.T
    return np.stack([np.einsum("pa,adp->pd", u, half[of_c]) for of_c in _places(nvir)], axis=1)


# --- Contraction ------------------------------------------------------------------------------------------------------


@priced("", lambda t, shape: (PARTED_BYTES * 1.0 * t.size, (((2, *shape), REAL),)))
def _parted(t: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Half of T+ and T- of T (x, nvir, nvir), padded with zeros to ``shape``: sums count c = d once."""
    found = np.zeros((2, *shape))
    nvir = t.shape[-1]
    c, d = np.tril_indices(nvir)
    flat, x = t.reshape(len(t), -1), slice(len(t))
    one, other = flat.take(c * nvir + d, axis=1), flat.take(d * nvir + c, axis=1)
    found[0, x, : len(c)] = np.where(c == d, one, one + other) / 2
    found[1, x, : len(c)] = (one - other) / 2
    return found


@priced("", lambda plus, minus, shape: (PARTED_BYTES * float(np.prod(shape)), ((shape, REAL),)))
def _joined(plus: np.ndarray, minus: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """H (x, nvir, nvir) of H+ and H-."""
    x, nvir = shape[0], shape[-1]
    a, b = np.tril_indices(nvir)
    h = np.empty((x, nvir * nvir))
    plus, minus = plus[:x, : len(a)], minus[:x, : len(a)]
    h[:, b * nvir + a] = plus - minus
    h[:, a * nvir + b] = plus + minus
    return h.reshape(shape)


def _product(form: Products, t: np.ndarray, w: Kept, cut: Cut) -> np.ndarray:
    """T W of one sign, (x, pairs), both padded."""
    scale = largest(t)
    left = [form.put(t[:, i * cut.size : (i + 1) * cut.size], scale, False)[0] for i in range(cut.number)]

    def block(i: int, j: int) -> Operand:
        """Rows i and columns j of W, for sums over rows; above the diagonal the transpose of the mirrored block."""
        kept, k_first = w.blocks[max(i, j)][min(i, j)], i >= j
        return form.operand(kept, k_first) if isinstance(kept, Sent) else kept[0 if k_first else 1]

    found = []
    for j in range(cut.number):
        terms = (form.product(x, block(i, j)) for i, x in enumerate(left))
        found.append(form.values(functools.reduce(form.added, terms)))
    return np.concatenate(found, axis=1)


@priced("", lambda probes, t, h: (PROBES * 2.0 * (t.nbytes + h.nbytes), (((), REAL),)))
def _wrong(probes: Probes, t: np.ndarray, h: np.ndarray) -> float:
    """The error in the check over all x, relative to the norms of the integrals and of T."""
    u, w = probes.weights
    ours = np.einsum("pa,xap->xp", u, h @ w.T)
    exact = t.reshape(len(t), -1) @ probes.sums.reshape(PROBES, -1).T
    return relative(float(norms(ours - exact)), probes.size * float(norms(t)))


@priced("", lambda b, read: (2.0 * b.nbytes, ()))
def _filled(b: np.ndarray, read: Callable[[np.ndarray], None]) -> None:
    """Read fitted integrals from their file, so that they are compared like all others."""
    read(b)


@record(kw_only=True)
class Ladder(Problem):
    """H of amplitudes (..., nvir, nvir), from integrals of pairs (npair, npair), or fitted ones (ac|L) (npair, naux).

    (ac|bd) is the sum over L of (ac|L) (bd|L). ``read`` fills ``v`` if the integrals are in a file.
    """

    v: np.ndarray
    t: np.ndarray
    fitted: bool = False
    read: Callable[[np.ndarray], None] | None = None

    def outlined(self) -> tuple[Any, ...]:
        return self.v, self.t, self.fitted, None if self.read is None else _filled  # one for all files

    def run(self, engine: Engine) -> Contracted:
        v, t = self.v, self.t.reshape(-1, *self.t.shape[-2:])
        if self.read is not None:
            _filled(v, self.read)
        guards.finite(t)
        form: Products = format_of(engine) or Arrays(engine)
        if len(t) > BLOCK:
            raise Unsupported(Reason.LAYOUT, f"{len(t)} pairs of occupied orbitals: at most {BLOCK}")
        cut = cut_of(t.shape[-1], form, engine.room)
        key = "ladder", *cut, form.bytes_of

        def made() -> tuple[Probes, tuple[Kept, Kept]]:
            full = v @ v.T if self.fitted else v
            return _probes(full), _kept(full, form, cut)

        probes, kept = engine.keep(v, key, made, again=True)  # in each iteration
        parts = _parted(t, (padded(len(t)), cut.number * cut.size))
        plus, minus = (_product(form, part, w, cut) for part, w in zip(parts, kept, strict=True))
        h = _joined(plus, minus, t.shape)
        return Contracted(h, float(usual(_wrong(probes, t, h), 0.0)))

    def deliver(self, result: Contracted) -> Any:
        return result.h.reshape(self.t.shape)

    def error(self, result: Contracted) -> float:
        return result.wrong


def prepare(
    v: np.ndarray, t: np.ndarray, fitted: bool = False, read: Callable[[np.ndarray], None] | None = None
) -> Ladder:
    """The ladder of amplitudes (..., nvir, nvir); Unsupported unless all pairs of integrals are of one orbital set."""
    nvir = t.shape[-1]
    if t.size == 0 or v.size == 0:
        raise Unsupported(Reason.LAYOUT, "an operand is empty")
    pairs = nvir * (nvir + 1) // 2
    if t.shape[-2] != nvir or v.shape != (pairs, v.shape[1] if fitted else pairs):
        raise Unsupported(Reason.LAYOUT, f"integrals {v.shape} and amplitudes {t.shape}: expected pairs of one set")
    if not v.dtype == t.dtype == REAL:
        raise Unsupported(Reason.DTYPE, f"integrals {v.dtype} and amplitudes {t.dtype}: expected float64")
    x, quarter = t.size / nvir**2, nvir * nvir / 4
    flops, moved = 2.0 * t.size * nvir * nvir, PYSCF_BYTES * nvir**4
    if fitted:
        flops, x = flops + FITTED * nvir**4 * v.shape[1], min(x, v.shape[1])
        moved += 10 * -(-pairs // ((nvir + 3) // 4)) * SLICE_BYTES
    cost = Cost("matmul", cube(x, quarter, quarter), flops, v.nbytes + t.nbytes, t.nbytes, moved)
    return Ladder((v, t), REAL, cost, v=v, t=t, fitted=fitted, read=read)
