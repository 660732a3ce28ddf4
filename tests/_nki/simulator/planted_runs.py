"""Small kernels with one planted bug that a launch shows: rules of memory and DMA, and the arrays to launch on."""

from __future__ import annotations

import textwrap

import numpy as np

from tests._nki.simulator.planted import Planted, body, normal

X = (normal(128, 512),)
SMALL = (normal(64, 64),)


def kernel(parameters: str, statements: str) -> str:
    """A kernel of the given statements; ``sbuf``, ``psum``, ``fetch`` and ``put`` make and move its tiles."""
    middle = textwrap.indent(statements.strip("\n"), "    ")
    return f"""
def sbuf(shape, dtype):
    return nl.ndarray(shape, dtype=dtype, buffer=nl.sbuf)


def psum(shape, dtype):
    return nl.ndarray(shape, dtype=dtype, buffer=nl.psum)


def fetch(source):
    tile = sbuf(source.shape, source.dtype)
    nisa.dma_copy(dst=tile, src=source)
    return tile


def put(tile):
    out = nl.ndarray(tile.shape, dtype=tile.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=tile)
    return out


@nki.jit
def kernel({parameters}):
{middle}
"""


ROWS = (normal(128, 64), np.arange(128, dtype=np.int32)[::-1].reshape(128, 1).copy())
TWICE = (normal(128, 64), np.zeros((128, 1), np.int32))
OUTSIDE = (normal(128, 64), np.full((128, 1), 999, np.int32))
PAIR = (normal(128, 128), normal(128, 512, seed=1))

