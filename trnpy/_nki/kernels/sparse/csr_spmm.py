"""A X for a sparse A without dense tiles: rows of X are gathered, one for each stored element.

128 elements of one block row at a time: GpSimd writes the descriptors of their rows of X, ScalarE multiplies each row
by its element, and TensorE sums rows of X that belong to one row of A by a product with a matrix of zeros and ones, so
that no scatter is needed. A launch has block rows with equal numbers of groups, unrolled while the program stays short.
Bound by GpSimd's descriptors, in the model: 2 us for 128.
"""

import nki
import nki.isa as nisa
import nki.language as nl

from ..shared.blocks import place, tile, view, walk

TILE = 128
TILE_N = 512  # columns of one PSUM bank
BANKS = 8
SLOTS = 4  # groups whose rows of X are on the chip; more hide no more latency (test_csr_spmm)


@nki.jit
def csr_spmm(values, row_of, column_of, x, length):
    """(R 128, N) float32 from groups of 128 stored elements, ``length`` groups for each of R block rows.

    values, row_of (128, R length) float32 and column_of (128, R length) int32: element by element its value, its row
    within the block row and its column; of an element that fills a group up value 0 and row -1. x (K, N) float32,
    finite.
    """
    n, slots = x.shape[1], values.shape[1]
    count = slots // length
    c = nl.ndarray((count * TILE, n), dtype=nl.float32, buffer=nl.shared_hbm)
    gathered, segments = [], []
    for _ in range(SLOTS):
        gathered.append(nl.ndarray((TILE, n), dtype=nl.float32, buffer=nl.sbuf))
        segments.append(nl.ndarray((TILE, TILE), dtype=nl.float32, buffer=nl.sbuf))
    integers = nl.ndarray((TILE, TILE), dtype=nl.int32, buffer=nl.sbuf)
    nisa.iota(dst=integers, pattern=[[1, TILE]], offset=0)
    numbers = nl.ndarray((TILE, TILE), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=numbers, src=integers, engine=nisa.engine.vector)
    columns = (n + TILE_N - 1) // TILE_N
    job = {
        "c": c, "x": x, "n": n, "length": length, "columns": columns, "gathered": gathered, "segments": segments,
        "numbers": numbers, "tables": (values, row_of, column_of), "groups": 0,
    }  # fmt: skip
    spots = ([([[length, count]], 0)], [([[TILE * n, count]], 0)])
    walk(job=job, start=_start, body=_row, spots=spots, steps=length * (3 + columns) + 2 * columns + 8)
    return c


def _start(job):
    """PSUM of an iteration."""
    n, banks = job["n"], []
    for _ in range(BANKS // job["columns"] * job["columns"]):
        banks.append(nl.ndarray((TILE, min(TILE_N, n)), dtype=nl.float32, buffer=nl.psum))
    job["banks"] = banks
    job["emptied"] = 0


def _row(job, at):
    """One block row of the result."""
    n, length = job["n"], job["length"]
    here = []
    for table in job["tables"]:
        found = nl.ndarray((TILE, length), dtype=table.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=found, src=view(x=table, at=at[0], pattern=[[table.shape[1], TILE], [1, length]]))
        here.append(found)
    banks = []
    for b in range(job["columns"]):
        bank = job["banks"][(job["emptied"] + b) % len(job["banks"])]
        banks.append(bank[:, 0 : min(TILE_N, n - b * TILE_N)])
    job["emptied"] = job["emptied"] + job["columns"]
    for q in range(length):
        slot = job["groups"] % SLOTS
        gathered, segment = job["gathered"][slot], job["segments"][slot]
        job["groups"] = job["groups"] + 1
        source = job["x"].ap(pattern=[[n, TILE], [1, n]], offset=0, vector_offset=here[2][:, q : q + 1], indirect_dim=0)
        nisa.dma_copy(dst=gathered, src=source)
        # Not on VectorE: an instruction that waits for a gather must not delay the offsets of the next gather.
        nisa.activation(dst=gathered, op=nl.copy, data=gathered, scale=here[0][:, q : q + 1])
        nisa.tensor_scalar(dst=segment, data=job["numbers"], op0=nl.equal, operand0=here[1][:, q : q + 1])
        for b in range(len(banks)):
            nisa.nc_matmul(
                dst=banks[b], stationary=segment, moving=gathered[:, b * TILE_N : b * TILE_N + banks[b].shape[1]],
                is_stationary_onezero=True, accumulate=q > 0,
            )  # fmt: skip
    out = tile(job=job, shape=(TILE, n), dtype=nl.float32)
    for b in range(len(banks)):
        nisa.tensor_copy(
            dst=out[:, b * TILE_N : b * TILE_N + banks[b].shape[1]], src=banks[b], engine=nisa.engine.vector
        )
    nisa.dma_copy(dst=place(x=job["c"], at=at[1], offset=0, rows=TILE, columns=n), src=out)
