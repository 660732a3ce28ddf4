"""DF-MP2 over ranks: each transforms a range of the auxiliary functions, then computes the pairs of a few orbitals.

The integrals (ia|L) are sent once to the rank that owns orbital i, and from there to half of the other ranks. These
form the pairs, on their NeuronCores if that pays. The host computes the energy of a pair with one product of the two
orbitals' matrices, so the bits of the result do not depend on the rank or on the memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Protocol

import numpy as np

from trnpy._base.records import record
from trnpy._engine.at_once import beside
from trnpy._settings.policy import current_policy
from trnpy.chem._block_pairs import dfmp2_pairs, wanted
from trnpy.chem._checkpoint import Checkpoint
from trnpy.chem._progress import track
from trnpy.chem._rows import REAL
from trnpy.chem._share import Share
from trnpy.chem.dfmp2 import ACCURACY, WORKSPACE, Channel, MP2Energy, _extrapolated, _total
from trnpy.dist._collectives import Communicator, even

SHARES = 2  # a share of up to 1 / SHARES of a rank's memory stays there; a larger one is stored in a file
BLOCKS = 5  # parts of the memory: own orbitals, a remote block, the next one, the one being sent, and the pairs


class TooLittleMemory(ValueError):
    """The smallest step of the calculation needs more memory; raised on all ranks."""


class Integrals(Protocol):
    """A source of integrals of atomic orbitals, a few auxiliary functions at a time."""

    edges: Sequence[int]  # auxiliary functions between which they can be cut, from 0 to all
    row_bytes: int  # of memory for each auxiliary function while it is read

    def rows(self, first: int, last: int) -> np.ndarray:
        """Symmetric matrices (last - first, nao, nao)."""

    unfitted: bool  # whether `fitted` changes them

    def triangles(self, first: int, last: int) -> np.ndarray:
        """The same as lower triangles, packed row by row: (last - first, nao (nao + 1) / 2)."""

    def check(self, memory: float) -> None:
        """Raise TooLittleMemory if `fit` needs more memory."""

    def fit(self) -> None:
        """Prepare for `fitted`."""

    def fitted(self, b: np.ndarray) -> np.ndarray:
        """(nvir, naux) of one orbital with (ia|jb) = sum over L of the products of two such matrices."""


@record(eq=False)
class Orbitals:
    """Coefficients (nao, n) and energies (n,) of the occupied and the virtual orbitals, for each spin."""

    occ: tuple[np.ndarray, ...]
    vir: tuple[np.ndarray, ...]
    occ_energy: tuple[np.ndarray, ...]
    vir_energy: tuple[np.ndarray, ...]

    @property
    def number(self) -> int:
        """Number of occupied orbitals; in their numbering the second spin follows the first."""
        return sum(map(len, self.occ_energy))

    @property
    def nvir(self) -> int:
        """The width of the matrices of all orbitals: the larger of the two spins' virtual orbitals."""
        return max(map(len, self.vir_energy))

    @property
    def spin(self) -> np.ndarray:
        """The spin of each occupied orbital: 0 or 1."""
        return np.repeat(np.arange(len(self.occ)), [c.shape[1] for c in self.occ])

    def agreed(self, comm: Communicator) -> Orbitals:
        """The orbitals of the first rank, on all ranks; other ranks may have computed other signs."""
        return Orbitals(
            *(tuple(comm.bcast(a) for a in arrays) for arrays in (self.occ, self.vir, self.occ_energy, self.vir_energy))
        )


