"""The MP2 correlation energy from density-fitted integrals (ia|L), for a few pairs of occupied orbitals at a time.

Weigend and Haeser, Theor. Chem. Acc. 97, 331 (1997); the split by spin as in Grimme, J. Chem. Phys. 118, 9095 (2003).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from trnpy._base.records import record
from trnpy._call import guards
from trnpy._call.dispatch import ALLOWED_ERROR, Cost, Problem, Reason, Unsupported
from trnpy._engine.abstract_arrays import StandIn, priced, usual
from trnpy._engine.at_once import beside, in_turn
from trnpy._engine.engines import BY_DIGITS, Engine
from trnpy._engine.precision import eps
from trnpy._settings.policy import current_policy
from trnpy.chem import _pairs
from trnpy.chem._progress import track
from trnpy.chem._rows import (
    MEMORY,
    REAL,
    Product,
    checked_product,
    cube,
    host_product,
    real_array,
    relative,
    row,
)

WORKSPACE = 2  # matrices (nvir, nvir) in memory besides the block of integrals: sums of virtual energies, amplitudes
# The host's time for the energy of one integral is 2.5 ns, or 100 flops of matrix products (benzene, one thread).
ENERGY_FLOPS = 100.0
SAMPLES = 24  # pairs of each channel that are recomputed to check a result
# Deviations of the errors of sampled pairs: a normal error exceeds DEVIATIONS, estimated from 24 samples, with a
# probability of 4e-5. Eight samples may miss the largest pairs: their bound failed in 3 of 100 draws of one system.
DEVIATIONS = 5.0
# Integrals in a block up to which all pairs are computed together, because NumPy's calls for each pair take longer.
# With 6 occupied and 30 virtual orbitals this takes 0.86 times as long (AMD EPYC, one thread, 2026-11).
TOGETHER = 2**13
ACCURACY = 1e-9  # Hartree: the accuracy that chemists require of energies that they compare
FINEST = 5e-10  # Hartree, the kernel's accuracy: its double-float sums err by 1e-10 in molecules of 3 to 12 atoms
DIGITS = 4  # of eight bits, for each integral that the kernel multiplies
Arrays = np.ndarray | Sequence[np.ndarray]  # one for RHF, (alpha, beta) for UHF


@record(eq=False)
class Channel:
    """Energies of the pairs ij of one combination of spins, in Hartree.

    `direct[i, j]` is the sum over ab of (ia|jb)^2 / (e_i + e_j - e_a - e_b). `exchange[i, j]` is the same with
    (ia|jb) (ib|ja) in place of the square; it is None if the spins differ. Amplitudes of two electrons of one spin in
    UHF are antisymmetrised.
    """

    direct: np.ndarray  # (nocc, nocc)
    exchange: np.ndarray | None
    t2: np.ndarray | None  # (nocc, nocc, nvir, nvir) amplitudes


@record(frozen=True, eq=False)
class MP2Energy:
    """MP2 correlation energy in Hartree, split by spin, as `dfmp2_energy` returns it.

    Attributes
    ----------
    opposite_spin, same_spin : float
        Energies of pairs of electrons with opposite and with same spin.
    channels : tuple of Channel
        Energies of single pairs: one channel for RHF; alpha-alpha, alpha-beta and beta-beta for UHF.
    uncertainty : float
        Largest error of `total`, estimated from 24 random pairs of each channel; 0.0 if all is in float64.
    total : float
        Sum of `opposite_spin` and `same_spin`.

    Examples
    --------
    >>> from trnpy.chem import MP2Energy
    >>> energy = MP2Energy(opposite_spin=-0.15, same_spin=-0.05, channels=())
    >>> f"{energy.total:.2f} Hartree"
    '-0.20 Hartree'
    """

    opposite_spin: float
    same_spin: float
    channels: tuple[Channel, ...]
    uncertainty: float = 0.0

    @property
    def total(self) -> float:
        """Correlation energy of all pairs, in Hartree."""
        return self.opposite_spin + self.same_spin


@record(eq=False)
class Spin:
    """Integrals and orbital energies of one spin."""

    b: np.ndarray  # (nocc, nvir, naux), C-contiguous float64
    occ: np.ndarray  # (nocc,) Hartree
    vir: np.ndarray  # (nvir,) Hartree


def _spins(b: Any, eps_occ: Any, eps_vir: Any) -> tuple[Spin, ...]:
    """One set of orbitals for RHF, two for UHF; TypeError or ValueError if the arrays do not fit."""
    if isinstance(b, (list, tuple)):
        if not len(b) == len(eps_occ) == len(eps_vir) == 2:
            raise ValueError(
                f"{len(b)} arrays b, {len(eps_occ)} eps_occ, {len(eps_vir)} eps_vir: expected an (alpha, beta) pair of "
                "each for UHF, or one array of each for RHF"
            )
        alpha, beta = (_spin(*arrays) for arrays in zip(b, eps_occ, eps_vir, strict=True))
        if alpha.b.shape[2] != beta.b.shape[2]:
            raise ValueError(f"naux is {alpha.b.shape[2]} for alpha and {beta.b.shape[2]} for beta: expected one basis")
        return alpha, beta
    return (_spin(b, eps_occ, eps_vir),)


def _spin(b: Any, eps_occ: Any, eps_vir: Any) -> Spin:
    """One spin in float64; TypeError or ValueError if the arrays do not fit."""
    b = np.ascontiguousarray(real_array("b", b, "(nocc, nvir, naux)", 3))
    occ, vir = real_array("eps_occ", eps_occ, "(nocc,)", 1), real_array("eps_vir", eps_vir, "(nvir,)", 1)
    if b.shape[:2] != (len(occ), len(vir)):
        raise ValueError(
            f"b has shape {b.shape} with {len(occ)} eps_occ and {len(vir)} eps_vir: expected (nocc, nvir, naux)"
        )
    return Spin(b, occ, vir)


def _pairings(spins: tuple[Spin, ...]) -> tuple[tuple[Spin, Spin], ...]:
    """The spins of each channel: one for RHF; alpha-alpha, alpha-beta, beta-beta for UHF."""
    return tuple((left, right) for n, left in enumerate(spins) for right in spins[n:])


def _block(nvir: tuple[int, int], memory: float) -> int:
    """The number of pairs of occupied orbitals whose integrals fit in ``memory`` bytes besides the workspace."""
    matrix = max(nvir[0] * nvir[1], 1) * REAL.itemsize
    pairs = int(memory // matrix) - WORKSPACE
    if pairs < 1:
        raise ValueError(
            f"memory={memory:.0f} bytes: one pair of {nvir[0]} x {nvir[1]} virtual orbitals takes "
            f"{(WORKSPACE + 1) * matrix} bytes"
        )
    return pairs


def _blocks(left: Spin, right: Spin, memory: float) -> list[tuple[int, int, int]]:
    """(i, first j, end of j) for blocks of pairs ij; within one spin only j <= i."""
    size = _block((len(left.vir), len(right.vir)), memory)
    ends = [i + 1 if left is right else len(right.occ) for i in range(len(left.occ))]
    return [(i, j, min(j + size, end)) for i, end in enumerate(ends) for j in range(0, end, size)]


@priced("matmul", lambda integrals, *_: (ENERGY_FLOPS * integrals.size, ((),)))
def _sum_pairs(
    integrals: np.ndarray, occ: np.ndarray, vir: np.ndarray, t: np.ndarray, sums: np.ndarray
) -> Iterator[np.ndarray]:
    """Write sums over b of direct and exchange energies to ``sums``, and yield the amplitudes t of each pair.

    ``integrals`` (pairs, nvir, nvir) of pairs with energies ``occ`` (pairs,), ``vir`` (nvir, nvir): sums of energies.
    """
    if integrals.size <= TOGETHER:
        amplitudes = integrals / (occ[:, np.newaxis, np.newaxis] - vir)
        np.vecdot(integrals, amplitudes, out=sums[0, : len(integrals)])
        if len(sums) > 1:
            np.vecdot(integrals, amplitudes.swapaxes(1, 2), out=sums[1, : len(integrals)])
        yield from amplitudes
        return
    for n, iajb in enumerate(integrals):
        np.subtract(occ[n], vir, out=t)
        np.divide(iajb, t, out=t)
        # Row by row, because for a whole matrix BLAS wakes its other threads, which takes as long as the sum.
        np.vecdot(iajb, t, out=sums[0, n])
        if len(sums) > 1:
            np.vecdot(iajb, t.T, out=sums[1, n])
        yield t


def _channel(left: Spin, right: Spin, unrestricted: bool, memory: float, product: Product, with_t2: bool) -> Channel:
    """Energies of the pairs of ``left`` with ``right``, and with ``with_t2`` their amplitudes."""
    same = left is right
    nocc, nvir = (len(left.occ), len(right.occ)), (len(left.vir), len(right.vir))
    found = np.zeros((2 if same else 1, *nocc))  # direct and exchange energies
    t2 = np.empty((*nocc, *nvir)) if with_t2 else None
    blocks = _blocks(left, right, memory)
    most = max((end - j for _, j, end in blocks), default=0)
    integrals, vv = np.empty(nvir[0] * most * nvir[1], like=left.b), left.vir[:, None] + right.vir
    t, sums = np.empty_like(vv), np.zeros((len(found), most, nvir[0]))
    for i, first, end in track(blocks, "DF-MP2 pairs"):
        rows, pairs = (end - first) * nvir[1], np.s_[first:end]
        jbl = right.b[pairs].reshape(rows, right.b.shape[2])
        # Few rows times many columns, because with the factors swapped BLAS reaches three quarters of this rate.
        block = product(left.b[i], jbl.T, integrals[: nvir[0] * rows].reshape(nvir[0], rows))
        block = block.reshape(nvir[0], end - first, nvir[1]).swapaxes(0, 1)
        for j, amplitudes in enumerate(_sum_pairs(block, left.occ[i] + right.occ[pairs], vv, t, sums), first):
            if t2 is not None:
                t2[i, j] = amplitudes - amplitudes.T if same and unrestricted else amplitudes
                if same:
                    t2[j, i] = t2[i, j].T
        found[:, i, pairs] = sums[:, : end - first].sum(axis=2)
        if same:
            found[:, pairs, i] = found[:, i, pairs]
    return Channel(found[0], found[1] if same else None, t2)


def _energy(spins: tuple[Spin, ...], memory: float, product: Product, with_t2: bool) -> MP2Energy:
    unrestricted = len(spins) > 1
    return _total(tuple(_channel(*pair, unrestricted, memory, product, with_t2) for pair in _pairings(spins)))


def _total(channels: tuple[Channel, ...]) -> MP2Energy:
    """The energy of all pairs, split by spin."""
    unrestricted = len(channels) > 1
    opposite, same = 0.0, 0.0
    for channel in channels:
        direct = float(channel.direct.sum())
        if channel.exchange is None or not unrestricted:
            opposite += direct
        if channel.exchange is not None:
            pairs = direct - float(channel.exchange.sum())
            # Each pair of electrons of one spin is counted twice, as ij and ji. The sum for RHF stands for both spins.
            same += pairs / 2 if unrestricted else pairs
    return MP2Energy(opposite, same, channels)


@record(kw_only=True)
class PairEnergies(Problem):
    """The correlation energy of all pairs of electrons; ``arrays`` are the integrals of each spin."""

    unproven: ClassVar[str] = "the energies of pairs that the host does not recompute"
    energies: tuple[tuple[np.ndarray, np.ndarray], ...]  # of the occupied and of the virtual orbitals of each spin
    memory: float
    with_t2: bool
    accuracy: float  # Hartree

    def spins(self) -> tuple[Spin, ...]:
        return tuple(Spin(b, *energies) for b, energies in zip(self.arrays, self.energies, strict=True))

    def run(self, engine: Engine) -> MP2Energy:
        recomputed = functools.partial(_recomputing, self.arrays[0], self.spins(), engine.parallel)
        if current_policy().products == "matched":
            return self._run(engine, recomputed)
        found = recomputed()
        result = self._run(engine, recomputed)
        return replace(result, uncertainty=_uncertainty(found(), self.spins(), result))

    def _run(self, engine: Engine, recomputed: Callable[[], Callable[[], list[Recomputed]]]) -> MP2Energy:
        spins, memory, with_t2 = self.spins(), self.memory, self.with_t2
        guards.finite(*(e for spin in self.energies for e in spin))
        form = engine.format(REAL)  # the kernel multiplies float32 numbers or digits, no other format
        if not with_t2 and (form == "float32" or (form == BY_DIGITS and self.accuracy >= FINEST)):
            digits = 1 if form == "float32" else DIGITS
            found = None if digits == 1 else recomputed()  # while the device computes
            try:
                result = _fused(engine, spins, memory, digits)
                if found is None:
                    return result
                wrong = _uncertainty(found(), spins, result)
                if usual(wrong <= self.accuracy, True):
                    return replace(result, uncertainty=wrong)
            except _pairs.Unfit:  # matrix products have no limits of size or of orbital energies
                pass
        guards.finite(*self.arrays)
        return _energy(spins, memory, checked_product(engine), with_t2)

    def error(self, result: MP2Energy) -> float:
        """The error of a result, on the scale of the backward error that dispatch compares with its limit.

        For a kernel with few digits it is ``uncertainty / accuracy``; otherwise the largest error of the sampled pairs
        relative to the energy.
        """
        if not np.isfinite(result.total):
            return float("inf")
        if result.uncertainty and current_policy().products == "matched":
            return float(ALLOWED_ERROR * eps(REAL, "matched") * result.uncertainty / self.accuracy)
        scale = max((abs(float(c.direct.sum())) for c in result.channels), default=0.0)
        sampled = _differences(_recompute(self.spins()), result)
        return relative(max(float(np.abs(errors).max()) for errors in sampled), scale)


def _prepare(
    b: Any, eps_occ: Any, eps_vir: Any, *, memory: float = MEMORY, with_t2: bool = False, accuracy: float = ACCURACY
) -> Problem:
    spins = _spins(b, eps_occ, eps_vir)
    if any(0 in spin.b.shape for spin in spins):
        raise Unsupported(Reason.LAYOUT, f"integrals {', '.join(str(s.b.shape) for s in spins)}: no pairs")
    _check_accuracy(accuracy)
    elements = [
        (end - first) * len(right.vir) * len(left.vir)
        for left, right in _pairings(spins)
        for _, first, end in _blocks(left, right, memory)
    ]
    nvir, naux = len(spins[0].vir), spins[0].b.shape[2]
    cost = Cost(
        "matmul", cube(nvir, nvir * len(spins[0].occ), naux), 2.0 * naux * sum(elements),
        sum(spin.b.nbytes for spin in spins), REAL.itemsize * sum(elements),
    )  # fmt: skip
    arrays, energies = tuple(spin.b for spin in spins), tuple((spin.occ, spin.vir) for spin in spins)
    return PairEnergies(arrays, REAL, cost, energies=energies, memory=memory, with_t2=with_t2, accuracy=accuracy)


def _check_accuracy(accuracy: float) -> None:
    if not accuracy > 0:
        raise ValueError(f"accuracy={accuracy!r} Hartree: expected a positive number")


def _fused(engine: Engine, spins: tuple[Spin, ...], memory: float, digits: int) -> MP2Energy:
    """Energies from the kernel mp2_energy, which forms products, denominators and sums."""
    plans = [_pairs.planned(engine, *pair, digits, memory) for pair in _pairings(spins)]
    cores = _pairs.shared(engine, plans)
    return _total(tuple(Channel(*_pairs.energies(cores, plan), None) for plan in plans))


Recomputed = tuple[np.ndarray, np.ndarray]  # pairs (samples, 2), and their direct and exchange energies (samples, 2)


def _recompute(spins: tuple[Spin, ...]) -> list[Recomputed]:
    """Energies of a few random pairs of each channel, on the host."""
    found = []
    for left, right in _pairings(spins):
        shape = len(left.occ), len(right.occ)
        found.append(_energies(left, right, np.argwhere(np.tri(*shape) if left is right else np.ones(shape))))
    return found


def _energies(left: Spin, right: Spin, pairs: np.ndarray, samples: int = SAMPLES, exchange: bool = True) -> Recomputed:
    """A random sample of ``pairs`` (n, 2), and their energies."""
    chosen = np.random.default_rng().permutation(pairs)[:samples]
    energies = np.zeros((len(chosen), 2))
    with np.errstate(all="ignore"):  # integrals or denominators may be such that the device computes nothing
        for energy, (i, j) in zip(energies, chosen, strict=True):
            iajb = host_product(left.b[i], right.b[j].T)
            t = iajb / (left.occ[i] + right.occ[j] - left.vir[:, None] - right.vir)
            energy[0] = np.vdot(iajb, t)
            if exchange and len(left.vir) == len(right.vir):
                energy[1] = np.vdot(np.ascontiguousarray(iajb.T), t)
    return chosen, energies


def _sample_price(b: np.ndarray, spins: tuple[Spin, ...]) -> tuple[float, tuple[Any, ...]]:
    flops = (2.0 * b.shape[2] + ENERGY_FLOPS) * b.shape[1] ** 2 * SAMPLES * len(_pairings(spins))
    return flops, (((), REAL),)


def _recomputing(b: np.ndarray, spins: tuple[Spin, ...], parallel: bool) -> Callable[[], list[Recomputed]]:
    """A function that returns ``_recompute(spins)``, from another thread if that is possible; ``b`` of one spin."""
    if isinstance(b, StandIn):
        return in_turn(lambda: _beside(b, spins))
    return beside(lambda: _recompute(spins)) if parallel else lambda: _recompute(spins)


@priced("beside matmul", _sample_price)
def _beside(b: np.ndarray, spins: tuple[Spin, ...]) -> list[Recomputed]:
    """``_recompute``, as a dry run counts it: while the device computes."""
    return _recompute(spins)


def _differences(recomputed: list[Recomputed], result: MP2Energy) -> Iterator[np.ndarray]:
    """Errors (samples, 2) of the direct and exchange energies of each channel."""
    for (pairs, energies), channel in zip(recomputed, result.channels, strict=True):
        yield _errors(pairs, energies, channel.direct, channel.exchange)


def _errors(pairs: np.ndarray, energies: np.ndarray, direct: np.ndarray, exchange: np.ndarray | None) -> np.ndarray:
    """Errors (samples, 2) of direct and exchange energies, whose right values are ``energies``."""
    i, j = pairs.T
    crossed = energies[:, 1] if exchange is None else exchange[i, j]
    return np.asarray(np.stack([direct[i, j], crossed], axis=1) - energies)


@priced("", lambda recomputed, *_: (0.0, (((), REAL),)))
def _uncertainty(recomputed: list[Recomputed], spins: tuple[Spin, ...], result: MP2Energy) -> float:
    """The largest error of the total in Hartree, estimated from sampled pairs."""
    found = 0.0
    for errors, channel in zip(_differences(recomputed, result), result.channels, strict=True):
        # weights as in ``_total``
        weights = (2.0, -1.0) if len(spins) == 1 else (1.0, 0.0) if channel.exchange is None else (0.5, -0.5)
        weighted = errors @ weights
        found += _extrapolated(len(weighted), float(weighted.sum()), float(weighted @ weighted), channel.direct.size)
    return found


def _extrapolated(samples: int, total: float, squares: float, pairs: int) -> float:
    """The largest error of a sum over all ``pairs``, from the errors of a sample: their ``total`` and ``squares``.

    The significant part of the sample's mean is multiplied by the number of pairs. The root mean square is treated as
    the size of independent errors, except that ij and ji have the same error.
    """
    mean, size = abs(float(total)) / samples, float(squares / samples) ** 0.5
    spread = max(size * size - mean * mean, 0.0) ** 0.5  # a power that overflows raises an error
    common = max(mean - 3 * spread / samples**0.5, 0.0) if samples > 1 else mean
    return float(common * pairs + DEVIATIONS * size * (2 * pairs) ** 0.5)


@row(_prepare)
def dfmp2_energy(
    b: Arrays,
    eps_occ: Arrays,
    eps_vir: Arrays,
    *,
    memory: float = MEMORY,
    with_t2: bool = False,
    accuracy: float = ACCURACY,
) -> MP2Energy:
    """MP2 correlation energy of canonical orbitals from density-fitted integrals.

    Parameters
    ----------
    b : (nocc, nvir, naux) array_like, or a pair of such arrays
        Real integrals with (ia|jb) = sum over L of b[i, a, L] b[j, b, L], in Hartree^(1/2), as `ao2mo` returns them.
        One array means RHF, a pair (alpha, beta) UHF. They are converted to float64.
    eps_occ, eps_vir : (nocc,) and (nvir,) array_like, or a pair of each
        Energies of the occupied and of the virtual orbitals in Hartree.
    memory : float, optional
        Bytes of workspace. `b`, its copy if it is not C-contiguous float64, and the amplitudes need additional memory.
    with_t2 : bool, optional
        Whether to keep the amplitudes t[i, j, a, b], in ``channels[n].t2`` of the result.
    accuracy : float, optional
        Largest error in Hartree of an energy computed on a device, as estimated from sampled pairs. Below 5e-10 the
        device forms products of float64 accuracy. The host always computes in float64.

    Returns
    -------
    MP2Energy
        Energies in Hartree, split into pairs of opposite and of same spin [2]_.

    Raises
    ------
    TypeError
        If an array is complex or not numeric.
    ValueError
        If shapes do not fit, if `accuracy` is not positive, or if the integrals of one pair exceed `memory`.

    Notes
    -----
    The integrals (ia|jb) are formed for a few pairs ij at a time [1]_, and never stored as a whole.

    References
    ----------
    .. [1] F. Weigend and M. Haeser, Theor. Chem. Acc. 97, 331 (1997), eqs. 3-5.
    .. [2] S. Grimme, J. Chem. Phys. 118, 9095 (2003).

    Examples
    --------
    >>> import numpy as np
    >>> from trnpy.chem import dfmp2_energy
    >>> b = np.full((1, 1, 1), 0.5)  # one occupied orbital, one virtual, one auxiliary function
    >>> energy = dfmp2_energy(b, [-0.5], [0.5])
    >>> f"{energy.total:.6f} Hartree"
    '-0.031250 Hartree'
    """
    _check_accuracy(accuracy)
    return _energy(_spins(b, eps_occ, eps_vir), memory, host_product, with_t2)


def _dfmp2_naive(b: Arrays, eps_occ: Arrays, eps_vir: Arrays) -> tuple[float, float]:
    """Opposite-spin and same-spin energy from the defining sums, for tests; needs O(nocc^2 nvir^2) memory."""

    def integrals(left: Any, right: Any) -> tuple[np.ndarray, np.ndarray]:
        (b1, o1, v1), (b2, o2, v2) = left, right
        g = np.einsum("iaL,jbL->iajb", b1, b2)
        return g, g / (o1[:, None, None, None] - v1[:, None, None] + o2[:, None] - v2)

    def direct_and_exchange(g: np.ndarray, t: np.ndarray) -> tuple[float, float]:
        return float(np.einsum("iajb,iajb->", g, t)), float(np.einsum("iajb,ibja->", g, t))

    if not isinstance(b, (list, tuple)):
        restricted = (b, eps_occ, eps_vir)
        direct, exchange = direct_and_exchange(*integrals(restricted, restricted))
        return direct, direct - exchange
    alpha, beta = zip(b, eps_occ, eps_vir, strict=True)
    same = [direct_and_exchange(*integrals(spin, spin)) for spin in (alpha, beta)]
    g, t = integrals(alpha, beta)
    return float(np.einsum("iajb,iajb->", g, t)), sum(direct - exchange for direct, exchange in same) / 2
