"""Tensors as grids of tiles, and of blocks of tiles (NKI 0.7): nl.tiles, nl.blocks, nl.alloc_tiles, nl.alloc_blocks.

An index of a grid counts tiles or blocks; an index of a tensor counts elements. Making or indexing a grid issues no
instruction. The grid's ``data`` is the tensor to pass to an instruction. Source: the pages of these four functions and
of NkiGrid, NkiTileGrid and NkiBlockGrid (Neuron 2.33).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from nkisim.chip.context import since_seven
from nkisim.chip.errors import SimulatorError
from nkisim.chip.names import MemoryRegion
from nkisim.chip.tensor import NkiTensor
from nkisim.language._creation import ndarray

__all__ = ["NkiBlockGrid", "NkiGrid", "NkiTileGrid", "alloc_blocks", "alloc_tiles", "blocks", "tiles"]

Shape = tuple[int, ...]


@dataclass(frozen=True)
class NkiGrid:
    """A box of elements, divided into tiles or blocks at multiples of ``_steps``; the last one may be smaller."""

    _tensor: NkiTensor
    _row_tiles: int  # tiles in a row if all rows of tiles lie side by side; 0 if memory is in the order of indices
    _first: Shape  # element at which the selection starts
    element_shape: Shape  # elements selected along each dimension of the source
    tile_shape: Shape
    _steps: Shape  # elements from one cell to the next, along each dimension; 1 in a dimension without tiles
    _open: Shape  # dimensions that no integer has indexed yet

    @property
    def shape(self) -> Shape:
        """Cells along each dimension that can still be indexed."""
        return tuple(-(-self.element_shape[d] // self._steps[d]) for d in self._open)

    @property
    def index_step_elements(self) -> Shape:
        return tuple(self._steps[d] for d in self._open)

    @property
    def is_remainder(self) -> bool:
        """Whether a cell of the selection is smaller than the others, at the end of the tensor."""
        return any(n % step for n, step in zip(self.element_shape, self._steps, strict=True))

    @property
    def dtype(self) -> str:
        return self._tensor.dtype

    @property
    def buffer(self) -> MemoryRegion:
        return self._tensor.buffer

    @property
    def is_data_representable(self) -> bool:
        return not self._row_tiles or self.element_shape[0] <= self.tile_shape[0]

    @property
    def data(self) -> NkiTensor:
        """The selected elements as one tensor."""
        if not self.is_data_representable:
            raise SimulatorError(
                f"data of {self.element_shape} elements in tiles of {self.tile_shape} on chip: rows of tiles lie side "
                "by side, so that only tiles of one row are one tensor",
                rule=12,
            )
        first = self._first
        if self._row_tiles:
            row = first[0] // self.tile_shape[0]
            first = (0, row * self._row_tiles * self.tile_shape[1] + first[1])
        return self._tensor[tuple(slice(a, a + n) for a, n in zip(first, self.element_shape, strict=True))]

    def __getitem__(self, key: Any) -> Any:
        """The cells that integers and slices select; an integer removes its dimension."""
        keys = key if isinstance(key, tuple) else (key,)
        if len(keys) > len(self._open):
            raise SimulatorError(f"index {key!r} of a grid of shape {self.shape}: too many entries", rule=12)
        first, extents, left = list(self._first), list(self.element_shape), list(self._open)
        for d, count, k in zip(self._open, self.shape, keys, strict=False):
            start, stop = _cells(k, count)
            if not isinstance(k, slice):
                left.remove(d)
            first[d] += start * self._steps[d]
            extents[d] = min(stop * self._steps[d], extents[d]) - start * self._steps[d]
        return replace(self, _first=tuple(first), element_shape=tuple(extents), _open=tuple(left))


@dataclass(frozen=True)
class NkiTileGrid(NkiGrid):
    """A grid whose cells are tiles."""


@dataclass(frozen=True)
class NkiBlockGrid(NkiGrid):
    """A grid whose cells are blocks of ``block_shape`` tiles."""

    block_shape: Shape


def _cells(key: Any, count: int) -> tuple[int, int]:
    """The first cell that an integer or a slice selects, and the one after the last."""
    if isinstance(key, slice) and key.step in (None, 1):
        start, stop = key.start or 0, count if key.stop is None else key.stop
    else:
        start, stop = key, key + 1 if isinstance(key, int) else None
    if not all(isinstance(n, int) and not isinstance(n, bool) for n in (start, stop)) or not 0 <= start < stop <= count:
        message = f"index {key!r} of {count} tiles or blocks: need integers or slices in 0 to {count}"
        raise SimulatorError(message, rule=12)
    return start, stop


def _checked(name: str, shape: Any) -> Shape:
    if not isinstance(shape, tuple) or not all(type(n) is int and n > 0 for n in shape):
        raise SimulatorError(f"{name} {shape!r}: need a tuple of positive integers", rule=28)
    return shape


def _tiled(tensor: NkiTensor, row_tiles: int, element_shape: Shape, tile_shape: Any) -> NkiTileGrid:
    tile = _checked("tile_shape", tile_shape)
    if not 2 <= len(tile) <= len(element_shape):
        message = f"tile_shape {tile}: need 2 to {len(element_shape)} dimensions, of {element_shape}"
        raise SimulatorError(message, rule=28)
    rank = len(element_shape)
    steps = (1,) * (rank - len(tile)) + tile
    return NkiTileGrid(tensor, row_tiles, (0,) * rank, element_shape, tile, steps, tuple(range(rank)))


def tiles(source: NkiTensor | NkiGrid, *, tile_shape: Shape | None = None) -> NkiTileGrid:
    """A tensor as tiles of ``tile_shape`` in its last dimensions, or the tiles of a grid or of one block."""
    since_seven("nl.tiles")
    if isinstance(source, NkiTensor):
        return _tiled(source, 0, source.shape, tile_shape)
    if tile_shape not in (None, source.tile_shape):
        return _tiled(source.data, 0, source.element_shape, tile_shape)
    rank = len(source.element_shape)
    steps = (1,) * (rank - len(source.tile_shape)) + source.tile_shape
    return NkiTileGrid(
        source._tensor, source._row_tiles, source._first, source.element_shape, source.tile_shape, steps,
        tuple(range(rank)),
    )  # fmt: skip


def blocks(source: NkiTensor | NkiGrid, *, tile_shape: Shape | None = None, block_shape: Sequence[int]) -> NkiBlockGrid:
    """A tensor or grid as blocks of ``block_shape`` tiles."""
    since_seven("nl.blocks")
    grid = tiles(source, tile_shape=tile_shape)
    block = _checked("block_shape", block_shape)
    if len(block) != len(grid.tile_shape):
        raise SimulatorError(f"block_shape {block}: need one count for each of tile_shape {grid.tile_shape}", rule=28)
    above = (1,) * (len(grid.element_shape) - len(block)) + block
    steps = tuple(n * count for n, count in zip(grid._steps, above, strict=True))
    return NkiBlockGrid(
        grid._tensor, grid._row_tiles, grid._first, grid.element_shape, grid.tile_shape, steps, grid._open, block
    )


def alloc_tiles(
    *,
    tile_shape: Shape,
    element_shape: Shape,
    buffer: MemoryRegion,
    dtype: Any,
    address: tuple[int, int] | None = None,
    name: str = "",
) -> NkiTileGrid:
    """New memory for ``element_shape`` elements as tiles: compact in HBM, whole tiles side by side on chip."""
    since_seven("nl.alloc_tiles")
    elements, tile = _checked("element_shape", element_shape), _checked("tile_shape", tile_shape)
    if buffer not in (MemoryRegion.sbuf, MemoryRegion.psum):
        return _tiled(ndarray(elements, dtype, buffer, name, address), 0, elements, tile)
    if not len(tile) == len(elements) == 2:
        raise SimulatorError(
            f"alloc_tiles of {elements} in tiles of {tile} on chip: two dimensions are needed; the documentation does "
            "not say how more lie in partitions",
            rule=28,
        )
    rows, columns = (-(-n // t) for n, t in zip(elements, tile, strict=True))
    memory = ndarray((tile[0], rows * columns * tile[1]), dtype, buffer, name, address)
    return _tiled(memory, columns, elements, tile)


def alloc_blocks(
    *,
    tile_shape: Shape,
    block_shape: Shape,
    element_shape: Shape,
    buffer: MemoryRegion,
    dtype: Any,
    address: tuple[int, int] | None = None,
    name: str = "",
) -> NkiBlockGrid:
    """``alloc_tiles``, as blocks of ``block_shape`` tiles; blocks do not change the memory layout of tiles."""
    grid = alloc_tiles(
        tile_shape=tile_shape, element_shape=element_shape, buffer=buffer, dtype=dtype, address=address, name=name
    )
    return blocks(grid, block_shape=block_shape)


def _itself(tensor: NkiTensor) -> NkiTensor:
    since_seven("data of a tensor")
    return tensor


NkiTensor._itself = staticmethod(_itself)
