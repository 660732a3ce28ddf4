"""Attention of queries over keys that are their own values: written out, in device loops, and over chosen keys."""

import nki
import nki.isa as nisa
import nki.language as nl

from benchmarks.nki_kernels.pools import BANK, PARTS, ROWS, choose, loaded, ring, selection, started, tile

FEW = 6  # units whose maximum, factor and sum are alive
F32, BF16, I32 = nl.float32, nl.bfloat16, nl.int32


@nki.jit
def dense(queries, keys, mask, unit):
    """Sums of keys (n, depth), weighted by exp of products with queries (rows, heads, depth) and a mask (rows, n).

    Keys lie on the chip, turned, and are read again as values, a block of 512 at a time.
    """
    rows, heads, depth = queries.shape
    count = keys.shape[0]
    out = nl.ndarray((rows, heads, depth), dtype=F32, buffer=nl.shared_hbm)
    one = loaded(unit)
    s = stages(one, 3, 2, 2, BANK)
    turned = ring(depth // ROWS, (ROWS, count), BF16)
    for first in range(0, count, BANK):
        n = min(BANK, count - first)
        turn(turned, first, values(keys, first, n, depth), n, one, s["turned"])
    masks, blocks = ring(3, (ROWS, BANK), BF16), ring(3, (ROWS, BANK // ROWS, depth), BF16)
    for first in range(0, rows, ROWS):
        here = prepared(queries, first, heads, one, s["turned"])
        units = []
        for start in range(0, count, BANK):
            n, slot = min(BANK, count - start), (start // BANK) % 3
            moves = [
                (masks[slot][:, 0:n], mask[first : first + ROWS, start : start + n]),
                (blocks[slot][:, 0 : n // ROWS], rows_of(keys, start, n, depth)),
            ]
            for h in range(heads):
                left = []
                for part in turned:
                    left.append(part[:, start : start + n])
                first_moves = moves if h == 0 else []
                units.append(unit_of(here, h, start // BANK, n, left, masks[slot], blocks[slot], first_moves))
        staged(s, units, 4)
        finished(out, first, here, heads)
    return out


@nki.jit
def looped(queries, keys, mask, unit, offsets, pairs=1, together=2):
    """As ``dense``, in a device loop over ``pairs`` pairs of blocks for tiles ``together``, and a rest after it."""
    rows, heads, depth = queries.shape
    count = keys.shape[0]
    chunks = depth // ROWS
    whole, rest = count // (2 * BANK), count % (2 * BANK)
    out = nl.ndarray((rows, heads, depth), dtype=F32, buffer=nl.shared_hbm)
    scratch = nl.ndarray((whole, chunks, ROWS, 2 * BANK), dtype=BF16, buffer=nl.shared_hbm)
    one = loaded(unit)
    turned, block = tile((ROWS, chunks, 2 * BANK), BF16), tile((ROWS, 2 * BANK // ROWS, depth), BF16)
    banks = ring(4, (ROWS, BANK), F32, nl.psum)
    parts = []
    for c in range(chunks):
        parts.append(turned[:, c])
    for pair in range(whole):
        nisa.dma_copy(dst=block, src=rows_of(keys, pair * 2 * BANK, 2 * BANK, depth))
        turn(parts, 0, block, 2 * BANK, one, banks)
        nisa.dma_copy(dst=turned_block(scratch, pair, 2 * BANK), src=turned)
    left, right = ring(chunks, (ROWS, rest), BF16), values(keys, whole * 2 * BANK, rest, depth)
    turn(left, 0, right, rest, one, banks)
    masks, ends, place = ring(together, (ROWS, 2 * BANK), BF16), ring(together, (ROWS, rest), BF16), tile((1, 2), I32)
    small = kept()
    for first in range(0, rows, together * ROWS):
        banks = ring(4, (ROWS, BANK), F32, nl.psum)
        tiles = []
        for t in range(together):
            tiles.append(prepared(queries, first + t * ROWS, heads, one, banks))
        bound = nisa.register_alloc(pairs)

        def body(i, first=first, tiles=tiles):
            nisa.dma_copy(dst=turned, src=turned_block_at(scratch, i))
            nisa.dma_copy(dst=place, src=offsets.ap([[2, 1], [1, 2]], offset=0, scalar_offset=i, indirect_dim=0))
            flat = keys.reshape((count * depth, 1))
            pattern = [[depth, ROWS], [ROWS * depth, 2 * BANK // ROWS], [1, depth]]
            nisa.dma_copy(dst=block, src=flat.ap(pattern, offset=0, scalar_offset=place[:, 1:2], indirect_dim=0))
            for t in range(together):
                begin = mask.reshape((rows * count, 1)).ap(
                    [[count, ROWS], [1, 2 * BANK]], offset=(first + t * ROWS) * count, scalar_offset=place[:, 0:1],
                    indirect_dim=0,
                )  # fmt: skip
                nisa.dma_copy(dst=masks[t], src=begin)
            units = []
            for half in range(2):
                part = slice(half * BANK, (half + 1) * BANK)
                half_keys = []
                for c in range(chunks):
                    half_keys.append(turned[:, c, part])
                for t in range(together):
                    for h in range(heads):
                        block_values = block[:, half * 4 : half * 4 + 4]
                        units.append(unit_of(tiles[t], h, half, BANK, half_keys, masks[t][:, part], block_values, []))
            staged(stages(one, 3, 2, 2, BANK, small), units, 4)

        nl.fori_loop(0, bound, body)
        units = []
        for t in range(together):
            at = first + t * ROWS
            nisa.dma_copy(dst=ends[t], src=mask[at : at + ROWS, whole * 2 * BANK : count])
            for h in range(heads):
                units.append(unit_of(tiles[t], h, 0, rest, left, ends[t], right, []))
        staged(stages(one, 3, 2, 2, BANK, small), units, 4)
        for t in range(together):
            finished(out, first + t * ROWS, tiles[t], heads)
    return out


@nki.jit
def selected(queries, keys, unit, indexer, weights, pools, positions, keep=512):
    """As ``dense``, in blocks of 1024 keys, over the ``keep`` pools of four keys whose scores are the largest.

    Scores are sums over heads of weighted positive products of an indexer (heads, 128, rows) with pools (128, n / 4).
    The selection of the next 128 rows is issued between the units of these.
    """
    rows, heads, depth = queries.shape
    count, width = keys.shape[0], 2 * BANK
    chunks = depth // ROWS
    out = nl.ndarray((rows, heads, depth), dtype=F32, buffer=nl.shared_hbm)
    scratch = nl.ndarray(((count + width - 1) // width, chunks, ROWS, width), dtype=BF16, buffer=nl.shared_hbm)
    one = loaded(unit)
    s = stages(one, 2, 1, 1, width)
    s["sums_on_scalar"] = True
    turned, blocks = ring(2, (ROWS, chunks, width), BF16), ring(2, (ROWS, width // ROWS, depth), BF16)
    banks = s["scores"][0] + s["scores"][1]
    for first in range(0, count, width):
        n, slot = min(width, count - first), (first // width) % 2
        nisa.dma_copy(dst=blocks[slot][:, 0 : n // ROWS], src=rows_of(keys, first, n, depth))
        parts = []
        for c in range(chunks):
            parts.append(turned[slot][:, c])
        turn(parts, 0, blocks[slot], n, one, banks)
        nisa.dma_copy(dst=turned_block(scratch, first // width, n), src=turned[slot][:, :, 0:n])
    choice = selection(indexer, weights, pools, positions, keep)
    masks, attended = ring(2, (ROWS, width), BF16), tile((ROWS, width // PARTS, PARTS), F32)
    limits = ring(2, (ROWS, PARTS), F32)
    choose(choice, 0, range(started(choice, 0)))
    nisa.tensor_copy(dst=limits[0], src=choice["limits"])
    for first in range(0, rows, ROWS):
        at = first // ROWS
        here = prepared(queries, first, heads, one, s["turned"])
        following = started(choice, at + 1) if first + ROWS < rows else 0
        units = []
        for start in range(0, count, width):
            n, slot = min(width, count - start), (start // width) % 2
            part = turned_block(scratch, start // width, n)
            moves = [(turned[slot][:, :, 0:n], part), (blocks[slot][:, 0 : n // ROWS], rows_of(keys, start, n, depth))]
            left = []
            for c in range(chunks):
                left.append(turned[slot][:, c])
            for h in range(heads):
                first_moves = moves if h == 0 else []
                units.append(unit_of(here, h, start // width, n, left, masks[slot], blocks[slot], first_moves))
                units[-1]["marks"] = (attended, start // PARTS, choice["chosen"][at % 2], limits[at % 2])
                units[-1]["firsts"] = choice["firsts"]
        s["between"] = (choice, at + 1, following)
        staged(s, units, 3)
        if following:
            nisa.tensor_copy(dst=limits[(at + 1) % 2], src=choice["limits"])
        finished(out, first, here, heads)
    return out


# --- the stages of a unit: a block of keys for one head of 128 rows ---------------------------------------------------


def staged(s, units, late):
    """Scores of one unit beside the weights of the one before, and so on; its sums are updated ``late`` units later."""
    count = len(units)
    choice, at, steps = s["between"]
    for step in range(count + 4):
        choose(choice, at, range(step * steps // (count + 4), (step + 1) * steps // (count + 4)))
        if step < count:
            scored(s, step, units[step])
        if 1 <= step <= count:
            weighted(s, step - 1, units[step - 1])
        if 2 <= step <= count + 1:
            turned_weights(s, step - 2, units[step - 2])
        if 3 <= step <= count + 2:
            multiplied(s, step - 3, units[step - 3])
        if late <= step < count + late:
            added(s, step - late, units[step - late])


def scored(s, place, u):
    for move in u["moves"]:
        nisa.dma_copy(dst=move[0], src=move[1])
    if u["moves"] and u["marks"]:
        marked(u)
    for pair in halves(s["scores"][place % len(s["scores"])], u["n"]):
        half, bank = pair
        part = slice(half * BANK, half * BANK + bank.shape[1])
        for c in range(len(u["keys"])):
            stationary = u["queries"][:, c * ROWS : (c + 1) * ROWS]
            nisa.nc_matmul(dst=bank, stationary=stationary, moving=u["keys"][c][:, part], accumulate=c > 0)
        nisa.nc_matmul(dst=bank, stationary=s["one"], moving=u["mask"][:, part], accumulate=True)


def weighted(s, place, u):
    """The new maximum, the factor of what came before, and weights with their sum."""
    kept, i = s["kept"], place % FEW
    largest, shift = kept["largest"][i], kept["shift"][i]
    banks = halves(s["scores"][place % len(s["scores"])], u["n"])
    for pair in banks:
        half, bank = pair
        nisa.tensor_reduce(dst=largest[:, half : half + 1], op=nl.maximum, data=bank, axis=1)
    for half in range(len(banks)):
        before = u["before"] if half == 0 else u["now"]
        nisa.tensor_tensor(dst=u["now"], data1=before, data2=largest[:, half : half + 1], op=nl.maximum)
    nisa.activation(dst=shift, op=nl.copy, data=u["now"], scale=-0.0625)
    nisa.activation(dst=kept["factor"][i], op=nl.exp, data=u["before"], bias=shift, scale=0.0625)
    for pair in banks:
        half, bank = pair
        target = kept["weights"][place % 3][:, half * BANK : half * BANK + bank.shape[1]]
        result = kept["sum"][i] if half + 1 == len(banks) else None
        command = nisa.reduce_cmd.reset_reduce if half == 0 else nisa.reduce_cmd.reduce
        nisa.activation(
            dst=target, op=nl.exp, data=bank, bias=shift, scale=0.0625, reduce_op=nl.add, reduce_res=result,
            reduce_cmd=command,
        )  # fmt: skip


def turned_weights(s, place, u):
    banks = s["turned_weights"][place % len(s["turned_weights"])]
    for t in range(u["n"] // ROWS):
        target = banks[t // 4][:, (t % 4) * ROWS : (t % 4 + 1) * ROWS]
        weights = s["kept"]["weights"][place % 3][:, t * ROWS : (t + 1) * ROWS]
        nisa.nc_matmul(dst=target, stationary=weights, moving=s["one"], accumulate=False)
    for pair in halves(banks, u["n"]):
        half, bank = pair
        target = s["kept"]["across"][place % 3][:, half * BANK : half * BANK + bank.shape[1]]
        nisa.activation(dst=target, op=nl.copy, data=bank)


def multiplied(s, place, u):
    bank = s["products"][place % len(s["products"])]
    for t in range(u["n"] // ROWS):
        stationary = s["kept"]["across"][place % 3][:, t * ROWS : (t + 1) * ROWS]
        nisa.nc_matmul(dst=bank, stationary=stationary, moving=u["values"][:, t], accumulate=t > 0)


def added(s, place, u):
    factor, own = s["kept"]["factor"][place % FEW], s["kept"]["sum"][place % FEW]
    if s["sums_on_scalar"]:
        nisa.activation(dst=u["total"], op=nl.relu, data=u["total"], bias=own, scale=factor)
    else:
        weighted_sum(u["total"], u["total"], factor, own)
    weighted_sum(u["result"], u["result"], factor, s["products"][place % len(s["products"])])


def marked(u):
    """The mask of a block of keys: those of chosen pools that are not after a row's own position."""
    attended, first, chosen, limits = u["marks"]
    firsts = u["firsts"]
    n = u["n"] // PARTS
    for part in range(PARTS):
        nisa.scalar_tensor_tensor(
            dst=attended[:, 0:n, part], data=firsts[:, first : first + n], op0=nl.less_equal,
            operand0=limits[:, part : part + 1], op1=nl.multiply, operand1=chosen[:, first : first + n],
        )  # fmt: skip
    source = attended.reshape((ROWS, attended.shape[1] * PARTS))[:, 0 : u["n"]]
    nisa.activation(dst=u["mask"][:, 0 : u["n"]], op=nl.copy, data=source, scale=1e30, bias=-1e30)


# --- tiles ------------------------------------------------------------------------------------------------------------


def stages(one, scores, turned, products, width, small=None):
    """Rings of tiles between the stages; in a device loop made anew, but for those on SBUF."""
    s = {"one": one, "sums_on_scalar": False, "between": (None, 0, 0)}
    for name in ("scores", "turned_weights", "turned"):
        s[name] = []
    s["kept"] = small or kept(width)
    for _ in range(scores):
        s["scores"].append(ring(width // BANK, (ROWS, BANK), F32, nl.psum))
    for _ in range(turned):
        s["turned_weights"].append(ring(width // BANK, (ROWS, BANK), F32, nl.psum))
    s["products"] = ring(products, (ROWS, BANK), F32, nl.psum)
    for banks in s["turned_weights"]:
        s["turned"] += banks
    return s


def kept(width=BANK):
    """Weights of three units, on the chip both ways, and numbers of a few."""
    small = {"weights": ring(3, (ROWS, width), BF16), "across": ring(3, (ROWS, width), BF16)}
    small["largest"] = ring(FEW, (ROWS, 2), F32)
    for name in ("shift", "factor", "sum"):
        small[name] = ring(FEW, (ROWS, 1), F32)
    return small


def prepared(queries, first, heads, one, banks):
    """Queries of 128 rows, turned, and fresh sums."""
    depth = queries.shape[2]
    here, turned = tile((ROWS, heads, depth), BF16), tile((ROWS, heads, depth), BF16)
    nisa.dma_copy(dst=here, src=queries[first : first + ROWS])
    found = {"queries": turned, "result": [], "total": [], "largest": []}
    for h in range(heads):
        bank = banks[h % len(banks)]
        for c in range(depth // ROWS):
            part = slice(c * ROWS, (c + 1) * ROWS)
            nisa.nc_matmul(dst=bank[:, part], stationary=here[:, h, part], moving=one, accumulate=False)
        copied(turned[:, h], bank[:, 0:depth], h)
        found["result"].append(tile((ROWS, depth), F32))
        found["total"].append(tile((ROWS, 1), F32))
        found["largest"].append(ring(2, (ROWS, 1), F32))
        nisa.memset(dst=found["result"][h], value=0.0)
        nisa.memset(dst=found["largest"][h][1], value=-1e30)
        nisa.memset(dst=found["total"][h], value=0.0)
    return found


def unit_of(here, head, place, n, keys, mask, block, moves):
    largest = here["largest"][head]
    return {
        "queries": here["queries"][:, head], "result": here["result"][head], "total": here["total"][head], "n": n,
        "keys": keys, "before": largest[(place + 1) % 2], "now": largest[place % 2], "mask": mask, "values": block,
        "moves": moves, "marks": None,
    }  # fmt: skip


def finished(out, first, here, heads):
    for h in range(heads):
        share, result = tile((ROWS, 1), F32), tile(here["result"][h].shape, F32)
        nisa.reciprocal(dst=share, data=here["total"][h])
        nisa.tensor_scalar(dst=result, data=here["result"][h], op0=nl.multiply, operand0=share)
        nisa.dma_copy(dst=out[first : first + ROWS, h], src=result)


def turn(parts, first, block, n, one, banks):
    """Columns [first, first + n) of each chunk of 128 dimensions, from a block (128, n / 128, depth) of rows."""
    for c in range(len(parts)):
        for start in range(0, n, BANK):
            bank = banks[(c + start // BANK) % len(banks)]
            width = min(BANK, n - start)
            for t in range(width // ROWS):
                stationary = block[:, start // ROWS + t, c * ROWS : (c + 1) * ROWS]
                target = bank[:, t * ROWS : (t + 1) * ROWS]
                nisa.nc_matmul(dst=target, stationary=stationary, moving=one, accumulate=False)
            copied(parts[c][:, first + start : first + start + width], bank[:, 0:width], c + start // BANK)


def copied(target, source, place):
    """Engines in turn."""
    if place % 2:
        nisa.activation(dst=target, op=nl.copy, data=source)
    else:
        nisa.tensor_copy(dst=target, src=source)


def weighted_sum(target, data, factor, other):
    nisa.scalar_tensor_tensor(dst=target, data=data, op0=nl.multiply, operand0=factor, op1=nl.add, operand1=other)


def halves(banks, n):
    found = []
    for half in range((n + BANK - 1) // BANK):
        found.append((half, banks[half][:, 0 : min(BANK, n - half * BANK)]))
    return found


def rows_of(keys, first, n, depth):
    """Rows [first, first + n) with 128 of them on the partitions."""
    return keys.ap([[depth, ROWS], [ROWS * depth, n // ROWS], [1, depth]], offset=first * depth)


def values(keys, first, n, depth):
    block = tile((ROWS, n // ROWS, depth), BF16)
    nisa.dma_copy(dst=block, src=rows_of(keys, first, n, depth))
    return block


def turned_block(scratch, place, n):
    """n keys of one block of turned keys: chunks of 128 dimensions beside each other."""
    chunks, width = scratch.shape[1], scratch.shape[3]
    return scratch.ap([[width, ROWS], [ROWS * width, chunks], [1, n]], offset=place * chunks * ROWS * width)


def turned_block_at(scratch, index):
    """The block of a loop's register."""
    chunks, width = scratch.shape[1], scratch.shape[3]
    pattern = [[width, ROWS], [ROWS * width, chunks], [1, width]]
    return scratch.ap(pattern, offset=0, scalar_offset=index, indirect_dim=0)
