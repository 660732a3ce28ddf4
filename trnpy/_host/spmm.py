"""Products of block-structured sparse matrices in BLAS on the host; SciPy loops over the elements of each block."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
from scipy import sparse

from trnpy._base.records import record
from trnpy._settings.tile import length, volume

SCRATCH_BYTES = 2**23  # largest X that is copied into huge pages
HUGE_PAGE = 2**21
FRESH_BYTES = 2**25  # glibc maps such a block anew and does not reuse small pages; unwritten pages use no memory
CACHE_BYTES = 2**15  # operands up to this size stay in the first-level cache together with others
FETCHED_BYTES = 2**13  # smallest block worth prefetching: it saves a tenth of 32 x 32 (benchmarks/sparse)
AHEAD_BYTES = 2**19  # bytes of blocks that are prefetched at a time, into the second-level cache
LINE = 64
UNPACKED = volume(10**6)  # multiply-adds up to which OpenBLAS does not pack real operands: 60 GFLOP/s, not 45
LEAST_WIDTH = length(16)  # columns of a strip of X


@functools.cache
def _gemm(char: str) -> Callable[..., Any]:
    """BLAS's matrix product for a dtype. Imported here: like scipy.sparse, ``trnpy.sparse`` loads no scipy.linalg."""
    from trnpy._engine.lapack import blas

    return {"f": blas.sgemm, "d": blas.dgemm, "F": blas.cgemm, "D": blas.zgemm}[char]  # type: ignore[no-any-return]


class _Spare:
    """Unused scratch memory. A product removes it here and puts it back later, so threads never share it."""

    scratch: ClassVar[list[np.ndarray]] = []


@contextlib.contextmanager
def _strips(x: np.ndarray, width: int) -> Iterator[np.ndarray]:
    """``x`` (rows, m) in strips (m / width, rows, width), in reused memory that is aligned to cache lines.

    If operands exceed the first-level cache, BLAS reads unaligned rows a third more slowly (64 x 64 blocks and 128
    columns: 20 us against 15 us). In fresh memory page faults would take three times as long as the copy.
    """
    try:
        scratch = _Spare.scratch.pop()
    except IndexError:
        scratch = np.empty(FRESH_BYTES, np.uint8)
    try:
        first = -scratch.ctypes.data % HUGE_PAGE
        held = scratch[first : first + x.nbytes].view(x.dtype).reshape(-1, len(x), width)
        held[...] = x.reshape(len(x), -1, width).swapaxes(0, 1)
        yield held
    finally:
        _Spare.scratch[:] = [scratch]


def _width(r: int, c: int, x: np.ndarray) -> int:
    """Columns of X in a strip: all of them, unless products of a block with fewer columns are faster."""
    m, width = x.shape[1], CACHE_BYTES // (c * x.itemsize)
    fewer = LEAST_WIDTH <= width < m and m % width == 0 and x.dtype.kind == "f"
    return width if fewer and r * c * width <= UNPACKED < r * c * m else m


def bsr_dense(indptr: np.ndarray, indices: np.ndarray, blocks: np.ndarray, x: np.ndarray) -> np.ndarray:
    """A X (rows, m) for A of ``blocks`` (count, r, c) in block compressed rows and X (columns, m), of one dtype.

    As in SciPy, the blocks of a row may come in any order, and a block may occur more than once.
    """
    (_, r, c), m = blocks.shape, x.shape[1]
    multiply, width = _by_rows, m
    if r * c * x.itemsize >= FETCHED_BYTES and blocks.flags.c_contiguous:
        multiply, width = _by_strips, _width(r, c, x)
    if c * m * x.itemsize >= CACHE_BYTES and x.nbytes <= SCRATCH_BYTES and len(indices) * c >= 2 * len(x) > 0:
        with _strips(x, width) as strips:
            return multiply(indptr, indices, blocks, strips)
    return multiply(indptr, indices, blocks, np.ascontiguousarray(x)[np.newaxis])


