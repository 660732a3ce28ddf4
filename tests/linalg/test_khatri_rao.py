"""Products of columns on the device path."""

import numpy as np
import pytest
import scipy.linalg

from linalg.rows import forced, gaussian


@pytest.mark.parametrize("dtype", ["f8", "c16"])
def test_khatri_rao_products(dtype):
    a, b = gaussian((8, 8), dtype)[:5], gaussian((8, 8), dtype, 1)
    np.testing.assert_allclose(forced("khatri_rao", a, b), scipy.linalg.khatri_rao(a, b), rtol=1e-14)
