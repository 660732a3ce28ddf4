"""C[i] = A[i] B[i] for a batch of small or large matrices in one launch, in float32.

Matrices of at most 512 rows and columns are processed in groups: one is loaded while the other is multiplied. If sizes
allow it, several neighbouring rows lie on one partition, for long transfers, and products of several matrices leave one
PSUM bank together. Larger matrices use the blocks of matmul with the batch as outermost loop. An operand of batch 1 is
shared by all products; several right-hand matrices then are columns of one product. Below 128 rows DMA of short rows is
the bound, modelled, and TensorE waits: tiles of its array (tile_position) would gain nothing, and a block-diagonal
stationary operand would spread NaN from one matrix to others.
4096 products of 256^3 have 62,000 instructions and a device loop (shared/blocks.walk).
"""

import nki
import nki.isa as nisa
import nki.language as nl

from ..shared import blocks

SMALL = 512  # rows and columns of matrices that pass in groups: one PSUM bank wide
GROUP_MAX = 32  # matrices of one group: bounds the program
GROUP_BYTES = 40 * 1024  # of a partition, for the operands and results of one group
SINGLE_BYTES = 128 * 1024  # a matrix of this size is one transfer: it is contiguous, so all descriptors are long
SUM_BANKS = 4
TURN_BANKS = 4


@nki.jit
def batched_matmul(a, b, a_rows=True, b_rows=True, m_tiles=4, n_tiles=2, k_tiles=4):
    """(B, M, N) float32 from a and b in HBM, of one dtype.

    a: (B, M, K) if a_rows, else (B, K, M); b: (B, K, N) if b_rows, else (B, N, K); either may have batch 1.
    """
    batch = max(a.shape[0], b.shape[0])
    m, k = (a.shape[1], a.shape[2]) if a_rows else (a.shape[2], a.shape[1])
    n = b.shape[2] if b_rows else b.shape[1]
    c = nl.ndarray((batch, m, n), dtype=nl.float32, buffer=nl.shared_hbm)
    if b.shape[0] == 1 and a_rows:
        m, batch = batch * m, 1  # the rows of all A are the rows of one
    jumps = (m * k if a.shape[0] > 1 else 0, k * n if b.shape[0] > 1 else 0, m * n)
    a_flat = a.reshape((a.shape[0] * a.shape[1], a.shape[2]))
    b_flat = b.reshape((b.shape[0] * b.shape[1], b.shape[2]))
    c_flat = c.reshape((c.shape[0] * c.shape[1], c.shape[2]))
    if batch > 1 and max(max(m, k), n) <= SMALL:
        _small(a=a_flat, b=b_flat, c=c_flat, m=m, k=k, n=n, a_rows=a_rows, b_rows=b_rows, batch=batch, jumps=jumps)
    else:
        blocks.product(
            job={"c": c_flat, "c0": None, "scales": (None, None)}, a=a_flat, b=b_flat, m=m, k=k, n=n, a_rows=a_rows,
            b_rows=b_rows, tiles=(m_tiles, n_tiles, k_tiles), finish=blocks.store, batch=batch, jumps=jumps,
        )  # fmt: skip
    return c


