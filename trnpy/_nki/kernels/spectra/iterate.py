"""What kernels that iterate a polynomial share: products between HBM matrices in one workspace, steps, measures.

A step of the odd polynomial a x + b x^3 + c x^5 on the singular values of X is three products: Y = X^T X,
Z = b Y + c Y Y, X' = a X + X Z. The number of steps is a shape, their coefficients are data.
"""

import nki.isa as nisa
import nki.language as nl

from ..shared import blocks

SIDE = 8  # tiles of a block: 1024 rows and columns
SMALLEST_SIDE = 5  # extents on the ladder of shapes from 512 on are whole blocks of 5 to 8 tiles
STRIP = 2048  # columns that are measured together: runs of 8 KiB in HBM


def side_of(extent):
    """Rows or columns of a block: of equal blocks where there are any."""
    for tiles in range(SIDE, SMALLEST_SIDE - 1, -1):
        if extent % (tiles * blocks.TILE) == 0:
            return tiles * blocks.TILE
    return min(extent, SIDE * blocks.TILE)


def workspace(extents):
    """SBUF tiles for products of matrices with these rows and columns, one product after another."""
    side = 0
    for extent in extents:
        side = max(side, side_of(extent=extent))
    k_tiles = blocks.chunk_tiles(dtype=nl.float32)
    sums = []
    for _ in range(0, side, blocks.TILE):
        sums.append(nl.ndarray((blocks.TILE, side), dtype=nl.float32, buffer=nl.sbuf))
    return {
        "pools": blocks.pools_of(dtype=nl.float32, turned=True, k_tiles=k_tiles, m_size=side, n_size=side),
        "k_tiles": k_tiles, "sums": sums,
    }  # fmt: skip


