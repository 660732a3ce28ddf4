"""Hermitian eigenproblems: approximate eigenvectors by a method of choice, refined to working accuracy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from trnpy._engine import lapack
from trnpy._engine.engines import Engine
from trnpy.linalg import _divide, _jacobi
from trnpy.linalg._cholesky import cholesky
from trnpy.linalg._refine import refine


def _start(a: np.ndarray, engine: Engine) -> np.ndarray:
    """LAPACK's in float32, of a float64 or complex128 a (n, n)."""
    _, x = lapack.eigh(a.astype(np.complex64 if a.dtype.kind == "c" else np.float32), driver="evd", check_finite=False)
    return np.asarray(x)


# (a, engine) -> eigenvectors (n, n), good to float32 accuracy of |a|, about 1; jacobi takes real matrices only
METHODS: Mapping[str, Callable[[np.ndarray, Engine], np.ndarray]] = MappingProxyType(
    {"divide": _divide.eigenvectors, "jacobi": _jacobi.eigenvectors, "start": _start}
)


def eigh(a: np.ndarray, engine: Engine, method: str = "start") -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues (n,), ascending, and orthonormal eigenvectors (n, n) of Hermitian a (n, n), float64 or complex128.

    ``method``: of METHODS, where the refinement starts.  _refine.NotConverged when it fails.
    """
    # A power of two, so that scaling is exact and float32 neither overflows nor flushes to zero.
    _, exponent = np.frexp(np.abs(a).max())
    scaled = a * 2.0 ** -int(exponent)
    x = METHODS[method](scaled, engine)
    w, x = refine(scaled, x.astype(a.dtype), engine)
    return w * 2.0 ** int(exponent), x


def generalized(
    a: np.ndarray, b: np.ndarray, kind: int, engine: Engine, method: str = "start"
) -> tuple[np.ndarray, np.ndarray]:
    """Eigenpairs of A x = w B x (kind 1), A B x = w x (2) or B A x = w x (3); b (n, n) positive definite.

    x^H B x = I for kinds 1 and 2, x^H B^-1 x = I for 3.  Through B = L L^H and one standard problem:
    Golub & Van Loan, 4th ed., sec. 8.7.2.  _host.LinAlgError when b is not positive definite.
    """
    l = cholesky(b, engine)
    if kind == 1:
        half = lapack.solve_triangular(l, a, lower=True, check_finite=False)
        c = lapack.solve_triangular(l, half.conj().T, lower=True, check_finite=False)
    else:
        c = engine.matmul(l.conj().T, engine.matmul(a, l))
    w, y = eigh((c + c.conj().T) / 2, engine, method)
    if kind == 3:
        return w, engine.matmul(l, y)
    return w, lapack.solve_triangular(l, y, lower=True, trans="C", check_finite=False)
