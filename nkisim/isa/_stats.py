"""Mean and variance in two steps on VectorEngine: bn_stats per tile, bn_aggr over tiles."""

from __future__ import annotations

from typing import Any

import numpy as np

from nkisim.chip.context import issue
from nkisim.chip.dtypes import Array
from nkisim.chip.tensor import NkiTensor
from nkisim.isa import _checks as check
from nkisim.isa._lanes import rows

__all__ = ["bn_aggr", "bn_stats"]

MAX_ELEMENTS = 512  # nl.tile_size.bn_stats_fmax
STATISTICS = 3  # count, mean, variance * count
HALVES = 2  # elements at even and at odd positions


def bn_stats(dst: NkiTensor, data: NkiTensor, name: str | None = None) -> Any:
    """dst (P, 6) = (count, mean, variance * count) of the even and of the odd elements of each partition."""
    this = "bn_stats"
    check.on_chip(this, dst=dst, data=data)
    if data.free_size > MAX_ELEMENTS:
        check.refuse(this, f"data has {data.free_size} elements per partition; at most {MAX_ELEMENTS} are allowed")
    check.per_partition(this, "dst", dst, data.shape[0], HALVES * STATISTICS)

    def compute() -> None:
        x = rows(data)
        dst.write(np.concatenate([_statistics(x[:, half::HALVES]) for half in range(HALVES)], axis=1))

    return issue(this, "vector", {"data": data}, {"dst": dst}, compute, {}, name)


def _statistics(x: Array) -> Array:
    """Count, mean and sum of squared deviations of rows (P, N), all 0 for N = 0."""
    n = x.shape[1]
    mean = x.sum(axis=1, keepdims=True) / np.float32(max(n, 1))
    spread = np.square(x - mean).sum(axis=1, keepdims=True)
    return np.concatenate([np.full_like(mean, n), mean, spread], axis=1)


def bn_aggr(dst: NkiTensor, data: NkiTensor, name: str | None = None) -> Any:
    """dst (P, 2) = mean and variance of the union of the samples whose bn_stats are in data (P, 3 m)."""
    this = "bn_aggr"
    check.on_chip(this, dst=dst, data=data)
    if data.free_size % STATISTICS:
        check.refuse(this, f"data has {data.free_size} elements per partition; a multiple of {STATISTICS} is needed")
    check.per_partition(this, "dst", dst, data.shape[0], 2)

    def compute() -> None:
        count, mean, spread = np.moveaxis(rows(data).reshape(data.shape[0], -1, STATISTICS), 2, 0)
        total = count.sum(axis=1, keepdims=True)
        mean_all = (count * mean).sum(axis=1, keepdims=True) / total
        variance = (spread + count * np.square(mean - mean_all)).sum(axis=1, keepdims=True) / total
        dst.write(np.concatenate([mean_all, variance], axis=1))

    return issue(this, "vector", {"data": data}, {"dst": dst}, compute, {}, name)
