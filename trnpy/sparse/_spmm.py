"""Products of block-structured sparse matrices by BLAS on the host: SciPy loops over the elements of each block."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

# Multiply-adds of a block from which a BLAS call of its own beats copying the blocks of a row side by side.
BLOCK_WORK = 32 * 32 * 64  # measured: there both run at 25 to 30 GFLOP/s on one thread
# Multiply-adds of a block row from which a product of its own beats one of many rows stacked: ten times what calling
# NumPy takes, and the operands are copied once instead of twice.
ROW_WORK = 2**15
CACHE_BYTES = 2**19  # of operands copied side by side at a time: they stay in the second-level cache


@functools.cache
def _gemm(char: str) -> Callable[..., Any]:
    """BLAS' product for a dtype; ``trnpy.sparse`` alone loads no scipy.linalg, as SciPy's does not."""
    from trnpy._host import blas

    return {"f": blas.sgemm, "d": blas.dgemm, "F": blas.cgemm, "D": blas.zgemm}[char]  # type: ignore[no-any-return]


def bsr_dense(indptr: np.ndarray, indices: np.ndarray, blocks: np.ndarray, x: np.ndarray) -> np.ndarray:
    """A X (rows, m) for A of ``blocks`` (count, r, c) in block compressed rows and X (columns, m), of one dtype.

    Blocks may come in any order and more than once, as SciPy allows.
    """
    _, r, c = blocks.shape
    x = np.ascontiguousarray(x)
    if r * c * x.shape[1] < BLOCK_WORK:
        by_row = len(blocks) * r * c * x.shape[1] >= ROW_WORK * (len(indptr) - 1)
        return (_row_by_row if by_row else _side_by_side)(indptr, indices, blocks, x)
    out = np.zeros(((len(indptr) - 1) * r, x.shape[1]), blocks.dtype)
    gemm = _gemm(blocks.dtype.char)
    # Transposed, all are the Fortran-ordered views that BLAS takes without a copy: C^T += X^T A^T.
    xt, at, ct = x.T, blocks.transpose(0, 2, 1), out.T
    row = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr)) * r
    for p, (i, j) in enumerate(zip(row.tolist(), (indices * c).tolist(), strict=True)):
        gemm(1.0, xt[:, j : j + c], at[p], 1.0, ct[:, i : i + r], overwrite_c=True)
    return out


def _side_by_side(indptr: np.ndarray, indices: np.ndarray, blocks: np.ndarray, x: np.ndarray) -> np.ndarray:
    """``bsr_dense`` by one product of each block row's blocks, side by side, with the rows of X they meet."""
    _, r, c = blocks.shape
    m, nrows = x.shape[1], len(indptr) - 1
    out = np.zeros((nrows, r, m), blocks.dtype)
    x = x.reshape(-1, c, m)
    for rows, ids in _of_one_length(indptr, blocks.itemsize * c * (m + r)):
        count, k = ids.shape
        panels = blocks.take(ids, 0).transpose(0, 2, 1, 3).reshape(count, r, k * c)
        out[rows] = np.matmul(panels, x.take(indices.take(ids), 0).reshape(count, k * c, m))
    return out.reshape(nrows * r, m)


def _row_by_row(indptr: np.ndarray, indices: np.ndarray, blocks: np.ndarray, x: np.ndarray) -> np.ndarray:
    """``bsr_dense`` by one product a block row, its operands copied side by side into the same memory every time."""
    _, r, c = blocks.shape
    m, nrows = x.shape[1], len(indptr) - 1
    out = np.zeros((nrows, r, m), blocks.dtype)
    x = x.reshape(-1, c, m)
    longest = int(np.diff(indptr).max(initial=0))
    panel, met = np.empty(r * longest * c, blocks.dtype), np.empty((longest, c, m), blocks.dtype)
    for i, (s, e) in enumerate(itertools.pairwise(indptr.tolist())):
        if s < e:
            side_by_side = panel[: r * (e - s) * c].reshape(r, e - s, c)
            side_by_side[...] = blocks[s:e].transpose(1, 0, 2)
            x.take(indices[s:e], 0, out=met[: e - s], mode="clip")  # to take in place; the indices are in range
            np.matmul(side_by_side.reshape(r, -1), met[: e - s].reshape(-1, m), out=out[i])
    return out.reshape(nrows * r, m)


