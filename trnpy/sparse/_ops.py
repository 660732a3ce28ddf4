"""Products of SciPy's sparse classes: a row for each, with routes by BLAS where elements fill blocks."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from trnpy._call import guards
from trnpy._call.dispatch import Cost, Op, Problem, Reason, Route, Unsupported, accelerated, unattended
from trnpy._engine.engines import Engine, at_rest
from trnpy._engine.precision import probe
from trnpy._host import spmm
from trnpy._settings.host_rates import HostRates, current_rates
from trnpy._settings.policy import current_policy
from trnpy.sparse import _device, _offer, _spgemm
from trnpy.sparse._tiles import compressed

# Of checking the result, of each product of a route's own, and of one that only calls BLAS (benchmarks/sparse); of the
# pattern of a product of blocks.  What the decision took is spent, whichever way it goes.
ROUTE_S, PRODUCT_S, CALL_S, PATTERN_S = 30e-6, 6e-6, 0.6e-6, 100e-6
DENSE_LEAST = 1024  # elements of X: fewer, and the one look is as short as it gets
LEAST_COLUMNS = 8  # of X: below, BLAS has too little to do for each element it reads
BLOCK_LEAST = 1_000_000  # multiply-adds: below 400 us of SciPy's loop, a route is not worth looking for
PAIRS_LEAST = 2_500_000  # of two matrices, whose product has a pattern to be found, too: 1 ms
BLOCK_WORK = 2**11  # multiply-adds of a block with X, or with another, up to which SciPy's loop is the faster
COMPRESSED_LEAST = 4_000_000  # of CSR and CSC, where most matrices have none: 1 ms, a hundred times the look
ROW_LEAST = 16  # stored elements a row, on average, before rows that share columns are looked for
IN_CACHE = 128  # of products whose size tells BLAS' speed without NumPy's call
GROUP_LEAST = 8  # rows that share columns, for a product of their own
CONVERSION_LEAST = 32 * 32  # elements of a block from which CSR is cut into blocks faster than SciPy does
NO_DEVICE = (Reason.NO_DEVICE, "no device")
PATTERNED = ("csr", "csc", "bsr", "coo")  # formats whose ``data`` are their elements


def is_sparse(a: Any) -> bool:
    """Whether ``a`` is of a sparse class, SciPy's or trnpy's."""
    return bool(sparse.issparse(a))


class Products:
    """The products of trnpy's sparse classes: ``@``, ``dot``, ``*`` and ``**`` of matrices all pass through here."""

    format: str
    _shape: tuple[int, ...]
    _matmul_vector: Callable[[Any], Any]
    _matmul_multivector: Callable[[Any], Any]

    def __matmul__(self, other: Any) -> Any:
        if other.__class__ is np.ndarray and other.ndim:  # no scalar, which SciPy would ask again
            return self._matmul_dispatch(other)
        above: Any = super()
        return above.__matmul__(other)

    def _matmul_dispatch(self, other: Any) -> Any:
        # SciPy's own shortest ways, and not a call more: these products take microseconds.
        if other.__class__ is np.ndarray and unattended():
            shape, rows, n = other.shape, self._shape[0], self._shape[-1]
            if shape == (n,):
                return self._matmul_vector(other)
            if len(shape) == 2 and shape[0] == n and shape[1] > 1 and other.size * rows < BLOCK_LEAST:
                return self._matmul_multivector(other)
        return matmul(self, other)

    def multiply(self, other: Any) -> Any:
        return multiply(self, other)


def _scipys_matmul(a: Any, other: Any) -> Any:
    """a @ other by the method of SciPy's class, which ``a`` is of where SciPy's own classes are patched."""
    above: Any = super(Products, a) if isinstance(a, Products) else a
    return above._matmul_dispatch(other)


def _scipys_multiply(a: Any, other: Any) -> Any:
    """a times other, element by element, by the method of SciPy's class."""
    above: Any = super(Products, a)
    return above.multiply(other)


