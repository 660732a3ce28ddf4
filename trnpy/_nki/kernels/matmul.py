"""C = alpha A B + beta C0 for float32, bfloat16 or float16 operands of any size, in float32.

Blocks of (m_tiles x 128) by (n_tiles x 512) under one device loop; K in chunks of k_tiles x 128, two at
a time so that one is loaded while the other is multiplied. Edges are blocks of their own size. The
instruction count depends on the tile shape only.
"""

import nki
import nki.isa as nisa
import nki.language as nl

TILE = 128  # rows of K on the partitions, and of M in the stationary operand
TILE_N = 512  # columns of one PSUM bank
SUM_BANKS = 6  # products rotate over these banks, so that one is emptied while others fill
TURN_BANKS = 2  # and transposes over these
STRIPS = 2  # rows of an operand that wait for their transposes
OUTS = 3  # finished tiles on their way to HBM, so that their sums can start the next block


@nki.jit
def matmul(a, b, alpha=None, c0=None, beta=None, a_rows=True, b_rows=True, m_tiles=8, n_tiles=2, k_tiles=8):
    """(M, N) float32 from a and b in HBM.

    a: (M, K) if a_rows, else (K, M); b: (K, N) if b_rows, else (N, K); of one dtype.
    alpha, beta: (1, 1) float32; c0: (M, N) float32. Without them C = A B.
    """
    m, k = a.shape if a_rows else (a.shape[1], a.shape[0])
    n = b.shape[1] if b_rows else b.shape[0]
    c = nl.ndarray((m, n), dtype=nl.float32, buffer=nl.shared_hbm)
    scales = (_broadcast(scalar=alpha), _broadcast(scalar=beta))
    # A device loop keeps what is allocated in it for all its duration: banks are made once and reused.
    banks, turns, strips, outs = [], [], [], []
    for _ in range(SUM_BANKS):
        banks.append(nl.ndarray((TILE, TILE_N), dtype=nl.float32, buffer=nl.psum))
    for _ in range(TURN_BANKS):
        turns.append(nl.ndarray((TILE, TILE), dtype=a.dtype, buffer=nl.psum))
    if a_rows or not b_rows:
        for _ in range(STRIPS):
            strips.append(nl.ndarray((TILE, k_tiles * TILE), dtype=a.dtype, buffer=nl.sbuf))
    for _ in range(OUTS):
        outs.append(nl.ndarray((TILE, n_tiles * TILE_N), dtype=nl.float32, buffer=nl.sbuf))
    pools = (banks, turns, strips, outs)
    m_block, n_block = m_tiles * TILE, n_tiles * TILE_N
    for m0, m_size, m_count in _pieces(extent=m, block=m_block):
        for n0, n_size, n_count in _pieces(extent=n, block=n_block):
            _blocks(
                a=a, b=b, c=c, c0=c0, scales=scales, a_rows=a_rows, b_rows=b_rows, k=k, k_tiles=k_tiles,
                m0=m0, m_size=m_size, m_count=m_count, n0=n0, n_size=n_size, n_count=n_count, pools=pools,
            )  # fmt: skip
    return c


def _pieces(extent, block):
    """(start, size, count) of the full blocks of an extent, and of what is left."""
    full = extent // block
    pieces = []
    if full > 0:
        pieces.append((0, block, full))
    if extent > full * block:
        pieces.append((full * block, extent - full * block, 1))
    return pieces


