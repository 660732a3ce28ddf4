"""A X for a sparse A of 128 x 128 tiles: only the tiles there are, each row as long as its pointer says.

A loop on the device takes the tiles of one block row between bounds that it reads itself, so no row is padded to
another's length: 2 U tiles a turn, and what is left in turns of U, U/2 ... 1, each with slots of its own, so that
tiles of the next turn arrive while those of this one are multiplied. Block rows of X are read where they lie.
The products of half a turn are summed in PSUM, these sums in SBUF; digits as in digits_matmul, for K = 128 x tiles of
a row.
With ``length`` every row has that many tiles, bounds are known to the compiler, and no register is needed.

Bound by TensorE from 512 columns on, below by the DMA of tiles (64 KiB each in float32), in the model.
"""

import nki
import nki.isa as nisa
import nki.language as nl

from ..shared import digit_sums, rows
from ..shared.blocks import flat, offsets, place, spot, turned_format
from ..shared.digit_sums import BANKS, EXACT, RELAXED, RELAXED_GROUPS

TILE = 128
TILE_N = 512  # columns of one PSUM bank
TURN_BANKS = 2  # for transposed tiles
TURNED_DIGITS = 8  # transposed bfloat16 tiles side by side in one of these
NOTHING = 2.0**100  # stands for no positive sum: larger than any


@nki.jit
def bsr_spmm(tiles, x, left_at, right_at, bounds=None, length=0, unit=4, digits=0, words=3, least=False, ordered=False):
    """A X from tiles with K on the rows: (T 128, 128) float32 or bfloat16, or if ``digits`` (T 128, digits 128).

    x: (C 128, N), or (C 128, digits N), all digits of a row side by side; left_at, right_at: (1, slots) int32, for
    each product the first element of its tile and of its rows of x; bounds: (levels + 1, R) int32, where in these each
    row begins and where its turns of 2 unit, unit ... 1 products end. Without bounds row r has the ``length`` products
    from r length on. Result: (R 128, N) float32, of digits (words, R 128, N) int32, the lowest word first; with
    ``least`` (128, 1), whose smallest element is the smallest positive one of A X. ordered: tiles of consecutive
    products lie side by side, so that half a turn of them is one transfer.
    """
    return spmm(
        tiles=tiles, x=x, left_at=left_at, right_at=right_at, bounds=bounds, length=length, unit=unit,
        digits=digits, words=words, least=least, ordered=ordered, turned=False,
    )  # fmt: skip


