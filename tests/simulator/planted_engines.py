"""Small kernels with one planted bug that a launch shows, and their twins: rules of the engines and of two cores."""

from __future__ import annotations

import numpy as np

from tests.simulator.planted import normal
from tests.simulator.planted_runs import PAIR, SMALL, X, copied, made, pair

SUM = """
left, right = fetch(a), fetch(b)
bank, done = psum((128, 512), nl.float32), sbuf((128, 512), nl.float32)
{before}nisa.nc_matmul(dst=bank, stationary=left, moving=right{options})
{after}return put(done)
"""
READ = "nisa.tensor_copy(dst=done, src=bank)\n"
FIRST = "nisa.nc_matmul(dst=bank, stationary=left, moving=right, accumulate=False)\n"


def product(options: str = "", before: str = "", after: str = READ) -> str:
    """A product of a and b: further options of it, and what comes before and after it."""
    return SUM.format(options=options, before=before, after=after)


TURNED = """
t, u = fetch(x), {buffer}({shape}, nl.{dtype})
nisa.nc_transpose(dst=u, data={data}, engine=nisa.engine.{engine})
return put(t)
"""
BOTH_WRITE = """
out, t = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm), fetch(x)
nisa.tensor_scalar(dst=t, data=t, op0=nl.add, operand0=1.0 * nl.program_id(0))
nisa.dma_copy(dst=out, src=t)
return out
"""
HALF_EACH = BOTH_WRITE.replace("dma_copy(dst=out, src=t)", "dma_copy(dst=out[half, :], src=t[half, :])").replace(
    "nisa.tensor_scalar", "half = slice(64 * nl.program_id(0), 64 * nl.program_id(0) + 64)\nnisa.tensor_scalar"
)

