"""Self-tests of undocumented hardware behaviour that trnpy's products rely on, one small kernel each.

Each kernel accepts 128 rows and returns the hardware's result; the host compares it (trnpy/_cli/probes.py).
"""

import nki
import nki.isa as nisa
import nki.language as nl

from ..shared.blocks import flat, identity_of, turn, turned_format

ROWS = 128
ROUNDER = 1.5 * 2.0**23  # adding and subtracting it rounds to the nearest integer
HALF = 128.0
BASE = 256.0


@nki.jit
def exact_sums(a, b):
    """(128, N) float32 sums over K of a (K, 128) b (K, N) in bfloat16, in one PSUM bank however long K is."""
    k, n = b.shape
    out = nl.ndarray((ROWS, n), dtype=nl.float32, buffer=nl.shared_hbm)
    bank = nl.ndarray((ROWS, n), dtype=nl.float32, buffer=nl.psum)
    for k0 in range(0, k, ROWS):
        left = nl.ndarray((ROWS, ROWS), dtype=a.dtype, buffer=nl.sbuf)
        right = nl.ndarray((ROWS, n), dtype=b.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=left, src=a[k0 : k0 + ROWS, :])
        nisa.dma_copy(dst=right, src=b[k0 : k0 + ROWS, :])
        nisa.nc_matmul(dst=bank, stationary=left, moving=right, accumulate=k0 > 0)
    result = nl.ndarray((ROWS, n), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=result, src=bank, engine=nisa.engine.vector)
    nisa.dma_copy(dst=out, src=result)
    return out


@nki.jit
def float32_products(a, b):
    """(128, N) float32 product of a (128, 128) and b (128, N) float32."""
    n = b.shape[1]
    out = nl.ndarray((ROWS, n), dtype=nl.float32, buffer=nl.shared_hbm)
    left = nl.ndarray((ROWS, ROWS), dtype=nl.float32, buffer=nl.sbuf)
    right = nl.ndarray((ROWS, n), dtype=nl.float32, buffer=nl.sbuf)
    bank = nl.ndarray((ROWS, n), dtype=nl.float32, buffer=nl.psum)
    result = nl.ndarray((ROWS, n), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=left, src=a)
    nisa.dma_copy(dst=right, src=b)
    nisa.nc_matmul(dst=bank, stationary=left, moving=right, accumulate=False)
    nisa.tensor_copy(dst=result, src=bank, engine=nisa.engine.vector)
    nisa.dma_copy(dst=out, src=result)
    return out


@nki.jit
def rounding(x):
    """(256, N) float32: (x + M) - M of x (128, N) by ScalarE, then by VectorE."""
    out, source = _answer(x=x, answers=2)
    moved = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.sbuf)
    back = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=moved, op=nl.copy, data=source, bias=ROUNDER)
    nisa.activation(dst=back, op=nl.copy, data=moved, bias=-ROUNDER)
    nisa.dma_copy(dst=out[0:ROWS, :], src=back)
    moved = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.sbuf)
    back = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=moved, data=source, op0=nl.add, operand0=ROUNDER)
    nisa.tensor_scalar(dst=back, data=moved, op0=nl.subtract, operand0=ROUNDER)
    nisa.dma_copy(dst=out[ROWS : 2 * ROWS, :], src=back)
    return out


@nki.jit
def integer_sums(x, y):
    """(128, N) int32: x + y of x, y (128, N) int32 by GpSimd."""
    out, left = _answer(x=x, answers=1)
    right = nl.ndarray(y.shape, dtype=nl.int32, buffer=nl.sbuf)
    total = nl.ndarray(x.shape, dtype=nl.int32, buffer=nl.sbuf)
    nisa.dma_copy(dst=right, src=y)
    nisa.tensor_tensor(dst=total, data1=left, data2=right, op=nl.add, engine=nisa.engine.gpsimd)
    nisa.dma_copy(dst=out, src=total)
    return out


@nki.jit
def byte_reads(x, width):
    """(256, N) bfloat16: every ``width``-th byte of x (128, width N) uint8 less 128, by ScalarE, then by VectorE."""
    n = x.shape[1] // width
    out = nl.ndarray((2 * ROWS, n), dtype=nl.bfloat16, buffer=nl.shared_hbm)
    source = nl.ndarray(x.shape, dtype=nl.uint8, buffer=nl.sbuf)
    nisa.dma_copy(dst=source, src=x)
    digits = nl.ndarray((ROWS, n), dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.activation(dst=digits, op=nl.copy, data=source[:, 0 : width * n : width], bias=-HALF)
    nisa.dma_copy(dst=out[0:ROWS, :], src=digits)
    digits = nl.ndarray((ROWS, n), dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=digits, data=source[:, 0 : width * n : width], op0=nl.subtract, operand0=HALF)
    nisa.dma_copy(dst=out[ROWS : 2 * ROWS, :], src=digits)
    return out


@nki.jit
def denormals(x):
    """(256, N) float32: x (128, N) times one, by ScalarE, then by VectorE."""
    out, source = _answer(x=x, answers=2)
    same = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=same, op=nl.copy, data=source, scale=1.0)
    nisa.dma_copy(dst=out[0:ROWS, :], src=same)
    same = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=same, data=source, op0=nl.multiply, operand0=1.0)
    nisa.dma_copy(dst=out[ROWS : 2 * ROWS, :], src=same)
    return out


