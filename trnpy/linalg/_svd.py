"""Singular value decompositions: approximated in float32, then refined with products."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from trnpy._base.records import record
from trnpy._engine import iterations
from trnpy._engine.abstract_arrays import priced, usual
from trnpy._engine.engines import Engine
from trnpy._settings.tile import length
from trnpy.linalg import _divide, _eigh, _lapack_panels, _qr, _refinement
from trnpy.linalg._lapack_panels import adjoint
from trnpy.linalg._matrices import column_norms, real_type, times_power
from trnpy.linalg._polynomials import POLISH, sign_coefficients
from trnpy.linalg._refinement import (
    ACCEPTED,
    CLUSTER,
    CONVERGED,
    ITERATIONS,
    NOISE,
    PRECISIONS,
    QUIET,
    ROUNDING_GAP,
    NotConverged,
    Precision,
    U,
)  # fmt: skip

LEAF = length(256)  # rows of a cluster that the host decomposes in the time of a few launches
STARTED = 1e-12  # relative to the norm: squared errors of float32; smaller couplings gain nothing at first
SPREAD = 2.0  # largest ratio of singular values in a cluster for which the polar factor converges in a few steps
NORM_SLACK = 1.02  # covers the rounding of norms that are summed in float32
OCTAVES = 16  # below the norm in which the polar factor is accurate: to 1.5e-5, a hundred times the rounding of float32
SMALLEST = (
    0.02  # over sqrt(r): least singular value of a random (r, r) block (Edelman, SIAM J. Matrix Anal. Appl. 9, 1988)
)
TALL = 2.0  # rows per column from which QR by Cholesky factors of A^H A is tried, which leaves the host little work
USUAL_POLAR_STEPS = 4  # default estimate for a cluster of equal values
POLAR_STEPS = 12  # limit of Newton-Schulz steps; a ratio of 2 needs 7

Factors = tuple[np.ndarray, np.ndarray, np.ndarray]
Couplings = tuple[np.ndarray, np.ndarray]


def svd(a: np.ndarray, engine: Engine, method: str = "", floor: float = 0.0) -> Factors:
    """U (m, k), s (k,) descending and V (n, k) of a (m, n) = U diag(s) V^H, k = min(m, n), floating or complex.

    QR reduces a rectangular matrix to a square one. ``method``, a name in METHODS, computes the vectors that are
    refined. Errors are relative to the norm of a or, if a is part of a larger problem, to its norm ``floor``.
    NotConverged if the refinement fails.
    """
    m, n = a.shape
    method, real = method or methods(min(m, n), a.dtype)[0], real_type(a.dtype)
    if not usual(a.any(), True):
        return np.eye(m, min(m, n), dtype=a.dtype), np.zeros(min(m, n), real), np.eye(n, min(m, n), dtype=a.dtype)
    if m < n:
        u, s, v = svd(a.conj().T, engine, method)
        return v, s, u
    # Scaled by a power of two, which is exact, so that float32 neither overflows nor underflows.
    exponent = int(usual(np.frexp(np.abs(a).max())[1], 0))
    scaled = times_power(a, -exponent)
    if m > n:
        q, r = _orthonormal(scaled, engine)
        u, s, v = svd(r, engine, method)
        return _polished(engine.matmul(q, u), engine), times_power(s, exponent), v
    u, v = METHODS[method](scaled, engine)
    scaled, u, v = (m.astype(np.result_type(a.dtype, np.float64), copy=False) for m in (scaled, u, v))
    u, s, v = refine(scaled, u, v, engine, method, floor * 2.0**-exponent, PRECISIONS[real])
    s = times_power(s, exponent)
    return u.astype(a.dtype, copy=False), s.astype(real, copy=False), v.astype(a.dtype, copy=False)


def _orthonormal(a: np.ndarray, engine: Engine) -> tuple[np.ndarray, np.ndarray]:
    """Q (m, n) with orthonormal columns and R (n, n) of a (m, n) = Q R, m > n."""
    m, n = a.shape
    if m >= TALL * n:
        with contextlib.suppress(_qr.NotOrthogonal):
            return _qr.cholesky_qr(a, engine)
    packed, blocks = _qr.householder(a, engine)
    return _qr.form_q(packed, blocks, n, engine), np.triu(packed[:n])


def _polished(q: np.ndarray, engine: Engine) -> np.ndarray:
    """Columns orthonormal to rounding, after one Newton-Schulz step: reflectors leave an error of 5 u."""
    gram = engine.gram(q.conj().T)
    polished: np.ndarray = q + engine.matmul(q, np.eye(q.shape[1], dtype=q.dtype, like=gram) - gram) / 2
    return polished


def complete(u: np.ndarray, columns: int, engine: Engine) -> np.ndarray:
    """Orthonormal columns (m, columns), of which the first k are u (m, k)."""
    if columns == u.shape[1]:
        return u
    packed, blocks = _qr.householder(u, engine)
    return np.hstack([u, _qr.form_q(packed, blocks, columns, engine)[:, u.shape[1] :]])


def _start(a: np.ndarray, engine: Engine) -> tuple[np.ndarray, np.ndarray]:
    """U and V (n, n) of a (n, n) by LAPACK's sgesdd or cgesdd."""
    u, _, vh = _lapack_panels.svd(_single(a))
    return u.astype(a.dtype), vh.conj().T.astype(a.dtype)


