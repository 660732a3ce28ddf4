"""Inverses of triangular 128 x 128 tiles on the chip, all tiles of a panel at once."""

import nki.isa as nisa
import nki.language as nl

from ..shared import blocks

SMALL = 16  # order of the tiles inverted by substitution
LEVELS = (16, 32, 64)  # orders that are doubled
GROUPS = 8  # of them in a tile
BANKS = 8


def invert_tiles(a, out, lower, turned, unit, size):
    """Diagonal tiles of a (N, N) in HBM, inverted, to ``out`` (N rounded up to 128, 128), padded by the identity.

    With L the tile or, of an upper triangle, its transpose: L^-1, transposed if ``turned``.
    """
    n = a.shape[0]
    tiles = (size + blocks.TILE - 1) // blocks.TILE
    masks, banks = [], _banks()
    for level in LEVELS:
        masks.append(_siblings(level=level, tiles=tiles, banks=banks))
    repeats = []
    for i in range(SMALL):
        repeats.append(_repeat(row=i))
    job = {
        "a": a, "out": out, "lower": lower, "turned": turned, "unit": unit, "masks": masks, "repeats": repeats,
        "banks": banks,
    }  # fmt: skip
    for first in range(0, n, size):
        _panel(job=job, first=first, extent=min(size, n - first))


def _panel(job, first, extent):
    """The tiles of one panel."""
    a, banks, unit = job["a"], job["banks"], job["unit"]
    tiles = (extent + blocks.TILE - 1) // blocks.TILE
    here = (None, first * (a.shape[0] + 1))
    straight, across = _lower(a=a, at=here, extent=extent, lower=job["lower"], unit=unit, tiles=tiles, banks=banks)
    turned = _substitute(x=straight, repeats=job["repeats"], unit=unit, tiles=tiles, banks=banks)
    inverse = _transposed(x=turned, tiles=tiles, banks=banks)
    _double(
        straight=straight, across=across, inverse=inverse, turned=turned, masks=job["masks"], tiles=tiles, banks=banks
    )  # fmt: skip
    pattern = [[blocks.TILE, blocks.TILE], [blocks.TILE * blocks.TILE, tiles], [1, blocks.TILE]]
    target = blocks.view(x=job["out"], at=(None, first * blocks.TILE), pattern=pattern)
    nisa.dma_copy(dst=target, src=turned if job["turned"] else inverse)


def _banks():
    """PSUM of all panels."""
    banks = []
    for _ in range(BANKS):
        banks.append(nl.ndarray((blocks.TILE, blocks.TILE_N), dtype=nl.float32, buffer=nl.psum))
    return banks


def _wide(tiles):
    return nl.ndarray((blocks.TILE, tiles, blocks.TILE), dtype=nl.float32, buffer=nl.sbuf)


def _selected(x, pattern, multiplier, offset, op):
    """x where the affine value of partition and column compares with 0, else 0."""
    kept = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.affine_select(
        dst=kept, pattern=pattern, channel_multiplier=multiplier, on_true_tile=x, on_false_value=0.0, cmp_op=op,
        offset=offset,
    )  # fmt: skip
    return kept


def _siblings(level, tiles, banks):
    """1 if the row is in an odd block of order ``level`` and the column in the previous even block; and transposed."""
    x = _wide(tiles=tiles)
    nisa.memset(dst=x, value=1.0, engine=nisa.engine.vector)
    pairs = blocks.TILE // (2 * level)
    rows = [[0, tiles], [-2 * level, pairs], [0, 2 * level]]
    x = _selected(x=x, pattern=rows, multiplier=1, offset=-level, op=nl.greater_equal)
    x = _selected(x=x, pattern=rows, multiplier=1, offset=-2 * level, op=nl.less)
    columns = [[0, tiles], [0, pairs], [-1, 2 * level]]
    x = _selected(x=x, pattern=columns, multiplier=0, offset=level, op=nl.greater)
    return (x, _transposed(x=x, tiles=tiles, banks=banks))


