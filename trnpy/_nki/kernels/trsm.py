"""X with op(A) X = alpha B or X op(A) = alpha B for a triangular A and many right-hand sides, in float32.

The inverses of the 128 x 128 diagonal tiles are computed on the chip: tiles of 16 by substitution, all of a
panel at once, then M - M B M for twice the size, three times, which is the block inverse and exact in exact
arithmetic. (The product form (I + N)(I + N^2)(I + N^4)... of the nilpotent part would be shorter, but its
powers grow like binomials and cancel.) All else is products: a panel of up to 1024 rows subtracts those of
the panels before it and is solved tile by tile. X op(A) = alpha B is solved transposed, through TensorE.

Only the triangle named is read for the result, but a NaN or a zero on the diagonal spreads over its tile of
128 and all that follows: singular matrices are for the caller to refuse.
Products of float64 accuracy cannot be made of these: a driver runs the same recursion over matched products.
"""

import nki
import nki.isa as nisa
import nki.language as nl

from . import blocks, transpose, triangular

COLUMNS = 2  # PSUM banks of right-hand sides in a block
TURN_TILES = 8  # of the transposes before and after


@nki.jit
def trsm(a, b, alpha=None, right=False, lower=True, transposed=False, unit=False, tiles=8):
    """X, of the shape of b, from a (N, N) and b (N, R), or (R, N) if ``right``; float32 in HBM.

    op(A) is A, or its transpose if ``transposed``; ``lower``: which triangle of a is read; ``unit``: its diagonal
    is 1 and is not used. alpha: (1, 1) float32.
    """
    x = nl.ndarray(b.shape, dtype=nl.float32, buffer=nl.shared_hbm)
    if not right:
        _left(a=a, b=b, x=x, alpha=alpha, lower=lower, transposed=transposed, unit=unit, tiles=tiles)
        return x
    turned = nl.ndarray((b.shape[1], b.shape[0]), dtype=nl.float32, buffer=nl.private_hbm)
    solved = nl.ndarray((b.shape[1], b.shape[0]), dtype=nl.float32, buffer=nl.private_hbm)
    transpose.turn(x=b, out=turned, m_tiles=TURN_TILES, n_tiles=TURN_TILES)
    _left(a=a, b=turned, x=solved, alpha=alpha, lower=lower, transposed=not transposed, unit=unit, tiles=tiles)
    transpose.turn(x=solved, out=x, m_tiles=TURN_TILES, n_tiles=TURN_TILES)
    return x


def _left(a, b, x, alpha, lower, transposed, unit, tiles):
    """T X = alpha B with T = A or its transpose, panel by panel from the end where T begins."""
    n, r = b.shape
    forward = lower != transposed
    size = min(tiles * blocks.TILE, n)
    full, rest = n // size, n % size
    count = (n + blocks.TILE - 1) // blocks.TILE
    inverses = nl.ndarray((count * blocks.TILE, blocks.TILE), dtype=nl.float32, buffer=nl.private_hbm)
    triangular.invert_tiles(a=a, out=inverses, lower=lower, turned=forward, unit=unit, size=size)
    k_tiles = blocks.chunk_tiles(dtype=a.dtype)
    row, column = (1, n) if transposed else (n, 1)  # in a, from one row of T to the next, and one column
    diagonal, solutions, sums = [], [], []
    width = min(r, COLUMNS * blocks.TILE_N)
    for _ in range(0, size, blocks.TILE):
        diagonal.append(nl.ndarray((blocks.TILE, size), dtype=nl.float32, buffer=nl.sbuf))
        solutions.append(nl.ndarray((blocks.TILE, width), dtype=nl.float32, buffer=nl.sbuf))
        sums.append(nl.ndarray((blocks.TILE, width), dtype=nl.float32, buffer=nl.sbuf))
    job = {
        "a": a, "b": b, "x": x, "a_rows": not transposed, "forward": forward, "size": size, "k_tiles": k_tiles,
        "inverses": inverses, "diagonal": diagonal, "solutions": solutions, "sums": sums,
        "alpha": blocks.broadcast(scalar=alpha),
        "columns_at": _order(step=size * column, count=full, forward=forward),
        "solved_at": _order(step=size * r, count=full, forward=forward),
        "pools": blocks.pools_of(
            dtype=a.dtype, turned=not transposed, k_tiles=k_tiles, m_size=size, n_size=width
        ),
    }  # fmt: skip
    last = full * size  # first row of what is left after the full panels
    places = []
    for step in (size * row, size * (n + 1), size * r, size * blocks.TILE):
        places.append(_order(step=step, count=full, forward=forward))
    ends = []
    for start in (last * row, last * (n + 1), last * r, last * blocks.TILE):
        ends.append(blocks.offsets(pattern=[[0, 1]], start=start))

    def panel(p):
        _panel(job=job, places=places, p=p, extent=size, solved=p if full > 1 else None, left=0 if forward else rest)

    if rest > 0 and not forward:
        _panel(job=job, places=ends, p=0, extent=rest, solved=None, left=0)
    nl.fori_loop(0, full, panel)
    if rest > 0 and forward:
        _panel(job=job, places=ends, p=0, extent=rest, solved=full, left=0)


def _order(step, count, forward):
    """Offsets of the full panels, in the order in which they are solved."""
    if forward:
        return blocks.offsets(pattern=[[step, count]], start=0)
    return blocks.offsets(pattern=[[-step, count]], start=step * (count - 1))


