"""Hermitian eigenproblems: approximate eigenvectors by one of several methods, refined to full accuracy; their rows."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import numpy as np

from trnpy._base.records import record
from trnpy._call import guards
from trnpy._call.dispatch import Cost, Op, Problem, Reason, Unsupported
from trnpy._engine import lapack
from trnpy._engine.engines import Engine
from trnpy._engine.proof import eigenvalues
from trnpy._engine.stand_ins import usual
from trnpy._nki.kernels.spectra import jacobi_sweep_reference, polynomial_sign_reference
from trnpy._settings.host_rates import FLOPS
from trnpy._settings.tile import length
from trnpy.linalg import _divide, _jacobi, _panels, _triangular
from trnpy.linalg._cholesky import cholesky
from trnpy.linalg._matrices import SMALL, column_norms, doubled, hermitian, moderate, real, real_type, square
from trnpy.linalg._panels import adjoint

U = 2.0**-53
FEW = 20  # one wanted pair in so many
ITERATIONS = 8  # at most: fourteen families take 2 to 7 (docs/numerics.md#eigenproblems), others do not converge
CLUSTER = 10.0  # eigenvalues closer than this times their residuals are one cluster, solved together
ROUNDING_GAP = 30.0  # u of the norm: closer eigenvalues are one cluster, whatever their residuals
NOISE = 2.0  # u of the norm: smaller couplings are rounding errors, and rotations by them would cost orthogonality
QUIET = 3.0  # sqrt(n) u of the norm: a smaller residual is rounding; then only orthogonality is corrected
# The largest entry of the correction in each iteration that a spectrum without clusters takes
# (docs/numerics.md#eigenproblems).
USUAL_CORRECTIONS = (2.0**-8, 2.0**-16, 2.0**-24)
CONVERGED = 1e-8  # of the Frobenius norm of the correction: the error that remains is its square
ACCEPTED = (
    50.0  # sqrt(n) u of the norm, for each column of the residual, which bounds the error of the eigenvalue (Weyl)
)
FEWEST_DIGITS, MOST_DIGITS = 2, 7  # of these products are as accurate as dgemm (docs/numerics.md#digits-and-error)
SMALL_CLUSTER = length(64)  # columns: the host rotates so few in less time than a product takes on the link
KERNEL_LIKE = 3  # iterations with a cluster of over half the spectrum, after which LAPACK is faster


class Precision(NamedTuple):
    """What a refinement computes with, and when it ends (docs/numerics.md#eigenproblems)."""

    digits: int  # of eight bits, of products
    first_digits: int  # of the first iteration, whose vectors are float32
    unit: float  # rounding of products of ``digits``, relative to the norms of their operands
    first_noise: float  # times NOISE: of products of ``first_digits``
    converged: float  # Frobenius norm of a correction: the error that remains is its square
    iterations: int  # of a spectrum without clusters


PRECISIONS = {
    np.float64: Precision(7, 5, U, 2.0**13, CONVERGED, 3),
    # Four digits are 256 times as accurate as float32, in which a result is rounded once more.
    np.float32: Precision(4, 4, 2.0**-32, 1.0, 1e-4, 2),
}


class NotConverged(Unsupported):
    """The refinement did not reach its acceptance test."""

    def __init__(self, why: str) -> None:
        super().__init__(Reason.ACCURACY, why)


def _start(a: np.ndarray, engine: Engine) -> np.ndarray:
    """Eigenvectors by LAPACK in float32, for a float64 or complex128 a (n, n)."""
    return _panels.eigh(a.astype(np.complex64 if a.dtype.kind == "c" else np.float32))[1]


# (a, engine) -> eigenvectors (n, n) to float32 accuracy, for |a| near 1; jacobi is for real matrices only
METHODS: Mapping[str, Callable[[np.ndarray, Engine], np.ndarray]] = MappingProxyType(
    {"divide": _divide.eigenvectors, "jacobi": _jacobi.eigenvectors, "start": _start}
)


def methods(n: int, dtype: np.dtype) -> tuple[str, ...]:
    """The names in METHODS whose kernels take a matrix (n, n)."""
    found = ["start"] if dtype.char in "dD" else []  # in float32 it is what the host computes
    if (2 * n if dtype.kind == "c" else n) <= polynomial_sign_reference.LONGEST:
        found.append("divide")
    if dtype.kind != "c" and n <= jacobi_sweep_reference.LONGEST:
        found.append("jacobi")
    return tuple(found)


def by_methods(n: int, dtype: np.dtype) -> dict[str, Any]:
    """The fields of a problem that say by which methods, or why by none, it runs with eigenpairs of a matrix (n, n)."""
    found = methods(n, dtype)
    refusal = None if found else (Reason.DTYPE, f"{dtype} eigenproblems of {n:,} rows: more than kernels take")
    return {"on_device": bool(found), "refusal": refusal, "methods": found}


def eigh(a: np.ndarray, engine: Engine, method: str = "") -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues (n,), ascending, and orthonormal eigenvectors (n, n) of Hermitian a (n, n), floating or complex.

    ``method``, a name in METHODS, finds the vectors that are refined. NotConverged if the refinement fails.
    """
    method = method or methods(len(a), a.dtype)[0]
    # Scaled by a power of two, which is exact, so that float32 neither overflows nor underflows.
    exponent = int(usual(np.frexp(np.abs(a).max())[1], 0))
    scaled = a * 2.0**-exponent
    x = METHODS[method](scaled, engine)
    wide = np.result_type(a.dtype, np.float64)
    w, x = refine(scaled.astype(wide, copy=False), x.astype(wide, copy=False), engine, PRECISIONS[real_type(a.dtype)])
    return (w * 2.0**exponent).astype(real_type(a.dtype), copy=False), x.astype(a.dtype, copy=False)


def generalized(
    a: np.ndarray, b: np.ndarray, kind: int, engine: Engine, method: str = ""
) -> tuple[np.ndarray, np.ndarray]:
    """Eigenpairs of A x = w B x (kind 1), A B x = w x (2) or B A x = w x (3); b (n, n) positive definite.

    x^H B x = I for kinds 1 and 2, x^H B^-1 x = I for 3. B = L L^H reduces it to a standard problem:
    Golub & Van Loan, 4th ed., sec. 8.7.2. LinAlgError if b is not positive definite.
    """
    l = cholesky(b, engine)
    if kind == 1:
        half = _triangular.solve(l, a, engine, lower=True)
        c = _triangular.solve(l, adjoint(half), engine, lower=True)
    else:
        c = engine.matmul(adjoint(l), engine.matmul(a, l))
    w, y = eigh(hermitian(c, True, c.dtype), engine, method)
    if kind == 3:
        return w, engine.matmul(l, y)
    return w, _triangular.solve(l, y, engine, lower=True, trans="C")


# --- Refinement -------------------------------------------------------------------------------------------------------


def refine(a: np.ndarray, x: np.ndarray, engine: Engine, target: Precision) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues (n,), ascending, and eigenvectors (n, n) of Hermitian a (n, n) from approximate ones x (n, n).

    Ogita & Aishima, Japan J. Indust. Appl. Math. 35 (2018) and 36 (2019): products only, with quadratic convergence.
    Two rules are added: clusters are solved as small generalized problems, and couplings of the size of rounding
    errors cause no rotation. a and x are float64 or complex128, the norm of a near 1. NotConverged, soon if most of
    the spectrum is one cluster.
    """
    n = len(a)
    norm = float(min(usual(np.abs(a).sum(axis=1).max(), 1.0), usual(np.linalg.norm(a), 1.0)))
    if norm == 0.0:
        return np.zeros(n), np.eye(n, dtype=a.dtype)
    kept = engine.put(a, copy=False)
    kernel_like = 0
    for iteration in range(ITERATIONS):
        digits, noise = target.digits, NOISE * target.unit * norm
        if not iteration:
            digits, noise = target.first_digits, target.first_noise * noise
        s, g = _projected(kept, x, digits, engine)
        d = s.diagonal().real / g.diagonal().real
        if usual((d[1:] < d[:-1]).any(), iteration == 0):
            order = np.argsort(d)
            d, x, s, g = d[order], x[:, order], s[np.ix_(order, order)], g[np.ix_(order, order)]
        c = _couplings(s, g, d)
        lengths = column_norms(c)
        if not usual(np.isfinite(lengths).all(), True):
            raise NotConverged("a product is not finite")
        clusters = _clusters(d, c, lengths, noise, ROUNDING_GAP * target.unit * norm)
        rotated = [k for k in clusters if iteration == 0 or usual(np.abs(c[k, k]).max() > noise, True)]
        kernel_like += any(2 * (k.stop - k.start) > n for k in rotated)
        if kernel_like == KERNEL_LIKE:
            raise NotConverged("over half of the spectrum is one cluster")
        if rotated:
            g = g.copy()
            for cluster in rotated:
                _solve_cluster(cluster, s, g, d, x, target.digits, engine)
            c = _couplings(s, g, d)
            lengths = column_norms(c)
        full = digits == target.digits
        residual = lengths.max()
        e = _correction(c, residual, g, d, clusters, target.unit * norm, noise, full)
        largest = float(usual(np.abs(e).max(), USUAL_CORRECTIONS[min(iteration, len(USUAL_CORRECTIONS) - 1)]))
        x = x + by_digits(x, e, min(_digits_for(largest), target.digits), engine)
        settled = full and usual(np.linalg.norm(e) <= target.converged, iteration + 1 == target.iterations)
        if settled and usual(residual <= ACCEPTED * np.sqrt(n) * target.unit * norm, True):
            ax = engine.matmul(kept, engine.put(x, copy=False), digits=target.digits)
            w = _rayleigh(d, x, engine.get(ax, copy=False))
            order = np.argsort(w)
            return w[order], x[:, order]
    raise NotConverged(f"eigenvectors not accepted after {ITERATIONS} refinements")


def _projected(a: Any, x: np.ndarray, digits: int, engine: Engine) -> tuple[np.ndarray, np.ndarray]:
    """X^H A X and X^H X for a handle of A, Hermitian to the last bit: small gaps would magnify a difference."""
    kept = engine.put(x, copy=False)
    s = engine.get(engine.matmul(kept.H, engine.matmul(a, kept, digits=digits), digits=digits), copy=False)
    total = s + adjoint(s)
    total *= 0.5
    return total, engine.get(engine.gram(kept.H, digits=digits), copy=False)


def by_digits(x: np.ndarray, y: np.ndarray, digits: int, engine: Engine) -> np.ndarray:
    """X Y of so many digits, without a certificate."""
    return engine.get(engine.matmul(engine.put(x, copy=False), engine.put(y, copy=False), digits=digits))


def _digits_for(largest: float) -> int:
    """The digits of the product X E, for entries of E up to ``largest``: its error stays below E^2 or rounding."""
    bits = np.log2(max(largest, 2.0**-56))
    return int(np.clip(np.ceil((min(56.0, 8 - 2 * bits) + bits + 4) / 8), FEWEST_DIGITS, MOST_DIGITS))


def _rayleigh(d: np.ndarray, x: np.ndarray, ax: np.ndarray) -> np.ndarray:
    """Rayleigh quotients (n,) of the columns of x, from A x and approximations d of them.

    d is corrected by the sum of the residual, which has small rounding errors; those of x^H (A x) are of size u |A|.
    """
    residual = x * d
    np.subtract(ax, residual, out=residual)
    np.multiply(adjoint(x).T, residual, out=residual)
    quotients: np.ndarray = d + residual.real.sum(axis=0) / column_norms(x) ** 2
    return quotients


def _couplings(s: np.ndarray, g: np.ndarray, d: np.ndarray) -> np.ndarray:
    """Off-diagonal part of X^H A X - X^H X diag(d)."""
    c: np.ndarray = s - g * d
    np.fill_diagonal(c, 0)
    return c


def _clusters(d: np.ndarray, c: np.ndarray, lengths: np.ndarray, noise: float, least: float) -> list[slice]:
    """Runs of ascending eigenvalues d with gaps below ``least``, or small against their couplings c above ``noise``.

    ``lengths`` are the norms of the columns of c.
    """

    def linked(rho: np.ndarray) -> np.ndarray:
        near: np.ndarray = np.diff(d) < np.maximum(CLUSTER * np.maximum(rho[:-1], rho[1:]), least)
        return near

    links = linked(lengths)
    if usual(links.any(), False):
        links = linked(column_norms(np.where(np.abs(c) > noise, c, 0)))
    links = usual(links, np.zeros(len(d) - 1, bool))  # usually there are no clusters
    edges = np.flatnonzero(np.diff(np.concatenate(([0], links.astype(np.int8), [0]))))
    return [slice(int(first), int(last) + 1) for first, last in zip(edges[::2], edges[1::2], strict=True)]


def _solve_cluster(
    cluster: slice, s: np.ndarray, g: np.ndarray, d: np.ndarray, x: np.ndarray, digits: int, engine: Engine
) -> None:
    """Rayleigh-Ritz in the span of one cluster; s, g, d and x are updated in place."""
    mean = d[cluster].mean()
    shifted = s[cluster, cluster] - mean * g[cluster, cluster]
    w, q = _panels.eigh_of_two(shifted, g[cluster, cluster])
    columns = x[:, cluster]
    x[:, cluster] = columns @ q if len(q) <= SMALL_CLUSTER else by_digits(columns, q, digits, engine)
    for m in (s, g):
        m[:, cluster] = m[:, cluster] @ q
        m[cluster, :] = q.conj().T @ m[cluster, :]
    d[cluster] = mean + w


def _correction(
    c: np.ndarray, residual: float, g: np.ndarray, d: np.ndarray, clusters: list[slice], rounding: float, noise: float,
    full: bool,
) -> np.ndarray:  # fmt: skip
    """E such that X (I + E) are better eigenvectors; if all couplings are rounding errors, it restores orthogonality.

    ``residual``: the largest norm of a column of c. ``full``: products err by ``rounding``, the unit times the norm,
    so couplings of that size are rounding errors.
    """
    half: np.ndarray = g * -0.5  # (I - G) / 2, which makes X orthonormal
    diagonal = np.arange(len(d))
    half[diagonal, diagonal] += 0.5
    gaps = d - d[:, np.newaxis]
    close = np.diff(d, prepend=-np.inf) < ROUNDING_GAP * rounding
    if full and usual(close.any(), False):
        residual = column_norms(np.where(np.abs(gaps) < ROUNDING_GAP * rounding, 0, c)).max()
    if full and usual(residual <= QUIET * np.sqrt(len(d)) * rounding, False):
        return half
    still = np.abs(c) <= noise
    still &= still.T
    for cluster in clusters:
        still[cluster, cluster] = True
    np.fill_diagonal(still, True)
    still |= gaps == 0
    np.divide(c, gaps, out=half, where=~still)
    return half


# --- Rows -------------------------------------------------------------------------------------------------------------

_EighResult = type(np.linalg.eigh(np.eye(1)))


@record(kw_only=True)
class Eigenpairs(Problem):
    """All eigenvalues and vectors of one Hermitian matrix or of a definite pair, whichever of them the caller wants."""

    unproven: ClassVar[str] = "vectors of eigenvalues that are nearly equal"
    lower: bool
    vectors: bool
    kind: int = 1  # of problem, for a pair: SciPy's ``type``
    selection: tuple[str, tuple[float, float]] | None = None
    make: Callable[..., Any] = tuple  # makes the result of values and vectors

    def run(self, engine: Engine) -> tuple[np.ndarray, np.ndarray]:
        guards.finite(*self.arrays)
        full = [hermitian(m, self.lower, self.dtype) for m in self.arrays]
        moderate(*full)
        if len(full) == 1:
            return eigh(full[0], engine, self.method)
        return generalized(full[0], full[1], self.kind, engine, self.method)

    def error(self, result: tuple[np.ndarray, np.ndarray]) -> float:
        a, *rest = (hermitian(m, self.lower, self.dtype) for m in self.arrays)
        return eigenvalues.error(a, rest[0] if rest else None, self.kind, *result)

    def unique(self, result: Any) -> Any:
        return result[0] if isinstance(result, tuple) else result  # the values


class Eigenproblem(Eigenpairs):
    """All or some eigenvalues, with or without vectors."""

    __slots__ = ()

    def deliver(self, result: tuple[np.ndarray, np.ndarray]) -> Any:
        w, x = result
        if self.selection is not None:
            by, (low, high) = self.selection
            chosen = slice(int(low), int(high) + 1) if by == "index" else (w > low) & (w <= high)
            w, x = w[chosen], x[:, chosen]
        if not self.vectors:
            return w
        return (w, x) if self.make is tuple else self.make(w, x)


def _eigen_problem(
    a: Any, b: Any, lower: bool, vectors: bool, promoted: Callable[..., np.dtype] = guards.floating, **options: Any
) -> Eigenproblem:
    a = square(a)
    arrays = (a,) if b is None else (a, square(b))
    dtype = promoted(*arrays)
    if arrays[-1].shape != a.shape:
        raise Unsupported(Reason.PARAM, f"shapes {a.shape} and {arrays[-1].shape}")
    n = len(a)
    cube = real(dtype) * float(n) ** 3
    kind = "eigh" if vectors and not _few(options.get("selection"), n) else "eigvalsh"
    useful = FLOPS[kind] * cube + (0.0 if b is None else 3 * cube)
    moved = sum(m.nbytes for m in arrays), dtype.itemsize * (n * n + n if vectors else n)
    cost = Cost(kind, n, useful, *moved)
    return Eigenproblem(arrays, dtype, cost, **by_methods(n, dtype), lower=lower, vectors=vectors, **options)


def _few(selection: tuple[str, tuple[float, float]] | None, n: int) -> bool:
    """Whether LAPACK computes the selected vectors in little more time than the values alone.

    It reduces the matrix to a tridiagonal one for both. Of 1,500 rows 10 pairs took 0.94 of the time of all values, and
    all pairs 2.5 times as much (docs/numerics.md#some-eigenpairs).
    """
    return selection is not None and selection[0] == "index" and (selection[1][1] - selection[1][0] + 1) * FEW <= n


def _selection(n: int, by_index: Any, by_value: Any) -> tuple[str, tuple[float, float]] | None:
    """Which eigenvalues are wanted: ("index", (first, last)) inclusive or ("value", (low, high]) half-open."""
    if by_index is not None and by_value is not None:
        raise Unsupported(Reason.PARAM, "two subsets")
    if by_index is not None:
        first, last = (operator.index(i) for i in by_index)
        if not 0 <= first <= last < n:
            raise Unsupported(Reason.PARAM, f"subset_by_index {first}, {last} of {n}")
        return "index", (first, last)
    if by_value is not None:
        low, high = (float(x) for x in by_value)
        if not low < high:
            raise Unsupported(Reason.PARAM, f"subset_by_value {low}, {high}")
        return "value", (low, high)
    return None


def prepare_eigh(
    a: Any, b: Any = None, *, lower: Any = True, eigvals_only: Any = False, overwrite_a: Any = False,
    overwrite_b: Any = False, type: Any = 1, check_finite: Any = True, subset_by_index: Any = None,
    subset_by_value: Any = None, driver: Any = None,
) -> Problem:  # fmt: skip
    kind = operator.index(type)
    if kind not in (1, 2, 3):
        raise Unsupported(Reason.PARAM, f"type={type!r}")
    selection = _selection(np.shape(a)[0] if np.ndim(a) else 0, subset_by_index, subset_by_value)
    drivers = ("ev", "evd", "evr", "evx") if b is None else ("gv", "gvd", "gvx")
    if driver is not None and (driver not in drivers or selection is not None):
        raise Unsupported(Reason.PARAM, f"driver={driver!r}")
    return _eigen_problem(a, b, bool(lower), not eigvals_only, kind=kind, selection=selection)


def prepare_eigvalsh(
    a: Any, b: Any = None, *, lower: Any = True, overwrite_a: Any = False, overwrite_b: Any = False, type: Any = 1,
    check_finite: Any = True, subset_by_index: Any = None, subset_by_value: Any = None, driver: Any = None,
) -> Problem:  # fmt: skip
    return prepare_eigh(
        a, b, lower=lower, eigvals_only=True, type=type, subset_by_index=subset_by_index,
        subset_by_value=subset_by_value, driver=driver,
    )  # fmt: skip


def _numpy_eigen(a: Any, uplo: Any, vectors: bool) -> Problem:
    if not isinstance(uplo, str) or uplo.upper() not in ("L", "U"):
        raise Unsupported(Reason.PARAM, f"UPLO={uplo!r}")
    return _eigen_problem(a, None, uplo.upper() == "L", vectors, doubled, make=_EighResult)


def prepare_numpy_eigh(a: Any, UPLO: Any = "L") -> Problem:
    return _numpy_eigen(a, UPLO, True)


def prepare_numpy_eigvalsh(a: Any, UPLO: Any = "L") -> Problem:
    return _numpy_eigen(a, UPLO, False)


def scipy_ops() -> tuple[Op, ...]:
    return (
        Op("scipy.linalg.eigh", lapack.linalg.eigh, prepare_eigh, small=SMALL, dtypes="fdFD"),
        Op("scipy.linalg.eigvalsh", lapack.linalg.eigvalsh, prepare_eigvalsh, small=SMALL, dtypes="fdFD"),
    )  # fmt: skip


NUMPY_OPS = (
    Op("numpy.linalg.eigh", np.linalg.eigh, prepare_numpy_eigh, small=SMALL, dtypes="fdFD"),
    Op("numpy.linalg.eigvalsh", np.linalg.eigvalsh, prepare_numpy_eigvalsh, small=SMALL, dtypes="fdFD"),
)
