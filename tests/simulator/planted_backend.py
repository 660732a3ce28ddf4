"""Small kernels with one planted bug that a launch shows, and their twins: rules of the compiler's backend."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from nkisim.chip.dialects import PARSER, TRACER, TRACERS
from tests.simulator.planted import normal
from tests.simulator.planted_runs import pair

PRODUCT = (normal(128, 64), normal(128, 512, seed=1))
THREE = (normal(128, 64), normal(128, 64, seed=1))
TABLE = (normal(128, 64), np.arange(8, dtype=np.int32).reshape(1, 8))

HEAD = """
left, right = fetch(a), fetch(b)
total = sbuf((64, b.shape[1]), nl.float32)
nisa.memset(dst=total, value=0.0)
turns = nisa.register_alloc(3)
"""
SUM = """
    nisa.nc_matmul(dst=bank, stationary=left, moving=right, accumulate=False)
    nisa.tensor_tensor(dst=total, data1=total, data2=bank, op=nl.add)
"""
OUTSIDE = (
    HEAD
    + "bank = psum(total.shape, nl.float32)\ndef step(i):"
    + SUM
    + "nl.fori_loop(0, turns, step)\nreturn put(total)"
)
INSIDE = OUTSIDE.replace(
    "bank = psum(total.shape, nl.float32)\ndef step(i):", "def step(i):\n    bank = psum(total.shape, nl.float32)"
)

TWO_LOOPS = (
    HEAD
    + """
bank = psum(total.shape, nl.float32)
nisa.activation(dst=bank, op=nl.copy, data=total)
def first(i):
    nisa.tensor_tensor(dst=total, data1=total, data2=bank, op=nl.add)
def second(i):
    nisa.tensor_tensor(dst=total, data1=total, data2=bank, op=nl.subtract)
nl.fori_loop(0, turns, first)
nl.fori_loop(0, turns, second)
return put(total)
"""
)
SECOND = "def second(i):\n    nisa.tensor_tensor(dst=total, data1=total, data2=bank, op=nl.subtract)\n"
ONE_LOOP = TWO_LOOPS.replace(SECOND, "").replace("nl.fori_loop(0, turns, second)\n", "")

LOOKED_UP = """
t, table = fetch(x), fetch(places)
out = sbuf((128, 8), nl.float32)
turns = nisa.register_alloc(8)
def step(i):
    nisa.tensor_copy(dst=out[:, nl.ds(i, 1)], src=t[:, 0:1])
nl.fori_loop(0, turns, step)
return put(out)
"""
THROUGH_HBM = """
t = fetch(x)
found = nl.ndarray((8, 128), dtype=nl.float32, buffer=nl.shared_hbm)
turns = nisa.register_alloc(8)
def step(i):
    row = found.ap(pattern=[[1, 128], [1, 1]], scalar_offset=i, indirect_dim=0)
    nisa.dma_copy(dst=row, src=t[:, 0:1])
nl.fori_loop(0, turns, step)
return found
"""
REGISTER = """
t, table = fetch(x), fetch(places)
bound = nisa.register_alloc()
turns = nisa.register_alloc(1)
def step(i):
    nisa.register_load(bound, table[0:1, nl.ds(i, 1)])
nl.fori_loop(0, turns, step)
return put(t)
"""
REGISTER_OF_A_TILE = REGISTER.replace(
    "    nisa.register_load(bound, table[0:1, nl.ds(i, 1)])",
    "    here = sbuf((1, 1), nl.int32)\n"
    "    nisa.dma_copy(dst=here, src=places.ap(pattern=[[8, 1], [1, 1]], scalar_offset=i, indirect_dim=1))\n"
    "    nisa.register_load(bound, here)",
)
OFFSET_IN_A_TILE = """
t, table = fetch(x), fetch(places)
out = sbuf((128, 1), nl.float32)
nisa.tensor_copy(dst=out, src=t.ap(pattern=[[64, 128], [1, 1]], scalar_offset=table[0:1, 3:4], indirect_dim=1))
return put(out)
"""
OFFSET_OF_A_DMA = OFFSET_IN_A_TILE.replace("tensor_copy", "dma_copy").replace("src=t.ap", "src=x.ap")

COLUMN_OF_PSUM = """
left, right = fetch(a), fetch(b)
out = sbuf((64, 1), nl.float32)
turns = nisa.register_alloc(2)
def step(i):
    bank = psum((64, 64), nl.float32)
    nisa.nc_matmul(dst=bank, stationary=left, moving=right, accumulate=False)
    nisa.tensor_copy(dst=out, src=bank[:, nl.ds(i, 1)])