def constant(value):
    """A number on every partition."""
    tile = nl.ndarray((blocks.TILE, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=tile, value=value, engine=nisa.engine.vector)
    return tile


def multiply(work, a, b, out, transposed=False, alpha=None, c0=None, beta=None):
    """out = alpha A B + beta c0 in HBM, or with A^T; ``out`` is no operand, c0 may be. Scales are tiles or None."""
    k, m = a.shape if transposed else (a.shape[1], a.shape[0])
    n = b.shape[1]
    a_rows = not transposed
    step = a.shape[1] if a_rows else 1  # in a, from one row of the product to the next
    pools = work["pools"]
    for m_piece in blocks.pieces(extent=m, block=side_of(extent=m)):
        m0, m_size, m_count = m_piece
        for n_piece in blocks.pieces(extent=n, block=side_of(extent=n)):
            n0, n_size, n_count = n_piece
            a_at = blocks.offsets(pattern=[[0, n_count], [m_size * step, m_count]], start=m0 * step)
            b_at = blocks.offsets(pattern=[[n_size, n_count], [0, m_count]], start=n0)
            out_at = blocks.offsets(pattern=[[n_size, n_count], [m_size * n, m_count]], start=m0 * n + n0)

            def block(t, a_at=a_at, b_at=b_at, out_at=out_at, m_size=m_size, n_size=n_size):
                sums = blocks.zeros(rows=m_size, columns=n_size, memory=work["sums"])
                blocks.add_products(
                    a=a, b=b, a_at=blocks.entry(table=a_at, t=t), b_at=blocks.entry(table=b_at, t=t), k=k,
                    k_tiles=work["k_tiles"], sums=sums, a_rows=a_rows, b_rows=True, m_size=m_size,
                    n_size=n_size, pools=pools, banks=blocks.banks_of(dtype=a.dtype),
                )  # fmt: skip
                here = blocks.entry(table=out_at, t=t)
                for i in range(len(sums)):
                    rows, offset = sums[i].shape[0], i * blocks.TILE * n
                    tile = pools[1][i % blocks.OUTS][0:rows, 0:n_size]
                    blocks.scale(
                        c0=c0, scales=(alpha, beta), at=here, offset=offset, tile=sums[i], out=tile,
                        old=pools[3][i % blocks.OLDS],
                    )  # fmt: skip
                    nisa.dma_copy(dst=blocks.place(x=out, at=here, offset=offset, rows=rows, columns=n_size), src=tile)

            nl.fori_loop(0, nisa.register_alloc(m_count * n_count), block)


def step(work, x, out, y, z, coefficients):
    """out = a X + X (b Y + c Y Y) with Y = X^T X; y and z (columns, columns) are overwritten, coefficients (128, 3)."""
    a, b, c = coefficients[:, 0:1], coefficients[:, 1:2], coefficients[:, 2:3]
    multiply(work=work, a=x, b=x, out=y, transposed=True)
    multiply(work=work, a=y, b=y, out=z, transposed=True, alpha=c, c0=y, beta=b)
    multiply(work=work, a=x, b=z, out=out, c0=x, beta=a)


def steps(work, x, other, y, z, coefficients):
    """An even number of steps on x in place, through ``other``; coefficients (steps, 3) in HBM."""
    pattern = [[0, blocks.TILE], [1, 2 * 3]]
    for first in range(0, coefficients.shape[0], 2):
        here = nl.ndarray((blocks.TILE, 2 * 3), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=here, src=blocks.flat(coefficients).ap(pattern=pattern, offset=3 * first))
        step(work=work, x=x, out=other, y=y, z=z, coefficients=here[:, 0:3])
        step(work=work, x=other, out=x, y=y, z=z, coefficients=here[:, 3:6])


def measure(x, less_identity=False):
    """(128, 2) on the chip, to be summed over rows: the trace of x (N, N) in HBM, and the sum of its squares.

    ``less_identity``: 1 is taken from the diagonal first, in HBM, so that small differences from I are not lost.
    """
    n = x.shape[1]
    found = nl.ndarray((blocks.TILE, 2), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=found, value=0.0, engine=nisa.engine.vector)
    identity = nl.ndarray((blocks.TILE, blocks.TILE), dtype=nl.float32, buffer=nl.sbuf)
    ones = nl.ndarray((blocks.TILE, blocks.TILE), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=ones, value=1.0, engine=nisa.engine.vector)
    nisa.affine_select(
        dst=identity, pattern=[[1, blocks.TILE]], channel_multiplier=-1, on_true_tile=ones, on_false_value=0.0,
        cmp_op=nl.equal,
    )  # fmt: skip
    for item in blocks.pieces(extent=n, block=blocks.TILE):
        start, size, count = item
        at = blocks.offsets(pattern=[[size * (n + 1), count]], start=start * (n + 1))

        def diagonal(t, at=at, size=size):
            here = blocks.entry(table=at, t=t)
            tile = nl.ndarray((size, size), dtype=nl.float32, buffer=nl.sbuf)
            nisa.dma_copy(dst=tile, src=blocks.place(x=x, at=here, offset=0, rows=size, columns=size))
            if less_identity:
                nisa.tensor_tensor(dst=tile, data1=tile, data2=identity[0:size, 0:size], op=nl.subtract)
                nisa.dma_copy(dst=blocks.place(x=x, at=here, offset=0, rows=size, columns=size), src=tile)
            part = nl.ndarray((size, size), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_tensor(dst=part, data1=tile, data2=identity[0:size, 0:size], op=nl.multiply)
            _add(tile=part, to=found[0:size, 0:1])

        nl.fori_loop(0, nisa.register_alloc(count), diagonal)
    for item in blocks.pieces(extent=n, block=blocks.TILE):
        start, size, count = item
        for columns_piece in blocks.pieces(extent=n, block=STRIP):
            column, width, columns = columns_piece
            at = blocks.offsets(pattern=[[size * n, count], [width, columns]], start=start * n + column)

            def strip(t, at=at, size=size, width=width):
                tile = nl.ndarray((size, width), dtype=nl.float32, buffer=nl.sbuf)
                here = blocks.entry(table=at, t=t)
                nisa.dma_copy(dst=tile, src=blocks.place(x=x, at=here, offset=0, rows=size, columns=width))
                squares = nl.ndarray((size, width), dtype=nl.float32, buffer=nl.sbuf)
                nisa.tensor_tensor(dst=squares, data1=tile, data2=tile, op=nl.multiply)
                _add(tile=squares, to=found[0:size, 1:2])

            nl.fori_loop(0, nisa.register_alloc(count * columns), strip)
    return found


def _add(tile, to):
    """Add the sums of the rows of a tile."""
    total = nl.ndarray((tile.shape[0], 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=total, op=nl.add, data=tile, axis=1, keepdims=True)
    nisa.tensor_tensor(dst=to, data1=to, data2=total, op=nl.add)
