"""Polar factors on the device path."""

import numpy as np
import pytest
import scipy.linalg

from linalg.rows import U, forced, gaussian, t


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("shape", [(50, 50), (70, 40), (40, 70)])
@pytest.mark.parametrize("dtype", ["f8", "c16"])
def test_polar_factors(side, shape, dtype):
    a = gaussian(shape, dtype)
    u, p = forced("polar", a, side)
    theirs = scipy.linalg.polar(a, side)
    size = np.linalg.norm(a, 2)
    assert [x.shape for x in (u, p)] == [x.shape for x in theirs]
    assert np.linalg.norm((u @ p if side == "right" else p @ u) - a, 2) <= 100 * U * 9 * size
    gram = t(u) @ u if shape[0] >= shape[1] else u @ t(u)
    assert np.linalg.norm(gram - np.eye(len(gram)), 2) <= 8 * U * 9
    assert np.linalg.norm(p - t(p), 2) <= 10 * U * size and np.linalg.eigvalsh(p).min() >= -100 * U * size