def _of_one_length(indptr: np.ndarray, element_bytes: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(rows, positions of their elements (rows, k)): non-empty rows with k elements, as many as the cache holds."""
    length = np.diff(indptr)
    order = np.argsort(length, kind="stable")
    for alike in np.split(order, np.flatnonzero(np.diff(length[order])) + 1):
        k = int(length[alike[0]]) if len(alike) else 0
        if k == 0:
            continue
        step = max(1, CACHE_BYTES // (element_bytes * k))
        for s in range(0, len(alike), step):
            rows = alike[s : s + step]
            yield rows, indptr[rows][:, np.newaxis] + np.arange(k)


def block_pairs(a: Any, b: Any) -> int:
    """Products of blocks in A B, both in block compressed rows."""
    return int(np.diff(b.indptr)[a.indices].sum())


def bsr_bsr(a: Any, b: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(blocks, indices, indptr) of A B with SciPy's pattern: the blocks of a row in order of their discovery.

    ``a`` has blocks (r, k), ``b`` (k, c), of one dtype.
    """
    (r, k), c = a.blocksize, b.blocksize[1]
    nrows, ncols = a.shape[0] // r, b.shape[1] // c
    met = np.diff(b.indptr)[a.indices]
    left = np.repeat(np.arange(len(a.indices)), met)  # of each pair, A's block
    right = np.arange(len(left)) - np.repeat(np.cumsum(met) - met - b.indptr[a.indices], met)
    row = np.repeat(np.arange(nrows, dtype=np.int64), np.diff(a.indptr))
    place, first, target = np.unique(row[left] * ncols + b.indices[right], return_index=True, return_inverse=True)
    found = np.argsort(first)
    rank = np.empty_like(found)
    rank[found] = np.arange(len(found))
    place, target = place[found], rank[target]
    blocks = np.zeros((len(place), r, c), a.dtype)
    place_in_b = np.repeat(np.arange(b.shape[0] // k), np.diff(b.indptr)) * ncols + b.indices
    if r * k * c >= BLOCK_WORK or len(np.unique(place_in_b)) < len(place_in_b):  # ``+=`` would add one of two
        gemm = _gemm(a.dtype.char)
        at, bt, ct = (m.transpose(0, 2, 1) for m in (a.data, b.data, blocks))
        for i, j, t in zip(left.tolist(), right.tolist(), target.tolist(), strict=True):
            gemm(1.0, bt[j], at[i], 1.0, ct[t], overwrite_c=True)
    else:  # each block of A with the block row it meets, at once
        products = np.empty((int(met.max(initial=0)), r, c), a.dtype)
        for p, (j, after) in enumerate(zip(a.indices.tolist(), np.cumsum(met).tolist(), strict=True)):
            s, e = int(b.indptr[j]), int(b.indptr[j + 1])
            if s < e:
                blocks[target[after - (e - s) : after]] += np.matmul(a.data[p], b.data[s:e], out=products[: e - s])
    dtype = sparse.get_index_dtype((a.indptr, a.indices, b.indptr, b.indices), maxval=len(place))
    indptr = np.zeros(nrows + 1, dtype)
    np.cumsum(np.bincount(place // ncols, minlength=nrows), out=indptr[1:])
    return blocks, (place % ncols).astype(dtype), indptr


@dataclass(frozen=True, slots=True)
class Groups:
    """Runs of consecutive rows of a matrix in compressed rows that look alike: perhaps the same columns in each.

    Of a matrix in compressed columns read columns for rows.
    """

    start: np.ndarray  # (groups + 1,) first row of each, then the number of rows
    length: np.ndarray  # (groups,) stored elements of every row of a group
    large: np.ndarray  # (groups,) of enough rows for a product of their own

    def multiply_adds(self) -> tuple[int, int]:
        """For each column of X: those in large groups, and all."""
        work = np.diff(self.start) * self.length.astype(np.int64)
        return int(work[self.large].sum()), int(work.sum())

    def stretches(self) -> list[tuple[int, int]]:
        """(first, after) of the runs of rows outside of large groups."""
        edges = np.flatnonzero(np.diff(np.concatenate([[False], ~self.large & (self.length > 0), [False]])))
        return [(int(self.start[s]), int(self.start[e])) for s, e in edges.reshape(-1, 2)]


def groups(indptr: np.ndarray, indices: np.ndarray, least: int) -> Groups:
    """Consecutive rows alike in length, first and last column: O(rows), ``_panels`` sees the columns between.

    Those of at least ``least`` rows are large.
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


SAMPLE = 64  # rows looked at before any work in proportion to the matrix


def may_group(indptr: np.ndarray, indices: np.ndarray) -> bool:
    """Whether half of a sample of rows look like the next: constant time."""
    pairs = len(indptr) - 2
    if pairs < 1:
        return False
    rows = np.linspace(0, pairs - 1, min(SAMPLE, pairs)).astype(np.intp)
    return 2 * int(np.count_nonzero(_like_the_next(indptr, indices, rows))) >= len(rows)


def _panels(a: Any, alike: Groups) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
    """(rows, columns, values (rows, length)) of the rows of large groups with the same columns; values are a view."""
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
    """A X (rows, m) for A in CSR or CSC and X (columns, m), of one dtype: one product for rows of the same columns.

    The values are read where they lie, one row after the other as those of a dense matrix.  What is in no large
    group is SciPy's to multiply.  None where a column of CSC has its rows out of order or twice.
    """
    by_rows = a.format == "csr"
    x = np.ascontiguousarray(x)
    out = np.zeros((a.shape[0], x.shape[1]), a.dtype)
    for rows, columns, values in _panels(a, alike):
        # Consecutive columns meet a view of X; others are gathered.
        run = columns[-1] - columns[0] == len(columns) - 1 and _ascending(columns)
        place = slice(int(columns[0]), int(columns[-1]) + 1) if run else columns
        if by_rows:
            np.matmul(values, x[place] if run else x.take(columns, 0), out=out[rows])
        elif run or _ascending(columns):
            out[place] += values.T @ x[rows]
        else:  # ``+=`` would add only one of two
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
    """(blocks, indices, indptr) of CSR ``a`` whose stored elements fill blocks (r, c), rows sorted; None of another.

    The elements of a block row lie as those of a dense matrix, so blocks are a transposed copy of it.
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
