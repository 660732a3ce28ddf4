"""Least squares of tall matrices on the device path."""

import numpy as np
import pytest

from linalg.rows import DTYPES, both, eps, general


@pytest.mark.parametrize("driver", ["gelsd", "gelss", "gelsy"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", [(), (1,), (3,)])
def test_tall_least_squares(columns, dtype, driver):
    a = general(600, 132, dtype, 1e2)
    b = np.random.default_rng(1).standard_normal((600, *columns)).astype(dtype)
    ours, theirs = both("scipy", "lstsq", a, b, lapack_driver=driver)
    for mine, other in zip(ours, theirs, strict=True):
        if other is not None:
            np.testing.assert_allclose(mine, other, rtol=1e5 * eps(dtype), atol=1e4 * eps(dtype))
    if driver == "gelsd":
        ours, theirs = both("numpy", "lstsq", a, b)
        np.testing.assert_allclose(ours[0], theirs[0], rtol=0, atol=1e4 * eps(dtype))
        np.testing.assert_allclose(ours[1], theirs[1], rtol=1e3 * eps(dtype))
