"""Parts that kernels over blocks of HBM matrices share: a walk over blocks, operand panels, block sums, products.

An iteration of a device loop starts only after the previous one has ended, and a loop takes 10 s to compile. While the
program stays short, blocks are therefore unrolled; in longer programs they are iterations of one loop with several
blocks each (``walk``). Launches of parts without a loop would take as long in the model
(docs/programs.md#programs-of-trnpys-kernels). The loop over K is always unrolled. PSUM is allocated in the body of each
loop; otherwise the compiler refuses the writes of TensorE to it. Tables that a loop reads are in HBM, because on trn1
only HBM has run-time addresses.
"""

import nki.isa as nisa
import nki.language as nl

TILE = 128  # rows of K on the partitions, and of M in the stationary operand
TILE_N = 512  # columns of one PSUM bank
SUM_BANKS = 6  # products rotate over these banks, so that one is emptied while others fill
TURN_BANKS = 2  # transposes rotate over these banks
TURNED = 4  # tiles side by side in a bank of transposes, so that one instruction empties it
STRIPS = 2 * TURNED  # strips of 128 rows that are loaded for transposition
HALVES = 2  # chunks of K, or sets of tiles: one is loaded while the other is in use
OLDS = 2  # tiles of C0
OUTS = 3  # finished tiles on their way to HBM, so that their sums can start the next block
HELD_BYTES = 64 * 1024  # of a partition, for all of K of the left operand of a row of blocks
STRAIGHT = 40000  # instructions of a program without a loop: they compile in 13 s, like a loop of 1000
TURN = 20000  # instructions of one iteration of a loop: 4 ms of bfloat16 products of 512 columns


def turned_format(dtype):
    """The format of transposes of ``dtype`` in PSUM: before trn2 a transpose is a product, which gives float32."""
    return nl.float32 if nisa.get_nc_version() < nisa.nc_version.gen3 else dtype


def identity_of(dtype):
    """The identity by which ``turn`` multiplies tiles of ``dtype``; None if it uses nc_transpose."""
    if dtype == nl.float32 or nisa.get_nc_version() >= nisa.nc_version.gen3:
        return None
    ones = nl.ndarray((TILE, TILE), dtype=dtype, buffer=nl.sbuf)
    found = nl.ndarray((TILE, TILE), dtype=dtype, buffer=nl.sbuf)
    nisa.memset(dst=ones, value=1.0, engine=nisa.engine.vector)
    nisa.affine_select(
        dst=found, pattern=[[1, TILE]], channel_multiplier=-1, on_true_tile=ones, on_false_value=0.0, cmp_op=nl.equal
    )
    return found


def turn(dst, data, identity):
    """dst = data^T. It is not settled what nc_transpose of 16-bit numbers writes on trn1; a product writes float32."""
    if identity == None:  # noqa: E711 - NKI has no `is`
        nisa.nc_transpose(dst=dst, data=data, engine=nisa.engine.tensor)
    else:
        moving = identity[0 : data.shape[0], 0 : data.shape[0]]
        nisa.nc_matmul(dst=dst, stationary=data, moving=moving, accumulate=False)


def banks_of(dtype):
    """PSUM of an iteration: banks for sums, one chain of products each at a time, and banks for transposes."""
    banks, turns = [], []
    for _ in range(SUM_BANKS):
        banks.append(nl.ndarray((TILE, TILE_N), dtype=nl.float32, buffer=nl.psum))
    for _ in range(TURN_BANKS):
        turns.append(nl.ndarray((TILE, TURNED * TILE), dtype=turned_format(dtype=dtype), buffer=nl.psum))
    return (banks, turns)


def pools_of(dtype, turned, lefts, rights, k_tiles, m_size, n_size):
    """SBUF of all bodies: strips if some operand is ``turned``, finished tiles, panels, tiles of C0, sums."""
    pools = {"strips": [], "outs": [], "lefts": [], "rights": [], "olds": [], "sums": [], "identity": None}
    if turned:
        pools["identity"] = identity_of(dtype=dtype)
        for _ in range(STRIPS):
            pools["strips"].append(nl.ndarray((TILE, k_tiles * TILE), dtype=dtype, buffer=nl.sbuf))
    for _ in range(OUTS):
        pools["outs"].append(nl.ndarray((TILE, n_size), dtype=nl.float32, buffer=nl.sbuf))
    for _ in range(lefts):
        pools["lefts"].append(nl.ndarray((TILE, m_size), dtype=dtype, buffer=nl.sbuf))
    for _ in range(rights):
        pools["rights"].append(nl.ndarray((TILE, n_size), dtype=dtype, buffer=nl.sbuf))
    for _ in range(OLDS):
        pools["olds"].append(nl.ndarray((TILE, n_size), dtype=nl.float32, buffer=nl.sbuf))
    for _ in range(0, m_size, TILE):
        pools["sums"].append(nl.ndarray((TILE, n_size), dtype=nl.float32, buffer=nl.sbuf))
    return pools


