"""Matrix products a^T b in the tilings of AWS's tutorial and profiling examples; DGE modes are left to the compiler."""

import nki
import nki.isa as nisa
import nki.language as nl

ROWS = 128  # of the systolic array: contraction and result rows of one product
COLUMNS = 512  # float32 of one PSUM bank


@nki.jit
def single(at, b):
    """The first step of the tutorial: one product, at (128, 64), b (128, 512) -> (64, 512)."""
    out = nl.ndarray((at.shape[1], b.shape[1]), dtype=at.dtype, buffer=nl.shared_hbm)
    left = nl.ndarray(at.shape, dtype=at.dtype, buffer=nl.sbuf)
    right = nl.ndarray(b.shape, dtype=b.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=left, src=at)
    nisa.dma_copy(dst=right, src=b)
    bank = nl.ndarray(out.shape, dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=bank, stationary=left, moving=right)
    evict(out, bank, 0, 0)
    return out


@nki.jit
def tiled(at, b):
    """Both operands are loaded again for every product: tutorial version 2, examples A-V0 and B-V1."""
    depth, m, n = at.shape[0], at.shape[1], b.shape[1]
    out = nl.ndarray((m, n), dtype=at.dtype, buffer=nl.shared_hbm)
    for i in range(m // ROWS):
        for j in range(n // COLUMNS):
            bank = nl.ndarray((ROWS, COLUMNS), dtype=nl.float32, buffer=nl.psum)
            for k in range(depth // ROWS):
                left, right = tile(at, k, i, ROWS), tile(b, k, j, COLUMNS)
                nisa.nc_matmul(dst=bank, stationary=left, moving=right, accumulate=k > 0)
            evict(out, bank, i, j)
    return out


@nki.jit
def hoisted(at, b):
    """The operand of a block of rows is loaded once for all columns: tutorial version 3."""
    depth, m, n = at.shape[0], at.shape[1], b.shape[1]
    steps = depth // ROWS
    out = nl.ndarray((m, n), dtype=at.dtype, buffer=nl.shared_hbm)
    for i in range(m // ROWS):
        left = []
        for k in range(steps):
            left.append(tile(at, k, i, ROWS))
        for j in range(n // COLUMNS):
            right = []
            for k in range(steps):
                right.append(tile(b, k, j, COLUMNS))
            bank = nl.ndarray((ROWS, COLUMNS), dtype=nl.float32, buffer=nl.psum)
            for k in range(steps):
                nisa.nc_matmul(dst=bank, stationary=left[k], moving=right[k], accumulate=k > 0)
            evict(out, bank, i, j)
    return out


@nki.jit
def blocked(at, b, block_m=2, block_n=2, row_loads=False):
    """Blocks of tiles in both free dimensions: tutorial version 4 (2, 2), examples A-V1 and A-V2 (8, 2).

    With ``row_loads`` a row of a block comes in one transfer into a new tile. Without, as in AWS's sketch of
    A-V1, every 128-row tile has its own transfer, into tiles that all blocks share.
    """
    depth, m, n = at.shape[0], at.shape[1], b.shape[1]
    steps = depth // ROWS
    out = nl.ndarray((m, n), dtype=at.dtype, buffer=nl.shared_hbm)
    left = [] if row_loads else tiles(steps * block_m, ROWS, at.dtype)
    right = [] if row_loads else tiles(steps * block_n, COLUMNS, b.dtype)
    for i in range(m // (ROWS * block_m)):
        left = panel(left, at, i, ROWS, block_m, row_loads)
        for j in range(n // (COLUMNS * block_n)):
            right = panel(right, b, j, COLUMNS, block_n, row_loads)
            for p in range(block_m):
                for q in range(block_n):
                    bank = nl.ndarray((ROWS, COLUMNS), dtype=nl.float32, buffer=nl.psum)
                    for k in range(steps):
                        nisa.nc_matmul(
                            dst=bank, stationary=left[p * steps + k], moving=right[q * steps + k], accumulate=k > 0
                        )
                    evict(out, bank, i * block_m + p, j * block_n + q)
    return out


@nki.jit
def fully_blocked(at, b, block_m=16, block_n=2, block_k=8):
    """All three dimensions blocked, sums kept in SBUF, whole rows moved: tutorial version 5."""
    depth, m, n = at.shape[0], at.shape[1], b.shape[1]
    width = COLUMNS * block_n
    out = nl.ndarray((m, n), dtype=at.dtype, buffer=nl.shared_hbm)
    for j in range(n // width):
        sums = []
        for _ in range(m // ROWS):
            total = nl.ndarray((ROWS, width), dtype=at.dtype, buffer=nl.sbuf)
            nisa.memset(dst=total, value=0.0)
            sums.append(total)
        for k in range(depth // (ROWS * block_k)):
            right = rows_of(b, k * block_k, block_k, j * width, width)
            for i in range(m // (ROWS * block_m)):
                left = rows_of(at, k * block_k, block_k, i * ROWS * block_m, ROWS * block_m)
                for q in range(block_n):
                    for p in range(block_m):
                        bank = nl.ndarray((ROWS, COLUMNS), dtype=nl.float32, buffer=nl.psum)
                        for s in range(block_k):
                            nisa.nc_matmul(
                                dst=bank,
                                stationary=left[s][:, p * ROWS : (p + 1) * ROWS],
                                moving=right[s][:, q * COLUMNS : (q + 1) * COLUMNS],
                                accumulate=s > 0,
                            )
                        total = sums[i * block_m + p][:, q * COLUMNS : (q + 1) * COLUMNS]
                        nisa.tensor_tensor(dst=total, data1=total, data2=bank, op=nl.add)
        for i in range(m // ROWS):
            nisa.dma_copy(dst=out[i * ROWS : (i + 1) * ROWS, j * width : (j + 1) * width], src=sums[i])
    return out


@nki.jit
def transposing(a, b):
    """a is row-major; each of its tiles is loaded and transposed for every product: profiling example B-V0."""
    m, depth, n = a.shape[0], a.shape[1], b.shape[1]
    out = nl.ndarray((m, n), dtype=a.dtype, buffer=nl.shared_hbm)
    for i in range(m // ROWS):
        for j in range(n // COLUMNS):
            bank = nl.ndarray((ROWS, COLUMNS), dtype=nl.float32, buffer=nl.psum)
            for k in range(depth // ROWS):
                turned = nl.ndarray((ROWS, ROWS), dtype=a.dtype, buffer=nl.psum)
                nisa.nc_transpose(dst=turned, data=tile(a, i, k, ROWS), engine=nisa.engine.tensor)
                left = nl.ndarray((ROWS, ROWS), dtype=a.dtype, buffer=nl.sbuf)
                nisa.tensor_copy(dst=left, src=turned, engine=nisa.engine.vector)
                right = tile(b, k, j, COLUMNS)
                nisa.nc_matmul(dst=bank, stationary=left, moving=right, accumulate=k > 0)
            evict(out, bank, i, j)
    return out


def tile(source, row, column, width):
    """SBUF tile of 128 rows at block coordinates (row, column)."""
    here = nl.ndarray((ROWS, width), dtype=source.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=here, src=source[row * ROWS : (row + 1) * ROWS, column * width : (column + 1) * width])
    return here


def tiles(count, width, dtype):
    """``count`` SBUF tiles of 128 rows."""
    found = []
    for _ in range(count):
        found.append(nl.ndarray((ROWS, width), dtype=dtype, buffer=nl.sbuf))
    return found


def panel(shared, source, column, width, count, row_loads):
    """All 128-row tiles of ``count`` adjacent columns of tiles, column by column."""
    steps = source.shape[0] // ROWS
    if not row_loads:
        for t in range(count):
            here = slice((column * count + t) * width, (column * count + t + 1) * width)
            for k in range(steps):
                nisa.dma_copy(dst=shared[t * steps + k], src=source[k * ROWS : (k + 1) * ROWS, here])
        return shared
    rows = []
    for k in range(steps):
        rows.append(tile(source, k, column, width * count))
    parts = []
    for t in range(count):
        for k in range(steps):
            parts.append(rows[k][:, t * width : (t + 1) * width])
    return parts


def rows_of(source, first, count, start, width):
    """``count`` SBUF tiles of 128 rows from block row ``first``, columns from ``start``."""
    tiles = []
    for s in range(count):
        here = nl.ndarray((ROWS, width), dtype=source.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=here, src=source[(first + s) * ROWS : (first + s + 1) * ROWS, start : start + width])
        tiles.append(here)
    return tiles


def evict(out, bank, row, column):
    """PSUM to HBM through SBUF, in the type of the result."""
    height, width = bank.shape
    here = nl.ndarray(bank.shape, dtype=out.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=here, src=bank, engine=nisa.engine.vector)
    nisa.dma_copy(dst=out[row * height : (row + 1) * height, column * width : (column + 1) * width], src=here)
