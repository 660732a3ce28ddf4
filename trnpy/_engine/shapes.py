"""Shapes that kernels are compiled for: a ladder of extents, and blocks that fit a device's memory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from trnpy._nki.kernels.shared.parameters import Parameters, Tiles

BLOCK = 8192  # longest extent of one launch: 8192^3 takes 55 ms in float32 (modelled), far above a launch
STEPS = 4  # rungs an octave: an extent is padded by 25 % at most
SHORT = (16, 32, 64)  # below one tile of 128 only the link notices
FINE = (*SHORT, *(128 * (STEPS + i) * 2**octave // STEPS for octave in range(6) for i in range(STEPS)), BLOCK)
COARSE = (32, 128, 512, 2048, BLOCK)
VARIANTS = 64  # of one kernel on the fine ladder; a program that needs more shapes shares the coarse one

Extents = tuple[int, int, int]  # m, k, n
TileKey = tuple[str, str, Extents]  # a kernel, what its operands are, and the octaves of their extents

ALIKE: Mapping[str, str] = MappingProxyType({"float16": "bfloat16"})  # forms of one size and rate share their choices


def octaves(extents: Extents) -> Extents:
    """The shape bucket of a choice of tiles: extents rounded up to powers of two from a tile to BLOCK."""
    m, k, n = (min(max(128, 1 << (e - 1).bit_length()), BLOCK) for e in extents)
    return m, k, n


def rung(extent: int, ladder: tuple[int, ...] = FINE) -> int:
    """The first rung that is at least ``extent``, which is at most BLOCK."""
    return next(r for r in ladder if r >= extent)


class Buckets:
    """Which (m, k, n) and tiles each kernel variant is compiled for: at most VARIANTS fine shapes, then coarse ones."""

    def __init__(self, tiles: Mapping[TileKey, Tiles] = MappingProxyType({})) -> None:
        self._known: dict[str, set[Extents]] = {}
        self._tiles = tiles

    def tiles(self, kernel: str, form: str, extents: Extents, default: Parameters) -> Parameters:
        """``default`` with the tiles that were found best for such operands, where any were."""
        found = self._tiles.get((kernel, ALIKE.get(form, form), octaves(extents)))
        return default if found is None else replace(default, m_tiles=found[0], n_tiles=found[1], k_tiles=found[2])

    def fit(self, kernel: str, extents: Extents) -> Extents:
        """The extents, none below its own of ``extents``, of the variant to launch."""
        fine = (rung(extents[0]), rung(extents[1]), rung(extents[2]))
        known = self._known.setdefault(kernel, set())
        if fine in known or len(known) < VARIANTS:
            known.add(fine)
            return fine
        return rung(extents[0], COARSE), rung(extents[1], COARSE), rung(extents[2], COARSE)


def block(extents: Extents, itemsize: int, budget: float) -> Extents | None:
    """The largest blocks, at most BLOCK long, of which A, B, C and the sum so far fit ``budget`` bytes.

    None when not even blocks of the shortest rung do.
    """
    sizes = [min(e, BLOCK) for e in extents]
    while True:
        m, k, n = (rung(s) for s in sizes)
        if itemsize * (m * k + k * n) + 2 * 4 * m * n * max(itemsize // 4, 1) <= budget:
            return sizes[0], sizes[1], sizes[2]
        longest = max(range(3), key=lambda i: sizes[i])
        if sizes[longest] <= SHORT[0]:
            return None
        sizes[longest] = max(math.ceil(sizes[longest] / 2), SHORT[0])


def pieces(extent: int, size: int) -> list[slice]:
    """``extent`` cut into slices of ``size``, the last perhaps shorter."""
    return [slice(start, min(start + size, extent)) for start in range(0, extent, size)]
