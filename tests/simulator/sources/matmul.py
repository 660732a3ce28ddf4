"""A matrix product in 128 x 128 x 512 tiles, for any dtype that TensorEngine multiplies."""

import nki
import nki.isa as nisa
import nki.language as nl

K_TILE, M_TILE, N_TILE = 128, 128, 512


@nki.jit
def matmul(lhs_t, rhs):
    """lhs_t (K, M)^T @ rhs (K, N), all multiples of the tile; float32 (M, N)."""
    k_total, m_total = lhs_t.shape
    n_total = rhs.shape[1]
    out = nl.ndarray((m_total, n_total), dtype=nl.float32, buffer=nl.shared_hbm)
    for m in range(m_total // M_TILE):
        columns = []
        for k in range(k_total // K_TILE):
            tile = nl.ndarray((K_TILE, M_TILE), dtype=lhs_t.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=tile, src=lhs_t[k * K_TILE : (k + 1) * K_TILE, m * M_TILE : (m + 1) * M_TILE])
            columns.append(tile)
        for n in range(n_total // N_TILE):
            product = nl.ndarray((M_TILE, N_TILE), dtype=nl.float32, buffer=nl.psum)
            for k in range(k_total // K_TILE):
                tile = nl.ndarray((K_TILE, N_TILE), dtype=rhs.dtype, buffer=nl.sbuf)
                nisa.dma_copy(dst=tile, src=rhs[k * K_TILE : (k + 1) * K_TILE, n * N_TILE : (n + 1) * N_TILE])
                nisa.nc_matmul(dst=product, stationary=columns[k], moving=tile, accumulate=(k > 0))
            result = nl.ndarray((M_TILE, N_TILE), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_copy(dst=result, src=product)
            nisa.dma_copy(dst=out[m * M_TILE : (m + 1) * M_TILE, n * N_TILE : (n + 1) * N_TILE], src=result)
    return out
