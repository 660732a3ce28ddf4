"""Small kernels with one planted bug that a launch shows, and their twins: rules of memory and DMA."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.simulator.planted import Planted, normal

X = (normal(128, 512),)
SMALL = (normal(64, 64),)
FROM_TRN2 = ("trn2", "trn3")


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


def pair(
    rule: int, severity: str, note: str, parameters: str, wrong: str, right: str | Mapping[str, str],
    arrays: tuple[Any, ...], targets: str = "trn1 trn2 trn3", **more: Any,
) -> Planted:  # fmt: skip
    """Statements with a bug and without: ``right`` is the other statements, or what to replace in the wrong ones."""
    if not isinstance(right, str):
        changed = wrong
        for old, new in right.items():
            assert old in changed, (note, old)
            changed = changed.replace(old, new)
        right = changed
    text, twin = kernel(parameters, wrong), kernel(parameters, right)
    return Planted(rule, severity, text, twin, arrays, note, tuple(targets.split()), **more)


ROWS = (normal(128, 64), np.arange(128, dtype=np.int32)[::-1].reshape(128, 1).copy())
TWICE = (normal(128, 64), np.zeros((128, 1), np.int32))
OUTSIDE = (normal(128, 64), np.full((128, 1), 999, np.int32))
PAIR = (normal(128, 128), normal(128, 512, seed=1))

KEPT = """
t, kept = fetch(x), {}
turns = nisa.register_alloc(2)
def step(i):
    u = sbuf((1, 1), nl.float32)
    nisa.memset(dst=u, value=1.0)
    kept['u'] = u
nl.fori_loop(0, turns, step)
nisa.tensor_copy(dst=t[0:1, 0:1], src=kept['u'])
return put(t)
"""
MADE_BEFORE = KEPT.replace("    u = sbuf((1, 1), nl.float32)\n", "").replace(
    "turns =", "u = sbuf((1, 1), nl.float32)\nturns ="
)
BANKS = """
left, right, banks = fetch(a), fetch(b), []
for n in range(9):
    banks.append(psum((128, 512), nl.float32))
    nisa.nc_matmul(dst=banks[n], stationary=left, moving=right)
done = sbuf((128, 512), nl.float32)
for n in range(9):
    nisa.tensor_copy(dst=done, src=banks[n])
return put(done)
"""
HALVES = """
low, both = fetch(x[0:64, :]), fetch(x)
d = sbuf((64, 512), nl.float32)
nisa.tensor_tensor(dst=d, data1=low, data2=both[64:128, :], op=nl.add)
return put(d)
"""
PRODUCT = """
left, right = fetch(a), fetch(b)
bank = psum((a.shape[1], b.shape[1]), nl.float32)
nisa.nc_matmul(dst=bank, stationary=left, moving=right)
return put(bank)
"""
GATHER = """
t, where, u = fetch(x), fetch(i), sbuf((128, 64), nl.float32)
nisa.memset(dst=u, value=0.0)
nisa.dma_copy(dst=u, src=x.ap(pattern=[[64, 128], [1, 64]], vector_offset=where, indirect_dim=0))
return put(u)
"""
SCATTER = """
t, where = fetch(x), fetch(i)
out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
nisa.dma_copy(dst=out.ap(pattern=[[64, 128], [1, 64]], vector_offset=where, indirect_dim=0), src=t)
return out
"""
SHORT_ROWS = """
t = sbuf((128, 128), nl.float32)
nisa.dma_copy(dst=t[:, 0:64], src=x[:, 0:64])
nisa.dma_copy(dst=t[:, 64:128], src=x[:, 64:128])
return put(t)
"""


def copied(*lines: str) -> str:
    """x through SBUF tile t, with the given lines in the middle."""
    return "\n".join(("t = fetch(x)", *lines, "return put(t)"))


def made(shape: str, dtype: str, *lines: str) -> str:
    """A tile t of this shape, with the given lines, as the result."""
    return "\n".join((f"t = sbuf({shape}, {dtype})", *lines, "return put(t)"))


MEMORY = (
    pair(7, "E", "tensor of a loop", "x", KEPT, MADE_BEFORE, X),
    pair(9, "W", "unrolled size", "x", copied("for _ in range(20001):", "    nisa.tensor_copy(dst=t, src=t)"),
         {"range(20001)": "range(19998)"}, (normal(2, 2),), "trn2"),
    pair(11, "E", "sbuf", "x", copied("big = sbuf((128, 70000), nl.float32)", "nisa.memset(dst=big, value=0.0)"),
         {"70000": "40000"}, X),
    pair(11, "E", "psum banks", "a, b", BANKS, {"range(9)": "range(8)"}, PAIR),
    pair(11, "E", "bank crossed", "a, b", """
