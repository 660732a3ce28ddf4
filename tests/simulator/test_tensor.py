"""Tests of NkiTensor: the layout rules of the language guide, and views against NumPy's."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nkisim import isa as nisa
from nkisim import language as nl
from nkisim.chip.dtypes import STORAGE, convert, dtype_name, to_float32
from nkisim.chip.errors import SimulatorError
from tests.simulator.kernels import run, values


def inside(statement):
    """Run a function of no arguments inside a kernel, for what needs no data."""
    found = []

    def kernel():
        found.append(statement())

    run(kernel, rules={52: "off"})  # tensors in HBM are only looked at
    return found[0]


def sb(*shape, dtype="float32"):
    return nl.ndarray(shape, dtype, nl.sbuf)


def test_a_fresh_tensor_is_contiguous():
    t = inside(lambda: sb(128, 64))
    assert (t.shape, t.strides, t.offset, t.dtype, t.buffer) == ((128, 64), (64, 1), 0, nl.float32, nl.sbuf)
    assert (t.ndim, t.size, t.is_contiguous(), t.is_indirect()) == (2, 128 * 64, True, False)


def test_a_pattern_can_be_changed_and_passed_back():
    def make():
        t = sb(128, 64)
        pattern = t.get_pattern()
        pattern[0][1] = 64
        return t.ap(pattern=pattern)

    assert inside(make).shape == (64, 64)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 4)), min_size=1, max_size=4), st.integers(0, 20))
def test_an_access_pattern_is_as_strided(pattern, offset):
    x = np.arange(400, dtype=np.float32).reshape(20, 20)
    if offset + sum(s * (n - 1) for s, n in pattern) >= 400:
        return
    expected = np.lib.stride_tricks.as_strided(
        x.reshape(-1)[offset:], [n for _, n in pattern], [4 * s for s, _ in pattern]
    )

    def kernel(x):
        view = x.ap([list(p) for p in pattern], offset=offset)
        out = nl.ndarray(view.shape, nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=view)
        return out

    np.testing.assert_array_equal(run(kernel, x), expected)


def test_setitem_copies_by_the_engine_that_reaches_both_sides():
    def kernel(x):
        t = nl.ndarray(x.shape, nl.float32)
        t[...] = x
        t[:, 0:2] = 7.0
        out = nl.ndarray(x.shape, nl.float32, buffer=nl.shared_hbm)
        out[...] = t
        return out

    x = values((4, 6))
    expected = x.copy()
    expected[:, 0:2] = 7.0
    np.testing.assert_array_equal(run(kernel, x), expected)


# --- dtypes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32"])
def test_float_to_integer_rounds_to_even_and_saturates(dtype):
    limits = np.iinfo(STORAGE[dtype])
    x = np.array([0.5, 1.5, 2.5, -0.5, -1.5, 1e20, -1e20, np.inf, -np.inf], np.float32)
    expected = [0, 2, 2, 0, max(-2, limits.min), limits.max, limits.min, limits.max, limits.min]
    np.testing.assert_array_equal(convert(x, dtype), np.array(expected, STORAGE[dtype]))


def test_bfloat16_widens_exactly():
    bits = np.arange(2**16, dtype=np.uint16)
    x = bits.view(STORAGE["bfloat16"])
    np.testing.assert_array_equal(to_float32(x).view(np.uint32) >> 16, bits)


def test_tfloat32_keeps_ten_bits():
    x = np.array([1 + 2.0**-10, 1 + 2.0**-11, 1 + 3 * 2.0**-11, np.inf, np.nan], np.float32)
    np.testing.assert_array_equal(convert(x, "tfloat32"), [1 + 2.0**-10, 1.0, 1 + 2 * 2.0**-10, np.inf, np.nan])
    full = np.array([2**31 - 1], np.uint32).view(np.float32)  # a NaN that rounding would carry into the sign
    assert np.isnan(convert(full, "tfloat32")).all()


@pytest.mark.parametrize("dtype", ["float64", np.uint64, np.complex64, "float31", object()])
def test_dtypes_that_the_device_lacks_are_refused(dtype):
    with pytest.raises(SimulatorError, match="does not exist on the device"):
        dtype_name(dtype)
