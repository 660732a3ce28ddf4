"""Chains of small dependent operations: a selection in rounds of counting, and a decoding step of many heads."""

import nki
import nki.isa as nisa
import nki.language as nl

ROWS = 128
RING = 4  # states in flight
HEADS = 3  # heads in flight
AHEAD = 2  # loads, and heads, ahead of what is computed


@nki.jit
def selection(x, bits, sums, pieces=16, places=12):
    """Marks of the largest of each row of x (rows * pieces, width): 31 rounds for their least, some for its ties."""
    rows = x.shape[0]
    adder, steps = loaded(sums), loaded(bits)
    out = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.shared_hbm)
    for first in range(0, rows, 2 * ROWS):
        tiles = []
        for start in range(first, min(first + 2 * ROWS, rows), ROWS):
            tiles.append(start)
        here, work, least, limit = [], [], [], []
        for start in tiles:
            here.append(loaded(x[start : start + min(ROWS, rows - start)]))
            work.append(nl.ndarray(here[-1].shape, dtype=nl.float32, buffer=nl.sbuf))
            for kept in (least, limit):
                kept.append(nl.ndarray((here[-1].shape[0], 1), dtype=nl.float32, buffer=nl.sbuf))
                nisa.memset(dst=kept[-1], value=0.0)
        for r in range(31):
            for t in range(len(tiles)):
                counting(here[t], work[t], least[t], steps[:, r : r + 1], adder, pieces)
        tied = []
        for t in range(len(tiles)):
            tied.append(nl.ndarray(here[t].shape, dtype=nl.float32, buffer=nl.sbuf))
            nisa.tensor_scalar(dst=tied[t], data=here[t], op0=nl.equal, operand0=least[t])
        for r in range(places):
            for t in range(len(tiles)):
                counting(tied[t], work[t], limit[t], steps[:, r : r + 1], adder, pieces)
        for t in range(len(tiles)):
            rest = here[t].shape[0]
            nisa.scalar_tensor_tensor(
                dst=work[t], data=tied[t], op0=nl.multiply, operand0=limit[t], op1=nl.add, operand1=here[t]
            )
            nisa.tensor_scalar(dst=work[t], data=work[t], op0=nl.subtract, operand0=1.0)
            nisa.dma_copy(dst=out[tiles[t] : tiles[t] + rest], src=work[t])
    return out


def counting(here, work, least, step, adder, pieces):
    """One round: try a larger ``least``, count what is not below it in all pieces of a row, and keep it or not."""
    rows = here.shape[0]
    tried, part, kept = small(rows), small(rows), small(rows)
    nisa.tensor_tensor(dst=tried, data1=least, data2=step[0:rows], op=nl.add)
    nisa.tensor_scalar_reduce(
        dst=work, data=here, op0=nl.greater_equal, operand0=tried, reduce_op=nl.add, reduce_res=part
    )
    total = part
    if pieces > 1:
        total = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=total, stationary=adder[0:rows, 0:rows], moving=part, accumulate=False)
    nisa.tensor_scalar(dst=kept, data=total, op0=nl.greater_equal, operand0=512.0, op1=nl.multiply, operand1=0.5)
    nisa.tensor_tensor(dst=least, data1=least, data2=kept, op=nl.add)


def small(rows):
    return nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)


