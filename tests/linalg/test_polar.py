"""Polar factors on the device path."""

import numpy as np
import pytest
import scipy.linalg

from linalg.rows import DTYPES, eps, forced, gaussian, t


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("shape", [(50, 50), (70, 40), (40, 70)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_polar_factors(side, shape, dtype):
    a, unit = gaussian(shape, dtype).astype(dtype), eps(dtype) / 2
    u, p = forced("polar", a, side)
    theirs = scipy.linalg.polar(a, side)
    assert u.dtype == p.dtype == dtype
    a, u, p = (x.astype(np.result_type(x, "f8")) for x in (a, u, p))
    size = np.linalg.norm(a, 2)
    assert [x.shape for x in (u, p)] == [x.shape for x in theirs]
    assert np.linalg.norm((u @ p if side == "right" else p @ u) - a, 2) <= 100 * unit * 9 * size
    gram = t(u) @ u if shape[0] >= shape[1] else u @ t(u)
    assert np.linalg.norm(gram - np.eye(len(gram)), 2) <= 8 * unit * 9
    assert np.linalg.norm(p - t(p), 2) <= 10 * unit * size and np.linalg.eigvalsh(p).min() >= -100 * unit * size