def _transposed(x, tiles, banks):
    """Each tile transposed."""
    result = _wide(tiles=tiles)
    each = blocks.TILE_N // blocks.TILE
    for t0 in range(0, tiles, each):
        some = min(each, tiles - t0)
        bank = banks[t0 // each % BANKS]
        for q in range(some):
            nisa.nc_transpose(
                dst=bank[:, q * blocks.TILE : (q + 1) * blocks.TILE], data=x[:, t0 + q, :], engine=nisa.engine.tensor
            )
        here = result[:, t0 : t0 + some, :]
        nisa.tensor_copy(dst=here, src=bank[:, 0 : some * blocks.TILE], engine=nisa.engine.vector)
    return result


def _repeat(row):
    """(128, 128): as stationary operand, gives row ``row`` of each 16 to all 16 partitions of them."""
    x = nl.ndarray((blocks.TILE, GROUPS, SMALL), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=x, value=1.0, engine=nisa.engine.vector)
    return _selected(x=x, pattern=[[-SMALL, GROUPS], [0, SMALL]], multiplier=1, offset=-row, op=nl.equal)


def _lower(a, at, extent, lower, unit, tiles, banks):
    """The diagonal tiles or, of an upper triangle, their transposes; and these transposed."""
    n = a.shape[0]
    tile = _wide(tiles=tiles)
    diagonal = [[0, tiles], [1, blocks.TILE]]
    whole = extent // blocks.TILE
    if whole < tiles:
        # The identity remains in the padding of the last tile.
        last = tile[:, whole : whole + 1, :]
        nisa.memset(dst=last, value=1.0, engine=nisa.engine.vector)
        nisa.affine_select(
            dst=last, pattern=[[1, blocks.TILE]], channel_multiplier=-1, on_true_tile=last, on_false_value=0.0,
            cmp_op=nl.equal,
        )  # fmt: skip
        order = extent - whole * blocks.TILE
        source = blocks.place(x=a, at=at, offset=whole * blocks.TILE * (n + 1), rows=order, columns=order)
        nisa.dma_copy(dst=tile[0:order, whole, 0:order], src=source)
    if whole > 0:
        pattern = [[n, blocks.TILE], [blocks.TILE * (n + 1), whole], [1, blocks.TILE]]
        source = blocks.view(x=a, at=at, pattern=pattern)
        nisa.dma_copy(dst=tile[:, 0:whole, :], src=source)
    # The other triangle, and a unit diagonal, may hold any values, including NaN.
    if unit:
        op = nl.less if lower else nl.greater
    else:
        op = nl.less_equal if lower else nl.greater_equal
    tile = _selected(x=tile, pattern=diagonal, multiplier=-1, offset=0, op=op)
    across = _transposed(x=tile, tiles=tiles, banks=banks)
    if lower:
        return (tile, across)
    return (across, tile)


def _substitute(x, repeats, unit, tiles, banks):
    """Inverses of the lower diagonal tiles of order 16, transposed, in tiles of 128 that are zero elsewhere.

    Partition 16 g + c gets all of tile g and solves for column c of its inverse.
    """
    groups = [[0, tiles], [-SMALL, GROUPS], [0, SMALL]]
    x = _diagonal_blocks(x=x, pattern=groups)
    rows = nl.ndarray((blocks.TILE, tiles, SMALL), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=rows, src=x[:, :, 0:SMALL], engine=nisa.engine.vector)
    for g in range(1, GROUPS):
        nisa.tensor_tensor(dst=rows, data1=rows, data2=x[:, :, g * SMALL : (g + 1) * SMALL], op=nl.add)
    small = nl.ndarray((blocks.TILE, SMALL, tiles, SMALL), dtype=nl.float32, buffer=nl.sbuf)
    each = blocks.TILE_N // (tiles * SMALL)  # rows of all tiles that one bank takes
    for i0 in range(0, SMALL, each):
        some = min(each, SMALL - i0)
        bank = banks[i0 // each % BANKS]
        for i in range(some):
            # Products with 1 and sums with zeros are exact, and declared exact.
            nisa.nc_matmul(
                dst=bank[:, i * tiles * SMALL : (i + 1) * tiles * SMALL], stationary=repeats[i0 + i], moving=rows,
                is_stationary_onezero=True, accumulate=False,
            )  # fmt: skip
        filled = bank[:, 0 : some * tiles * SMALL]
        nisa.activation(dst=small[:, i0 : i0 + some, :, :], op=nl.copy, data=filled)
    unit_columns = _unit_columns(tiles=tiles)
    solved = nl.ndarray((blocks.TILE, tiles, SMALL), dtype=nl.float32, buffer=nl.sbuf)
    terms = nl.ndarray((blocks.TILE, tiles, SMALL), dtype=nl.float32, buffer=nl.sbuf)
    total = nl.ndarray((blocks.TILE, tiles, 1), dtype=nl.float32, buffer=nl.sbuf)
    inverse = nl.ndarray((blocks.TILE, tiles, SMALL), dtype=nl.float32, buffer=nl.sbuf)
    for i in range(SMALL):
        here = solved[:, :, i : i + 1]
        rest = unit_columns[:, :, i : i + 1]
        if i > 0:
            row = small[:, i, :, 0:i]
            nisa.tensor_tensor(dst=terms[:, :, 0:i], data1=row, data2=solved[:, :, 0:i], op=nl.multiply)
            nisa.tensor_reduce(dst=total, op=nl.add, data=terms[:, :, 0:i], axis=2, keepdims=True)
            nisa.tensor_tensor(dst=total, data1=rest, data2=total, op=nl.subtract)
            rest = total
        if unit:
            nisa.tensor_copy(dst=here, src=rest, engine=nisa.engine.vector)
        else:
            nisa.reciprocal(dst=inverse[:, :, i : i + 1], data=small[:, i, :, i : i + 1])
            nisa.tensor_tensor(dst=here, data1=rest, data2=inverse[:, :, i : i + 1], op=nl.multiply)
    spread = _wide(tiles=tiles)
    for g in range(GROUPS):
        nisa.activation(dst=spread[:, :, g * SMALL : (g + 1) * SMALL], op=nl.copy, data=solved)
    return _diagonal_blocks(x=spread, pattern=groups)


def _diagonal_blocks(x, pattern):
    """x within the diagonal blocks of order 16, else 0."""
    x = _selected(x=x, pattern=pattern, multiplier=1, offset=0, op=nl.greater_equal)
    return _selected(x=x, pattern=pattern, multiplier=1, offset=-SMALL, op=nl.less)


def _unit_columns(tiles):
    """(128, tiles, 16): 1 where the column is the partition modulo 16."""
    wide = nl.ndarray((blocks.TILE, GROUPS, tiles, SMALL), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=wide, value=1.0, engine=nisa.engine.vector)
    pattern = [[-SMALL, GROUPS], [0, tiles], [-1, SMALL]]
    wide = _selected(x=wide, pattern=pattern, multiplier=1, offset=0, op=nl.equal)
    for g in range(1, GROUPS):
        nisa.tensor_tensor(dst=wide[:, 0, :, :], data1=wide[:, 0, :, :], data2=wide[:, g, :, :], op=nl.add)
    return wide[:, 0, :, :]


def _double(straight, across, inverse, turned, masks, tiles, banks):
    """From inverses of order 16 to 128, in place: M - M B M has the block -C^-1 B A^-1 of [A 0; B C]^-1."""
    below, below_turned, first, second = _wide(tiles=tiles), _wide(tiles=tiles), _wide(tiles=tiles), _wide(tiles=tiles)
    for part in masks:
        mask, mask_turned = part
        nisa.tensor_tensor(dst=below, data1=straight, data2=mask[:, 0:tiles, :], op=nl.multiply)
        nisa.tensor_tensor(dst=below_turned, data1=across, data2=mask_turned[:, 0:tiles, :], op=nl.multiply)
        _products(stationary=below_turned, moving=inverse, dst=first, tiles=tiles, banks=banks[0:2])
        _products(stationary=below, moving=turned, dst=second, tiles=tiles, banks=banks[2:4])
        # Both use the previous inverses: new ones are written only after the products.
        _products(stationary=turned, moving=first, dst=below, tiles=tiles, banks=banks[4:6])
        _products(stationary=inverse, moving=second, dst=below_turned, tiles=tiles, banks=banks[6:8])
        nisa.tensor_tensor(dst=inverse, data1=inverse, data2=below, op=nl.subtract)
        nisa.tensor_tensor(dst=turned, data1=turned, data2=below_turned, op=nl.subtract)


def _products(stationary, moving, dst, tiles, banks):
    """dst = stationary^T moving, tile by tile."""
    each = blocks.TILE_N // blocks.TILE
    for t0 in range(0, tiles, each):
        some = min(each, tiles - t0)
        bank = banks[t0 // each % 2]
        for q in range(some):
            nisa.nc_matmul(
                dst=bank[:, q * blocks.TILE : (q + 1) * blocks.TILE],
                stationary=stationary[:, t0 + q, :],
                moving=moving[:, t0 + q, :],
                accumulate=False,
            )
        here = dst[:, t0 : t0 + some, :]
        nisa.activation(dst=here, op=nl.copy, data=bank[:, 0 : some * blocks.TILE])
