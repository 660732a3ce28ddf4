"""Tests of tensors as grids of tiles and of blocks (NKI 0.7)."""

import numpy as np
import pytest

import nkisim.isa as nisa
import nkisim.language as nl
from nkisim.chip.dialects import SEVEN, TRACER
from nkisim.chip.errors import SimulatorError
from nkisim.run.launch import Kernel, simulate
from tests.simulator.planted import normal

TILE = (128, 256)


def run(kernel, *arrays, nki=SEVEN):
    return simulate(Kernel(kernel), nki=nki)(*arrays)


def on_chip(shape):
    return nl.alloc_tiles(tile_shape=TILE, element_shape=shape, buffer=nl.sbuf, dtype=nl.float32)


def copied_by_tiles(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    source, target = nl.tiles(x, tile_shape=TILE), nl.tiles(out, tile_shape=TILE)
    for i in range(source.shape[0]):
        for j in range(source.shape[1]):
            tile = nl.ndarray(source[i, j].element_shape, dtype=x.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=tile.data, src=source[i, j].data)
            nisa.dma_copy(dst=target[i, j].data, src=tile.data)
    return out


def copied_by_blocks(x):
    """All rows of tiles lie on chip at once, side by side."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    shapes = {"tile_shape": TILE, "block_shape": (2, 3)}
    source, target = nl.blocks(x, **shapes), nl.blocks(out, **shapes)
    held = nl.alloc_blocks(**shapes, element_shape=x.shape, buffer=nl.sbuf, dtype=x.dtype)
    for at in np.ndindex(*source.shape):
        here, there, on_chip = nl.tiles(source[at]), nl.tiles(target[at]), nl.tiles(held[at])
        for tile in np.ndindex(*here.shape):
            nisa.dma_copy(dst=on_chip[tile].data, src=here[tile].data)
            nisa.dma_copy(dst=there[tile].data, src=on_chip[tile].data)
    return out


@pytest.mark.parametrize("kernel", [copied_by_tiles, copied_by_blocks])
@pytest.mark.parametrize("shape", [(128, 256), (512, 1024), (300, 900), (5, 7)])
def test_tiles_and_blocks_cover_a_tensor_once(kernel, shape):
    x = normal(*shape)
    np.testing.assert_array_equal(run(kernel, x), x)


def test_a_row_of_tiles_on_chip_is_one_tensor():
    def kernel(x):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        held = on_chip(x.shape)
        assert not held.is_data_representable and held[1, :].is_data_representable
        for i in range(held.shape[0]):
            nisa.dma_copy(dst=held[i, :].data, src=nl.tiles(x, tile_shape=TILE)[i, :].data)
            nisa.dma_copy(dst=nl.tiles(out, tile_shape=TILE)[i, :].data, src=held[i].data)
        return out

    x = normal(200, 700)
    np.testing.assert_array_equal(run(kernel, x), x)


def test_grids_count_cells_and_know_their_remainders():
    def kernel(x):
        grid = nl.tiles(x, tile_shape=TILE)
        assert isinstance(grid, nl.NkiTileGrid) and isinstance(grid, nl.NkiGrid)
        assert (grid.shape, grid.element_shape, grid.index_step_elements) == ((2, 3, 4), (2, 300, 900), (1, 128, 256))
        assert grid.is_remainder and not grid[:, :2, :3].is_remainder
        last = grid[1, 2, 3]
        assert (last.shape, last.element_shape, last.is_remainder) == ((), (1, 44, 132), True)
        blocks = nl.blocks(grid, block_shape=(2, 2))
        assert (blocks.shape, blocks.block_shape, blocks.tile_shape) == ((2, 2, 2), (2, 2), TILE)
        inside = nl.tiles(blocks[0, 1, 1])
        assert (inside.shape, inside.element_shape) == ((1, 1, 2), (1, 44, 388))
        return copied_by_tiles(x[0])

    x = normal(2, 300, 900)
    np.testing.assert_array_equal(run(kernel, x), x[0])


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda x: nl.tiles(x, tile_shape=TILE)[4, 0], "index 4 of 4"),
        (lambda x: nl.tiles(x, tile_shape=TILE)[0, 0, 0], "too many entries"),
        (lambda x: nl.tiles(x, tile_shape=TILE)[::2], "need integers or slices"),
        (lambda x: nl.tiles(x, tile_shape=(128,)), "need 2 to 2 dimensions"),
        (lambda x: nl.tiles(x, tile_shape=(0, 4)), "positive"),
        (lambda x: nl.tiles(x), "tile_shape None"),
        (lambda x: nl.blocks(x, tile_shape=TILE, block_shape=(2,)), "one count for each"),
        (lambda x: on_chip(x.shape).data, "only tiles of one row"),
    ],
)
def test_grids_are_refused_with_a_reason(use, message):
    with pytest.raises(SimulatorError, match=message):
        run(lambda x: use(x), normal(512, 1024))


def test_grids_are_new_in_0_7():
    with pytest.raises(SimulatorError, match=r"nl\.tiles is NKI 0\.7's"):
        run(copied_by_tiles, normal(4, 4), nki=TRACER)
    with pytest.raises(SimulatorError, match=r"data of a tensor is NKI 0\.7's"):
        run(lambda x: x.data, normal(4, 4), nki=TRACER)
