"""C = alpha A A^T + beta C0, or A^T A: symmetric products with the work of one triangle, in float32.

Blocks from the diagonal down are computed column by column; the upper triangle is their transpose through TensorE, bit
for bit, or that of C0. All blocks of a column have the same right operand, which stays on the chip if 512 columns of it
fit. If K runs along the rows of A, the first column transposes all other parts, which it needs anyway, and stores them
in HBM for later columns. This spreads transfers evenly, which on trn1 take nearly as long as products; row by row, the
first two rows would wait for them. Columns have unequal lengths, so there is no device loop: 8192^3 has 64,000
instructions.

A Hermitian product of complex matrices X + iY is composed by its caller: X X^T + Y Y^T is two calls with
beta = 1, and Y X^T - X Y^T = Z - Z^T is one matmul Z = Y X^T.
"""

import nki
import nki.isa as nisa
import nki.language as nl

from ..shared import blocks

ROWS = 1024  # of a block below the diagonal
SBUF_BYTES = 172 * 1024  # of a partition, for all tiles on any machine: trn1 has 4 KiB more
PADDING = 64  # of a row in HBM: rows a power of two of bytes apart move at half the rate on trn1


@nki.jit
def syrk(a, alpha=None, c0=None, beta=None, a_rows=True, mirrored=True, tiles=8, k_tiles=None):
    """(N, N) float32 from a in HBM: (N, K) if a_rows, else (K, N).

    alpha, beta: (1, 1) float32; c0: (N, N) float32, of which the product reads the lower triangle only.
    ``mirrored``: the upper triangle is the lower one's transpose; else c0's, which must be given.
    """
    n, k = a.shape if a_rows else (a.shape[1], a.shape[0])
    assert mirrored or c0 != None  # noqa: E711 - NKI has no `is`
    c = nl.ndarray((n, n), dtype=nl.float32, buffer=nl.shared_hbm)
    depth, item = (k + blocks.TILE - 1) // blocks.TILE, 4 if a.dtype == nl.float32 else 2
    fitting = min(tiles, blocks.HELD_BYTES // (depth * blocks.TILE * item))
    held = fitting * blocks.TILE >= min(n, min(tiles * blocks.TILE, blocks.TILE_N))
    width = blocks.even(extent=n, most=fitting if held else tiles)
    height = min(max(ROWS, width), n)
    most = min(depth, k_tiles or blocks.chunk_tiles(dtype=a.dtype))
    k_tiles = _chunk(depth=depth if held else 0, width=width, height=height, item=item, most=most)
    mirror = []
    for _ in range(0, width, blocks.TILE):
        mirror.append(nl.ndarray((blocks.TILE, height), dtype=nl.float32, buffer=nl.sbuf))
    pools = blocks.pools_of(
        dtype=a.dtype, turned=a_rows, lefts=blocks.HALVES * k_tiles,
        rights=depth if held else blocks.HALVES * k_tiles, k_tiles=k_tiles, m_size=height, n_size=width,
    )  # fmt: skip
    job = {
        "c": c, "c0": c0, "mirrored": mirrored, "upper": _above_diagonal(), "mirror": mirror, "pools": pools,
        "scales": (blocks.broadcast(scalar=alpha), blocks.broadcast(scalar=beta)),
    }  # fmt: skip
    work = {
        "a": a, "k": k, "k_tiles": k_tiles, "held": held, "job": job, "finish": _finish, "pools": pools, "kept": None,
    }  # fmt: skip
    if a_rows and width < n:
        work["kept"] = nl.ndarray((k, n + PADDING), dtype=a.dtype, buffer=nl.private_hbm)
    blocks.start_row(job=work)
    chunks = []
    for first in range(0, n, width):
        chunks.extend(_column(work=work, n=n, first=first, width=min(width, n - first), height=height, a_rows=a_rows))
        if first + width >= n or depth <= k_tiles:  # the next column would overwrite a single chunk too early
            blocks.follow(job=work, chunks=chunks, load=_panels)
            chunks = []
    return c


def _chunk(depth, width, height, item, most):
    """The most tiles of K in a chunk: as many as fit besides ``depth`` kept tiles, sums, mirror and results."""
    rows = (height + blocks.TILE - 1) // blocks.TILE + blocks.OUTS + blocks.OLDS
    mirror = (width + blocks.TILE - 1) // blocks.TILE * height
    taken = depth * width * item + 4 * rows * width + 4 * mirror
    streamed = blocks.STRIPS * blocks.TILE + blocks.HALVES * (height if depth > 0 else height + width)
    return max(1, min(most, (SBUF_BYTES - taken) // (item * streamed)))


def _column(work, n, first, width, height, a_rows):
    """The chunks of a column of blocks: the block on the diagonal, then those below it.

    Each has the arguments of ``_panels``: the matrix with its parts of A, whether K runs along its rows, the start of
    both parts in it, and the part of the right one that is loaded.
    """
    chunks, loaded = [], []
    turned = a_rows and first == 0
    x = work["kept"] if a_rows and first > 0 else work["a"]
    step = x.shape[1] if turned else 1
    starts = [(first, width)]
    for m0 in range(first + width, n, height):
        starts.append((m0, min(height, n - m0)))
    for start in starts:
        m0, rows = start
        block = (m0, rows, first, width, m0 == first)
        for k0 in range(0, work["k"], work["k_tiles"] * blocks.TILE):
            chunks.append((block, k0, (x, turned, m0 * step, first * step, loaded)))
    return chunks


def _panels(job, chunk, slot):
    """Both parts of A in a chunk, the left one in half ``slot``; on the diagonal they are the same."""
    block, k0, more = chunk
    m0, rows, _, width, diagonal = block
    x, turned, left_at, right_at, loaded = more
    pools, k_tiles = job["pools"], job["k_tiles"]
    depth, index = min(k_tiles * blocks.TILE, job["k"] - k0), k0 // (k_tiles * blocks.TILE)
    if len(loaded) <= index or not job["held"]:
        right = blocks.panel(
            x=x, at=(None, right_at), k0=k0, depth=depth, size=width, k_inside=turned, banks=job["turns"],
            memory=pools["rights"][k0 // blocks.TILE if job["held"] else slot * k_tiles :], strips_of=pools["strips"],
            identity=pools["identity"],
        )  # fmt: skip
        loaded.append(right)
    else:
        right = loaded[index]
    if diagonal:
        return (right, right)
    left = blocks.panel(
        x=x, at=(None, left_at), k0=k0, depth=depth, size=rows, k_inside=turned, banks=job["turns"],
        memory=pools["lefts"][slot * k_tiles :], strips_of=pools["strips"],
        identity=pools["identity"],
    )  # fmt: skip
    if turned:
        kept = job["kept"]
        for q in range(len(left)):
            target = blocks.place(
                x=kept, at=(None, (k0 + q * blocks.TILE) * kept.shape[1] + m0), offset=0, rows=left[q].shape[0],
                columns=rows,
            )  # fmt: skip
            nisa.dma_copy(dst=target, src=left[q])
    return (left, right)


def _finish(job, sums, at, n0):
    """Scale and store one block, and its mirror image across the diagonal."""
    if n0 < at:
        _off_diagonal(job=job, sums=sums, at=at, n0=n0)
    elif job["mirrored"]:
        _mirrored(job=job, sums=sums, at=at, n0=n0)
    else:
        _lower(job=job, sums=sums, at=at, n0=n0)


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


def _off_diagonal(job, sums, at, n0):
    """A block below the diagonal."""
    c, c0, mirror, pools, banks = job["c"], job["c0"], job["mirror"], job["pools"], job["banks"]
    n, columns = c.shape[1], sums[0].shape[1]
    rows = (len(sums) - 1) * blocks.TILE + sums[len(sums) - 1].shape[0]
    across = (None, n0 * n + at)
    for i in range(len(sums)):
        height, offset = sums[i].shape[0], i * blocks.TILE * n + n0
        out = pools["outs"][i % blocks.OUTS][0:height, 0:columns]
        blocks.scale(
            c0=c0, scales=job["scales"], at=(None, at * n), offset=offset, tile=sums[i], out=out,
            old=pools["olds"][i % blocks.OLDS],
        )  # fmt: skip
        nisa.dma_copy(dst=blocks.place(x=c, at=(None, at * n), offset=offset, rows=height, columns=columns), src=out)
        if job["mirrored"]:
            _turn(out=out, columns=columns, i=i, mirror=mirror, banks=banks)
    if not job["mirrored"]:
        kept = blocks.place(x=c0, at=across, offset=0, rows=columns, columns=rows)
        nisa.dma_copy(dst=blocks.place(x=c, at=across, offset=0, rows=columns, columns=rows), src=kept)
        return
    for q in range(0, columns, blocks.TILE):
        size = min(blocks.TILE, columns - q)
        target = blocks.place(x=c, at=across, offset=q * n, rows=size, columns=rows)
        nisa.dma_copy(dst=target, src=mirror[q // blocks.TILE][0:size, 0:rows])


def _turn(out, columns, i, mirror, banks):
    """The first ``columns`` of row strip i into column i of the mirror."""
    rows = out.shape[0]
    for q in range(0, columns, blocks.TILE):
        width, used = min(blocks.TILE, columns - q), q // blocks.TILE
        bank = banks[(i + used) % blocks.SUM_BANKS][0:width, 0:rows]
        nisa.nc_transpose(dst=bank, data=out[:, q : q + width], engine=nisa.engine.tensor)
        here = mirror[used][0:width, i * blocks.TILE : i * blocks.TILE + rows]
        nisa.tensor_copy(dst=here, src=bank, engine=nisa.engine.vector)


def _mirrored(job, sums, at, n0):
    """A block on the diagonal, its upper triangle the transpose of the lower."""
    c, mirror, upper, banks = job["c"], job["mirror"], job["upper"], job["banks"]
    n, extent = c.shape[1], sums[0].shape[1]
    for i in range(len(sums)):
        rows = sums[i].shape[0]
        left = i * blocks.TILE
        out = mirror[i][0:rows, 0 : left + rows]
        blocks.scale(
            c0=job["c0"], scales=job["scales"], at=(None, at * n), offset=left * n + n0,
            tile=sums[i][:, 0 : left + rows], out=out, old=job["pools"]["olds"][i % blocks.OLDS],
        )  # fmt: skip
        _turn(out=out, columns=left, i=i, mirror=mirror, banks=banks)
        bank = banks[i % blocks.SUM_BANKS][0:rows, 0:rows]
        square = out[:, left : left + rows]
        nisa.nc_transpose(dst=bank, data=square, engine=nisa.engine.tensor)
        nisa.tensor_copy_predicated(dst=square, src=bank, predicate=upper[0:rows, 0:rows])
    for i in range(len(sums)):
        rows = sums[i].shape[0]
        target = blocks.place(x=c, at=(None, at * n), offset=i * blocks.TILE * n + n0, rows=rows, columns=extent)
        nisa.dma_copy(dst=target, src=mirror[i][0:rows, 0:extent])


def _lower(job, sums, at, n0):
    """A block on the diagonal, its upper triangle that of c0."""
    c, c0, upper, pools = job["c"], job["c0"], job["upper"], job["pools"]
    n, extent = c.shape[1], sums[0].shape[1]
    _, beta = job["scales"]
    for i in range(len(sums)):
        rows, left = sums[i].shape[0], i * blocks.TILE
        old = pools["olds"][i % blocks.OLDS][0:rows, 0:extent]
        nisa.dma_copy(
            dst=old, src=blocks.place(x=c0, at=(None, at * n), offset=left * n + n0, rows=rows, columns=extent)
        )
        out = pools["outs"][i % blocks.OUTS][0:rows, 0 : left + rows]
        blocks.scale(
            c0=None,
            scales=job["scales"],
            at=(None, at * n),
            offset=0,
            tile=sums[i][:, 0 : left + rows],
            out=out,
            old=old,
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
        nisa.dma_copy(
            dst=blocks.place(x=c, at=(None, at * n), offset=left * n + n0, rows=rows, columns=extent), src=old
        )
