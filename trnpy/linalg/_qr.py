"""Orthogonal factors: Householder by halves of the columns, and for tall matrices Cholesky factors of A^H A."""

from __future__ import annotations

import numpy as np

from trnpy._engine import lapack
from trnpy._engine.engines import Engine
from trnpy._engine.stand_ins import usual
from trnpy.linalg import _panels, _triangular
from trnpy.linalg._cholesky import cholesky
from trnpy.linalg._panels import BLOCK, adjoint, split

# Reflectors of one block: Q of 2000 columns is 1.6 times as far from orthogonal as LAPACK's, 2.7 times with one block.
WIDTH = 4 * BLOCK
PASSES = 4  # of CholeskyQR: two up to condition 1e8, three after a shift, one to spare
USUAL_PASSES = 2
NEARLY = 5 / 64  # of |Q^H Q - I|: one more pass then leaves rounding only (Yamamoto et al., ETNA 44, 2015, thm. 3.2)
SHIFT = 11.0  # times (m n + n (n + 1)) u |A|^2 (Fukaya et al., SIAM J. Sci. Comput. 42, A477, 2020)


class NotOrthogonal(ArithmeticError):
    """CholeskyQR did not reach orthogonal columns: the matrix is too near to a rank-deficient one."""


def householder(a: np.ndarray, engine: Engine) -> tuple[np.ndarray, list[np.ndarray]]:
    """R above V, packed (..., m, n), and T by its diagonal blocks (..., k, k) of at most WIDTH, k = min(m, n) in all.

    A = Q R, Q the product of I - V T V^H over the blocks.  Elmroth & Gustavson, IBM J. Res. Dev. 44, 605 (2000).
    """
    packed = a.copy()
    return packed, _factor(packed, engine)


def _factor(a: np.ndarray, engine: Engine) -> list[np.ndarray]:
    k = min(a.shape[-2:])
    if k <= BLOCK:
        a[...], t = _panels.qr(a)
        return [t]
    h = split(k, WIDTH if k > WIDTH else BLOCK)
    left, right = a[..., :h], a[..., h:]
    first = _factor(left, engine)
    reflect(left, first, right, engine)
    second = _factor(right[..., h:, :], engine)
    if k > WIDTH:
        return first + second
    (t1,), (t2,) = first, second
    overlap = engine.matmul(adjoint(reflectors(left)[..., h:, :]), reflectors(right[..., h:, :])[..., : k - h])
    t = np.zeros_like(a, order="C", shape=(*a.shape[:-2], k, k))
    t[..., :h, :h], t[..., h:, h:] = t1, t2
    t[..., :h, h:] = -engine.matmul(t1, engine.matmul(overlap, t2))
    return [t]


def reflect(packed: np.ndarray, blocks: list[np.ndarray], c: np.ndarray, engine: Engine) -> None:
    """C (..., m, k) becomes Q^H C, Q from ``householder``."""
    start = 0
    for t in blocks:
        width = t.shape[-1]
        v, rest = reflectors(packed[..., start:, start : start + width]), c[..., start:, :]
        rest -= engine.matmul(v, engine.matmul(adjoint(t), engine.matmul(adjoint(v), rest)))
        start += width


def reflectors(packed: np.ndarray) -> np.ndarray:
    """V (..., m, k), unit lower trapezoidal, from below the diagonal of (..., m, n)."""
    v = np.tril(packed[..., : min(packed.shape[-2:])], -1)
    diagonal = np.arange(v.shape[-1])
    v[..., diagonal, diagonal] = 1
    return v


def form_q(packed: np.ndarray, blocks: list[np.ndarray], columns: int, engine: Engine) -> np.ndarray:
    """The first ``columns`` columns of Q, (..., m, columns), at least as many as there are reflectors."""
    m, start = packed.shape[-2], sum(t.shape[-1] for t in blocks)
    q = np.broadcast_to(np.eye(m, columns, dtype=packed.dtype, like=packed), (*packed.shape[:-2], m, columns)).copy()
    for t in reversed(blocks):
        start -= t.shape[-1]
        v, rest = reflectors(packed[..., start:, start : start + t.shape[-1]]), q[..., start:, start:]
        rest -= engine.matmul(v, engine.matmul(t, engine.matmul(adjoint(v), rest)))
    return q


def cholesky_qr(a: np.ndarray, engine: Engine) -> tuple[np.ndarray, np.ndarray]:
    """Q (m, n) with orthonormal columns and upper R (n, n), positive on its diagonal, of a (m, n), m >= n.

    Each pass divides by the Cholesky factor of Q^H Q, shifted where that is not positive definite; |Q^H Q - I| before
    a pass says whether it is the last.  NotOrthogonal when that is not reached.  Sources beside the constants.
    """
    m, n = a.shape
    # Powers of two: exact, and no product of columns overflows or loses columns that are merely short.
    _, exponents = np.frexp(np.abs(a).max(axis=0))
    q, r = np.ldexp(1.0, -exponents).astype(a.real.dtype) * a, np.eye(n, dtype=a.dtype, like=a)
    unit = float(np.finfo(a.dtype).eps) / 2
    for done in range(1, PASSES + 1):
        g = engine.gram(adjoint(q))
        departure = np.linalg.norm(g - np.eye(n, like=g))
        try:
            l = cholesky(g, engine)
        except lapack.LinAlgError:
            shift = SHIFT * (m * n + n * (n + 1)) * unit * g.diagonal().real.sum()
            try:
                l = cholesky(g + shift * np.eye(n, dtype=a.dtype), engine)
            except lapack.LinAlgError as why:
                raise NotOrthogonal(str(why)) from why
        q = _triangular.solve(l, q, engine, side="right", lower=True, trans="C")
        r = engine.matmul(adjoint(l), r)
        if usual(departure <= NEARLY, done == USUAL_PASSES):
            return q, np.triu(r) * np.ldexp(1.0, exponents).astype(a.real.dtype)
    raise NotOrthogonal(f"columns are not orthogonal after {PASSES} passes")
