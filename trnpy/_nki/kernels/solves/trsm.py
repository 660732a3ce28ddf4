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

from ..products import transpose
from ..shared import blocks
from . import triangular

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
    diagonal, solutions, sums = [], [], []
    width = min(r, COLUMNS * blocks.TILE_N)
    for _ in range(0, size, blocks.TILE):
        diagonal.append(nl.ndarray((blocks.TILE, size), dtype=nl.float32, buffer=nl.sbuf))
        solutions.append(nl.ndarray((blocks.TILE, width), dtype=nl.float32, buffer=nl.sbuf))
        sums.append(nl.ndarray((blocks.TILE, width), dtype=nl.float32, buffer=nl.sbuf))
    job = {
        "a": a, "b": b, "x": x, "a_rows": not transposed, "forward": forward, "k_tiles": k_tiles,
        "inverses": inverses, "diagonal": diagonal, "solutions": solutions, "sums": sums,
        "alpha": blocks.broadcast(scalar=alpha),
        "pools": blocks.pools_of(
            dtype=a.dtype, turned=not transposed, k_tiles=k_tiles, m_size=size, n_size=width
        ),
    }  # fmt: skip
    order = []
    for p in range(full):
        order.append((p * size, size))
    if rest > 0:
        order.append((full * size, rest))
    if not forward:
        order.reverse()
    for p in range(len(order)):
        _panel(job=job, first=order[p][0], extent=order[p][1], known=order[0:p])


def _panel(job, first, extent, known):
    """Solve the ``extent`` rows from ``first`` on; ``known``: (first, rows) of the panels that are solved."""
    a, b = job["a"], job["b"]
    n, r = b.shape
    chunk = job["k_tiles"] * blocks.TILE
    diagonal = []
    _, turns = blocks.banks_of(dtype=a.dtype)
    for k0 in range(0, extent, chunk):
        found = blocks.panel(
            x=a, at=None, k0=k0, depth=min(chunk, extent - k0), size=extent, k_inside=job["a_rows"],
            memory=job["diagonal"][k0 // blocks.TILE :], strips_of=job["pools"][0], banks=turns, base=first * (n + 1),
        )  # fmt: skip
        diagonal.extend(found)
    inverses = nl.ndarray((blocks.TILE, len(diagonal), blocks.TILE), dtype=nl.float32, buffer=nl.sbuf)
    pattern = [[blocks.TILE, blocks.TILE], [blocks.TILE * blocks.TILE, len(diagonal)], [1, blocks.TILE]]
    nisa.dma_copy(dst=inverses, src=blocks.flat(job["inverses"]).ap(pattern=pattern, offset=first * blocks.TILE))
    row = n if job["a_rows"] else 1  # in a, from one row of T to the next
    for c_piece in blocks.pieces(extent=r, block=COLUMNS * blocks.TILE_N):
        c0, width, count = c_piece
        c_at = blocks.offsets(pattern=[[width, count]], start=c0)
        a_at = blocks.offsets(pattern=[[0, count]], start=first * row)  # a loop reads inputs at run-time addresses only

        def columns(t, c_at=c_at, a_at=a_at, width=width):
            here, rows_at = blocks.entry(table=c_at, t=t), blocks.entry(table=a_at, t=t)
            banks = blocks.banks_of(dtype=a.dtype)
            sums = blocks.zeros(rows=extent, columns=width, memory=job["sums"])
            for p in range(len(known)):
                start, rows = known[p]
                for k0 in range(0, rows, chunk):
                    blocks.add_chunk(
                        a=a, b=job["x"], a_at=rows_at, b_at=here, k0=start + k0, depth=min(chunk, rows - k0),
                        half=k0 // chunk % blocks.HALVES, sums=sums, a_rows=job["a_rows"], b_rows=True,
                        m_size=extent, n_size=width, pools=job["pools"], banks=banks,
                    )  # fmt: skip
            _solve(
                job=job, at=here, first=first, diagonal=diagonal, inverses=inverses, sums=sums, width=width,
                banks=banks[0],
            )  # fmt: skip

        nl.fori_loop(0, nisa.register_alloc(count), columns)


def _solve(job, at, first, diagonal, inverses, sums, width, banks):
    """Solve the panel on the diagonal tile by tile, alpha B less the sums on its right."""
    b, olds = job["b"], job["pools"][3]
    order = []
    for i in range(len(sums)):
        order.append(i)
    if not job["forward"]:
        order.reverse()
    known = []
    used = 0
    for i in order:
        rows = sums[i].shape[0]
        alpha = 1.0 if job["alpha"] == None else job["alpha"][0:rows, :]  # noqa: E711
        solution = job["solutions"][i][0:rows, 0:width]
        old = olds[i % blocks.OLDS][0:rows, 0:width]
        offset = (first + i * blocks.TILE) * b.shape[1]
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
