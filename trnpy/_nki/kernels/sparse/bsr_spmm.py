"""A X for a sparse A of 128 x 128 tiles: rows with equal numbers of tiles, unrolled while the program stays short.

All products of a block row are summed in PSUM, one chain for every 512 columns, and leave it once. Padding tiles of a
row are multiplied by a block of zeros, so a launch has rows of similar length (sparse/_tiles.launches). Half of the
slots are loaded while the other half is multiplied. Block rows of X are read in place. Digits are summed as in
float64_matmul, for K = 128 x tiles of a row.

Bound by TensorE from 512 columns on, below by the DMA of tiles (64 KiB each in float32), in the model.
"""

import nki
import nki.isa as nisa
import nki.language as nl

from ..shared import digit_sums
from ..shared.blocks import identity_of, place, tile, turn, turned_format, view, walk
from ..shared.digit_sums import BANKS, EXACT, RELAXED, RELAXED_GROUPS

TILE = 128
TILE_N = 512  # columns of one PSUM bank
TURN_BANKS = 2  # for transposed tiles
TURNED_DIGITS = 8  # transposed bfloat16 tiles side by side in one of these
NOTHING = 2.0**100  # marks that no sum is positive: larger than any sum


@nki.jit
def bsr_spmm(tiles, x, left_at, right_at, length, unit=4, digits=0, words=3, least=False):
    """A X from tiles with K on the rows: (T 128, 128) float32 or bfloat16, or if ``digits`` (T 128, digits 128).

    x: (C 128, N), or (C 128, digits N), all digits of a row side by side; right_at (1, R length) int32: for each
    product of each of R rows the first element of its rows of x; left_at the same for its tile, or (1, R) for the
    first tile of a row, if the tiles of a row lie side by side. Half of the slots are ``unit`` tiles.
    Result: (R 128, N) float32, of digits (words, R 128, N) int32, the lowest word first; with ``least`` (128, 1), whose
    smallest element is the smallest positive one of A X.
    """
    return spmm(
        tiles=tiles, x=x, left_at=left_at, right_at=right_at, length=length, unit=unit, digits=digits, words=words,
        least=least, turned=False,
    )  # fmt: skip


