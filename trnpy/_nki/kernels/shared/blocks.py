"""Parts that kernels over blocks of HBM matrices share: tables of offsets, operand panels, block sums.

A device loop keeps what is allocated in it for all its duration: pools of SBUF are made once, outside, and reused.
PSUM is made in the body of each loop, because the compiler refuses what TensorE writes there otherwise. Blocks of C are
turns of one loop, and all of K is written out in its body. Offsets that a loop looks up count elements of the flat
matrix and lie in HBM: on trn1 nothing else has run-time addresses.
"""

import nki.isa as nisa
import nki.language as nl

TILE = 128  # rows of K on the partitions, and of M in the stationary operand
TILE_N = 512  # columns of one PSUM bank
SUM_BANKS = 6  # products rotate over these banks, so that one is emptied while others fill
TURN_BANKS = 2  # and transposes over these
TURNED = 4  # tiles side by side in one of these, so that one instruction empties it
STRIPS = 2 * TURNED  # rows of an operand that wait for their transposes
HALVES = 2  # K chunks of a turn: one is loaded while the other is multiplied
OLDS = 2  # tiles of C0
OUTS = 3  # finished tiles on their way to HBM, so that their sums can start the next block


def turned_format(dtype):
    """What TensorE transposes ``dtype`` to in PSUM: before trn2 that is a product, whose results are float32."""
    return nl.float32 if nisa.get_nc_version() < nisa.nc_version.gen3 else dtype


def banks_of(dtype):
    """PSUM of one loop body: banks for sums, one chain of products each at a time, and banks for transposes."""
    banks, turns = [], []
    for _ in range(SUM_BANKS):
        banks.append(nl.ndarray((TILE, TILE_N), dtype=nl.float32, buffer=nl.psum))
    for _ in range(TURN_BANKS):
        turns.append(nl.ndarray((TILE, TURNED * TILE), dtype=turned_format(dtype=dtype), buffer=nl.psum))
    return (banks, turns)


def pools_of(dtype, turned, k_tiles, m_size, n_size):
    """SBUF of all bodies: strips if some operand is ``turned``, finished tiles, panels, tiles of C0."""
    strips, outs, panels, olds = [], [], [], []
    if turned:
        for _ in range(STRIPS):
            strips.append(nl.ndarray((TILE, k_tiles * TILE), dtype=dtype, buffer=nl.sbuf))
    for _ in range(OUTS):
        outs.append(nl.ndarray((TILE, n_size), dtype=nl.float32, buffer=nl.sbuf))
    for _ in range(HALVES):
        lefts, rights = [], []
        for _ in range(k_tiles):
            lefts.append(nl.ndarray((TILE, m_size), dtype=dtype, buffer=nl.sbuf))
            rights.append(nl.ndarray((TILE, n_size), dtype=dtype, buffer=nl.sbuf))
        panels.append((lefts, rights))
    for _ in range(OLDS):
        olds.append(nl.ndarray((TILE, n_size), dtype=nl.float32, buffer=nl.sbuf))
    return (strips, outs, panels, olds)


def chunk_tiles(dtype):
    """Tiles of K in a chunk for which blocks of 1024 x 1024 fit on the chip twice, with C0 and transposes."""
    return 4 if dtype == nl.float32 else 8


def pieces(extent, block):
    """(start, size, count) of the full blocks of an extent, and of what is left."""
    full = extent // block
    found = []
    if full > 0:
        found.append((0, block, full))
    if extent > full * block:
        found.append((full * block, extent - full * block, 1))
    return found