nl.fori_loop(0, turns, step)
return put(out)
"""
COLUMN_OF_HBM = COLUMN_OF_PSUM.replace(
    "    nisa.tensor_copy(dst=out, src=bank[:, nl.ds(i, 1)])",
    "    copied, sums = sbuf((64, 64), nl.float32), nl.ndarray((64, 64), dtype=nl.float32, buffer=nl.private_hbm)\n"
    "    nisa.tensor_copy(dst=copied, src=bank)\n"
    "    nisa.dma_copy(dst=sums, src=copied)\n"
    "    nisa.dma_copy(dst=out, src=sums.ap(pattern=[[64, 64], [1, 1]], scalar_offset=i, indirect_dim=1))",
)

CHAINS = """
left, right = fetch(a), fetch(b)
{banks}
for j in range(2):
    for q in range(2):
        nisa.nc_matmul(
            dst={bank}, stationary=left[:, 0:32], moving=right[:, WIDTH * j : WIDTH * j + WIDTH], accumulate=q > 0
        )
out = sbuf((32, 2 * WIDTH), nl.float32)
for j in range(2):
    nisa.tensor_copy(dst=out[:, WIDTH * j : WIDTH * j + WIDTH], src={bank})
return put(out)
"""
SIDE_BY_SIDE = CHAINS.format(
    banks="one = psum((32, 2 * WIDTH), nl.float32)", bank="one[:, WIDTH * j : WIDTH * j + WIDTH]"
)
ONE_EACH = CHAINS.format(
    banks="banks = []\nfor _ in range(2):\n    banks.append(psum((32, WIDTH), nl.float32))", bank="banks[j]"
)
INTERLEAVED = """
left, right = fetch(a), fetch(b)
one = psum((32, 2 * WIDTH), nl.float32)
for q in range(2):
    for j in range(2):
        here = one[:, WIDTH * j : WIDTH * j + WIDTH]
        nisa.nc_matmul(dst=here, stationary=left[:, 0:32], moving=right[:, 0:WIDTH], accumulate=q > 0)
out = sbuf((32, 2 * WIDTH), nl.float32)
nisa.tensor_copy(dst=out, src=one)
return put(out)
"""
STARTED_ONLY = INTERLEAVED.replace("range(2):\n    for j", "range(1):\n    for j")


def of_columns(width: int, source: str) -> str:
    """Sums of products of ``width`` columns each."""
    return source.replace("WIDTH", str(width))


INFERRED = """
left, right = fetch(a), fetch(b)
bank, out = psum((64, 64), nl.float32), sbuf((64, 64), nl.float32)
for _ in range(2):
    nisa.nc_matmul(dst=bank, stationary=left, moving=right)
    nisa.tensor_copy(dst=out, src=bank)
return put(out)
"""
SAID = INFERRED.replace("moving=right)", "moving=right, accumulate=False)")

STATIC_LOAD = """
out = sbuf(x.shape, nl.float32)
turns = nisa.register_alloc(2)
def step(i):
    t = sbuf(x.shape, nl.float32)
    nisa.dma_copy(dst=t, src=x)
    nisa.tensor_copy(dst=out, src=t)
nl.fori_loop(0, turns, step)
return put(out)
"""
DYNAMIC_LOAD = """
out = sbuf((64, 64), nl.float32)
turns = nisa.register_alloc(2)
def step(i):
    t = sbuf((64, 64), nl.float32)
    nisa.dma_copy(dst=t, src=x.ap(pattern=[[64, 64], [1, 64]], scalar_offset=i, indirect_dim=0))
    nisa.tensor_copy(dst=out, src=t)
nl.fori_loop(0, turns, step)
return put(out)
"""
GATHER = "x.ap(pattern=[[64, 128], [1, 64]], vector_offset=where, indirect_dim=0)"
SKIPPING = f"""
where, out = fetch(i), sbuf((128, 64), nl.float32)
nisa.memset(dst=out, value=0.0)
turns = nisa.register_alloc(2)
def step(j):
    nisa.dma_copy(dst=out, src={GATHER}, oob_mode=nisa.oob_mode.skip)
