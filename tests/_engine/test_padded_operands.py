"""Operands that are filled up with zeros: their layout is that of the device, whatever the caller's."""

import numpy as np
import pytest

from trnpy._engine.native_products import with_zeros


@pytest.mark.parametrize("shape", [(3, 4), (8, 8)])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_padded_operands_are_c_contiguous_with_zeros_around(shape, order, dtype):
    a = np.asarray(np.arange(12.0).reshape(3, 4), order=order)
    found = with_zeros(a, shape, np.dtype(dtype))
    assert found.flags.c_contiguous and found.shape == shape and found.dtype == dtype
    np.testing.assert_array_equal(found[:3, :4], a)
    assert not found[3:].any() and not found[:, 4:].any()
