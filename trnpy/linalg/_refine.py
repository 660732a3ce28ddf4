"""Refinement of approximate eigenvectors to the accuracy of the products it is given."""

from __future__ import annotations

from typing import Any

import numpy as np

from trnpy._engine.engines import Engine
from trnpy._engine.stand_ins import usual
from trnpy.linalg import _panels

U = 2.0**-53
ITERATIONS = 8  # fourteen families take 2 to 7 (docs/numerics.md#eigenproblems); not accepted after 8 means not at all
CLUSTER = 10.0  # neighbours closer than this times their residuals are solved together
ROUNDING_GAP = 30 * U  # of the norm: closer eigenvalues are one cluster whatever the residual
NOISE = 2.0 * U  # of the norm: couplings below it are rounding, and rotating on them loses orthogonality
QUIET = 3.0  # sqrt(n) u of the norm: the residual is rounding, only orthogonality is left to mend
# Of a separated spectrum, three iterations (docs/numerics.md#eigenproblems): the largest entry of each correction.
USUAL_CORRECTIONS = (2.0**-8, 2.0**-16, 2.0**-24)
CONVERGED = 1e-8  # Frobenius norm of the correction: the next error is its square
ACCEPTED = 50.0  # sqrt(n) u of the norm, columns of the residual: then |lambda error| <= it (Weyl)
DIGITS = 7  # of eight bits, of products: as accurate as dgemm relative to norms (docs/numerics.md#digits-and-error)
FIRST_DIGITS = 5  # of the first iteration, whose start is a float32 one: the ramp of docs/numerics.md#eigenproblems
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
    norm = float(min(usual(np.abs(a).sum(axis=1).max(), 1.0), usual(np.linalg.norm(a), 1.0)))
    if norm == 0.0:
        return np.zeros(n), np.eye(n, dtype=a.dtype)
    kept = engine.put(a)
    kernel_like = 0
    for iteration in range(ITERATIONS):
        digits, noise = (DIGITS, NOISE * norm) if iteration else (FIRST_DIGITS, FIRST_NOISE * NOISE * norm)
        s, g = _projected(kept, x, digits, engine)
        d = s.diagonal().real / g.diagonal().real
        if usual((d[1:] < d[:-1]).any(), iteration == 0):
            order = np.argsort(d)
            d, x, s, g = d[order], x[:, order], s[order][:, order], g[order][:, order]
        c = _couplings(s, g, d)
        if not usual(np.isfinite(_norms(c)).all(), True):
            raise NotConverged("a product is not finite")
        clusters = _clusters(d, c, noise, norm)
        rotated = [k for k in clusters if iteration == 0 or usual(np.abs(c[k, k]).max() > noise, True)]
        kernel_like += any(2 * (k.stop - k.start) > n for k in rotated)
        if kernel_like == KERNEL_LIKE:
            raise NotConverged("over half of the spectrum is one cluster")
        if rotated:
            for cluster in rotated:
                _solve_cluster(cluster, s, g, d, x, engine)
            c = _couplings(s, g, d)
        full = digits == DIGITS
        residual = _norms(c).max()
        e = _correction(c, g, d, clusters, norm, noise, full)
        largest = float(usual(np.abs(e).max(), USUAL_CORRECTIONS[min(iteration, len(USUAL_CORRECTIONS) - 1)]))
        x = x + _product(x, e, _digits_for(largest), engine)
        settled = full and usual(np.linalg.norm(e) <= CONVERGED, iteration + 1 == len(USUAL_CORRECTIONS))
        if settled and usual(residual <= ACCEPTED * np.sqrt(n) * U * norm, True):
            w = _rayleigh(d, x, engine.get(engine.matmul(kept, engine.put(x), digits=DIGITS)))
            order = np.argsort(w)
            return w[order], x[:, order]
    raise NotConverged(f"eigenvectors not accepted after {ITERATIONS} refinements")


def _projected(a: Any, x: np.ndarray, digits: int, engine: Engine) -> tuple[np.ndarray, np.ndarray]:
    """X^H A X and X^H X of a kept a, Hermitian to the last bit: divided by a small gap, less would not be."""
    kept = engine.put(x)
    s = engine.get(engine.matmul(kept.H, engine.matmul(a, kept, digits=digits), digits=digits))
    total = s + s.conj().T
    total *= 0.5
    return total, engine.get(engine.gram(kept.H, digits=digits))


