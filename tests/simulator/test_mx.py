"""Tests of the microscaled formats of trn3: quantisation, packed scales, products, refusals."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nkisim import isa as nisa
from nkisim import language as nl
from tests.simulator.kernels import on_chip, refusal, run, to_hbm

FP8 = {"float8_e4m3fn_x4": (ml_dtypes.float8_e4m3fn, 8, 3), "float8_e5m2_x4": (ml_dtypes.float8_e5m2, 15, 2)}


def tiles(rows, columns, dtype):
    """Data and scale tiles for an unquantised (rows, columns): scales stay in their quadrant."""
    data = nl.ndarray((rows, columns // 4), dtype, nl.sbuf)
    scale = nl.zeros((rows // 8 if rows == 32 else rows, columns // 4), "uint8")
    return data, scale


def quantised(x, dtype):
    data, scale = tiles(*x.shape, dtype)
    nisa.quantize_mx(dst=data, src=on_chip(x), dst_scale=scale)
    return data, scale


def restored(x, dtype):
    """What x is after quantisation, from the formula of the documentation, group by group."""
    element, top, _ = FP8[dtype]
    result = np.zeros(x.shape)
    for row in range(0, x.shape[0], 8):
        for column in range(0, x.shape[1], 4):
            group = x[row : row + 8, column : column + 4].astype(np.float64)
            largest = np.abs(group).max()
            scale = 2.0 ** (np.floor(np.log2(largest)) - (top - 1)) if largest else 2.0**-127
            result[row : row + 8, column : column + 4] = (group / scale).astype(element).astype(np.float64) * scale
    return result


def contracted(a, b):
    """Sum over rows and over the four neighbours of every element."""
    k = a.shape[0]
    return np.einsum("kmq,knq->mn", a.reshape(k, -1, 4), b.reshape(k, -1, 4))


@settings(max_examples=12, deadline=None)
@given(st.sampled_from([32, 64, 128]), st.sampled_from(list(FP8)), st.sampled_from(list(FP8)), st.integers(0, 99))
def test_quantised_operands_multiply_as_their_restored_values(rows, left, right, seed):
    rng = np.random.default_rng(seed)
    spread = 2.0 ** rng.integers(-20, 20, (rows, 1))
    a = (rng.standard_normal((rows, 8 * 4)) * spread).astype(ml_dtypes.bfloat16)
    b = (rng.standard_normal((rows, 12 * 4)) / spread).astype(ml_dtypes.bfloat16)
    a[0:8, 0:4] = 0

    def kernel(a, b):
        (left_data, left_scale), (right_data, right_scale) = quantised(a, left), quantised(b, right)
        dst = nl.ndarray((8, 12), nl.float32, nl.psum)
        nisa.nc_matmul_mx(dst, left_data, right_data, left_scale, right_scale)
        return to_hbm(dst)

    ra, rb = restored(a, left), restored(b, right)
    bound = contracted(np.abs(ra), np.abs(rb)) * 4 * rows * 2.0**-24
    assert (np.abs(run(kernel, a, b, target="trn3") - contracted(ra, rb)) <= bound).all()
    for x, y, (_, _, bits) in ((a, ra, FP8[left]), (b, rb, FP8[right])):
        groups = np.abs(x.astype(np.float64)).reshape(rows // 8, 8, -1, 4).max(axis=(1, 3))
        allowed = np.repeat(np.repeat(groups, 8, 0), 4, 1) * 2.0 ** -(bits + 1)
        assert (np.abs(x.astype(np.float64) - y) <= allowed).all()


def test_scales_of_two_operands_share_a_tile():
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((128, 64)).astype(ml_dtypes.bfloat16) for _ in range(2))

    def kernel(a, b):
        packed = nl.ndarray((128, 16), "float8_e8m0fnu", nl.sbuf)
        data = [nl.ndarray((128, 16), "float8_e5m2_x4", nl.sbuf) for _ in range(2)]
        scales = packed[0:], packed[4:]
        for tile, source, scale in zip(data, (a, b), scales, strict=True):
            nisa.quantize_mx(dst=tile, src=on_chip(source), dst_scale=scale)
        dst = nl.ndarray((16, 16), nl.bfloat16, nl.psum)
        nisa.nc_matmul_mx(dst, *data, *scales)
        return to_hbm(dst)

    expected = contracted(restored(a, "float8_e5m2_x4"), restored(b, "float8_e5m2_x4"))
    np.testing.assert_allclose(run(kernel, a, b, target="trn3").astype(np.float64), expected, rtol=2.0**-8, atol=0.05)


def test_packed_fp4_values_are_four_nibbles():
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 16, (32, 6 * 4)).astype(np.uint8)
    words = (
        (codes.reshape(32, 6, 4).astype(np.uint16) << np.arange(0, 16, 4, dtype=np.uint16)).sum(-1).astype(np.uint16)
    )
    exact = codes.view(ml_dtypes.float4_e2m1fn).astype(np.float64)
    scales = rng.integers(120, 134, (4, 6)).astype(np.uint8)

    def kernel(words, scales):
        data, scale = on_chip(words.view("float4_e2m1fn_x4")), on_chip(scales)
        dst = nl.ndarray((6, 6), nl.float32, nl.psum)
        for _ in range(2):
            nisa.nc_matmul_mx(dst, data, data, scale, scale)
        return to_hbm(dst)

    wide = exact * np.repeat(np.repeat(2.0 ** (scales.astype(int) - 127), 8, 0), 4, 1)
    np.testing.assert_allclose(run(kernel, words, scales, target="trn3"), 2 * contracted(wide, wide), rtol=1e-5)


def data(*shape, dtype="float8_e5m2_x4"):
    return nl.zeros(shape, "uint32").view(dtype)


def scale(*shape, dtype="uint8"):
    return nl.zeros(shape, dtype)


def psum(*shape, dtype="float32"):
    return nl.ndarray(shape, dtype, nl.psum)


BAD = {
    "trn2": (lambda: nisa.nc_matmul_mx(psum(8, 8), data(32, 8), data(32, 8), scale(4, 8), scale(4, 8)), "trn2"),
    "quantize on trn2": (lambda: nisa.quantize_mx(data(32, 8), scale(32, 32), scale(4, 8)), "trn2"),
    "K": (lambda: nisa.nc_matmul_mx(psum(8, 8), data(16, 8), data(16, 8), scale(4, 8), scale(4, 8)), "trn3"),
    "odd M": (lambda: nisa.nc_matmul_mx(psum(7, 8), data(32, 7), data(32, 8), scale(4, 8), scale(4, 8)), "trn3"),
    "dst": (lambda: nisa.nc_matmul_mx(psum(8, 9), data(32, 8), data(32, 8), scale(4, 8), scale(4, 8)), "trn3"),
    "dtype": (
        lambda: nisa.nc_matmul_mx(psum(8, 8), scale(32, 8), data(32, 8), scale(4, 8), scale(4, 8)),
        "trn3",
    ),
    "few scales": (lambda: nisa.nc_matmul_mx(psum(8, 8), data(64, 8), data(64, 8), scale(8, 8), scale(64, 8)), "trn3"),
    "scale offset": (
        lambda: nisa.nc_matmul_mx(psum(8, 8), data(32, 8), data(32, 8), scale(32, 8)[2:6], scale(4, 8)),
        "trn3",
    ),
    "column tile": (
        lambda: nisa.nc_matmul_mx(
            psum(8, 8), data(32, 8), data(32, 8), scale(4, 8), scale(4, 8), tile_position=(0, 64), tile_size=(32, 64)
        ),
        "trn3",
    ),
    "accumulate": (
        lambda: nisa.nc_matmul_mx(psum(8, 8), data(32, 8), data(32, 8), scale(4, 8), scale(4, 8), accumulate=True),
        "trn3",
    ),
    "quantize dtype": (lambda: nisa.quantize_mx(data(32, 8), nl.zeros((32, 32), nl.float32), scale(4, 8)), "trn3"),
    "quantize shape": (lambda: nisa.quantize_mx(data(32, 8), nl.zeros((32, 30), "float16"), scale(4, 8)), "trn3"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_documented_constraint_is_refused(case):
    statement, target = BAD[case]

    def kernel():
        statement()

    refusal(kernel, target=target)
