"""Eigenpairs of a Hermitian matrix: approximate eigenvectors are refined to full accuracy with products."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np

from trnpy._call.dispatch import Reason, Unsupported
from trnpy._engine.abstract_arrays import priced, real_dtype, usual
from trnpy._engine.at_once import in_threads
from trnpy._engine.engines import Engine
from trnpy._engine.handles import Handle
from trnpy._settings.tile import length
from trnpy.linalg import _lapack_panels
from trnpy.linalg._lapack_panels import adjoint
from trnpy.linalg._matrices import by_strips, column_norms, shared, workers
from trnpy.linalg._matrices import largest as largest_of

U = 2.0**-53
ITERATIONS = 8  # at most: fourteen families need 2 to 7 (docs/spectra.md#eigenproblems), others do not converge
CLUSTER = 10.0  # eigenvalues closer than this times their residuals are one cluster, solved together
ROUNDING_GAP = 30.0  # u of the norm: closer eigenvalues form one cluster, whatever their residuals
NOISE = 2.0  # u of the norm: smaller couplings are rounding errors, and rotating by them would cost orthogonality
QUIET = 3.0  # sqrt(n) u of the norm: a smaller residual is rounding; then only orthogonality is corrected
# The largest entry of the residual and of the correction in each iteration for a spectrum without clusters
# (docs/spectra.md#eigenproblems).
USUAL_RESIDUALS = (2.0**-22, 2.0**-24, 2.0**-32)
USUAL_CORRECTIONS = (2.0**-8, 2.0**-16, 2.0**-24)
PREDICTED = 2.0**-13  # squared norm of a correction whose second-order terms predict the eigenvalues
CONVERGED = 1e-8  # limit for the Frobenius norm of the correction: the remaining error is its square
ACCEPTED = 50.0  # sqrt(n) u of the norm, for each column of the residual: it bounds the eigenvalue's error (Weyl)
FEWEST_DIGITS, MOST_DIGITS = 2, 7  # products with 7 are as accurate as dgemm (docs/digits.md#digits-and-error)
SMALL_CLUSTER = length(64)  # columns: the host rotates these in less time than the transfer of a product takes
KERNEL_LIKE = 3  # iterations with a cluster of over half the spectrum, after which LAPACK is faster
# Times the noise: for eigenvalues with a larger gap, noise in the couplings rotates by 2^-16 in an intermediate
# iteration, and by 2^-30 in the last one, whose square is below u.
NEAR, NEAR_AT_LAST = 2.0**16, 2.0**30
SQUARE = length(128)  # rows and columns of a block that stays in a core's cache


class Precision(NamedTuple):
    """The precision of a refinement, and its stopping criterion (docs/spectra.md#eigenproblems)."""

    # For each iteration (the last entry is for all later ones): digits of products, and their noise in units of NOISE.
    ramp: tuple[tuple[int, float], ...]
    unit: float  # rounding of the products in the last iterations, relative to the norms of their operands
    converged: float  # limit for the Frobenius norm of a correction: the remaining error is its square

    @property
    def digits(self) -> int:
        return self.ramp[-1][0]

    @property
    def iterations(self) -> int:
        """The tolerances for a spectrum without clusters."""
        return len(self.ramp)


PRECISIONS = {
    np.float64: Precision(((5, 2.0**13), (6, 2.0**5), (7, 1.0)), U, CONVERGED),
    # Four digits are 256 times as accurate as float32, to which a result is finally rounded.
    np.float32: Precision(((4, 1.0), (4, 1.0)), 2.0**-32, 1e-4),
}


class NotConverged(Unsupported):
    """The refinement did not reach its acceptance test."""

    def __init__(self, why: str) -> None:
        super().__init__(Reason.ACCURACY, why)


def refine(a: np.ndarray, x: np.ndarray, engine: Engine, target: Precision) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues (n,), ascending, and eigenvectors (n, n) of Hermitian a (n, n) from approximate ones x (n, n).

    Ogita & Aishima, Japan J. Indust. Appl. Math. 35 (2018) and 36 (2019): products only, with quadratic convergence.
    The couplings X^H A X - X^H X D are computed as X^H (A X - X D), whose second factor is small and needs few digits.
    Two rules are added: clusters are solved as small generalized problems, and couplings of the size of rounding errors
    cause no rotation. a and x are float64 or complex128; x is overwritten. Raises NotConverged, and does so early if
    most of the spectrum is one cluster.
    """
    n = len(a)
    size, norm = (float(usual(s, 1.0)) for s in _sizes(a))
    if norm == 0.0:
        return np.zeros(n), np.eye(n, dtype=a.dtype)
    rounding = target.unit * norm
    kept = engine.put(a, copy=False)
    kernel_like, predicted = 0, None
    for iteration in range(ITERATIONS):
        step = _step(iteration, target, rounding)
        d, x, basis, residual = _residual(kept, x, predicted, step, engine)
        if not usual(np.isfinite(residual.lengths).all(), True):
            raise NotConverged("a product is not finite")
        share = float(usual(residual.largest / size, USUAL_RESIDUALS[min(iteration, len(USUAL_RESIDUALS) - 1)]))
        fewer = _digits_of_residual(step.digits, share)
        r = engine.put(residual.r, copy=False)
        c = engine.get(engine.matmul(basis.H, r, digits=fewer, proved=step.last), copy=False)
        d = d + c.diagonal().real / residual.squares  # d has errors of size u |A|; these sums of small terms do not
        lengths = residual.lengths
        clusters = _clusters(d, c, lengths, step.noise, ROUNDING_GAP * rounding)
        g = None
        if step.last or step.digits == target.digits or not _separated(d, clusters, step.near):
            g = engine.get(engine.gram(basis.H, digits=step.digits, proved=step.last), copy=False)
        rotated = [k for k in clusters if iteration == 0 or usual(_coupling(c[k, k]) > step.noise, True)]
        kernel_like += any(2 * (k.stop - k.start) > n for k in rotated)
        if kernel_like == KERNEL_LIKE:
            raise NotConverged("over half of the spectrum is one cluster")
        if rotated:
            c, g = c.copy(), g if g is None else g.copy()
            for cluster in rotated:
                _solve_cluster(cluster, c, g, d, x, target.digits, engine)
            lengths = _coupling_norms(c)
            basis = engine.put(x, copy=False)
        worst = lengths.max()
        if g is None:
            found = _corrections(c, d, residual.squares, _blocks(x, clusters))
        elif step.last and _quiet(c, d, worst, rounding):
            found = _orthonormalization(g)
        else:
            found = _rotations(c, g, d, clusters, step.noise, step.near)
        e, second, largest, square = found
        if not usual(np.isfinite(square), True):
            raise NotConverged("a correction is not finite")
        largest = float(usual(largest, USUAL_CORRECTIONS[min(iteration, len(USUAL_CORRECTIONS) - 1)]))
        more = engine.matmul(
            basis, engine.put(e, copy=False), digits=min(_digits_for(largest), target.digits), proved=step.last
        )
        _add(x, engine.get(more, copy=False))
        d, x = _ordered(d + second, x)
        settled = step.last and usual(square <= target.converged**2, iteration + 1 == target.iterations)
        if settled and usual(worst <= ACCEPTED * np.sqrt(n) * rounding, True):
            return d, x
        predicted = d if usual(square <= PREDICTED, True) else None
    raise NotConverged(f"eigenvectors not accepted after {ITERATIONS} refinements")


class _Step(NamedTuple):
    """The precision of one iteration."""

    digits: int  # of products
    last: bool  # whether it may be the last one; its products are then checked
    noise: float  # couplings of this size are rounding errors
    near: float  # gaps below which these cause no rotation


def _step(iteration: int, target: Precision, rounding: float) -> _Step:
    """The products of the last iteration verify its result, whatever vectors the earlier ones computed."""
    last = iteration + 1 >= target.iterations
    digits, noisier = target.ramp[min(iteration + 1, target.iterations) - 1]
    noise = NOISE * rounding * noisier
    return _Step(digits, last, noise, noise * (NEAR_AT_LAST if last else NEAR))


class _Residual(NamedTuple):
    """R = A X - X diag(d)."""

    r: np.ndarray
    squares: np.ndarray  # squared lengths of the columns of X
    lengths: np.ndarray  # lengths of the columns of R
    largest: Any  # largest entry of R


def _residual(
    kept: Handle, x: np.ndarray, predicted: np.ndarray | None, step: _Step, engine: Engine
) -> tuple[np.ndarray, np.ndarray, Handle, _Residual]:
    """Ascending values (n,), ``predicted`` or Rayleigh quotients; X in their order, also as a handle; R."""
    basis = engine.put(x, copy=False)
    y = engine.get(engine.matmul(kept, basis, digits=step.digits, proved=step.last), copy=False)
    d = _quotients(x, y) if predicted is None else predicted
    if usual((d[1:] < d[:-1]).any(), False):
        d, x, y = _ordered(d, x, y)
        basis = engine.put(x, copy=False)
    return d, x, basis, _Residual(*_residuals(x, y, d))


def by_digits(x: np.ndarray, y: np.ndarray, digits: int, engine: Engine) -> np.ndarray:
    """X Y with the given number of digits, without an a-priori error bound."""
    return engine.get(engine.matmul(engine.put(x, copy=False), engine.put(y, copy=False), digits=digits))


def _digits_for(largest: float) -> int:
    """Digits of the product X E, for entries of E up to ``largest``: its error stays below E^2 or rounding."""
    bits = np.log2(max(largest, 2.0**-56))
    return int(np.clip(np.ceil((min(56.0, 8 - 2 * bits) + bits + 4) / 8), FEWEST_DIGITS, MOST_DIGITS))


def _digits_of_residual(digits: int, share: float) -> int:
    """Digits of X^H R for errors like those of A X with the given digits, if R's largest entry is that share of A's."""
    return int(np.clip(np.ceil(digits + np.log2(max(share, 2.0**-56)) / 8), FEWEST_DIGITS, digits))


# --- Passes over matrices, in pieces that stay in a core's cache ------------------------------------------------------


def _dot(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The real parts of the inner products of columns."""
    parts = ((a.real, b.real), (a.imag, b.imag)) if a.dtype.kind == "c" else ((a, b),)
    total: np.ndarray = sum(np.einsum("ij,ij->j", p, q) for p, q in parts)
    return total


def _scalars(a: np.ndarray, count: int) -> tuple[Any, ...]:
    return (((), real_dtype(a.dtype)),) * count


def _values(a: np.ndarray) -> tuple[Any, ...]:
    return ((a.shape[1],), real_dtype(a.dtype))


@priced("norm bounds", lambda a: (shared(a), _scalars(a, 2)))
def _sizes(a: np.ndarray) -> tuple[float, float]:
    """The largest entry, and a bound of the norm."""

    def work(s: slice) -> tuple[float, float, float]:
        size = np.abs(a[s])
        return size.max(), size.sum(axis=1).max(), np.vdot(size, size)

    largest, rows, squares = zip(*by_strips(a, work), strict=True)
    return float(max(largest)), float(min(max(rows), np.sqrt(sum(squares))))


def _ordered(d: np.ndarray, *matrices: np.ndarray) -> list[np.ndarray]:
    """d (n,), ascending, and matrices of n columns in the same order."""
    if usual((d[1:] >= d[:-1]).all(), True):
        return [d, *matrices]
    order = np.argsort(d)
    return [d[order], *(m[:, order] for m in matrices)]


@priced("Rayleigh quotients", lambda x, y: (shared(x), (_values(x),)))
def _quotients(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Rayleigh quotients (n,) of the columns of x for y = A x."""
    found = by_strips(x, lambda s: np.stack([_dot(x[s], y[s]), _dot(x[s], x[s])]))
    above, below = np.sum(found, axis=0)
    quotients: np.ndarray = above / below
    return quotients


@priced(
    "residual columns",
    lambda x, y, d: (shared(x), ((x.shape, x.dtype), _values(x), _values(x), *_scalars(x, 1))),
)
def _residuals(x: np.ndarray, y: np.ndarray, d: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """R = Y - X diag(d), squares of lengths of columns of X, lengths of those of R, and the largest entry of R."""
    r = np.empty_like(x, order="C")

    def work(s: slice) -> tuple[np.ndarray, np.ndarray, float]:
        np.multiply(x[s], d, out=r[s])
        np.subtract(y[s], r[s], out=r[s])
        return _dot(x[s], x[s]), _dot(r[s], r[s]), largest_of(r[s])

    squares, lengths, largest = zip(*by_strips(x, work), strict=True)
    return r, np.sum(squares, axis=0), np.sqrt(np.sum(lengths, axis=0)), max(largest)


@priced("added correction", lambda x, more: (shared(x), (None,)))
def _add(x: np.ndarray, more: np.ndarray) -> None:
    """X + more, stored in X."""
    by_strips(x, lambda s: np.add(x[s], more[s], out=x[s]))


def _results(c: np.ndarray) -> tuple[Any, ...]:
    return ((c.shape, c.dtype), _values(c), *_scalars(c, 2))


Correction = tuple[np.ndarray, np.ndarray, Any, Any]


@priced("corrections", lambda c, d, *_: (shared(c), _results(c)))
def _corrections(
    c: np.ndarray, d: np.ndarray, squares: np.ndarray, blocks: list[tuple[slice, np.ndarray]]
) -> Correction:
    """E such that X (I + E) are better eigenvectors, its contribution to the values, and its size.

    ``squares``: squared lengths of the columns of X; ``blocks``: X^H X of clusters, whose vectors are made orthonormal.
    All other values are well separated. The size is the largest entry, and the square of the Frobenius norm.
    """
    e = np.empty_like(c, order="C")
    group = [slice(i, i + 1) for i in range(len(d))]  # the group of each value
    for k, _ in blocks:
        group[k] = [k] * (k.stop - k.start)

    def work(s: slice) -> tuple[np.ndarray, float, float]:
        gaps = d - d[s, np.newaxis]
        for gap, k in zip(gaps, group[s], strict=True):
            gap[k] = np.inf
        np.divide(c[s], gaps, out=e[s])
        second, rows = _dot(e[s], c[s]), np.arange(len(d))[s]
        e[rows, rows] = (1 - squares[s]) / 2
        return second, largest_of(e[s]), np.vdot(e[s], e[s]).real

    second, largest, total = zip(*by_strips(c, work), strict=True)
    for k, block in blocks:
        e[k, k] = (np.eye(len(block)) - block) / 2
    return e, np.sum(second, axis=0), max(largest), sum(total)


@priced("rotations", lambda c, g, *_: (shared(c), _results(c)))
def _rotations(
    c: np.ndarray, g: np.ndarray, d: np.ndarray, clusters: list[slice], noise: float, near: float
) -> Correction:
    """As ``_corrections``, for any spectrum: E is a rotation and (I - G) / 2, which makes X orthonormal.

    The rotation is antisymmetric to the last bit, because small gaps would magnify a difference. There is no rotation
    in a cluster, nor for couplings up to ``noise`` if a gap is below ``near``.
    """
    e, group = np.empty_like(g, order="C"), np.arange(len(d))
    for k in clusters:
        group[k] = k.start

    def work(square: tuple[slice, slice]) -> tuple[np.ndarray, np.ndarray, float, float]:
        rows, columns = square
        h = c[rows, columns] + adjoint(np.ascontiguousarray(c[columns, rows]))
        gaps = d[columns] - d[rows, np.newaxis]
        if d[columns].min() - d[rows].max() < near:
            still = (np.abs(h) <= 2 * noise) & (np.abs(gaps) < near)
            still |= (gaps == 0) | (group[rows, np.newaxis] == group[columns])
            h[still], gaps[still] = 0.0, 1.0
            h /= gaps
            gaps[still] = 0.0  # such pairs are only made orthogonal, which does not change their values
        else:
            h /= gaps
        h -= g[rows, columns]
        h *= 0.5
        above, total = np.zeros(len(h)), 0.0
        if rows is columns:
            h[np.diag_indices(len(h))] += 0.5
        else:
            lower = h + g[rows, columns]
            e[columns, rows] = adjoint(-lower)
            terms = _squares(lower)
            above, total = -np.einsum("ij,ij->i", terms, gaps), float(terms.sum())
        e[rows, columns] = h
        terms = _squares(h)
        return above, np.einsum("ij,ij->j", terms, gaps), largest_of(h), total + float(terms.sum())

    cuts = [slice(i, min(i + SQUARE, len(d))) for i in range(0, len(d), SQUARE)]
    squares = list(itertools.combinations_with_replacement(cuts, 2))
    second, greatest, total = np.zeros(len(d)), 0.0, 0.0
    for (rows, columns), (above, below, largest, size) in zip(
        squares, in_threads(squares, work, workers(c)), strict=True
    ):
        second[rows] += above
        second[columns] += below
        greatest, total = max(greatest, largest), total + size
    return e, second, greatest, total


def _squares(x: np.ndarray) -> np.ndarray:
    """The squares of magnitudes."""
    squares: np.ndarray = np.square(x.real) + np.square(x.imag) if x.dtype.kind == "c" else np.square(x)
    return squares


@priced("orthonormalization", lambda g: (shared(g), _results(g)))
def _orthonormalization(g: np.ndarray) -> Correction:
    """(I - G) / 2, as a correction."""
    e = np.empty_like(g, order="C")

    def work(s: slice) -> tuple[float, float]:
        np.multiply(g[s], -0.5, out=e[s])
        rows = np.arange(len(e))[s]
        e[rows, rows] += 0.5
        return largest_of(e[s]), np.vdot(e[s], e[s]).real

    largest, total = zip(*by_strips(g, work), strict=True)
    return e, np.zeros(len(e)), max(largest), sum(total)


def _quiet(c: np.ndarray, d: np.ndarray, residual: float, rounding: float) -> bool:
    """Whether all couplings are rounding errors, except those of nearly equal values."""
    if usual((np.diff(d) < ROUNDING_GAP * rounding).any(), False):
        apart = np.abs(d - d[:, np.newaxis]) >= ROUNDING_GAP * rounding
        residual = column_norms(np.where(apart, c, 0)).max()
    return bool(usual(residual <= QUIET * np.sqrt(len(d)) * rounding, True))


# --- Clusters ---------------------------------------------------------------------------------------------------------


def _coupling(c: np.ndarray) -> Any:
    """The largest magnitude off the diagonal."""
    return np.abs(np.where(np.eye(len(c), dtype=bool), 0, c)).max()


def _coupling_norms(c: np.ndarray) -> np.ndarray:
    """The lengths of the columns of c without its diagonal."""
    return column_norms(np.where(np.eye(len(c), dtype=bool), 0, c))


def _clusters(d: np.ndarray, c: np.ndarray, lengths: np.ndarray, noise: float, least: float) -> list[slice]:
    """Runs of ascending eigenvalues d with gaps below ``least``, or small against their couplings c above ``noise``.

    ``lengths`` are the norms of the columns of the residual.
    """

    def linked(rho: np.ndarray) -> np.ndarray:
        near: np.ndarray = np.diff(d) < np.maximum(CLUSTER * np.maximum(rho[:-1], rho[1:]), least)
        return near

    links = linked(lengths)
    if usual(links.any(), False):
        links = linked(_coupling_norms(np.where(np.abs(c) > noise, c, 0)))
    links = usual(links, np.zeros(len(d) - 1, bool))  # usually there are no clusters
    edges = np.flatnonzero(np.diff(np.concatenate(([0], links.astype(np.int8), [0]))))
    return [slice(int(first), int(last) + 1) for first, last in zip(edges[::2], edges[1::2], strict=True)]


def _separated(d: np.ndarray, clusters: list[slice], near: float) -> bool:
    """Whether all gaps are above ``near``, except those in small clusters."""
    apart = np.diff(d) >= near
    for k in clusters:
        apart[k.start : k.stop - 1] = k.stop - k.start <= SMALL_CLUSTER
    return bool(usual(apart.all(), True))


def _blocks(x: np.ndarray, clusters: list[slice]) -> list[tuple[slice, np.ndarray]]:
    """Each cluster, and X^H X of its columns."""
    return [(k, adjoint(x[:, k]) @ x[:, k]) for k in clusters]


def _solve_cluster(
    cluster: slice, c: np.ndarray, g: np.ndarray | None, d: np.ndarray, x: np.ndarray, digits: int, engine: Engine
) -> None:
    """Rayleigh-Ritz in the span of one cluster; c, g, d and x are updated in place.

    Couplings with other vectors are only rotated. Their change from the different values in the cluster is the product
    of two small numbers and is neglected.
    """
    mean = d[cluster].mean()
    gram = _blocks(x, [cluster])[0][1] if g is None else g[cluster, cluster]
    shifted = c[cluster, cluster] + gram * (d[cluster] - mean)  # the diagonal of c is already included in d
    shifted[np.diag_indices(len(shifted))] = gram.diagonal() * (d[cluster] - mean)
    w, q = _lapack_panels.eigh_of_two((shifted + adjoint(shifted)) / 2, gram)
    columns = x[:, cluster]
    x[:, cluster] = columns @ q if len(q) <= SMALL_CLUSTER else by_digits(columns, q, digits, engine)
    for m in (c,) if g is None else (c, g):
        m[:, cluster] = m[:, cluster] @ q
        m[cluster, :] = q.conj().T @ m[cluster, :]
    c[cluster, cluster] = 0
    d[cluster] = mean + w