MEMORY = (
    Planted(
        7,
        "E",
        kernel(
            "x",
            """
t = fetch(x)
kept = {}
def step(i):
    u = sbuf((1, 1), nl.float32)
    nisa.memset(dst=u, value=1.0)
    kept['u'] = u
nl.fori_loop(0, 2, step)
nisa.tensor_copy(dst=t[0:1, 0:1], src=kept['u'])
return put(t)
""",
        ),
        X,
        note="tensor of a loop",
    ),
    Planted(
        9,
        "W",
        kernel(
            "x",
            """
t = fetch(x)
for _ in range(20001):
    nisa.tensor_copy(dst=t, src=t)
return put(t)
""",
        ),
        (normal(2, 2),),
        note="unrolled size",
    ),
    Planted(
        11,
        "E",
        kernel(
            "x",
            """
t = fetch(x)
big = sbuf((128, 60000), nl.float32)
nisa.memset(dst=big, value=0.0)
return put(t)
""",
        ),
        X,
        note="sbuf",
    ),
    Planted(
        11,
        "E",
        kernel(
            "a, b",
            """
left = fetch(a)
right = fetch(b)
bank = psum((a.shape[1], b.shape[1]), nl.float32)
banks = []
for _ in range(9):
    banks.append(psum((128, 512), nl.float32))
for n in range(9):
    nisa.nc_matmul(dst=banks[n], stationary=left, moving=right)
done = sbuf((128, 512), nl.float32)
for n in range(9):
    nisa.tensor_copy(dst=done, src=banks[n])
return put(done)
""",
        ),
        PAIR,
        note="psum banks",
    ),
    Planted(
        11,
        "E",
        kernel(
            "a, b",
            """
left = fetch(a)
right = fetch(b)
bank = psum((128, 1024), nl.float32)
nisa.nc_matmul(dst=bank[:, 256:768], stationary=left, moving=right)
return put(right)
""",
        ),
        PAIR,
        note="bank crossed",
    ),
    Planted(
        12,
        "E",
        kernel(
            "x",
            """
t = sbuf((256, 4), nl.float32)
nisa.memset(dst=t, value=0.0)
return put(t)
""",
        ),
        X,
        note="partitions",
    ),
    Planted(
        12,
        "E",
        kernel(
            "x",
            """
t = fetch(x)
nisa.memset(dst=t[16:48, :], value=0.0)
return put(t)
""",
        ),
        X,
        note="start partition",
    ),
    Planted(
        12,
        "E",
        kernel(
            "x",
            """
t = fetch(x)
nisa.memset(dst=t[0:128:2, :], value=0.0)
return put(t)
""",
        ),
        X,
        note="partition step",
    ),
    Planted(
        12,
        "E",
        kernel(
            "x",
            """
t = fetch(x)
u = t.permute((1, 0))
return put(u)
""",
        ),
        X,
        note="permuted partitions",
    ),
    Planted(
        13,
        "E",
        kernel(
            "x",
            """
low = fetch(x[0:64, :])
both = fetch(x)
d = sbuf((64, 64), nl.float32)
nisa.tensor_tensor(dst=d, data1=low, data2=both[64:128, :], op=nl.add)
return put(d)
""",
        ),
        (normal(128, 64),),
        note="base partition",
    ),
    Planted(
        14,
        "E",
        kernel(
            "x",
            """
t = fetch(x)
nisa.memset(dst=t.ap([[8, 8], [1, 4]]), value=0.0)
return put(t)
""",
        ),
        X,
        note="first stride",
    ),
    Planted(
        15,
        "E",
        kernel(
            "x",
            """
t = fetch(x)
return t
""",
        ),
        X,
        note="returns sbuf",
    ),
    Planted(
        15,
        "E",
        kernel(
            "x",
            """
out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
t = fetch(x)
nisa.dma_copy(dst=out[0:64, :], src=t[0:64, :])
return out
""",
        ),
        X,
        note="half written",
    ),
    Planted(
        16,
        "E",
        kernel(
            "x",
            """
t = sbuf((128, 4), nl.float32)
return put(t)
""",
        ),
        X,
        note="float",
    ),
    Planted(
        16,
        "E",
        kernel(
            "x",
            """
t = sbuf((128, 4), nl.int32)
nisa.memset(dst=t[:, 0:3], value=1)
return put(t)
""",
        ),
        X,
        note="integer",
    ),
    Planted(
        17,
        "W",
        kernel(
            "x",
            """
t = fetch(x)
nisa.tensor_copy(dst=t[:, 1:512], src=t[:, 0:511])
return put(t)
""",
        ),
        X,
        note="shifted copy",
    ),
    Planted(
        18,
        "E",
        kernel(
            "a, b",
            """
left = fetch(a)
right = fetch(b)
bank = psum((a.shape[1], b.shape[1]), nl.float32)
nisa.nc_matmul(dst=bank, stationary=left, moving=right)
return put(bank)
""",
        ),
        PAIR,
        note="psum",
    ),
    Planted(
        18,
        "E",
        kernel(
            "x",
            """
t = sbuf((128, 500), nl.float32)
nisa.dma_copy(dst=t, src=x)
return put(t)
""",
        ),
        X,
        note="count",
    ),
    Planted(
        18,
        "E",
        kernel(
            "x",
            """
t = sbuf(x.shape, nl.bfloat16)
nisa.dma_copy(dst=t, src=x, dge_mode=nisa.dge_mode.hwdge)
return put(t)
""",
        ),
        X,
        note="hwdge cast",
    ),
    Planted(
        19,
        "E",
        kernel(
            "x, i",
            """
t = fetch(x)
where = fetch(i)
u = sbuf((128, 64), nl.float32)
nisa.dma_copy(dst=u, src=t.ap(pattern=[[64, 128], [1, 64]], vector_offset=where, indirect_dim=0))
return put(u)
""",
        ),
        ROWS,
        note="gather from sbuf",
    ),
    Planted(
        19,
        "E",
        kernel(
            "x, i",
            """
where = fetch(i)
u = sbuf((128, 64), nl.float32)
nisa.dma_copy(dst=u, src=x.ap(pattern=[[64, 128], [1, 64]], vector_offset=where, indirect_dim=0))
return put(u)
""",
        ),
        OUTSIDE,
        note="out of bounds",
    ),
    Planted(
        20,
        "E",
        kernel(
            "x, i",
            """
t = fetch(x)
where = fetch(i)
out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
nisa.dma_copy(dst=out.ap(pattern=[[64, 128], [1, 64]], vector_offset=where, indirect_dim=0), src=t)
return out
""",
        ),
        TWICE,
        note="scatter",
    ),
    Planted(
        21,
        "E",
        kernel(
            "x",
            """
t = sbuf((64, 64), nl.float32)
nisa.dma_transpose(dst=t, src=x, dge_mode=nisa.dge_mode.hwdge)
return put(t)
""",
        ),
        SMALL,
        note="four bytes",
    ),
    Planted(
        22,
        "W",
        kernel(
            "x",
            """
t = sbuf((128, 128), nl.float32)
nisa.dma_copy(dst=t[:, 0:64], src=x[:, 0:64])
nisa.dma_copy(dst=t[:, 64:128], src=x[:, 64:128])
return put(t)
""",
        ),
        X,
        note="short rows",
    ),
    Planted(
        22,
        "W",
        kernel(
            "x",
            """
t = fetch(x)
u = sbuf(x.shape, nl.float32)
nisa.dma_copy(dst=u, src=t)
return put(u)
""",
        ),
        X,
        note="sbuf to sbuf",
    ),
    Planted(
        22,
        "W",
        kernel(
            "x",
            """
t = fetch(x)
return put(t)
""",
        ),
        (normal(4, 4096),),
        note="few partitions",
    ),
)

CORRECT = (
    ("copy", body(), X, 1),
    (
        "even and odd",
        kernel(
            "x",
            """
t = fetch(x)
nisa.tensor_copy(dst=t[:, 0:512:2], src=t[:, 1:512:2])
return put(t)
""",
        ),
        X,
        1,
    ),
    (
        "two cores",
        """
@nki.jit
def kernel(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    core = nl.program_id(0)
    t = nl.ndarray((64, 512), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=t, src=x[core * 64 : (core + 1) * 64, :])
    nisa.dma_copy(dst=out[core * 64 : (core + 1) * 64, :], src=t)
    return out
""",
        X,
        2,
    ),
    (
        "gather",
        kernel(
            "x, i",
            """
where = fetch(i)
u = sbuf((128, 64), nl.float32)
nisa.dma_copy(dst=u, src=x.ap(pattern=[[64, 128], [1, 64]], vector_offset=where, indirect_dim=0))
return put(u)
""",
        ),
        ROWS,
        1,
    ),
)
