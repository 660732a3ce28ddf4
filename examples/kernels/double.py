"""The first kernel of the tutorial in docs/kernels.md: 2 x."""

import nki
import nki.isa as nisa
import nki.language as nl

ROWS = 128  # of one tile: SBUF has 128 partitions


@nki.jit
def double_tile(x):
    """2 x of a matrix (M, N) that fits into one tile, M at most 128."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=2.0)
    nisa.dma_copy(dst=out, src=tile)
    return out


@nki.jit
def double(x):
    """2 x of a matrix (M, N), M a multiple of 128."""
    m, n = x.shape
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for row in range(0, m, ROWS):
        tile = nl.ndarray((ROWS, n), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[row : row + ROWS, :])
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=2.0)
        nisa.dma_copy(dst=out[row : row + ROWS, :], src=tile)
    return out