def _may_block(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a product may have another route: nanoseconds, and microseconds where SciPy takes a millisecond."""
    a, x = args
    if type(x) is np.ndarray:
        if x.size < DENSE_LEAST or x.ndim != 2 or x.shape[1] < LEAST_COLUMNS:
            return False
        if a.format == "bsr":
            r, c = a.blocksize
            return bool(r * c * x.shape[1] > BLOCK_WORK and a.data.size * x.shape[1] >= BLOCK_LEAST)
        if a.format not in ("csr", "csc") or a.ndim != 2 or a.data.size * x.shape[1] < COMPRESSED_LEAST:
            return False
        return _rows_may_group(a)
    if a.format != "bsr" or not is_sparse(x) or x.format != "bsr":
        return False
    (r, k), c = a.blocksize, x.blocksize[1]
    return bool(r * k * c > BLOCK_WORK and a.data.size * x.data.size >= PAIRS_LEAST * a.shape[1])


def _kind_of_product(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Of A X: what a decision depends on besides the columns that rows of CSR share, and of two matrices' patterns."""
    a, x = args
    if type(x) is not np.ndarray or x.ndim not in (1, 2) or a.format not in ("csr", "csc", "bsr"):
        return None
    if a.format != "bsr" and a.data.size * x.size >= COMPRESSED_LEAST * x.shape[0]:
        return None
    return a.format, a._shape, a.data.shape, int(a.indptr[-1]), a.data.dtype, x.shape, x.dtype


def _rows_may_group(a: Any) -> bool:
    return a.data.size >= ROW_LEAST * (len(a.indptr) - 1) and spmm.may_group(a.indptr, a.indices)


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseProduct(Problem):
    """The product of sparse ``a`` with a dense or sparse ``other``."""

    a: Any
    other: Any
    form: str = ""  # of the device path: "tiles" or "gathered" rows, or "sparse" of two sparse matrices

    def run(self, engine: Engine) -> Any:
        a, other = self.a, self.other
        if self.form == "sparse":
            return _run_sparse(a, other, self.dtype, engine)
        a = a if a.format in PATTERNED else a.tocsr()
        guards.finite(other, a.data)
        x = other.astype(self.dtype, copy=False).reshape(len(other), -1)
        product = _device.gathered if self.form == "gathered" else _device.tiled
        return product(engine, a, x).reshape(a.shape[0], *other.shape[1:])

    def error(self, result: Any) -> float:
        """Of A X w for random signs w the largest error over |A| |X| |w|, for as many terms as were summed.

        Errors are judged in multiples of the longest array, whose length says nothing here.
        """
        plain = compressed(self.a, self.dtype)
        sizes = type(plain)((np.abs(plain.data), plain.indices, plain.indptr), shape=plain.shape)
        other = self.other
        right = compressed(other, self.dtype) if is_sparse(other) else other.reshape(len(other), -1)
        product = compressed(result) if is_sparse(result) else result.reshape(len(result), -1)
        signs = probe(right.shape[1], np.dtype(np.float64))
        bound = sizes @ (abs(right) @ np.abs(signs))
        with np.errstate(all="ignore"):
            difference = np.abs(product @ signs - plain @ (right @ signs))
            ratio = np.where(difference == 0, 0.0, difference / bound)  # a NaN stays one
        terms = int(np.diff(plain.indptr).max(initial=1)) + right.shape[1]
        longest = max(max(x.shape) for x in self.arrays)
        return float(ratio.max(initial=0.0) * longest / terms)


def prepare_matmul(a: Any, other: Any) -> Problem:
    """The product of sparse ``a`` with a dense or sparse ``other``."""
    if a.ndim != 2 or not (is_sparse(other) or type(other) is np.ndarray):
        raise Unsupported(Reason.LAYOUT, f"{a.ndim}-dimensional {a.format} times {type(other).__name__}")
    if other.ndim not in (1, 2) or other.shape[0] != a.shape[1]:
        raise Unsupported(Reason.PARAM, f"shapes {a.shape} and {other.shape}")
    if a.dtype.kind not in "biufc" or other.dtype.kind not in "biufc":
        raise Unsupported(Reason.DTYPE, f"dtypes {a.dtype} and {other.dtype}")
    dtype = np.result_type(a.dtype, other.dtype)
    m = other.shape[1] if other.ndim == 2 else 1
    real = 4 if dtype.kind == "c" else 1
    nnz = a.nnz
    if is_sparse(other):
        terms, kind = nnz * other.nnz / max(a.shape[1], 1), "sparse sparse"
        bytes_in, bytes_out = (nnz + other.nnz) * (dtype.itemsize + 4), 0
    else:
        terms, kind = float(nnz * m), "bsr" if a.format == "bsr" else "csr"
        bytes_in, bytes_out = nnz * (a.dtype.itemsize + 4) + other.nbytes, a.shape[0] * m * dtype.itemsize
    route: Route | None = None
    if dtype.char in "fdFD" and a.dtype == dtype and dtype.isnative and nnz:
        if is_sparse(other):
            route = _block_route(a, other, real) if _blocks_meet(a, other) else None
            if route is not None:  # SciPy's loop over blocks is faster than that over elements, and can be counted
                (r, k), c = a.blocksize, other.blocksize[1]
                terms, kind = float(r * k * c * spmm.block_pairs(a, other)), "bsr"
        elif m >= LEAST_COLUMNS:
            route = _dense_route(a, other, real)
    cost = Cost(kind, max(m, 1), 2.0 * real * terms, bytes_in, bytes_out)
    refusal = _refusal(a, other, dtype, nnz)
    if refusal is not None:
        return Problem((), dtype, cost, route=route, on_device=False, refusal=refusal)
    policy = current_policy()
    if is_sparse(other):
        cost, form = _offer.offer_sparse(cost, a, other, dtype, policy), "sparse"
    else:
        cost, form = _offer.offer(cost, a, m, dtype, policy, current_rates())
    arrays = tuple(m.data if is_sparse(m) else m for m in (a, other) if not is_sparse(m) or m.format in PATTERNED)
    return SparseProduct(arrays, dtype, cost, route=route, a=a, other=other, form=form)


def _refusal(a: Any, other: Any, dtype: np.dtype, nnz: int) -> tuple[Reason, str] | None:
    """Why a product has no device path, if it has none."""
    if at_rest(current_policy()):
        return NO_DEVICE
    if dtype.char not in "fdFD" or not dtype.isnative:
        return Reason.DTYPE, f"dtype {dtype} has no device path"
    if not nnz or 0 in (*a.shape, *other.shape) or (is_sparse(other) and (other.ndim != 2 or not other.nnz)):
        return Reason.LAYOUT, "an operand is empty"
    if is_sparse(other) and not (a.format in PATTERNED and other.format in PATTERNED):
        return Reason.LAYOUT, f"{a.format} times {other.format}"
    return None


def _run_sparse(a: Any, b: Any, dtype: np.dtype, engine: Engine) -> Any:
    """The pattern of A B by SciPy, of ones that cannot cancel, and its values by tiles; zeros go as SciPy's do."""
    guards.finite(a.data, b.data)
    ones = [_with_values(m, np.ones(m.data.shape, bool)) for m in (a, b)]
    pattern = _scipys_matmul(*ones)
    if pattern.format not in ("csr", "csc", "bsr"):
        raise Unsupported(Reason.LAYOUT, f"a product in format {pattern.format}")
    rows, columns = _places(pattern)
    values = _spgemm.product_at(engine, a, b, rows.ravel(), columns.ravel(), dtype)
    result = _with_values(pattern, values.reshape(pattern.data.shape))
    if pattern.format != "bsr" and not values.all():
        result.eliminate_zeros()
    return result


def _with_values(a: Any, data: np.ndarray) -> Any:
    """``a`` with other elements in its pattern, which is shared."""
    cls = getattr(a, f"_{a.format}_container")
    return cls((data, a.coords) if a.format == "coo" else (data, a.indices, a.indptr), shape=a.shape)


def _places(pattern: Any) -> tuple[np.ndarray, np.ndarray]:
    """Row and column of each element, shaped as the elements are."""
    major = np.repeat(np.arange(len(pattern.indptr) - 1), np.diff(pattern.indptr))
    minor = pattern.indices.astype(np.int64)
    if pattern.format == "csr":
        return major, minor
    if pattern.format == "csc":
        return minor, major
    r, c = pattern.blocksize
    rows = major[:, np.newaxis, np.newaxis] * r + np.arange(r)[:, np.newaxis]
    columns = minor[:, np.newaxis, np.newaxis] * c + np.arange(c)
    shape = np.broadcast_shapes(rows.shape, columns.shape)
    return np.broadcast_to(rows, shape), np.broadcast_to(columns, shape)


def _blocks_meet(a: Any, b: Any) -> bool:
    if not a.format == b.format == "bsr" or a.blocksize[1] != b.blocksize[0] or a.dtype != b.dtype:
        return False
    return (*a.blocksize, *b.blocksize) != (
        1,
        1,
        1,
        1,
    )  # of single elements SciPy makes CSR, whose columns it orders otherwise


def _gemm_s(rates: HostRates, m: float, n: float, k: float, terms: float, dtype: np.dtype) -> float:
    """Predicted seconds of ``terms`` real multiply-adds in products (m, k) by (k, n)."""
    return rates.seconds("matmul", math.cbrt(m * n * k), 2.0 * terms, dtype)


def _blocks_s(rates: HostRates, count: int, terms: float, dtype: np.dtype) -> float:
    """Predicted seconds of ``count`` products of ``terms`` real multiply-adds: those of calls beside those of BLAS."""
    return count * CALL_S + rates.seconds("matmul", max(math.cbrt(terms), IN_CACHE), 2.0 * terms * count, dtype)


def _block_route(a: Any, b: Any, real: int) -> Route:
    (r, k), c = a.blocksize, b.blocksize[1]
    pairs = spmm.block_pairs(a, b)

    def seconds(rates: HostRates) -> float:
        return _blocks_s(rates, pairs, real * r * k * c, a.dtype) + PATTERN_S + ROUTE_S

    def run() -> Any:
        with np.errstate(all="ignore"):  # SciPy's loops say nothing of overflow
            blocks, indices, indptr = spmm.bsr_bsr(a, b)
        _finite(blocks)
        shape = (a.shape[0], b.shape[1])
        return a._bsr_container((blocks, indices, indptr), shape=shape, blocksize=(r, c))

    return Route("products of blocks", seconds, run)


def _dense_route(a: Any, x: np.ndarray, real: int) -> Route | None:
    if a.format == "bsr":
        return _bsr_route(a, x, real)
    if a.format in ("csr", "csc") and _rows_may_group(a):
        return _group_route(a, x, real)
    return None


def _bsr_times(a: Any, x: np.ndarray) -> np.ndarray:
    """A X for A in BSR, block by block and with no warning, as SciPy's loop; Unsupported where it is not finite."""
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
    # X is gathered where columns are not consecutive; of CSC the result is added to, and where rows are not
    # consecutive put back, twice as slowly (screened cluster of benchmarks/sparse); the columns of all are compared.
    touched = spread if a.format == "csr" else 3 * length + 3 * spread
    moved: float = 2 * touched * m * a.dtype.itemsize + 3 * every * a.indices.itemsize

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
    """``result``, if finite: what becomes of infs and NaNs, and of overflow in another order, is SciPy's to say."""
    if not guards.all_finite(result):
        raise Unsupported(Reason.VALUE, "infs or NaNs")
    return result


def prepare_multiply(a: Any, other: Any) -> Problem:
    """``a`` times ``other``, element by element: there is nothing to gain by moving the operands."""
    if a.dtype.kind not in "biufc":
        raise Unsupported(Reason.DTYPE, f"dtype {a.dtype}")
    moved = a.nnz * (a.dtype.itemsize + 4)
    cost = Cost("csr", 1, float(a.nnz), 2 * moved, moved)
    refusal = (Reason.MEMORY_BOUND, "one operation for each element moved")
    return Problem((), a.dtype, cost, on_device=False, refusal=refusal)


def _row(
    name: str,
    reference: Callable[..., Any],
    prepare: Callable[..., Problem],
    look: Callable[[tuple[Any, ...], dict[str, Any]], bool] | None = None,
    kind: Callable[[tuple[Any, ...], dict[str, Any]], Any] | None = None,
) -> Op:
    return Op(f"scipy.sparse.{name}", reference, prepare, look=look, kind=kind)


MATMUL = _row("matmul", _scipys_matmul, prepare_matmul, _may_block, _kind_of_product)
MULTIPLY = _row("multiply", _scipys_multiply, prepare_multiply)
OPS = (MATMUL, MULTIPLY)
PATCHED = (MATMUL,)  # ``multiply`` is a method of its own in each of SciPy's formats, with nothing to gain

matmul, multiply = accelerated(MATMUL), accelerated(MULTIPLY)


def tobsr(convert: Callable[..., Any]) -> Callable[..., Any]:
    """``convert``, the tobsr of a class of CSR, but for elements that fill blocks: those are cut, not counted."""

    @functools.wraps(convert)
    def call(self: Any, blocksize: Any = None, *args: Any, **kwargs: Any) -> Any:
        if type(blocksize) is tuple and self.ndim == 2 and [type(n) for n in blocksize] == [int, int]:
            r, c = blocksize
            if r > 0 < c and r * c >= CONVERSION_LEAST and not (self.shape[0] % r or self.shape[1] % c):
                regular = spmm.regular_blocks(self, r, c)
                if regular is not None:
                    blocks, indices, indptr = regular
                    arrays = self.indptr, self.indices
                    dtype = sparse.get_index_dtype(arrays, maxval=max(self.shape[1] // c, len(blocks)))
                    arrays = indices.astype(dtype, copy=False), indptr.astype(dtype, copy=False)
                    return self._bsr_container((blocks, *arrays), shape=self.shape)
        return convert(self, blocksize, *args, **kwargs)

    return call
