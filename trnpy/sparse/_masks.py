"""Products and attention at the positions of a mask: BLAS computes whole blocks, and marked elements are kept.

"Marked" are the positions at which a mask is nonzero.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy import sparse

from trnpy._base.records import record
from trnpy._call import guards
from trnpy._call.host_table import host_entry
from trnpy._engine.engines import at_rest
from trnpy._settings.policy import current_policy
from trnpy._settings.tile import length
from trnpy.sparse._classes import adopt
from trnpy.sparse._matmul import is_sparse

BLOCK = length(128)  # rows and columns of the systolic array
WIDEST = 32 * BLOCK  # columns of one product: its result takes 4 MiB in float64
# If less than one element in SPARSEST of a run of blocks is marked, each marked element is computed as a dot product:
# BLAS multiplies about twenty times faster than NumPy gathers rows.
SPARSEST = 20
# Attention computes whole boxes if they have at most FULLEST times the marked elements: an element of a box takes
# 16 to 20 ns, a single marked element 80 to 110 ns (benchmarks/sparse, float64, one thread).
FULLEST = 5
GATHERED_BYTES = 2**22  # bytes of rows and columns that are gathered at once


def block_mask_matmul(a: Any, b: Any, mask: Any) -> Any:
    """Elements of a matrix product at the nonzero positions of a mask.

    Parameters
    ----------
    a, b : (m, k) and (k, n) array_like
        Dense factors of any numeric dtype.
    mask : (m, n) sparse array, sparse matrix or array_like
        Positions with a nonzero value are computed. Stored zeros are ignored.

    Returns
    -------
    (m, n) csr_array
        One stored element for each nonzero of `mask`, even if the product is zero there; column indices ascend within
        each row. The dtype is that of ``a @ b``.

    Raises
    ------
    ValueError
        If shapes do not match or `mask` does not have two dimensions.

    Notes
    -----
    BLAS multiplies blocks of 128 columns that contain marked positions; no array of m x n elements is allocated.

    Examples
    --------
    >>> import numpy as np
    >>> from trnpy.sparse import block_mask_matmul
    >>> a = np.array([[1.0, 2.0], [3.0, 4.0]])
    >>> block_mask_matmul(a, a, np.eye(2)).toarray()
    array([[ 7.,  0.],
           [ 0., 22.]])
    """
    a, b = np.asarray(a), np.asarray(b)
    pattern = _pattern(mask)
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0] or pattern.shape != (a.shape[0], b.shape[1]):
        raise ValueError(f"shapes {a.shape}, {b.shape} and mask {pattern.shape}: expected (m, k), (k, n) and (m, n)")
    products = host_entry("sampled_products") if at_rest(current_policy()) else None
    values = None if products is None else products(a, b, _rows(pattern), pattern.indices)
    if values is None:
        values = _of_blocks(a, b, pattern)
    return adopt(sparse.csr_array((values, pattern.indices, pattern.indptr), shape=pattern.shape))


def _of_blocks(a: np.ndarray, b: np.ndarray, pattern: Any) -> np.ndarray:
    """Elements of the product at the positions of ``pattern``, of which BLAS computes whole blocks."""
    values = np.empty(pattern.nnz, np.result_type(a, b))
    for first in range(0, a.shape[0], BLOCK):
        after = min(first + BLOCK, a.shape[0])
        stored = slice(int(pattern.indptr[first]), int(pattern.indptr[after]))
        row = np.repeat(np.arange(after - first), np.diff(pattern.indptr[first : after + 1]))
        values[stored] = _of_rows(a[first:after], b, row, pattern.indices[stored])
    return values


def block_mask_matmul_gradients(a: Any, b: Any, g: Any) -> tuple[np.ndarray, np.ndarray]:
    """Gradients of a real function of ``block_mask_matmul(a, b, mask)`` with respect to a and b.

    Parameters
    ----------
    a, b : (m, k) and (k, n) array_like
        Factors of the product.
    g : (m, n) sparse array, sparse matrix or array_like
        Gradient of the function with respect to the product, nonzero only where `mask` is nonzero.

    Returns
    -------
    (m, k) and (k, n) ndarray
        The gradients. For complex arrays they combine the real and imaginary parts, as in PyTorch.

    Raises
    ------
    ValueError
        If shapes do not match.

    Examples
    --------
    >>> import numpy as np
    >>> from trnpy.sparse import block_mask_matmul_gradients
    >>> a, b = np.array([[1.0, 2.0]]), np.array([[3.0], [4.0]])
    >>> da, db = block_mask_matmul_gradients(a, b, np.ones((1, 1)))
    >>> da
    array([[3., 4.]])
    >>> db
    array([[1.],
           [2.]])
    """
    g = adopt(sparse.csr_array(g))
    return g @ np.asarray(b).conj().T, (g.conj().T @ np.asarray(a)).conj().T


def local_mask(n: int, window: int, causal: bool = False) -> Any:
    """Band mask: positions at most `window` from the diagonal.

    Parameters
    ----------
    n : int
        Rows and columns.
    window : int
        Largest distance from the diagonal, in columns.
    causal : bool, optional
        Whether to leave out the positions above the diagonal.

    Returns
    -------
    (n, n) csr_array of bool
        True at the positions of the band.

    Raises
    ------
    ValueError
        If `n` or `window` is negative.

    Examples
    --------
    >>> from trnpy.sparse import local_mask
    >>> local_mask(3, 1, causal=True).toarray().astype(int)
    array([[1, 0, 0],
           [1, 1, 0],
           [0, 1, 1]])
    """
    if n < 0 or window < 0:
        raise ValueError(f"n={n}, window={window}: expected neither negative")
    offsets = range(-min(window, max(n - 1, 0)), 1 if causal else min(window, max(n - 1, 0)) + 1)
    ones = np.ones((len(offsets), n), bool)
    return adopt(sparse.dia_array((ones, np.array(offsets)), shape=(n, n)).tocsr())


def masked_attention(q: Any, k: Any, v: Any, mask: Any, scale: float | None = None) -> np.ndarray:
    """Attention softmax(scale q k^T) v in which each row attends only to the positions of a mask.

    Parameters
    ----------
    q, k, v : (..., m, d), (..., n, d) and (..., n, e) array_like
        Queries, keys and values of real floating dtypes, with equal leading dimensions.
    mask : (m, n) sparse array, sparse matrix or array_like
        Nonzero where a query attends to a key; the same for all leading dimensions.
    scale : float, optional
        Factor of the scores. The default is d^(-1/2).

    Returns
    -------
    (..., m, e) ndarray
        The result, in the common dtype of `q`, `k` and `v`. A row without marked positions is zero.

    Raises
    ------
    TypeError
        If an array is not of a real floating dtype.
    ValueError
        If shapes do not match.

    References
    ----------
    .. [1] A. Vaswani et al., Attention is all you need, arXiv:1706.03762, sec. 3.2.1.

    Examples
    --------
    >>> import numpy as np
    >>> from trnpy.sparse import local_mask, masked_attention
    >>> q = k = np.zeros((3, 2))  # equal scores: each row is the mean of the values that it sees
    >>> v = np.array([[0.0], [2.0], [4.0]])
    >>> masked_attention(q, k, v, local_mask(3, 1, causal=True))
    array([[0.],
           [1.],
           [3.]])
    """
    return _Attention(q, k, v, mask, scale).output


def masked_attention_gradients(
    q: Any, k: Any, v: Any, mask: Any, g: Any, scale: float | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Gradients of a function of ``masked_attention(q, k, v, mask, scale)`` with respect to q, k and v.

    Parameters
    ----------
    q, k, v : (..., m, d), (..., n, d) and (..., n, e) array_like
        Operands of `masked_attention`.
    mask : (m, n) sparse array, sparse matrix or array_like
        Nonzero where a query attends to a key.
    g : (..., m, e) array_like
        Gradient of the function with respect to the result of `masked_attention`.
    scale : float, optional
        Factor of the scores. The default is d^(-1/2).

    Returns
    -------
    (..., m, d), (..., n, d) and (..., n, e) ndarray
        The gradients.

    Raises
    ------
    TypeError
        If `q`, `k` or `v` is not of a real floating dtype.
    ValueError
        If shapes do not match.

    Notes
    -----
    Probabilities and their gradients are computed at the positions of the mask only [1]_.

    References
    ----------
    .. [1] T. Dao et al., FlashAttention, arXiv:2205.14135, appendix B.2.

    Examples
    --------
    >>> import numpy as np
    >>> from trnpy.sparse import masked_attention_gradients
    >>> q = k = np.zeros((2, 1))
    >>> v = np.array([[0.0], [2.0]])
    >>> dq, dk, dv = masked_attention_gradients(q, k, v, np.ones((2, 2)), np.ones((2, 1)))
    >>> dv
    array([[1.],
           [1.]])
    """
    return _Attention(q, k, v, mask, scale).gradients(np.asarray(g))