# The functions below compute C^T += X^T A^T: the transposes are Fortran-ordered views, which BLAS reads without a copy.


def _by_rows(indptr: np.ndarray, indices: np.ndarray, blocks: np.ndarray, strips: np.ndarray) -> np.ndarray:
    """``bsr_dense`` for X in a single strip, ``strips`` (1, columns, m), with little Python for each block."""
    (_, r, _), m, nrows = blocks.shape, strips.shape[2], len(indptr) - 1
    out = np.empty((nrows * r, m), blocks.dtype)
    gemm, met = _gemm(blocks.dtype.char), _met(indices, blocks, strips[0])
    targets = out.reshape(nrows, r, m).transpose(0, 2, 1)
    for ct, (s, e) in zip(targets, itertools.pairwise(indptr.tolist()), strict=True):
        if s == e:
            ct[...] = 0
        _add(gemm, met, e - s, ct, 0.0)
    return out


def _by_strips(indptr: np.ndarray, indices: np.ndarray, blocks: np.ndarray, strips: np.ndarray) -> np.ndarray:
    """``bsr_dense`` for large blocks and X in ``strips`` (count, columns, width)."""
    (_, r, c), (count, _, width), nrows = blocks.shape, strips.shape, len(indptr) - 1
    out = np.empty((nrows * r, count * width), blocks.dtype)
    gemm, met = _gemm(blocks.dtype.char), [_met(indices, blocks, x) for x in strips]
    tile = np.empty((count, r, width), blocks.dtype).transpose(0, 2, 1) if count > 1 else None
    rows = out.reshape(nrows, r, count, width).transpose(0, 2, 3, 1)
    # BLAS begins many rows of a block at once and would wait for each cache line: one byte of each is read beforehand.
    size, lines = r * c * blocks.itemsize, blocks.reshape(-1).view(np.uint8)[::LINE]
    step = max(AHEAD_BYTES // size, 1)
    ahead = np.empty(step * size // LINE + 1, np.uint8)
    for row, (s, e) in zip(rows, itertools.pairwise(indptr.tolist()), strict=True):
        if s == e:
            row[...] = 0
            continue
        targets = row if tile is None else tile
        for h in range(s, e, step):
            after = min(h + step, e)
            read = lines[h * size // LINE : after * size // LINE]
            ahead[: len(read)] = read
            for pairs, ct in zip(met, targets, strict=True):
                _add(gemm, pairs, after - h, ct, float(h > s))
        if tile is not None:
            row[...] = tile
    return out


def _met(indices: np.ndarray, blocks: np.ndarray, x: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """For each block in order: the rows of X (columns, m) that it multiplies, and the block, both transposed."""
    c, (n, m) = blocks.shape[2], x.shape
    xt = list(x.reshape(n // c, c, m).transpose(0, 2, 1))
    return zip(map(xt.__getitem__, indices.tolist()), blocks.transpose(0, 2, 1), strict=False)


def _add(
    gemm: Callable[..., Any], met: Iterator[tuple[np.ndarray, np.ndarray]], count: int, ct: np.ndarray, beta: float
) -> None:
    """C^T = beta C^T + X^T A^T for the next ``count`` blocks."""
    for xt, at in itertools.islice(met, count):
        gemm(1.0, xt, at, beta, ct, 0, 0, 1)  # the last argument: overwrite ct
        beta = 1.0


def bsr_bsr(a: Any, b: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(blocks, indices, indptr) of A B with SciPy's pattern: the blocks of a row in the order SciPy finds them.

    ``a`` has blocks (r, k), ``b`` (k, c), of one dtype.
    """
    r, c = a.blocksize[0], b.blocksize[1]
    nrows, ncols = a.shape[0] // r, b.shape[1] // c
    met = np.diff(b.indptr)[a.indices]
    left = np.repeat(np.arange(len(a.indices)), met)  # A's block of each pair
    right = np.arange(len(left)) - np.repeat(np.cumsum(met) - met - b.indptr[a.indices], met)
    row = np.repeat(np.arange(nrows, dtype=np.int64), np.diff(a.indptr))
    place, first, target = np.unique(row[left] * ncols + b.indices[right], return_index=True, return_inverse=True)
    found = np.argsort(first)
    rank = np.empty_like(found)
    rank[found] = np.arange(len(found))
    place, target = place[found], rank[target]
    blocks = np.empty((len(place), r, c), a.dtype)
    gemm = _gemm(a.dtype.char)
    at, bt, ct = (list(m.transpose(0, 2, 1)) for m in (a.data, b.data, blocks))
    beta = np.ones(len(left))
    beta[first] = 0
    order = np.argsort(target, kind="stable")  # so that each block of the result stays in the cache while it is summed
    for p, j, t, scale in zip(*(m[order].tolist() for m in (left, right, target, beta)), strict=True):
        gemm(1.0, bt[j], at[p], scale, ct[t], 0, 0, 1)
    dtype = sparse.get_index_dtype((a.indptr, a.indices, b.indptr, b.indices), maxval=len(place))
    indptr = np.zeros(nrows + 1, dtype)
    np.cumsum(np.bincount(place // ncols, minlength=nrows), out=indptr[1:])
    return blocks, (place % ncols).astype(dtype), indptr


@record()
class Groups:
    """Runs of consecutive rows of a CSR matrix that may store the same columns, judged by a few properties.

    For a CSC matrix, exchange rows and columns.
    """

    start: np.ndarray  # (groups + 1,) first row of each, then the number of rows
    length: np.ndarray  # (groups,) stored elements of every row of a group
    large: np.ndarray  # (groups,) whether a group has enough rows for a product of its own

    def multiply_adds(self) -> tuple[int, int]:
        """Multiply-adds for each column of X: in large groups, and in total."""
        work = np.diff(self.start) * self.length.astype(np.int64)
        return int(work[self.large].sum()), int(work.sum())

    def stretches(self) -> list[tuple[int, int]]:
        """(first, after) of the runs of rows outside of large groups."""
        edges = np.flatnonzero(np.diff(np.concatenate([[False], ~self.large & (self.length > 0), [False]])))
        return [(int(self.start[s]), int(self.start[e])) for s, e in edges.reshape(-1, 2)]


def groups(indptr: np.ndarray, indices: np.ndarray, least: int) -> Groups:
    """Groups of consecutive rows that agree in length, first and last column, in O(rows).

    ``_panels`` compares the columns between. A group of at least ``least`` rows is large.
    """
    length = np.diff(indptr)
    start = np.concatenate([[0], np.flatnonzero(~_like_the_next(indptr, indices, np.arange(len(length) - 1))) + 1])
    start = np.concatenate([start, [len(length)]])
    length = length[start[:-1]]
    return Groups(start, length, (np.diff(start) >= least) & (length > 0))


def _like_the_next(indptr: np.ndarray, indices: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Whether each of ``rows`` has the length, the first and the last column of the row after it."""
    begin, end, after = indptr[rows], indptr[rows + 1], indptr[rows + 2]
    alike = after - end == end - begin
    held = np.flatnonzero(alike & (end > begin))
    same = (indices[begin[held]] == indices[end[held]]) & (indices[end[held] - 1] == indices[after[held] - 1])
    alike[held] = same
    return np.asarray(alike)


SAMPLE = length(16)  # at least so many rows are sampled before any work proportional to the size of the matrix


def may_group(indptr: np.ndarray, indices: np.ndarray) -> bool:
    """Whether half of a sample of rows pass ``_like_the_next``, in constant time."""
    pairs = len(indptr) - 2
    rows = range(0, pairs, pairs // SAMPLE | 1)  # an odd step: a power of two could always meet the same row of a block
    # In Python, because after a product has emptied the caches NumPy's functions take ten times as long.
    unlike = (i for i in rows if not _is_like_the_next(indptr, indices, i))
    return pairs > 0 and next(itertools.islice(unlike, len(rows) // 2, None), None) is None


def _is_like_the_next(indptr: np.ndarray, indices: np.ndarray, row: int) -> bool:
    """``_like_the_next`` for a single row."""
    begin, end, after = indptr[row : row + 3].tolist()
    if after - end != end - begin:
        return False
    return begin == end or bool(indices[begin] == indices[end] and indices[end - 1] == indices[after - 1])


def _panels(a: Any, alike: Groups) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
    """(rows, columns, values (rows, length)) of runs of rows of equal columns in large groups; values is a view."""
    for g in np.flatnonzero(alike.large).tolist():
        first, after = int(alike.start[g]), int(alike.start[g + 1])
        stored = slice(int(a.indptr[first]), int(a.indptr[after]))
        columns, values = (m[stored].reshape(after - first, -1) for m in (a.indices, a.data))
        cuts = [0, *(np.flatnonzero((columns[1:] != columns[:-1]).any(axis=1)) + 1).tolist(), after - first]
        for s, e in itertools.pairwise(cuts):
            yield slice(first + s, first + e), columns[s], values[s:e]


def _ascending(columns: np.ndarray) -> bool:
    return bool((columns[1:] > columns[:-1]).all())


def compressed_dense(a: Any, alike: Groups, x: np.ndarray) -> np.ndarray | None:
    """A X (rows, m) for A in CSR or CSC and X (columns, m), of one dtype: one product for rows with the same columns.

    Such rows lie in memory as a dense matrix does, so BLAS reads them in place. SciPy multiplies the rows outside of
    large groups. None if a column of CSC has unsorted or repeated rows.
    """
    by_rows = a.format == "csr"
    x = np.ascontiguousarray(x)
    out = np.zeros((a.shape[0], x.shape[1]), a.dtype)
    for rows, columns, values in _panels(a, alike):
        # If the columns are consecutive, their rows of X are a view; otherwise they are gathered.
        run = columns[-1] - columns[0] == len(columns) - 1 and _ascending(columns)
        place = slice(int(columns[0]), int(columns[-1]) + 1) if run else columns
        if by_rows:
            np.matmul(values, x[place] if run else x.take(columns, 0), out=out[rows])
        elif run or _ascending(columns):
            out[place] += values.T @ x[rows]
        else:  # with repeated indices ``+=`` would add only one term
            return None
    for first, after in alike.stretches():
        stored = slice(int(a.indptr[first]), int(a.indptr[after]))
        part = a.data[stored], a.indices[stored], a.indptr[first : after + 1] - a.indptr[first]
        if by_rows:
            out[first:after] = sparse.csr_array(part, shape=(after - first, a.shape[1])) @ x
        else:
            out += sparse.csc_array(part, shape=(a.shape[0], after - first)) @ x[first:after]
    return out


def regular_blocks(a: Any, r: int, c: int) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """(blocks, indices, indptr) of CSR ``a`` if its elements fill blocks (r, c) and its rows are sorted, else None.

    The elements of a block row lie in memory as a dense matrix, so its blocks are a transposed copy of that matrix.
    """
    length = np.diff(a.indptr).reshape(-1, r)
    if not a.nnz or (length != length[:, :1]).any() or (length[:, 0] % c).any():
        return None
    indptr = np.concatenate([[0], np.cumsum(length[:, 0] // c)])
    blocks = np.empty((int(indptr[-1]), r, c), a.dtype)
    indices = np.empty(len(blocks), a.indices.dtype)
    within = np.arange(c, dtype=a.indices.dtype)
    for s, e in itertools.pairwise(indptr.tolist()):
        stored = slice(s * r * c, e * r * c)
        columns = a.indices[stored].reshape(r, (e - s) * c)
        first = columns[0, ::c]
        filled = (first[:, np.newaxis] + within).ravel()
        if not (columns == filled).all() or not _ascending(filled) or (first % c).any():
            return None
        blocks[s:e] = a.data[stored].reshape(r, e - s, c).transpose(1, 0, 2)
        indices[s:e] = first // c
    return blocks, indices, indptr


ROUTES = {"regular_blocks": regular_blocks}