def _panel(job, places, p, extent, solved, left):
    """Solve one panel: ``solved`` full ones are known if not None, and the ``left`` rows after the full ones."""
    at = []
    for table in places:
        at.append(blocks.entry(table=table, t=p))
    a, b = job["a"], job["b"]
    r = b.shape[1]
    chunk = job["k_tiles"] * blocks.TILE
    diagonal = []
    for k0 in range(0, extent, chunk):
        found = blocks.panel(
            x=a, at=at[1], k0=k0, depth=min(chunk, extent - k0), size=extent, k_inside=job["a_rows"],
            memory=job["diagonal"][k0 // blocks.TILE :], pools=job["pools"],
        )  # fmt: skip
        diagonal.extend(found)
    inverses = nl.ndarray((blocks.TILE, len(diagonal), blocks.TILE), dtype=nl.float32, buffer=nl.sbuf)
    pattern = [[blocks.TILE, blocks.TILE], [blocks.TILE * blocks.TILE, len(diagonal)], [1, blocks.TILE]]
    source = blocks.flat(job["inverses"]).ap(pattern=pattern, offset=0, scalar_offset=at[3], indirect_dim=0)
    nisa.dma_copy(dst=inverses, src=source)
    for c_piece in blocks.pieces(extent=r, block=COLUMNS * blocks.TILE_N):
        c0, width, count = c_piece
        c_at = blocks.offsets(pattern=[[width, count]], start=c0)

        def columns(t, c_at=c_at, width=width):
            here = blocks.entry(table=c_at, t=t)
            sums = blocks.zeros(rows=extent, columns=width, memory=job["sums"])
            _known(job=job, row_at=at[0], here=here, sums=sums, solved=solved, left=left, extent=extent, width=width)
            _solve(
                job=job, at=blocks.entry(table=c_at, t=t, start=at[2]), diagonal=diagonal, inverses=inverses,
                sums=sums, width=width,
            )  # fmt: skip

        nl.fori_loop(0, count, columns)


def _known(job, row_at, here, sums, solved, left, extent, width):
    """Sum the products of this panel's rows of T with what is known of X."""
    chunk = job["k_tiles"] * blocks.TILE
    size, last = job["size"], job["b"].shape[0] - left

    def one(j):
        a_at = blocks.entry(table=job["columns_at"], t=j, start=row_at)
        b_at = blocks.entry(table=job["solved_at"], t=j, start=here)
        for k0 in range(0, size, chunk):
            blocks.add_chunk(
                a=job["a"], b=job["x"], a_at=a_at, b_at=b_at, k0=k0, depth=min(chunk, size - k0),
                half=k0 // chunk % blocks.HALVES, sums=sums, a_rows=job["a_rows"], b_rows=True, m_size=extent,
                n_size=width, pools=job["pools"],
            )  # fmt: skip

    if solved != None:  # noqa: E711 - NKI has no `is`
        nl.fori_loop(0, solved, one)
    for k0 in range(0, left, chunk):
        blocks.add_chunk(
            a=job["a"], b=job["x"], a_at=row_at, b_at=here, k0=last + k0, depth=min(chunk, left - k0),
            half=k0 // chunk % blocks.HALVES, sums=sums, a_rows=job["a_rows"], b_rows=True, m_size=extent,
            n_size=width, pools=job["pools"],
        )  # fmt: skip


def _solve(job, at, diagonal, inverses, sums, width):
    """Solve the panel on the diagonal tile by tile, alpha B less the sums on its right."""
    b, banks, olds = job["b"], job["pools"][0], job["pools"][5]
    count = len(sums)
    order = range(count) if job["forward"] else range(count - 1, -1, -1)
    known = []
    used = 0
    for i in order:
        rows = sums[i].shape[0]
        alpha = 1.0 if job["alpha"] == None else job["alpha"][0:rows, :]  # noqa: E711
        solution = job["solutions"][i][0:rows, 0:width]
        old = olds[i % blocks.OLDS][0:rows, 0:width]
        offset = i * blocks.TILE * b.shape[1]
        nisa.dma_copy(dst=old, src=blocks.place(x=b, at=at, offset=offset, rows=rows, columns=width))
        nisa.scalar_tensor_tensor(
            dst=solution, data=old, op0=nl.multiply, operand0=alpha, op1=nl.subtract, operand1=sums[i]
        )
        for n0 in range(0, width, blocks.TILE_N):
            here = solution[:, n0 : min(width, n0 + blocks.TILE_N)]
            bank = banks[used % blocks.SUM_BANKS][0:rows, 0 : here.shape[1]]
            for q in range(len(known)):
                nisa.nc_matmul(
                    dst=bank,
                    stationary=diagonal[known[q]][:, i * blocks.TILE : i * blocks.TILE + rows],
                    moving=job["solutions"][known[q]][0 : sums[known[q]].shape[0], n0 : n0 + here.shape[1]],
                    accumulate=q > 0,
                )
            if len(known) > 0:
                nisa.tensor_tensor(dst=here, data1=here, data2=bank, op=nl.subtract)
            bank = banks[(used + 1) % blocks.SUM_BANKS][0:rows, 0 : here.shape[1]]
            nisa.nc_matmul(dst=bank, stationary=inverses[0:rows, i, 0:rows], moving=here, accumulate=False)
            nisa.activation(dst=here, op=nl.copy, data=bank)
            used += 2
        known.append(i)
        target = blocks.place(x=job["x"], at=at, offset=offset, rows=rows, columns=width)
        nisa.dma_copy(dst=target, src=solution)