def _deal(extent, together):
    """(start, step, size) of the parts of an extent that lie on the partitions, at most 128 each.

    ``together``: if the parts are equal, neighbours are on one partition, one in each part.
    """
    count = (extent + blocks.TILE - 1) // blocks.TILE
    parts = []
    for q in range(count):
        if together and extent % count == 0:
            parts.append((q, count, extent // count))
        else:
            parts.append((q * blocks.TILE, 1, min(blocks.TILE, extent - q * blocks.TILE)))
    return parts


def _small(a, b, c, m, k, n, a_rows, b_rows, batch, jumps):
    """Matrices of one tile of PSUM each, in groups."""
    m_parts, k_parts, n_parts = (
        _deal(extent=m, together=True), _deal(extent=k, together=True), _deal(extent=n, together=False),
    )  # fmt: skip
    a_side = {"x": a, "rows": a_rows, "outer": m_parts, "size": m, "jump": jumps[0]}
    b_side = {"x": b, "rows": not b_rows, "outer": n_parts, "size": n, "jump": jumps[1]}
    item = 4 if a.dtype == nl.float32 else 2
    per_matrix = item * len(k_parts) * (m + n) + 4 * len(m_parts) * n
    per_matrix = per_matrix + item * k * ((len(m_parts) if a_rows else 0) + (0 if b_rows else len(n_parts)))
    group = max(1, min(min(GROUP_MAX, GROUP_BYTES // per_matrix), (batch + 1) // 2))
    job = {
        "sides": (a_side, b_side), "c": c, "m": m, "k": k, "n": n, "k_parts": k_parts, "jumps": jumps,
        "once": [None, None], "form": blocks.turned_format(dtype=a.dtype),
        "identity": blocks.identity_of(dtype=a.dtype) if a_rows or not b_rows else None,
    }  # fmt: skip
    # Operands of batch 1 are read once.
    blocks.begin(job=job, start=_start)
    for side in range(2):
        if jumps[side] == 0:
            job["once"][side] = _operand(job=job, side=side, at=(None, 0), count=1)
    for piece in blocks.pieces(extent=batch, block=group):
        first, count, times = piece
        job["count"] = count
        spots = []
        for jump in jumps:
            spots.append([([[group * jump, times]], first * jump)])
        parts = len(k_parts) * len(m_parts)
        blocks.walk(job=job, start=_start, body=_group, spots=spots, steps=8 + 4 * group * parts)


def _start(job):
    """PSUM of an iteration, or outside of loops: for sums and for transposes."""
    job["banks"] = []
    job["turns"] = []
    for _ in range(SUM_BANKS):
        job["banks"].append(nl.ndarray((blocks.TILE, blocks.TILE_N), dtype=nl.float32, buffer=nl.psum))
    for _ in range(TURN_BANKS):
        job["turns"].append(nl.ndarray((blocks.TILE, blocks.TILE_N), dtype=job["form"], buffer=nl.psum))


def _group(job, at):
    """The products of ``count`` matrices."""
    jumps, n, count, a_side = job["jumps"], job["n"], job["count"], job["sides"][0]
    lefts, rights = job["once"]
    if lefts == None:  # noqa: E711 - NKI has no `is`
        lefts = _operand(job=job, side=0, at=at[0], count=count)
    if rights == None:  # noqa: E711
        rights = _operand(job=job, side=1, at=at[1], count=count)
    m_parts = a_side["outer"]
    together = m_parts[0][1]  # rows of one matrix on one partition
    width = together * n
    outs = []
    for i in range(1 if together > 1 else len(m_parts)):
        outs.append(blocks.tile(job=job, shape=(m_parts[i][2], count * width), dtype=nl.float32))
    shared = jumps[0] == 0 and rights[0][1] == n  # neighbours of B are neighbours on the chip: one product of all
    each = blocks.TILE_N // n  # products that share a bank
    if len(lefts) > 1 and not shared:
        each = 1  # a bank holds one sum of several products at a time
    packed = 0
    for i in range(len(m_parts)):
        start, step, rows = m_parts[i]
        out = outs[0 if together > 1 else i]
        for b0 in range(0, count, each):
            some = min(each, count - b0)
            bank = job["banks"][(i * ((count + each - 1) // each) + b0 // each) % SUM_BANKS][0:rows, 0 : some * n]
            _products(
                lefts=lefts, rights=rights, bank=bank, b0=b0, count=some, n=n,
                part=(packed if a_side["rows"] else start, 1 if a_side["rows"] else step, rows), jumps=jumps,
                one=shared,
            )  # fmt: skip
            if together == 1:
                nisa.tensor_copy(dst=out[:, b0 * n : (b0 + some) * n], src=bank, engine=nisa.engine.vector)
            else:
                for j in range(some):
                    left = (b0 + j) * width + i * n
                    nisa.tensor_copy(
                        dst=out[:, left : left + n], src=bank[:, j * n : (j + 1) * n], engine=nisa.engine.vector
                    )
        packed += rows
    for i in range(len(outs)):
        base = i * blocks.TILE * n
        _move(x=job["c"], at=at[2], base=base, jump=jumps[2], tile=outs[i], width=width, count=count, store=True)


def _products(lefts, rights, bank, b0, count, n, part, jumps, one):
    """One part of the rows of ``count`` products, side by side in a bank; of one product if A is shared."""
    start, step, rows = part
    left_jump = 0 if jumps[0] == 0 else 1
    right_jump = 0 if jumps[1] == 0 else 1
    for j in range(1 if one else count):
        wide = count * n if one else n
        for q in range(len(lefts)):
            left, pitch, base = lefts[q]
            right, right_pitch, right_base = rights[q]
            at = base + (b0 + j) * left_jump * pitch + start
            right_at = right_base + (b0 + j) * right_jump * right_pitch
            nisa.nc_matmul(
                dst=bank[:, j * n : j * n + wide],
                stationary=left[:, at : at + (rows - 1) * step + 1 : step],
                moving=right[:, right_at : right_at + wide],
                accumulate=q > 0,
            )


def _operand(job, side, at, count):
    """Per part of K: (tile with K on the partitions, elements from one matrix to the next, of the first)."""
    k, k_parts, side = job["k"], job["k_parts"], job["sides"][side]
    if not side["rows"]:
        return _load(job=job, side=side, at=at, parts=k_parts, width=side["size"], count=count)
    strips = _load(job=job, side=side, at=at, parts=side["outer"], width=k, count=count)
    found = []
    used = 0
    for item in k_parts:
        start, step, size = item
        tile = blocks.tile(job=job, shape=(size, count * side["size"]), dtype=side["x"].dtype)
        bank, filled, done = job["turns"][used % TURN_BANKS], 0, 0
        for j in range(count):
            for i in range(len(strips)):
                strip, pitch, first = strips[i]
                rows = side["outer"][i][2]
                if filled + rows > blocks.TILE_N or filled % 2 > 0:  # tiles of PSUM begin at words of four bytes
                    nisa.activation(dst=tile[:, done : done + filled], op=nl.copy, data=bank[0:size, 0:filled])
                    used, done, filled = used + 1, done + filled, 0
                    bank = job["turns"][used % TURN_BANKS]
                left = first + j * pitch + start
                blocks.turn(
                    dst=bank[0:size, filled : filled + rows],
                    data=strip[0:rows, left : left + (size - 1) * step + 1 : step],
                    identity=job["identity"],
                )
                filled += rows
        nisa.activation(dst=tile[:, done : done + filled], op=nl.copy, data=bank[0:size, 0:filled])
        used += 1
        found.append((tile, side["size"], 0))
    return found


def _load(job, side, at, parts, width, count):
    """Rows of ``count`` matrices on the partitions: as _operand's result, a part of the rows each."""
    x, jump, together = side["x"], side["jump"], parts[0][1]
    found = []
    if together > 1:
        tile = blocks.tile(job=job, shape=(parts[0][2], count * together * width), dtype=x.dtype)
        _move(x=x, at=at, base=0, jump=jump, tile=tile, width=together * width, count=count, store=False)
        for item in parts:
            start, _, _ = item
            found.append((tile, together * width, start * width))
        return found
    for item in parts:
        start, _, rows = item
        tile = blocks.tile(job=job, shape=(rows, count * width), dtype=x.dtype)
        _move(x=x, at=at, base=start * width, jump=jump, tile=tile, width=width, count=count, store=False)
        found.append((tile, width, 0))
    return found


def _move(x, at, base, jump, tile, width, count, store):
    """Rows of ``width`` elements of ``count`` matrices, HBM to a tile or back."""
    rows = tile.shape[0]
    alone = rows * width * (4 if x.dtype == nl.float32 else 2) >= SINGLE_BYTES
    some = 1 if alone else count
    for j in range(0, count, some):
        pattern = [[width, rows], [1, width]] if some == 1 else [[width, rows], [jump, some], [1, width]]
        hbm = blocks.view(x=x, at=at, pattern=pattern, offset=base + j * jump)
        chip = tile[:, j * width : (j + some) * width]
        if store:
            nisa.dma_copy(dst=hbm, src=chip)
        else:
            nisa.dma_copy(dst=chip, src=hbm)