def _divide_and_conquer(a: np.ndarray, engine: Engine) -> tuple[np.ndarray, np.ndarray]:
    """U and V (n, n) of a (n, n), with a norm near 1, to the accuracy of float32 and in no order.

    An odd polynomial of A gives Q of the polar decomposition A = Q H; the eigenvectors of H give V: Nakatsukasa &
    Higham, SIAM J. Sci. Comput. 35 (2013).
    """
    single = _single(a)
    norm = NORM_SLACK * _bound(single)
    q = _polar(single / np.float32(norm), engine)
    h = engine.matmul(q.conj().T, single)
    v = _divide.eigenvectors((h + h.conj().T) / 2, engine)
    # For the smallest singular values the polynomial is not 1: their vectors in U are completed instead.
    sizes = np.linalg.norm(engine.matmul(single, v), axis=0)
    order = np.argsort(-sizes)
    strong = int(usual((sizes > norm * 2.0 ** (1 - OCTAVES)).sum(), len(a)))
    v = v[:, order]
    u = engine.matmul(q, v[:, :strong].copy())
    u = u / np.linalg.norm(u, axis=0)
    if strong < len(a):
        u = np.hstack([u, _complement(u, engine)])
    return u.astype(a.dtype), v.astype(a.dtype)


# (a, engine) -> U and V (n, n) to float32 accuracy, for |a| near 1
METHODS: Mapping[str, Callable[[np.ndarray, Engine], tuple[np.ndarray, np.ndarray]]] = MappingProxyType(
    {"divide": _divide_and_conquer, "start": _start}
)


def methods(n: int, dtype: np.dtype) -> tuple[str, ...]:
    """The names in METHODS whose kernels support a matrix (n, n)."""
    return tuple(method for method in _eigh.methods(n, dtype) if method in METHODS)


def _single(a: np.ndarray) -> np.ndarray:
    return a.astype(np.complex64 if a.dtype.kind == "c" else np.float32)


def _bound(a: np.ndarray) -> float:
    """An upper bound of the largest singular value."""
    size = np.abs(a)
    bounds = np.sqrt(size.sum(axis=0).max() * size.sum(axis=1).max()), np.linalg.norm(a)
    return float(min(usual(bound, 1.0) for bound in bounds))


def _polar(a: np.ndarray, engine: Engine) -> np.ndarray:
    """The unitary polar factor of a (n, n), |a| <= 1, except where a is nearly zero."""
    n, paired = len(a), _paired(a)
    identity = engine.put(np.eye(len(paired), dtype=np.float32, like=paired))  # a projection onto the whole space
    coefficients = sign_coefficients(OCTAVES)
    found = iterations.subspace(identity, identity, paired, coefficients, POLISH, False, engine)
    return _unpaired(engine.get(found.basis), n, n, a.dtype)


def _complement(u: np.ndarray, engine: Engine) -> np.ndarray:
    """An orthonormal basis (n, n - k), to float32, of the orthogonal complement of the columns of u (n, k)."""
    n, k = u.shape
    paired, kept = _paired(_gaussian(u)), engine.put(_paired(u))
    identity = engine.put(np.eye(len(paired), dtype=np.float32, like=paired))
    scale = 2 * np.sqrt(paired.shape[1]) + 6  # above the norm of its projection
    octaves = int(np.ceil(np.log2(scale * np.sqrt(paired.shape[1]) / SMALLEST)))
    found = iterations.subspace(
        identity, kept, paired / np.float32(scale), sign_coefficients(octaves), POLISH, True, engine
    )
    return _unpaired(engine.get(found.basis), n, n - k, u.dtype)


