"""MP2 pair energies from density-fitted integrals: products, denominators and sums on the chip, one launch a block.

T = (ia|jb) is a product of digits (docs/digits.md#digits) with one exponent for each occupied orbital, so
that the chip sums only integers. Pairs i + j < s are summed and, if s is even, also i = j = s / 2. That pair
is a square for ia = jb; omitting it would lower every diagonal integral, 3e-9 Hartree in (H2O)4 with 10 passes.

The energy sum over ab of T T / D is split so that its large part is a sum of integers. With H and G, T and T / D
rounded to integers of eight bits, and the rounding remainders t and z,

    T T / D = H G + (H z + t (G + z)),    z = (H + t - G D) / D,

the sum of H G is the trace of a product on TensorE, exact below 2^24, and the remainder is 2^-7 as large: with
float32 sums of the remainder, the whole has the accuracy of double-float sums. D comes from three numbers for each
ia: rounded, on a grid on which products with G are exact, and the rest. ScalarE computes its reciprocal, which one
Newton step refines. Exchange uses transposes of the blocks before the diagonal; off-diagonal ones count twice.

float32 numbers are multiplied without splitting, because splitting would not make their products more accurate.

Bound by TensorE in the model: at naux = 1536 and 448 virtuals it is busy for 84 % of the time, VectorE for 56 %.
"""

import nki
import nki.isa as nisa
import nki.language as nl

from ..shared.blocks import flat, identity_of, turn, turned_format, view
from ..shared.digit_sums import shift
from ..shared.entries import visit

TILE = 128  # rows of K on the partitions, and of a in the stationary operand
SUM_BANKS = 3  # groups of products rotate over these; the others hold transposes and three traces, a bank each
EXACT = 8  # products of 128 rows of 8-bit digits that one bank sums exactly
ROUNDED_GROUPS = 2  # the lowest groups may round: their unit is below the truncation error of the digits
ROUNDER = 1.5 * 2.0**23  # adding and subtracting it rounds to the nearest integer
STAGES = 5  # of the energies of some rows: each is issued after a group of products of the next rows
SETS = 2  # of work tiles: a block of rows starts while the one before ends
TURN = 6400  # instructions of one iteration of a loop: eight cells of 1536 auxiliary functions and 448 virtuals
PARTS = 6  # of direct, exchange on diagonal tiles, exchange off them: traces, then the rest