ENGINES = (
    pair(23, "E", "columns", "a, b", """
left, right = fetch(a), fetch(b)
bank = psum((128, 640), nl.float32)
nisa.nc_matmul(dst=bank, stationary=left, moving=right)
return put(right)
""", {"(128, 640)": "(128, 512)", "moving=right": "moving=right[:, 0:512]"}, (normal(128, 128), normal(128, 640)),
         "trn1 trn2"),
    pair(23, "E", "mixed types", "a, b",
         product(before="half = sbuf((128, 128), nl.bfloat16)\nnisa.tensor_copy(dst=half, src=left)\n").replace(
             "stationary=left", "stationary=half"), {"stationary=half": "stationary=left"}, PAIR),
    pair(23, "E", "dst in sbuf", "a, b", product(after="").replace("dst=bank", "dst=done"), product(), PAIR),
    pair(24, "E", "first adds", "a, b", product(", accumulate=True"), {"=True": "=False"}, PAIR),
    pair(24, "E", "memset then add", "a, b", product(", accumulate=True", "nisa.memset(dst=bank, value=0.0)\n"),
         {"=True": "=False"}, PAIR, "trn1 trn2"),
    pair(24, "W", "read between", "a, b", product(", accumulate=True", FIRST + READ),
         product(", accumulate=True", FIRST), PAIR),
    pair(25, "E", "types", "x", TURNED.format(buffer="psum", shape=(64, 64), dtype="bfloat16", data="t",
                                              engine="tensor"), {"nl.bfloat16": "nl.float32"}, SMALL),
    pair(25, "E", "vector block", "x", TURNED.format(buffer="sbuf", shape=(64, 64), dtype="float32", data="t",
                                                     engine="vector"),
         {"(64, 64)": "(32, 32)", "data=t": "data=t[0:32, 0:32]"}, SMALL),
    pair(26, "E", "onezero", "a, b", product(", is_stationary_onezero=True"), {"onezero=True": "onezero=False"}, PAIR),
    pair(27, "E", "both in psum", "a, b",
         product(after="nisa.tensor_tensor(dst=done, data1=bank, data2=bank, op=nl.add)\n"),
         product(after=READ + "nisa.tensor_tensor(dst=done, data1=done, data2=bank, op=nl.add)\n"), PAIR),
    pair(27, "E", "gpsimd", "a, b", product(after=READ.replace(")", ", engine=nisa.engine.gpsimd)")),
         {"engine.gpsimd": "engine.vector"}, PAIR),
    pair(28, "E", "broadcast", "x",
         copied("u = sbuf((64, 1), nl.float32)", "nisa.memset(dst=u, value=1.0)",
                "nisa.tensor_tensor(dst=t, data1=t, data2=u, op=nl.add)"),
         {"tensor_tensor(dst=t, data1=t, data2=u, op=nl.add)": "tensor_scalar(dst=t, data=t, op0=nl.add, operand0=u)"},
         SMALL),
    pair(28, "E", "bits of floats", "x", copied("nisa.tensor_scalar(dst=t, data=t, op0=nl.bitwise_and, operand0=1)"),
         {"nl.bitwise_and, operand0=1": "nl.maximum, operand0=1.0"}, SMALL),
    pair(29, "E", "axis 0", "x",
         copied("u = sbuf((1, 64), nl.float32)", "nisa.tensor_reduce(dst=u, data=t, op=nl.add, axis=0)"),
         {"(1, 64)": "(64, 1)", "axis=0": "axis=1"}, SMALL),
    pair(29, "E", "activation max", "x",
         copied("u = sbuf((64, 1), nl.float32)",
                "nisa.activation(dst=t, op=nl.exp, data=t, reduce_op=nl.maximum, reduce_res=u, "
                "reduce_cmd=nisa.reduce_cmd.reset_reduce)"),
         {"nl.maximum": "nl.add"}, SMALL),
    pair(30, "E", "scalar bias", "x", copied("nisa.activation(dst=t, op=nl.exp, data=t, bias=1.0)"),
         {"nisa.activation": "ones = sbuf((64, 1), nl.float32)\nnisa.memset(dst=ones, value=1.0)\nnisa.activation",
          "bias=1.0": "bias=ones"}, SMALL, "trn1"),
    pair(30, "E", "scalar copy", "x", "t, u = fetch(x), sbuf(x.shape, nl.float32)\n"
         "nisa.tensor_copy(dst=u, src=t, engine=nisa.engine.scalar)\nreturn put(u)",
         {"tensor_copy(dst=u, src=t, engine=nisa.engine.scalar)": "activation(dst=u, op=nl.copy, data=t)"}, SMALL,
         "trn1"),
    pair(31, "E", "literal", "x", made("(64, 64)", "nl.int32", "nisa.memset(dst=t, value=2.0)"), {"2.0": "2"}, SMALL),
    pair(32, "W", "large integers", "x", *[copied("nisa.tensor_scalar(dst=t, data=t, op0=nl.add, operand0=1.0)")] * 2,
         (np.full((8, 8), 2**24 + 1, np.int32),), right_args=(np.full((8, 8), 2**24 - 1, np.int32),)),
    pair(33, "E", "negative sqrt", "x", *[copied("nisa.activation(dst=t, op=nl.sqrt, data=t)")] * 2, SMALL,
         right_args=(abs(SMALL[0]),)),
    pair(34, "E", "store psum", "a, b", """
left, right = fetch(a), fetch(b)
bank, done = psum((128, 512), nl.float32), sbuf((128, 512), nl.float32)
nisa.nc_matmul(dst=bank, stationary=left, moving=right)
nisa.tensor_copy(dst=done, src=bank)
out = nl.ndarray(bank.shape, dtype=nl.float32, buffer=nl.shared_hbm)
nl.store(out, value=bank)
return out
""", {"value=bank": "value=done"}, PAIR),
    pair(35, "W", "tables", "x",
         copied("for _ in range(8):", "    nisa.activation(dst=t, op=nl.exp, data=t, scale=0.1)",
                "    nisa.activation(dst=t, op=nl.sqrt, data=t)"),
         {"    nisa.activation(dst=t, op=nl.sqrt": "for _ in range(8):\n    nisa.activation(dst=t, op=nl.sqrt"}, SMALL),
    pair(36, "E", "max8", "x", "t, u = fetch(x), sbuf((64, 8), nl.float32)\nnisa.max8(dst=u, src=t[:, 0:4])\n"
         "return put(u)", {"0:4": "0:8"}, SMALL),
    pair(36, "E", "predicate", "x",
         copied("p = sbuf(x.shape, nl.float32)", "nisa.memset(dst=p, value=1.0)",
                "nisa.tensor_copy_predicated(dst=t, src=t, predicate=p)"),
         {"nl.float32": "nl.uint8", "1.0": "1"}, SMALL),
    pair(37, "E", "two cores on trn1", "x", copied(), copied(), SMALL, "trn1", lnc=2, right_lnc=1),
    pair(37, "E", "both write", "x", BOTH_WRITE, HALF_EACH, X, "trn2 trn3", lnc=2),
)  # fmt: skip
