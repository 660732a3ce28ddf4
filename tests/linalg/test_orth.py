"""Orthonormal bases of ranges and null spaces on the device path."""

import numpy as np
import pytest

from linalg.rows import DTYPES, eps, forced, gaussian, near_threshold, t


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(60, 90), (90, 60)])
def test_ranges_and_null_spaces(shape, dtype):
    a = (gaussian((shape[0], 25), dtype) @ gaussian((25, shape[1]), dtype, 1)).astype(dtype)
    q, z = forced("orth", a), forced("null_space", a)
    assert q.dtype == z.dtype == dtype
    unit, (a, q, z) = eps(dtype) / 2, (x.astype(np.result_type(x, "f8")) for x in (a, q, z))
    assert q.shape == (shape[0], 25) and z.shape == (shape[1], shape[1] - 25)
    for x in (q, z):
        assert np.linalg.norm(t(x) @ x - np.eye(x.shape[1]), 2) <= 8 * unit * np.sqrt(90)
    size = np.linalg.norm(a, 2)
    assert np.linalg.norm(a @ z, 2) <= 100 * unit * size
    assert np.linalg.norm(a - q @ (t(q) @ a), 2) <= 100 * unit * size


@pytest.mark.parametrize("name", ["orth", "null_space"])
def test_a_rank_that_rounding_decides_is_scipys(name):
    near_threshold(name)
