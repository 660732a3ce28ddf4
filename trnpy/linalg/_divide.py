"""Approximate eigenvectors of a Hermitian matrix: its spectrum halved again and again, by float32 products only.

The sign of A - s I splits the space in two invariant subspaces; each has an orthonormal basis, the polar
factor of a projected random block, and A in that basis is a smaller problem. Small ones are the host's.
Nakatsukasa & Higham, SIAM J. Sci. Comput. 35 (2013), with polynomials in place of their rational functions,
random in place of pivoted columns, and a check of each split: shared/NUMERICS.md 2.2.

Complex matrices are [Re -Im; Im Re] here. Each eigenvalue is there twice then, and stays so: products keep
the structure of their operands, so projectors have even rank and a random block [Re -Im; Im Re] spans whole
pairs. It costs twice the operations of complex products and needs no kernel of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from trnpy import _host, _iterations
from trnpy._engine import Engine, Handle
from trnpy.linalg._polynomials import POLISH, sign_coefficients

LEAF = 320  # rows: LAPACK's eigh of fewer takes about as long as the five launches of a split
LEAVES = 12  # at most, about: the host's share falls with their square, launches grow with them
RESOLVED = 16  # octaves below 1 where the sign is right: 1.5e-5, a hundred times the rounding of its products
NOISE = 2e-7  # of the norm of the whole matrix: what products of float32 leave of eigenvalues that are zero
FLAT = 3e-6  # of that norm: a block that is a multiple of I to float32, for refinement to resolve
OFF_MEDIAN = 0.0137  # deviations: eigenvalues of structured matrices sit on the median of their diagonal exactly
UNDECIDED = 0.02  # tr P - |P|_F^2 beyond which an eigenvalue sits on the split
NUDGE = 0.05  # deviations by which the split moves away from it
BALANCED = 64  # a half of less than 1/64 of the rows is another shift's task
SHIFTS = 5  # tried for one block
DRAWS = 3  # of a random block: each is ill-conditioned with probability 2 %
DEFECT = 1e-2  # |Q^T Q - I|_F: of float32 products 1e-4, of an ill-conditioned block 0.1
EFFORT = 300.0  # n^3 operations of the whole: spectra that take more are the host's from there on
NORM_SLACK = 1.02  # bounds of norms are sums of float32


@dataclass(frozen=True, slots=True)
class Block:
    """A in the basis of one invariant subspace: (m, m) float32 on the host; the basis (n, m) is the engine's."""

    matrix: np.ndarray
    basis: Handle | None = None  # None: the whole space


