"""Block sizes and thresholds of CPU fast paths, in proportion to the size of a tile, which tests can reduce.

``TRNPY_TILE`` (1, 2, 4, ... 128; read once, for tests and conformance only) is the order of a tile. With TRNPY_TILE=2
a 3 x 3 matrix has two panels, and every applicable CPU fast path is used. Results are as accurate, but slower.
The 128 partitions of a kernel belong to the hardware and do not change.
"""

from __future__ import annotations

import os

VARIABLE = "TRNPY_TILE"
FULL = 128  # rows and columns of the systolic array


def _order(text: str) -> int:
    order = int(text) if text.isdecimal() else 0
    if not 0 < order <= FULL or order & (order - 1):  # other orders would not divide the sizes below
        raise ValueError(f"{VARIABLE}={text!r}: expected a power of two up to {FULL}")
    return order


TILE = _order(os.environ.get(VARIABLE, str(FULL)))
SMALL_TILES = TILE < FULL


def length(usual: int, least: int = 1) -> int:
    """A number of rows or columns: ``usual`` with full tiles, fewer with smaller ones, at least ``least``."""
    return max(usual * TILE // FULL, least)


def area(usual: int, least: int = 1) -> int:
    """A number of elements of a matrix: ``usual`` times the relative area of a tile, at least ``least``."""
    return max(usual * TILE**2 // FULL**2, least)


def volume(usual: int, least: int = 1) -> int:
    """A number of multiply-adds of a product: ``usual`` times the relative volume of a tile, at least ``least``."""
    return max(usual * TILE**3 // FULL**3, least)
