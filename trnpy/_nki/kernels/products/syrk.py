"""C = alpha A A^T + beta C0, or A^T A: symmetric products with the work of one triangle, in float32.

Blocks of (tiles x 128) squared on and below the diagonal; those on it stop at the diagonal tile by tile. The
pairs of blocks are walked cyclically, (j, j + d mod T) for d = 1, 2, ...: each unordered pair comes once and
the walk is one device loop. The other triangle is the transpose through TensorE, bit for bit, or that of C0.

A with K on its rows in HBM (A^T A) needs no transposes before the product: prefer it where A is used again.
A Hermitian product of complex matrices X + iY is composed by its caller: X X^T + Y Y^T is two calls with
beta = 1, and Y X^T - X Y^T = Z - Z^T is one matmul Z = Y X^T.
"""

import nki
import nki.isa as nisa
import nki.language as nl

from ..shared import blocks


@nki.jit
def syrk(a, alpha=None, c0=None, beta=None, a_rows=True, mirrored=True, tiles=8, k_tiles=None):
    """(N, N) float32 from a in HBM: (N, K) if a_rows, else (K, N).

    alpha, beta: (1, 1) float32; c0: (N, N) float32, of which the product reads the lower triangle only.
    ``mirrored``: the upper triangle is the lower one's transpose; else c0's, which must be given.
    """
    n, k = a.shape if a_rows else (a.shape[1], a.shape[0])
    assert mirrored or c0 != None  # noqa: E711 - NKI has no `is`
    c = nl.ndarray((n, n), dtype=nl.float32, buffer=nl.shared_hbm)
    k_tiles = k_tiles or blocks.chunk_tiles(dtype=a.dtype)
    size = min(tiles * blocks.TILE, n)
    row_tiles = (size + blocks.TILE - 1) // blocks.TILE
    job = {
        "a": a, "a_rows": a_rows, "k": k, "k_tiles": k_tiles, "c": c, "c0": c0, "mirrored": mirrored,
        "scales": (blocks.broadcast(scalar=alpha), blocks.broadcast(scalar=beta)),
        "pools": blocks.pools_of(dtype=a.dtype, turned=a_rows, k_tiles=k_tiles, m_size=size, n_size=size),
        "mirror": nl.ndarray((blocks.TILE, row_tiles, size), dtype=nl.float32, buffer=nl.sbuf),
        "upper": _above_diagonal(),
    }  # fmt: skip
    full, rest = n // size, n % size
    first = full * size
    step = a.shape[1] if a_rows else 1  # in a, from one row of C to the next
    if full > 1:
        a_high, a_low = _walk(count=full, high=size * step, low=size * step)
        c_high, c_low = _walk(count=full, high=size * n, low=size)
        turned_high, turned_low = _walk(count=full, high=size, low=size * n)
        nisa.tensor_tensor(dst=c_high, data1=c_high, data2=c_low, op=nl.add)
        nisa.tensor_tensor(dst=turned_high, data1=turned_high, data2=turned_low, op=nl.add)
        at = []
        for table in (a_high, a_low, c_high, turned_high):
            at.append(blocks.in_hbm(written=table))
        _pairs(job=job, at=at, rows=size, columns=size, count=full * (full - 1) // 2)
    _diagonal(job=job, start=0, extent=size, count=full)
    if rest > 0:
        at = (
            blocks.offsets(pattern=[[0, full]], start=first * step),
            blocks.offsets(pattern=[[size * step, full]], start=0),
            blocks.offsets(pattern=[[size, full]], start=first * n),
            blocks.offsets(pattern=[[size * n, full]], start=first),
        )
        _pairs(job=job, at=at, rows=rest, columns=size, count=full)
        _diagonal(job=job, start=first, extent=rest, count=1)
    return c


def _pairs(job, at, rows, columns, count):
    """Blocks below the diagonal; ``at``: tables of their places in a, left and right, in C, and across in C."""

    def pair(t):
        banks = blocks.banks_of(dtype=job["a"].dtype)
        sums = _product(
            job=job, a_at=blocks.entry(table=at[0], t=t), b_at=blocks.entry(table=at[1], t=t), rows=rows,
            columns=columns, lower=False, banks=banks,
        )  # fmt: skip
        _off_diagonal(
            c=job["c"], c0=job["c0"], scales=job["scales"], at=blocks.entry(table=at[2], t=t),
            turned=blocks.entry(table=at[3], t=t), sums=sums, mirrored=job["mirrored"], mirror=job["mirror"],
            pools=job["pools"], banks=banks[0],
        )  # fmt: skip

    nl.fori_loop(0, nisa.register_alloc(count), pair)


def _diagonal(job, start, extent, count):
    """``count`` blocks on the diagonal, the first at row ``start``."""
    step, n = job["a"].shape[1] if job["a_rows"] else 1, job["c"].shape[1]
    a_at = blocks.offsets(pattern=[[extent * step, count]], start=start * step)
    c_at = blocks.offsets(pattern=[[extent * (n + 1), count]], start=start * (n + 1))

    def block(t):
        here = blocks.entry(table=a_at, t=t)
        banks = blocks.banks_of(dtype=job["a"].dtype)
        sums = _product(job=job, a_at=here, b_at=here, rows=extent, columns=extent, lower=True, banks=banks)
        at = blocks.entry(table=c_at, t=t)
        store = _mirrored if job["mirrored"] else _lower
        store(
            c=job["c"], c0=job["c0"], scales=job["scales"], at=at, sums=sums, mirror=job["mirror"],
            upper=job["upper"], pools=job["pools"], banks=banks[0],
        )  # fmt: skip

    nl.fori_loop(0, nisa.register_alloc(count), block)


def _product(job, a_at, b_at, rows, columns, lower, banks):
    """The sums of one block; of a block on the diagonal, those up to it."""
    sums = blocks.zeros(rows=rows, columns=columns)
    blocks.add_products(
        a=job["a"], b=job["a"], a_at=a_at, b_at=b_at, k=job["k"], k_tiles=job["k_tiles"], banks=banks,
        sums=sums, a_rows=job["a_rows"], b_rows=not job["a_rows"], m_size=rows, n_size=columns, pools=job["pools"],
        lower=lower,
    )  # fmt: skip
    return sums


def _walk(count, high, low):
    """high max(i, j) and low min(i, j) for the pairs of ``count`` blocks, once each, as tables on the chip."""
    rounds = count // 2  # the last one half used when the count is even
    found = []
    for part in ((high, nl.maximum), (low, nl.minimum)):
        scale, op = part
        ring = blocks.counted(pattern=[[0, 2], [scale, count]], start=0)
        first = blocks.counted(pattern=[[0, rounds], [scale, count]], start=0)
        second = nl.ndarray((1, rounds * count), dtype=nl.int32, buffer=nl.sbuf)
        # Round d is the ring from d on: j + d mod T without arithmetic.
        turned = ring.ap(pattern=[[2 * count, 1], [1, rounds], [1, count]], offset=1)
        nisa.tensor_copy(dst=second, src=turned, engine=nisa.engine.gpsimd)
        nisa.tensor_tensor(dst=second, data1=first, data2=second, op=op)
        found.append(second)
    return found


def _above_diagonal():
    """(128, 128): 1 above the diagonal, else 0."""
    ones = nl.ndarray((blocks.TILE, blocks.TILE), dtype=nl.uint32, buffer=nl.sbuf)
    nisa.memset(dst=ones, value=1)
    upper = nl.ndarray((blocks.TILE, blocks.TILE), dtype=nl.uint32, buffer=nl.sbuf)
    nisa.affine_select(
        dst=upper, pattern=[[1, blocks.TILE]], channel_multiplier=-1, on_true_tile=ones, on_false_value=0.0,
        cmp_op=nl.greater,
    )  # fmt: skip
    return upper


def _off_diagonal(c, c0, scales, at, turned, sums, mirrored, mirror, pools, banks):
    """Scale and store one block below the diagonal, and what lies across the diagonal from it."""
    n, columns = c.shape[1], sums[0].shape[1]
    rows = (len(sums) - 1) * blocks.TILE + sums[len(sums) - 1].shape[0]
    for i in range(len(sums)):
        height, offset = sums[i].shape[0], i * blocks.TILE * n
        out = pools[1][i % blocks.OUTS][0:height, 0:columns]
        blocks.scale(c0=c0, scales=scales, at=at, offset=offset, tile=sums[i], out=out, old=pools[3][i % blocks.OLDS])
        nisa.dma_copy(dst=blocks.place(x=c, at=at, offset=offset, rows=height, columns=columns), src=out)
        if mirrored:
            _turn(out=out, i=i, count=columns // blocks.TILE, mirror=mirror, banks=banks)
            if columns % blocks.TILE > 0:
                _turn_edge(out=out, i=i, mirror=mirror, banks=banks)
    if not mirrored:
        kept = blocks.place(x=c0, at=turned, offset=0, rows=columns, columns=rows)
        nisa.dma_copy(dst=blocks.place(x=c, at=turned, offset=0, rows=columns, columns=rows), src=kept)
        return
    for q in range(0, columns, blocks.TILE):
        size = min(blocks.TILE, columns - q)
        target = blocks.place(x=c, at=turned, offset=q * n, rows=size, columns=rows)
        nisa.dma_copy(dst=target, src=mirror[0:size, q // blocks.TILE, 0:rows])


def _turn(out, i, count, mirror, banks):
    """The first ``count`` tiles of row strip i into column i of the mirror, up to four by one copy."""
    rows = out.shape[0]
    each = blocks.TILE_N // blocks.TILE
    for q0 in range(0, count, each):
        some = min(each, count - q0)
        bank = banks[(i + q0 // each) % blocks.SUM_BANKS].reshape_dim(1, (each, blocks.TILE))
        for q in range(some):
            left = (q0 + q) * blocks.TILE
            nisa.nc_transpose(dst=bank[:, q, 0:rows], data=out[:, left : left + blocks.TILE], engine=nisa.engine.tensor)
        here = mirror[:, q0 : q0 + some, i * blocks.TILE : i * blocks.TILE + rows]
        nisa.tensor_copy(dst=here, src=bank[:, 0:some, 0:rows], engine=nisa.engine.vector)


def _turn_edge(out, i, mirror, banks):
    """The last, narrower tile of row strip i."""
    rows, columns = out.shape
    q = columns // blocks.TILE
    width = columns - q * blocks.TILE
    bank = banks[i % blocks.SUM_BANKS][0:width, 0:rows]
    nisa.nc_transpose(dst=bank, data=out[:, q * blocks.TILE : columns], engine=nisa.engine.tensor)
    here = mirror[0:width, q, i * blocks.TILE : i * blocks.TILE + rows]
    nisa.tensor_copy(dst=here, src=bank, engine=nisa.engine.vector)


def _mirrored(c, c0, scales, at, sums, mirror, upper, pools, banks):
    """Scale and store a block on the diagonal, its upper triangle the transpose of the lower."""
    n, extent = c.shape[1], sums[0].shape[1]
    for i in range(len(sums)):
        rows = sums[i].shape[0]
        left = i * blocks.TILE
        out = mirror[0:rows, i, 0 : left + rows]
        blocks.scale(
            c0=c0,
            scales=scales,
            at=at,
            offset=left * n,
            tile=sums[i][:, 0 : left + rows],
            out=out,
            old=pools[3][i % blocks.OLDS],
        )
        _turn(out=out, i=i, count=i, mirror=mirror, banks=banks)
        bank = banks[i % blocks.SUM_BANKS][0:rows, 0:rows]
        square = out[:, left : left + rows]
        nisa.nc_transpose(dst=bank, data=square, engine=nisa.engine.tensor)
        nisa.tensor_copy_predicated(dst=square, src=bank, predicate=upper[0:rows, 0:rows])
    for i in range(len(sums)):
        rows = sums[i].shape[0]
        target = blocks.place(x=c, at=at, offset=i * blocks.TILE * n, rows=rows, columns=extent)
        nisa.dma_copy(dst=target, src=mirror[0:rows, i, 0:extent])


def _lower(c, c0, scales, at, sums, mirror, upper, pools, banks):
    """Scale and store a block on the diagonal, its upper triangle that of c0; ``mirror`` is not needed."""
    n, extent = c.shape[1], sums[0].shape[1]
    _, beta = scales
    for i in range(len(sums)):
        rows, left = sums[i].shape[0], i * blocks.TILE
        old = pools[3][i % blocks.OLDS][0:rows, 0:extent]
        nisa.dma_copy(dst=old, src=blocks.place(x=c0, at=at, offset=left * n, rows=rows, columns=extent))
        out = pools[1][i % blocks.OUTS][0:rows, 0 : left + rows]
        blocks.scale(
            c0=None,
            scales=scales,
            at=at,
            offset=0,
            tile=sums[i][:, 0 : left + rows],
            out=out,
            old=pools[3][i % blocks.OLDS],
        )
        nisa.scalar_tensor_tensor(
            dst=out, data=old[:, 0 : left + rows], op0=nl.multiply, operand0=beta[0:rows, :], op1=nl.add, operand1=out
        )
        if left > 0:
            nisa.activation(dst=old[:, 0:left], op=nl.copy, data=out[:, 0:left])
        nisa.tensor_copy_predicated(
            dst=old[:, left : left + rows], src=out[:, left : left + rows], predicate=upper[0:rows, 0:rows],
            reverse_pred=True,
        )  # fmt: skip
        nisa.dma_copy(dst=blocks.place(x=c, at=at, offset=left * n, rows=rows, columns=extent), src=old)
