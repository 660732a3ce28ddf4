"""X with op(A) X = alpha B or X op(A) = alpha B for a triangular A and many right-hand sides, in float32.

The inverses of the 128 x 128 diagonal tiles are computed on the chip: tiles of 16 by substitution, all of a
panel at once, then M - M B M for twice the size, three times, which is the block inverse and exact in exact
arithmetic. (The product form (I + N)(I + N^2)(I + N^4)... of the nilpotent part would be shorter, but its
powers grow like binomials and cancel.) The rest consists of products: a panel of up to 1024 rows subtracts
the products with the previous panels and is solved tile by tile. X op(A) = alpha B is solved transposed,
through TensorE.

Only the chosen triangle is read for the result, but a NaN or a zero on the diagonal spreads over its tile of
128 and all that follow: the caller must refuse singular matrices.
This kernel cannot give float64 accuracy: a driver runs the same recursion over float64 products.
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

    op(A) is A, or its transpose if ``transposed``; ``lower``: read the lower triangle of a; ``unit``: its diagonal
    is 1 and is not read. alpha: (1, 1) float32.
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
    diagonal, solutions = [], []
    width = min(r, COLUMNS * blocks.TILE_N)
    for _ in range(0, size, blocks.TILE):
        diagonal.append(nl.ndarray((blocks.TILE, size), dtype=nl.float32, buffer=nl.sbuf))
        solutions.append(nl.ndarray((blocks.TILE, width), dtype=nl.float32, buffer=nl.sbuf))
    job = {
        "a": a, "b": b, "x": x, "a_rows": not transposed, "forward": forward, "inverses": inverses,
        "diagonal": diagonal, "solutions": solutions, "alpha": blocks.broadcast(scalar=alpha),
    }  # fmt: skip
    # On trn1, which has less memory, chunks of K are shorter, although longer ones need fewer instructions.
    k_tiles = 3 if nisa.get_nc_version() < nisa.nc_version.gen3 else blocks.chunk_tiles(dtype=a.dtype)
    work = blocks.row_work(
        job=job, a=a, b=x, m_block=size, n_block=width, k=n, k_tiles=k_tiles, a_rows=not transposed, b_rows=True,
        held=False, finish=None,
    )  # fmt: skip
    job["k_tiles"] = work["k_tiles"]
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
            x=a, at=(None, first * (n + 1)), k0=k0, depth=min(chunk, extent - k0), size=extent, k_inside=job["a_rows"],
            memory=job["diagonal"][k0 // blocks.TILE :], strips_of=job["pools"]["strips"], banks=turns,
        )  # fmt: skip
        diagonal.extend(found)
    inverses = nl.ndarray((blocks.TILE, len(diagonal), blocks.TILE), dtype=nl.float32, buffer=nl.sbuf)
    pattern = [[blocks.TILE, blocks.TILE], [blocks.TILE * blocks.TILE, len(diagonal)], [1, blocks.TILE]]
    nisa.dma_copy(dst=inverses, src=blocks.flat(job["inverses"]).ap(pattern=pattern, offset=first * blocks.TILE))
    row = n if job["a_rows"] else 1  # in a, from one row of T to the next
    job["panel"] = {"first": first, "extent": extent, "known": known, "diagonal": diagonal, "inverses": inverses}
    tiles, depth = len(diagonal), 0
    for item in known:
        depth = depth + (item[1] + blocks.TILE - 1) // blocks.TILE
    for c_piece in blocks.pieces(extent=r, block=COLUMNS * blocks.TILE_N):
        c0, width, count = c_piece
        job["width"] = width
        spots = ([([[width, count]], c0)], [([[0, count]], first * row)])
        steps = (depth + tiles) * tiles * (COLUMNS + 2)
        blocks.walk(job=job, start=_start, body=_columns, spots=spots, steps=steps)


def _start(job):
    """PSUM of an iteration."""
    banks, turns = blocks.banks_of(dtype=job["a"].dtype)
    job["banks"] = banks
    job["turns"] = turns


def _columns(job, at):
    """Some columns of one panel: products with the previous panels, then the panel itself."""
    a, panel, pools, width = job["a"], job["panel"], job["pools"], job["width"]
    extent, k_tiles = panel["extent"], job["k_tiles"]
    chunk, sums, turn = k_tiles * blocks.TILE, [], 0
    for i in range(0, extent, blocks.TILE):
        sums.append(pools["sums"][i // blocks.TILE][0 : min(blocks.TILE, extent - i), 0:width])
    for item in panel["known"]:
        start, rows = item
        for k0 in range(0, rows, chunk):
            depth, slot = min(chunk, rows - k0), turn % blocks.HALVES * k_tiles
            left = blocks.panel(
                x=a, at=at[1], k0=start + k0, depth=depth, size=extent, k_inside=job["a_rows"],
                memory=pools["lefts"][slot:], strips_of=pools["strips"], banks=job["turns"],
            )  # fmt: skip
            right = blocks.panel(
                x=job["x"], at=at[0], k0=start + k0, depth=depth, size=width, k_inside=False,
                memory=pools["rights"][slot:], strips_of=pools["strips"], banks=job["turns"],
            )  # fmt: skip
            blocks.add_tiles(
                lefts=left, rights=right, sums=sums, m_size=extent, n_size=width, banks=job["banks"], begun=turn > 0
            )
            turn = turn + 1
    _solve(job=job, at=at[0], sums=sums, begun=turn > 0)


def _solve(job, at, sums, begun):
    """Solve the panel on the diagonal tile by tile, alpha B less the sums on its right, if these have ``begun``."""
    b, olds, panel, banks, width = job["b"], job["pools"]["olds"], job["panel"], job["banks"], job["width"]
    first, diagonal, inverses = panel["first"], panel["diagonal"], panel["inverses"]
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
        if begun:
            nisa.scalar_tensor_tensor(
                dst=solution, data=old, op0=nl.multiply, operand0=alpha, op1=nl.subtract, operand1=sums[i]
            )
        else:
            nisa.tensor_scalar(dst=solution, data=old, op0=nl.multiply, operand0=alpha)
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