def spmm(tiles, x, left_at, right_at, length, unit, digits, words, least, turned):
    """The product; with ``turned`` of tiles with K on the columns."""
    n, count = x.shape[1] // max(digits, 1), right_at.shape[1] // length
    job = _job(a=tiles, x=x, digits=digits, n=n, unit=unit, words=words, turned=turned)
    job["length"] = length
    job["places"] = (left_at, right_at)
    job["beside"] = left_at.shape[1] == count
    if least:
        c = nl.ndarray((TILE, 1), dtype=nl.float32, buffer=nl.shared_hbm)
        job["least"] = nl.ndarray((TILE, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=job["least"], value=NOTHING, engine=nisa.engine.vector)
    elif digits > 0:
        c = nl.ndarray((words, count * TILE, n), dtype=nl.int32, buffer=nl.shared_hbm)
    else:
        c = nl.ndarray((count * TILE, n), dtype=nl.float32, buffer=nl.shared_hbm)
    job["c"] = c
    job["plane"] = count * TILE * n
    spots = (
        [([[left_at.shape[1] // count, count]], 0)], [([[length, count]], 0)], [([[TILE * n, count]], 0)]
    )  # fmt: skip
    walk(job=job, start=_start, body=_row, spots=spots, steps=_steps(job=job))
    if least:
        nisa.dma_copy(dst=c, src=job["least"])
    return c


def _steps(job):
    """Approximate instructions of one row: places, loads, products, transposes, sums."""
    digits, length = job["digits"], job["length"]
    if digits > 0:
        each = digits * (digits + 1) // 2
        return length * (2 + each + each // 2 * 2 + digits) + 8 * digits + 8
    columns = (job["n"] + TILE_N - 1) // TILE_N
    return length * (2 + columns + (2 if job["turned"] else 0)) + 2 * columns + 8


def _job(a, x, digits, n, unit, words, turned):
    """The memory of all rows: slots of operands and, for digits, sums and tiles of results."""
    planes = max(digits, 1)
    job = {"a": a, "x": x, "digits": digits, "n": n, "unit": unit, "turned": turned, "least": None, "half": 0}
    job["identity"] = identity_of(dtype=a.dtype) if turned else None
    lefts, rights, raws = [], [], []
    for _ in range(2 * unit):
        rights.append(nl.ndarray((TILE, planes * n), dtype=x.dtype, buffer=nl.sbuf))
    for _ in range(2):  # half of the slots each: what lies side by side in HBM does so here
        lefts.append(nl.ndarray((TILE, unit * planes * TILE), dtype=a.dtype, buffer=nl.sbuf))
        if turned:
            raws.append(nl.ndarray((TILE, unit * planes * TILE), dtype=a.dtype, buffer=nl.sbuf))
    job["lefts"] = lefts
    job["rights"] = rights
    job["raws"] = raws
    if digits > 0:
        casts, sums, outs = digit_sums.workspace(rows=1, digits=digits, words=words, bits=8)
        job["casts"] = casts
        job["sums"] = sums
        job["outs"] = outs
        job["words"] = words
        job["bits"] = 8
        job["balanced"] = False
        job["m_size"] = TILE
        job["n_size"] = n
        job["row"] = n
    return job


def _start(job):
    """PSUM of an iteration: for sums and for transposed tiles."""
    digits, n = job["digits"], job["n"]
    turns, banks = [], []
    if job["turned"]:
        for _ in range(TURN_BANKS):
            form = turned_format(dtype=job["a"].dtype)
            side = TURNED_DIGITS if form == nl.bfloat16 else TURNED_DIGITS // 2
            turns.append(nl.ndarray((TILE, min(max(digits, 1), side) * TILE), dtype=form, buffer=nl.psum))
    job["turns"] = turns
    if digits > 0:
        banks = digit_sums.banks_of(count=BANKS - len(turns))
    else:
        columns = (n + TILE_N - 1) // TILE_N
        for _ in range((BANKS - len(turns)) // columns * columns):
            banks.append(nl.ndarray((TILE, min(TILE_N, n)), dtype=nl.float32, buffer=nl.psum))
    job["banks"] = banks
    job["emptied"] = 0


def _row(job, at):
    """One block row of the result."""
    length, unit = job["length"], job["unit"]
    here = []
    for side in range(2):
        each = 1 if side == 0 and job["beside"] else length
        table = nl.ndarray((1, each), dtype=nl.int32, buffer=nl.sbuf)
        nisa.dma_copy(dst=table, src=view(x=job["places"][side], at=at[side], pattern=[[each, 1], [1, each]]))
        here.append(table)
    columns = (job["n"] + TILE_N - 1) // TILE_N
    banks = []
    for b in range(columns):
        bank = job["banks"][(job["emptied"] + b) % len(job["banks"])]
        banks.append(bank[:, 0 : min(TILE_N, job["n"] - b * TILE_N)])
    for first in range(0, length, unit):
        count = min(unit, length - first)
        _load(job=job, here=here, first=first, count=count)
        if job["turned"]:
            for q in range(count):
                _turn(job=job, q=q)
        if job["digits"] > 0:
            _multiply_digits(job=job, count=count)
        else:
            _multiply(job=job, banks=banks, first=first, count=count)
        job["half"] = 1 - job["half"]
    if job["digits"] > 0:
        for e in range(job["digits"]):
            digit_sums.carry_group(plan=job, i=0, e=e, c_at=at[2])
        return
    job["emptied"] = job["emptied"] + columns
    _finish(job=job, banks=banks, at=at[2])


def _left(job, name, q, count):
    """The tiles of ``count`` slots of the half that is loaded, from its slot ``q`` on."""
    size = max(job["digits"], 1) * TILE
    return job[name][job["half"]][:, q * size : (q + count) * size]


def _right(job, q):
    return job["rights"][job["half"] * job["unit"] + q]


def _load(job, here, first, count):
    """Tiles of products ``first`` to first + count of a row, and the rows of X that they meet."""
    name = "raws" if job["turned"] else "lefts"
    width = job["a"].shape[1]
    if job["beside"]:
        source = view(
            x=job["a"], at=(here[0], first * TILE * width), pattern=[[width, TILE], [TILE * width, count], [1, width]]
        )
        nisa.dma_copy(dst=_left(job=job, name=name, q=0, count=count), src=source)
    for q in range(count):
        p = first + q
        if not job["beside"]:
            source = view(x=job["a"], at=(here[0][0:1, p : p + 1], 0), pattern=[[width, TILE], [1, width]])
            nisa.dma_copy(dst=_left(job=job, name=name, q=q, count=1), src=source)
        across = job["x"].shape[1]
        source = view(x=job["x"], at=(here[1][0:1, p : p + 1], 0), pattern=[[across, TILE], [1, across]])
        nisa.dma_copy(dst=_right(job=job, q=q), src=source)


def _turn(job, q):
    """The tile of a slot, transposed."""
    planes = max(job["digits"], 1)
    raw = _left(job=job, name="raws", q=q, count=1)
    left = _left(job=job, name="lefts", q=q, count=1)
    side = job["turns"][0].shape[1] // TILE
    for d0 in range(0, planes, side):
        count = min(side, planes - d0)
        bank = job["turns"][(q + d0 // side) % TURN_BANKS]
        for d in range(count):
            turn(
                dst=bank[:, d * TILE : (d + 1) * TILE],
                data=raw[:, (d0 + d) * TILE : (d0 + d + 1) * TILE],
                identity=job["identity"],
            )
        nisa.tensor_copy(
            dst=left[:, d0 * TILE : (d0 + count) * TILE], src=bank[:, 0 : count * TILE], engine=nisa.engine.vector
        )


def _multiply(job, banks, first, count):
    """Add the products of the loaded half to the sums of the row."""
    for q in range(count):
        for b in range(len(banks)):
            nisa.nc_matmul(
                dst=banks[b],
                stationary=_left(job=job, name="lefts", q=q, count=1),
                moving=_right(job=job, q=q)[:, b * TILE_N : b * TILE_N + banks[b].shape[1]],
                accumulate=first + q > 0,
            )


def _multiply_digits(job, count):
    """The same for digits: a bank is emptied before its sum could round, except for the two groups of lowest weight."""
    digits, n = job["digits"], job["n"]
    for e in range(digits):
        d = digits - 1 - e
        room = EXACT if d < digits - RELAXED_GROUPS else RELAXED * EXACT
        pairs = []
        for q in range(count):
            for i in range(d + 1):
                pairs.append((q, i))
        for first in range(0, len(pairs), room):
            bank = job["banks"][job["emptied"] % len(job["banks"])][:, 0:n]
            for p in range(first, min(first + room, len(pairs))):
                q, i = pairs[p]
                nisa.nc_matmul(
                    dst=bank,
                    stationary=_left(job=job, name="lefts", q=q, count=1)[:, i * TILE : (i + 1) * TILE],
                    moving=_right(job=job, q=q)[:, (d - i) * n : (d - i + 1) * n],
                    accumulate=p > first,
                )
            digit_sums.empty(plan=job, bank=bank, i=0, e=e, emptied=job["emptied"])
            job["emptied"] = job["emptied"] + 1


def _finish(job, banks, at):
    """Store the sums of one row, or take the smallest of them into ``least``."""
    n = job["n"]
    out = tile(job=job, shape=(TILE, n), dtype=nl.float32)
    for b in range(len(banks)):
        here = out[:, b * TILE_N : b * TILE_N + banks[b].shape[1]]
        nisa.tensor_copy(dst=here, src=banks[b], engine=nisa.engine.vector)
    if job["least"] == None:  # noqa: E711 - NKI has no `is`
        nisa.dma_copy(dst=place(x=job["c"], at=at, offset=0, rows=TILE, columns=n), src=out)
        return
    lowest = tile(job=job, shape=(TILE, 1), dtype=nl.float32)
    absent = tile(job=job, shape=(TILE, n), dtype=nl.float32)
    nisa.tensor_scalar(dst=absent, data=out, op0=nl.equal, operand0=0.0, op1=nl.multiply, operand1=NOTHING)
    nisa.tensor_tensor(dst=absent, data1=absent, data2=out, op=nl.maximum)
    nisa.tensor_reduce(dst=lowest, op=nl.minimum, data=absent, axis=1)
    nisa.tensor_tensor(dst=job["least"], data1=job["least"], data2=lowest, op=nl.minimum)
