"""Routes of sparse products through BLAS, for matrices whose elements fill blocks or whose rows share columns."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from trnpy._call import guards
from trnpy._call.decisions import Problem, Route
from trnpy._call.host_table import HostRoute
from trnpy._host import spmm
from trnpy._report.reasons import Reason, Unsupported
from trnpy._settings.host_rates import HostRates
from trnpy._settings.tile import area, length, volume

# Overheads (benchmarks/sparse): of checking the result, of each product that a route makes in Python, of each that only
# calls BLAS, and of the pattern of a product of blocks. The cost of the decision is spent in any case.
ROUTE_S, PRODUCT_S, CALL_S, PATTERN_S = 30e-6, 6e-6, 0.6e-6, 100e-6
DENSE_LEAST = area(1024)  # elements of X below which no other property is checked
LEAST_COLUMNS = length(8)  # of X, below which BLAS has too few operations for each element that it reads
BLOCK_LEAST = volume(400_000)  # multiply-adds (130 us of SciPy's loop) below which a route is not considered
PAIRS_LEAST = volume(1_000_000)  # the same for two sparse matrices, whose product also needs a pattern: 0.4 ms
BLOCK_WORK = volume(2**11)  # multiply-adds of a block with X up to which SciPy's loop is faster
PAIR_WORK = volume(2**12)  # of two blocks: the route has 0.8 to 1.0 times the loop's speed at 14 x 14, 1.1 at 16 x 16
COMPRESSED_LEAST = volume(4_000_000)  # for CSR and CSC, most of which have no route: 1 ms, 100 times the check
LINE_LEAST = volume(4_000)  # for each row of a CSR matrix: rows are compared in a tenth of the time that SciPy takes
ROW_LEAST = length(16)  # mean stored elements a row from which rows that share columns are searched
IN_CACHE = 128  # least order of a product whose measured speed is that of BLAS, not of NumPy's call
# Bytes of X and the result that stay in a cache; rows are gathered and added so many times faster there.
NEAR_BYTES, NEAR = 2**22, 4.0
GROUP_LEAST = length(8, least=2)  # rows that share columns from which they get a product of their own


def _may_block(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a product may have a route. The check takes nanoseconds, or microseconds if SciPy takes a millisecond."""
    a, x = args
    real = 4 if a.dtype.kind == "c" else 1
    if type(x) is np.ndarray:
        if x.size < DENSE_LEAST or x.ndim != 2 or x.shape[1] < LEAST_COLUMNS:
            return False
        if a.format == "bsr":
            r, c = a.blocksize
            return bool(r * c * x.shape[1] > BLOCK_WORK and real * a.data.size * x.shape[1] >= BLOCK_LEAST)
        if a.format not in ("csr", "csc") or a.ndim != 2:
            return False
        least = max(COMPRESSED_LEAST, LINE_LEAST * len(a.indptr))
        return bool(real * a.data.size * x.shape[1] >= least) and _rows_may_group(a)
    if a.format != "bsr" or getattr(x, "format", "") != "bsr":
        return False
    (r, k), c = a.blocksize, x.blocksize[1]
    return bool(r * k * c >= PAIR_WORK and a.data.size * x.data.size >= PAIRS_LEAST * a.shape[1])


def _rows_may_group(a: Any) -> bool:
    return a.data.size >= ROW_LEAST * (len(a.indptr) - 1) and spmm.may_group(a.indptr, a.indices)


def prepare(row: Callable[..., Problem], a: Any, other: Any) -> Problem:
    problem = row(a, other)
    dtype, cost = problem.dtype, problem.cost
    if dtype.char not in "fdFD" or a.dtype != dtype or not dtype.isnative or not a.nnz:
        return problem
    if type(other) is np.ndarray:
        real = 4 if dtype.kind == "c" else 1
        return replace(problem, route=_dense_route(a, other, real) if cost.n >= LEAST_COLUMNS else None)
    return replace(problem, route=_block_route(a, other, cost.flops / 2)) if cost.kind == "bsr" else problem


def _gemm_s(rates: HostRates, m: float, n: float, k: float, terms: float, dtype: np.dtype) -> float:
    """Predicted seconds of ``terms`` real multiply-adds in products (m, k) by (k, n)."""
    return rates.seconds("matmul", math.cbrt(m * n * k), 2.0 * terms, dtype)


