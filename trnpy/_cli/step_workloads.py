"""Calls of every step of the host (``_settings/host_steps``) at a given size, to measure its rate."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from trnpy._engine import digits, float64_products, residency, triangular
from trnpy._engine.abstract_arrays import Count, StandIn, new
from trnpy._engine.proof import checksums, integers
from trnpy._nki.kernels.shared.parameters import TILE, TILE_N, lower_blocks, words_for
from trnpy._settings.host_steps import PASS, SIZES
from trnpy.linalg import _divide, _lapack_panels, _matrices, _matrix_functions, _refinement, _svd
from trnpy.linalg._lapack_panels import BLOCK

SINGLE, DOUBLE, COMPLEX, LONG = (np.dtype(name) for name in ("f4", "f8", "c16", "i8"))
FEW = 8  # a product with cached checksums has this many times fewer columns than rows
DENSITY = 64  # stored elements of a row
NOISE, NEAR = 1e-16, 1e-14  # of couplings and gaps of eigenvalues that are far apart

Call = tuple[Callable[..., Any], tuple[Any, ...]]


@functools.lru_cache(maxsize=8)
def _numbers(rows: int, columns: int, dtype: np.dtype = DOUBLE) -> np.ndarray:
    """Random numbers, the same array for all steps, so that many workloads need little memory."""
    rng = np.random.default_rng(rows)
    if dtype.kind == "i":
        return rng.integers(-(2**31), 2**31, (rows, columns), dtype)
    drawn = rng.standard_normal((rows, columns))
    return (drawn + 1j * drawn[::-1]).astype(dtype) if dtype.kind == "c" else drawn.astype(dtype)


def _triangle(n: int) -> np.ndarray:
    """A well-conditioned upper triangle."""
    return np.triu(_numbers(n, n)) / n + np.eye(n)


def _words(n: int) -> np.ndarray:
    """Integers of a product with seven digits."""
    return np.resize(_numbers(n, n, LONG).view(np.int32), (words_for(digits.DIGITS), n, n))


def _symmetric(n: int) -> Call:
    """The words of a product A A^T, of which a device computes the lower blocks."""
    padded = -(-n // TILE) * TILE
    block = min(padded, TILE_N)
    *_, (_, height, _, width, start) = lower_blocks(padded, block, halved=True)
    found = np.resize(_numbers(n, n, LONG).view(np.int32), (words_for(digits.DIGITS), start + height * width))
    return float64_products._unpacked, (found, n, padded, block, digits.DIGITS, np.zeros(n, int), digits.BITS)


def _values(n: int) -> np.ndarray:
    return np.linspace(-1, 1, n)


@functools.lru_cache(maxsize=3)
def _proof(n: int, dtype: np.dtype) -> tuple[Any, np.ndarray]:
    """The checksum data of a product of order n, and the product."""
    a = _numbers(n, n, dtype)
    return checksums._sums(a, a, dtype, "float32" if dtype == SINGLE else ""), a @ a


@functools.lru_cache(maxsize=1)
def _kept(n: int) -> tuple[Any, np.ndarray, np.ndarray]:
    a, b = _numbers(n, n), _numbers(n, n)[:, : max(n // FEW, 1)].copy()
    return checksums.kept(a), b, a @ b


class _Task:
    """The parts of a task of divide and conquer that random blocks need."""

    paired = False
    random = np.random.default_rng(0)


def _sparse(n: int) -> Any:
    import scipy.sparse

    return scipy.sparse.random_array((n, n), density=min(DENSITY / n, 1.0), rng=n, format="csr")


def _grouped(n: int) -> Call:
    from trnpy.sparse import _tiles

    csr = _sparse(n)
    stored = np.add.reduceat(np.diff(csr.indptr), np.arange(0, n, _tiles.TILE)).astype(np.int64)
    return _tiles._slots, (csr, stored, -(-stored // _tiles.TILE))


def _sorted(n: int) -> Call:
    from trnpy.sparse import _tiles

    return _tiles.tiling, (_sparse(n),)


def _test(dtype: np.dtype) -> Callable[[int], Call]:
    form = ("float32",) if dtype == SINGLE else ()
    return lambda n: (checksums.sums, (_numbers(n, n, dtype), _numbers(n, n, dtype), dtype, *form))


def _of_result(dtype: np.dtype) -> Callable[[int], Call]:
    return lambda n: (checksums.error_of, _proof(n, dtype))


def _plus_transpose(a: np.ndarray) -> Any:
    return a + a.T


def _copied(a: np.ndarray) -> np.ndarray:
    return a.copy()


def _fingerprint(a: np.ndarray) -> Any:
    return residency.fingerprint(a)


# Each function of ``n`` returns a function that a dry run counts, and its arguments.
WORKLOADS: Mapping[str, Callable[[int], Call]] = MappingProxyType(
    {
        "split": lambda n: (digits.link_bytes, (_numbers(n, n), digits.DIGITS, 1)),
        "magnitudes": lambda n: (digits.magnitudes, (_numbers(n, n), 1)),
        "combine": lambda n: (
            digits.assemble, (_words(n), digits.DIGITS, np.zeros((n, 1), int), np.zeros((1, n), int))
        ),
        "symmetric combine": _symmetric,
        "integer split": lambda n: (digits.integer_bytes, (_numbers(n, n, LONG),)),
        "integer combine": lambda n: (digits.integers, (_words(n)[:2], LONG)),
        "equilibrate": lambda n: (digits.equilibrate, (_numbers(n, n), _numbers(n, n))),
        "proof": _test(DOUBLE),
        "digits proof": lambda n: (
            functools.partial(checksums.sums, digits=digits.DIGITS), (_numbers(n, n).T, _numbers(n, n), DOUBLE)
        ),
        "proof of result": _of_result(DOUBLE),
        "single proof": _test(SINGLE),
        "single proof of result": _of_result(SINGLE),
        "complex proof": _test(COMPLEX),
        "complex proof of result": _of_result(COMPLEX),
        "integer proof": lambda n: (integers.agree, (_numbers(n, n, LONG),) * 3),
        "kept proof": lambda n: (checksums.excess_by, _kept(n)),
        "fingerprint": lambda n: (_fingerprint, (_numbers(n, n),)),
        "copy": lambda n: (_copied, (_numbers(n, n),)),
        PASS: lambda n: (_matrix_functions._split, (_numbers(n, n), 1, 20)),
        "turned copy": lambda n: (_plus_transpose, (_numbers(n, n),)),
        "largest entry": lambda n: (_matrices.largest, (_numbers(n, n),)),
        "norm bounds": lambda n: (_refinement._sizes, (_numbers(n, n),)),
        "Rayleigh quotients": lambda n: (_refinement._quotients, (_numbers(n, n), _numbers(n, n))),
        "residual columns": lambda n: (_refinement._residuals, (_numbers(n, n), _numbers(n, n), _values(n))),
        "added correction": lambda n: (_refinement._add, (np.zeros((n, n)), _numbers(n, n))),
        "corrections": lambda n: (_refinement._corrections, (_numbers(n, n), _values(n), np.ones(n), [])),
        "rotations": lambda n: (
            _refinement._rotations, (_numbers(n, n), _numbers(n, n), _values(n), [], NOISE, NEAR)
        ),
        "orthonormalization": lambda n: (_refinement._orthonormalization, (_numbers(n, n),)),
        "sums of rows": lambda n: (_divide._off_diagonal, (_numbers(n, n, SINGLE),)),
        "uniform": lambda n: (_divide._random, (_numbers(n, n, SINGLE), n // 2, _Task())),
        "random": lambda n: (_svd._gaussian, (_numbers(n, n)[:, : n // 2],)),
        "lu panel": lambda n: (_lapack_panels.lu, (_numbers(n, BLOCK),)),
        "qr panel": lambda n: (_lapack_panels._geqrt, (_numbers(n, BLOCK),)),
        "triangular inverse": lambda n: (triangular._inverted, (_triangle(min(n, BLOCK)), False, False)),
        "panel substitution": lambda n: (
            _lapack_panels.substitution, (_triangle(BLOCK), _numbers(BLOCK, max(n, SIZES[-1])), False, False)
        ),
        "condition": lambda n: (_lapack_panels.reciprocal_condition, (_triangle(n), "trcon")),
        "sorted": _sorted,
        "grouped": _grouped,
    }
)  # fmt: skip


def counted(call: Call) -> dict[tuple[str, int, str], float]:
    """The work that a dry run counts for a call: amounts by (kind, size, dtype)."""
    function, arguments = call
    count = Count()
    function(*(_stand_in(x, count) for x in arguments))
    return dict(count.work)


def _stand_in(x: Any, count: Count) -> Any:
    if isinstance(x, np.ndarray) and x.dtype.kind in "fci" and x.ndim >= 1:
        found: StandIn = new(x.shape, x.dtype, count, "F" if x.flags.f_contiguous and x.ndim > 1 else "C")
        return found
    if hasattr(x, "indptr"):
        from trnpy.sparse._outline import Pattern

        return Pattern.of(x).stand_in(count)
    return x
