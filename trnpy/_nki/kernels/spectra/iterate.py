"""Functions that kernels of polynomial iterations share: products between HBM matrices, steps, measures.

A step of the odd polynomial a x + b x^3 + c x^5 on the singular values of X is three products: Y = X^T X,
Z = b Y + c Y Y, X' = a X + X Z. The number of steps is a shape, their coefficients are data.
"""

import nki.isa as nisa
import nki.language as nl

from ..shared import blocks

TILES = (8, 2, 4)  # of a block: 1024 rows and columns
STRIP = 2048  # columns that are measured together: runs of 8 KiB in HBM


def constant(value):
    """A number on every partition."""
    tile = nl.ndarray((blocks.TILE, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=tile, value=value, engine=nisa.engine.vector)
    return tile


def multiply(walks, a, b, out, transposed=False, alpha=None, c0=None, beta=None):
    """out = alpha A B + beta c0 in HBM, or with A^T; ``out`` is no operand, c0 may be. Scales are tiles or None.

    walks: the number of products of the kernel, which share the instruction limit of a program without a loop.
    """
    k, m = a.shape if transposed else (a.shape[1], a.shape[0])
    blocks.product(
        job={"c": out, "c0": c0, "scales": (alpha, beta)}, a=a, b=b, m=m, k=k, n=b.shape[1], a_rows=not transposed,
        b_rows=True, tiles=TILES, finish=blocks.store, walks=walks,
    )  # fmt: skip


def step(walks, x, out, y, z, coefficients):
    """out = a X + X (b Y + c Y Y) with Y = X^T X; y and z (columns, columns) are overwritten, coefficients (128, 3)."""
    a, b, c = coefficients[:, 0:1], coefficients[:, 1:2], coefficients[:, 2:3]
    multiply(walks=walks, a=x, b=x, out=y, transposed=True)
    multiply(walks=walks, a=y, b=y, out=z, transposed=True, alpha=c, c0=y, beta=b)
    multiply(walks=walks, a=x, b=z, out=out, c0=x, beta=a)


def steps(walks, x, to, other, y, z, coefficients):
    """``to`` = every step of coefficients (steps, 3) in HBM applied to x, through ``other``.

    ``to`` is x only if the number of steps is even.
    """
    count, source = coefficients.shape[0], x
    for i in range(count):
        here = nl.ndarray((blocks.TILE, 3), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=here, src=blocks.flat(coefficients).ap(pattern=[[0, blocks.TILE], [1, 3]], offset=3 * i))
        target = to if (count - i) % 2 == 1 else other
        step(walks=walks, x=source, out=target, y=y, z=z, coefficients=here)
        source = target


def close(walks, h, q, other, y):
    """Q^T h Q, and the measure of Q^T Q - I, as results of a kernel."""
    r = q.shape[1]
    inside = nl.ndarray((r, r), dtype=nl.float32, buffer=nl.shared_hbm)
    sums = nl.ndarray((blocks.TILE, 2), dtype=nl.float32, buffer=nl.shared_hbm)
    multiply(walks=walks, a=h, b=q, out=other, transposed=True)
    multiply(walks=walks, a=q, b=other, out=inside, transposed=True)
    multiply(walks=walks, a=q, b=q, out=y, transposed=True)
    nisa.dma_copy(dst=sums, src=measure(x=y, less_identity=True))
    return (inside, sums)


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
    job = {"x": x, "found": found, "identity": identity, "less_identity": less_identity}
    for item in blocks.pieces(extent=n, block=blocks.TILE):
        start, size, count = item
        job["size"] = (size, size)
        spots = ([([[size * (n + 1), count]], start * (n + 1))],)
        blocks.walk(job=job, start=blocks.no_banks, body=_diagonal, spots=spots, steps=6)
    for item in blocks.pieces(extent=n, block=blocks.TILE):
        start, size, count = item
        for columns_piece in blocks.pieces(extent=n, block=STRIP):
            column, width, columns = columns_piece
            job["size"] = (size, width)
            spots = ([([[size * n, count], [width, columns]], start * n + column)],)
            blocks.walk(job=job, start=blocks.no_banks, body=_strip, spots=spots, steps=4)
    return found


def _diagonal(job, at):
    """A tile on the diagonal."""
    size = job["size"][0]
    found, identity = job["found"], job["identity"][0:size, 0:size]
    tile = blocks.tile(job=job, shape=job["size"], dtype=nl.float32)
    nisa.dma_copy(dst=tile, src=blocks.place(x=job["x"], at=at[0], offset=0, rows=size, columns=size))
    if job["less_identity"]:
        nisa.tensor_tensor(dst=tile, data1=tile, data2=identity, op=nl.subtract)
        nisa.dma_copy(dst=blocks.place(x=job["x"], at=at[0], offset=0, rows=size, columns=size), src=tile)
    part = blocks.tile(job=job, shape=job["size"], dtype=nl.float32)
    nisa.tensor_tensor(dst=part, data1=tile, data2=identity, op=nl.multiply)
    _add(job=job, tile=part, to=found[0:size, 0:1])


def _strip(job, at):
    """Up to 128 rows and 2048 columns."""
    size, width = job["size"]
    tile = blocks.tile(job=job, shape=(size, width), dtype=nl.float32)
    nisa.dma_copy(dst=tile, src=blocks.place(x=job["x"], at=at[0], offset=0, rows=size, columns=width))
    squares = blocks.tile(job=job, shape=(size, width), dtype=nl.float32)
    nisa.tensor_tensor(dst=squares, data1=tile, data2=tile, op=nl.multiply)
    _add(job=job, tile=squares, to=job["found"][0:size, 1:2])


def _add(job, tile, to):
    """Add the sums of the rows of a tile."""
    total = blocks.tile(job=job, shape=(tile.shape[0], 1), dtype=nl.float32)
    nisa.tensor_reduce(dst=total, op=nl.add, data=tile, axis=1, keepdims=True)
    nisa.tensor_tensor(dst=to, data1=to, data2=total, op=nl.add)
