"""Routes of functions of Hermitian positive-definite matrices, through eigenvectors."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.linalg import LinAlgError
from numpy.linalg import eigh as _numpy_eigh

from trnpy._call import guards
from trnpy._call.decisions import Problem, Route
from trnpy._call.host_table import HostRoute, Look
from trnpy._engine import lapack as _lapack
from trnpy._host import tridiagonal
from trnpy._host.stack_routes import ROUTE_S, seconds_of
from trnpy._host.stacks import in_chunks
from trnpy._report.reasons import Reason, Unsupported
from trnpy._settings.host_rates import FLOPS, HostRates
from trnpy._settings.tile import length
from trnpy.linalg import _matrix_functions
from trnpy.linalg._lapack_panels import adjoint
from trnpy.linalg._matrices import mirror, real
from trnpy.linalg._matrix_functions import FUNCTIONS, LAST, STEEP, Function, certify, correction, steep, with_slope

BY_STEPS = length(400)  # rows from which ?syevd's workspace exceeds half of SciPy's peak and separate steps are faster
SPREAD = 8  # factoring LAST rows and columns costs almost nothing compared with a matrix SPREAD times as large


def positive(name: str) -> Look:
    """The applicability check for matrices that may be positive definite."""
    least, dtypes, norms = FUNCTIONS[name].least, FUNCTIONS[name].dtypes, FUNCTIONS[name].norms

    def look(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        a = args[0] if args else kwargs.get("A")
        if type(a) is not np.ndarray or a.ndim < 2 or a.shape[-1] < least or a.dtype.char not in dtypes:
            return False
        # SciPy 1.17's sqrtm refuses other byte orders.
        if a.shape[-2] != a.shape[-1] or not a.size or not a.dtype.isnative:
            return False
        first = a if a.ndim == 2 else a[(0,) * (a.ndim - 2)]
        # Python's numbers are used because each NumPy function takes 2 us once a large call has emptied the caches.
        diagonal = first.diagonal().real.tolist()
        ends = 0 < diagonal[0] <= norms[1] and 0 < diagonal[-1] <= norms[1]
        corner = first.item(0, -1) - first.item(-1, 0).conjugate()
        apart = math.hypot(corner.real, corner.imag)
        if not ends or (
            apart and not apart <= _matrix_functions._rounding(first) * math.sqrt(diagonal[0] * diagonal[-1])
        ):
            return False
        return first is not a or len(a) < SPREAD * LAST or _promising(a)

    return look


def _promising(a: np.ndarray) -> bool:
    """Whether the first row and column of a (n, n) agree, and ``certify`` accepts its last rows and columns alone.

    This corner's eigenvalues are no smaller than the smallest of a, and are close to it for most graded matrices and
    kernels of neighbouring points.
    """
    return _matrix_functions._mirrors(a, slice(0, 1)) and _matrix_functions._bounded(a[-LAST:, -LAST:])


def route(name: str, a: np.ndarray, function: Function) -> Route:
    """``function`` of the eigenvalues of positive-definite a (..., n, n) on the host."""
    spec, n, dtype = FUNCTIONS[name], a.shape[-1], guards.floating(a)
    cube = real(dtype) * a.size * n  # n^3 a matrix
    whole = a.ndim == 2
    kind = ("eigh evd" if dtype.kind == "f" else "eigh") if whole else "gufunc eigh"

    def seconds(rates: HostRates) -> float:
        # The test of definiteness, the eigenpairs and their product; for steep functions three more products estimate
        # the errors and two remove them.
        return (
            seconds_of(rates, "cholesky", n, cube / 3, dtype)
            + seconds_of(rates, kind, n, FLOPS["eigh"] * cube, dtype)
            + seconds_of(rates, "matmul", n, (2 + 9 * STEEP) * cube, dtype)
            + ROUTE_S
        )

    def again(a: np.ndarray, *options: Any, **named: Any) -> Any:
        return in_chunks(through_eigh, (a.astype(dtype, copy=False),), function, spec.norms)

    return Route("eigenvectors", seconds, functools.partial(again, a), again=again)


def through_eigh(a: np.ndarray, function: Function, norms: tuple[float, float]) -> np.ndarray:
    """Q f(w) Q^H for Hermitian positive-definite a (..., n, n); Unsupported if its condition number is too large."""
    certify(a, norms)
    try:
        w, q = _eigenpairs(a)
    except (LinAlgError, tridiagonal.OutOfRange) as why:
        raise Unsupported(Reason.VALUE, str(why)) from why
    f, slope = guards.QUIET.copy().run(with_slope, function, w)
    guards.finite(f)  # then Q f Q^H is finite, too: no entry exceeds the largest of f
    some = np.flatnonzero(steep(w, f, slope).reshape(-1, w.shape[-1]).any(axis=0))
    parts = (w[..., some], q[..., some], f[..., some], slope[..., some])
    taken_out = correction(a, *parts, _times) if len(some) else None
    found = scaled_product(q, f)
    if taken_out is not None:
        guards.finite(taken_out)
        found = found + taken_out
    return np.asarray(found, a.dtype, order="C")


def _times(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """x y in the library whose LAPACK computed the eigenvectors: see ``_gram``."""
    gemm = _lapack.blas.get_blas_funcs("gemm", dtype=x.dtype)
    found: np.ndarray = x @ y if x.ndim > 2 else gemm(1.0, x, y)
    return found


def _eigenpairs(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Eigenpairs of Hermitian a (..., n, n) with the fastest method for one matrix or for a stack."""
    if a.ndim > 2:
        w, q = _numpy_eigh(a)
    elif a.dtype.kind == "c":
        # evr is as fast below 300 rows and 1.2 times as fast at 500, but its vectors are 4 to 25 times less orthogonal.
        w, q = _lapack.eigh(a, driver="evd", check_finite=False)
    elif len(a) >= BY_STEPS:
        w, q = tridiagonal.eigh(a, not a.flags.c_contiguous, a.dtype)  # of a triangle that is copied in order
    else:
        w, q, failed = _matrix_functions._kind(a.dtype.char).syevd(a.T, lower=1)
        if failed:
            raise LinAlgError(f"divide and conquer of {len(a)} rows failed: syevd gave {failed}")
    return w, q


