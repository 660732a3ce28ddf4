"""Tests of bn_stats and bn_aggr."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nkisim import isa as nisa
from tests.simulator.tiles import (
    FLOAT_TYPES,
    execute,
    f32,
    filled,
    refused,
    sample,
    seeds,
    shapes,
    thorough,
    views,
)


@thorough
@given(shapes, st.sampled_from(list(FLOAT_TYPES.values())), views, seeds)
def test_bn_stats_are_of_even_and_odd_elements(shape, dtype, view, seed):
    x = sample(shape, dtype, seed)
    found = execute(nisa.bn_stats, {"data": x}, {"dst": ((shape[0], 6), np.float32)}, {"data": view})
    for half in range(2):
        part = f32(x)[:, half::2].astype(np.float64)
        n = part.shape[1]
        mean = part.mean(1) if n else np.zeros(shape[0])
        expected = np.stack([np.full(shape[0], n), mean, ((part - mean[:, None]) ** 2).sum(1)], 1)
        np.testing.assert_allclose(found[:, 3 * half : 3 * half + 3], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("n", [1, 512, 700, 1300])
def test_bn_aggr_of_tiles_is_the_mean_and_variance_of_all(n):
    x = sample((64, n), np.float32, 3) + np.float32(100)

    def body(dst, data):
        tiles = -(-n // 512)
        from nkisim import language as nl

        stats = nl.ndarray((64, 6 * tiles), nl.float32)
        for i in range(tiles):
            nisa.bn_stats(dst=stats[:, 6 * i : 6 * i + 6], data=data[:, 512 * i : min(512 * i + 512, n)])
        nisa.bn_aggr(dst=dst, data=stats)

    found = execute(body, {"data": x}, {"dst": ((64, 2), np.float32)})
    np.testing.assert_allclose(found[:, 0], x.mean(1, dtype=np.float64), rtol=1e-6)
    np.testing.assert_allclose(found[:, 1], x.var(1, dtype=np.float64), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("body", "match", "rule"),
    [
        (lambda: nisa.bn_stats(dst=filled((4, 6)), data=filled((4, 513))), "at most 512", None),
        (lambda: nisa.bn_stats(dst=filled((4, 5)), data=filled((4, 8))), r"\(4, 6\) is needed", 28),
        (lambda: nisa.bn_aggr(dst=filled((4, 2)), data=filled((4, 7))), "a multiple of 3", None),
        (lambda: nisa.bn_aggr(dst=filled((4, 1)), data=filled((4, 6))), r"\(4, 2\) is needed", 28),
    ],
)
def test_statistics_refuse(body, match, rule):
    refused(body, match, rule)
