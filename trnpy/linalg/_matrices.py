"""Functions shared by the matrix problems: checks of operands and options, norms, costs, the form of a result."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from trnpy._base import conventions
from trnpy._base.processors import threads
from trnpy._call import guards
from trnpy._call.decisions import Form
from trnpy._call.dispatch import Cost, Problem, Reason, Unsupported
from trnpy._engine.abstract_arrays import operations, priced, real_dtype, usual
from trnpy._engine.at_once import in_threads
from trnpy._engine.precision import norms
from trnpy._settings.tile import area, length
from trnpy.linalg._lapack_panels import BLOCK

P = TypeVar("P", bound=Problem)
T = TypeVar("T")
LARGEST_EXPONENT = 500  # limit for the largest entry
NARROWEST = 126  # exponent of 2 from which float32 overflows or is inexact
SMALL = area(64 * 64)  # elements: eigh of 64 x 64 takes less time than a launch
MIRROR = length(128)  # rows and columns of a block that is mirrored in a core's cache
STRIP = area(1 << 16)  # elements of those rows of a matrix that stay in a core's cache
THREADED = area(1 << 20)  # elements of a matrix for which one pass takes several times as long as starting a thread
MOST_THREADS = 4  # for memory-bound passes, the number that the cost model uses for LAPACK (docs/launches.md#instances)
NEAR = 2.0  # factor around a threshold of n eps of the largest singular value; values are accurate to about eps of it
ABOVE = np.triu(np.ones((MIRROR, MIRROR), bool), 1)  # above the diagonal of such a block


def square(a: Any) -> np.ndarray:
    """``a`` as one non-empty square matrix (n, n) of a dtype with a device path."""
    m = guards.array(a)
    guards.floating(m)  # refuses integers and float16, which NumPy and SciPy convert differently
    if m.ndim != 2 or m.shape[0] != m.shape[1] or m.size == 0:
        raise Unsupported(Reason.LAYOUT, f"shape {m.shape} is not one non-empty square matrix")
    return m


def given_factor(a: Any) -> np.ndarray:
    """``a`` as one square matrix; lists are refused, because some versions of SciPy reject them here."""
    if type(a) is not np.ndarray:
        raise Unsupported(Reason.SUBCLASS, f"a factor of type {type(a).__name__}")
    return square(a)


def nonzero(a: np.ndarray) -> None:
    if not usual(np.diagonal(a, axis1=-2, axis2=-1).all(), True):
        raise Unsupported(Reason.VALUE, "singular: a zero on the diagonal")


def hermitian(a: np.ndarray, lower: bool, dtype: np.dtype) -> np.ndarray:
    """The Hermitian matrix with the lower (upper) triangle of a; imaginary parts of the diagonal are not read."""
    full = a.astype(dtype)
    mirror(full if lower else full.T)
    if dtype.kind == "c":
        np.fill_diagonal(full.imag, 0)
    return full


def column_norms(a: np.ndarray) -> np.ndarray:
    """Norms of the columns, for entries whose squares neither overflow nor underflow."""
    parts = (a.real, a.imag) if a.dtype.kind == "c" else (a,)
    norms: np.ndarray = np.sqrt(sum(np.einsum("ij,ij->j", part, part) for part in parts))
    return norms


def mirror(x: np.ndarray) -> None:
    """Make x (n, n) Hermitian from its lower triangle."""
    for j in range(0, len(x), MIRROR):
        end = min(j + MIRROR, len(x))
        block = x[j:end, j:end]
        np.copyto(block, block.conj().T, where=ABOVE[: end - j, : end - j])
        x[j:end, end:] = x[end:, j:end].conj().T


@priced("largest entry", lambda a: (shared(a), (((), real_dtype(a.dtype)),)))
def largest(a: np.ndarray) -> float:
    """The largest magnitude of a real or imaginary part of finite a (m, n)."""

    def work(s: slice) -> float:
        parts = (a[s].real, a[s].imag) if a.dtype.kind == "c" else (a[s],)
        return float(max(max(p.max(), -p.min()) for p in parts))

    return max(by_strips(a, work))


def by_strips(a: np.ndarray, work: Callable[[slice], T]) -> list[T]:
    """Apply ``work`` to a few rows of a (m, n) at a time, so that they stay in a core's cache; large a use threads."""
    step = max(STRIP // a.shape[1], 1)
    return in_threads([slice(i, min(i + step, len(a))) for i in range(0, len(a), step)], work, workers(a))


def workers(a: Any) -> int:
    """The number of threads for a pass over a matrix."""
    return 1 if a.size < THREADED else min(threads(), MOST_THREADS)


def shared(a: Any) -> float:
    """Real elements of a matrix per thread of a pass over it."""
    return float((2.0 if a.dtype.kind == "c" else 1.0) * a.size / workers(a))


def moderate(*matrices: np.ndarray) -> None:
    """Refuse entries so large or so small that scaling by a power of two could overflow."""
    for a in matrices:
        exponent = int(usual(np.frexp(largest(a))[1], 0))
        if abs(exponent) > LARGEST_EXPONENT:
            raise Unsupported(Reason.VALUE, f"largest entry near 2^{exponent}")


def times_power(a: np.ndarray, exponent: int) -> np.ndarray:
    """``a`` times 2^exponent, exact unless it underflows; uses two factors if float32 cannot represent the power."""
    if abs(exponent) < NARROWEST:
        return a * 2.0**exponent
    return a * 2.0 ** (exponent // 2) * 2.0 ** (exponent - exponent // 2)


def norm(a: np.ndarray) -> float:
    """Frobenius norm, correct for elements of any size."""
    return float(usual(norms(a), 1.0))


def system_error(residual: np.ndarray, size: float, x: np.ndarray, b: np.ndarray) -> float:
    """|B - A X| over |A| |X| + |B|, for A of norm ``size``.

    Elements of X below the smallest normal number are zero or have an absolute error only.
    """
    least = math.sqrt(x.size) * float(np.finfo(x.dtype).tiny)
    return norm(residual) / (size * (norm(x) + least) + norm(b) or 1.0)


def real(dtype: np.dtype) -> float:
    """Real operations per operation of ``dtype``."""
    return 4.0 if dtype.kind == "c" else 1.0


def real_type(dtype: np.dtype) -> Any:
    """The type of real and imaginary parts: float64 or float32."""
    return np.zeros((), dtype).real.dtype.type


def matrices(a: Any, square: bool = False) -> np.ndarray:
    """``a`` as a matrix (m, n) or a stack (..., m, n), if its matrices have more than one panel."""
    m = guards.array(a)
    guards.floating(m)
    if m.ndim < 2 or m.size == 0 or (square and m.shape[-1] != m.shape[-2]):
        raise Unsupported(Reason.LAYOUT, f"shape {m.shape} is not of non-empty {'square ' * square}matrices")
    native(m)
    if m.ndim > 2 and min(m.shape[-2:]) <= BLOCK:
        raise Unsupported(Reason.LAYOUT, f"shape {m.shape}: the host factors panels of {BLOCK} columns")
    return m


def native(a: np.ndarray) -> None:
    """Refuse the other byte order: SciPy 1.17 misreads it in inv, lu, det and sqrtm, and raises in bandwidth."""
    if not a.dtype.isnative:
        raise Unsupported(Reason.DTYPE, f"byte order of {a.dtype.str}")


def refuse(refused: bool, what: str) -> None:
    """Raise Unsupported for the option ``what`` if ``refused``."""
    if refused:
        raise Unsupported(Reason.PARAM, what)


def refuse_options(options: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Raise Unsupported if a call passes any options."""
    refuse(bool(options or named), f"options {', '.join([*map(repr, options), *named])}")


def doubled(*arrays: np.ndarray) -> np.dtype:
    """The dtype in which numpy.linalg factors ``arrays``: double precision; float32 results are rounded from it."""
    return np.result_type(guards.floating(*arrays), np.float64)


def in_double(problem: P) -> P:
    """``problem``, which has no methods, computed in the precision of numpy.linalg."""
    return replace(problem, dtype=doubled(*problem.arrays))


def tolerance(name: str, value: Any) -> float | None:
    """The ``value`` of the option ``name``, which must be None or finite and not negative."""
    if value is None:
        return None
    if not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise Unsupported(Reason.PARAM, f"{name}={value!r}")
    return float(value)


def useful(kind: str, n: float, flops: float, arrays: tuple[np.ndarray, ...], dtype: np.dtype, results: int) -> Cost:
    """The cost in SciPy of ``flops`` real operations for each matrix of ``arrays[0]``; ``results``: total elements."""
    moved = sum(a.nbytes for a in arrays), dtype.itemsize * results
    return Cost(kind, n, operations(flops, dtype) * stack_size(arrays[0]), *moved)


def stack_size(a: np.ndarray) -> int:
    """The number of matrices in a (..., m, n)."""
    return math.prod(a.shape[:-2])


def right_hand_sides(a: np.ndarray, b: Any) -> np.ndarray:
    """``b`` as right-hand sides (n,) or (n, k) of a matrix a (n, n)."""
    sides = guards.array(b)
    guards.floating(sides)
    if sides.ndim not in (1, 2) or len(sides) != len(a) or sides.size == 0:
        raise Unsupported(Reason.LAYOUT, f"matrix {a.shape} and right-hand side {sides.shape}")
    return sides


def worst(residual: np.ndarray, size: Any, v: np.ndarray) -> float:
    """The largest |residual| / (size |v|) of a stack: residuals (..., m, k) for test vectors v (n, k), sizes (...)."""
    ratios = norms(residual, (-2, -1)) / np.where(np.asarray(size) > 0, size, 1)
    return float(ratios.max() / np.linalg.norm(v, 2))


def sizes(a: np.ndarray) -> Any:
    """Frobenius norms (...) of a (..., m, n), correct for elements of any size."""
    return norms(a, (-2, -1))


def form(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Form | None:
    """The function that gives a result the form of the installed SciPy; Unsupported if SciPy rejects the call."""
    try:
        pattern = conventions.form(function, args, kwargs)
    except conventions.Refused as why:
        raise Unsupported(Reason.PARAM, str(why)) from why
    return None if pattern is None else functools.partial(conventions.poured, pattern)