def broadcast(scalar):
    """A (1, 1) tensor on every partition, or None."""
    if scalar == None:  # noqa: E711 - NKI has no `is`
        return None
    tile = nl.ndarray((TILE, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=scalar.ap(pattern=[[0, TILE], [1, 1]]))
    return tile


def offsets(pattern, start):
    """Offsets in elements of the blocks that a device loop visits, as a (1, count) table in HBM."""
    return in_hbm(counted(pattern=pattern, start=start))


def counted(pattern, start):
    """The same table on the chip, to compute with."""
    count = 1
    for part in pattern:
        _, length = part
        count = count * length
    table = nl.ndarray((1, count), dtype=nl.int32, buffer=nl.sbuf)
    nisa.iota(dst=table, pattern=pattern, offset=start)
    return table


def in_hbm(written):
    """A small table of the chip in HBM, where a loop can look entries up."""
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


def flat(x):
    """x as one row of elements: a run-time offset then counts elements."""
    size = 1
    for extent in x.shape:
        size = size * extent
    return x.reshape((size,))


def place(x, at, offset, rows, columns):
    """The (rows, columns) block of the matrix x that begins at ``at`` (on the chip, or None for 0) + ``offset``."""
    pattern = [[x.shape[1], rows], [1, columns]]
    if at == None:  # noqa: E711 - NKI has no `is`
        return flat(x).ap(pattern=pattern, offset=offset)
    return flat(x).ap(pattern=pattern, offset=offset, scalar_offset=at, indirect_dim=0)


def zeros(rows, columns, memory=None):
    """Sums of one block before the first product: tiles of up to 128 rows, in ``memory`` where loops share it."""
    sums = []
    for i in range(0, rows, TILE):
        size = min(TILE, rows - i)
        if memory == None:  # noqa: E711 - NKI has no `is`
            tile = nl.ndarray((size, columns), dtype=nl.float32, buffer=nl.sbuf)
        else:
            tile = memory[i // TILE][0:size, 0:columns]
        nisa.memset(dst=tile, value=0.0, engine=nisa.engine.vector)
        sums.append(tile)
    return sums


def add_products(a, b, a_at, b_at, k, k_tiles, sums, a_rows, b_rows, m_size, n_size, pools, banks, lower=False):
    """Add all K products of one block of C to its sums.

    ``lower`` is for a block on the diagonal of A A^T: b is a, and each tile stops at the diagonal.
    """
    chunk = k_tiles * TILE
    for k0 in range(0, k, chunk):
        add_chunk(
            a=a, b=b, a_at=a_at, b_at=b_at, k0=k0, depth=min(chunk, k - k0), half=k0 // chunk % HALVES, sums=sums,
            a_rows=a_rows, b_rows=b_rows, m_size=m_size, n_size=n_size, pools=pools, banks=banks, lower=lower,
        )  # fmt: skip


def add_chunk(
    a, b, a_at, b_at, k0, depth, half, sums, a_rows, b_rows, m_size, n_size, pools, banks, lower=False, a_base=0
):
    """Add the products of ``depth`` rows of K from k0 on to the sums of one block; a begins at a_at + ``a_base``."""
    left, right = pools[2][half]
    lefts = panel(
        x=a, at=a_at, k0=k0, depth=depth, size=m_size, k_inside=a_rows, memory=left, strips_of=pools[0],
        banks=banks[1], base=a_base,
    )  # fmt: skip
    rights = lefts
    if not lower:
        rights = panel(
            x=b, at=b_at, k0=k0, depth=depth, size=n_size, k_inside=not b_rows, memory=right, strips_of=pools[0],
            banks=banks[1],
        )  # fmt: skip
    add_tiles(lefts=lefts, rights=rights, sums=sums, m_size=m_size, n_size=n_size, banks=banks[0], lower=lower)


def add_tiles(lefts, rights, sums, m_size, n_size, banks, lower=False):
    """sums += lefts^T rights, both with K on the partitions."""
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
            nisa.tensor_tensor(dst=here, data1=here, data2=bank, op=nl.add)


def panel(x, at, k0, depth, size, k_inside, memory, strips_of, banks, base=0):
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
                nisa.nc_transpose(
                    dst=bank[0:columns, i * TILE : i * TILE + strips[i].shape[0]],
                    data=strips[i][:, q * TILE : q * TILE + columns],
                    engine=nisa.engine.tensor,
                )
            nisa.activation(dst=tiles[q][:, i0:stop], op=nl.copy, data=bank[0:columns, 0 : stop - i0])
    return tiles


def product(a, b, c, c0, scales, m, k, n, a_rows, b_rows, tiles, batch=1, jumps=(0, 0, 0)):
    """C = alpha A B + beta C0, block by block; for ``batch`` matrices whose first elements are ``jumps`` apart."""
    m_tiles, n_tiles, k_tiles = tiles
    k_tiles = k_tiles or chunk_tiles(dtype=a.dtype)
    m_block, n_block = m_tiles * TILE, n_tiles * TILE_N
    pools = pools_of(
        dtype=a.dtype, turned=a_rows or not b_rows, k_tiles=k_tiles, m_size=min(m, m_block), n_size=min(n, n_block)
    )
    a_step, b_step = a.shape[1] if a_rows else 1, 1 if b_rows else b.shape[1]  # from one row of C to the next
    for m_piece in pieces(extent=m, block=m_block):
        m0, m_size, m_count = m_piece
        for n_piece in pieces(extent=n, block=n_block):
            n0, n_size, n_count = n_piece
            # n outside m: a block of B stays while those of A pass.
            a_at = offsets(pattern=[[jumps[0], batch], [0, n_count], [m_size * a_step, m_count]], start=m0 * a_step)
            b_at = offsets(pattern=[[jumps[1], batch], [n_size * b_step, n_count], [0, m_count]], start=n0 * b_step)
            c_at = offsets(pattern=[[jumps[2], batch], [n_size, n_count], [m_size * n, m_count]], start=m0 * n + n0)

            def block(t, a_at=a_at, b_at=b_at, c_at=c_at, m_size=m_size, n_size=n_size):
                banks = banks_of(dtype=a.dtype)
                sums = zeros(rows=m_size, columns=n_size)
                add_products(
                    a=a, b=b, a_at=entry(table=a_at, t=t), b_at=entry(table=b_at, t=t), k=k, k_tiles=k_tiles,
                    sums=sums, a_rows=a_rows, b_rows=b_rows, m_size=m_size, n_size=n_size, pools=pools, banks=banks,
                )  # fmt: skip
                c_here = entry(table=c_at, t=t)
                for i in range(len(sums)):
                    rows, offset = sums[i].shape[0], i * TILE * n
                    out = pools[1][i % OUTS][0:rows, 0:n_size]
                    scale(c0=c0, scales=scales, at=c_here, offset=offset, tile=sums[i], out=out, old=pools[3][i % OLDS])
                    nisa.dma_copy(dst=place(x=c, at=c_here, offset=offset, rows=rows, columns=n_size), src=out)

            nl.fori_loop(0, nisa.register_alloc(batch * m_count * n_count), block)


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