def _product(x: np.ndarray, y: np.ndarray, digits: int, engine: Engine) -> np.ndarray:
    return engine.get(engine.matmul(engine.put(x), engine.put(y), digits=digits))


def _digits_for(largest: float) -> int:
    """Of X E with entries of E up to ``largest``: its error is to stay below E^2, and below rounding."""
    bits = np.log2(max(largest, 2.0**-56))
    return int(np.clip(np.ceil((min(56.0, 8 - 2 * bits) + bits + 4) / 8), FEWEST_DIGITS, DIGITS))


def _rayleigh(d: np.ndarray, x: np.ndarray, ax: np.ndarray) -> np.ndarray:
    """Rayleigh quotients (n,) of the columns of x, from A x and values d that are nearly them.

    Through the residual, whose sum rounds relative to itself: x^H (A x) would round relative to |A|.
    """
    residual = (x.conj() * (ax - x * d)).real.sum(axis=0)
    quotients: np.ndarray = d + residual / (np.abs(x) ** 2).sum(axis=0)
    return quotients


def _couplings(s: np.ndarray, g: np.ndarray, d: np.ndarray) -> np.ndarray:
    """Off-diagonal part of X^H A X - X^H X diag(d)."""
    c: np.ndarray = s - g * d
    np.fill_diagonal(c, 0)
    return c


def _norms(c: np.ndarray) -> np.ndarray:
    """Of the columns."""
    norms: np.ndarray = np.sqrt(np.einsum("ij,ij->j", c.conj(), c).real)
    return norms


def _clusters(d: np.ndarray, c: np.ndarray, noise: float, norm: float) -> list[slice]:
    """Runs of at least two ascending eigenvalues d that the couplings c above ``noise`` do not tell apart."""

    def linked(rho: np.ndarray) -> np.ndarray:
        near: np.ndarray = np.diff(d) < np.maximum(CLUSTER * np.maximum(rho[:-1], rho[1:]), ROUNDING_GAP * norm)
        return near

    links = linked(_norms(c))
    if usual(links.any(), False):
        links = linked(_norms(np.where(np.abs(c) > noise, c, 0)))
    links = usual(links, np.zeros(len(d) - 1, bool))  # a separated spectrum
    edges = np.flatnonzero(np.diff(np.concatenate(([0], links.astype(np.int8), [0]))))
    return [slice(int(first), int(last) + 1) for first, last in zip(edges[::2], edges[1::2], strict=True)]


def _solve_cluster(cluster: slice, s: np.ndarray, g: np.ndarray, d: np.ndarray, x: np.ndarray, engine: Engine) -> None:
    """Rayleigh-Ritz in the span of one cluster; s, g, d and x are updated in place."""
    mean = d[cluster].mean()
    shifted = s[cluster, cluster] - mean * g[cluster, cluster]
    w, q = _panels.eigh_of_two(shifted, g[cluster, cluster])
    columns = x[:, cluster]
    x[:, cluster] = columns @ q if len(q) <= SMALL_CLUSTER else _product(columns, q, DIGITS, engine)
    for m in (s, g):
        m[:, cluster] = m[:, cluster] @ q
        m[cluster, :] = q.conj().T @ m[cluster, :]
    d[cluster] = mean + w


def _correction(
    c: np.ndarray, g: np.ndarray, d: np.ndarray, clusters: list[slice], norm: float, noise: float, full: bool
) -> np.ndarray:
    """E with X (I + E) the better eigenvectors; of couplings that are rounding all through, orthogonality only.

    ``full``: the products were accurate to rounding, so that couplings of its size are nothing else.
    """
    half: np.ndarray = g * -0.5  # (I - G) / 2, what makes X orthonormal
    diagonal = np.arange(len(d))
    half[diagonal, diagonal] += 0.5
    gaps = d - d[:, np.newaxis]
    close = np.diff(d, prepend=-np.inf) < ROUNDING_GAP * norm
    apart = np.where(np.abs(gaps) < ROUNDING_GAP * norm, 0, c) if usual(close.any(), False) else c
    if full and usual(_norms(apart).max() <= QUIET * np.sqrt(len(d)) * U * norm, False):
        return half
    still = np.abs(c) <= noise
    still &= still.T
    for cluster in clusters:
        still[cluster, cluster] = True
    np.fill_diagonal(still, True)
    still |= gaps == 0
    gaps[still] = 1
    return np.where(still, half, c / gaps)
