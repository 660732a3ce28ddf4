"""Data movement: streams through rings of tiles, gathers, device loops, residents, chains of products with vectors."""

import nki
import nki.isa as nisa
import nki.language as nl

ROWS = 128
COLUMNS = 512  # float32 of one PSUM bank


@nki.jit
def stream(w, columns=8192, buffers=4, run=0):
    """w (matrices, 128, width) of bytes through a ring of tiles; each is read. ``run``: bytes of a row in one piece."""
    ring = []
    for _ in range(buffers):
        ring.append(nl.ndarray((ROWS, columns), dtype=w.dtype, buffer=nl.sbuf))
    total = zeros(1)
    place = 0
    for n in range(w.shape[0]):
        for start in range(0, w.shape[2], 2 * columns if run else columns):
            here = ring[place % buffers]
            if run:
                shape = (ROWS, columns // run, run)
                nisa.dma_copy(dst=here.reshape(shape), src=w[n].ap(runs(w, columns, run), offset=start))
            else:
                nisa.dma_copy(dst=here, src=w[n, :, start : start + columns])
            count(total, here)
            place += 1
    return stored(total)


def runs(w, columns, run):
    """Every second run of ``run`` bytes of a row."""
    return [[w.shape[2], ROWS], [2 * run, columns // run], [1, run]]


@nki.jit
def gathers(w, index, times=16):
    """Rows of w at 128 places from an index on the device, ``times`` over, into four tiles in turn."""
    at = nl.ndarray((ROWS, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.dma_copy(dst=at, src=index)
    width = w.shape[1]
    ring = []
    for _ in range(4):
        ring.append(nl.ndarray((ROWS, width), dtype=w.dtype, buffer=nl.sbuf))
    rows = w.ap([[width, ROWS], [1, width]], vector_offset=at, indirect_dim=0)
    for t in range(times):
        nisa.dma_copy(dst=ring[t % 4], src=rows)
    total = zeros(1)
    for t in range(4):
        count(total, ring[t])
    return stored(total)


@nki.jit
def quarters(w, matrices, columns=8192, buffers=4, rows=32):
    """w (matrices, 128, width) of bytes as ``stream`` has it, each tile by transfers of ``rows`` partitions.

    Their addresses are found at run time, from ``matrices`` (1, matrices).
    """
    at = nl.ndarray(matrices.shape, dtype=nl.int32, buffer=nl.sbuf)
    nisa.dma_copy(dst=at, src=matrices)
    ring = []
    for _ in range(buffers):
        ring.append(nl.ndarray((ROWS, columns), dtype=w.dtype, buffer=nl.sbuf))
    total = zeros(1)
    place, width = 0, w.shape[2]
    for n in range(w.shape[0]):
        for start in range(0, width, columns):
            here = ring[place % buffers]
            for first in range(0, ROWS, rows):
                part = w.ap(
                    [[width, rows], [1, columns]], offset=first * width + start, scalar_offset=at[:, n : n + 1],
                    indirect_dim=0,
                )  # fmt: skip
                nisa.dma_copy(dst=here[first : first + rows, :], src=part)
            count(total, here)
            place += 1
    return stored(total)


@nki.jit
def picked(table, index):
    """Rows of table at the places of index (128, count): one transfer of 128 rows for each column of the index."""
    times, width = index.shape[1], table.shape[1]
    at = nl.ndarray((ROWS, times), dtype=nl.int32, buffer=nl.sbuf)
    nisa.dma_copy(dst=at, src=index)
    here = nl.ndarray((ROWS, times * width), dtype=table.dtype, buffer=nl.sbuf)
    for t in range(times):
        rows = table.ap([[width, ROWS], [1, width]], vector_offset=at[:, t : t + 1], indirect_dim=0)
        nisa.dma_copy(dst=here[:, t * width : (t + 1) * width], src=rows)
    return stored(here)


@nki.jit
def scatters(x, index, times=16):
    """A column of x to 128 places of HBM from an index on the device, ``times`` over."""
    at = nl.ndarray((ROWS, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.dma_copy(dst=at, src=index)
    here = nl.ndarray((ROWS, 1), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=here, src=x)
    out = nl.ndarray((x.shape[0] * times, 1), dtype=x.dtype, buffer=nl.shared_hbm)
    for t in range(times):
        rows = out[t * ROWS : (t + 1) * ROWS].ap([[1, ROWS], [1, 1]], vector_offset=at, indirect_dim=0)
        nisa.dma_copy(dst=rows, src=here)
    return out


@nki.jit
def dynamic(w, index, times=16, products=False):
    """Blocks (128, width) of w (blocks, 128, width) at places from an index on the device; with small products."""
    at = nl.ndarray((1, times), dtype=nl.int32, buffer=nl.sbuf)
    nisa.dma_copy(dst=at, src=index)
    width = w.shape[2]
    ring = []
    for _ in range(4):
        ring.append(nl.ndarray((ROWS, width), dtype=w.dtype, buffer=nl.sbuf))
    total = zeros(1)
    for t in range(times):
        here = ring[t % 4]
        block = w.ap([[width, ROWS], [1, width]], scalar_offset=at[:, t : t + 1], indirect_dim=0)
        nisa.dma_copy(dst=here, src=block)
        if products:
            for part in range(2):
                bank = nl.ndarray((ROWS, 1), dtype=nl.float32, buffer=nl.psum)
                nisa.nc_matmul(dst=bank, stationary=here[:, 0:ROWS], moving=here[:, part : part + 1], accumulate=False)
                nisa.tensor_tensor(dst=total, data1=total, data2=bank, op=nl.add)
        else:
            count(total, here)
    return stored(total)


@nki.jit
def turns(x, bound, looped=True, times=64):
    """One small vector operation, ``times`` over: in a device loop or written out."""
    here = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=here, src=x)
    limit = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.dma_copy(dst=limit, src=bound)
    if looped:
        register = nisa.register_alloc(times)

        def body(i, here=here):
            nisa.tensor_scalar(dst=here, data=here, op0=nl.add, operand0=1.0)

        nl.fori_loop(0, register, body)
    else:
        for _ in range(times):
            nisa.tensor_scalar(dst=here, data=here, op0=nl.add, operand0=1.0)
    return stored(here)


@nki.jit
def factored(x, factor, tiles=64, body_tiles=0):
    """Tiles (128, 512) of x, in float32, times a constant factor: written out, or some in the body of a loop."""
    left = nl.ndarray(factor.shape, dtype=factor.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=left, src=factor)
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    if body_tiles:
        groups = (ROWS, tiles // body_tiles, body_tiles * COLUMNS)
        source, target = x.reshape(groups), out.reshape(groups)
        register = nisa.register_alloc(tiles // body_tiles)

        def body(i, source=source, target=target, left=left):
            here, banks, done = [], [], []
            for t in range(body_tiles):
                here.append(nl.ndarray((ROWS, COLUMNS), dtype=nl.float32, buffer=nl.sbuf))
                nisa.dma_copy(dst=here[t], src=at(source, i, t))
            for t in range(body_tiles):
                if t < 8:
                    banks.append(nl.ndarray((ROWS, COLUMNS), dtype=nl.float32, buffer=nl.psum))
                    done.append(nl.ndarray((ROWS, COLUMNS), dtype=nl.float32, buffer=nl.sbuf))
                multiplied(done[t % 8], banks[t % 8], left, here[t])
                nisa.dma_copy(dst=at(target, i, t), src=done[t % 8])

        nl.fori_loop(0, register, body)
    else:
        for t in range(tiles):
            part = slice(t * COLUMNS, (t + 1) * COLUMNS)
            tile = nl.ndarray((ROWS, COLUMNS), dtype=nl.float32, buffer=nl.sbuf)
            nisa.dma_copy(dst=tile, src=x[:, part])
            bank = nl.ndarray((ROWS, COLUMNS), dtype=nl.float32, buffer=nl.psum)
            done = nl.ndarray((ROWS, COLUMNS), dtype=nl.float32, buffer=nl.sbuf)
            multiplied(done, bank, left, tile)
            nisa.dma_copy(dst=out[:, part], src=done)
    return out


@nki.jit
def passes(x, turns=64, body_tiles=1):
    """Tiles (128, 512) of x (128, groups, columns of a body) to an equal array, all loads of a body first."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    register = nisa.register_alloc(turns)

    def body(i, source=x, target=out):
        here = []
        for t in range(body_tiles):
            here.append(nl.ndarray((ROWS, COLUMNS), dtype=nl.float32, buffer=nl.sbuf))
            nisa.dma_copy(dst=here[t], src=at(source, i, t))
        for t in range(body_tiles):
            nisa.dma_copy(dst=at(target, i, t), src=here[t])

    nl.fori_loop(0, register, body)
    return out


def at(source, register, tile):
    """Tile ``tile`` of the group of columns that the register counts."""
    _, groups, width = source.shape
    return source.ap(
        [[groups * width, ROWS], [1, COLUMNS]], offset=tile * COLUMNS, scalar_offset=register, indirect_dim=1
    )


def multiplied(done, bank, left, tile):
    nisa.nc_matmul(dst=bank, stationary=left, moving=tile, accumulate=False)
    nisa.tensor_copy(dst=done, src=bank, engine=nisa.engine.vector)


@nki.jit
def residents(x, kept, staged=False):
    """A sum of tiles of x (tiles, 128, 512) times resident tiles; ``staged``: copied from tiles that do not stay."""
    stay = []
    for k in range(kept.shape[0]):
        tile = nl.ndarray((ROWS, COLUMNS), dtype=nl.float32, buffer=nl.sbuf)
        if staged:
            passing = nl.ndarray((ROWS, COLUMNS), dtype=nl.float32, buffer=nl.sbuf)
            nisa.dma_copy(dst=passing, src=kept[k])
            nisa.tensor_copy(dst=tile, src=passing, engine=nisa.engine.vector)
        else:
            nisa.dma_copy(dst=tile, src=kept[k])
        stay.append(tile)
    bank = nl.ndarray((ROWS, COLUMNS), dtype=nl.float32, buffer=nl.psum)
    for t in range(x.shape[0]):
        here = nl.ndarray((ROWS, COLUMNS), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=here, src=x[t])
        left = stay[t % kept.shape[0]][:, 0:ROWS]
        nisa.nc_matmul(dst=bank, stationary=left, moving=here, accumulate=t > 0)
    done = nl.ndarray((ROWS, COLUMNS), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=done, src=bank, engine=nisa.engine.vector)
    return stored(done)


@nki.jit
def chain(x, weights):
    """x (128, steps, vectors) of bfloat16 times (products, 4096, 4096), one after another, a row of tiles a load."""
    _, steps, vectors = x.shape
    here = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=here, src=x)
    ring = []
    for _ in range(6):
        ring.append(nl.ndarray((ROWS, weights.shape[2]), dtype=weights.dtype, buffer=nl.sbuf))
    parts = weights.shape[2] // COLUMNS
    for n in range(weights.shape[0]):
        banks = []
        for _ in range(parts):
            banks.append(nl.ndarray((vectors, COLUMNS), dtype=nl.float32, buffer=nl.psum))
        for k in range(steps):
            tile = ring[(n * steps + k) % 6]
            nisa.dma_copy(dst=tile, src=weights[n, k * ROWS : (k + 1) * ROWS, :])
            for p in range(parts):
                part = tile[:, p * COLUMNS : (p + 1) * COLUMNS]
                nisa.nc_matmul(dst=banks[p], stationary=here[:, k, :], moving=part, accumulate=k > 0)
        here = turned(banks, steps, vectors, x.dtype)
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=here)
    return out


def turned(banks, steps, vectors, dtype):
    """The sums (vectors, columns) as the next product's operand (128, steps, vectors)."""
    wide = nl.ndarray((vectors, steps * ROWS), dtype=dtype, buffer=nl.sbuf)
    for p in range(len(banks)):
        nisa.tensor_copy(dst=wide[:, p * COLUMNS : (p + 1) * COLUMNS], src=banks[p], engine=nisa.engine.vector)
    here = nl.ndarray((ROWS, steps, vectors), dtype=dtype, buffer=nl.sbuf)
    for k in range(steps):
        bank = nl.ndarray((ROWS, vectors), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_transpose(dst=bank, data=wide[:, k * ROWS : (k + 1) * ROWS], engine=nisa.engine.tensor)
        nisa.activation(dst=here[:, k, :], op=nl.copy, data=bank)
    return here


def zeros(width):
    here = nl.ndarray((ROWS, width), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=here, value=0.0)
    return here


def count(total, here):
    """Add the first column, so that the tile is read."""
    first = nl.ndarray((ROWS, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=first, src=here[:, 0:1], engine=nisa.engine.vector)
    nisa.tensor_tensor(dst=total, data1=total, data2=first, op=nl.add)


def stored(here):
    out = nl.ndarray(here.shape, dtype=nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=here)
    return out