class _Attention:
    """One call of attention: its checked operands, probabilities, result and gradients."""

    def __init__(self, q: Any, k: Any, v: Any, mask: Any, scale: float | None) -> None:
        q, k, v = np.asarray(q), np.asarray(k), np.asarray(v)
        mask = _pattern(mask)
        dtype = np.result_type(q, k, v)
        if dtype.kind != "f":
            raise TypeError(f"attention of {q.dtype}, {k.dtype} and {v.dtype}: expected real floating dtypes")
        fits = min(q.ndim, k.ndim, v.ndim) >= 2 and q.shape[:-2] == k.shape[:-2] == v.shape[:-2]
        if not fits or q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
            raise ValueError(f"q {q.shape}, k {k.shape}, v {v.shape}: expected (..., m, d), (..., n, d), (..., n, e)")
        if mask.shape != (q.shape[-2], k.shape[-2]):
            raise ValueError(f"mask {mask.shape} for q {q.shape} and k {k.shape}")
        self.shapes = q.shape, k.shape, v.shape
        self.q, self.k, self.v = (x.astype(dtype, copy=False).reshape(-1, *x.shape[-2:]) for x in (q, k, v))
        self.mask = mask
        self.scale = 1 / math.sqrt(max(q.shape[-1], 1)) if scale is None else float(scale)

    @functools.cached_property
    def probabilities(self) -> list[Any]:
        """Softmax of the scores at the marked positions, in CSR: one matrix for each pair of q and k."""
        return [
            _softmax(self.scale * block_mask_matmul(one, other.T, self.mask))
            for one, other in zip(self.q, self.k, strict=True)
        ]

    @functools.cached_property
    def output(self) -> np.ndarray:
        q, _, v = self.shapes
        boxes = list(_boxes(self.mask))
        rows = None
        if sum(box.size for box in boxes) <= FULLEST * self.mask.nnz:
            rows = self._by_boxes(boxes)
        if rows is None or not guards.all_finite(rows):  # infs and NaNs of a box must not reach other rows
            rows = np.asarray([p @ x for p, x in zip(self.probabilities, self.v, strict=True)], self.v.dtype)
        return rows.reshape(*q[:-1], v[-1])

    def _by_boxes(self, boxes: list[_Box]) -> np.ndarray:
        """The result from dense products and exponentials of whole boxes."""
        from trnpy._einsum.rows import matmul  # not at the top: trnpy.sparse must not load scipy.linalg

        out = np.zeros((len(self.q), self.mask.shape[0], self.v.shape[-1]), self.v.dtype)
        with np.errstate(all="ignore"):  # `output` tests the result for infs and NaNs
            for box in boxes:
                unmarked = box.unmarked()
                for i in range(len(out)):
                    e = matmul(self.q[i, box.rows] * self.q.dtype.type(self.scale), self.k[i, box.columns].T)
                    if unmarked is not None:
                        np.copyto(e, -np.inf, where=unmarked)
                    largest = e.max(axis=1, keepdims=True)
                    np.subtract(e, np.where(largest == -np.inf, 0, largest), out=e)
                    np.exp(e, out=e)
                    total = e.sum(axis=1, keepdims=True)
                    out[i, box.rows] = matmul(e, self.v[i, box.columns]) / np.where(total == 0, 1, total)
        return out

    def gradients(self, g: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        if g.shape != self.output.shape:
            raise ValueError(f"gradient {g.shape} of a result {self.output.shape}")
        g = g.astype(self.output.dtype, copy=False).reshape(-1, *g.shape[-2:])
        dq, dk, dv = (np.empty_like(x) for x in (self.q, self.k, self.v))
        for i, p in enumerate(self.probabilities):
            dv[i] = p.T @ g[i]
            ds = block_mask_matmul(g[i], self.v[i].T, self.mask)
            row = _rows(p)
            mean = np.bincount(row, p.data * ds.data, minlength=p.shape[0])
            ds.data = p.data * (ds.data - mean[row]).astype(p.dtype) * p.dtype.type(self.scale)
            dq[i], dk[i] = ds @ self.k[i], ds.T @ self.q[i]
        qs, ks, vs = self.shapes
        return dq.reshape(qs), dk.reshape(ks), dv.reshape(vs)


@record()
class _Box:
    """Consecutive rows of a mask, and columns that include all marked ones of these rows."""

    rows: slice
    columns: slice | np.ndarray
    indices: np.ndarray  # marked columns, row by row
    lengths: np.ndarray  # (rows,) number of marked columns in each row

    @property
    def shape(self) -> tuple[int, int]:
        columns = self.columns
        return len(self.lengths), columns.stop - columns.start if isinstance(columns, slice) else len(columns)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def unmarked(self) -> np.ndarray | None:
        """Boolean array that is true at unmarked elements; None if all are marked."""
        if len(self.indices) == self.size:
            return None
        at, columns = self.indices, self.columns
        at = at - columns.start if isinstance(columns, slice) else columns.searchsorted(at)
        pointer = np.concatenate([[0], np.cumsum(self.lengths)])
        marked = sparse.csr_array((np.ones(len(at), bool), at, pointer), shape=self.shape)
        return np.asarray(~marked.toarray())


def _boxes(mask: Any) -> Iterator[_Box]:
    """Boxes of BLOCK rows that cover the marked positions of ``mask`` (CSR, columns ascending)."""
    for first in range(0, mask.shape[0], BLOCK):
        rows = slice(first, min(first + BLOCK, mask.shape[0]))
        pointer = mask.indptr[first : rows.stop + 1]
        indices, lengths = mask.indices[pointer[0] : pointer[-1]], np.diff(pointer)
        if not len(indices):
            continue
        start, stop = int(indices.min()), int(indices.max()) + 1
        columns: slice | np.ndarray = slice(start, stop)
        if 2 * len(indices) < len(lengths) * (stop - start):
            runs = _runs(indices)
            if sum(after - at for at, after in runs) < runs[-1][1] - runs[0][0]:
                columns = np.concatenate([np.arange(at, min(after, mask.shape[1])) for at, after in runs])
        yield _Box(rows, columns, indices, lengths)


def _pattern(mask: Any) -> Any:
    """``mask`` as CSR with ascending columns and without stored zeros. The caller's object is not changed."""
    if not is_sparse(mask):
        mask = np.asarray(mask)
        if mask.ndim != 2:
            raise ValueError(f"mask of shape {mask.shape}: expected (m, n)")
    pattern = sparse.csr_array(mask)
    if pattern.has_canonical_format and pattern.data.all():
        return pattern
    pattern = pattern.copy()
    pattern.sum_duplicates()
    pattern.eliminate_zeros()
    return pattern


def _rows(a: Any) -> np.ndarray:
    """The row of each stored element of compressed rows."""
    return np.repeat(np.arange(a.shape[0]), np.diff(a.indptr))


def _of_rows(a: np.ndarray, b: np.ndarray, row: np.ndarray, column: np.ndarray) -> np.ndarray:
    """Elements (row, column) of the product of the few rows ``a`` with ``b``."""
    from trnpy._einsum.rows import matmul  # not at the top: trnpy.sparse must not load scipy.linalg

    values = np.empty(len(row), np.result_type(a, b))
    for start, stop in _runs(column):
        wanted = np.flatnonzero((column >= start) & (column < stop))
        if len(wanted) * SPARSEST < a.shape[0] * (stop - start):
            values[wanted] = _each(a, b, row[wanted], column[wanted])
        else:
            product = matmul(a, b[:, start : min(stop, b.shape[1])])
            values[wanted] = product[row[wanted], column[wanted] - start]
    return values


def _runs(column: np.ndarray) -> list[tuple[int, int]]:
    """(first, after) columns of the runs of adjacent blocks that contain ``column``; none is wider than WIDEST."""
    held = np.zeros(int(column.max(initial=-1)) // BLOCK + 1, bool)
    held[column >> BLOCK.bit_length() - 1] = True  # column // BLOCK takes five times as long
    blocks = np.flatnonzero(held)
    ends = np.flatnonzero(np.diff(blocks) > 1) + 1
    runs = []
    for part in np.split(blocks, ends) if len(blocks) else []:
        first, after = int(part[0]) * BLOCK, (int(part[-1]) + 1) * BLOCK
        runs += [(start, min(start + WIDEST, after)) for start in range(first, after, WIDEST)]
    return runs


def _each(a: np.ndarray, b: np.ndarray, row: np.ndarray, column: np.ndarray) -> np.ndarray:
    """Elements (row, column) of the product, each computed as a dot product."""
    step = max(1, GATHERED_BYTES // max(1, a.shape[1] * (a.itemsize + b.itemsize)))
    parts = [np.einsum("ik,ki->i", a[row[s : s + step]], b[:, column[s : s + step]]) for s in range(0, len(row), step)]
    return np.concatenate(parts) if parts else np.empty(0, np.result_type(a, b))


def _softmax(scores: Any) -> Any:
    """Softmax of each row over its stored positions; the row's largest score is subtracted first."""
    row = _rows(scores)
    largest = np.full(scores.shape[0], -np.inf, scores.dtype)
    np.maximum.at(largest, row, scores.data)
    e = np.exp(scores.data - largest[row])
    total = np.bincount(row, e, minlength=scores.shape[0])
    scores.data = (e / total[row]).astype(scores.dtype)
    return scores
