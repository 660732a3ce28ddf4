"""The second kernel of the tutorial in docs/kernels.md: a matrix product, and the NumPy it is compared with."""

import nki
import nki.isa as nisa
import nki.language as nl
import numpy as np

TILE = 128  # rows of an operand on the tensor engine
COLUMNS = 512  # of float32 in one PSUM bank


@nki.jit
def product(a, b):
    """a^T b, float32, of a (K, M) and b (K, N) in bfloat16 or float32; K and M multiples of 128, N of 512."""
    k, m = a.shape
    _, n = b.shape
    out = nl.ndarray((m, n), dtype=nl.float32, buffer=nl.shared_hbm)
    for row in range(0, m, TILE):
        for column in range(0, n, COLUMNS):
            total = nl.ndarray((TILE, COLUMNS), dtype=nl.float32, buffer=nl.psum)
            for depth in range(0, k, TILE):
                left = nl.ndarray((TILE, TILE), dtype=a.dtype, buffer=nl.sbuf)
                right = nl.ndarray((TILE, COLUMNS), dtype=b.dtype, buffer=nl.sbuf)
                nisa.dma_copy(dst=left, src=a[depth : depth + TILE, row : row + TILE])
                nisa.dma_copy(dst=right, src=b[depth : depth + TILE, column : column + COLUMNS])
                nisa.nc_matmul(dst=total, stationary=left, moving=right, accumulate=depth > 0)
            result = nl.ndarray((TILE, COLUMNS), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_copy(dst=result, src=total)
            nisa.dma_copy(dst=out[row : row + TILE, column : column + COLUMNS], src=result)
    return out


@nki.jit
def product_loaded_once(a, b):
    """The same: each operand is loaded once, whole rows at a time, and stays in SBUF."""
    k, m = a.shape
    _, n = b.shape
    out = nl.ndarray((m, n), dtype=nl.float32, buffer=nl.shared_hbm)
    lefts, rights = [], []
    for depth in range(0, k, TILE):
        left = nl.ndarray((TILE, m), dtype=a.dtype, buffer=nl.sbuf)
        right = nl.ndarray((TILE, n), dtype=b.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=left, src=a[depth : depth + TILE, :])
        nisa.dma_copy(dst=right, src=b[depth : depth + TILE, :])
        lefts.append(left)
        rights.append(right)
    for row in range(0, m, TILE):
        result = nl.ndarray((TILE, n), dtype=nl.float32, buffer=nl.sbuf)
        for column in range(0, n, COLUMNS):
            total = nl.ndarray((TILE, COLUMNS), dtype=nl.float32, buffer=nl.psum)
            for step in range(k // TILE):
                nisa.nc_matmul(
                    dst=total, stationary=lefts[step][:, row : row + TILE],
                    moving=rights[step][:, column : column + COLUMNS], accumulate=step > 0,
                )  # fmt: skip
            nisa.tensor_copy(dst=result[:, column : column + COLUMNS], src=total)
        nisa.dma_copy(dst=out[row : row + TILE, :], src=result)
    return out


def reference(a, b):
    """What ``product`` returns, in float64."""
    return np.asarray(a, np.float64).T @ np.asarray(b, np.float64)
