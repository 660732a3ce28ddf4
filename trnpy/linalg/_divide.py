"""Approximate eigenvectors of a Hermitian matrix by spectral divide and conquer, with float32 products only.

The sign function of A - s I splits the space into two invariant subspaces. The polar factor of a projected random
block is an orthonormal basis of each, and A in that basis is a smaller problem. LAPACK solves the smallest problems.
Nakatsukasa & Higham, SIAM J. Sci. Comput. 35 (2013), with polynomials instead of their rational functions, random
instead of pivoted columns, and a check of each split: docs/spectra.md#divide-and-conquer.

A complex matrix is computed as the real matrix [Re -Im; Im Re], which has each eigenvalue twice. Products keep that
structure: projectors have even rank, and a random block [Re -Im; Im Re] spans both vectors of a pair. This needs
twice the operations of complex products, but no additional kernel.
"""

from __future__ import annotations

import math

import numpy as np

from trnpy._base.records import record
from trnpy._engine import iterations
from trnpy._engine.abstract_arrays import priced, usual
from trnpy._engine.engines import Engine, Handle
from trnpy._settings.tile import length
from trnpy.linalg import _lapack_panels
from trnpy.linalg._matrices import by_strips, shared
from trnpy.linalg._polynomials import POLISH, sign_coefficients

LEAF = length(320)  # rows: LAPACK solves smaller blocks in about the time of the five launches of a split
LEAVES = 12  # about the most: the host's work falls with their square, the number of launches grows with their number
RESOLVED = 16  # octaves below 1 in which the polynomial equals the sign: to 1.5e-5, a hundred times its rounding errors
NOISE = 2e-7  # relative to the norm of the whole matrix: float32 products give zero eigenvalues up to this size
FLAT = 3e-6  # relative to that norm: the refinement treats a block this close to a multiple of I
OFF_MEDIAN = 0.0137  # in deviations: a structured matrix may have eigenvalues exactly at the median of its diagonal
UNDECIDED = 0.02  # limit for tr P - |P|_F^2: above it an eigenvalue is too close to the shift
NUDGE = 0.05  # in deviations: the shift then moves by this distance
BALANCED = 64  # another shift is tried if one half has fewer than 1/64 of the rows
SHIFTS = 5  # tried per block
DRAWS = 3  # of a random block: each is ill-conditioned with probability 2 %
DEFECT = 1e-2  # limit for |Q^T Q - I|_F: float32 rounding gives 1e-4, an ill-conditioned random block gives 0.1
EFFORT = 300.0  # times n^3 operations: after that, LAPACK solves the remaining blocks
DOUBLE = np.dtype(np.float64)
NORM_SLACK = 1.02  # covers the rounding of norms that are summed in float32


@record()
class Block:
    """A in the basis of one invariant subspace: a matrix (m, m) float32 on the host, the basis (n, m) on the engine."""

    matrix: np.ndarray
    diagonal: np.ndarray  # (m,) of the matrix, float64
    rows: np.ndarray  # (m,): sums of the magnitudes of each row, without the diagonal
    off: float  # sum of the squares of the elements off the diagonal
    basis: Handle | None = None  # None: the whole space

    def bound(self, shift: float) -> float:
        """An upper bound of the norm of A - shift I."""
        distance = np.abs(self.diagonal - shift)
        rows, total = (self.rows + distance).max(), np.sqrt(self.off + np.square(distance).sum())
        return NORM_SLACK * float(min(usual(rows, 1.0), usual(total, 1.0)))

    @property
    def deviation(self) -> float:
        """Root mean square of the eigenvalues' distances from their mean."""
        spread = np.square(self.diagonal - self.diagonal.mean()).sum()
        return float(np.sqrt(usual(self.off + spread, 1.0) / len(self.matrix)))


@record()
class Task:
    """The data that all blocks of one matrix share."""

    engine: Engine
    paired: bool  # whether the matrix is [Re -Im; Im Re] of a complex one
    norm: float  # root mean square of its eigenvalues
    random: np.random.Generator


