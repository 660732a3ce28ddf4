"""Energies of the pairs of two blocks of occupied orbitals: a rank's own block with itself or with a remote block."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import numpy as np

from trnpy._base.records import record
from trnpy._call import guards
from trnpy._call.dispatch import ALLOWED_ERROR, Cost, Problem, Reason, Unsupported
from trnpy._engine.abstract_arrays import priced
from trnpy._engine.engines import BY_DIGITS, Engine
from trnpy._engine.precision import eps
from trnpy._settings.policy import current_policy
from trnpy.chem import _pairs
from trnpy.chem._rows import MEMORY, REAL, Product, checked_product, cube, host_product, relative, row
from trnpy.chem.dfmp2 import (
    ACCURACY,
    DIGITS,
    FINEST,
    SAMPLES,
    PairEnergies,
    Spin,
    _energies,
    _errors,
    _sum_pairs,
)

Energies = tuple[np.ndarray, np.ndarray]  # of the occupied and of the virtual orbitals
Amplitudes = Callable[[int, int, np.ndarray], None]


@record(eq=False)
class Formed:
    """Energies of pairs (2, left, right), direct and exchange; NaN for pairs that were not formed."""

    energies: np.ndarray
    errors: np.ndarray | None = None  # of the weighted energies of a few random pairs; None if all are in float64


def wanted(left: int, right: int, blocks: int, parity: int | None) -> np.ndarray:
    """Which pairs are formed: i >= j if a block meets itself, otherwise all pairs or one parity of i + j."""
    if blocks == 1:
        return np.tri(left, dtype=bool)
    return np.ones((left, right), bool) if parity is None else np.add.outer(range(left), range(right)) % 2 == parity


def _count(left: int, right: int, blocks: int, parity: int | None) -> int:
    """The number of wanted pairs, or one more."""
    return left * (left + 1) // 2 if blocks == 1 else -(-left * right // (1 if parity is None else 2))


@record(kw_only=True)
class BlockEnergies(Problem):
    """The energies of pairs of one block, or of two; ``arrays`` are their integrals."""

    unproven: ClassVar[str] = PairEnergies.unproven
    orbitals: tuple[Energies, ...]  # of each block
    weights: tuple[float, float]
    parity: int | None
    memory: float
    accuracy: float  # Hartree, of the molecule
    total: int  # pairs i >= j of the molecule

    def blocks(self) -> list[Spin]:
        return [Spin(b, *energies) for b, energies in zip(self.arrays, self.orbitals, strict=True)]

    def run(self, engine: Engine) -> Formed:
        blocks, exchange = self.blocks(), self.weights[1] != 0
        guards.finite(*self.arrays, *(e for energies in self.orbitals for e in energies))
        form = engine.format(REAL)
        if form != "float32" and not (form == BY_DIGITS and self.accuracy >= FINEST):
            return _formed(checked_product(engine), self.arrays, self.orbitals, self.weights, self.parity)
        digits = 1 if form == "float32" else DIGITS
        try:
            plan = _pairs.planned(engine, blocks[0], blocks[-1], digits, self.memory, exchange, self.parity)
            direct, crossed = _pairs.energies(_pairs.shared(engine, [plan]), plan)
        except _pairs.Unfit as why:
            raise Unsupported(Reason.VALUE, str(why)) from None
        found = np.stack([direct, np.zeros_like(direct) if crossed is None else crossed])
        found[:, ~wanted(direct.shape[0], direct.shape[1], len(blocks), self.parity)] = np.nan
        return Formed(found, _sampled(self.arrays[0], blocks, found, self.weights, self.samples))

    @property
    def samples(self) -> int:
        """The number of pairs to recompute: these pairs' share of the samples of the molecule, but at least one."""
        (left, *_), right = self.arrays[0].shape, self.arrays[-1].shape[0]
        return -(-SAMPLES * _count(left, right, len(self.arrays), self.parity) // self.total)

    def error(self, result: Formed) -> float:
        """Like `PairEnergies.error`; a pair may have the error at which the energy still has its accuracy."""
        errors = result.errors
        if errors is not None and current_policy().products == "matched":
            allowed = self.accuracy / (4 * self.total) ** 0.5
            return float(ALLOWED_ERROR * eps(REAL, "matched") * np.abs(errors).max(initial=0.0) / allowed)
        if not np.isfinite(scale := abs(float(np.nansum(result.energies[0])))):
            return float("inf")
        if errors is None:
            errors = _sampled(self.arrays[0], self.blocks(), result.energies, self.weights, self.samples)
        return relative(float(np.abs(errors).max(initial=0.0)), scale)


@priced("matmul", lambda b, *rest: (4.0 * rest[-1] * b.shape[1] ** 2 * b.shape[2], (((rest[-1],), REAL),)))
def _sampled(
    b: np.ndarray, blocks: list[Spin], energies: np.ndarray, weights: tuple[float, float], samples: int
) -> np.ndarray:
    """Errors of the weighted energies of a few random pairs; ``b`` are the integrals of one block."""
    pairs = np.argwhere(~np.isnan(energies[0]))
    exchange = energies[1] if weights[1] else None
    chosen, right = _energies(blocks[0], blocks[-1], pairs, samples, exchange is not None)
    return np.asarray(_errors(chosen, right, energies[0], exchange) @ weights)


def _prepare(
    b: tuple[np.ndarray, ...], orbitals: tuple[Energies, ...], weights: tuple[float, float], *,
    parity: int | None = None, missing: np.ndarray | None = None, memory: float = MEMORY, accuracy: float = ACCURACY,
    total: int = 1, amplitudes: Amplitudes | None = None, exact: bool = False,
) -> Problem:  # fmt: skip
    if amplitudes is not None:
        raise Unsupported(Reason.PARAM, "the call needs amplitudes, and the kernel returns none")
    if exact:
        raise Unsupported(Reason.ACCURACY, f"the energy of the molecule erred by more than {accuracy} Hartree")
    (left, nvir, naux), right = b[0].shape, b[-1].shape[0]
    elements = _count(left, right, len(b), parity) * nvir * b[-1].shape[1]
    cost = Cost(
        "matmul", cube(nvir, nvir * left, naux), 2.0 * naux * elements, sum(x.nbytes for x in b),
        REAL.itemsize * elements,
    )  # fmt: skip
    return BlockEnergies(
        b, REAL, cost, orbitals=orbitals, weights=weights, parity=parity, memory=memory, accuracy=accuracy, total=total
    )


@row(_prepare)
def dfmp2_pairs(
    b: tuple[np.ndarray, ...], orbitals: tuple[Energies, ...], weights: tuple[float, float], *,
    parity: int | None = None, missing: np.ndarray | None = None, memory: float = MEMORY, accuracy: float = ACCURACY,
    total: int = 1, amplitudes: Amplitudes | None = None, exact: bool = False,
) -> Formed:  # fmt: skip
    """Energies of the pairs within one block of occupied orbitals, or between two blocks.

    Parameters
    ----------
    b : tuple of one or two (n, nvir, naux) float64 arrays
        Integrals of each block, fitted.
    orbitals : tuple of pairs of arrays
        Energies of the occupied and of the virtual orbitals of each block.
    weights : (float, float)
        Weights of direct and exchange energies in the energy of the molecule. If the second is 0, the spins differ.
    parity : int, optional
        Parity of i + j of the pairs that two blocks form. The default is all pairs.
    missing : (n, m) array of bool, optional
        The pairs that the caller needs; a device also forms others.
    memory : float, optional
        Bytes of workspace on the host when a device computes the energies.
    accuracy : float, optional
        Largest error of the energy of the molecule in Hartree.
    total : int, optional
        Number of pairs i >= j of the molecule.
    amplitudes : callable, optional
        Called with i, j and the amplitudes (nvir, nvir) of each pair, in an array that the next pair overwrites.
    exact : bool, optional
        Whether the host must form the pairs, because those of a device were not accurate enough.

    Returns
    -------
    Formed
        On the host the energy of a pair does not depend on the others.
    """
    return _formed(host_product, b, orbitals, weights, parity, missing, amplitudes)


def _formed(
    product: Product, b: tuple[np.ndarray, ...], orbitals: tuple[Energies, ...], weights: tuple[float, float],
    parity: int | None, missing: np.ndarray | None = None, amplitudes: Amplitudes | None = None,
) -> Formed:  # fmt: skip
    """Energies in float64, pair by pair."""
    left, right = b[0], b[-1]
    (occ, vir), (occ2, vir2) = orbitals[0], orbitals[-1]
    pairs = wanted(len(left), len(right), len(b), parity)
    energies = np.full((2, *pairs.shape), np.nan)
    vv = vir[:, None] + vir2
    integrals, t, sums = np.empty_like(vv), np.empty_like(vv), np.zeros((2 if weights[1] else 1, 1, len(vir)))
    for i, j in np.argwhere(pairs if missing is None else pairs & missing):
        iajb = product(left[i], right[j].T, integrals)
        for found in _sum_pairs(iajb[None], occ[[i]] + occ2[j], vv, t, sums):
            energies[:, i, j] = sums[0, 0].sum(), sums[1, 0].sum() if weights[1] else 0.0
            if amplitudes is not None:
                amplitudes(i, j, found)
    return Formed(energies)