def _broadcast(scalar):
    """A (1, 1) tensor on every partition, or None."""
    if scalar == None:  # noqa: E711 - NKI has no `is`
        return None
    tile = nl.ndarray((TILE, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=scalar.ap(pattern=[[0, TILE], [1, 1]]))
    return tile


def _offsets(pattern, start):
    """Offsets in elements of the blocks that a device loop visits, as a (1, count) table on the chip."""
    count = 1
    for _, length in pattern:
        count = count * length
    table = nl.ndarray((1, count), dtype=nl.int32, buffer=nl.sbuf)
    nisa.iota(dst=table, pattern=pattern, offset=start)
    return table


def _blocks(a, b, c, c0, scales, a_rows, b_rows, k, k_tiles, m0, m_size, m_count, n0, n_size, n_count, pools):
    """Every block of one size: n outermost, so that a block of B stays while those of A pass."""
    m_step = m_size * (a.shape[1] if a_rows else 1)
    n_step = n_size * (1 if b_rows else b.shape[1])
    a_at = _offsets(pattern=[[0, n_count], [m_step, m_count]], start=m0 * (a.shape[1] if a_rows else 1))
    b_at = _offsets(pattern=[[n_step, n_count], [0, m_count]], start=n0 * (1 if b_rows else b.shape[1]))
    c_at = _offsets(pattern=[[n_size, n_count], [m_size * c.shape[1], m_count]], start=m0 * c.shape[1] + n0)
    chunk = k_tiles * TILE
    pairs = k // (2 * chunk)
    if pairs > 0:
        a_k = _offsets(pattern=[[2 * chunk * (1 if a_rows else a.shape[1]), pairs]], start=0)
        b_k = _offsets(pattern=[[2 * chunk * (b.shape[1] if b_rows else 1), pairs]], start=0)

    def block(t):
        a_here, b_here = _entry(table=a_at, t=t), _entry(table=b_at, t=t)
        sums = []
        for i in range(0, m_size, TILE):
            tile = nl.ndarray((min(TILE, m_size - i), n_size), dtype=nl.float32, buffer=nl.sbuf)
            nisa.memset(dst=tile, value=0.0, engine=nisa.engine.vector)
            sums.append(tile)
        if pairs > 0:

            def pair(j):
                a_pair, b_pair = _entry(table=a_k, t=j, start=a_here), _entry(table=b_k, t=j, start=b_here)
                for half in range(2):
                    _chunk(
                        a=a, b=b, a_at=a_pair, b_at=b_pair, k0=half * chunk, depth=chunk, sums=sums,
                        a_rows=a_rows, b_rows=b_rows, m_size=m_size, n_size=n_size, pools=pools,
                    )  # fmt: skip

            nl.fori_loop(0, pairs, pair)
        for k0 in range(2 * chunk * pairs, k, chunk):
            _chunk(
                a=a, b=b, a_at=a_here, b_at=b_here, k0=k0, depth=min(chunk, k - k0),
                sums=sums, a_rows=a_rows, b_rows=b_rows, m_size=m_size, n_size=n_size, pools=pools,
            )  # fmt: skip
        c_here = _entry(table=c_at, t=t)
        for i in range(len(sums)):
            out = pools[3][i % OUTS][0 : sums[i].shape[0], 0:n_size]
            _store(c=c, c0=c0, scales=scales, at=c_here, row=i * TILE, tile=sums[i], out=out)

    nl.fori_loop(0, m_count * n_count, block)


def _flat(x):
    """x as one row of elements: a run-time offset then counts elements."""
    return x.reshape((x.shape[0] * x.shape[1],))


def _entry(table, t, start=None):
    """table[t], or start + table[t], as a (1, 1) tile: integers on GpSimd are exact."""
    here = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
    entry = table[0:1, nl.ds(t, 1)]
    if start == None:  # noqa: E711 - NKI has no `is`
        nisa.tensor_copy(dst=here, src=entry, engine=nisa.engine.gpsimd)
    else:
        nisa.tensor_tensor(dst=here, data1=entry, data2=start, op=nl.add)
    return here


def _chunk(a, b, a_at, b_at, k0, depth, sums, a_rows, b_rows, m_size, n_size, pools):
    """Add the products of ``depth`` rows of K from k0 on to the sums of one block."""
    lefts = _panel(x=a, at=a_at, k0=k0, depth=depth, size=m_size, k_inside=a_rows, pools=pools)
    rights = _panel(x=b, at=b_at, k0=k0, depth=depth, size=n_size, k_inside=not b_rows, pools=pools)
    for i in range(len(sums)):
        rows = min(TILE, m_size - i * TILE)
        for n0 in range(0, n_size, TILE_N):
            columns = min(TILE_N, n_size - n0)
            bank = pools[0][(i * n_size + n0) // TILE_N % SUM_BANKS][0:rows, 0:columns]
            for q in range(len(lefts)):
                nisa.nc_matmul(
                    dst=bank,
                    stationary=lefts[q][:, i * TILE : i * TILE + rows],
                    moving=rights[q][:, n0 : n0 + columns],
                    accumulate=q > 0,
                )
            here = sums[i][:, n0 : n0 + columns]
            nisa.tensor_tensor(dst=here, data1=here, data2=bank, op=nl.add)


def _panel(x, at, k0, depth, size, k_inside, pools):
    """Tiles (128 of K, size) of one operand; through TensorE when K runs along the rows in HBM."""
    width = x.shape[1]
    tiles = []
    for q in range(0, depth, TILE):
        tiles.append(nl.ndarray((min(TILE, depth - q), size), dtype=x.dtype, buffer=nl.sbuf))
    if not k_inside:
        for q in range(len(tiles)):
            rows = tiles[q].shape[0]
            source = _flat(x).ap(
                pattern=[[width, rows], [1, size]], offset=(k0 + q * TILE) * width, scalar_offset=at, indirect_dim=0
            )
            nisa.dma_copy(dst=tiles[q], src=source)
        return tiles
    for i in range(0, size, TILE):
        rows = min(TILE, size - i)
        strip = pools[2][i // TILE % STRIPS][0:rows, 0:depth]
        pattern = [[width, rows], [1, depth]]
        source = _flat(x).ap(pattern=pattern, offset=i * width + k0, scalar_offset=at, indirect_dim=0)
        nisa.dma_copy(dst=strip, src=source)
        for q in range(len(tiles)):
            columns = tiles[q].shape[0]
            turned = pools[1][q % TURN_BANKS][0:columns, 0:rows]
            nisa.nc_transpose(dst=turned, data=strip[:, q * TILE : q * TILE + columns], engine=nisa.engine.tensor)
            nisa.tensor_copy(dst=tiles[q][:, i : i + rows], src=turned, engine=nisa.engine.scalar)
    return tiles


def _store(c, c0, scales, at, row, tile, out):
    """Scale one finished tile into ``out`` and write that to its place in C."""
    rows, columns, n = tile.shape[0], tile.shape[1], c.shape[1]
    alpha, beta = scales
    pattern = [[n, rows], [1, columns]]
    if alpha == None:  # noqa: E711 - NKI has no `is`
        nisa.tensor_copy(dst=out, src=tile, engine=nisa.engine.scalar)
    else:
        nisa.activation(dst=out, op=nl.copy, data=tile, scale=alpha[0:rows, :])
    if c0 != None:  # noqa: E711
        old = nl.ndarray((rows, columns), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=old, src=_flat(c0).ap(pattern=pattern, offset=row * n, scalar_offset=at, indirect_dim=0))
        nisa.scalar_tensor_tensor(
            dst=out, data=old, op0=nl.multiply, operand0=beta[0:rows, :], op1=nl.add, operand1=out
        )
    nisa.dma_copy(dst=_flat(c).ap(pattern=pattern, offset=row * n, scalar_offset=at, indirect_dim=0), src=out)