left, right = fetch(a), fetch(b)
bank = psum((128, 1024), nl.float32)
nisa.nc_matmul(dst=bank[:, 256:768], stationary=left, moving=right)
return put(right)
""", {"256:768": "512:1024"}, PAIR, "trn1 trn2"),
    pair(12, "E", "partitions", "x", made("(256, 4)", "nl.float32", "nisa.memset(dst=t, value=0.0)"),
         {"(256, 4)": "(128, 8)"}, X),
    pair(12, "E", "start partition", "x", copied("nisa.memset(dst=t[16:48, :], value=0.0)"), {"16:48": "32:64"}, X),
    pair(12, "E", "partition step", "x", copied("nisa.memset(dst=t[0:128:2, :], value=0.0)"), {"0:128:2": "0:64"}, X),
    pair(12, "E", "permuted partitions", "x", "t = fetch(x)\nu = t.permute((1, 0))\nreturn put(u)",
         {"t.permute((1, 0))": "t.reshape((128, 2, 256)).permute((0, 2, 1))"}, X),
    pair(13, "E", "base partition", "x", HALVES, {"both[64:128, :]": "both[0:64, :]"}, X),
    pair(14, "E", "first stride", "x", copied("nisa.memset(dst=t.ap([[8, 8], [1, 4]]), value=0.0)"),
         {"[[8, 8]": "[[512, 8]"}, X),
    pair(15, "E", "returns sbuf", "x", "t = fetch(x)\nreturn t", {"return t": "return put(t)"}, X),
    pair(15, "E", "half written", "x", """
t, out = fetch(x), nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
nisa.dma_copy(dst=out[0:64, :], src=t[0:64, :])
return out
""", {"[0:64, :]": ""}, X),
    pair(16, "E", "float", "x", made("(128, 4)", "nl.float32"),
         {"return": "nisa.memset(dst=t, value=0.0)\nreturn"}, X),
    pair(16, "E", "integer", "x", made("(128, 4)", "nl.int32", "nisa.memset(dst=t[:, 0:3], value=1)"),
         {"[:, 0:3]": ""}, X),
    pair(17, "W", "shifted copy", "x", copied("nisa.tensor_copy(dst=t[:, 1:512], src=t[:, 0:511])"),
         {"1:512": "1:512:2", "0:511": "0:512:2"}, X),
    pair(18, "E", "psum", "a, b", PRODUCT,
         {"return put(bank)": "done = sbuf(bank.shape, nl.float32)\nnisa.tensor_copy(dst=done, src=bank)\n"
          "return put(done)"}, PAIR),
    pair(18, "E", "count", "x", made("(128, 500)", "nl.float32", "nisa.dma_copy(dst=t, src=x)"), {"500": "512"}, X),
    pair(18, "E", "hwdge cast", "x",
         made("x.shape", "nl.bfloat16", "nisa.dma_copy(dst=t, src=x, dge_mode=nisa.dge_mode.hwdge)"),
         {"nl.bfloat16": "x.dtype"}, X, "trn2 trn3"),
    pair(19, "E", "gather from sbuf", "x, i", GATHER.replace("x.ap", "t.ap"), GATHER, ROWS),
    pair(19, "E", "out of bounds", "x, i", GATHER,
         {"indirect_dim=0)": "indirect_dim=0), oob_mode=nisa.oob_mode.skip"}, OUTSIDE),
    pair(20, "E", "scatter", "x, i", SCATTER, SCATTER, TWICE, right_args=ROWS),
    pair(21, "E", "four bytes", "x",
         made("(64, 64)", "nl.float32", "nisa.dma_transpose(dst=t, src=x, dge_mode=nisa.dge_mode.hwdge)"),
         {", dge_mode=nisa.dge_mode.hwdge": ""}, SMALL, "trn2 trn3"),
    pair(22, "W", "short rows", "x", SHORT_ROWS,
         made("(128, 128)", "nl.float32", "nisa.dma_copy(dst=t, src=x[:, 0:128])"), X),
    pair(22, "W", "sbuf to sbuf", "x",
         "t, u = fetch(x), sbuf(x.shape, nl.float32)\nnisa.dma_copy(dst=u, src=t)\nreturn put(u)",
         {"nisa.dma_copy(dst=u": "nisa.tensor_copy(dst=u"}, X),
    pair(22, "W", "few partitions", "x", copied(), {"fetch(x)": "fetch(x.reshape((128, 128)))"}, (normal(4, 4096),)),
)  # fmt: skip
