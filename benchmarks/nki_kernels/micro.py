"""The smallest kernels that AWS printed profiles of: one transfer, one activation, one addition."""

import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def exponential(x):
    """exp of one tile: DMA in, ScalarEngine, DMA out (DMA overview, examples 1 and 2)."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    here = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    done = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=here, src=x)
    nisa.activation(dst=done, op=nl.exp, data=here)
    nisa.dma_copy(dst=out, src=done)
    return out


@nki.jit
def chain(x, length=8):
    """Activations of one element that each wait for the one before (performance guide)."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    here = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=here, src=x)
    bias = nl.ndarray((x.shape[0], 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=bias, value=0.0)
    for _ in range(length):
        nisa.activation(dst=here, op=nl.exp, data=here, bias=bias)
    nisa.dma_copy(dst=out, src=here)
    return out


@nki.jit
def addition(x, y):
    """One VectorEngine addition of two SBUF tiles (performance guide)."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    left = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    right = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=left, src=x)
    nisa.dma_copy(dst=right, src=y)
    nisa.tensor_tensor(dst=left, data1=left, data2=right, op=nl.add)
    nisa.dma_copy(dst=out, src=left)
    return out


@nki.jit
def transfer(x):
    """HBM to SBUF and back, nothing else: the size curve of the DMA overview."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    here = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=here, src=x)
    nisa.dma_copy(dst=out, src=here)
    return out