def chunk_tiles(dtype):
    """Tiles of K in a chunk for which blocks of 1024 x 1024 fit on the chip twice, with C0 and transposes."""
    return 4 if dtype == nl.float32 else 8


def pieces(extent, block):
    """(start, size, count) of the full blocks of an extent, and of the remainder."""
    full = extent // block
    found = []
    if full > 0:
        found.append((0, block, full))
    if extent > full * block:
        found.append((full * block, extent - full * block, 1))
    return found


def even(extent, most):
    """The size of a block, at most ``most`` tiles, so that an extent has the fewest blocks, of nearly one size."""
    tiles = (extent + TILE - 1) // TILE
    count = (tiles + most - 1) // most
    return min(extent, (tiles + count - 1) // count * TILE)


def broadcast(scalar):
    """A (1, 1) tensor on every partition, or None."""
    if scalar == None:  # noqa: E711 - NKI has no `is`
        return None
    tile = nl.ndarray((TILE, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=scalar.ap(pattern=[[0, TILE], [1, 1]]))
    return tile


def walk(job, start, body, spots, steps, walks=1):
    """Call body(job, at) for each block of one size; at: its start in each matrix, as ``view`` expects it.

    start(job) allocates the PSUM of an iteration, or of all blocks without a loop. spots: for each matrix the offsets
    of all blocks in elements, as runs (pattern, start) of iota. steps: approximate instructions of one body. walks:
    number of walks of the kernel that share the instruction limit of a program.
    """
    count = 0
    for run in spots[0]:
        count = count + length_of(pattern=run[0])
    each = max(1, TURN // (steps * walks))
    turns = 0 if count * steps * walks <= STRAIGHT else count // each
    if turns > 0:
        tables = []
        for runs in spots:
            tables.append(in_hbm(written=counted(runs=runs, count=turns * each)).reshape((turns, each)))

        def turn(t):
            places = []
            for e in range(each):
                at = []
                for table in tables:
                    here = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
                    found = table.ap(pattern=[[each, 1], [1, 1]], offset=e, scalar_offset=t, indirect_dim=0)
                    nisa.dma_copy(dst=here, src=found)
                    at.append((here, 0))
                places.append(at)
            begin(job=job, start=start)
            for e in range(each):
                take_set(job=job, index=e)
                body(job=job, at=places[e])

        nl.fori_loop(0, nisa.register_alloc(turns), turn)
    if turns * each < count:
        begin(job=job, start=start)
    for index in range(turns * each, count):
        at = []
        for runs in spots:
            at.append((None, nth(runs=runs, index=index)))
        take_set(job=job, index=index)
        body(job=job, at=at)


def begin(job, start):
    """Memory of an iteration, or of bodies outside of loops."""
    job["tiles"] = [[], []]
    take_set(job=job, index=0)
    start(job=job)


def take_set(job, index):
    """Give the next body, or the next part of one, the other set of tiles."""
    job["set"] = index % HALVES
    job["used"] = 0


def tile(job, shape, dtype):
    """A tile of SBUF for one body of a walk. Every other body reuses it, so an iteration may have many bodies."""
    tiles = job["tiles"][job["set"]]
    if job["used"] == len(tiles):
        tiles.append(nl.ndarray(shape, dtype=dtype, buffer=nl.sbuf))
    found = tiles[job["used"]]
    job["used"] = job["used"] + 1
    return found


def no_banks(job):
    """``start`` of a walk whose bodies need no PSUM."""
    return


def length_of(pattern):
    """The number of offsets in a pattern of (step, length)."""
    count = 1
    for part in pattern:
        count = count * part[1]
    return count


def nth(runs, index):
    """Offset number ``index`` of some runs."""
    left, found = index, 0
    for run in runs:
        pattern, start = run
        length = length_of(pattern=pattern)
        if left >= 0 and left < length:
            found, rest = start, left
            for i in range(len(pattern)):
                step, extent = pattern[len(pattern) - 1 - i]
                found = found + rest % extent * step
                rest = rest // extent
        left = left - length
    return found


def counted(runs, count):
    """The first ``count`` offsets of some runs as a (1, count) table on the chip."""
    table = nl.ndarray((1, count), dtype=nl.int32, buffer=nl.sbuf)
    done = 0
    for run in runs:
        pattern, start = run
        length = length_of(pattern=pattern)
        if done + length <= count:
            nisa.iota(dst=table[0:1, done : done + length], pattern=pattern, offset=start)
        else:
            for i in range(count - done):
                here = table[0:1, done + i : done + i + 1]
                nisa.iota(dst=here, pattern=[[0, 1]], offset=nth(runs=[run], index=i))
            length = max(count - done, 0)
        done = done + length
    return table


def offsets(pattern, start):
    """Offsets in elements of the blocks that a device loop visits, as a (1, count) table in HBM."""
    return in_hbm(written=counted(runs=[(pattern, start)], count=length_of(pattern=pattern)))


def in_hbm(written):
    """A small table of the chip, copied to HBM so that a loop can read its entries."""
    table = nl.ndarray(written.shape, dtype=written.dtype, buffer=nl.private_hbm)
    nisa.dma_copy(dst=table, src=written)
    return table


def entry(table, t, start=None, row=0, ahead=0):
    """table[row, t + ahead], or ``start`` more, as a (1, 1) tile: integers on GpSimd are exact."""
    here = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
    found = table.ap(pattern=[[1, 1], [1, 1]], offset=row * table.shape[1] + ahead, scalar_offset=t, indirect_dim=1)
    nisa.dma_copy(dst=here, src=found)
    if start != None:  # noqa: E711 - NKI has no `is`
        nisa.tensor_tensor(dst=here, data1=here, data2=start, op=nl.add, engine=nisa.engine.gpsimd)
    return here


def spot(table, t, start=None, row=0):
    """The same as a position in a matrix, as ``view`` expects it."""
    return (entry(table=table, t=t, start=start, row=row), 0)


def flat(x):
    """x as one row of elements: a run-time offset then counts elements."""
    size = 1
    for extent in x.shape:
        size = size * extent
    return x.reshape((size,))


def view(x, at, pattern, offset=0):
    """Elements of x by a pattern that begins at ``at`` + ``offset``; at: (a tile of the chip or None, an integer)."""
    base, ahead = at
    if base == None:  # noqa: E711 - NKI has no `is`
        return flat(x).ap(pattern=pattern, offset=ahead + offset)
    return flat(x).ap(pattern=pattern, offset=ahead + offset, scalar_offset=base, indirect_dim=0)


def place(x, at, offset, rows, columns):
    """The (rows, columns) block of the matrix x that begins at ``at`` + ``offset``."""
    return view(x=x, at=at, pattern=[[x.shape[1], rows], [1, columns]], offset=offset)


def add_tiles(lefts, rights, sums, m_size, n_size, banks, begun, lower=False):
    """sums += lefts^T rights, both with K on the partitions; if not ``begun`` sums = lefts^T rights.

    ``lower`` is for a block on the diagonal of A A^T: each tile stops at the diagonal.
    """
    for i in range(len(sums)):
        rows = min(TILE, m_size - i * TILE)
        stop = min(n_size, (i + 1) * TILE) if lower else n_size
        for n0 in range(0, stop, TILE_N):
            columns = min(TILE_N, stop - n0)
            bank = banks[(i * n_size + n0) // TILE_N % len(banks)][0:rows, 0:columns]
            for q in range(len(lefts)):
                nisa.nc_matmul(
                    dst=bank,
                    stationary=lefts[q][:, i * TILE : i * TILE + rows],
                    moving=rights[q][:, n0 : n0 + columns],
                    accumulate=q > 0,
                )
            here = sums[i][:, n0 : n0 + columns]
            if begun:
                nisa.tensor_tensor(dst=here, data1=here, data2=bank, op=nl.add)
            else:
                nisa.tensor_copy(dst=here, src=bank, engine=nisa.engine.vector)


def panel(x, at, k0, depth, size, k_inside, memory, strips_of, banks, base=0, identity=None):
    """Tiles (128 of K, size) of one operand, in ``memory``; through TensorE when K runs along the rows in HBM."""
    width = x.shape[1]
    tiles = []
    for q in range(0, depth, TILE):
        tiles.append(memory[q // TILE][0 : min(TILE, depth - q), 0:size])
    if not k_inside:
        for q in range(len(tiles)):
            source = place(x=x, at=at, offset=base + (k0 + q * TILE) * width, rows=tiles[q].shape[0], columns=size)
            nisa.dma_copy(dst=tiles[q], src=source)
        return tiles
    for i0 in range(0, size, TURNED * TILE):
        stop = min(size, i0 + TURNED * TILE)
        strips = []
        for i in range(i0, stop, TILE):
            strip = strips_of[i // TILE % STRIPS][0 : min(TILE, size - i), 0:depth]
            source = place(x=x, at=at, offset=base + i * width + k0, rows=strip.shape[0], columns=depth)
            nisa.dma_copy(dst=strip, src=source)
            strips.append(strip)
        for q in range(len(tiles)):
            columns = tiles[q].shape[0]
            bank = banks[q % TURN_BANKS]
            for i in range(len(strips)):
                turn(
                    dst=bank[0:columns, i * TILE : i * TILE + strips[i].shape[0]],
                    data=strips[i][:, q * TILE : q * TILE + columns],
                    identity=identity,
                )
            nisa.activation(dst=tiles[q][:, i0:stop], op=nl.copy, data=bank[0:columns, 0 : stop - i0])
    return tiles


def product(job, a, b, m, k, n, a_rows, b_rows, tiles, finish, batch=1, jumps=(0, 0, 0), walks=1):
    """A B by rows of blocks, for ``batch`` matrices whose first elements are ``jumps`` apart in a, b and the result.

    finish(job, sums, at, n0) is called for each block with its sums, the position at[2] of its row of blocks in the
    result, and its first column. If all of K of a row of blocks fits on the chip, A is transposed only once.
    """
    m_tiles, n_tiles, k_tiles = tiles
    depth, item = (k + TILE - 1) // TILE, 4 if a.dtype == nl.float32 else 2
    fitting = min(m_tiles, HELD_BYTES // (depth * TILE * item))
    held = fitting > min(m_tiles, 1)
    m_block = even(extent=m, most=fitting if held else m_tiles)
    work = row_work(
        job=job, a=a, b=b, m_block=m_block, n_block=min(n_tiles * TILE_N, n), k=k, k_tiles=k_tiles, a_rows=a_rows,
        b_rows=b_rows, held=held, finish=finish,
    )  # fmt: skip
    work["columns"] = columns_of(work=work, n=n)
    step = a.shape[1] if a_rows else 1  # in a, from one row of the result to the next
    for piece in pieces(extent=m, block=m_block):
        m0, m_size, count = piece
        work["m_size"] = m_size
        spots = (
            [([[jumps[0], batch], [m_size * step, count]], m0 * step)],
            [([[jumps[1], batch], [0, count]], 0)],
            [([[jumps[2], batch], [m_size * n, count]], m0 * n)],
        )
        walk(job=work, start=start_row, body=row, spots=spots, steps=row_steps(work=work), walks=walks)


def columns_of(work, n):
    """The blocks of a row: first column, its start in b, columns."""
    found, step = [], 1 if work["b_rows"] else work["b"].shape[1]
    for n0 in range(0, n, work["n_block"]):
        found.append((n0, n0 * step, min(work["n_block"], n - n0)))
    return found


def row_work(job, a, b, m_block, n_block, k, k_tiles, a_rows, b_rows, held, finish):
    """The job of ``row``, without its rows ``m_size`` and its ``columns``, which the caller adds; it has the pools."""
    depth = (k + TILE - 1) // TILE
    k_tiles = min(k_tiles or chunk_tiles(dtype=a.dtype), depth)
    job["pools"] = pools_of(
        dtype=a.dtype, turned=a_rows or not b_rows, lefts=depth if held else HALVES * k_tiles,
        rights=HALVES * k_tiles, k_tiles=k_tiles, m_size=m_block, n_size=n_block,
    )  # fmt: skip
    return {
        "a": a, "b": b, "k": k, "a_rows": a_rows, "b_rows": b_rows, "k_tiles": k_tiles, "n_block": n_block,
        "held": held, "job": job, "finish": finish, "pools": job["pools"],
    }  # fmt: skip


def row_steps(work):
    """Approximate instructions of one row of blocks: products, evictions, loads, transposes, results."""
    depth, rows = (work["k"] + TILE - 1) // TILE, (work["m_size"] + TILE - 1) // TILE
    chunks, steps = (depth + work["k_tiles"] - 1) // work["k_tiles"], depth * rows
    for part in work["columns"]:
        wide = (part[2] + TILE_N - 1) // TILE_N
        right = depth if work["b_rows"] else 5 * depth * wide
        steps = steps + rows * wide * (depth + chunks) + right + 3 * rows + (0 if work["held"] else depth * rows)
    return steps


def start_row(job):
    """PSUM of an iteration: banks for sums, one chain of products each at a time, and banks for transposes."""
    banks, turns = banks_of(dtype=job["a"].dtype)
    job["banks"] = banks
    job["turns"] = turns
    job["job"]["banks"] = banks


def row(job, at):
    """One row of blocks of A B."""
    chunks, lefts = [], []
    for part in job["columns"]:
        n0, base, columns = part
        for k0 in range(0, job["k"], job["k_tiles"] * TILE):
            chunks.append(((at, job["m_size"], n0, columns, False), k0, (base, lefts)))
    follow(job=job, chunks=chunks, load=_panels)


def follow(job, chunks, load):
    """Blocks one after another, in chunks of K: (block, start along K, arguments of ``load``).

    A block is (start, rows, first column, columns, whether it stops at the diagonal). load(job, chunk, slot) makes both
    panels of a chunk, in half ``slot`` of the memory for chunks. They are loaded while the previous chunk is
    multiplied. A finished block is stored after the loads of one more chunk, because TensorE waits for those.
    """
    finish, loaded, current = job["finish"], None, None
    for i in range(len(chunks) + 2):
        current, loaded = loaded, None
        if i < len(chunks):
            loaded = load(job=job, chunk=chunks[i], slot=i % HALVES)
        if i > 1:
            block, k0, _ = chunks[i - 2]
            if k0 + job["k_tiles"] * TILE >= job["k"]:
                finish(job=job["job"], sums=_sums(job=job, block=block), at=block[0], n0=block[2])
        if i > 0 and i <= len(chunks):
            block, k0, _ = chunks[i - 1]
            add_tiles(
                lefts=current[0], rights=current[1], sums=_sums(job=job, block=block), m_size=block[1],
                n_size=block[3], banks=job["banks"], begun=k0 > 0, lower=block[4],
            )  # fmt: skip


def _sums(job, block):
    """The sums of one block."""
    _, m_size, _, columns, _ = block
    sums = []
    for i0 in range(0, m_size, TILE):
        sums.append(job["pools"]["sums"][i0 // TILE][0 : min(TILE, m_size - i0), 0:columns])
    return sums


def _panels(job, chunk, slot):
    """Both operands of a chunk of a row, the right one in half ``slot``; ``lefts``: tiles of the left that are kept."""
    block, k0, more = chunk
    at, m_size, _, n_size, _ = block
    base, lefts = more
    pools, k_tiles = job["pools"], job["k_tiles"]
    depth, half, index = min(k_tiles * TILE, job["k"] - k0), slot * k_tiles, k0 // (k_tiles * TILE)
    if len(lefts) <= index or not job["held"]:
        left = panel(
            x=job["a"], at=at[0], k0=k0, depth=depth, size=m_size, k_inside=job["a_rows"], banks=job["turns"],
            memory=pools["lefts"][k0 // TILE if job["held"] else half :], strips_of=pools["strips"],
            identity=pools["identity"],
        )  # fmt: skip
        lefts.append(left)
    else:
        left = lefts[index]
    right = panel(
        x=job["b"], at=at[1], k0=k0, depth=depth, size=n_size, k_inside=not job["b_rows"],
        memory=pools["rights"][half:], strips_of=pools["strips"], banks=job["turns"], base=base,
        identity=pools["identity"],
    )  # fmt: skip
    return (left, right)


def store(job, sums, at, n0):
    """Store alpha A B + beta C0 of one block: the ``finish`` of jobs with c, c0 and scales."""
    c, pools, columns = job["c"], job["pools"], sums[0].shape[1]
    for i in range(len(sums)):
        rows, offset = sums[i].shape[0], i * TILE * c.shape[1] + n0
        out = pools["outs"][i % OUTS][0:rows, 0:columns]
        scale(
            c0=job["c0"], scales=job["scales"], at=at[2], offset=offset, tile=sums[i], out=out,
            old=pools["olds"][i % OLDS],
        )  # fmt: skip
        nisa.dma_copy(dst=place(x=c, at=at[2], offset=offset, rows=rows, columns=columns), src=out)


def scale(c0, scales, at, offset, tile, out, old):
    """out = alpha tile + beta c0; c0 is read at ``at`` + ``offset`` into ``old``; scales are tiles or None."""
    rows, columns = tile.shape
    alpha, beta = scales
    if alpha == None:  # noqa: E711 - NKI has no `is`
        nisa.activation(dst=out, op=nl.copy, data=tile)
    else:
        nisa.activation(dst=out, op=nl.copy, data=tile, scale=alpha[0:rows, :])
    if c0 != None:  # noqa: E711
        old = old[0:rows, 0:columns]
        nisa.dma_copy(dst=old, src=place(x=c0, at=at, offset=offset, rows=rows, columns=columns))
        nisa.scalar_tensor_tensor(
            dst=out, data=old, op0=nl.multiply, operand0=beta[0:rows, :], op1=nl.add, operand1=out
        )