@priced("random", lambda u: (u.size, (((len(u), len(u) - u.shape[1]), u.dtype),)))
def _gaussian(u: np.ndarray) -> np.ndarray:
    """n - k random columns for u (n, k), in single precision."""
    n, k = u.shape
    rng = np.random.default_rng(n)
    omega = rng.standard_normal((n, n - k), np.float32)
    return omega + 1j * rng.standard_normal((n, n - k), np.float32) if u.dtype.kind == "c" else omega


def _paired(a: np.ndarray) -> np.ndarray:
    """A real matrix unchanged, a complex one as [Re -Im; Im Re], because the iteration kernels are real."""
    if a.dtype.kind != "c":
        return a.astype(a.dtype, order="C", copy=False)
    return np.block([[a.real, -a.imag], [a.imag, a.real]])


def _unpaired(a: np.ndarray, rows: int, columns: int, dtype: np.dtype) -> np.ndarray:
    """The inverse of ``_paired``, for a matrix (rows, columns)."""
    return a[:rows, :columns] + 1j * a[rows:, :columns] if dtype.kind == "c" else a


@record(frozen=False)
class _State:
    """Approximate factors and their products, which are rotated and ordered together."""

    u: np.ndarray
    v: np.ndarray
    s: np.ndarray  # singular values, descending and not negative
    t: np.ndarray  # U^H A V
    gu: np.ndarray  # U^H U
    gv: np.ndarray  # V^H V


