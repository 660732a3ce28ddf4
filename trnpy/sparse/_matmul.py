"""Products of SciPy's sparse classes, with CPU fast paths through BLAS if elements fill blocks."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from scipy import sparse

from trnpy._base.records import record
from trnpy._call import guards
from trnpy._call.dispatch import Cost, Op, Problem, Reason, Unsupported, accelerated, unattended
from trnpy._call.host_table import host_entry
from trnpy._engine.engines import Engine, at_rest
from trnpy._engine.precision import least
from trnpy._engine.proof.weights import probe
from trnpy._settings.policy import current_policy
from trnpy._settings.tile import volume
from trnpy.sparse import _device, _spgemm
from trnpy.sparse._outline import PATTERNED, host_s, launch_pays, outlined
from trnpy.sparse._tiles import compressed

BLOCK_LEAST = volume(1_000_000)  # multiply-adds: SciPy computes smaller products in 400 us, so no fast path is tried
REMEMBERED = 4_000_000  # multiply-adds: the fast path of longer products of CSR and CSC depends on their columns
CONVERSION_LEAST = 32 * 32  # elements of a block from which the fast path converts CSR to BSR faster than SciPy
# Without an engine no cost is computed: counting the blocks takes longer than multiplying by a vector.
NO_DEVICE = (Reason.NO_DEVICE, 'not modelled: device="null" models calls with sparse matrices')
FORCED_ONLY = (Reason.SLOWER, "finding the pattern of the result on the host takes as long as the product")


def is_sparse(a: Any) -> bool:
    """Whether ``a`` is of a sparse class, SciPy's or trnpy's."""
    return bool(sparse.issparse(a))


def whole_blocks(*matrices: Any) -> None:
    """Refuse BSR whose blocks do not tile the matrix: SciPy multiplies it, but its CSR contains unset memory."""
    for a in matrices:
        if not is_sparse(a) or a.format != "bsr":
            continue
        sides = a.blocksize
        if 0 in sides or any(extent % side for extent, side in zip(a.shape, sides, strict=True)):
            raise Unsupported(Reason.LAYOUT, f"blocks {sides} of a matrix {a.shape}")


class Products:
    """The products of trnpy's sparse classes: ``@``, ``dot``, ``*`` and ``**`` of matrices all go through here."""

    format: str
    _shape: tuple[int, ...]
    _matmul_vector: Callable[[Any], Any]
    _matmul_multivector: Callable[[Any], Any]

    def __matmul__(self, other: Any) -> Any:
        if other.__class__ is np.ndarray and other.ndim:  # not a scalar, which SciPy would test again
            return self._matmul_dispatch(other)
        above: Any = super()
        return above.__matmul__(other)

    def _matmul_dispatch(self, other: Any) -> Any:
        # SciPy's own shortest paths without another call, because these products take microseconds.
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
    """a @ other with the method of SciPy's class; ``a`` itself is SciPy's if SciPy's classes are patched."""
    above: Any = super(Products, a) if isinstance(a, Products) else a
    return above._matmul_dispatch(other)


def _scipys_multiply(a: Any, other: Any) -> Any:
    """a times other, element by element, with the method of SciPy's class."""
    above: Any = super(Products, a)
    return above.multiply(other)