nl.fori_loop(0, turns, step)
return put(out)
"""
CLAMPED = SKIPPING.replace(", oob_mode=nisa.oob_mode.skip", "")
BIG = """
t = fetch(x)
big = nl.ndarray(({rows}, 8192), dtype=nl.float32, buffer=nl.private_hbm)
nisa.dma_copy(dst=big[0:128, 0:64], src=t)
return put(t)
"""
NESTED = """
t, u = fetch(x), sbuf(x.shape, nl.float32)
turns = nisa.register_alloc(2)
def inner(j):
    nisa.tensor_copy(dst=u, src=t)
def outer(i):
    nl.fori_loop(0, turns, inner)
nl.fori_loop(0, turns, outer)
return put(u)
"""
UNROLLED = NESTED.replace("def inner(j):\n    nisa.tensor_copy(dst=u, src=t)\n", "").replace(
    "    nl.fori_loop(0, turns, inner)", "    for j in range(2):\n        nisa.tensor_copy(dst=u, src=t)"
)
LONG = """
t = fetch(x)
def step(i):
    nisa.tensor_copy(dst=t, src=t)
nl.fori_loop({first}, {first}, step)
return put(t)
"""
BOTH_IN_PSUM = """
left, right = fetch(a), fetch(b)
banks, out = [], sbuf((64, 64), nl.float32)
for _ in range(2):
    banks.append(psum((64, 64), nl.float32))
    nisa.nc_matmul(dst=banks[-1], stationary=left, moving=right, accumulate=False)
nisa.scalar_tensor_tensor(dst=out, data=banks[0], op0=nl.multiply, operand0=2.0, op1=nl.add, operand1={second})
return put(out)
"""
TURNED = """
t = fetch(x)
bank, out = psum((64, 128), {dtype}), sbuf((64, 128), nl.bfloat16)
nisa.nc_transpose(dst=bank, data=t, engine=nisa.engine.tensor)
nisa.tensor_copy(dst=out, src=bank)
return put(out)
"""
SLOTS = """
t = fetch(x)
bank, out = psum((3, 8), nl.bfloat16), sbuf((3, 5), nl.bfloat16)
nisa.nc_transpose(dst=bank[:, {first} : {first} + 5], data=t, engine=nisa.engine.tensor)
nisa.tensor_copy(dst=out, src=bank[:, {first} : {first} + 5])
return put(out)
"""
MISFIT = """
t = sbuf(({rows}, {columns}), nl.float32)
nisa.dma_copy(dst=t, src=x)
return put(t)
"""
ON_GPSIMD = """
t, u = fetch(x), sbuf(x.shape, nl.float32)
nisa.tensor_tensor(dst=u, data1=t, data2=t, op=nl.add, engine=nisa.engine.{engine})
return put(u)
"""
BY_DMA = """
t = sbuf((64, 16), nl.float32)
nisa.dma_transpose(dst=t, src=x[0:16, 0:64])
return put(t)
"""
STORED = """
t, r = fetch(x), nisa.register_alloc(7)
there = nl.ndarray((1, 1), dtype=nl.int32, buffer={memory})
nisa.register_store(there, r)
return put(t)
"""
FUNCTIONS = """
t = fetch(x)
for op in [nl.exp, nl.tanh, nl.sigmoid, nl.relu, nl.gelu, nl.silu, nl.square, nl.softplus, {ninth}]:
    nisa.activation(dst=t, op=op, data=t)
