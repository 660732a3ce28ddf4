"""A X for a sparse A whose elements fill no tiles: rows of X are gathered, one for each stored element.

128 elements of one block row at a time: GpSimd writes the descriptors of their rows of X, ScalarE multiplies each row
by its element, and TensorE sums rows of X that belong to one row of A by a product with a matrix of zeros and ones.
So no two elements are ever scattered to one place. Bound by GpSimd's descriptors, in the model: 2.3 us for 128.
"""

import nki
import nki.isa as nisa
import nki.language as nl

from ..shared import rows
from ..shared.blocks import entry, flat, offsets

TILE = 128
TILE_N = 512  # columns of one PSUM bank


@nki.jit
def csr_spmm(values, row_of, column_of, x, bounds, unit=2):
    """(R 128, N) float32 from groups of 128 stored elements, none with elements of two block rows.

    values, row_of (128, slots) float32 and column_of (128, slots) int32: element by element its value, its row within
    the block row and its column; of an element that fills a group up value 0 and row -1. x (K, N) float32, finite;
    bounds (levels + 1, R) int32: which groups a block row has, as for bsr_spmm.
    """
    n, count = x.shape[1], bounds.shape[1]
    c = nl.ndarray((count * TILE, n), dtype=nl.float32, buffer=nl.shared_hbm)
    gathered, segments = [], []
    for _ in range(2 * unit):
        gathered.append(nl.ndarray((TILE, n), dtype=nl.float32, buffer=nl.sbuf))
        segments.append(nl.ndarray((TILE, TILE), dtype=nl.float32, buffer=nl.sbuf))
    integers = nl.ndarray((TILE, TILE), dtype=nl.int32, buffer=nl.sbuf)
    nisa.iota(dst=integers, pattern=[[1, TILE]], offset=0)
    numbers = nl.ndarray((TILE, TILE), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=numbers, src=integers, engine=nisa.engine.vector)
    out = nl.ndarray((TILE, n), dtype=nl.float32, buffer=nl.sbuf)
    plan = {
        "x": x, "n": n, "out": out, "gathered": gathered, "segments": segments, "numbers": numbers,
        "tables": (values, row_of, column_of),
    }  # fmt: skip
    c_at = offsets(pattern=[[TILE * n, count]], start=0)

    def row(r):
        nisa.memset(dst=out, value=0.0, engine=nisa.engine.vector)
        rows.turns(plan=plan, bounds=bounds, r=r, unit=unit, load=_gather, multiply=_multiply, start=_start)
        place = entry(table=c_at, t=r)
        nisa.dma_copy(
            dst=flat(c).ap(pattern=[[n, TILE], [1, n]], offset=0, scalar_offset=place, indirect_dim=0), src=out
        )

    nl.fori_loop(0, nisa.register_alloc(count), row)
    return c


def _gather(plan, slots, j, ahead):
    """The rows of X of groups j + ahead on, times their elements, and which of them belong to which row."""
    for q in range(len(slots)):
        here = []
        for table in plan["tables"]:
            here.append(rows.column(table=table, j=j, ahead=ahead + q))
        n, gathered = plan["n"], plan["gathered"][slots[q]]
        source = plan["x"].ap(pattern=[[n, TILE], [1, n]], offset=0, vector_offset=here[2], indirect_dim=0)
        nisa.dma_copy(dst=gathered, src=source)
        # Not by VectorE: what waits for a gather must not keep the next one's places waiting.
        nisa.activation(dst=gathered, op=nl.copy, data=gathered, scale=here[0])
        nisa.tensor_scalar(dst=plan["segments"][slots[q]], data=plan["numbers"], op0=nl.equal, operand0=here[1])


def _start(plan):
    """PSUM of one loop body."""
    n, banks = plan["n"], []
    for n0 in range(0, n, TILE_N):
        banks.append(nl.ndarray((TILE, min(TILE_N, n - n0)), dtype=nl.float32, buffer=nl.psum))
    plan["banks"] = banks


def _multiply(plan, slots):
    """Add the rows of some groups to the sums."""
    out, banks = plan["out"], plan["banks"]
    for q in range(len(slots)):
        for b in range(len(banks)):
            nisa.nc_matmul(
                dst=banks[b], stationary=plan["segments"][slots[q]],
                moving=plan["gathered"][slots[q]][:, b * TILE_N : b * TILE_N + banks[b].shape[1]],
                is_stationary_onezero=True, accumulate=q > 0,
            )  # fmt: skip
    for b in range(len(banks)):
        here = out[:, b * TILE_N : b * TILE_N + banks[b].shape[1]]
        nisa.tensor_tensor(dst=here, data1=here, data2=banks[b], op=nl.add)