def eigenvectors(a: np.ndarray, engine: Engine, leaf: int = LEAF) -> np.ndarray:
    """Orthonormal eigenvectors (n, n) of Hermitian a (n, n), in the order of their values, to float32 accuracy of |a|.

    The result is float32 or complex64. Raises Refused if the engine has no float32 product.
    """
    paired = a.dtype.kind == "c"
    whole = _paired(a) if paired else a.astype(np.float32, order="C", copy=False)
    n = len(whole)
    block = _block(whole)
    norm = float(np.sqrt(usual(block.off + np.square(block.diagonal).sum(), 1.0)))
    task = Task(engine, paired, norm / np.sqrt(n), np.random.default_rng(n))
    leaf = max(2 * leaf if paired else leaf, n // LEAVES)
    pending, found, effort = [block], [], 0.0
    while pending:
        block = pending.pop()
        m = len(block.matrix)
        halves = None
        if m > leaf and effort < EFFORT * float(n) ** 3 and block.deviation > FLAT * task.norm:
            halves, shifts = _halves(block, task)
            effort += (6 * 10 * shifts + 36) * float(m) ** 3  # ten steps per sign, two bases of about m / 2 columns
        if halves is None:
            found.append(_solved(block, task))
        else:
            pending.extend(halves)  # the lower one is processed next
    return np.concatenate(found, axis=1)


def _paired(a: np.ndarray) -> np.ndarray:
    """[Re -Im; Im Re] in float32."""
    return np.block([[a.real, -a.imag], [a.imag, a.real]]).astype(np.float32)


def _block(a: np.ndarray, basis: Handle | None = None) -> Block:
    return Block(a, a.diagonal().astype(np.float64), *_off_diagonal(a), basis)


@priced("sums of rows", lambda a: (shared(a), (((len(a),), DOUBLE), ((), DOUBLE))))
def _off_diagonal(a: np.ndarray) -> tuple[np.ndarray, float]:
    """The sum of the magnitudes of each row of a (m, m) without the diagonal, and the sum of their squares."""

    def work(s: slice) -> tuple[np.ndarray, float]:
        size = np.abs(a[s])
        size[np.arange(len(size)), np.arange(len(a))[s]] = 0
        return size.sum(axis=1), float(np.vdot(size, size))

    rows, off = zip(*by_strips(a, work), strict=True)
    return np.concatenate(rows).astype(np.float64), sum(off)


def _unpaired(a: np.ndarray) -> np.ndarray:
    """The complex matrix whose form [Re -Im; Im Re] is ``a``; the mean of the two copies, which differ by rounding."""
    rows, columns = a.shape[0] // 2, a.shape[1] // 2
    real = a[:rows, :columns] + a[rows:, columns:]
    mean: np.ndarray = (real + 1j * (a[rows:, :columns] - a[:rows, columns:])) / 2
    return mean


def _solved(block: Block, task: Task) -> np.ndarray:
    """Eigenvectors (n, m) of a block in the whole space, computed by LAPACK in float32."""
    _, v = _lapack_panels.eigh(_unpaired(block.matrix) if task.paired else block.matrix)
    if block.basis is None:
        return v
    inner = (_paired(v) if task.paired else v).astype(np.float32, order="C", copy=False)
    x = task.engine.get(task.engine.matmul(block.basis, inner))
    return _unpaired(x) if task.paired else x


def _halves(block: Block, task: Task) -> tuple[list[Block] | None, int]:
    """The blocks above and below the best shift, or None if no shift splits; and the number of shifts tried."""
    split, shifts = _split(block, task)
    if split is None:
        return None, shifts
    upper = _basis(block, split.h, split.sign.matrix, split.rank, False, task)
    lower = upper and _basis(block, split.h, upper.basis, len(block.matrix) - split.rank, True, task)
    if upper is None or lower is None:
        return None, shifts
    halves = []
    for half in (upper, lower):
        basis = half.basis if block.basis is None else task.engine.matmul(block.basis, half.basis)
        halves.append(_block(np.float32(split.bound / 2) * (half.inside + half.inside.T), basis))
    return halves, shifts


@record()
class Split:
    """h = (A - s I) / bound, its sign, and the number of eigenvalues above the shift s."""

    h: Handle
    sign: iterations.Sign
    rank: int
    bound: float


def _split(block: Block, task: Task) -> tuple[Split | None, int]:
    """The most even of the splits that were tried, and the number of tries."""
    m = len(block.matrix)
    deviation, mean = block.deviation, float(usual(block.diagonal.mean(), 0.0))
    shift = float(usual(np.median(block.diagonal), 0.0)) + OFF_MEDIAN * deviation
    best: Split | None = None
    diagonal, evenness = np.arange(m), 0
    for tried in range(1, SHIFTS + 1):
        bound = block.bound(shift)
        shifted = block.matrix * np.float32(1 / bound)
        shifted[diagonal, diagonal] = (block.diagonal - shift) / bound
        h = task.engine.put(shifted, copy=False)
        octaves = np.clip(np.log2(bound / (NOISE * task.norm)), 1, RESOLVED)
        sign = iterations.sign(h, sign_coefficients(int(octaves)), task.engine)
        if not abs(m - sign.squares) / 4 <= UNDECIDED:  # sum of p (1 - p) over the eigenvalues p of the projector
            shift += NUDGE * deviation * tried * (-1) ** tried
            continue
        rank = 2 * round((m + sign.trace) / 4) if task.paired else round((m + sign.trace) / 2)
        if min(rank, m - rank) > evenness:
            best, evenness = Split(h, sign, rank, bound), min(rank, m - rank)
        if evenness >= max(1, m // BALANCED):
            break
        # Most eigenvalues are on one side: try the mean, then half a deviation towards that side.
        side = 1 if rank > m // 2 else -1
        shift = mean if tried == 1 else mean + side * 0.5 * deviation / tried
    return best, tried


def _basis(
    block: Block, h: Handle, operator: Handle, rank: int, complement: bool, task: Task
) -> iterations.Subspace | None:
    """A basis of ``rank`` columns that is orthonormal to float32; None if no random block gave one."""
    # A random square block of order r has a norm below 2 sqrt(r) + 6, and rarely a singular value below 0.02 / sqrt(r):
    # Edelman, SIAM J. Matrix Anal. Appl. 9 (1988), for normal numbers. Uniform numbers need a sixth of the time; for
    # them see docs/spectra.md#divide-and-conquer.
    scale = 2 * np.sqrt(rank) + 6
    octaves = int(np.ceil(np.log2(scale * np.sqrt(rank) / 0.02)))
    for _ in range(DRAWS):
        omega = _random(block.matrix, rank, task) / np.float32(scale)
        found = iterations.subspace(h, operator, omega, sign_coefficients(octaves), POLISH, complement, task.engine)
        if found.defect <= DEFECT:
            return found
    return None


@priced("uniform", lambda a, rank, task: (len(a) * rank, (((len(a), rank), np.dtype(np.float32)),)))
def _random(a: np.ndarray, rank: int, task: Task) -> np.ndarray:
    """A random block (m, rank) for a (m, m), of unit variance; [Re -Im; Im Re] if the matrix has that form."""
    m = len(a)
    if not task.paired:
        return _uniform((m, rank), task)
    x, y = _uniform((2, m // 2, rank // 2), task) / np.float32(np.sqrt(2))
    return np.block([[x, -y], [y, x]])


def _uniform(shape: tuple[int, ...], task: Task) -> np.ndarray:
    """Uniformly distributed numbers on 65,536 points, with mean zero and unit variance."""
    size = math.prod(shape)
    drawn = task.random.bit_generator.random_raw(-(-size // 4)).view(np.int16)[:size].reshape(shape)
    return (drawn + np.float32(0.5)) * np.float32(math.sqrt(3) / 2**15)
