"""One sweep of block Jacobi for a symmetric matrix: every pair of blocks of 64 rows is rotated once, in one launch.

The 128 x 128 problem of a pair stays on the chip for a complete sweep: 127 rounds of 64 rotations. After each round,
rows and columns move like players in Brent and Luk's tournament, so that every round is the same program. With K the
rotations and the move, M becomes K^T M K, and the accumulated rotations K^T Q^T. Then the rows of the pair are
multiplied by them, and the columns are the transpose of the rows: only the rounding of the pair's own problem is not
symmetric. Bound by the latency of the rounds, not by the throughput of any engine.
"""

import nki
import nki.isa as nisa
import nki.language as nl

from ..shared import blocks

HALF = 64  # rows of a block; two make a tile
ROUNDS = 127  # until the tournament of 128 returns to its start
TINY = 2.0**-100  # keeps square roots and reciprocals of zero rotations in range
BANKS = 2


@nki.jit
def jacobi_sweep(a, w, order):
    """(A', W') from a and w (N, N) float32 in HBM, N a multiple of 128: A' = J^T a J, W' = J^T w.

    order: (4, pairs) int32, for each pair of blocks i, j in turn: 64 i N, 64 j N, 64 i and 64 j.
    """
    n, pairs = a.shape[0], order.shape[1]
    turned = nl.ndarray((n, n), dtype=nl.float32, buffer=nl.shared_hbm)
    vectors = nl.ndarray((n, n), dtype=nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=turned, src=a)
    nisa.dma_copy(dst=vectors, src=w)
    job = _patterns()
    job["problem"] = _tile()
    job["rotations"] = _tile()
    job["rows"] = nl.ndarray((blocks.TILE, n), dtype=nl.float32, buffer=nl.sbuf)
    job["products"] = nl.ndarray((blocks.TILE, n), dtype=nl.float32, buffer=nl.sbuf)

    def pair(t):
        banks = []
        for _ in range(BANKS):
            banks.append(nl.ndarray((blocks.TILE, blocks.TILE_N), dtype=nl.float32, buffer=nl.psum))
        row_i, row_j = blocks.spot(table=order, t=t), blocks.spot(table=order, t=t, row=1)
        corners = []
        for row in (row_i, row_j):
            for column in range(2):
                corners.append(blocks.spot(table=order, t=t, row=2 + column, start=row[0]))
        for c in range(4):
            source = blocks.place(x=turned, at=corners[c], offset=0, rows=HALF, columns=HALF)
            nisa.dma_copy(dst=_corner(tile=job["problem"], c=c), src=source)
        stationary = _solve(job=job, banks=banks)
        columns = (blocks.spot(table=order, t=t, row=2), blocks.spot(table=order, t=t, row=3))
        _rotate(job=job, x=vectors, at=(row_i, row_j), stationary=stationary, columns=None, banks=banks)
        _rotate(job=job, x=turned, at=(row_i, row_j), stationary=stationary, columns=columns, banks=banks)
        for c in range(4):
            target = blocks.place(x=turned, at=corners[c], offset=0, rows=HALF, columns=HALF)
            nisa.dma_copy(dst=target, src=_corner(tile=job["problem"], c=c))

    nl.fori_loop(0, nisa.register_alloc(pairs), pair)
    return turned, vectors


def _tile():
    return nl.ndarray((blocks.TILE, blocks.TILE), dtype=nl.float32, buffer=nl.sbuf)


def _column():
    return nl.ndarray((blocks.TILE, 1), dtype=nl.float32, buffer=nl.sbuf)


def _corner(tile, c):
    """Block (c // 2, c % 2) of a tile of 2 x 2."""
    row, column = c // 2 * HALF, c % 2 * HALF
    return tile[row : row + HALF, column : column + HALF]


def _selected(dst, ones, pattern, offset):
    """1 where offset + row + the pattern's steps are 0, else 0."""
    nisa.affine_select(
        dst=dst, pattern=pattern, channel_multiplier=1, on_true_tile=ones, on_false_value=0.0, cmp_op=nl.equal,
        offset=offset,
    )  # fmt: skip