def scaled_product(q: np.ndarray, f: np.ndarray) -> np.ndarray:
    """Q diag(f) Q^H of q (..., n, n), which is overwritten, and f (..., n).

    A single matrix, and real stacks of one sign, need half the operations and give exactly Hermitian results.
    """
    negative = int(np.count_nonzero(f < 0))
    mixed = 0 < negative < f.size
    if mixed and f.ndim > 1:
        return np.asarray((q * f[..., np.newaxis, :]) @ adjoint(q))
    if mixed and not (f[:negative] < 0).all():
        ascending = np.argsort(f)
        q, f = q[:, ascending], f[ascending]
    q *= np.sqrt(np.abs(f))[..., np.newaxis, :]
    if not mixed:
        result = _gram(q)
        return np.negative(result, out=result) if negative else result
    result = _gram(q[:, negative:])
    result -= _gram(q[:, :negative])
    return result


def _gram(q: np.ndarray) -> np.ndarray:
    """Q Q^H of q (..., n, k), in the library whose LAPACK made it: NumPy for stacks, SciPy for one matrix.

    NumPy's and SciPy's OpenBLAS have separate threads. While the threads of one spin, the threads of the other wait
    for a processor: with two threads each on two processors, 8 to 16 ms.
    """
    if q.ndim > 2:
        x = np.asarray(q @ adjoint(q))
        if x.dtype.kind == "c":  # the Haswell kernels round the two triangles of a complex product differently
            x *= 0.5
            x = x + adjoint(x)
        return x
    x = np.asarray(_matrix_functions._kind(q.dtype.char).rank_k(1.0, q).T)
    mirror(x)
    return np.conjugate(x, out=x) if x.dtype.kind == "c" else x


def _prepare(name: str, row: Callable[..., Problem], *args: Any, **kwargs: Any) -> Problem:
    problem: Any = row(*args, **kwargs)
    routed: Problem = replace(problem, route=route(name, problem.arrays[0], problem.function))
    return routed


def _too_small(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the applicability check reads no elements."""
    a = args[0] if args else kwargs.get("A")
    return type(a) is np.ndarray and (a.ndim < 2 or a.shape[-1] < FUNCTIONS[name].least)


ROUTES = {
    f"scipy.linalg.{name}": HostRoute(
        positive(name), functools.partial(_prepare, name), fixed=functools.partial(_too_small, name)
    )
    for name in FUNCTIONS
}
