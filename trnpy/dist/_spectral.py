"""Eigenpairs of a Hermitian matrix that is too large for one rank: spectral divide and conquer with sharded products.

The sign function of A - s I splits the space in two. A in an orthonormal basis of each half is a smaller problem. Each
problem that fits one rank is solved by one rank, all at the same time.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from trnpy._base.records import record
from trnpy.dist._collectives import Communicator
from trnpy.dist._sharded_products import matmul
from trnpy.dist._sharded import Sharded
from trnpy.linalg._polynomials import NEWTON_SCHULZ, sign_coefficients

OCTAVES = 24  # below the norm: if an eigenvalue is closer to the shift, another shift is tried
DECIDED = 1e4  # n eps: limit of the summed distances from one of the squares of the sign's eigenvalues
SHIFTS = 6  # tried for one split
NUDGE = 0.03  # deviations of the spectrum by which the shift then moves
EVEN = 16  # another shift is tried if one side has less than 1/16 of the rows
FLAT = 4.0  # eps of the norm: eigenvalues with a smaller mean distance are equal; any basis has their vectors
NORM_SLACK = 1.01  # covers rounding of the norm
REFINEMENTS = 2  # each squares the error, which is 1e-12 at first in float64
NOISE = 4.0  # eps of the norm: couplings of two vectors that are rounding errors
LARGEST_TURN = 0.1  # rotation of two vectors; eigenvalues closer than ten couplings are equal to the working accuracy
ACCEPTED = 8.0  # n eps of the norm: limit of residuals and of orthogonality, each in the Frobenius norm

Orthonormal = Callable[[Sharded], Sharded]  # the orthonormal columns of a QR factorization


class NotSplit(Exception):
    """No shift divided the spectrum, or the result is not accurate; the message tells which."""


@record()
class Block:
    """A in an orthonormal basis of an invariant subspace, both cut along their rows."""

    matrix: Sharded  # (m, m)
    basis: Sharded | None  # (n, m); None for the whole space
    flat: bool = False  # a multiple of the identity except for rounding errors


def blocks(a: Sharded, most: int, orthonormal: Orthonormal) -> list[Block]:
    """Blocks of at most ``most`` rows of Hermitian a (n, n), in ascending order of eigenvalues.

    ``orthonormal`` returns the Q of a QR factorization of a matrix with at least as many rows as columns.
    """
    pending, found = [Block(a.along(0), None)], []
    least = FLAT * float(np.finfo(a.dtype).eps) * _spread(pending[0].matrix)[2]
    while pending:
        block = pending.pop()
        if block.matrix.shape[0] <= most:
            found.append(block)
            continue
        if _spread(block.matrix)[1] <= least:
            found.append(Block(block.matrix, block.basis, flat=True))
            continue
        lower, upper = _halves(block, orthonormal)
        pending += [upper, lower]  # the last one is the next
    return found


def _halves(block: Block, orthonormal: Orthonormal) -> tuple[Block, Block]:
    a = block.matrix
    sign, above = _sign(a)
    n = a.shape[0]
    upper = _basis(sign, 1.0, above, None, orthonormal)
    lower = _basis(sign, -1.0, n - above, upper, orthonormal)
    halves = []
    for q in (lower, upper):
        inside = matmul(adjoint(q), matmul(a, q, axis=0), axis=0)
        halves.append(Block(hermitian(inside), q if block.basis is None else matmul(block.basis, q, axis=0)))
    return halves[0], halves[1]


def _sign(a: Sharded) -> tuple[Sharded, int]:
    """The sign function of a - s I for a shift s that divides the spectrum, and the number of eigenvalues above s."""
    n = a.shape[0]
    mean, deviation, _ = _spread(a)
    shift = float(np.median(_diagonal(a)))
    best: tuple[Sharded, int] | None = None
    for tried in range(1, SHIFTS + 1):
        moved = _plus_identity(a, -shift)
        rows = a.comm.allgather(np.abs(moved.local).sum(axis=1))
        size = min(float(rows.max()), math.sqrt(n * (deviation**2 + (mean - shift) ** 2)))
        x = scaled(1 / (NORM_SLACK * size), moved)
        for step in (*sign_coefficients(OCTAVES).astype(np.float64), np.array(NEWTON_SCHULZ), np.array(NEWTON_SCHULZ)):
            square = matmul(x, x, axis=0)
            inner = _plus_identity(_combined(step[1], square, step[2], matmul(square, square, axis=0)), step[0])
            x = matmul(x, inner, axis=0)
        trace = float(_diagonal(x).sum())
        above = round((n + trace) / 2)
        decided = abs(n - _norm(x.local, a.comm) ** 2) <= DECIDED * n * float(np.finfo(a.dtype).eps)
        if decided and min(above, n - above) > (0 if best is None else min(best[1], n - best[1])):
            best = x, above
        if best is not None and min(best[1], n - best[1]) * EVEN >= n:
            break
        if decided:  # most are on one side: half a deviation towards them
            shift += (1 if 2 * above > n else -1) * 0.5 * deviation / tried
        else:
            shift += NUDGE * deviation * tried * (-1) ** tried
    if best is None:
        raise NotSplit(f"no shift of {SHIFTS} divides the spectrum")
    return best


def _spread(a: Sharded) -> tuple[float, float, float]:
    """Mean, deviation and root mean square of the eigenvalues of Hermitian a (n, n), cut along its rows."""
    diagonal, local = _diagonal(a), a.local.copy()
    first, last = a.range
    mean = float(diagonal.mean())
    local[np.arange(last - first), np.arange(first, last)] -= a.dtype.type(mean)
    deviation = _norm(local, a.comm) / math.sqrt(a.shape[0])
    return mean, deviation, math.hypot(mean, deviation)


def _basis(sign: Sharded, side: float, rank: int, other: Sharded | None, orthonormal: Orthonormal) -> Sharded:
    """An orthonormal basis (n, rank) of the subspace on one ``side``, orthogonal to the basis ``other``."""
    first, last = sign.range
    start = np.random.default_rng((rank, first)).standard_normal((last - first, rank)).astype(sign.dtype)
    q = Sharded(start, 0, (sign.shape[0], rank), sign.comm, sign.edges)
    for _ in range(2):  # a random block is ill-conditioned; its basis, projected again, is not
        q = _combined(0.5, q, 0.5 * side, matmul(sign, q, axis=0))
        if other is not None:
            inside = matmul(adjoint(other), q, axis=None)
            q = _combined(1.0, q, -1.0, matmul(other, inside, axis=0))
        q = orthonormal(q).along(0, sign.edges)
    return q


def refined(a: Sharded, v: Sharded, times: int = REFINEMENTS) -> tuple[np.ndarray, Sharded]:
    """Eigenvalues (n,), ascending, and eigenvectors (n, n) of a from approximate ones; both are cut along their rows.

    Ogita & Aishima, Japan J. Indust. Appl. Math. 35 (2018): each step needs only products and squares the error. Raises
    NotSplit if residual or orthogonality then fail their check.
    """
    n, comm = a.shape[0], a.comm
    first, last = v.range
    unit = float(np.finfo(a.dtype).eps)
    for more in reversed(range(times + 1)):
        s = matmul(adjoint(v), matmul(a, v, axis=0), axis=0).along(0, v.edges)
        g = matmul(adjoint(v), v, axis=0).along(0, v.edges)
        w = (_diagonal(s) / _diagonal(g)).astype(a.local.real.dtype)
        couplings, defect = s.local - g.local * w, _plus_identity(g, -1.0).local
        couplings[np.arange(last - first), np.arange(first, last)] = 0
        size = float(np.abs(w).max(initial=0.0)) or 1.0
        if not more:
            break
        gaps, size_of = w - w[first:last, np.newaxis], np.abs(couplings)
        alike = (size_of <= NOISE * unit * size) | (size_of > LARGEST_TURN * np.abs(gaps))  # only made orthonormal
        e = np.where(alike, -0.5 * defect, couplings / np.where(alike, 1, gaps))
        v = _combined(1.0, v, 1.0, matmul(v, Sharded(e.astype(a.dtype), 0, v.shape, comm, v.edges), axis=0))
    worst = max(_norm(couplings, comm) / size, _norm(defect, comm)) / (n * unit)
    if not worst <= ACCEPTED:
        raise NotSplit(f"residual or orthogonality is {worst:.2g} n eps, {ACCEPTED:g} are allowed")
    order = np.argsort(w)
    return w[order], Sharded(v.local[:, order], 0, v.shape, comm, v.edges)


def _norm(local: np.ndarray, comm: Communicator) -> float:
    """The Frobenius norm of a matrix of which this rank has ``local``."""
    return math.sqrt(float(comm.allreduce(np.sum(np.abs(local) ** 2, dtype=np.float64))))


def adjoint(x: Sharded) -> Sharded:
    return Sharded(x.local.conj().T, 1 - x.axis, x.shape[::-1], x.comm, x.edges)


def hermitian(x: Sharded) -> Sharded:
    """The mean of x (n, n), cut along its rows, and its adjoint, which differ by rounding errors only."""
    return _combined(0.5, x, 0.5, adjoint(x).along(0, x.edges))


def scaled(factor: float, x: Sharded) -> Sharded:
    return Sharded(x.dtype.type(factor) * x.local, x.axis, x.shape, x.comm, x.edges)


def _combined(alpha: float, x: Sharded, beta: float, y: Sharded) -> Sharded:
    """alpha x + beta y for matrices that are cut alike."""
    factor = x.dtype.type
    return Sharded(factor(alpha) * x.local + factor(beta) * y.local, x.axis, x.shape, x.comm, x.edges)


def _plus_identity(x: Sharded, factor: float) -> Sharded:
    """x + factor I, for x (n, n) cut along its rows."""
    local, (first, last) = x.local.copy(), x.range
    local[np.arange(last - first), np.arange(first, last)] += x.dtype.type(factor)
    return Sharded(local, 0, x.shape, x.comm, x.edges)


def _diagonal(x: Sharded) -> np.ndarray:
    """The real diagonal (n,) of Hermitian x, cut along its rows, on every rank."""
    first, last = x.range
    return x.comm.allgather(x.local[np.arange(last - first), np.arange(first, last)].real.astype(np.float64))
