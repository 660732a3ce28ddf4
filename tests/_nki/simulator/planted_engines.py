"""Small kernels with one planted bug that a launch shows: rules of the engines and of two cores."""

from __future__ import annotations

import numpy as np

from tests._nki.simulator.planted import Planted, normal
from tests._nki.simulator.planted_runs import PAIR, SMALL, kernel

ENGINES = (
    Planted(
        23,
        "E",
        kernel(
            "a, b",
            """
left = fetch(a)
right = fetch(b)
bank = psum((128, 640), nl.float32)
nisa.nc_matmul(dst=bank, stationary=left, moving=right)
return put(right)
""",
        ),
        (normal(128, 128), normal(128, 640)),
        note="columns",
    ),
    Planted(
        23,
        "E",
        kernel(
            "a, b",
            """
left = fetch(a)
right = fetch(b)
bank = psum((128, 512), nl.float32)
half = sbuf((128, 128), nl.bfloat16)
nisa.tensor_copy(dst=half, src=left)
nisa.nc_matmul(dst=bank, stationary=half, moving=right)
return put(right)
""",
        ),
        PAIR,
        note="mixed types",
    ),
    Planted(
        23,
        "E",
        kernel(
            "a, b",
            """
left = fetch(a)
right = fetch(b)
bank = sbuf((128, 512), nl.float32)
nisa.nc_matmul(dst=bank, stationary=left, moving=right)
return put(bank)
""",
        ),
        PAIR,
        note="dst in sbuf",
    ),
    Planted(
        24,
        "E",
        kernel(
            "a, b",
            """
left = fetch(a)
right = fetch(b)
bank = psum((a.shape[1], b.shape[1]), nl.float32)
nisa.nc_matmul(dst=bank, stationary=left, moving=right, accumulate=True)
done = sbuf(bank.shape, nl.float32)
nisa.tensor_copy(dst=done, src=bank)
return put(done)
""",
        ),
        PAIR,
        note="first adds",
    ),
    Planted(
        24,
        "E",
        kernel(
            "a, b",
            """
left = fetch(a)
right = fetch(b)
bank = psum((a.shape[1], b.shape[1]), nl.float32)
nisa.memset(dst=bank, value=0.0)
nisa.nc_matmul(dst=bank, stationary=left, moving=right, accumulate=True)
done = sbuf(bank.shape, nl.float32)
nisa.tensor_copy(dst=done, src=bank)
return put(done)
""",
        ),
        PAIR,
        note="memset then add",
    ),
    Planted(
        24,
        "W",
        kernel(
            "a, b",
            """
left = fetch(a)
right = fetch(b)
bank = psum((a.shape[1], b.shape[1]), nl.float32)
nisa.nc_matmul(dst=bank, stationary=left, moving=right, accumulate=False)
seen = sbuf(bank.shape, nl.float32)
nisa.tensor_copy(dst=seen, src=bank)
nisa.nc_matmul(dst=bank, stationary=left, moving=right, accumulate=True)
done = sbuf(bank.shape, nl.float32)
nisa.tensor_copy(dst=done, src=bank)
return put(done)
""",
        ),
        PAIR,
        note="read between",
    ),
    Planted(
        25,
        "E",
        kernel(
            "x",
            """
t = fetch(x)
u = psum((64, 64), nl.bfloat16)
nisa.nc_transpose(dst=u, data=t, engine=nisa.engine.tensor)
return put(t)
""",
        ),
        SMALL,
        note="types",
    ),
    Planted(
        25,
        "E",
        kernel(
            "x",
            """
t = fetch(x)
u = sbuf((64, 64), nl.float32)
nisa.nc_transpose(dst=u, data=t, engine=nisa.engine.vector)
return put(u)
""",
        ),
        SMALL,
        note="vector block",
    ),
    Planted(
        26,
        "E",
        kernel(
            "a, b",
            """
left = fetch(a)
right = fetch(b)
bank = psum((a.shape[1], b.shape[1]), nl.float32)
nisa.nc_matmul(dst=bank, stationary=left, moving=right, is_stationary_onezero=True)
done = sbuf(bank.shape, nl.float32)
nisa.tensor_copy(dst=done, src=bank)
return put(done)
""",
        ),
        PAIR,
        note="onezero",
    ),
    Planted(
        27,
        "E",
        kernel(
            "a, b",
            """
left = fetch(a)
right = fetch(b)
bank = psum((a.shape[1], b.shape[1]), nl.float32)
nisa.nc_matmul(dst=bank, stationary=left, moving=right)
done = sbuf(bank.shape, nl.float32)
nisa.tensor_tensor(dst=done, data1=bank, data2=bank, op=nl.add)
return put(done)
""",
        ),
        PAIR,
        note="both in psum",
    ),
    Planted(
        27,
        "E",
        kernel(
            "a, b",
            """
left = fetch(a)
right = fetch(b)
bank = psum((a.shape[1], b.shape[1]), nl.float32)
nisa.nc_matmul(dst=bank, stationary=left, moving=right)
done = sbuf(bank.shape, nl.float32)
nisa.tensor_copy(dst=done, src=bank, engine=nisa.engine.gpsimd)
return put(done)
""",
        ),
        PAIR,
        note="gpsimd",
    ),
    Planted(
        28,
        "E",
        kernel(
            "x",
            """
t = fetch(x)
u = sbuf((64, 1), nl.float32)
nisa.memset(dst=u, value=1.0)
nisa.tensor_tensor(dst=t, data1=t, data2=u, op=nl.add)
return put(t)
""",
        ),
        SMALL,
        note="broadcast",
    ),
    Planted(
        28,
        "E",
        kernel(
            "x",
            """
t = fetch(x)
nisa.tensor_scalar(dst=t, data=t, op0=nl.bitwise_and, operand0=1)
return put(t)
""",
        ),
        SMALL,
        note="bits of floats",
    ),
    Planted(
        29,
        "E",
        kernel(
            "x",
            """
t = fetch(x)
u = sbuf((1, 64), nl.float32)
nisa.tensor_reduce(dst=u, data=t, op=nl.add, axis=0)
return put(t)
""",
        ),
        SMALL,
        note="axis 0",
    ),
    Planted(
        29,
        "E",
        kernel(
            "x",
            """
t = fetch(x)
u = sbuf((64, 1), nl.float32)
nisa.activation(dst=t, op=nl.exp, data=t, reduce_op=nl.maximum, reduce_res=u)
return put(t)
""",
        ),
        SMALL,
        note="activation max",
    ),
    Planted(
        30,
        "E",
        kernel(
            "x",
            """
t = fetch(x)
nisa.activation(dst=t, op=nl.exp, data=t, bias=1.0)
return put(t)
""",
        ),
        SMALL,
        "trn1",
        note="scalar bias",
    ),
    Planted(
        30,
        "E",
        kernel(
            "x",
            """
t = fetch(x)
u = sbuf(x.shape, nl.float32)
nisa.tensor_copy(dst=u, src=t, engine=nisa.engine.scalar)
return put(u)
""",
        ),
        SMALL,
        "trn1",
        note="scalar copy",
    ),
    Planted(
        31,
        "E",
        kernel(
            "x",
            """
t = sbuf((64, 64), nl.int32)
nisa.memset(dst=t, value=2.0)
return put(t)
""",
        ),
        SMALL,
        note="literal",
    ),
    Planted(
        32,
        "W",
        kernel(
            "x",
            """
t = fetch(x)
nisa.tensor_scalar(dst=t, data=t, op0=nl.add, operand0=1.0)
return put(t)
""",
        ),
        (np.full((8, 8), 2**24 + 1, np.int32),),
        note="large integers",
    ),
    Planted(
        33,
        "E",
        kernel(
            "x",
            """
t = fetch(x)
nisa.activation(dst=t, op=nl.sqrt, data=t)
return put(t)
""",
        ),
        SMALL,
        note="negative sqrt",
    ),
    Planted(
        34,
        "E",
        kernel(
            "a, b",
            """
left = fetch(a)
right = fetch(b)
bank = psum((a.shape[1], b.shape[1]), nl.float32)
nisa.nc_matmul(dst=bank, stationary=left, moving=right)
out = nl.ndarray(bank.shape, dtype=nl.float32, buffer=nl.shared_hbm)
nl.store(out, value=bank)
return out
""",
        ),
        PAIR,
        note="store psum",
    ),
    Planted(
        35,
        "W",
        kernel(
            "x",
            """
t = fetch(x)
for _ in range(8):
    nisa.activation(dst=t, op=nl.exp, data=t, scale=0.1)
    nisa.activation(dst=t, op=nl.sqrt, data=t)
return put(t)
""",
        ),
        SMALL,
        note="tables",
    ),
    Planted(
        36,
        "E",
        kernel(
            "x",
            """
t = fetch(x)
u = sbuf((64, 8), nl.float32)
nisa.max8(dst=u, src=t[:, 0:4])
return put(u)
""",
        ),
        SMALL,
        note="max8",
    ),
    Planted(
        36,
        "E",
        kernel(
            "x",
            """
t = fetch(x)
p = sbuf(x.shape, nl.float32)
nisa.memset(dst=p, value=1.0)
nisa.tensor_copy_predicated(dst=t, src=t, predicate=p)
return put(t)
""",
        ),
        SMALL,
        note="predicate",
    ),
    Planted(
        37,
        "E",
        kernel(
            "x",
            """
t = fetch(x)
return put(t)
""",
        ),
        SMALL,
        "trn1",
        2,
        note="two cores on trn1",
    ),
    Planted(
        37,
        "E",
        kernel(
            "x",
            """
t = fetch(x)
return put(t)
""",
        ),
        SMALL,
        lnc=2,
        note="both write",
    ),
)
