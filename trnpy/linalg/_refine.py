"""Refinement of approximate eigenvectors to the accuracy of the products it is given."""

from __future__ import annotations

import numpy as np

from trnpy import _host
from trnpy._engine import Engine

U = 2.0**-53
ITERATIONS = 8  # NUMERICS 2.2: 2-7 are taken on fourteen families; not accepted after 8 means not at all
CLUSTER = 10.0  # neighbours closer than this times their residuals are solved together
ROUNDING_GAP = 30 * U  # of the norm: closer eigenvalues are one cluster whatever the residual
NOISE = 2.0 * U  # of the norm: couplings below it are rounding, and rotating on them loses orthogonality
QUIET = 3.0  # sqrt(n) u of the norm: the residual is rounding, only orthogonality is left to mend
CONVERGED = 1e-8  # largest correction: the next error is its square
ACCEPTED = 50.0  # sqrt(n) u of the norm, columns of the residual: then |lambda error| <= it (Weyl)


class NotConverged(ArithmeticError):
    """The refinement did not reach its acceptance test."""


def refine(a: np.ndarray, x: np.ndarray, engine: Engine) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues (n,), ascending, and eigenvectors (n, n) of Hermitian a (n, n) from approximate ones x (n, n).

    Ogita & Aishima, Japan J. Indust. Appl. Math. 35 (2018) and 36 (2019): quadratic, from products only.
    Two rules are added: clusters are solved as small generalized problems, and nothing rotates on noise.
    a is float64 or complex128 with a norm near 1.
    """
    n = len(a)
    norm = float(min(np.abs(a).sum(axis=1).max(), np.linalg.norm(a)))
    if norm == 0.0:
        return np.zeros(n), np.eye(n, dtype=a.dtype)
    for iteration in range(ITERATIONS):
        s = _hermitian(engine.matmul(x.conj().T, engine.matmul(a, x)))
        g = _hermitian(engine.gram(x.conj().T))
        d = s.diagonal().real / g.diagonal().real
        order = np.argsort(d)
        d, x = d[order], x[:, order]
        s, g = s[np.ix_(order, order)], g[np.ix_(order, order)]
        clusters = _clusters(d, _couplings(s, g, d), norm)
        rotated = [c for c in clusters if iteration == 0 or np.abs(_couplings(s, g, d)[c, c]).max() > NOISE * norm]
        for cluster in rotated:
            _solve_cluster(cluster, s, g, d, x, engine)
        c, r = _couplings(s, g, d), np.eye(n) - g
        e, quiet = _correction(c, r, d, clusters, norm)
        largest = float(np.abs(e).max())
        x = x + engine.matmul(x, e)
        if largest < CONVERGED and (not rotated or iteration > 0 or quiet):
            residual = np.sqrt((np.abs(c) ** 2).sum(axis=0)).max()
            if residual <= ACCEPTED * np.sqrt(n) * U * norm and np.abs(r).max() <= CONVERGED:
                w = _rayleigh(d, x, engine.matmul(a, x))
                order = np.argsort(w)
                return w[order], x[:, order]
    raise NotConverged(f"eigenvectors not accepted after {ITERATIONS} refinements")


def _rayleigh(d: np.ndarray, x: np.ndarray, ax: np.ndarray) -> np.ndarray:
    """Rayleigh quotients (n,) of the columns of x, from A x and values d that are nearly them.

    Through the residual, whose sum rounds relative to itself: x^H (A x) would round relative to |A|.
    """
    residual = (x.conj() * (ax - x * d)).real.sum(axis=0)
    return np.asarray(d + residual / (np.abs(x) ** 2).sum(axis=0))


def _hermitian(m: np.ndarray) -> np.ndarray:
    return np.asarray((m + m.conj().T) / 2)


def _couplings(s: np.ndarray, g: np.ndarray, d: np.ndarray) -> np.ndarray:
    """Off-diagonal part of X^H A X - X^H X diag(d)."""
    c: np.ndarray = s - g * d
    np.fill_diagonal(c, 0)
    return c


def _clusters(d: np.ndarray, c: np.ndarray, norm: float) -> list[slice]:
    """Runs of at least two ascending eigenvalues d that the couplings c do not tell apart."""
    above = np.where(np.abs(c) > NOISE * norm, np.abs(c), 0)
    rho = np.sqrt((above**2).sum(axis=0))
    linked = np.diff(d) < np.maximum(CLUSTER * np.maximum(rho[:-1], rho[1:]), ROUNDING_GAP * norm)
    edges = np.flatnonzero(np.diff(np.concatenate(([0], linked.astype(np.int8), [0]))))
    return [slice(int(first), int(last) + 1) for first, last in zip(edges[::2], edges[1::2], strict=True)]


def _solve_cluster(cluster: slice, s: np.ndarray, g: np.ndarray, d: np.ndarray, x: np.ndarray, engine: Engine) -> None:
    """Rayleigh-Ritz in the span of one cluster; s, g, d and x are updated in place."""
    mean = d[cluster].mean()
    shifted = s[cluster, cluster] - mean * g[cluster, cluster]
    w, q = _host.eigh(shifted, g[cluster, cluster], driver="gvd", check_finite=False)
    x[:, cluster] = engine.matmul(x[:, cluster], q)
    for m in (s, g):
        m[:, cluster] = m[:, cluster] @ q
        m[cluster, :] = q.conj().T @ m[cluster, :]
    d[cluster] = mean + w


def _correction(
    c: np.ndarray, r: np.ndarray, d: np.ndarray, clusters: list[slice], norm: float
) -> tuple[np.ndarray, bool]:
    """E with X (I + E) the better eigenvectors, and whether only orthogonality was left to mend."""
    n = len(d)
    gaps = d[np.newaxis, :] - d[:, np.newaxis]
    close = np.abs(gaps) < ROUNDING_GAP * norm
    apart = np.where(close, 0, np.abs(c))
    quiet = bool(np.sqrt((apart**2).sum(axis=0)).max() <= QUIET * np.sqrt(n) * U * norm)
    if quiet:
        return r / 2, True
    still = (np.abs(c) <= NOISE * norm) & (np.abs(c.T) <= NOISE * norm)
    for cluster in clusters:
        still[cluster, cluster] = True
    np.fill_diagonal(still, True)
    still |= gaps == 0
    return np.where(still, r / 2, c / np.where(still, 1.0, gaps)), False
