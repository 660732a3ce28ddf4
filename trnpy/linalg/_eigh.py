"""Hermitian eigenproblems: approximate eigenvectors by one of several methods, refined to full accuracy."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

from trnpy._base.records import record
from trnpy._call import guards
from trnpy._call.dispatch import ALLOWED_ERROR, Cost, Problem, Reason, Unsupported
from trnpy._engine.abstract_arrays import usual
from trnpy._engine.engines import Engine
from trnpy._engine.proof import eigenvalues
from trnpy._nki.kernels.spectra import jacobi_sweep_reference, polynomial_sign_reference
from trnpy._settings.host_rates import FLOPS
from trnpy.linalg import _divide, _jacobi, _lapack_panels, _triangular
from trnpy.linalg._cholesky import cholesky
from trnpy.linalg._lapack_panels import adjoint
from trnpy.linalg._matrices import (
    SMALL,
    doubled,
    hermitian,
    largest,
    moderate,
    real,
    real_type,
    square,
    times_power,
)  # fmt: skip
from trnpy.linalg._reference_forms import numpy_function, scipy_function
from trnpy.linalg._refinement import PRECISIONS, refine

MODERATE = 8  # largest exponent at which float32 products of a matrix are far from overflow and underflow
FEW = 20  # selected eigenpairs are few if they are at most one in this many


def _start(a: np.ndarray, engine: Engine) -> np.ndarray:
    """Eigenvectors by LAPACK in float32, for a float64 or complex128 a (n, n)."""
    return _lapack_panels.eigh(a.astype(np.complex64 if a.dtype.kind == "c" else np.float32))[1]


# (a, engine) -> eigenvectors (n, n) to float32 accuracy, for |a| near 1; jacobi is for real matrices only
METHODS: Mapping[str, Callable[[np.ndarray, Engine], np.ndarray]] = MappingProxyType(
    {"divide": _divide.eigenvectors, "jacobi": _jacobi.eigenvectors, "start": _start}
)


def methods(n: int, dtype: np.dtype) -> tuple[str, ...]:
    """The names in METHODS whose kernels support a matrix (n, n)."""
    found = ["start"] if dtype.char in "dD" else []  # for single precision it would be the host's own computation
    if (2 * n if dtype.kind == "c" else n) <= polynomial_sign_reference.LONGEST:
        found.append("divide")
    if dtype.kind != "c" and n <= jacobi_sweep_reference.LONGEST:
        found.append("jacobi")
    return tuple(found)


def by_methods(n: int, dtype: np.dtype) -> dict[str, Any]:
    """The problem fields that list the methods for eigenpairs of a matrix (n, n), or the reason why there are none."""
    found = methods(n, dtype)
    refusal = None if found else (Reason.DTYPE, f"{dtype} eigenproblems of {n:,} rows: above the kernel limit")
    return {"on_device": bool(found), "refusal": refusal, "methods": found}


def eigh(a: np.ndarray, engine: Engine, method: str = "") -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues (n,), ascending, and orthonormal eigenvectors (n, n) of Hermitian a (n, n), floating or complex.

    ``method`` is a name in METHODS; it computes the vectors that are refined. NotConverged if the refinement fails.
    """
    method = method or methods(len(a), a.dtype)[0]
    # Scaled by a power of two, which is exact, if float32 might overflow or underflow.
    exponent = int(usual(np.frexp(largest(a))[1], 0))
    exponent = exponent if abs(exponent) > MODERATE else 0
    scaled = times_power(a, -exponent) if exponent else a
    x = METHODS[method](scaled, engine)
    wide = np.result_type(a.dtype, np.float64)
    w, x = refine(scaled.astype(wide, copy=False), x.astype(wide, copy=False), engine, PRECISIONS[real_type(a.dtype)])
    return times_power(w, exponent).astype(real_type(a.dtype), copy=False), x.astype(a.dtype, copy=False)


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


# --- Rows -------------------------------------------------------------------------------------------------------------

_EighResult = type(np.linalg.eigh(np.eye(1)))


@record(kw_only=True)
class Eigenpairs(Problem):
    """All eigenvalues and eigenvectors of one Hermitian matrix or definite pair, even if the caller wants only some."""

    unproven: ClassVar[str] = "vectors of eigenvalues that are nearly equal"
    lower: bool
    vectors: bool
    kind: int = 1  # of problem, for a pair: SciPy's argument ``type``
    selection: tuple[str, tuple[float, float]] | None = None
    make: Callable[..., Any] = tuple  # builds the caller's result from values and vectors

    def run(self, engine: Engine) -> tuple[np.ndarray, np.ndarray]:
        guards.finite(*self.arrays)
        full = [hermitian(m, self.lower, self.dtype) for m in self.arrays]
        moderate(*full)
        if len(full) == 1:
            w, x = eigh(full[0], engine, self.method)
        else:
            w, x = generalized(full[0], full[1], self.kind, engine, self.method)
        if self.selection is not None and self.selection[0] == "value":
            self._apart(usual(w, np.ones(1)), np.array(self.selection[1]))
        return w, x

    def _apart(self, w: np.ndarray, bounds: np.ndarray) -> None:
        """Unsupported if rounding decides on which side of a bound an eigenvalue lies: LAPACK then decides."""
        error = ALLOWED_ERROR * len(w) * np.finfo(self.dtype).eps * np.abs(w).max(initial=0.0)
        if (np.abs(np.subtract.outer(w, bounds[np.isfinite(bounds)])) <= error).any():
            raise Unsupported(Reason.VALUE, "an eigenvalue within rounding of a bound of subset_by_value")

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

    LAPACK reduces the matrix to a tridiagonal one in both cases. For 1,500 rows, 10 pairs took 0.94 of the time of all
    values, and all pairs took 2.5 times as long (docs/spectra.md#some-eigenpairs).
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


OPS = (
    scipy_function("eigh", prepare_eigh, small=SMALL),
    scipy_function("eigvalsh", prepare_eigvalsh, small=SMALL),
    numpy_function("eigh", prepare_numpy_eigh, small=SMALL),
    numpy_function("eigvalsh", prepare_numpy_eigvalsh, small=SMALL),
)