def _kind_of_product(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The cache key of A X, except for the columns that rows of CSR share and the patterns of two sparse matrices."""
    a, x = args
    if type(x) is not np.ndarray or x.ndim not in (1, 2) or a.format not in ("csr", "csc", "bsr"):
        return None
    if a.format != "bsr" and a.data.size * x.size >= REMEMBERED * x.shape[0]:
        return None
    return a.format, a._shape, a.data.shape, int(a.indptr[-1]), a.data.dtype, x.shape, x.dtype


@record(kw_only=True)
class SparseProduct(Problem):
    """The product of sparse ``a`` with a dense or sparse ``other``."""

    unproven: ClassVar[str] = ""
    a: Any
    other: Any
    refines: ClassVar[bool] = False

    def outlined(self) -> tuple[Any, ...] | None:
        if is_sparse(self.other) or not launch_pays(host_s(self.cost, self.dtype)):
            return None
        return outlined((self.a, self.other))

    def run(self, engine: Engine) -> Any:
        a, other = self.a, self.other
        if is_sparse(other):
            return _run_sparse(a, other, self.dtype, engine)
        a = a if a.format in PATTERNED else a.tocsr()
        guards.finite(other, a.data)
        x = other.astype(self.dtype, copy=False).reshape(len(other), -1)
        product = _device.gathered if self.method == "gathered" else _device.tiled
        return product(engine, a, x).reshape(a.shape[0], *other.shape[1:])

    def error(self, result: Any) -> float:
        """The largest error of A X w over |A| |X| |w|, for random weights w, divided by the length of the sums.

        Errors are judged in multiples of the longest array, whose length is unrelated to that of the sums.
        """
        plain = compressed(self.a, self.dtype)
        sizes = type(plain)((np.abs(plain.data), plain.indices, plain.indptr), shape=plain.shape)
        other = self.other
        right = compressed(other, self.dtype) if is_sparse(other) else other.reshape(len(other), -1)
        product = compressed(result) if is_sparse(result) else result.reshape(len(result), -1)
        signs = probe(right.shape[1], np.dtype(np.float64))
        info = np.finfo(self.dtype)
        underflow = least(info.dtype == np.float32) / float(info.eps) * np.abs(signs).sum(axis=0)
        bound = sizes @ (abs(right) @ np.abs(signs) + underflow) + underflow
        with np.errstate(all="ignore"):
            difference = np.abs(product @ signs - plain @ (right @ signs))
            ratio = np.where(difference == 0, 0.0, difference / bound)  # a NaN stays NaN
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
    whole_blocks(a, other)
    dtype = np.result_type(a.dtype, other.dtype)
    m = other.shape[1] if other.ndim == 2 else 1
    real = 4 if dtype.kind == "c" else 1
    nnz = a.nnz
    if is_sparse(other):
        terms, kind = nnz * other.nnz / max(a.shape[1], 1), "sparse sparse"
        bytes_in, bytes_out = (nnz + other.nnz) * (dtype.itemsize + 4), 0
        if dtype.char in "fdFD" and _blocks_meet(a, other):  # a loop over blocks is faster, and its work can be counted
            (r, k), c = a.blocksize, other.blocksize[1]
            terms, kind = float(r * k * c * np.diff(other.indptr)[a.indices].sum()), "bsr"
    else:
        terms, kind = float(nnz * m), "bsr" if a.format == "bsr" else "csr"
        bytes_in, bytes_out = nnz * (a.dtype.itemsize + 4) + other.nbytes, a.shape[0] * m * dtype.itemsize
    cost = Cost(kind, max(m, 1), 2.0 * real * terms, bytes_in, bytes_out)
    refusal = _refusal(a, other, dtype, nnz)
    if refusal is not None:
        return Problem((), dtype, cost, on_device=False, refusal=refusal)
    return device_product(a, other, dtype, cost)


def device_product(a: Any, other: Any, dtype: np.dtype, cost: Cost) -> SparseProduct:
    """The product on a device, with tiles or, in single precision, with gathered rows."""
    arrays = tuple(m.data if is_sparse(m) else m for m in (a, other) if not is_sparse(m) or m.format in PATTERNED)
    precision = current_policy().products
    single = precision == "fp32" or (precision == "matched" and dtype.char in "fF")
    methods = () if is_sparse(other) else ("tiles", "gathered") if single else ("tiles",)
    return SparseProduct(arrays, dtype, cost, methods=methods, a=a, other=other)


def _blocks_meet(a: Any, b: Any) -> bool:
    if not a.format == b.format == "bsr" or a.blocksize[1] != b.blocksize[0] or a.dtype != b.dtype:
        return False
    sides = *a.blocksize, *b.blocksize
    return sides != (1, 1, 1, 1)  # for 1 x 1 blocks SciPy returns CSR with another order of columns


def _refusal(a: Any, other: Any, dtype: np.dtype, nnz: int) -> tuple[Reason, str] | None:
    """The reason why a product has no device path, or None."""
    if at_rest(current_policy()):
        return NO_DEVICE
    # SciPy multiplies some formats in another byte order, but does not convert them to others.
    if dtype.char not in "fdFD" or not (a.dtype.isnative and other.dtype.isnative):
        return Reason.DTYPE, f"dtypes {a.dtype} and {other.dtype} have no device path"
    if not nnz or 0 in (*a.shape, *other.shape) or (is_sparse(other) and (other.ndim != 2 or not other.nnz)):
        return Reason.LAYOUT, "an operand is empty"
    if a.format == "coo" and a.shape[0] == other.ndim == 1:
        return Reason.LAYOUT, "one row of COO times a vector, for which SciPy returns a number"
    if is_sparse(other) and not (a.format in PATTERNED and other.format in PATTERNED):
        return Reason.LAYOUT, f"{a.format} times {other.format}"
    if is_sparse(other) and any(x.dtype != dtype and x.dtype.kind in "biu" for x in (a, other)):
        return Reason.DTYPE, f"{a.dtype} times {other.dtype}: SciPy adds duplicates in the dtype that they have"
    if is_sparse(other) and not current_policy().force:
        return FORCED_ONLY
    return None


def _run_sparse(a: Any, b: Any, dtype: np.dtype, engine: Engine) -> Any:
    """A B: SciPy finds the pattern with ones, which cannot cancel; tiles give values; zeros are removed as in SciPy."""
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
    """``a`` with other elements in the same, shared pattern, and of its class, which may be a user's."""
    return type(a)((data, a.coords) if a.format == "coo" else (data, a.indices, a.indptr), shape=a.shape)


def _places(pattern: Any) -> tuple[np.ndarray, np.ndarray]:
    """Row and column of each element, in the shape of the elements."""
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


def prepare_multiply(a: Any, other: Any) -> Problem:
    """``a`` times ``other``, element by element: moving the operands can never pay off."""
    if a.dtype.kind not in "biufc":
        raise Unsupported(Reason.DTYPE, f"dtype {a.dtype}")
    moved = a.nnz * (a.dtype.itemsize + 4)
    cost = Cost("csr", 1, float(a.nnz), 2 * moved, moved)
    refusal = (Reason.MEMORY_BOUND, "one operation for each element moved")
    return Problem((), a.dtype, cost, on_device=False, refusal=refusal)


MATMUL = Op("scipy.sparse.matmul", _scipys_matmul, prepare_matmul, kind=_kind_of_product)
MULTIPLY = Op("scipy.sparse.multiply", _scipys_multiply, prepare_multiply, kind=None)
# The table does not list ``multiply``: it is a method of its own in each of SciPy's formats, with nothing to gain.
OPS = (MATMUL, MULTIPLY)

matmul, multiply = accelerated(MATMUL), accelerated(MULTIPLY)


def tobsr(convert: Callable[..., Any]) -> Callable[..., Any]:
    """``convert``, a CSR class's tobsr, except if the elements fill blocks: then the rows are reshaped directly."""

    @functools.wraps(convert)
    def call(self: Any, blocksize: Any = None, *args: Any, **kwargs: Any) -> Any:
        if type(blocksize) is tuple and self.ndim == 2 and [type(n) for n in blocksize] == [int, int]:
            r, c = blocksize
            if r > 0 < c and r * c >= CONVERSION_LEAST and not (self.shape[0] % r or self.shape[1] % c):
                found = host_entry("regular_blocks")
                regular = found and found(self, r, c)
                if regular:
                    blocks, indices, indptr = regular
                    arrays = self.indptr, self.indices
                    dtype = sparse.get_index_dtype(arrays, maxval=max(self.shape[1] // c, len(blocks)))
                    arrays = indices.astype(dtype, copy=False), indptr.astype(dtype, copy=False)
                    return self._bsr_container((blocks, *arrays), shape=self.shape)
        return convert(self, blocksize, *args, **kwargs)

    return call
