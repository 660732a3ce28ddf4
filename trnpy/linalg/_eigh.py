"""Hermitian eigenproblems: approximate eigenvectors by a method of choice, refined to working accuracy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from trnpy._engine.engines import Engine
from trnpy._engine.stand_ins import usual
from trnpy._nki.kernels.spectra import jacobi_sweep_reference, polynomial_sign_reference
from trnpy.linalg import _divide, _jacobi, _panels, _triangular
from trnpy.linalg._cholesky import cholesky
from trnpy.linalg._refine import refine


def _start(a: np.ndarray, engine: Engine) -> np.ndarray:
    """LAPACK's in float32, of a float64 or complex128 a (n, n)."""
    return _panels.eigh(a.astype(np.complex64 if a.dtype.kind == "c" else np.float32))[1]


# (a, engine) -> eigenvectors (n, n), good to float32 accuracy of |a|, about 1; jacobi takes real matrices only
METHODS: Mapping[str, Callable[[np.ndarray, Engine], np.ndarray]] = MappingProxyType(
    {"divide": _divide.eigenvectors, "jacobi": _jacobi.eigenvectors, "start": _start}
)


def methods(n: int, dtype: np.dtype) -> tuple[str, ...]:
    """Of METHODS those whose kernels take a matrix (n, n)."""
    found = ["start"]
    if dtype.kind != "c" and n <= jacobi_sweep_reference.LONGEST:
        found.append("jacobi")
    if (2 * n if dtype.kind == "c" else n) <= polynomial_sign_reference.LONGEST:
        found.append("divide")
    return tuple(found)


def eigh(a: np.ndarray, engine: Engine, method: str = "start") -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues (n,), ascending, and orthonormal eigenvectors (n, n) of Hermitian a (n, n), float64 or complex128.

    ``method``: of METHODS, where the refinement starts.  _refine.NotConverged when it fails.
    """
    # A power of two, so that scaling is exact and float32 neither overflows nor flushes to zero.
    exponent = int(usual(np.frexp(np.abs(a).max())[1], 0))
    scaled = a * 2.0**-exponent
    x = METHODS[method](scaled, engine)
    w, x = refine(scaled, x.astype(a.dtype), engine)
    return w * 2.0**exponent, x


def generalized(
    a: np.ndarray, b: np.ndarray, kind: int, engine: Engine, method: str = "start"
) -> tuple[np.ndarray, np.ndarray]:
    """Eigenpairs of A x = w B x (kind 1), A B x = w x (2) or B A x = w x (3); b (n, n) positive definite.

    x^H B x = I for kinds 1 and 2, x^H B^-1 x = I for 3.  Through B = L L^H and one standard problem:
    Golub & Van Loan, 4th ed., sec. 8.7.2.  _host.LinAlgError when b is not positive definite.
    """
    l = cholesky(b, engine)
    if kind == 1:
        half = _triangular.solve(l, a, engine, lower=True)
        c = _triangular.solve(l, half.conj().T, engine, lower=True)
    else:
        c = engine.matmul(l.conj().T, engine.matmul(a, l))
    w, y = eigh((c + c.conj().T) / 2, engine, method)
    if kind == 3:
        return w, engine.matmul(l, y)
    return w, _triangular.solve(l, y, engine, lower=True, trans="C")