return put(t)
"""
PLACED = """
t = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf, address=(0, 0))
nisa.dma_copy(dst=t, src=x)
u = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf{address})
nisa.tensor_copy(dst=u, src=t)
return put(u)
"""
SQUARES = """
t, sums, squares = fetch(x), sbuf((128, 1), nl.float32), sbuf((128, 64), nl.float32)
{statements}
return put(sums)
"""
ACROSS = """
t = fetch(x)
u = sbuf((32, 64), nl.float32)
{copy}(dst=u, src=t[32:64])
return put(u)
"""
STAGED = """
source = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
total = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
nisa.dma_copy(dst=source, src=x)
ncc.all_reduce([source], [total], ncc.ReplicaGroup([[0]]), nl.add)
nisa.dma_copy(dst=out, src=total)
return out
"""
OF_AN_INPUT = STAGED.replace("all_reduce([source]", "all_reduce([x]")
INTO_AN_OUTPUT = STAGED.replace("return out", "return total")
IN_TURNS = STAGED.replace("ncc.all", "turns = nisa.register_alloc(3)\ndef step(i):\n    ncc.all").replace(
    "nisa.dma_copy(dst=out", "nl.fori_loop(0, turns, step)\nnisa.dma_copy(dst=out"
)


def again(source: str, total: str) -> str:
    """Two collectives; the second one has these buffers, of which ``fresh`` and ``other`` are its own."""
    made = "".join(
        f"{name} = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.private_hbm)\nnisa.dma_copy(dst={name}, src=x)\n"
        for name in sorted({source, total} & {"fresh", "other"})
    )
    second = f"ncc.all_reduce([{source}], [{total}], ncc.ReplicaGroup([[0]]), nl.add)\n"
    return STAGED.replace("nisa.dma_copy(dst=out", made + second + "nisa.dma_copy(dst=out")


IN_SBUF = """
t, total = fetch(x), sbuf(x.shape, x.dtype)
ncc.all_reduce([t], [total], ncc.ReplicaGroup([[0]]), nl.add)
return put(total)
"""
SCRATCH = """
t = fetch(x)
scratch = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.private_hbm)
return put(t)
"""
USED = SCRATCH.replace("return", "nisa.dma_copy(dst=scratch, src=t)\nreturn")
SCATTERED = """
out = nl.ndarray((128, 128), dtype=x.dtype, buffer=nl.shared_hbm)
sums = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.private_hbm)
nisa.dma_copy(dst=sums, src=x)
t, where = fetch(x), fetch(i)
{between}
there = sums.ap(pattern=[[64, 128], [1, 64]], vector_offset=where, indirect_dim=0)
nisa.dma_compute(dst=there, srcs=[there, t], reduce_op=nl.add{mode})
core = nl.program_id(0)
nisa.dma_copy(dst=out[:, core * 64 : (core + 1) * 64], src=sums)
return out
"""
BARRIER = "nisa.core_barrier(data=out, cores=[0, 1])"
PART = """
out = nl.ndarray((128, 128), dtype=x.dtype, buffer=nl.shared_hbm)
t, where = fetch(x), fetch(i)
u = sbuf({tile}, nl.float32)
nisa.tensor_copy(dst=u[:, 0:64], src=t)
sums = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.private_hbm)
there = sums.ap(pattern=[[64, 128], [1, 64]], vector_offset=where, indirect_dim=0)
nisa.dma_copy(dst=there, src=u[:, 0:64], oob_mode=nisa.oob_mode.skip)
core = nl.program_id(0)
nisa.dma_copy(dst=out[:, core * 64 : (core + 1) * 64], src=t)
return out
"""
LOOPS = """
out = nl.ndarray((128, 128), dtype=x.dtype, buffer=nl.shared_hbm)
t = fetch(x)
core = nl.program_id(0)
turns = nisa.register_alloc({turns})
def step(i):
    nisa.tensor_copy(dst=t, src=t)
{condition}nl.fori_loop(0, turns, step)
nisa.dma_copy(dst=out[:, core * 64 : (core + 1) * 64], src=t)
return out
"""
ONE_CORE_LOOPS = LOOPS.format(turns=3, condition="if core == 0:\n    ")
NO_TURN_ON_ONE = LOOPS.format(turns="3 * (1 - core)", condition="")
UNEQUAL = LOOPS.format(turns="3 + core", condition="")
EQUAL = LOOPS.format(turns=3, condition="")
TWO_ROWS = """
where, out = fetch(i), sbuf((64, 128), nl.float32)
nisa.dma_copy(dst=out, src=x.ap(pattern=[[64, 64], [1, 128]], vector_offset=where, indirect_dim=0))
return put(out)
"""
ONE_WIDE_ROW = TWO_ROWS.replace("x.ap(pattern=[[64,", "x.reshape((64, 128)).ap(pattern=[[128,")
EIGHT_BITS = """
t, narrow, back = fetch(x), sbuf(x.shape, nl.{dtype}), sbuf(x.shape, x.dtype)
nisa.tensor_copy(dst=narrow, src=t)
nisa.tensor_copy(dst=back, src=narrow)
return put(back)
"""
LARGEST = """
t, top, where, rest = fetch(x), sbuf((128, 8), nl.float32), sbuf((128, 8), nl.uint32), sbuf((128, 64), nl.float32)
nisa.max8(dst=top, src=t)
{statements}
return put(where)
"""
HALF = (normal(128, 64).astype(ml_dtypes.bfloat16),)
FIVE = (normal(5, 3).astype(ml_dtypes.bfloat16),)
X = (normal(128, 64),)
WIDE = (normal(16, 67),)
GATHERED = (normal(128, 64), np.arange(128, dtype=np.int32).reshape(128, 1))
FIRST_ROW = (normal(128, 64), np.zeros((64, 1), np.int32))
ROWS_OF_X = "x, i"

BACKEND = (
    pair(40, "E", "psum outside", "a, b", OUTSIDE, INSIDE, PRODUCT),
    pair(40, "E", "psum of two loops", "a, b", TWO_LOOPS, ONE_LOOP, PRODUCT),
    pair(41, "E", "operand", "x, places", LOOKED_UP, THROUGH_HBM, TABLE, "trn1"),
    pair(41, "W", "operand", "x, places", LOOKED_UP, THROUGH_HBM, TABLE, "trn2 trn3"),
    pair(41, "E", "register_load", "x, places", REGISTER, REGISTER_OF_A_TILE, TABLE, "trn1"),
    pair(41, "E", "offset in a tile", "x, places", OFFSET_IN_A_TILE, OFFSET_OF_A_DMA, TABLE, nki=(PARSER, TRACER)),
    pair(41, "E", "psum operand", "a, b", COLUMN_OF_PSUM, COLUMN_OF_HBM, THREE, "trn1"),
    pair(41, "W", "psum operand", "a, b", COLUMN_OF_PSUM, COLUMN_OF_HBM, THREE, "trn2 trn3"),
    *(
        pair(42, severity, f"{name}, {width} columns", "a, b", of_columns(width, bad), of_columns(width, good), THREE,
             targets)
        for name, bad, good in (("side by side", SIDE_BY_SIDE, ONE_EACH), ("interleaved", INTERLEAVED, STARTED_ONLY))
        for severity, width, targets in (("E", 16, "trn1"), ("W", 17, "trn1"), ("W", 16, "trn2 trn3"))
    ),
    pair(43, "E", "inferred", "a, b", INFERRED, SAID, THREE),
    pair(44, "E", "static load", "x", STATIC_LOAD, DYNAMIC_LOAD, X),
    pair(44, "E", "skip", ROWS_OF_X, SKIPPING, CLAMPED, GATHERED),
    pair(45, "E", "tensor", "x", BIG.format(rows=65537), BIG.format(rows=128), X),
    pair(46, "W", "nested", "x", NESTED, UNROLLED, X),
    pair(57, "W", "constant bound", "a, b", INSIDE.replace("(0, turns,", "(0, 3,"), INSIDE, PRODUCT),
    pair(47, "E", "bound", "x", LONG.format(first=2**31), LONG.format(first=2**31 - 1), X, nki=TRACERS),
    pair(48, "E", "functions", "x", FUNCTIONS.format(ninth="nl.erf"), FUNCTIONS.format(ninth="nl.exp"), X),
    pair(49, "E", "addresses", "x", PLACED.format(address=""), PLACED.format(address=", address=(0, 256)"), X),
    pair(50, "E", "sum of squares", "x",
         SQUARES.format(statements="nisa.activation_reduce(dst=squares, op=nl.square, data=t, reduce_op=nl.add, "
         "reduce_res=sums)"), SQUARES.format(statements="nisa.activation(dst=squares, op=nl.square, data=t)\n"
         "nisa.tensor_reduce(dst=sums, op=nl.add, data=squares, axis=1)"), X, "trn1"),
    pair(50, "E", "sum of squares by activation", "x",
         SQUARES.format(statements="nisa.activation(dst=squares, op=nl.square, data=t, reduce_op=nl.add, "
         "reduce_res=sums, reduce_cmd=nisa.reduce_cmd.reset_reduce)"),
         SQUARES.format(statements="nisa.activation(dst=squares, op=nl.square, data=t)\n"
         "nisa.tensor_reduce(dst=sums, op=nl.add, data=squares, axis=1)"), X, "trn1"),
    pair(50, "E", "replaced with positions", "x",
         LARGEST.format(statements="nisa.nc_match_replace8(dst=rest, data=t, vals=top, imm=0.0, dst_idx=where)"),
         LARGEST.format(statements="nisa.nc_find_index8(dst=where, data=t, vals=top)\n"
         "nisa.nc_match_replace8(dst=rest, data=t, vals=top, imm=0.0)"), X, "trn1"),
    pair(50, "E", "across partitions", "x", ACROSS.format(copy="nisa.tensor_copy"),
         ACROSS.format(copy="nisa.dma_copy"), X, "trn1"),
    pair(25, "E", "transpose on trn1", "x", TURNED.format(dtype="nl.bfloat16"), TURNED.format(dtype="nl.float32"),
         HALF, "trn1"),
    pair(25, "E", "transpose on trn2", "x", TURNED.format(dtype="nl.float32"), TURNED.format(dtype="nl.bfloat16"),
         HALF, "trn2 trn3"),
    pair(30, "E", "register stored", "x", STORED.format(memory="nl.sbuf"), STORED.format(memory="nl.private_hbm"), X,
         "trn1"),
    pair(11, "E", "unaligned slot", "x", SLOTS.format(first=1), SLOTS.format(first=2), FIVE, "trn2 trn3"),
    pair(18, "E", "partitions", "x", MISFIT.format(rows=64, columns=128), MISFIT.format(rows=128, columns=64), X),
    pair(30, "E", "floats on gpsimd", "x", ON_GPSIMD.format(engine="gpsimd"), ON_GPSIMD.format(engine="vector"), X,
         "trn1"),
    pair(21, "E", "row stride", "x", BY_DMA, BY_DMA.replace("src=x[0:16, 0:64]", "src=whole").replace(
         "nisa.dma_transpose", "whole = nl.ndarray((16, 64), dtype=nl.float32, buffer=nl.private_hbm)\n"
         "nisa.dma_copy(dst=whole, src=x[0:16, 0:64])\nnisa.dma_transpose"), WIDE),
    pair(27, "E", "two in psum", "a, b", BOTH_IN_PSUM.format(second="banks[1]"),
         BOTH_IN_PSUM.format(second="out").replace(
             "nisa.scalar", "nisa.tensor_copy(dst=out, src=banks[1])\nnisa.scalar"),
         THREE),
    pair(51, "E", "of an input", "x", OF_AN_INPUT, STAGED, X),
    pair(51, "E", "into an output", "x", INTO_AN_OUTPUT, STAGED, X),
    pair(51, "E", "in SBUF", "x", IN_SBUF, STAGED, X, "trn1"),
    pair(58, "E", "one destination", "x", again("fresh", "total"), again("fresh", "other"), X),
    pair(58, "E", "source and destination", "x", again("total", "source"), again("total", "other"), X),
    pair(58, "W", "one source", "x", again("source", "other"), again("fresh", "other"), X),
    pair(58, "E", "loop of collectives", "x", IN_TURNS, STAGED, X),
    pair(52, "E", "scratch", "x", SCRATCH, USED, X),
    pair(53, "E", "not landed", ROWS_OF_X, SCATTERED.format(between="", mode=""),
         SCATTERED.format(between=BARRIER, mode=""), GATHERED, "trn2 trn3", lnc=2),
    pair(53, "E", "skipped", ROWS_OF_X, SCATTERED.format(between=BARRIER, mode=", oob_mode=nisa.oob_mode.skip"),
         SCATTERED.format(between=BARRIER, mode=""), GATHERED, "trn2 trn3", lnc=2),
    pair(53, "W", "part of a tile", ROWS_OF_X, PART.format(tile="(128, 65)"), PART.format(tile="(128, 64)"), GATHERED,
         "trn2 trn3", lnc=2),
    pair(54, "E", "loop of one core", "x", ONE_CORE_LOOPS, NO_TURN_ON_ONE, X, "trn2 trn3", lnc=2),
    pair(54, "E", "unequal turns", "x", UNEQUAL, EQUAL, X, "trn2 trn3", lnc=2),
    pair(55, "E", "two rows", ROWS_OF_X, TWO_ROWS, ONE_WIDE_ROW, FIRST_ROW, "trn1"),
    pair(55, "W", "two rows", ROWS_OF_X, TWO_ROWS, ONE_WIDE_ROW, FIRST_ROW, "trn2 trn3"),
    pair(56, "E", "e4m3fn", "x", EIGHT_BITS.format(dtype="float8_e4m3fn"), EIGHT_BITS.format(dtype="float8_e4m3"), X,
         "trn1 trn2"),
)  # fmt: skip