@nki.jit
def remainders(x):
    """(128, N) float32: x - 256 rint(x / 256) of x (128, N), the quotient rounded by a cast to int32."""
    out, source = _answer(x=x, answers=1)
    quotient = nl.ndarray(x.shape, dtype=nl.int32, buffer=nl.sbuf)
    rest = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=quotient, data=source, op0=nl.multiply, operand0=1.0 / BASE)
    nisa.scalar_tensor_tensor(dst=rest, data=quotient, op0=nl.multiply, operand0=-BASE, op1=nl.add, operand1=source)
    nisa.dma_copy(dst=out, src=rest)
    return out


@nki.jit
def transposes(x):
    """(128, 128) bfloat16: x^T of x (128, 128) by TensorE, into PSUM of the format that kernels use."""
    out, source = _answer(x=x, answers=1)
    bank = nl.ndarray((ROWS, ROWS), dtype=turned_format(dtype=x.dtype), buffer=nl.psum)
    result = nl.ndarray((ROWS, ROWS), dtype=x.dtype, buffer=nl.sbuf)
    turn(dst=bank, data=source, identity=identity_of(dtype=x.dtype))
    nisa.tensor_copy(dst=result, src=bank, engine=nisa.engine.vector)
    nisa.dma_copy(dst=out, src=result)
    return out


@nki.jit
def repeated_rows(x, at):
    """(128, N) float32: on every partition the N numbers of x (128, N) float32 from element at (1, 1) int32 on."""
    out, n = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.shared_hbm), x.shape[1]
    here = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.dma_copy(dst=here, src=at)
    rows = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.sbuf)
    source = flat(x).ap(pattern=[[0, ROWS], [1, n]], offset=0, scalar_offset=here, indirect_dim=0)
    nisa.dma_copy(dst=rows, src=source)
    nisa.dma_copy(dst=out, src=rows)
    return out


@nki.jit
def register_offsets(x):
    """x (turns, N) float32, copied row by row in a device loop whose register is the offset."""
    turns, n = x.shape
    out = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.shared_hbm)

    def turn(t):
        row = nl.ndarray((1, n), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=row, src=x.ap(pattern=[[n, 1], [1, n]], offset=0, scalar_offset=t, indirect_dim=0))
        nisa.dma_copy(dst=out.ap(pattern=[[n, 1], [1, n]], offset=0, scalar_offset=t, indirect_dim=0), src=row)

    nl.fori_loop(0, nisa.register_alloc(turns), turn)
    return out


@nki.jit
def sums_of_loops(a, b):
    """(2 turns, 128 N) float32: a[t]^T b of a (turns, 128 * 128) and b (128, N) in bfloat16, by two successive loops.

    PSUM of each loop is allocated in its body; the second may reuse the memory of the first.
    """
    turns, n = a.shape[0], b.shape[1]
    out = nl.ndarray((2 * turns, ROWS * n), dtype=nl.float32, buffer=nl.shared_hbm)
    right = nl.ndarray(b.shape, dtype=b.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=right, src=b)

    def first(t):
        _multiplied(a=a, right=right, out=out, t=t, offset=0)

    def second(t):
        _multiplied(a=a, right=right, out=out, t=t, offset=turns * ROWS * n)

    nl.fori_loop(0, nisa.register_alloc(turns), first)
    nl.fori_loop(0, nisa.register_alloc(turns), second)
    return out


def _multiplied(a, right, out, t, offset):
    """a[t]^T right to row t of out, ``offset`` elements on."""
    n = right.shape[1]
    left = nl.ndarray((ROWS, ROWS), dtype=a.dtype, buffer=nl.sbuf)
    bank = nl.ndarray((ROWS, n), dtype=nl.float32, buffer=nl.psum)
    total = nl.ndarray((ROWS, n), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=left, src=a.ap(pattern=[[ROWS, ROWS], [1, ROWS]], offset=0, scalar_offset=t, indirect_dim=0))
    nisa.nc_matmul(dst=bank, stationary=left, moving=right, accumulate=False)
    nisa.nc_matmul(dst=bank, stationary=left, moving=right, accumulate=True)
    nisa.tensor_copy(dst=total, src=bank, engine=nisa.engine.vector)
    target = out.ap(pattern=[[n, ROWS], [1, n]], offset=offset, scalar_offset=t, indirect_dim=0)
    nisa.dma_copy(dst=target, src=total)


def _answer(x, answers):
    """A result with ``answers`` times the rows of x, in its dtype, and x on the chip."""
    out = nl.ndarray((answers * ROWS, x.shape[1]), dtype=x.dtype, buffer=nl.shared_hbm)
    source = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=source, src=x)
    return out, source