def share_bytes(orbitals: Orbitals, naux: int, ranks: int) -> int:
    """Bytes of the integrals (ia|L) of the rank with most orbitals."""
    return -(-orbitals.number // ranks) * orbitals.nvir * naux * REAL.itemsize


def _pair_bytes(orbitals: Orbitals, naux: int) -> tuple[int, int]:
    """Bytes that pairs of one orbital with another need: of integrals (BLOCKS matrices), and of all else."""
    n, nvir = orbitals.number, orbitals.nvir
    return BLOCKS * nvir * naux * REAL.itemsize, (WORKSPACE * nvir**2 + 4 * n * n) * REAL.itemsize


def _stays(orbitals: Orbitals, naux: int, ranks: int, memory: float) -> bool:
    """Whether shares stay in memory: they are small, and leave room for pairs. Otherwise they are stored in files."""
    held = share_bytes(orbitals, naux, ranks)
    return held <= min(memory / SHARES, memory - sum(_pair_bytes(orbitals, naux)))


def sent_bytes(orbitals: Orbitals, naux: int, ranks: int) -> float:
    """Modelled bytes that a rank sends: all to all, then around a ring through half of the ranks."""
    each = orbitals.number / ranks * orbitals.nvir * naux * REAL.itemsize
    return each * ((ranks - 1) / ranks + ranks // 2)


# --- Integrals (ia|L) -------------------------------------------------------------------------------------------------


def transformed(integrals: Integrals, orbitals: Orbitals, comm: Communicator, memory: float, folder: str) -> Share:
    """The integrals (ia|L) of this rank's orbitals. No rank has more than ``memory`` bytes of integrals at any time."""
    naux, nvir = integrals.edges[-1], orbitals.nvir
    edges = even(orbitals.number, comm.size)
    stays = _stays(orbitals, naux, comm.size, memory)
    share = Share(edges[comm.rank], edges[comm.rank + 1], nvir, naux, None if stays else folder)
    room = memory - share_bytes(orbitals, naux, comm.size) * stays
    # Memory while a slab is processed: the matrices of this slab and the next one; its half-transformed and transformed
    # integrals; the blocks for each rank; and the blocks received.
    row = 2 * integrals.row_bytes + REAL.itemsize * (orbitals.number * (len(orbitals.occ[0]) + 3 * nvir) + naux)
    slabs = [_slabs(integrals.edges, rank, comm.size, int(room // row)) for rank in range(comm.size)]
    if max(last - first for each in slabs for first, last in each) * row > memory:
        shell = max(j - i for i, j in pairwise(integrals.edges))
        raise TooLittleMemory(f"memory={memory:.0f} bytes: the integrals of one auxiliary shell need {shell * row}")
    integrals.check(memory / SHARES)
    stacks = _read_ahead(integrals, slabs[comm.rank])
    for turn in track(range(max(map(len, slabs))), "DF-MP2 integrals"):
        mine = turn < len(slabs[comm.rank])
        blocks = _by_orbital(next(stacks), orbitals) if mine else np.empty((orbitals.number, nvir, 0))
        found = comm.alltoall([blocks[i:j] for i, j in pairwise(edges)])
        for rank, block in enumerate(found):
            if turn < len(slabs[rank]):
                share.add(slabs[rank][turn][0], block)
    integrals.fit()
    share.finish(integrals.fitted)
    return share


def _read_ahead(integrals: Integrals, slabs: Sequence[tuple[int, int]]) -> Iterator[np.ndarray]:
    """The matrices of each slab. The next slab is read or computed while the caller works with this one."""
    reading = [beside(partial(integrals.rows, *slab)) for slab in slabs[:1]]
    for following in range(1, len(slabs) + 1):
        stack = reading.pop()()
        reading += [beside(partial(integrals.rows, *slab)) for slab in slabs[following : following + 1]]
        yield stack


def _slabs(edges: Sequence[int], rank: int, ranks: int, most: int) -> list[tuple[int, int]]:
    """Ranges of at most ``most`` auxiliary functions, or one shell, that ``rank`` reads."""
    first, last = (int(np.searchsorted(edges, edges[-1] * r // ranks)) for r in (rank, rank + 1))
    found: list[tuple[int, int]] = []
    for i, j in pairwise(edges[first : last + 1]):
        if found and j - found[-1][0] <= most:
            found[-1] = found[-1][0], j
        else:
            found.append((i, j))
    return found


def _by_orbital(stack: np.ndarray, orbitals: Orbitals) -> np.ndarray:
    """(ia|L) as (orbitals, nvir, L) from integrals (L, nao, nao); the bits of each L do not depend on the others."""
    found = np.zeros((orbitals.number, orbitals.nvir, len(stack)))
    start = 0
    for occ, vir in zip(orbitals.occ, orbitals.vir, strict=True):
        half = np.matmul(np.ascontiguousarray(occ.T), stack)  # (L, i, nu)
        found[start : start + occ.shape[1], : vir.shape[1]] = np.matmul(half, vir).transpose(1, 2, 0)
        start += occ.shape[1]
    return found


# --- Pairs ------------------------------------------------------------------------------------------------------------


def energy(
    share: Share, orbitals: Orbitals, comm: Communicator, memory: float, checkpoint: Checkpoint | None = None,
    with_t2: bool = False,
) -> MP2Energy:  # fmt: skip
    """The energy of all pairs on every rank and, with ``with_t2``, all amplitudes, which need additional memory.

    A pair that the checkpoint has is not computed.
    """
    n, (blocks, beside) = orbitals.number, _pair_bytes(orbitals, share.naux)
    held = share_bytes(orbitals, share.naux, comm.size) * _stays(orbitals, share.naux, comm.size, memory)
    room = memory - beside - held
    size = min(int(room // max(blocks, 1)), max(n, 1))
    if size < 1:
        need = blocks + beside
        raise TooLittleMemory(f"memory={memory:.0f} bytes: pairs of one orbital with another need {need}")
    known = np.full((2, n, n), np.nan)  # direct and exchange energies of the pairs x >= y
    if checkpoint is not None:
        known = checkpoint.read(comm, known)
    edges = even(n, comm.size)
    for exact in (False, True):
        if exact:
            known = np.full_like(known, np.nan)
        pairs = _Pairs(orbitals, known.copy(), with_t2, room / BLOCKS, exact)
        with share.resident():
            _form_all(pairs, share, comm, edges, size, known, checkpoint)
        found = pairs.total(comm, known)
        if found.uncertainty <= ACCURACY or current_policy().products != "matched":
            break
    return found


def _form_all(
    pairs: _Pairs, share: Share, comm: Communicator, edges: Sequence[int], size: int, known: np.ndarray,
    checkpoint: Checkpoint | None,
) -> None:  # fmt: skip
    """Form the unknown pairs of this rank, among its own blocks of ``size`` orbitals and with remote blocks."""
    own = range(edges[comm.rank], edges[comm.rank + 1], size)
    visits = _visits(known, edges, size)
    arriving = [_visitors(share, comm, edges, visit, size) for visit in visits[:1]]
    for n, (turn, k) in enumerate(track(visits, "DF-MP2 pairs")):
        first, _ = _block(edges, (comm.rank + turn) % comm.size, k, size)
        visitors = arriving.pop()()
        arriving += [_visitors(share, comm, edges, visit, size) for visit in visits[n + 1 : n + 2]]
        other = (comm.rank + turn) % comm.size
        # Half-way round the ring two ranks exchange blocks: one forms the pairs with an even sum, one with an odd sum.
        parity = int(comm.rank > other) if turn and 2 * turn == comm.size else None
        for start in own:
            if start == first:
                pairs.within(start, share.read(start, min(start + size, own.stop)))
            elif turn or start > first:
                pairs.between((start, share.read(start, min(start + size, own.stop))), (first, visitors), parity)
        if checkpoint is not None:
            checkpoint.write(comm, pairs.energies)


def _block(edges: Sequence[int], rank: int, k: int, size: int) -> tuple[int, int]:
    """The orbitals of block ``k`` of a rank."""
    first = min(edges[rank] + k * size, edges[rank + 1])
    return first, min(first + size, edges[rank + 1])


def _visits(known: np.ndarray, edges: Sequence[int], size: int) -> list[tuple[int, int]]:
    """Turns and blocks in which any rank has a pair to form; in turn t rank r receives orbitals of rank r + t."""
    ranks = len(edges) - 1
    blocks = -(-max(j - i for i, j in pairwise(edges)) // size)
    missing = np.tril(np.isnan(known[0]))
    missing |= missing.T
    return [
        (turn, k)
        for turn in range(ranks // 2 + 1)
        for k in range(blocks)
        if any(
            missing[edges[rank] : edges[rank + 1], slice(*_block(edges, (rank + turn) % ranks, k, size))].any()
            for rank in range(ranks)
        )
    ]


def _visitors(
    share: Share, comm: Communicator, edges: Sequence[int], visit: tuple[int, int], size: int
) -> Callable[[], np.ndarray]:
    """A function that waits for block k of the rank ``turn`` after this one, and sends this rank's block backward.

    The block arrives while the pairs of the previous one are formed.
    """
    turn, k = visit
    mine = _block(edges, comm.rank, k, size)
    if turn == 0:
        return lambda: share.read(*mine)
    blocks = [np.empty((0, share.nvir, share.naux))] * comm.size
    blocks[(comm.rank - turn) % comm.size] = share.read(*mine)
    arriving = comm.exchanging(blocks, "visit")
    return lambda: arriving()[(comm.rank + turn) % comm.size]


class _Pairs:
    """Energies and amplitudes of the pairs x >= y of occupied orbitals; the second spin follows the first."""

    def __init__(
        self, orbitals: Orbitals, energies: np.ndarray, with_t2: bool, memory: float, exact: bool
    ) -> None:  # fmt: skip
        self.energies, self._vir, self._memory, self._exact = energies, orbitals.vir_energy, memory, exact
        self._errors = np.zeros(3)  # of pairs that a device formed and the host recomputed: number, sum, squares
        self._occ, self._nocc = orbitals.occ_energy, [len(e) for e in orbitals.occ_energy]
        nvir, spins = [len(e) for e in self._vir], len(self._vir)
        self._channels = [(left, right) for left in range(spins) for right in range(left, spins)]
        self.t2 = {
            (left, right): np.zeros((self._nocc[left], self._nocc[right], nvir[left], nvir[right]))
            for left, right in self._channels if with_t2
        }  # fmt: skip

    def within(self, first: int, b: np.ndarray) -> None:
        """Form the pairs of orbitals from ``first`` on, with matrices b (n, nvir, naux), among themselves."""
        parts = self._parts(first, b)
        for part in parts:
            self._form(part)
        if len(parts) > 1:
            self._form(parts[1], parts[0])

    def between(self, one: tuple[int, np.ndarray], two: tuple[int, np.ndarray], parity: int | None) -> None:
        """Form the pairs of two blocks with one parity of x + y; each block is its first orbital and its matrices."""
        for left in self._parts(*max(one, two, key=lambda block: block[0])):
            for right in self._parts(*min(one, two, key=lambda block: block[0])):
                self._form(left, right, parity=parity)

    def _parts(self, first: int, b: np.ndarray) -> list[tuple[int, int, np.ndarray]]:
        """The orbitals of a block by spin: the spin, the first one, and their matrices."""
        n = min(max(self._nocc[0] - first, 0), len(b))
        parts = [(0, first, b[:n, : len(self._vir[0])]), (1, first + n, b[n:, : len(self._vir[-1])])]
        return [part for part in parts if len(part[2])]

    def _form(self, *blocks: tuple[int, int, np.ndarray], parity: int | None = None) -> None:
        """The pairs x >= y of one block or of two, each of one spin."""
        spins = [spin for spin, _, _ in blocks]
        starts = [first - spin * self._nocc[0] for spin, first, _ in blocks]
        energies = tuple(
            (self._occ[spin][start : start + len(b)], self._vir[spin])
            for start, (spin, _, b) in zip(starts, blocks, strict=True)
        )
        places = [slice(first, first + len(b)) for _, first, b in blocks]
        here = self.energies[:, places[0], places[-1]]
        same = spins[0] == spins[-1]
        weights = ((2.0, -1.0) if len(self._vir) == 1 else (0.5, -0.5)) if same else (1.0, 0.0)
        odd = None if parity is None else (parity + blocks[0][1] + blocks[-1][1]) % 2
        n, missing = sum(self._nocc), np.isnan(here[0]) & wanted(here.shape[1], here.shape[2], len(blocks), odd)
        if not missing.any():
            return
        found = dfmp2_pairs(
            tuple(b for _, _, b in blocks), energies, weights, parity=odd, missing=missing, memory=self._memory,
            accuracy=ACCURACY, total=n * (n + 1) // 2, amplitudes=self._keeper(spins, starts) if self.t2 else None,
            exact=self._exact,
        )  # fmt: skip
        here[...] = np.where(missing, found.energies, here)
        if found.errors is not None:
            self._errors += len(found.errors), found.errors.sum(), found.errors @ found.errors

    def _keeper(self, spins: Sequence[int], starts: Sequence[int]) -> Callable[[int, int, np.ndarray], None]:
        """A function that stores the amplitudes of a pair of one block or of two."""
        left, right = spins[0], spins[-1]

        def keep(x: int, y: int, amplitudes: np.ndarray) -> None:
            i, j = starts[0] + x, starts[-1] + y
            if left == right and len(self._nocc) > 1:
                amplitudes = amplitudes - amplitudes.T
            if left == right:
                self.t2[left, right][i, j] = amplitudes
            self.t2[right, left][j, i] = amplitudes.T

        return keep

    def total(self, comm: Communicator, known: np.ndarray) -> MP2Energy:
        """The sums over all ranks; each pair is from one rank or from the checkpoint."""
        mine = np.where(np.isnan(known) & ~np.isnan(self.energies), self.energies, 0.0)
        whole = comm.allreduce(mine) + np.nan_to_num(known)
        found = []
        for left, right in self._channels:
            rows, columns = (slice(s * self._nocc[0], s * self._nocc[0] + self._nocc[s]) for s in (right, left))
            energies = whole[:, rows, columns]
            if left == right:
                energies = energies + np.tril(energies, -1).swapaxes(1, 2)
            else:
                energies = energies.swapaxes(1, 2)
            for amplitudes in self.t2.get((left, right), ()):
                amplitudes[...] = comm.allreduce(amplitudes)
            found.append(Channel(energies[0], energies[1] if left == right else None, self.t2.get((left, right))))
        said = comm.meet("errors of DF-MP2 pairs", " ".join(map(repr, self._errors.tolist())))
        samples, errors, squares = np.sum([[float(x) for x in text.split()] for text in said], axis=0).tolist()
        wrong = _extrapolated(int(samples), errors, squares, sum(self._nocc) ** 2) if samples else 0.0
        return replace(_total(tuple(found)), uncertainty=wrong)
