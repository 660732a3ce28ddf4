"""What schwarz_screened_spmm.py computes, in NumPy, and the limits it is checked against."""

from __future__ import annotations

import numpy as np

from trnpy._nki.kernels.products import digits_matmul_reference as product

LARGEST = product.LARGEST // 2  # elements of 4 bytes
TILE, TILE_N = 128, product.TILE_N
MOST_COUNT = 2**24  # which float32 holds exactly, with all integers below


def check(a: np.ndarray, b: np.ndarray, counts: np.ndarray, words: int, k_tiles: int) -> None:
    """ValueError says what the kernel does not take."""
    form = "float32" if a.ndim == 2 else "bfloat16"
    if a.ndim != b.ndim or a.shape[:-1] != b.shape[:-1] or 0 in a.shape + b.shape:
        raise ValueError(f"a {a.shape} and b {b.shape}: expected one K and number of digits, none of them zero")
    if a.dtype.name != form or b.dtype != a.dtype:
        raise ValueError(f"{a.dtype} and {b.dtype}: expected {form}")
    k, m = a.shape[-2:]
    if k % (2 * TILE * k_tiles) or k > MOST_COUNT:
        raise ValueError(f"K = {k}: expected a multiple of {2 * TILE * k_tiles}, at most {MOST_COUNT}")
    if counts.shape != (1, m) or counts.dtype != np.float32:
        raise ValueError(f"counts {counts.dtype}{counts.shape}: expected float32 (1, {m})")
    if a.ndim == 3:
        product.check(a, b, False, words)
    if max(a.size, b.size, m * b.shape[-1] * (words if a.ndim == 3 else 1)) > LARGEST:
        raise ValueError(f"a {a.shape} and b {b.shape}: at most {LARGEST} elements each")


def turns_of(counts: np.ndarray, n: int, m_tiles: int = 4, k_tiles: int = 2) -> np.ndarray:
    """(1, blocks) int32: turns of 256 k_tiles rows of K that each block of the result needs."""
    step = 2 * TILE * k_tiles

    def cut(extent: int, block: int) -> list[list[slice]]:
        """Blocks of one size, and what is left, as the kernel visits them."""
        full = extent // block * block
        whole = [slice(i, i + block) for i in range(0, full, block)]
        return [x for x in (whole, [slice(full, extent)] if full < extent else []) if x]

    found = [
        -(-int(counts[0, rows].max()) // step)
        for row_blocks in cut(counts.shape[1], m_tiles * TILE)
        for column_blocks in cut(n, TILE_N)
        for _ in column_blocks
        for rows in row_blocks
    ]
    return np.array([found], np.int32)


def schwarz_screened_spmm(a, b, counts, turns=None, words=3):  # type: ignore[no-untyped-def]
    """A^T B of a (K, M) and b (K, N) with column i of a kept to its first counts[i] rows; of digits its words."""
    check(a, b, counts, words, 1)
    kept = np.arange(a.shape[-2])[:, None] < counts
    if a.ndim == 2:
        return np.where(kept, a, 0).astype(np.float64).T @ b.astype(np.float64)
    x, y = np.where(kept, a.astype(np.float64), 0), b.astype(np.float64)
    sums = [sum(x[i].T @ y[d - i] for i in range(d + 1)).astype(np.int64) for d in range(len(a) - 1, -1, -1)]
    return product.to_words(sums, words)