@record()
class _Products:
    """Products of float64 or complex128 matrices."""

    engine: Engine
    digits: int | None  # without an error bound; None: with one, as accurate as BLAS

    def matmul(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        if self.digits is None:
            return self.engine.matmul(a, b)
        return _refinement.by_digits(a, b, self.digits, self.engine)

    def gram(self, a: np.ndarray) -> np.ndarray:
        if self.digits is None:
            return self.engine.gram(a)
        return self.engine.get(self.engine.gram(self.engine.put(a, copy=False), digits=self.digits))


def refine(
    a: np.ndarray, u: np.ndarray, v: np.ndarray, engine: Engine, method: str, floor: float, target: Precision
) -> Factors:
    """U, s and V of a (n, n), with a norm near 1, from approximate U and V (n, n); options as for ``svd``.

    All are float64 or complex128 for every ``target``.

    Ogita & Aishima, J. Comput. Appl. Math. 369 (2020), 112512 (RefSVD): products only, with quadratic convergence.
    Clusters and noise are treated as in ``_refinement.refine``; a nearly zero value may be a cluster by itself.
    """
    n = len(a)
    norm = max(_bound(a), floor)
    rounding = target.unit * norm
    products = _Products(engine, None if target.digits == _refinement.MOST_DIGITS else target.digits)
    for iteration in range(ITERATIONS):
        state = _measured(a, u, v, products)
        x, y = _couplings(state)
        clusters = _clusters(state.s, x, y, rounding)
        rough = NOISE * rounding if iteration else max(STARTED * norm, NOISE * rounding)
        rotated = [c for c in clusters if usual(_largest(x[c, c], y[c, c]) > rough, True)]
        for cluster in rotated:
            _solve_cluster(cluster, state, norm, rounding, floor > 0, method, products)
        if rotated:
            x, y = _couplings(state)
        f, g = _corrections(state, x, y, clusters, rounding)
        u, v = state.u + products.matmul(state.u, f), state.v + products.matmul(state.v, g)
        largest = np.maximum(np.linalg.norm(f), np.linalg.norm(g))
        corrected = usual(largest < target.converged, iteration + 1 == target.iterations)
        if corrected and iteration > 0:
            residual = np.maximum(np.linalg.norm(x, axis=0).max(), np.linalg.norm(y, axis=0).max())
            if usual(residual <= ACCEPTED * np.sqrt(n) * rounding, True):
                return _with_values(state.s, u, v, products.matmul(a, v))
    raise NotConverged(f"singular vectors not accepted after {ITERATIONS} refinements")


def _largest(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    largest: np.ndarray = np.maximum(np.abs(x).max(), np.abs(y).max())
    return largest


def _measured(a: np.ndarray, u: np.ndarray, v: np.ndarray, products: _Products) -> _State:
    """The products of one iteration, ordered, with the phases of U that make the diagonal of U^H A V positive."""
    t = products.matmul(u.conj().T, products.matmul(a, v))
    gu, gv = products.gram(u.conj().T), products.gram(v.conj().T)
    d = t.diagonal() / ((gu.diagonal().real + gv.diagonal().real) / 2)
    s = np.abs(d)
    phase = np.where(s > 0, d / np.where(s > 0, s, 1), 1)
    order = np.argsort(-s)
    s, phase = s[order], phase[order]
    square = np.ix_(order, order)
    return _State(
        u[:, order] * phase, v[:, order], s, t[square] * phase.conj()[:, np.newaxis],
        gu[square] * (phase.conj()[:, np.newaxis] * phase), gv[square].copy(),
    )  # fmt: skip


def _couplings(state: _State) -> Couplings:
    """Off-diagonal parts of T - U^H U S and T^H - V^H V S."""
    x, y = state.gu * state.s, state.gv * state.s
    for c, t in ((x, state.t), (y, adjoint(state.t))):
        np.subtract(t, c, out=c)
        np.fill_diagonal(c, 0)
    return x, y


def _clusters(s: np.ndarray, x: np.ndarray, y: np.ndarray, rounding: float) -> list[slice]:
    """Runs of descending singular values s whose gaps, or distances from zero, are small relative to their couplings.

    ``rounding`` is the unit of the refinement times the norm.
    """

    def widths(*above: np.ndarray) -> np.ndarray:
        rho = np.hypot(*map(column_norms, above))
        width: np.ndarray = np.maximum(CLUSTER * rho, ROUNDING_GAP * rounding)
        return width

    def linked_by(width: np.ndarray) -> np.ndarray:
        linked: np.ndarray = -np.diff(s) < np.maximum(width[:-1], width[1:])
        return linked

    width = widths(x, y)
    if not (usual(linked_by(width).any(), False) or usual(s[-1] < width[-1], False)):
        return []
    width = widths(*(np.where(np.abs(c) > NOISE * rounding, c, 0) for c in (x, y)))
    linked = usual(linked_by(width), np.zeros(len(s) - 1, bool))  # default estimate: there are no clusters
    edges = np.flatnonzero(np.diff(np.concatenate(([0], linked, [0]))))
    found = [slice(int(first), int(last) + 1) for first, last in zip(edges[::2], edges[1::2], strict=True)]
    # The sign of a value that is nearly zero is not known, so it is a cluster by itself.
    if usual(s[-1] < width[-1], False) and not (found and found[-1].stop == len(s)):
        found.append(slice(len(s) - 1, len(s)))
    return found


def _solve_cluster(
    cluster: slice, state: _State, norm: float, rounding: float, part: bool, method: str, products: _Products
) -> None:
    """Solve the problem in the spans of one cluster's columns; state is updated in place.

    ``part``: the state belongs to a cluster of a larger problem.
    """
    wu, wv = (_orthonormalizing(g[cluster, cluster]) for g in (state.gu, state.gv))
    b = _product(wu.conj().T, _product(state.t[cluster, cluster], wv, products), products)
    quiet = np.linalg.norm(b, axis=0).max() <= QUIET * np.sqrt(len(state.s)) * rounding
    if usual(quiet, False):  # zero: any basis is correct
        p, s, q = np.eye(len(b), like=b), np.zeros(len(b), like=b), np.eye(len(b), like=b)
    else:
        p, s, q = _decomposed(b, norm, len(b) < len(state.s) / (2 if part else 1), method, products.engine)
    wu, wv = _product(wu, p, products), _product(wv, q, products)
    for basis, w in ((state.u, wu), (state.v, wv)):
        basis[:, cluster] = products.matmul(basis[:, cluster], w)
    for m, left, right in ((state.t, wu, wv), (state.gu, wu, wu), (state.gv, wv, wv)):
        m[:, cluster] = _product(m[:, cluster], right, products)
        m[cluster, :] = _product(left.conj().T, m[cluster, :], products)
    state.s[cluster] = s


def _product(a: np.ndarray, b: np.ndarray, products: _Products) -> np.ndarray:
    """A B, computed on the host if the rows or the columns are a small cluster."""
    return products.matmul(a, b) if min(a.shape[0], b.shape[1]) > LEAF else a @ b


def _orthonormalizing(g: np.ndarray) -> np.ndarray:
    """W (k, k) with W^H G W = I for G near the identity."""
    w = _lapack_panels.substitution(_lapack_panels.cholesky(g), np.eye(len(g), dtype=g.dtype, like=g), True, False)
    return w.conj().T


def _decomposed(b: np.ndarray, norm: float, smaller: bool, method: str, engine: Engine) -> Factors:
    """P, s descending and Q (k, k) of a cluster's b = P diag(s) Q^H, with errors relative to ``norm``.

    ``smaller``: whether b is so much smaller than the whole problem that the whole algorithm is applied to it.
    """
    if len(b) > LEAF:
        positive = b.diagonal().real
        largest = positive.max()
        if usual((largest > 0) & (largest < SPREAD * positive.min()), True):
            return _near_unitary(b, norm, method, engine)
        if not smaller:
            raise NotConverged(f"a cluster of {len(b)} singular values near zero")
        return svd(b, engine, method, norm)
    p, s, qh = _lapack_panels.svd(b)
    return p, s, qh.conj().T


def _near_unitary(b: np.ndarray, norm: float, method: str, engine: Engine) -> Factors:
    """P, s and Q of b (k, k) near a multiple of a unitary matrix, from its polar factor and a Hermitian problem.

    The Newton-Schulz iteration converges quadratically here: Higham, Functions of Matrices, sec. 8.3.
    """
    mean = float(usual(b.diagonal().real.mean(), 1.0))
    x = b / mean
    for step in range(1, POLAR_STEPS + 1):
        defect = np.eye(len(b), like=b) - engine.gram(x.conj().T)
        x = x + engine.matmul(x, defect) / 2
        if usual(np.linalg.norm(defect) < CONVERGED, step == USUAL_POLAR_STEPS):
            break
    else:
        raise NotConverged(f"no polar factor of a cluster after {POLAR_STEPS} steps")
    h = engine.matmul(x.conj().T, b)
    h = (h + h.conj().T) / 2
    rest = h - mean * np.eye(len(b), like=h)
    if usual(np.abs(rest).max() <= NOISE * U * norm, False):
        return x, h.diagonal().real.copy(), np.eye(len(b), dtype=b.dtype, like=b)
    w, q = _eigh.eigh(rest, engine, method)
    q = q[:, ::-1]
    return engine.matmul(x, q), mean + w[::-1], q


def _corrections(
    state: _State, x: np.ndarray, y: np.ndarray, clusters: list[slice], rounding: float
) -> tuple[np.ndarray, np.ndarray]:
    """F and G such that U (I + F) and V (I + G) are better factors."""
    n, s = len(state.s), state.s
    r, q = np.eye(n, like=s) - state.gu, np.eye(n, like=s) - state.gv
    gaps = s[np.newaxis, :] - s[:, np.newaxis]
    apart: tuple[np.ndarray, ...] = x, y
    if usual((-np.diff(s) < ROUNDING_GAP * rounding).any(), False):
        close = np.abs(gaps) < ROUNDING_GAP * rounding
        apart = tuple(np.where(close, 0, c) for c in apart)
    coupling = np.maximum(*(column_norms(c).max() for c in apart))
    if usual(coupling <= QUIET * np.sqrt(n) * rounding, False):
        return r / 2, q / 2  # couplings are rounding errors: restore orthogonality
    size = np.maximum(np.abs(x), np.abs(y))
    still = np.maximum(size, size.T) <= NOISE * rounding
    for cluster in clusters:
        still[cluster, cluster] = True
    np.fill_diagonal(still, True)
    still |= gaps == 0
    gaps *= s[np.newaxis, :] + s[:, np.newaxis]
    r /= 2
    q /= 2
    np.divide(x * s + y * s[:, np.newaxis], gaps, out=r, where=~still)
    np.divide(x * s[:, np.newaxis] + y * s, gaps, out=q, where=~still)
    return r, q


def _with_values(s: np.ndarray, u: np.ndarray, v: np.ndarray, av: np.ndarray) -> Factors:
    """The ordered factors, with the values (n,) computed from U and A V.

    s is corrected by the residual A v - s u, whose sum has small rounding errors, and by the lengths of u and v. Sums
    run along the last axis, where NumPy sums pairwise: along the first one, 512 rows would leave errors of 12 u.
    """
    uu, vv = ((np.abs(x.T.copy()) ** 2).sum(axis=1) for x in (u, v))
    exact = (s + (u.conj() * (av - u * s)).real.sum(axis=0) / uu) * np.sqrt(uu / vv)
    u = np.where(exact < 0, -u, u)
    exact = np.abs(exact)
    order = np.argsort(-exact)
    return u[:, order], exact[order], v[:, order]
