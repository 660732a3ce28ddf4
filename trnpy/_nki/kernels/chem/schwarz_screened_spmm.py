"""A B without the elements of A whose bound q_i q_j is at most a threshold: the mask is made where it is used.

Rows of K come in descending order of their bounds, so that each row of A keeps a first part of them. How long it is
the host has counted exactly; on the chip a position is compared with that count, two small integers, so that the
decision is the host's own. No mask and no masked operand is ever in HBM, and K ends for a block of rows with the
longest of their parts: the device reads after how many turns.
Digits are masked one by one, and multiplied as in digits_matmul.

Bound by TensorE, by the model: VectorE takes 20 % of its time for masks.
"""

import nki
import nki.isa as nisa
import nki.language as nl

from ..shared import blocks, digit_sums
from ..shared.blocks import entry, flat, offsets, pieces, spot

TILE = 128
TILE_N = 512  # columns of one PSUM bank
HALVES = 2  # chunks of a turn: one is loaded and masked while the other is multiplied


@nki.jit
def schwarz_screened_spmm(a, b, counts, turns=None, words=3, m_tiles=4, k_tiles=2):
    """(M, N) float32, or of digits (words, M, N) int32, of a (K, M) float32 or (s, K, M) bfloat16, and b alike.

    counts: (1, M) float32, of how many first rows of K each row of the result is made; K a multiple of
    256 k_tiles. turns: (1, blocks) int32, for each block of the result how many of these it needs, in the order of
    schwarz_screened_spmm_reference.turns_of; without it all.
    """
    digits = a.shape[0] if len(a.shape) == 3 else 0
    k, m, n = a.shape[-2], a.shape[-1], b.shape[-1]
    step = HALVES * k_tiles * TILE
    assert k % step == 0
    plan = _plan(a=a, b=b, digits=digits, m=min(m, m_tiles * TILE), words=words, m_tiles=m_tiles, k_tiles=k_tiles)
    shape = (words, m, n) if digits > 0 else (m, n)
    plan["c"] = nl.ndarray(shape, dtype=nl.int32 if digits > 0 else nl.float32, buffer=nl.shared_hbm)
    plan["plane"] = m * n
    plan["row"] = n
    plan["counts"] = counts
    plan["steps"] = (
        offsets(pattern=[[step * m, k // step]], start=0), offsets(pattern=[[step * n, k // step]], start=0)
    )  # fmt: skip
    done = 0
    for m_piece in pieces(extent=m, block=m_tiles * TILE):
        m0, m_size, m_count = m_piece
        for n_piece in pieces(extent=n, block=TILE_N):
            n0, n_size, n_count = n_piece
            count = m_count * n_count
            tables = (
                offsets(pattern=[[0, n_count], [m_size, m_count]], start=m0),
                offsets(pattern=[[n_size, n_count], [0, m_count]], start=n0),
                offsets(pattern=[[n_size, n_count], [m_size * n, m_count]], start=m0 * n + n0),
            )
            plan["m_size"] = m_size
            plan["n_size"] = n_size
            _blocks(plan=plan, tables=tables, turns=turns, done=done, count=count, full=k // step)
            done = done + count
    return plan["c"]


def _plan(a, b, digits, m, words, m_tiles, k_tiles):
    """Slots of operands, banks, sums, masks: made once."""
    planes, n = max(digits, 1), min(b.shape[-1], TILE_N)
    lefts, rights, masks = [], [], []
    for _ in range(HALVES * k_tiles):
        lefts.append(nl.ndarray((TILE, planes * m), dtype=a.dtype, buffer=nl.sbuf))
        rights.append(nl.ndarray((TILE, planes * n), dtype=a.dtype, buffer=nl.sbuf))
        masks.append(nl.ndarray((TILE, m), dtype=a.dtype, buffer=nl.sbuf))
    numbers = nl.ndarray((TILE, 1), dtype=nl.int32, buffer=nl.sbuf)
    lane = nl.ndarray((TILE, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.iota(dst=numbers, pattern=[[0, 1]], offset=0, channel_multiplier=1)
    nisa.tensor_copy(dst=lane, src=numbers, engine=nisa.engine.vector)
    plan = {
        "a": a, "b": b, "digits": digits, "wrap": False, "halved": False, "balanced": False, "words": words, "bits": 8,
        "k_tiles": k_tiles, "lefts": lefts, "rights": rights, "masks": masks, "lane": lane,
        "left_of": nl.ndarray((TILE, m), dtype=nl.float32, buffer=nl.sbuf),
    }  # fmt: skip
    casts, sums, outs = [], [], []
    if digits > 0:
        casts, sums, outs = digit_sums.workspace(rows=m_tiles, digits=digits, words=words, bits=8)
    else:
        for _ in range(m_tiles):
            sums.append([nl.ndarray((TILE, TILE_N), dtype=nl.float32, buffer=nl.sbuf)])
    plan["casts"] = casts
    plan["outs"] = outs
    plan["sums"] = sums
    return plan


def _blocks(plan, tables, turns, done, count, full):
    """Every block of one size; ``turns`` of them begin at ``done``."""
    digits, m_size, n_size = plan["digits"], plan["m_size"], plan["n_size"]
    chunk = plan["k_tiles"] * TILE
    tiles = (m_size + TILE - 1) // TILE
    left_of = plan["left_of"][:, 0:m_size]

    def block(t):
        a_here, b_here = entry(table=tables[0], t=t), entry(table=tables[1], t=t)
        c_here = spot(table=tables[2], t=t)
        bound = nisa.register_alloc(full)
        if turns != None:  # noqa: E711 - NKI has no `is`
            nisa.register_load(bound, entry(table=turns, t=t, ahead=done))
        source = flat(plan["counts"]).ap(pattern=[[0, TILE], [1, m_size]], scalar_offset=a_here, indirect_dim=0)
        nisa.dma_copy(dst=left_of, src=source)
        if digits == 0:
            for i in range(tiles):
                nisa.memset(dst=plan["sums"][i][0], value=0.0, engine=nisa.engine.vector)

        def turn(j):
            plan["banks"] = digit_sums.banks_of(count=digit_sums.BANKS if digits > 0 else blocks.SUM_BANKS)
            at = []
            for side in range(2):
                start = (a_here, b_here)[side]
                at.append(entry(table=plan["steps"][side], t=j, start=start))
            for half in range(HALVES):
                _load(plan=plan, at=at, half=half)
                _mask(plan=plan, half=half)
                if digits > 0:
                    digit_sums.products(plan=plan, depth=chunk, half=half, c_at=None)
                else:
                    _add(plan=plan, half=half)
            nisa.tensor_scalar(dst=left_of, data=left_of, op0=nl.subtract, operand0=float(HALVES * chunk))

        nl.fori_loop(0, bound, turn)
        for i in range(tiles):
            rows = min(TILE, m_size - i * TILE)
            if digits > 0:
                for e in range(digits):
                    digit_sums.carry_group(plan=plan, i=i, e=e, c_at=c_here)
            else:
                target = blocks.place(x=plan["c"], at=c_here, offset=i * TILE * plan["row"], rows=rows, columns=n_size)
                nisa.dma_copy(dst=target, src=plan["sums"][i][0][0:rows, 0:n_size])

    nl.fori_loop(0, nisa.register_alloc(count), block)


def _load(plan, at, half):
    """One chunk of rows of K of both operands, all digits."""
    for q in range(plan["k_tiles"]):
        for side in range(2):
            x = (plan["a"], plan["b"])[side]
            size = (plan["m_size"], plan["n_size"])[side]
            planes, k, width = max(plan["digits"], 1), x.shape[-2], x.shape[-1]
            source = flat(x).ap(
                pattern=[[width, TILE], [k * width, planes], [1, size]],
                offset=(half * plan["k_tiles"] + q) * TILE * width, scalar_offset=at[side], indirect_dim=0,
            )  # fmt: skip
            slots = (plan["lefts"], plan["rights"])[side]
            nisa.dma_copy(dst=slots[half * plan["k_tiles"] + q][:, 0 : planes * size], src=source)


def _mask(plan, half):
    """Zeros where a row of K is none of the first ones that a column of the left operand keeps."""
    size = plan["m_size"]
    for q in range(plan["k_tiles"]):
        slot = half * plan["k_tiles"] + q
        mask = plan["masks"][slot][:, 0:size]
        nisa.tensor_scalar(
            dst=mask, data=plan["left_of"][:, 0:size], op0=nl.subtract, operand0=float(slot * TILE), op1=nl.greater,
            operand1=plan["lane"],
        )  # fmt: skip
        for d in range(max(plan["digits"], 1)):
            here = plan["lefts"][slot][:, d * size : (d + 1) * size]
            nisa.tensor_tensor(dst=here, data1=here, data2=mask, op=nl.multiply)


def _add(plan, half):
    """Products of numbers of one chunk, added to the sums."""
    lefts, rights, sums = [], [], []
    for q in range(plan["k_tiles"]):
        slot = half * plan["k_tiles"] + q
        lefts.append(plan["lefts"][slot][:, 0 : plan["m_size"]])
        rights.append(plan["rights"][slot][:, 0 : plan["n_size"]])
    for i in range(0, plan["m_size"], TILE):
        rows = min(TILE, plan["m_size"] - i)
        sums.append(plan["sums"][i // TILE][0][0:rows, 0 : plan["n_size"]])
    blocks.add_tiles(
        lefts=lefts, rights=rights, sums=sums, m_size=plan["m_size"], n_size=plan["n_size"], banks=plan["banks"],
        begun=True,
    )  # fmt: skip