@nki.jit
def decoding(pool, places, vectors, unit, heads=8):
    """One step of ``heads`` recurrent states (128, 128) of each row: states by address, four products of one row."""
    size = pool.shape[3]
    rows = vectors.shape[1] // heads
    count = rows * heads
    index, one = loaded(places), loaded(unit)
    columns = []
    for _ in range(5):
        columns.append(nl.ndarray((ROWS, count), dtype=nl.float32, buffer=nl.sbuf))
    scale = nl.ndarray((1, count), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=scale, value=0.5)
    for start in range(0, count, ROWS):
        some = min(ROWS, count - start)
        for which in range(5):
            bank = nl.ndarray((ROWS, some), dtype=nl.float32, buffer=nl.psum)
            tile = loaded(vectors[which % 4, start : start + some])
            nisa.nc_matmul(dst=bank, stationary=tile, moving=one[0:some, 0:some], accumulate=False)
            nisa.activation(dst=columns[which][:, start : start + some], op=nl.copy, data=bank)
    states, changed, outputs = [], [], []
    for _ in range(RING):
        states.append(nl.ndarray((ROWS, heads, size), dtype=nl.float32, buffer=nl.sbuf))
        changed.append(nl.ndarray((ROWS, heads, size), dtype=nl.float32, buffer=nl.sbuf))
        outputs.append(nl.ndarray((1, heads, size), dtype=nl.float32, buffer=nl.sbuf))
    flights, sums = [], []
    for _ in range(HEADS):
        flights.append((nl.ndarray((1, size), dtype=nl.float32, buffer=nl.sbuf),
                        nl.ndarray((1, size), dtype=nl.float32, buffer=nl.sbuf)))  # fmt: skip
        sums.append((nl.ndarray((1, 3, size), dtype=nl.float32, buffer=nl.psum),
                     nl.ndarray((ROWS, size), dtype=nl.float32, buffer=nl.psum)))  # fmt: skip
    out = nl.ndarray((1, count * size), dtype=nl.float32, buffer=nl.shared_hbm)
    new = nl.ndarray(pool.shape, dtype=nl.float32, buffer=nl.shared_hbm)
    for row in range(min(AHEAD, rows)):
        fetch(states[row % RING], pool, index, row)
    for c in range(count + AHEAD):
        row, head = c // heads, c % heads
        if c < count and head == 0 and row + AHEAD < rows:
            fetch(states[(row + AHEAD) % RING], pool, index, row + AHEAD)
        if c < count:
            first(states[row % RING][:, head, :], outputs[row % RING][:, head, :], columns, one, scale, c,
                  sums[c % HEADS][0], flights[c % HEADS])  # fmt: skip
        if c >= AHEAD:
            before = c - AHEAD
            second(states, changed, columns, sums[before % HEADS][1], flights[before % HEADS], before, heads)
            done = before // heads
            if before % heads == heads - 1:
                span = slice(done * heads * size, (done + 1) * heads * size)
                nisa.dma_copy(dst=out[:, span], src=outputs[done % RING].reshape((1, heads * size)))
                nisa.dma_copy(dst=state_of(new, index, done), src=changed[done % RING])
    return out, new


def state_of(pool, index, row):
    """The states (128, heads, size) of the row of ``pool`` that the index holds."""
    _, heads, rows, size = pool.shape
    place = index[:, row : row + 1]
    return pool.ap([[size, rows], [rows * size, heads], [1, size]], scalar_offset=place, indirect_dim=0)


def fetch(state, pool, index, row):
    nisa.memset(dst=state, value=0.0, engine=nisa.engine.gpsimd)
    nisa.dma_copy(dst=state, src=state_of(pool, index, row))


def first(state, output, columns, one, scale, c, bank, flight):
    """Four products with one column each, and what is read of them."""
    nisa.nc_matmul(dst=bank[:, 0, :], stationary=columns[0][:, c : c + 1], moving=state, accumulate=False)
    nisa.nc_matmul(dst=bank[:, 1, :], stationary=columns[1][:, c : c + 1], moving=state, accumulate=False)
    nisa.nc_matmul(dst=bank[:, 1, :], stationary=columns[3][:, c : c + 1], moving=one, accumulate=False)
    nisa.nc_matmul(dst=bank[:, 2, :], stationary=columns[2][:, c : c + 1], moving=one, accumulate=False)
    nisa.activation(dst=flight[0], op=nl.copy, data=bank[:, 1, :], scale=scale[:, c : c + 1])
    nisa.activation(dst=flight[1], op=nl.copy, data=bank[:, 2, :])
    nisa.scalar_tensor_tensor(
        dst=output, data=flight[0], op0=nl.multiply, operand0=scale[:, c : c + 1], op1=nl.add, operand1=bank[:, 0, :]
    )


def second(states, changed, columns, bank, flight, c, heads):
    """The new state of one head."""
    row, head = c // heads, c % heads
    nisa.nc_matmul(dst=bank, stationary=flight[1], moving=flight[0], accumulate=False)
    nisa.scalar_tensor_tensor(
        dst=changed[row % RING][:, head, :], data=states[row % RING][:, head, :], op0=nl.multiply,
        operand0=columns[4][:, c : c + 1], op1=nl.add, operand1=bank,
    )  # fmt: skip


def loaded(source):
    here = nl.ndarray(source.shape, dtype=source.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=here, src=source)
    return here
