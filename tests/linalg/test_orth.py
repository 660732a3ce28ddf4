"""Orthonormal bases of ranges and null spaces on the device path."""

import numpy as np
import pytest

from linalg.rows import U, forced, gaussian, near_threshold, t


@pytest.mark.parametrize("dtype", ["f8", "c16"])
@pytest.mark.parametrize("shape", [(60, 90), (90, 60)])
def test_ranges_and_null_spaces(shape, dtype):
    a = gaussian((shape[0], 25), dtype) @ gaussian((25, shape[1]), dtype, 1)
    q, z = forced("orth", a), forced("null_space", a)
    assert q.shape == (shape[0], 25) and z.shape == (shape[1], shape[1] - 25)
    for x in (q, z):
        assert np.linalg.norm(t(x) @ x - np.eye(x.shape[1]), 2) <= 8 * U * np.sqrt(90)
    size = np.linalg.norm(a, 2)
    assert np.linalg.norm(a @ z, 2) <= 100 * U * size
    assert np.linalg.norm(a - q @ (t(q) @ a), 2) <= 100 * U * size


@pytest.mark.parametrize("name", ["orth", "null_space"])
def test_a_rank_that_rounding_decides_is_scipys(name):
    near_threshold(name)
