"""Layers of experts: one expert applied to the rows routed to it, and all of a chunk of rows, in tiles of 128 lanes."""

import nki
import nki.isa as nisa
import nki.language as nl

ROWS = 128
BANK = 512  # float32 of a PSUM bank
AHEAD = 1  # tiles for which loads are issued ahead
STAGES = 4  # tiles in flight: rows turned; products; activation; products back
F32, BF16, U8, I32 = nl.float32, nl.bfloat16, nl.uint8, nl.int32
FP8 = nl.float8_e4m3


@nki.jit
def passes(x, into, back, into_scales, back_scales, lanes=128, by_row=True):
    """y = act(x W1, x W2) W3 for ``lanes`` rows of x (passes * lanes, width) with one expert each, weights in fp8.

    into (experts, 128, chunks, 2, width), back (experts, 128, chunks, width): a scale for each row of a weight, which
    products bring to all partitions as three bfloat16 parts, or one for each tile of 128 x 128.
    """
    width = x.shape[1]
    y = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    ones = tile((3, ROWS), BF16)
    nisa.memset(dst=ones, value=1.0)
    for place in range(x.shape[0] // lanes):
        expert = place % into.shape[0]
        first = place * lanes
        across = tile((ROWS, width // ROWS, lanes), BF16)
        for sub in range(lanes // ROWS):
            here = loaded(x[first + sub * ROWS : first + (sub + 1) * ROWS])
            for c in range(0, width // ROWS, 4):
                turned(across[:, c : c + 4, sub * ROWS : (sub + 1) * ROWS], here, c)
        activated = tile((ROWS, into.shape[2], lanes), BF16)
        for m in range(into.shape[2]):
            weights = scaled_into(into[expert, :, m], into_scales[expert, m], ones, by_row)
            gated(activated[:, m], across, weights, lanes)
        results = []
        for _ in range(lanes // ROWS):
            results.append(tile((ROWS, width), BF16))
        for start in range(0, width, BANK):
            weights = scaled_back(back[expert], back_scales[expert], start, ones, by_row)
            for sub in range(lanes // ROWS):
                bank = psum((ROWS, BANK))
                for m in range(into.shape[2]):
                    left = activated[:, m, sub * ROWS : (sub + 1) * ROWS]
                    nisa.nc_matmul(dst=bank, stationary=left, moving=weights[:, m], accumulate=m > 0)
                nisa.activation(dst=results[sub][:, start : start + BANK], op=nl.copy, data=bank)
        for sub in range(lanes // ROWS):
            nisa.dma_copy(dst=y[first + sub * ROWS : first + (sub + 1) * ROWS], src=results[sub])
    return y


def scaled_into(source, scales, ones, by_row):
    """Both halves of a chunk of the first weights, from fp8 with scales to bfloat16."""
    width = source.shape[2]
    raw, weights = tile((ROWS, 2, width), U8), tile((ROWS, 2, width), BF16)
    nisa.dma_copy(dst=raw, src=source)
    if by_row:
        factors = loaded(scales)
        for half in range(2):
            for start in range(0, width, BANK):
                part = slice(start, start + BANK)
                bank = everywhere(ones, factors[:, half * (width // BANK) + start // BANK])
                nisa.tensor_tensor(
                    dst=weights[:, half, part], data1=raw[:, half, part].view(FP8), data2=bank, op=nl.multiply
                )
        return weights
    factors = tile((ROWS, 2 * width // ROWS), F32)
    nisa.dma_copy(dst=factors, src=scales.ap([[0, ROWS], [1, 2 * width // ROWS]]))
    for half in range(2):
        for c in range(width // ROWS):
            part, place = slice(c * ROWS, (c + 1) * ROWS), half * (width // ROWS) + c
            scaled(weights[:, half, part], raw[:, half, part].view(FP8), factors[:, place : place + 1], c)
    return weights


def scaled_back(source, scales, start, ones, by_row):
    """512 columns of all chunks of the last weights, from fp8 with scales to bfloat16."""
    chunks = source.shape[1]
    raw, weights = tile((ROWS, chunks, BANK), U8), tile((ROWS, chunks, BANK), BF16)
    nisa.dma_copy(dst=raw, src=source[:, :, start : start + BANK])
    if by_row:
        factors = loaded(scales[start // BANK])
        for m in range(chunks):
            bank = everywhere(ones, factors[:, m])
            nisa.tensor_tensor(dst=weights[:, m], data1=raw[:, m].view(FP8), data2=bank, op=nl.multiply)
        return weights
    factors = tile((ROWS, chunks, 4), F32)
    width = source.shape[2] // ROWS
    nisa.dma_copy(dst=factors, src=scales.ap([[0, ROWS], [width, chunks], [1, 4]], offset=start // ROWS))
    for m in range(chunks):
        for j in range(4):
            part = slice(j * ROWS, (j + 1) * ROWS)
            scaled(weights[:, m, part], raw[:, m, part].view(FP8), factors[:, m, j : j + 1], j)
    return weights


def everywhere(ones, parts):
    """A row of scales, of which each partition gets the sum of three parts."""
    bank = psum((ROWS, BANK))
    nisa.nc_matmul(dst=bank, stationary=ones, moving=parts, accumulate=False)
    return bank


def scaled(target, source, factor, place):
    """Engines in turn."""
    if place % 2:
        nisa.activation(dst=target, op=nl.copy, data=source, scale=factor)
    else:
        nisa.tensor_scalar(dst=target, data=source, op0=nl.multiply, operand0=factor)


def gated(target, across, weights, lanes):
    """silu of one product, at most 10, times another between -10 and 10."""
    both = []
    for half in range(2):
        bank = psum((ROWS, lanes))
        for c in range(across.shape[1]):
            stationary = weights[:, half, c * ROWS : (c + 1) * ROWS]
            nisa.nc_matmul(dst=bank, stationary=stationary, moving=across[:, c], accumulate=c > 0)
        both.append(bank)
    gate, other, smooth = tile((ROWS, lanes), BF16), tile((ROWS, lanes), BF16), tile((ROWS, lanes), F32)
    limited(gate, other, both[0], both[1])
    nisa.activation(dst=smooth, op=nl.silu, data=gate)
    nisa.tensor_tensor(dst=target, data1=smooth, data2=other, op=nl.multiply)


def limited(gate, other, one, two):
    nisa.tensor_scalar(dst=gate, data=one, op0=nl.minimum, operand0=10.0)
    nisa.tensor_scalar(dst=other, data=two, op0=nl.minimum, operand0=10.0, op1=nl.maximum, operand1=-10.0)


@nki.jit
def planned(experts, least, triangle, count=288, tiles=206):
    """Where each routed pair of a row and an expert lies: its place among those of its expert, and stores of indices.

    experts (rows, routed) int32; least (128, count) float32 holds 0, 1, ... in each row.
    """
    rows, routed = experts.shape
    groups = rows // ROWS
    numbers, lower, full = loaded(least), loaded(triangle), tile((ROWS, ROWS), BF16)
    nisa.memset(dst=full, value=1.0)
    here, chosen = tile((ROWS, groups, routed), I32), tile((ROWS, groups, routed), F32)
    nisa.dma_copy(dst=here, src=experts.ap([[routed, ROWS], [ROWS * routed, groups], [1, routed]]))
    nisa.tensor_copy(dst=chosen, src=here)
    places, sums = tile((ROWS, groups, routed), F32), []
    for _ in range((groups * routed + 255) // 256):
        sums.append(tile((ROWS, count), BF16))
        nisa.memset(dst=sums[-1], value=0.0)
    for group in range(groups * routed):
        column = slice(group % routed, group % routed + 1)
        marks, bank, earlier = tile((ROWS, count), BF16), psum((ROWS, count)), tile((ROWS, count), F32)
        nisa.tensor_scalar(dst=marks, data=numbers, op0=nl.equal, operand0=chosen[:, group // routed, column])
        nisa.nc_matmul(dst=bank, stationary=lower, moving=marks, accumulate=False)
        for r in range((group + 255) // 256):
            nisa.nc_matmul(dst=bank, stationary=full, moving=sums[r], accumulate=True)
        nisa.tensor_tensor(dst=earlier, data1=marks, data2=bank, op=nl.multiply)
        nisa.tensor_reduce(dst=places[:, group // routed, column], op=nl.add, data=earlier, axis=1)
        nisa.tensor_tensor(dst=sums[group // 256], data1=sums[group // 256], data2=marks, op=nl.add)
    begins = offsets(sums, count)
    index, lane = tile((ROWS, groups, routed), I32), tile((ROWS, groups), I32)
    which, first = tile((ROWS, groups, routed), nl.uint32), tile((ROWS, groups, routed), F32)
    nisa.tensor_copy(dst=which, src=here)
    nisa.nc_n_gather(dst=first, data=begins, indices=which)
    nisa.scalar_tensor_tensor(dst=places, data=first, op0=nl.multiply, operand0=64.0, op1=nl.add, operand1=places)
    nisa.tensor_copy(dst=index, src=places)
    nisa.iota(dst=lane, pattern=[[ROWS, groups]], offset=0, channel_multiplier=1)
    out = nl.ndarray((ROWS * tiles, 1), dtype=I32, buffer=nl.shared_hbm)
    for group in range(groups):
        for k in range(routed):
            at = index.ap([[groups * routed, ROWS], [1, 1]], offset=group * routed + k)
            there = out.ap([[1, ROWS], [1, 1]], offset=0, vector_offset=at, indirect_dim=0)
            nisa.dma_copy(dst=there, src=lane[:, group : group + 1])
    return out


def offsets(sums, count):
    """The first block of each expert on every partition, from marks of its pairs: sums over the experts before it."""
    ones, total = tile((ROWS, 64), BF16), psum((64, count))
    nisa.memset(dst=ones, value=1.0)
    for r in range(len(sums)):
        nisa.nc_matmul(dst=total, stationary=ones, moving=sums[r], accumulate=r > 0)
    needed, rounded, before = tile((1, count), F32), tile((1, count), I32), tile((1, count), F32)
    nisa.tensor_scalar(dst=needed, data=total[0:1], op0=nl.add, operand0=63.0)
    nisa.tensor_copy(dst=rounded, src=needed)
    nisa.tensor_scalar(dst=rounded, data=rounded, op0=nl.right_shift, operand0=6)
    nisa.tensor_copy(dst=needed, src=rounded)
    shift = 1
    while shift < count:
        nisa.tensor_copy(dst=before, src=needed)
        nisa.tensor_tensor(
            dst=needed[:, shift:count], data1=before[:, shift:count], data2=before[:, 0 : count - shift], op=nl.add
        )
        shift *= 2
    narrow, row = tile((1, count), BF16), tile((1, ROWS), BF16)
    nisa.tensor_copy(dst=narrow, src=needed)
    nisa.memset(dst=row, value=1.0)
    bank, known = psum((ROWS, count)), tile((ROWS, count), F32)
    nisa.nc_matmul(dst=bank, stationary=row, moving=narrow, accumulate=False)
    nisa.tensor_copy(dst=known, src=bank)
    return known


@nki.jit
def grouped(x, blob, index, owners, fold, tiles=24, blocks=2):
    """``tiles`` tiles of 128 lanes: ``blocks`` experts of 128 x width in fp8 each, rows of x gathered by index.

    A blob's row holds the first weights (width), the last ones (width / 2) and scales. Stages of four tiles are issued
    in eight rounds, so that engines find work of other tiles between theirs.
    """
    width, size = x.shape[1], blob.shape[2]
    y = nl.ndarray((tiles * ROWS, width), dtype=BF16, buffer=nl.shared_hbm)
    s = {"x": x, "blob": blob, "y": y, "width": width, "size": size, "blocks": blocks, "lanes": ROWS // blocks}
    s["tiles"] = tiles
    s["index"] = loaded(index)
    s["owners"] = loaded(owners)
    s["fold"] = [loaded(fold), loaded(fold)]
    s["weights"] = tiles_of((AHEAD + STAGES) * blocks, (ROWS, size), U8)
    s["scales"] = tiles_of((AHEAD + 1) * blocks, (ROWS, 2, width // 32), U8)
    s["rows"] = tiles_of(AHEAD + 1, (ROWS, width), BF16)
    s["across"] = tiles_of(2, (ROWS, width // ROWS, ROWS), BF16)
    s["unpacked"] = tiles_of(2 * blocks, (ROWS, width // ROWS, ROWS), BF16)
    s["active"] = tiles_of(2 * blocks, (ROWS, ROWS), BF16)
    for name in ("rows", "active"):
        for here in s[name]:
            nisa.memset(dst=here, value=0.0)
    s["sums"] = []
    for _ in range(2 * blocks):
        s["sums"].append(psum((ROWS, ROWS // blocks)))
    for step in range(-AHEAD, tiles + STAGES - 1):
        fetched(s, step + AHEAD)
        if step >= 0:
            rounds(s, step)
    return y


def fetched(s, t):
    """Loads of a tile: its experts, their scales on every partition, and its rows."""
    if t >= s["tiles"]:
        return
    blocks, size = s["blocks"], s["size"]
    for g in range(blocks):
        owner = s["owners"][:, t * blocks + g : t * blocks + g + 1]
        source = s["blob"].ap([[size, ROWS], [1, size]], offset=0, scalar_offset=owner, indirect_dim=0)
        nisa.dma_copy(dst=ring(s, "weights", t, g), src=source)
        pattern = [[0, ROWS], [64 * size, 2], [1, s["width"] // 32]]
        offset = s["width"] * 3 // 2
        source = s["blob"].ap(pattern, offset=offset, scalar_offset=owner, indirect_dim=0)
        nisa.dma_copy(dst=ring(s, "scales", t, g), src=source)
    rows = s["x"].ap(
        [[s["width"], ROWS], [1, s["width"]]], offset=0, vector_offset=s["index"][:, t : t + 1], indirect_dim=0
    )
    nisa.dma_copy(dst=s["rows"][t % (AHEAD + 1)], src=rows)


def rounds(s, step):
    """Eight rounds of stages: rows of this tile turned, products of the one before, and so on."""
    blocks, width, tiles = s["blocks"], s["width"], s["tiles"]
    last = s["width"] * 3 // 2 + width // 32
    narrow, folded, parts = [], [], []
    back, middle = step - 3, step - 2
    ending = 0 <= back < tiles
    result, factors = tile((ROWS, width), BF16), tile((ROWS, width // ROWS), F32)
    if ending:
        for g in range(blocks):
            lanes = slice(g * s["lanes"], (g + 1) * s["lanes"])
            source = ring(s, "weights", back, g)[lanes, last : last + width // 32].view(F32)
            nisa.tensor_copy(dst=factors[lanes], src=source)
    if 0 <= middle < tiles:
        for g in range(blocks):
            narrow.append(tile((ROWS, s["lanes"]), BF16))
            nisa.tensor_copy(dst=narrow[g], src=ring(s, "sums", middle, g))
    for turn in range(8):
        bank = psum((ROWS, BANK))
        if ending:
            half, start = turn // 4, width + turn % 4 * BANK
            part = slice(half * 64, (half + 1) * 64)
            for g in range(blocks):
                moving = ring(s, "weights", back, g)[part, start : start + BANK].view(FP8)
                nisa.nc_matmul(dst=bank, stationary=ring(s, "active", back, g)[part], moving=moving, accumulate=g > 0)
        if step < tiles:
            unpacked(s, step, turn)
        if narrow and turn == 1:
            for g in range(blocks):
                folded.append(psum((ROWS, 2, s["lanes"])))
                for side in range(2):
                    target = folded[g][:, side]
                    nisa.nc_matmul(dst=target, stationary=s["fold"][side], moving=narrow[g], accumulate=False)
        if 0 <= step - 1 < tiles:
            for g in range(blocks):
                for c in range(4 * turn, 4 * turn + 4):
                    lanes = slice(g * s["lanes"], (g + 1) * s["lanes"])
                    nisa.nc_matmul(
                        dst=ring(s, "sums", step - 1, g), stationary=ring(s, "unpacked", step - 1, g)[:, c],
                        moving=s["across"][(step - 1) % 2][:, c, lanes], accumulate=c > 0,
                    )  # fmt: skip
        if narrow:
            acted(s, middle, turn, folded, parts)
        if ending:
            for j in range(4):
                column = turn % 4 * 4 + j
                target = result[:, (turn * 4 + j) * ROWS : (turn * 4 + j + 1) * ROWS]
                scale = factors[:, 2 * column + turn // 4 : 2 * column + turn // 4 + 1]
                nisa.activation(dst=target, op=nl.copy, data=bank[:, j * ROWS : (j + 1) * ROWS], scale=scale)
    if ending:
        nisa.dma_copy(dst=s["y"][back * ROWS : (back + 1) * ROWS], src=result)


def unpacked(s, t, turn):
    """Four chunks of a tile's rows turned, and of its experts' first weights times their scales, half by half."""
    turned(s["across"][t % 2][:, 4 * turn : 4 * turn + 4], s["rows"][t % (AHEAD + 1)], 4 * turn)
    for g in range(s["blocks"]):
        scales = ring(s, "scales", t, g).view(F32)
        for c in range(4 * turn, 4 * turn + 4):
            for half in range(2):
                part = slice(half * 64, (half + 1) * 64)
                source = ring(s, "weights", t, g)[:, c * ROWS + half * 64 : c * ROWS + half * 64 + 64].view(FP8)
                factor = scales[:, half, c : c + 1]
                target = ring(s, "unpacked", t, g)[:, c, part]
                nisa.tensor_scalar(dst=target, data=source, op0=nl.multiply, operand0=factor)


def acted(s, t, turn, folded, parts):
    """The activation of a tile in three of the rounds."""
    for g in range(s["blocks"]):
        if turn == 2:
            gate, other = tile((ROWS, s["lanes"]), F32), tile((ROWS, s["lanes"]), F32)
            limited(gate, other, folded[g][:, 0], folded[g][:, 1])
            parts.append([gate, other])
        if turn == 3:
            smooth = tile((ROWS, s["lanes"]), F32)
            nisa.activation(dst=smooth, op=nl.silu, data=parts[g][0])
            parts[g][0] = smooth
        if turn == 5:
            lanes = slice(g * s["lanes"], (g + 1) * s["lanes"])
            nisa.tensor_tensor(
                dst=ring(s, "active", t, g)[:, lanes], data1=parts[g][0], data2=parts[g][1], op=nl.multiply
            )


@nki.jit
def combined(y, index, factors, unit):
    """Sums of routed rows of y for 128 rows at a time, by products with diagonal matrices of their factors."""
    rows, routed = factors.shape
    width = y.shape[1]
    out = nl.ndarray((rows, width), dtype=BF16, buffer=nl.shared_hbm)
    one = loaded(unit)
    for first in range(0, rows, ROWS):
        weights = loaded(factors[first : first + ROWS])
        places = loaded(index[first : first + ROWS])
        gathered, diagonal = [], []
        for k in range(routed):
            here = tile((ROWS, width), BF16)
            source = y.ap([[width, ROWS], [1, width]], offset=0, vector_offset=places[:, k : k + 1], indirect_dim=0)
            nisa.dma_copy(dst=here, src=source)
            gathered.append(here)
            diagonal.append(tile((ROWS, ROWS), BF16))
            nisa.tensor_scalar(dst=diagonal[k], data=one, op0=nl.multiply, operand0=weights[:, k : k + 1])
        result = tile((ROWS, width), BF16)
        for start in range(0, width, BANK):
            bank = psum((ROWS, BANK))
            for k in range(routed):
                moving = gathered[k][:, start : start + BANK]
                nisa.nc_matmul(dst=bank, stationary=diagonal[k], moving=moving, accumulate=k > 0)
            nisa.activation(dst=result[:, start : start + BANK], op=nl.copy, data=bank)
        nisa.dma_copy(dst=out[first : first + ROWS], src=result)
    return out


# --- tiles ------------------------------------------------------------------------------------------------------------


def turned(target, rows, first):
    """Four chunks of 128 columns of rows (128, width), turned."""
    bank = psum((ROWS, 4, ROWS))
    for j in range(4):
        nisa.nc_transpose(
            dst=bank[:, j], data=rows[:, (first + j) * ROWS : (first + j + 1) * ROWS], engine=nisa.tensor_engine
        )
    nisa.activation(dst=target, op=nl.copy, data=bank)


def ring(s, name, t, g):
    """The tile of a ring for block g of tile t."""
    found = s[name]
    return found[t % (len(found) // s["blocks"]) * s["blocks"] + g]


def loaded(source):
    here = tile(source.shape, source.dtype)
    nisa.dma_copy(dst=here, src=source)
    return here


def tiles_of(count, shape, dtype):
    found = []
    for _ in range(count):
        found.append(tile(shape, dtype))
    return found


def tile(shape, dtype):
    return nl.ndarray(shape, dtype=dtype, buffer=nl.sbuf)


def psum(shape):
    return nl.ndarray(shape, dtype=F32, buffer=nl.psum)