def eigenvectors(a: np.ndarray, engine: Engine, leaf: int = LEAF) -> np.ndarray:
    """Eigenvectors (n, n), orthonormal and in no order, of Hermitian a (n, n) to float32 accuracy of |a|, about 1.

    The result is float32 or complex64.  Refused where the engine has no such product.
    """
    paired = a.dtype.kind == "c"
    whole = _paired(a) if paired else np.ascontiguousarray(a, np.float32)
    n = len(whole)
    leaf = max(leaf, n // LEAVES) * (2 if paired else 1)
    norm = float(np.linalg.norm(whole)) / np.sqrt(n)
    rng = np.random.default_rng(n)
    pending, found, effort = [Block(whole)], [], 0.0
    while pending:
        block = pending.pop()
        m = len(block.matrix)
        halves = None
        if m > leaf and effort < EFFORT * float(n) ** 3 and _deviation(block.matrix) > FLAT * norm:
            halves, shifts = _halves(block, norm, paired, rng, engine)
            effort += (6 * 10 * shifts + 36) * float(m) ** 3  # ten steps a sign, half the rows in each basis
        if halves is None:
            found.append(_solved(block, paired, engine))
        else:
            pending.extend(halves)
    return np.concatenate(found, axis=1)


def _paired(a: np.ndarray) -> np.ndarray:
    """[Re -Im; Im Re] in float32."""
    return np.block([[a.real, -a.imag], [a.imag, a.real]]).astype(np.float32)


def _deviation(a: np.ndarray) -> float:
    """Root mean square of the eigenvalues' distances from their mean."""
    n = len(a)
    diagonal = a.diagonal().astype(np.float64)
    off = float(np.linalg.norm(a - np.diag(a.diagonal()))) ** 2
    return float(np.sqrt(max((off + ((diagonal - diagonal.mean()) ** 2).sum()) / n, 0.0)))


def _unpaired(a: np.ndarray) -> np.ndarray:
    """The complex matrix that ``a`` stands for; where rounding took the two copies apart, their mean."""
    rows, columns = a.shape[0] // 2, a.shape[1] // 2
    real = a[:rows, :columns] + a[rows:, columns:]
    return np.asarray((real + 1j * (a[rows:, :columns] - a[:rows, columns:])) / 2)


def _solved(block: Block, paired: bool, engine: Engine) -> np.ndarray:
    """Eigenvectors (n, m) in the whole space, by LAPACK in float32."""
    _, v = _host.eigh(_unpaired(block.matrix) if paired else block.matrix, driver="evd", check_finite=False)
    if block.basis is None:
        return np.asarray(v)
    inner = np.ascontiguousarray(_paired(v) if paired else v)
    x = engine.get(engine.matmul(block.basis, inner))
    return _unpaired(x) if paired else x


def _halves(
    block: Block, norm: float, paired: bool, rng: np.random.Generator, engine: Engine
) -> tuple[list[Block] | None, int]:
    """The blocks above and below the best shift that was found, None if there is none; and how many were tried."""
    split, shifts = _split(block.matrix, norm, engine)
    if split is None:
        return None, shifts
    h, sign, rank, bound = split
    m = len(block.matrix)
    upper = _basis(h, sign.matrix, m, rank, False, paired, rng, engine)
    lower = upper and _basis(h, upper.basis, m, m - rank, True, paired, rng, engine)
    if upper is None or lower is None:
        return None, shifts
    halves = []
    for half in (upper, lower):
        basis = half.basis if block.basis is None else engine.matmul(block.basis, half.basis)
        halves.append(Block(np.float32(bound / 2) * (half.inside + half.inside.T), basis))
    return halves, shifts


def _split(a: np.ndarray, norm: float, engine: Engine) -> tuple[tuple[Any, Any, int, float] | None, int]:
    """((A - s I) / bound, its sign, the rank above s, bound) for the most even of the shifts tried; how many."""
    m = len(a)
    deviation, mean = _deviation(a), float(a.diagonal().mean(dtype=np.float64))
    shift = float(np.median(a.diagonal())) + OFF_MEDIAN * deviation
    best, evenness = None, 0
    for tried in range(1, SHIFTS + 1):
        shifted = a - np.float32(shift) * np.eye(m, dtype=np.float32)
        bound = NORM_SLACK * float(min(np.abs(shifted).sum(axis=1).max(), np.linalg.norm(shifted)))
        h = engine.put(shifted / np.float32(bound))
        octaves = min(RESOLVED, int(-np.log2(NOISE * norm / bound))) if NOISE * norm < bound / 2 else 1
        sign = _iterations.sign(h, sign_coefficients(octaves), engine)
        if not abs(m - sign.squares) / 4 <= UNDECIDED:  # a sum of p (1 - p) over the projector's eigenvalues
            shift += NUDGE * deviation * tried * (-1) ** tried
            continue
        rank = round((m + sign.trace) / 2)
        if min(rank, m - rank) > evenness:
            best, evenness = (h, sign, rank, bound), min(rank, m - rank)
        if evenness >= max(1, m // BALANCED):
            break
        # Most eigenvalues are on one side: the mean, then half a deviation into it.
        side = 1 if rank > m // 2 else -1
        shift = mean if tried == 1 else mean + side * 0.5 * deviation / tried
    return best, tried


def _basis(
    h: Any, operator: Any, m: int, rank: int, complement: bool, paired: bool, rng: np.random.Generator, engine: Engine
) -> _iterations.Subspace | None:
    """A basis of ``rank`` columns that is orthonormal to float32; None where no random block gave one."""
    # A square Gaussian block of order r has a norm below 2 sqrt(r) + 6, and hardly ever a singular value below
    # 0.02 / sqrt(r): Edelman, SIAM J. Matrix Anal. Appl. 9 (1988).
    scale = 2 * np.sqrt(rank) + 6
    octaves = int(np.ceil(np.log2(scale * np.sqrt(rank) / 0.02)))
    for _ in range(DRAWS):
        omega = _gaussian(m, rank, paired, rng) / np.float32(scale)
        found = _iterations.subspace(h, operator, omega, sign_coefficients(octaves), POLISH, complement, engine)
        if found.defect <= DEFECT:
            return found
    return None


def _gaussian(m: int, rank: int, paired: bool, rng: np.random.Generator) -> np.ndarray:
    if not paired:
        return rng.standard_normal((m, rank), np.float32)
    g = rng.standard_normal((2, m // 2, rank // 2), np.float32) / np.float32(np.sqrt(2))
    return np.block([[g[0], -g[1]], [g[1], g[0]]])