@nki.jit
def mp2_energy(
    a,
    gaps,
    units,
    cells,
    others=None,
    b=None,
    gaps_b=None,
    span=128,
    exchange=True,
    k_tiles=8,
    repeats=True,
    biases=True,
    offsets=True,
    loops=True,
):
    """(1 + cells, 128, 6) float32, and with ``others`` (2 + cells + others, 128, 6), for mp2_energy_reference.finish.

    The first place of each table is the sum of the others, with which the host detects corrupted transfers.

    a: digits (s, K, columns) bfloat16 with K = naux, a column for each ia, the virtuals of one i padded with
    zeros to a multiple of ``span``; or numbers (1, K, columns) float32. gaps: (3, columns) float32, e_a - e_i.
    b, gaps_b: the same of the other spin or of other i; without them those of a.
    units: (1, groups) float32, what one of each group of digits is of H.
    cells: (2, count) int32, the first columns of ``span`` rows a and of ``span`` columns b of T; with
    ``exchange`` both are the same range of virtuals. others: (4, count), with exchange, the first columns of two
    blocks whose ranges are exchanged: (P of i, Q of j, Q of i, P of j).

    Forms for a device on which self-tests fail: without ``repeats`` no transfer repeats a row on all partitions from a
    run-time address, and without ``biases`` VectorE rounds instead of ScalarE. Without ``offsets`` there is no device
    loop, and without ``loops`` only the one of ``cells``.
    """
    right, gaps_right = (a, gaps) if b == None else (b, gaps_b)  # noqa: E711 - NKI has no `is`
    count = cells.shape[1]
    extra = 0 if others == None else others.shape[1]  # noqa: E711
    length = 1 + count + (1 + extra if extra > 0 else 0)
    out = nl.ndarray((length, TILE, PARTS), dtype=nl.float32, buffer=nl.shared_hbm)
    job = _job(a=a, right=right, gaps=gaps, gaps_right=gaps_right, units=units, span=span, k_tiles=k_tiles)
    job["out"] = out
    job["biases"] = biases
    if not repeats:
        job["row"] = nl.ndarray((3, span), dtype=nl.float32, buffer=nl.private_hbm)
    first, second = job["stores"]
    own = first if exchange else None
    steps = count_steps(a=a, span=span)
    _clear(job=job)
    job["squares"] = ((0, 1, first, own, False, 0),)
    places = (TILE * PARTS, TILE * PARTS)
    each = max(1, TURN // steps) if offsets else count + 1
    visit(job=job, table=cells, places=places, each=each, begin=_start, body=_entry, end=_drain)
    _total(job=job, index=0)
    if extra > 0:
        _clear(job=job)
        job["squares"] = ((2, 3, first, None, True, 0), (0, 1, second, first, True, 1))
        places = ((count + 2) * TILE * PARTS, TILE * PARTS)
        each = max(1, TURN // (2 * steps)) if offsets and loops else extra + 1
        visit(job=job, table=others, places=places, each=each, begin=_start, body=_entry, end=_drain)
        _total(job=job, index=count + 1)
    return out


def count_steps(a, span):
    """Approximate instructions of one block of ``span`` rows and columns."""
    digits, k, _ = a.shape
    tiles, depth = (span + TILE - 1) // TILE, (k + TILE - 1) // TILE
    return tiles * (depth * (digits * (digits + 1) // 2 + 1) + 60) + 2 * depth


def _entry(job, at, end):
    """All squares of one entry, whose results go to ``end``. The last rows of the entry before are not finished yet."""
    for square in job["squares"]:
        left, right, store, partner, whole, column = square
        _square(job=job, at=(at[left], at[right]), store=store, partner=partner, whole=whole, column=column)
    job["late"]["end"] = end


def _job(a, right, gaps, gaps_right, units, span, k_tiles):
    """All of SBUF: allocated once, because a device loop keeps its allocations."""
    digits, k, _ = a.shape
    tiles = (span + TILE - 1) // TILE
    wide = min(span, TILE)
    padded = tiles * wide  # columns of the operands of traces: every product of one trace has the same size
    k_tiles = min(k_tiles, (k + TILE - 1) // TILE)
    panels, rows, stores, works = [], [], [], []
    for _ in range(2 * k_tiles):
        panels.append(
            (
                nl.ndarray((TILE, digits * span), dtype=a.dtype, buffer=nl.sbuf),
                nl.ndarray((TILE, digits * span), dtype=a.dtype, buffer=nl.sbuf),
            )
        )
    for _ in range(max(tiles, 2)):
        rows.append((_work(span=span), _work(span=span)))
    for _ in range(2):
        store = []
        for _ in range(tiles):
            store.append((_padded(columns=padded), _work(span=span)))
        stores.append(store)
    for _ in range(SETS):
        work = {"g": _padded(columns=padded), "turned": _padded(columns=padded)}
        for name in ("rounded", "gap", "inverse", "first", "grid", "rest", "u", "hz", "tu"):
            work[name] = _work(span=span)
        works.append(work)
    scales = nl.ndarray((TILE, units.shape[1]), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=scales, src=units.ap(pattern=[[0, TILE], [1, units.shape[1]]]))
    ones, identity = _work(span=wide), _work(span=wide)
    nisa.memset(dst=ones, value=1.0, engine=nisa.engine.vector)
    nisa.affine_select(
        dst=identity, pattern=[[1, wide]], channel_multiplier=-1, on_true_tile=ones, on_false_value=0.0,
        cmp_op=nl.equal,
    )  # fmt: skip
    return {
        "a": a, "b": right, "gaps": gaps, "gaps_b": gaps_right, "span": span, "tiles": tiles, "k_tiles": k_tiles,
        "panels": panels, "rows": rows, "stores": stores, "works": works,
        "scales": scales, "identity": identity, "spread": (_work(span=span), _work(span=span), _work(span=span)),
        "own": nl.ndarray((TILE, 3 * tiles), dtype=nl.float32, buffer=nl.sbuf),
        "wide": wide, "unit": identity_of(dtype=nl.bfloat16),
        "sums": nl.ndarray((TILE, 3, 4 * tiles), dtype=nl.float32, buffer=nl.sbuf),
        "parts": nl.ndarray((TILE, PARTS), dtype=nl.float32, buffer=nl.sbuf),
        "total": nl.ndarray((TILE, PARTS), dtype=nl.float32, buffer=nl.sbuf),
        "masked": _work(span=wide), "tail": None, "late": None, "squares": None, "out": None, "row": None,
        "biases": True,
        # The engine that relieves VectorE; on trn1 it is VectorE itself, because GpSimd adds no floating-point tiles.
        "side": nisa.engine.vector if nisa.get_nc_version() < nisa.nc_version.gen3 else nisa.engine.gpsimd,
    }  # fmt: skip


def _padded(columns):
    """Zeros; rows of T overwrite the first ``span`` columns."""
    tile = nl.ndarray((TILE, columns), dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.memset(dst=tile, value=0.0, engine=nisa.engine.vector)
    return tile


def _work(span):
    return nl.ndarray((TILE, span), dtype=nl.float32, buffer=nl.sbuf)


def _clear(job):
    """Set zeros in places that no sum overwrites, and in the total of a table before its first place."""
    for x in (job["sums"], job["parts"], job["total"]):
        nisa.memset(dst=x, value=0.0, engine=nisa.engine.vector)


def _total(job, index):
    """The sum of all places of a table, as place ``index`` of the result."""
    target = flat(job["out"]).ap(pattern=[[PARTS, TILE], [1, PARTS]], offset=index * TILE * PARTS)
    nisa.dma_copy(dst=target, src=job["total"])


def _start(job):
    """PSUM of one loop body, in which each trace has its own tensor; no rows are pending for TensorE."""
    span, wide, banks, traces = job["span"], job["wide"], [], []
    for _ in range(SUM_BANKS):
        banks.append(nl.ndarray((TILE, span), dtype=nl.float32, buffer=nl.psum))
    for _ in range(3):
        traces.append(nl.ndarray((TILE, wide), dtype=nl.float32, buffer=nl.psum))
    job["banks"] = banks
    job["traces"] = traces
    job["turned_h"] = nl.ndarray((TILE, span), dtype=turned_format(dtype=nl.bfloat16), buffer=nl.psum)
    job["turned_t"] = nl.ndarray((TILE, span), dtype=nl.float32, buffer=nl.psum)
    job["traced"] = [False, False, False]
    job["tail"] = None
    job["late"] = None


def _square(job, at, store, partner, whole, column):
    """One block T of ``span`` rows and columns: its direct sums and, with ``partner``, its exchange.

    The engines overlap: energies of rows are issued among the products of the next rows, so that VectorE empties the
    first banks of these before, and TensorE's part of the energies follows those products.
    ``partner`` holds T or, if ``whole``, the block whose transpose is multiplied by all of T.
    """
    tiles, k, chunk = job["tiles"], job["a"].shape[1], job["k_tiles"] * TILE
    first = k - (k - 1) // chunk * chunk  # the last chunk is a full one: the energies are computed at the same time
    starts = [(0, first)]
    for k0 in range(first, k, chunk):
        starts.append((k0, chunk))
    if tiles == 1:  # the energies of the block before read the other sums
        job["rows"] = [job["rows"][1], job["rows"][0]]
    used = 0
    for c in range(len(starts)):
        k0, depth = starts[c]
        _load(job=job, at=at, k0=k0, depth=depth, half=c % 2)
        for r in range(tiles):
            used = _products(job=job, r=r, depth=depth, half=c % 2, begun=c > 0, used=used)
            if (c == 0 and r == 0) or c == len(starts) - 1:
                _drain(job=job)
            if c == 0 and r == 0:
                _load_gaps(job=job, at=at)
            if c == len(starts) - 1:
                job["late"] = {
                    "r": r, "sums": job["rows"][r], "store": store, "partner": partner, "whole": whole,
                    "column": column, "stage": 0, "end": None,
                }  # fmt: skip


def _load_gaps(job, at):
    """Gaps of the columns, on every partition, and of the rows, a partition each."""
    span = job["span"]
    repeated = TILE if job["row"] == None else 1  # noqa: E711 - NKI has no `is`
    for k in range(3):
        source = flat(job["gaps_b"]).ap(
            pattern=[[0, repeated], [1, span]], offset=k * job["gaps_b"].shape[1], scalar_offset=at[1], indirect_dim=0
        )
        if repeated == TILE:
            nisa.dma_copy(dst=job["spread"][k], src=source)
        else:
            nisa.dma_copy(dst=job["row"][k : k + 1, :], src=source)
            nisa.dma_copy(
                dst=job["spread"][k], src=flat(job["row"]).ap(pattern=[[0, TILE], [1, span]], offset=k * span)
            )
    for r in range(job["tiles"]):
        height = min(TILE, span - r * TILE)
        source = flat(job["gaps"]).ap(
            pattern=[[1, height], [job["gaps"].shape[1], 3]], offset=r * TILE, scalar_offset=at[0], indirect_dim=0
        )
        nisa.dma_copy(dst=job["own"][0:height, 3 * r : 3 * r + 3], src=source)


def _load(job, at, k0, depth, half):
    """All digits of ``depth`` rows of K of both operands."""
    span = job["span"]
    for q in range(0, depth, TILE):
        rows = min(TILE, depth - q)
        for side in range(2):
            x = (job["a"], job["b"])[side]
            digits, k, width = x.shape
            source = flat(x).ap(
                pattern=[[width, rows], [k * width, digits], [1, span]], offset=(k0 + q) * width,
                scalar_offset=at[side], indirect_dim=0,
            )  # fmt: skip
            slot = job["panels"][half * job["k_tiles"] + q // TILE][side]
            nisa.dma_copy(dst=slot[0:rows, :], src=source)


def _products(job, r, depth, half, begun, used):
    """Add the digit products of one chunk of K to the sums of rows r, in units of H: the highest group, the others."""
    digits, span = job["a"].shape[0], job["span"]
    height = min(TILE, span - r * TILE)
    high, low = job["rows"][r][0][0:height, :], job["rows"][r][1][0:height, :]
    groups = []
    for d in range(digits - 1, -1, -1):
        pairs = []
        for q in range(0, depth, TILE):
            for x in range(d + 1):
                pairs.append((q, x, d - x))
        groups.append((d, pairs))
    if digits % 2 == 0:
        pairs = []
        for q in range(0, depth, TILE):
            pairs.append((q, digits // 2, digits // 2))
        groups.append((digits, pairs))
    if digits == 1 and not begun:
        nisa.memset(dst=low, value=0.0, engine=nisa.engine.vector)
    started = [begun, begun or digits == 1]  # whether high and low hold sums
    for part in groups:
        d, pairs = part
        room = EXACT if d < digits - ROUNDED_GROUPS else len(pairs)
        for first in range(0, len(pairs), room):
            bank = job["banks"][used % SUM_BANKS][0:height, :]
            for p in range(first, min(first + room, len(pairs))):
                q, x, y = pairs[p]
                stationary, moving = job["panels"][half * job["k_tiles"] + q // TILE]
                rows, left = min(TILE, depth - q), x * span + r * TILE
                nisa.nc_matmul(
                    dst=bank, stationary=stationary[0:rows, left : left + height],
                    moving=moving[0:rows, y * span : (y + 1) * span], accumulate=p > first,
                )  # fmt: skip
            side = 0 if d == 0 else 1
            total, unit = (high, low)[side], job["scales"][0:height, d : d + 1]
            if started[side]:
                nisa.scalar_tensor_tensor(
                    dst=total, data=bank, op0=nl.multiply, operand0=unit, op1=nl.add, operand1=total
                )
            else:
                nisa.activation(dst=total, op=nl.copy, data=bank, scale=unit)
            started[side] = True
            used = used + 1
            _late(job=job)
    return used


def _round(job, dst, between, data):
    """The nearest integers of ``data``."""
    shift(dst=between, data=data, number=ROUNDER, biases=job["biases"])
    shift(dst=dst, data=between, number=-ROUNDER, biases=job["biases"])


def _energies(job, r, sums, store, column, stage):
    """One of the STAGES of the contribution of rows r of T to the sums, except the part that TensorE adds."""
    span, work = job["span"], job["works"][r % SETS]
    height = min(TILE, span - r * TILE)
    high, low = sums[0][0:height, :], sums[1][0:height, :]
    h, t = store[r][0][0:height, 0:span], store[r][1][0:height, :]
    rounded, gap, inverse = work["rounded"][0:height, :], work["gap"][0:height, :], work["inverse"][0:height, :]
    first, grid, rest = work["first"][0:height, :], work["grid"][0:height, :], work["rest"][0:height, :]
    g, u, own = work["g"][0:height, 0:span], work["u"][0:height, :], job["own"][0:height, 3 * r : 3 * r + 3]
    place, side = 2 * (column * job["tiles"] + r), job["side"]
    spread = []
    for k in range(3):
        spread.append(job["spread"][k][0:height, :])
    if stage == 0:  # r = -1 / gap
        nisa.tensor_scalar(dst=gap, data=spread[0], op0=nl.add, operand0=own[:, 0:1])
        nisa.activation(dst=inverse, op=nl.reciprocal, data=gap)
        nisa.tensor_tensor(dst=gap, data1=gap, data2=inverse, op=nl.multiply, engine=side)
    if stage == 1:  # with one Newton step
        nisa.scalar_tensor_tensor(
            dst=inverse, data=gap, op0=nl.subtract, operand0=2.0, op1=nl.multiply, operand1=inverse
        )
    if stage == 1 and job["a"].shape[0] == 1:
        nisa.activation(dst=t, op=nl.copy, data=high)
        nisa.tensor_tensor(dst=u, data1=high, data2=inverse, op=nl.multiply)
        _sum(job=job, work=work, pairs=((t, u),), kind=0, place=place, height=height)
    if job["a"].shape[0] == 1:
        return
    if stage == 1:  # T = H + t; G, the integer nearest to H / D
        _round(job=job, dst=h, between=rounded, data=high)
        nisa.tensor_tensor(dst=t, data1=high, data2=h, op=nl.subtract, engine=side)
        nisa.tensor_tensor(dst=t, data1=t, data2=low, op=nl.add, engine=side)
        nisa.tensor_tensor(dst=first, data1=high, data2=inverse, op=nl.multiply)
        _round(job=job, dst=g, between=rounded, data=first)
    if stage == 2:
        nisa.scalar_tensor_tensor(
            dst=grid, data=spread[1], op0=nl.add, operand0=own[:, 1:2], op1=nl.multiply, operand1=g
        )
        nisa.tensor_tensor(dst=grid, data1=grid, data2=h, op=nl.add, engine=side)
        nisa.scalar_tensor_tensor(
            dst=rest, data=spread[2], op0=nl.add, operand0=own[:, 2:3], op1=nl.multiply, operand1=g
        )
    if stage == 3:  # z
        nisa.tensor_tensor(dst=grid, data1=grid, data2=rest, op=nl.add)
        nisa.tensor_tensor(dst=grid, data1=grid, data2=t, op=nl.add)
        nisa.tensor_tensor(dst=grid, data1=grid, data2=inverse, op=nl.multiply)
        nisa.tensor_tensor(dst=u, data1=grid, data2=g, op=nl.add, engine=side)
    if stage == 4:
        _sum(job=job, work=work, pairs=((h, grid), (t, u)), kind=0, place=place, height=height)


def _late(job):
    """The next stage of the energies of the last rows whose products are complete."""
    rows = job["late"]
    if rows == None:  # noqa: E711 - NKI has no `is`
        return
    _energies(job=job, r=rows["r"], sums=rows["sums"], store=rows["store"], column=rows["column"], stage=rows["stage"])
    rows["stage"] = rows["stage"] + 1
    if rows["stage"] == STAGES:
        job["tail"] = rows
        job["late"] = None


def _drain(job):
    """The rest of the energies of the last rows, TensorE's part too, and the results of an entry that ends there."""
    for _ in range(STAGES):
        _late(job=job)
    rows = job["tail"]
    if rows == None:  # noqa: E711
        return
    job["tail"] = None
    _last_rows(job=job, tail=rows)
    if rows["end"] != None:  # noqa: E711
        _finish(job=job, end=rows["end"])
        job["traced"] = [False, False, False]


def _last_rows(job, tail):
    """The traces of some rows, and their exchange."""
    r, column, whole, partner = tail["r"], tail["column"], tail["whole"], tail["partner"]
    span, work = job["span"], job["works"][r % SETS]
    height = min(TILE, span - r * TILE)
    h, g = tail["store"][r][0][0:height, :], work["g"][0:height, :]
    for c in range(0, span if job["a"].shape[0] > 1 else 0, TILE):
        stop = c + job["wide"]
        _trace(job=job, stationary=h[:, c:stop], moving=g[:, c:stop], kind=0, begun=column > 0 or r > 0 or c > 0)
    if partner != None:  # noqa: E711
        last = job["tiles"] if whole else r + 1
        _exchange(job=job, r=r, partner=partner, last=last, whole=whole, column=column)


def _exchange(job, r, partner, last, whole, column):
    """Sums of rows r of T with the transposes of rows before ``last``."""
    span, work = job["span"], job["works"][r % SETS]
    height = min(TILE, span - r * TILE)
    banks = (job["turned_h"], job["turned_t"])
    split = job["a"].shape[0] > 1  # T is H and t
    for q in range(last):
        rows, start = min(TILE, span - q * TILE), q * TILE
        for x in range(0 if split else 1, 2):
            data = partner[q][x][0:rows, r * TILE : r * TILE + height]
            identity = job["unit"] if x == 0 else None
            turn(dst=banks[x][0:height, start : start + rows], data=data, identity=identity)
    stop, own = min(span, last * TILE), r * TILE
    if split:
        g, turned = work["g"][0:height, :], work["turned"][0:height, :]
        nisa.activation(dst=turned[:, 0:stop], op=nl.copy, data=banks[0][0:height, 0:stop])
        for q in range(last):
            start, end = q * TILE, q * TILE + job["wide"]
            kind = 1 if q == r and not whole else 2
            first_row = 1 if kind == 2 and not whole else 0
            begun = r > first_row or (kind == 2 and q > 0)
            _trace(job=job, stationary=turned[:, start:end], moving=g[:, start:end], kind=kind, begun=begun)
    ranges = [(0, stop, 2)] if whole else [(own, stop, 1)]
    if not whole and r > 0:
        ranges.append((0, own, 2))
    for part in ranges:
        start, end, kind = part
        pairs = [(work["u"][0:height, start:end], banks[1][0:height, start:end])]
        if split:
            pairs.append((work["grid"][0:height, start:end], banks[0][0:height, start:end]))
        place = 2 * (column * job["tiles"] + r)
        _sum(job=job, work=work, pairs=pairs, kind=kind, place=place, height=height)


def _sum(job, work, pairs, kind, place, height):
    """Sum elementwise products over each row."""
    for i in range(len(pairs)):
        x, y = pairs[i]
        product = work[("hz", "tu")[i]][0:height, 0 : x.shape[1]]
        nisa.tensor_tensor(dst=product, data1=x, data2=y, op=nl.multiply)
        nisa.activation(
            dst=product, op=nl.copy, data=product, reduce_op=nl.add,
            reduce_res=job["sums"][0:height, kind, place + i : place + i + 1], reduce_cmd=nisa.reduce_cmd.reset_reduce,
        )  # fmt: skip


def _trace(job, stationary, moving, kind, begun):
    """Add a product to a sum whose diagonal sums elementwise products over columns: exact below 2^24."""
    job["traced"][kind] = True
    bank = job["traces"][kind][0 : job["wide"], :]
    nisa.nc_matmul(dst=bank, stationary=stationary, moving=moving, accumulate=begun)


def _finish(job, end):
    """Diagonals of the traces and sums over all rows, for the host to add up."""
    wide, parts = job["wide"], job["parts"]
    for kind in range(3):
        if job["traced"][kind]:
            bank, masked = job["traces"][kind][0:wide, :], job["masked"][0:wide, :]
            nisa.tensor_tensor(dst=masked, data1=bank, data2=job["identity"][0:wide, :], op=nl.multiply)
            nisa.tensor_reduce(dst=parts[0:wide, 2 * kind : 2 * kind + 1], op=nl.add, data=masked, axis=1)
        nisa.tensor_reduce(dst=parts[:, 2 * kind + 1 : 2 * kind + 2], op=nl.add, data=job["sums"][:, kind, :], axis=1)
    nisa.tensor_tensor(dst=job["total"], data1=job["total"], data2=parts, op=nl.add)
    nisa.dma_copy(dst=view(x=job["out"], at=end, pattern=[[PARTS, TILE], [1, PARTS]]), src=parts)