def spmm(tiles, x, left_at, right_at, bounds, length, unit, digits, words, least, ordered, turned):
    """The product; with ``turned`` of tiles with K on the columns."""
    n = x.shape[1] // max(digits, 1)
    count = left_at.shape[1] // length if bounds == None else bounds.shape[1]  # noqa: E711 - NKI has no `is`
    plan = _plan(tiles=tiles, x=x, digits=digits, n=n, unit=unit, words=words, turned=turned)
    if least:
        c = nl.ndarray((TILE, 1), dtype=nl.float32, buffer=nl.shared_hbm)
        plan["least"] = nl.ndarray((TILE, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=plan["least"], value=NOTHING, engine=nisa.engine.vector)
    elif digits > 0:
        c = nl.ndarray((words, count * TILE, n), dtype=nl.int32, buffer=nl.shared_hbm)
    else:
        c = nl.ndarray((count * TILE, n), dtype=nl.float32, buffer=nl.shared_hbm)
    plan["c"] = c
    plan["plane"] = count * TILE * n
    plan["places"] = (left_at, right_at)
    plan["stride"] = length
    plan["ordered"] = ordered
    c_at = offsets(pattern=[[TILE * n, count]], start=0)

    def row(r):
        if digits == 0:
            nisa.memset(dst=plan["out"], value=0.0, engine=nisa.engine.vector)
        if bounds == None:  # noqa: E711
            _start(plan=plan)
            for q0 in range(0, length, unit):
                slots = []
                for q in range(q0, min(q0 + unit, length)):
                    slots.append(q % (2 * unit))
                _load(plan=plan, slots=slots, j=r, ahead=q0)
                _multiply(plan=plan, slots=slots)
        else:
            rows.turns(plan=plan, bounds=bounds, r=r, unit=unit, load=_load, multiply=_multiply, start=_start)
        _finish(plan=plan, here=spot(table=c_at, t=r))

    nl.fori_loop(0, nisa.register_alloc(count), row)
    if least:
        nisa.dma_copy(dst=c, src=plan["least"])
    return c


def _plan(tiles, x, digits, n, unit, words, turned):
    """What a row needs: slots of operands, sums and tiles on their way out."""
    planes = max(digits, 1)
    plan = {"tiles": tiles, "x": x, "digits": digits, "n": n, "turned": turned, "least": None}
    lefts, rights, raws = [], [], []
    for _ in range(2 * unit):
        rights.append(nl.ndarray((TILE, planes * n), dtype=x.dtype, buffer=nl.sbuf))
    for _ in range(2):  # half of the slots each: what lies side by side in HBM does so here
        lefts.append(nl.ndarray((TILE, unit * planes * TILE), dtype=tiles.dtype, buffer=nl.sbuf))
    if turned:
        for _ in range(2):
            raws.append(nl.ndarray((TILE, unit * planes * TILE), dtype=tiles.dtype, buffer=nl.sbuf))
    plan["unit"] = unit
    plan["lefts"] = lefts
    plan["rights"] = rights
    plan["raws"] = raws
    if digits > 0:
        casts, sums, outs = digit_sums.workspace(rows=1, digits=digits, words=words, bits=8)
        plan["casts"] = casts
        plan["sums"] = sums
        plan["outs"] = outs
        plan["words"] = words
        plan["bits"] = 8
        plan["balanced"] = False
        plan["m_size"] = TILE
        plan["n_size"] = n
        plan["row"] = n
    else:
        plan["out"] = nl.ndarray((TILE, n), dtype=nl.float32, buffer=nl.sbuf)
        plan["lowest"] = nl.ndarray((TILE, 1), dtype=nl.float32, buffer=nl.sbuf)
    return plan


def _left(plan, name, slot, count):
    """The tiles of ``count`` slots from ``slot`` on, which do not cross the middle."""
    unit, size = plan["unit"], max(plan["digits"], 1) * TILE
    first = slot % unit * size
    return plan[name][slot // unit][:, first : first + count * size]


def _load(plan, slots, j, ahead):
    """Tiles and the rows of X that they meet into slots: items from j + ahead on, or from ``ahead`` on of row j."""
    step = max(plan["stride"], 1)
    for q in range(len(slots)):
        count = len(slots) if plan["ordered"] else 1
        for side in range(2):
            if side == 0 and plan["ordered"] and q > 0:
                continue
            table = plan["places"][side]
            at = rows.item(table=table, j=j, ahead=ahead + q, stride=step)
            if side == 0:
                source = plan["tiles"]
                target = _left(plan=plan, name="raws" if plan["turned"] else "lefts", slot=slots[q], count=count)
            else:
                source, target = plan["x"], plan["rights"][slots[q]]
            width = source.shape[1]
            pattern = [[width, TILE], [1, width]]
            if side == 0 and count > 1:
                pattern = [[width, TILE], [TILE * width, count], [1, width]]
            place = flat(source).ap(pattern=pattern, offset=0, scalar_offset=at, indirect_dim=0)
            nisa.dma_copy(dst=target, src=place)


def _turn(plan, slot):
    """The tile of a slot, transposed."""
    planes = max(plan["digits"], 1)
    raw = _left(plan=plan, name="raws", slot=slot, count=1)
    left = _left(plan=plan, name="lefts", slot=slot, count=1)
    side = plan["turns"][0].shape[1] // TILE
    for d0 in range(0, planes, side):
        count = min(side, planes - d0)
        bank = plan["turns"][(slot + d0 // side) % TURN_BANKS]
        for d in range(count):
            nisa.nc_transpose(
                dst=bank[:, d * TILE : (d + 1) * TILE],
                data=raw[:, (d0 + d) * TILE : (d0 + d + 1) * TILE],
                engine=nisa.engine.tensor,
            )
        place = left[:, d0 * TILE : (d0 + count) * TILE]
        nisa.tensor_copy(dst=place, src=bank[:, 0 : count * TILE], engine=nisa.engine.vector)


def _start(plan):
    """PSUM of one loop body: for sums and, where tiles are turned, for these."""
    digits, n = plan["digits"], plan["n"]
    turns = []
    if plan["turned"]:
        for _ in range(TURN_BANKS):
            form = turned_format(dtype=plan["tiles"].dtype)
            side = TURNED_DIGITS if form == nl.bfloat16 else TURNED_DIGITS // 2
            turns.append(nl.ndarray((TILE, min(max(digits, 1), side) * TILE), dtype=form, buffer=nl.psum))
    plan["turns"] = turns
    if digits > 0:
        plan["banks"] = digit_sums.banks_of(count=BANKS - len(turns))
        return
    banks = []
    for n0 in range(0, n, TILE_N):
        banks.append(nl.ndarray((TILE, min(TILE_N, n - n0)), dtype=nl.float32, buffer=nl.psum))
    plan["banks"] = banks


def _multiply(plan, slots):
    """Add the products of some slots to the sums of the row."""
    if plan["turned"]:  # after all of them are on their way: copies wait for them
        for slot in slots:
            _turn(plan=plan, slot=slot)
    if plan["digits"] > 0:
        _multiply_digits(plan=plan, slots=slots)
        return
    banks = plan["banks"]
    for q in range(len(slots)):
        left = _left(plan=plan, name="lefts", slot=slots[q], count=1)
        for b in range(len(banks)):
            moving = plan["rights"][slots[q]][:, b * TILE_N : b * TILE_N + banks[b].shape[1]]
            nisa.nc_matmul(dst=banks[b], stationary=left, moving=moving, accumulate=q > 0)
    for b in range(len(banks)):
        here = plan["out"][:, b * TILE_N : b * TILE_N + banks[b].shape[1]]
        nisa.tensor_tensor(dst=here, data1=here, data2=banks[b], op=nl.add)


def _multiply_digits(plan, slots):
    """The same for digits: a bank is emptied before its sum could round, but for the two groups of lowest weight."""
    digits, n = plan["digits"], plan["n"]
    emptied = 0
    for e in range(digits):
        d = digits - 1 - e
        room = EXACT if d < digits - RELAXED_GROUPS else RELAXED * EXACT
        pairs = []
        for slot in slots:
            for i in range(d + 1):
                pairs.append((slot, i))
        for first in range(0, len(pairs), room):
            bank = plan["banks"][emptied % len(plan["banks"])][:, 0:n]
            for p in range(first, min(first + room, len(pairs))):
                slot, i = pairs[p]
                nisa.nc_matmul(
                    dst=bank,
                    stationary=_left(plan=plan, name="lefts", slot=slot, count=1)[:, i * TILE : (i + 1) * TILE],
                    moving=plan["rights"][slot][:, (d - i) * n : (d - i + 1) * n],
                    accumulate=p > first,
                )
            digit_sums.empty(plan=plan, bank=bank, i=0, e=e, emptied=emptied)
            emptied = emptied + 1


def _finish(plan, here):
    """The sums of one row to their place, or the smallest of them among all."""
    if plan["digits"] > 0:
        for e in range(plan["digits"]):
            digit_sums.carry_group(plan=plan, i=0, e=e, c_at=here)
        return
    out, n = plan["out"], plan["n"]
    if plan["least"] == None:  # noqa: E711
        nisa.dma_copy(dst=place(x=plan["c"], at=here, offset=0, rows=TILE, columns=n), src=out)
        return
    lowest = plan["lowest"]
    absent = nl.ndarray((TILE, n), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=absent, data=out, op0=nl.equal, operand0=0.0, op1=nl.multiply, operand1=NOTHING)
    nisa.tensor_tensor(dst=absent, data1=absent, data2=out, op=nl.maximum)
    nisa.tensor_reduce(dst=lowest, op=nl.minimum, data=absent, axis=1)
    nisa.tensor_tensor(dst=plan["least"], data1=plan["least"], data2=lowest, op=nl.minimum)
