"""How launches of a few fixed shapes share a product of arrays: in the fewest seconds, by the model."""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from trnpy._engine.precision import launches
from trnpy._nki.hardware import EFFICIENCY, FLOAT64_PASSES, Hardware
from trnpy._settings import tile

Lengths = tuple[int, ...]  # of slices, the shortest first
Cut = tuple[slice, int]  # a slice of an extent, and what it is padded to

# Sums of few of these are close to any extent. They were found by simulated annealing over random products
# (docs/hardware.md#how-a-product-is-launched); fewer than three lengths pad by more than a quarter.
ALONG = tile.length(384, least=16), tile.length(640, least=32), tile.length(2048, least=64)
# Of K by digits: each slice has a result of its own, which crosses the link, so that there should be few.
ALONG_DIGITS = tile.length(1024, least=16), tile.length(2048, least=32), tile.length(4096, least=64)
# Of a launch's seconds. At all of them, products with extents of up to 4096 are padded by 30 %, and take 3 % less time.
LAUNCH_SHARE = 1 / 3
WAYS = 6  # to cut one extent
ODD = 4  # of the longest slices: of an extent beyond these all are of the longest


class Cuts(NamedTuple):
    """Slices of m, k and n, and whether they have the fixed lengths of this file."""

    rows: list[Cut]
    inner: list[Cut]
    columns: list[Cut]
    fixed: bool


@dataclass(frozen=True, slots=True)
class Price:
    """Modelled seconds of what launches of a product cost, and the lengths that K may be cut into."""

    launch_s: float
    flop_s: float
    send_s: float  # of an element of an operand
    fetch_s: float  # of an element of a result
    along: Lengths
    fetched: bool  # whether the result of each slice of K crosses the link, or they are added on the device
    parts: int = 1  # real products of each slice

    def adds(self, slices: int) -> bool:
        """Whether launches for so many slices of K add to the sums of earlier ones."""
        return not self.fetched and slices * self.parts > 1

    def seconds(self, ways: tuple[Lengths, ...]) -> float:
        """Of launches along m, k and n in slices of these lengths."""
        m, k, n = map(sum, ways)
        results = len(ways[1]) if self.fetched else 1
        launched = self.launch_s * LAUNCH_SHARE * math.prod(map(len, ways))
        return launched + self.flop_s * 2 * m * k * n + self.send_s * (m + n) * k + self.fetch_s * m * n * results


def of_numbers(hardware: Hardware, dtype: np.dtype, form: str) -> Price:
    """The price of a product of ``dtype`` that TensorE multiplies as ``form``; sums are float32."""
    parts, itemsize = (2 if dtype.kind == "c" else 1), 4 if form == "float32" else 2
    flop_s = parts**2 / (hardware.flops_per_s[form] * EFFICIENCY)
    send_s, fetch_s = parts * itemsize / hardware.link_bytes_per_s, parts * 4 / hardware.unlink_bytes_per_s
    return Price(parts**2 * hardware.launch_s, flop_s, send_s, fetch_s, ALONG, False, parts**2)


def of_digits(hardware: Hardware, dtype: np.dtype) -> Price:
    """The price of a product by digits: seven of float64, and one for each byte of an integer."""
    parts, each = (4 if dtype.kind == "c" else 1), dtype.itemsize
    passes = FLOAT64_PASSES if dtype.kind in "fc" else each * (each + 1) / 2
    flop_s = parts * passes / (hardware.flops_per_s["bfloat16"] * EFFICIENCY)
    send_s, fetch_s = each / hardware.link_bytes_per_s, each / hardware.unlink_bytes_per_s
    launch_s = launches(dtype, "matched") * hardware.launch_s
    return Price(launch_s, flop_s, send_s, fetch_s, ALONG_DIGITS, True)


def cheapest(extents: tuple[int, int, int], sizes: tuple[int, int, int], price: Price) -> Cuts:
    """The slices of m, k and n, none longer than ``sizes`` allow, that take the fewest seconds."""
    found = [
        ways(extent, tuple(x for x in lengths if x <= size) or lengths[:1])
        for extent, size, lengths in zip(extents, sizes, (ALONG, price.along, ALONG), strict=True)
    ]
    best = min(itertools.product(*found), key=price.seconds)
    rows, inner, columns = (_placed(extent, slices) for extent, slices in zip(extents, best, strict=True))
    return Cuts(rows, inner, columns, fixed=True)


@functools.lru_cache(maxsize=4096)
def ways(extent: int, lengths: Lengths) -> tuple[Lengths, ...]:
    """Slices of ``lengths``, the longest first, that cover ``extent``: for each number of them that pads less."""
    longest = lengths[-1]
    whole = max(math.ceil(extent / longest) - ODD, 0)
    rest = extent - whole * longest
    found: list[Lengths] = []
    for count in itertools.count(math.ceil(rest / longest)):
        covering = [x for x in itertools.combinations_with_replacement(lengths[::-1], count) if sum(x) >= rest]
        least = min(covering, key=sum)
        if not found or sum(least) < sum(found[-1]):
            found.append(least)
        if len(found) == WAYS or count * lengths[0] >= rest:
            return tuple((longest,) * whole + x for x in found)
    raise AssertionError("there are enough of the shortest slices")


def _placed(extent: int, slices: Lengths) -> list[Cut]:
    starts = itertools.accumulate(slices, initial=0)
    return [(slice(at, min(at + length, extent)), length) for at, length in zip(starts, slices, strict=False)]
