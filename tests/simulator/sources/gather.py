"""Rows of a table by index, and a loop that runs on the device."""

import nki
import nki.isa as nisa
import nki.language as nl
from shapes import ROWS, column


@nki.jit
def gather(table, indices):
    """table[indices] for up to 128 indices of shape (P, 1)."""
    count, width = indices.shape[0], table.shape[1]
    assert count <= ROWS
    out = nl.ndarray((count, width), dtype=table.dtype, buffer=nl.shared_hbm)
    index = nl.ndarray((count, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.dma_copy(dst=index, src=indices)
    rows = nl.ndarray((count, width), dtype=table.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=rows, src=table.ap(pattern=[[width, count], [1, width]], vector_offset=index, indirect_dim=0))
    nisa.dma_copy(dst=out, src=rows)
    return out


@nki.jit
def scatter(values, indices, out):
    """out[indices] = values, in place."""
    count, width = values.shape
    index = column(indices)
    rows = nl.ndarray((count, width), dtype=values.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=rows, src=values)
    nisa.dma_copy(dst=out.ap(pattern=[[width, count], [1, width]], vector_offset=index, indirect_dim=0), src=rows)
    return out


@nki.jit
def doubled_columns(data, count):
    """Columns 0 to count of a (1, N) row times two, the others zero; count is read on the device."""
    n = data.shape[1]
    out = nl.ndarray((1, n), dtype=nl.float32, buffer=nl.shared_hbm)
    zeros = nl.zeros((1, n), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=out, src=zeros)
    bound = nisa.register_alloc()
    nisa.register_load(bound, column(count))
    element = nl.ndarray((1, 1), dtype=nl.float32, buffer=nl.sbuf)

    def body(i):
        nisa.dma_copy(dst=element, src=data.ap([[1, 1], [1, 1]], scalar_offset=i, indirect_dim=1))
        nisa.tensor_tensor(dst=element, data1=element, data2=element, op=nl.add)
        nisa.dma_copy(dst=out.ap([[1, 1], [1, 1]], scalar_offset=i, indirect_dim=1), src=element)

    nl.fori_loop(0, bound, body)
    return out
