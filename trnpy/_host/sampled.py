"""Elements of a matrix product at scattered positions, each by a dot product in a compiled loop."""

from __future__ import annotations

import numpy as np

from trnpy._host import compiled

# Single elements are computed if at most one in SPARSEST is wanted. A multiply-add costs 0.1 to 0.2 ns here, and
# 0.04 ns in a whole product in BLAS on one thread (AMD EPYC, 2026-11).
SPARSEST = 12
BLOCK = 128  # rows and columns of the blocks that ``block_mask_matmul`` otherwise multiplies


def sampled_products(a: np.ndarray, b: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray | None:
    """Elements (rows, columns) of the product of a (m, k) and b (k, n); None if computing whole blocks is faster."""
    loops = compiled.loops()
    if loops is None or a.dtype != b.dtype or a.dtype.char not in "fd" or not a.dtype.isnative:
        return None
    if len(rows) * SPARSEST > a.shape[0] * b.shape[1] or len(rows) * SPARSEST > _covered(rows, columns):
        return None
    out = np.empty(len(rows), a.dtype)
    narrow = [np.ascontiguousarray(x, np.int32) for x in (rows, columns)]
    loops.dots(np.ascontiguousarray(a), np.ascontiguousarray(b.T), *narrow, out)
    return out


def _covered(rows: np.ndarray, columns: np.ndarray) -> int:
    """Number of elements in the blocks that contain any of the positions."""
    if not len(rows):
        return 1
    held = np.zeros((int(rows.max()) // BLOCK + 1, int(columns.max()) // BLOCK + 1), bool)
    held[rows // BLOCK, columns // BLOCK] = True
    return int(np.count_nonzero(held)) * BLOCK**2


ROUTES = {"sampled_products": sampled_products}