def _patterns():
    """Matrices and signs of a round: identity, exchange of neighbours, move of the players, +1 and -1 by parity."""
    ones = _tile()
    nisa.memset(dst=ones, value=1.0, engine=nisa.engine.vector)
    identity, exchange, move, parity = _tile(), _tile(), _tile(), _column()
    wide = ones.reshape_dim(1, (HALF, 2))
    _selected(dst=identity, ones=ones, pattern=[[-1, blocks.TILE]], offset=0)
    _selected(dst=exchange.reshape_dim(1, (HALF, 2)), ones=wide, pattern=[[-2, HALF], [1, 2]], offset=-1)
    # Column d selects the player that moves to d: even seats from two before, odd seats from two behind.
    moves = move.reshape_dim(1, (HALF, 2))
    _selected(dst=moves[:, :, 0:1], ones=wide[:, :, 0:1], pattern=[[-2, HALF], [0, 1]], offset=2)
    _selected(dst=moves[:, :, 1:2], ones=wide[:, :, 1:2], pattern=[[-2, HALF], [0, 1]], offset=-3)
    last = blocks.TILE - 1
    for slot in ((0, 0), (2, 1), (last, last - 1)):
        column, player = slot
        _selected(dst=move[:, column : column + 1], ones=ones[:, column : column + 1], pattern=[[0, 1]], offset=-player)
    index = nl.ndarray((blocks.TILE, 1), dtype=nl.int32, buffer=nl.sbuf)
    odd = nl.ndarray((blocks.TILE, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.iota(dst=index, pattern=[[0, 1]], offset=0, channel_multiplier=1)
    nisa.tensor_scalar(dst=odd, data=index, op0=nl.bitwise_and, operand0=1)
    nisa.tensor_scalar(dst=parity, data=odd, op0=nl.multiply, operand0=-2.0, op1=nl.add, operand1=1.0)
    return {"identity": identity, "exchange": exchange, "move": move, "parity": parity}


def _solve(job, banks):
    """One sweep over the problem of a pair, in place; its rotations, as a stationary operand that multiplies rows."""
    problem, rotations = job["problem"], job["rotations"]
    nisa.tensor_copy(dst=rotations, src=job["identity"], engine=nisa.engine.vector)
    given = _tile()
    nisa.tensor_copy(dst=given, src=problem, engine=nisa.engine.vector)
    turned, first, second = _tile(), _tile(), _tile()
    other, diagonal, coupling = _tile(), _column(), _column()

    for _ in range(ROUNDS):
        nisa.tensor_tensor(dst=first, data1=problem, data2=job["identity"], op=nl.multiply)
        nisa.tensor_reduce(dst=diagonal, op=nl.add, data=first, axis=1, keepdims=True)
        nisa.tensor_tensor(dst=second, data1=problem, data2=job["exchange"], op=nl.multiply)
        nisa.tensor_reduce(dst=coupling, op=nl.add, data=second, axis=1, keepdims=True)
        partner = banks[0][:, 0:1]
        nisa.nc_matmul(dst=partner, stationary=job["exchange"], moving=diagonal, accumulate=False)
        sine, cosine = _rotation(job=job, diagonal=diagonal, partner=partner, coupling=coupling)
        # The transposed rotations, times the move.
        nisa.tensor_scalar(dst=first, data=job["identity"], op0=nl.multiply, operand0=cosine)
        nisa.tensor_scalar(dst=second, data=job["exchange"], op0=nl.multiply, operand0=sine)
        nisa.tensor_tensor(dst=first, data1=first, data2=second, op=nl.subtract)
        _multiply(stationary=first, moving=job["move"], out=turned, bank=banks[1])
        _multiply(stationary=problem, moving=turned, out=other, bank=banks[0])
        _multiply(stationary=turned, moving=other, out=problem, bank=banks[1])
        _multiply(stationary=turned, moving=rotations, out=rotations, bank=banks[0])
    # Cosines are rounded: 127 rounds leave 1e-5 from orthonormal, and Q (3 I - Q^T Q) / 2 a hundred times less.
    _multiply(stationary=rotations, moving=job["identity"], out=turned, bank=banks[0])
    _multiply(stationary=turned, moving=turned, out=first, bank=banks[1])
    nisa.tensor_scalar(dst=second, data=job["identity"], op0=nl.multiply, operand0=1.5)
    nisa.scalar_tensor_tensor(dst=first, data=first, op0=nl.multiply, operand0=-0.5, op1=nl.add, operand1=second)
    _multiply(stationary=rotations, moving=first, out=turned, bank=banks[0])
    _multiply(stationary=given, moving=turned, out=other, bank=banks[1])
    _multiply(stationary=turned, moving=other, out=problem, bank=banks[0])
    return turned


def _multiply(stationary, moving, out, bank):
    """out = stationary^T moving, of 128 x 128 tiles."""
    here = bank[:, 0 : blocks.TILE]
    nisa.nc_matmul(dst=here, stationary=stationary, moving=moving, accumulate=False)
    nisa.tensor_copy(dst=out, src=here, engine=nisa.engine.vector)


def _rotation(job, diagonal, partner, coupling):
    """(sine, cosine) (128, 1) of the smaller angle that annuls each coupling; sines have opposite signs in a pair.

    t = 2 c sign(d) / (|d| + sqrt(d^2 + 4 c^2)), with d the second diagonal entry less the first: Rutishauser 1966.
    """
    gap, twice, root, size, tangent = _column(), _column(), _column(), _column(), _column()
    sine, cosine, mended = _column(), _column(), _column()
    nisa.tensor_tensor(dst=gap, data1=partner, data2=diagonal, op=nl.subtract)
    nisa.tensor_tensor(dst=gap, data1=gap, data2=job["parity"], op=nl.multiply)
    nisa.tensor_scalar(dst=twice, data=coupling, op0=nl.multiply, operand0=2.0)
    nisa.tensor_tensor(dst=root, data1=gap, data2=gap, op=nl.multiply)
    nisa.tensor_tensor(dst=size, data1=twice, data2=twice, op=nl.multiply)
    nisa.scalar_tensor_tensor(dst=root, data=root, op0=nl.add, operand0=TINY, op1=nl.add, operand1=size)
    nisa.activation(dst=root, op=nl.sqrt, data=root)
    nisa.tensor_scalar(dst=size, data=gap, op0=nl.multiply, operand0=-1.0)
    nisa.tensor_tensor(dst=size, data1=gap, data2=size, op=nl.maximum)
    nisa.tensor_tensor(dst=root, data1=root, data2=size, op=nl.add)
    nisa.reciprocal(dst=root, data=root)
    nisa.tensor_tensor(dst=tangent, data1=twice, data2=root, op=nl.multiply)
    nisa.tensor_scalar(dst=size, data=gap, op0=nl.greater_equal, operand0=0.0, op1=nl.multiply, operand1=2.0)
    nisa.tensor_scalar(dst=size, data=size, op0=nl.subtract, operand0=1.0)
    nisa.tensor_tensor(dst=tangent, data1=tangent, data2=size, op=nl.multiply)
    nisa.tensor_tensor(dst=tangent, data1=tangent, data2=job["parity"], op=nl.multiply)
    nisa.tensor_tensor(dst=size, data1=tangent, data2=tangent, op=nl.multiply)
    nisa.tensor_scalar(dst=size, data=size, op0=nl.add, operand0=1.0)
    nisa.activation(dst=cosine, op=nl.rsqrt, data=size)
    # One Newton step: y (3 - x y^2) / 2. The accuracy of the activation's last bits is not documented.
    nisa.tensor_tensor(dst=mended, data1=cosine, data2=cosine, op=nl.multiply)
    nisa.tensor_tensor(dst=mended, data1=mended, data2=size, op=nl.multiply)
    nisa.tensor_scalar(dst=mended, data=mended, op0=nl.multiply, operand0=-0.5, op1=nl.add, operand1=1.5)
    nisa.tensor_tensor(dst=cosine, data1=cosine, data2=mended, op=nl.multiply)
    nisa.tensor_tensor(dst=sine, data1=tangent, data2=cosine, op=nl.multiply)
    return sine, cosine


def _rotate(job, x, at, stationary, columns, banks):
    """Multiply two blocks of rows of x; if ``columns`` is given, store their transpose as two blocks of columns."""
    n = x.shape[1]
    rows, products = job["rows"], job["products"]
    for half in range(2):
        source = blocks.place(x=x, at=at[half], offset=0, rows=HALF, columns=n)
        nisa.dma_copy(dst=rows[half * HALF : (half + 1) * HALF, :], src=source)
    for n0 in range(0, n, blocks.TILE_N):
        stop = min(n, n0 + blocks.TILE_N)
        bank = banks[n0 // blocks.TILE_N % BANKS][:, 0 : stop - n0]
        nisa.nc_matmul(dst=bank, stationary=stationary, moving=rows[:, n0:stop], accumulate=False)
        nisa.activation(dst=products[:, n0:stop], op=nl.copy, data=bank)  # trn1 has no tensor_copy on ScalarE
    for half in range(2):
        target = blocks.place(x=x, at=at[half], offset=0, rows=HALF, columns=n)
        nisa.dma_copy(dst=target, src=products[half * HALF : (half + 1) * HALF, :])
    if columns == None:  # noqa: E711 - NKI has no `is`
        return
    for k in range(0, n, blocks.TILE):
        bank = banks[k // blocks.TILE % BANKS][:, 0 : blocks.TILE]
        nisa.nc_transpose(dst=bank, data=products[:, k : k + blocks.TILE], engine=nisa.engine.tensor)
        tile = rows[:, k : k + blocks.TILE]
        nisa.tensor_copy(dst=tile, src=bank, engine=nisa.engine.vector)
        for half in range(2):
            target = blocks.place(x=x, at=columns[half], offset=k * n, rows=blocks.TILE, columns=HALF)
            nisa.dma_copy(dst=target, src=tile[:, half * HALF : (half + 1) * HALF])
