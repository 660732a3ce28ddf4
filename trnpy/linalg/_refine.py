"""Refinement of approximate eigenvectors to the accuracy of the products it is given."""

from __future__ import annotations

from typing import Any

import numpy as np

from trnpy import _host, _iterations
from trnpy._engine import Engine

U = 2.0**-53
ITERATIONS = 8  # NUMERICS 2.2: 2-7 are taken on fourteen families; not accepted after 8 means not at all
CLUSTER = 10.0  # neighbours closer than this times their residuals are solved together
ROUNDING_GAP = 30 * U  # of the norm: closer eigenvalues are one cluster whatever the residual
NOISE = 2.0 * U  # of the norm: couplings below it are rounding, and rotating on them loses orthogonality
QUIET = 3.0  # sqrt(n) u of the norm: the residual is rounding, only orthogonality is left to mend
CONVERGED = 1e-8  # largest correction: the next error is its square
ACCEPTED = 50.0  # sqrt(n) u of the norm, columns of the residual: then |lambda error| <= it (Weyl)
DIGITS = 7  # of eight bits, of products: as accurate as dgemm relative to norms (NUMERICS 1.2)
FIRST_DIGITS = 5  # of the first iteration, whose start is a float32 one: the ramp of NUMERICS 2.2
FIRST_NOISE = 2.0**13  # times NOISE, of products of five digits (measured there)
FEWEST_DIGITS = 2
SMALL_CLUSTER = 64  # columns: rotating fewer takes the host less than a product takes the link
KERNEL_LIKE = 3  # iterations that rotate a cluster of over half the spectrum: LAPACK is faster


class NotConverged(ArithmeticError):
    """The refinement did not reach its acceptance test."""