def _blocks_s(rates: HostRates, count: int, terms: float, dtype: np.dtype) -> float:
    """Predicted seconds of ``count`` products of ``terms`` real multiply-adds: the calls' overhead plus BLAS."""
    return count * CALL_S + rates.seconds("matmul", max(math.cbrt(terms), IN_CACHE), 2.0 * terms * count, dtype)


def _block_route(a: Any, b: Any, terms: float) -> Route:
    """The route of a block-sparse product of ``terms`` real multiply-adds."""
    (r, k), c = a.blocksize, b.blocksize[1]
    each = (4.0 if a.dtype.kind == "c" else 1.0) * r * k * c

    def seconds(rates: HostRates) -> float:
        return _blocks_s(rates, round(terms / each), each, a.dtype) + PATTERN_S + ROUTE_S

    def run() -> Any:
        with np.errstate(all="ignore"):  # SciPy's loops do not warn of overflow
            blocks, indices, indptr = spmm.bsr_bsr(a, b)
        _finite(blocks)
        shape = (a.shape[0], b.shape[1])
        return a._bsr_container((blocks, indices, indptr), shape=shape)

    return Route("products of blocks", seconds, run)


def _dense_route(a: Any, x: np.ndarray, real: int) -> Route | None:
    if a.format == "bsr":
        return _bsr_route(a, x, real)
    if a.format in ("csr", "csc") and _rows_may_group(a):
        return _group_route(a, x, real)
    return None


def _bsr_times(a: Any, x: np.ndarray) -> np.ndarray:
    """A X for A in BSR, block by block and without warnings like SciPy's loop; Unsupported if not finite."""
    x = x.astype(a.dtype, copy=False)
    return _finite(spmm.bsr_dense(a.indptr, a.indices[: a.indptr[-1]], a.data, x))


def _bsr_route(a: Any, x: np.ndarray, real: int) -> Route:
    (r, c), m = a.blocksize, x.shape[1]
    count = int(a.indptr[-1])

    def seconds(rates: HostRates) -> float:
        copied: float = 2 * x.nbytes / rates.copy_bytes_per_s
        return _blocks_s(rates, count, real * r * c * m, a.dtype) + copied + ROUTE_S

    return Route("products of blocks", seconds, functools.partial(_bsr_times, a, x), again=_bsr_times)


def _group_route(a: Any, x: np.ndarray, real: int) -> Route | None:
    alike, m = spmm.groups(a.indptr, a.indices, GROUP_LEAST), x.shape[1]
    shared, every = alike.multiply_adds()
    if 2 * shared < every:
        return None
    products, length = int(alike.large.sum()), int(alike.length[alike.large].sum())
    rows, rest = shared / length, every - shared
    first = a.indptr[alike.start[:-1][alike.large]]
    span = a.indices[first + alike.length[alike.large] - 1] - a.indices[first]
    spread = int(alike.length[alike.large][span != alike.length[alike.large] - 1].sum())
    # If columns are not consecutive, X is gathered. For CSC the result is added to and, if rows are not consecutive,
    # scattered at half that speed (screened cluster of benchmarks/sparse). The columns of all rows are compared.
    touched = spread if a.format == "csr" else 3 * length + 3 * spread
    near = NEAR if (a.shape[0] + a.shape[1]) * m * a.dtype.itemsize <= NEAR_BYTES else 1.0
    moved: float = 2 * touched * m * a.dtype.itemsize / near + 3 * every * a.indices.itemsize

    def seconds(rates: HostRates) -> float:
        left = rates.seconds("csr", m, 2.0 * real * rest * m, a.dtype) + PRODUCT_S * 4 * len(alike.stretches())
        work = _gemm_s(rates, rows, m, length / products, real * shared * m, a.dtype)
        return work + left + moved / rates.copy_bytes_per_s + products * PRODUCT_S + ROUTE_S

    def run() -> Any:
        with np.errstate(all="ignore"):
            result = spmm.compressed_dense(a, alike, x.astype(a.dtype, copy=False))
        if result is None:
            raise Unsupported(Reason.LAYOUT, "a column has its rows out of order or twice")
        return _finite(result)

    return Route("products of rows that share columns", seconds, run)


def _finite(result: np.ndarray) -> np.ndarray:
    """``result`` if finite. Infs, NaNs and overflow depend on the order of summation, so SciPy must compute them."""
    if not guards.all_finite(result):
        raise Unsupported(Reason.VALUE, "infs or NaNs")
    return result


ROUTES = {"scipy.sparse.matmul": HostRoute(_may_block, prepare)}