def refine(a: np.ndarray, x: np.ndarray, engine: Engine) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues (n,), ascending, and eigenvectors (n, n) of Hermitian a (n, n) from approximate ones x (n, n).

    Ogita & Aishima, Japan J. Indust. Appl. Math. 35 (2018) and 36 (2019): quadratic, from products only.
    Two rules are added: clusters are solved as small generalized problems, and nothing rotates on noise.
    a is float64 or complex128 with a norm near 1. NotConverged, early where most of the spectrum is one cluster.
    """
    n = len(a)
    norm = float(min(np.abs(a).sum(axis=1).max(), np.linalg.norm(a)))
    if norm == 0.0:
        return np.zeros(n), np.eye(n, dtype=a.dtype)
    kept = engine.put(a)
    kernel_like = 0
    for iteration in range(ITERATIONS):
        digits, noise = (DIGITS, NOISE * norm) if iteration else (FIRST_DIGITS, FIRST_NOISE * NOISE * norm)
        s, g = _projected(kept, x, digits, engine)
        d = s.diagonal().real / g.diagonal().real
        order = np.argsort(d)
        d, x = d[order], x[:, order]
        s, g = s[np.ix_(order, order)], g[np.ix_(order, order)]
        clusters = _clusters(d, _couplings(s, g, d), noise, norm)
        rotated = [c for c in clusters if iteration == 0 or np.abs(_couplings(s, g, d)[c, c]).max() > noise]
        kernel_like += any(2 * (c.stop - c.start) > n for c in rotated)
        if kernel_like == KERNEL_LIKE:
            raise NotConverged("over half of the spectrum is one cluster")
        for cluster in rotated:
            _solve_cluster(cluster, s, g, d, x, engine)
        c, r = _couplings(s, g, d), np.eye(n) - g
        full = digits == DIGITS
        e = _correction(c, r, d, clusters, norm, noise, full)
        largest = float(np.abs(e).max())
        x = x + _product(x, e, _digits_for(largest), engine)
        if full and largest < CONVERGED:
            residual = np.sqrt((np.abs(c) ** 2).sum(axis=0)).max()
            if residual <= ACCEPTED * np.sqrt(n) * U * norm and np.abs(r).max() <= CONVERGED:
                w = _rayleigh(d, x, engine.get(_iterations.product(kept, engine.put(x), DIGITS, engine)))
                order = np.argsort(w)
                return w[order], x[:, order]
    raise NotConverged(f"eigenvectors not accepted after {ITERATIONS} refinements")


def _projected(a: Any, x: np.ndarray, digits: int, engine: Engine) -> tuple[np.ndarray, np.ndarray]:
    """X^H A X and X^H X, Hermitian, of a kept a."""
    kept = engine.put(x)
    s = engine.get(_iterations.product(kept.H, _iterations.product(a, kept, digits, engine), digits, engine))
    g = engine.get(_iterations.gram(kept.H, digits, engine))
    return np.asarray((s + s.conj().T) / 2), np.asarray((g + g.conj().T) / 2)


def _product(x: np.ndarray, y: np.ndarray, digits: int, engine: Engine) -> np.ndarray:
    return engine.get(_iterations.product(engine.put(x), engine.put(y), digits, engine))


def _digits_for(largest: float) -> int:
    """Of X E with entries of E up to ``largest``: its error is to stay below E^2, and below rounding."""
    bits = np.log2(max(largest, 2.0**-56))
    return int(np.clip(np.ceil((min(56.0, 8 - 2 * bits) + bits + 4) / 8), FEWEST_DIGITS, DIGITS))


def _rayleigh(d: np.ndarray, x: np.ndarray, ax: np.ndarray) -> np.ndarray:
    """Rayleigh quotients (n,) of the columns of x, from A x and values d that are nearly them.

    Through the residual, whose sum rounds relative to itself: x^H (A x) would round relative to |A|.
    """
    residual = (x.conj() * (ax - x * d)).real.sum(axis=0)
    return np.asarray(d + residual / (np.abs(x) ** 2).sum(axis=0))


def _couplings(s: np.ndarray, g: np.ndarray, d: np.ndarray) -> np.ndarray:
    """Off-diagonal part of X^H A X - X^H X diag(d)."""
    c: np.ndarray = s - g * d
    np.fill_diagonal(c, 0)
    return c


def _clusters(d: np.ndarray, c: np.ndarray, noise: float, norm: float) -> list[slice]:
    """Runs of at least two ascending eigenvalues d that the couplings c do not tell apart."""
    above = np.where(np.abs(c) > noise, np.abs(c), 0)
    rho = np.sqrt((above**2).sum(axis=0))
    linked = np.diff(d) < np.maximum(CLUSTER * np.maximum(rho[:-1], rho[1:]), ROUNDING_GAP * norm)
    edges = np.flatnonzero(np.diff(np.concatenate(([0], linked.astype(np.int8), [0]))))
    return [slice(int(first), int(last) + 1) for first, last in zip(edges[::2], edges[1::2], strict=True)]


def _solve_cluster(cluster: slice, s: np.ndarray, g: np.ndarray, d: np.ndarray, x: np.ndarray, engine: Engine) -> None:
    """Rayleigh-Ritz in the span of one cluster; s, g, d and x are updated in place."""
    mean = d[cluster].mean()
    shifted = s[cluster, cluster] - mean * g[cluster, cluster]
    w, q = _host.eigh(shifted, g[cluster, cluster], driver="gvd", check_finite=False)
    columns = x[:, cluster]
    x[:, cluster] = columns @ q if len(q) <= SMALL_CLUSTER else _product(columns, q, DIGITS, engine)
    for m in (s, g):
        m[:, cluster] = m[:, cluster] @ q
        m[cluster, :] = q.conj().T @ m[cluster, :]
    d[cluster] = mean + w


def _correction(
    c: np.ndarray, r: np.ndarray, d: np.ndarray, clusters: list[slice], norm: float, noise: float, full: bool
) -> np.ndarray:
    """E with X (I + E) the better eigenvectors; of couplings that are rounding all through, orthogonality only.

    ``full``: the products were accurate to rounding, so that couplings of its size are nothing else.
    """
    n = len(d)
    gaps = d[np.newaxis, :] - d[:, np.newaxis]
    close = np.abs(gaps) < ROUNDING_GAP * norm
    apart = np.where(close, 0, np.abs(c))
    if full and np.sqrt((apart**2).sum(axis=0)).max() <= QUIET * np.sqrt(n) * U * norm:
        return r / 2
    still = (np.abs(c) <= noise) & (np.abs(c.T) <= noise)
    for cluster in clusters:
        still[cluster, cluster] = True
    np.fill_diagonal(still, True)
    still |= gaps == 0
    return np.where(still, r / 2, c / np.where(still, 1.0, gaps))
