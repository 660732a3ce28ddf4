"""Tests of nc_matmul and nc_transpose: what they compute, and every constraint that they refuse."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nkisim import isa as nisa
from nkisim import language as nl
from nkisim.chip.dtypes import STORAGE
from nkisim.run.launch import simulate
from tests.simulator.kernels import FLOATS, on_chip, refusal, run, to_hbm, values

DOUBLE = nisa.matmul_perf_mode.double_row


def psum(*shape, dtype="float32"):
    return nl.ndarray(shape, dtype, nl.psum)


def sb(*shape, dtype="float32"):
    return nl.zeros(shape, dtype)


def product(a, b, **options):
    """One nc_matmul of two HBM operands."""
    left, right = on_chip(a), on_chip(b)
    dst = psum(a.shape[1], b.shape[1])
    nisa.nc_matmul(dst=dst, stationary=left, moving=right, **options)
    return to_hbm(dst)


# --- meaning --------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from([(1, 1, 1), (128, 128, 512), (128, 127, 501), (7, 3, 5), (127, 65, 33), (64, 1, 512)]),
    st.sampled_from(FLOATS),
    st.sampled_from(FLOATS),
    st.integers(0, 9),
)
def test_a_product_is_exact_where_float32_is(shape, left, right, seed):
    k, m, n = shape
    if (left == "float32") != (right == "float32"):
        right = left
    a, b = values((k, m), left, seed), values((k, n), right, seed + 1)
    expected = a.astype(np.float64).T @ b.astype(np.float64)
    np.testing.assert_array_equal(run(product, a, b), expected)


def test_a_tile_that_is_loaded_again_multiplies_with_its_new_values():
    def kernel(a, b):
        left, right, dst = on_chip(a[0:32]), on_chip(b), psum(8, 16)
        for part in range(2):
            nisa.dma_copy(dst=left, src=a[32 * part : 32 * part + 32])
            nisa.nc_matmul(dst=dst, stationary=left, moving=right, accumulate=part > 0)
        return to_hbm(dst)

    a, b = values((64, 8), "bfloat16"), values((32, 16), "bfloat16", 1)
    expected = sum(a[i : i + 32].astype(np.float32).T @ b.astype(np.float32) for i in (0, 32))
    np.testing.assert_array_equal(run(kernel, a, b), expected)


# A view of a tile in SBUF, and the same elements in NumPy: (rows, columns) out of (rows, 2 * columns).
VIEWS = {
    "first half": (lambda t: t[:, 0 : t.shape[1] // 2], lambda x: x[:, : x.shape[1] // 2]),
    "every other": (lambda t: t[:, ::2], lambda x: x[:, ::2]),
    "permuted": (
        lambda t: t.reshape_dim(1, (2, -1)).permute((0, 2, 1)).reshape_dim(1, (-1, 1))[:, :, 0, 1],
        lambda x: x[:, x.shape[1] // 2 :],
    ),
    "repeated": (
        lambda t: t[:, 0:1].broadcast(1, t.shape[1] // 2),
        lambda x: np.repeat(x[:, 0:1], x.shape[1] // 2, 1),
    ),
    "access pattern": (
        lambda t: t.ap([[t.shape[1], t.shape[0]], [2, t.shape[1] // 2]], offset=1),
        lambda x: x[:, 1::2],
    ),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e5m2"])
@pytest.mark.parametrize("left", VIEWS)
@pytest.mark.parametrize("right", VIEWS)
def test_products_of_views_are_products_of_their_elements(left, right, dtype):
    a, b = values((96, 2 * 40), dtype), values((96, 2 * 56), dtype, seed=1)

    def kernel(a, b):
        dst = psum(80, 64)
        where = dst[0:40, 4:60]
        nisa.nc_matmul(dst=where, stationary=VIEWS[left][0](on_chip(a)), moving=VIEWS[right][0](on_chip(b)))
        return to_hbm(where)

    expected = VIEWS[left][1](a).astype(np.float32).T @ VIEWS[right][1](b).astype(np.float32)
    np.testing.assert_array_equal(run(kernel, a, b), expected)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int16"])
@pytest.mark.parametrize("view", VIEWS)
def test_transposes_of_views_are_transposes_of_their_elements(view, dtype):
    x = values((48, 2 * 40), dtype)

    def kernel(x):
        dst = nl.ndarray((40, 48), dtype, nl.psum)
        nisa.nc_transpose(dst=dst, data=VIEWS[view][0](on_chip(x)))
        return to_hbm(dst)

    np.testing.assert_array_equal(run(kernel, x), VIEWS[view][1](x).T)


def test_float32_products_have_float32_errors():
    rng = np.random.default_rng(5)
    a, b = rng.standard_normal((128, 128)).astype(np.float32), rng.standard_normal((128, 512)).astype(np.float32)
    exact = a.astype(np.float64).T @ b.astype(np.float64)
    bound = 128 * np.finfo(np.float32).eps * (np.abs(a.astype(np.float64)).T @ np.abs(b.astype(np.float64)))
    assert (np.abs(run(product, a, b) - exact) <= bound).all()


@pytest.mark.parametrize("accumulate", [True, None])
def test_passes_accumulate_in_psum(accumulate):
    def kernel(a, b):
        dst = psum(8, 16)
        for k in range(4):
            left, right = on_chip(a[32 * k : 32 * (k + 1)]), on_chip(b[32 * k : 32 * (k + 1)])
            first = False if accumulate else None
            nisa.nc_matmul(dst=dst, stationary=left, moving=right, accumulate=accumulate if k else first)
        return to_hbm(dst)

    a, b = values((128, 8)), values((128, 16), seed=1)
    np.testing.assert_array_equal(run(kernel, a, b), a.T @ b)


def test_accumulate_false_overwrites():
    def kernel(a, b):
        dst = psum(8, 16)
        left, right = on_chip(a), on_chip(b)
        for _ in range(3):
            nisa.nc_matmul(dst=dst, stationary=left, moving=right, accumulate=False)
        return to_hbm(dst)

    a, b = values((128, 8)), values((128, 16), seed=1)
    np.testing.assert_array_equal(run(kernel, a, b), a.T @ b)


def test_accumulation_is_inferred_for_every_location():
    def kernel(a, b):
        dst = psum(8, 16)
        left, right = on_chip(a), on_chip(b)
        nisa.nc_matmul(dst=dst[:, 0:8], stationary=left, moving=right[:, 0:8])
        nisa.nc_matmul(dst=dst, stationary=left, moving=right)
        return to_hbm(dst)

    a, b = values((128, 8)), values((128, 16), seed=1)
    expected = a.T @ b
    expected[:, 0:8] *= 2
    np.testing.assert_array_equal(run(kernel, a, b), expected)


@pytest.mark.parametrize("pair", [("float8_e4m3", "float8_e5m2"), ("float8_e5m2", "float8_e5m2")])
def test_double_row_contracts_over_two_halves(pair):
    a, b = values((128, 2, 64), pair[0]), values((128, 2, 256), pair[1], seed=1)

    def kernel(a, b):
        dst = psum(64, 256)
        nisa.nc_matmul(dst=dst, stationary=on_chip(a), moving=on_chip(b), perf_mode=DOUBLE)
        return to_hbm(dst)

    expected = np.einsum("kim,kin->mn", a.astype(np.float32), b.astype(np.float32))
    np.testing.assert_array_equal(run(kernel, a, b), expected)


def test_row_tiles_use_the_same_operands():
    a, b = values((64, 32)), values((64, 16), seed=1)
    tiled = run(lambda a, b: product(a, b, tile_position=(64, 0), tile_size=(64, 128)), a, b)
    np.testing.assert_array_equal(tiled, a.T @ b)


def test_views_with_many_free_dimensions_are_flattened():
    def kernel(a, b):
        dst = psum(12, 4, 8)
        nisa.nc_matmul(dst=dst, stationary=on_chip(a).permute((0, 2, 1)), moving=on_chip(b)[:, ::2])
        return to_hbm(dst)

    a, b = values((16, 4, 3)), values((16, 8, 8), seed=1)
    expected = a.transpose(0, 2, 1).reshape(16, 12).T @ b[:, ::2].reshape(16, 32)
    np.testing.assert_array_equal(run(kernel, a, b), expected.reshape(12, 4, 8))


def test_trn3_writes_bfloat16_and_wide_products():
    def kernel(a, b):
        dst = psum(8, 1024, dtype="bfloat16")
        nisa.nc_matmul(dst=dst, stationary=on_chip(a), moving=on_chip(b))
        return to_hbm(dst)

    a, b = values((128, 8), "bfloat16"), values((128, 1024), "bfloat16", 1)
    expected = (a.astype(np.float32).T @ b.astype(np.float32)).astype(STORAGE["bfloat16"])
    np.testing.assert_array_equal(run(kernel, a, b, target="trn3"), expected)


def test_perturbed_products_unmask_algorithms_that_need_exact_ones():
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((128, 8)).astype(np.float32), rng.standard_normal((128, 16)).astype(np.float32)
    scale = np.abs(a).T @ np.abs(b)
    error = np.abs(run(product, a, b, perturb_fp32=True) - run(product, a, b)) / scale
    assert 2.0**-24 < error.max() <= 2.0**-16 + 2.0**-20
    ones = np.ones((1, 16), np.float32)
    for left, right in ((ones, ones[:, :1]), (ones[:, :1], ones)):  # either factor moves
        moved = run(product, left, right, perturb_fp32=True)
        assert len(np.unique(moved)) > 8 and np.abs(moved - 1).max() <= 2.0**-16
    narrow = a.astype(STORAGE["bfloat16"]), b.astype(STORAGE["bfloat16"])
    np.testing.assert_array_equal(run(product, *narrow, perturb_fp32=True), run(product, *narrow))


def transposed(x, engine=nisa.engine.unknown, place="psum"):
    tile = on_chip(x)
    free = int(np.prod(x.shape[1:]))
    dst = nl.ndarray((free, x.shape[0]), x.dtype, nl.psum if place == "psum" else nl.sbuf)
    nisa.nc_transpose(dst=dst, data=tile, engine=engine)
    return to_hbm(dst)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int32", "uint16"])
@pytest.mark.parametrize("shape", [(128, 128), (3, 70), (1, 128), (16, 4, 8)])
def test_tensor_engine_transposes_bits(dtype, shape):
    x = values(shape, dtype)
    np.testing.assert_array_equal(run(transposed, x), x.reshape(shape[0], -1).T)


@pytest.mark.parametrize("dtype", ["float32", "uint8", "int32", "float8_e5m2"])
def test_vector_engine_transposes_small_tiles_anywhere(dtype):
    x = values((32, 17), dtype)
    np.testing.assert_array_equal(run(lambda x: transposed(x, nisa.engine.vector, "sbuf"), x), x.T)


def test_nan_survives_a_transpose_from_trn2_on_only():
    x = np.ones((4, 8), np.float32)
    x[1, 2] = np.nan
    later = run(transposed, x)
    np.testing.assert_array_equal(later, x.T)
    first = run(transposed, x, target="trn1")
    assert np.isnan(first[2]).all() and np.isnan(first).sum() == 4


def test_transpose_mode_of_matmul_needs_the_identity():
    def kernel(x, eye):
        dst = psum(8, 16, dtype=x.dtype)
        nisa.nc_matmul(dst=dst, stationary=on_chip(x), moving=on_chip(eye), is_transpose=True)
        return to_hbm(dst)

    x, eye = values((16, 8), "bfloat16"), np.eye(16).astype(STORAGE["bfloat16"])
    np.testing.assert_array_equal(run(kernel, x, eye), x.T)
    refusal(kernel, x, eye[::-1].copy(), rule=25)
    broken = np.ones((16, 8), np.float32)
    broken[3, 2] = np.nan
    wide = np.eye(16, dtype=np.float32)
    assert np.isnan(run(kernel, broken, wide)).sum() == 1
    assert np.isnan(run(kernel, broken, wide, target="trn1")).sum() == 16


# --- refusals -------------------------------------------------------------------------------------------

BAD_PRODUCTS = {
    "K > 128 rows": (lambda: nisa.nc_matmul(psum(8, 8), sb(128, 8), sb(64, 8)), 23, "trn2"),
    "M > 128": (lambda: nisa.nc_matmul(psum(128, 8), sb(16, 129), sb(16, 8)), 23, "trn2"),
    "N > 512": (lambda: nisa.nc_matmul(psum(8, 1024), sb(16, 8), sb(16, 1024)), 23, "trn2"),
    "N > PSUM": (lambda: nisa.nc_matmul(psum(8, 4096), sb(16, 8), sb(16, 4097)), 23, "trn3"),
    "dst shape": (lambda: nisa.nc_matmul(psum(8, 9), sb(16, 8), sb(16, 8)), 23, "trn2"),
    "dst in SBUF": (lambda: nisa.nc_matmul(sb(8, 8), sb(16, 8), sb(16, 8)), 23, "trn2"),
    "operand in PSUM": (lambda: nisa.nc_matmul(psum(8, 8), psum(16, 8), sb(16, 8)), 23, "trn2"),
    "operand in HBM": (
        lambda: nisa.nc_matmul(psum(8, 8), sb(16, 8), nl.ndarray((16, 8), "float32", nl.hbm)),
        23,
        "trn2",
    ),
    "not a tensor": (lambda: nisa.nc_matmul(psum(8, 8), sb(16, 8), 3.0), 23, "trn2"),
    "dst float16": (lambda: nisa.nc_matmul(psum(8, 8, dtype="float16"), sb(16, 8), sb(16, 8)), 23, "trn2"),
    "dst bfloat16": (lambda: nisa.nc_matmul(psum(8, 8, dtype="bfloat16"), sb(16, 8), sb(16, 8)), 23, "trn2"),
    "mixed widths": (lambda: nisa.nc_matmul(psum(8, 8), sb(16, 8), sb(16, 8, dtype="bfloat16")), 23, "trn2"),
    "integers": (lambda: nisa.nc_matmul(psum(8, 8), sb(16, 8, dtype="int8"), sb(16, 8, dtype="int8")), 23, "trn2"),
    "e4m3fn": (
        lambda: nisa.nc_matmul(psum(8, 8), sb(16, 8, dtype="float8_e4m3fn"), sb(16, 8, dtype="float8_e4m3fn")),
        56,
        "trn2",
    ),
    "two e4m3": (
        lambda: nisa.nc_matmul(psum(8, 8), sb(16, 8, dtype="float8_e4m3fn"), sb(16, 8, dtype="float8_e4m3")),
        23,
        "trn3",
    ),
    "bank": (lambda: nisa.nc_matmul(psum(8, 1024)[:, 256:768], sb(16, 8), sb(16, 512)), 11, "trn2"),
    "tile pair": (lambda: nisa.nc_matmul(psum(8, 8), sb(16, 8), sb(16, 8), tile_position=(0, 0)), 23, "trn2"),
    "tile start": (
        lambda: nisa.nc_matmul(psum(8, 8), sb(16, 8), sb(16, 8), tile_position=(16, 0), tile_size=(32, 128)),
        23,
        "trn2",
    ),
    "tile of 32 on trn1": (
        lambda: nisa.nc_matmul(psum(8, 8), sb(16, 8), sb(16, 8), tile_position=(0, 0), tile_size=(32, 128)),
        23,
        "trn1",
    ),
    "K > tile": (
        lambda: nisa.nc_matmul(psum(8, 8), sb(64, 8), sb(64, 8), tile_position=(0, 0), tile_size=(32, 128)),
        23,
        "trn2",
    ),
    "double_row dtype": (
        lambda: nisa.nc_matmul(psum(8, 8), sb(16, 2, 8), sb(16, 2, 8), perf_mode=DOUBLE),
        23,
        "trn2",
    ),
    "double_row shape": (
        lambda: nisa.nc_matmul(
            psum(8, 8), sb(16, 8, dtype="float8_e5m2"), sb(16, 8, dtype="float8_e5m2"), perf_mode=DOUBLE
        ),
        23,
        "trn2",
    ),
    "double_row on trn1": (
        lambda: nisa.nc_matmul(
            psum(8, 8), sb(16, 2, 8, dtype="float8_e5m2"), sb(16, 2, 8, dtype="float8_e5m2"), perf_mode=DOUBLE
        ),
        23,
        "trn1",
    ),
    "double_row with columns": (
        lambda: nisa.nc_matmul(
            psum(8, 8),
            sb(16, 2, 8, dtype="float8_e5m2"),
            sb(16, 2, 8, dtype="float8_e5m2"),
            perf_mode=DOUBLE,
            tile_position=(0, 0),
            tile_size=(128, 64),
        ),
        23,
        "trn2",
    ),
    "one-zero hint": (
        lambda: nisa.nc_matmul(psum(8, 8), nl.full((16, 8), 2.0, "float32"), sb(16, 8), True),
        26,
        "trn2",
    ),
    "accumulate nothing": (lambda: nisa.nc_matmul(psum(8, 8), sb(16, 8), sb(16, 8), accumulate=True), 24, "trn2"),
    "accumulating transpose": (
        lambda: nisa.nc_matmul(psum(8, 8), sb(8, 8), sb(8, 8), is_transpose=True, accumulate=True),
        24,
        "trn2",
    ),
    "transpose dtype": (
        lambda: nisa.nc_matmul(psum(8, 8), sb(8, 8, dtype="bfloat16"), sb(8, 8, dtype="bfloat16"), is_transpose=True),
        23,
        "trn2",
    ),
    "transpose shape": (lambda: nisa.nc_transpose(psum(128, 8), sb(8, 129)[:, 0:128][0:4]), 25, "trn2"),
    "transpose other dtype": (lambda: nisa.nc_transpose(psum(8, 8, dtype="bfloat16"), sb(8, 8)), 25, "trn2"),
    "transpose to SBUF": (lambda: nisa.nc_transpose(sb(8, 8), sb(8, 8), nisa.engine.tensor), 25, "trn2"),
    "transpose on GpSimd": (lambda: nisa.nc_transpose(sb(8, 8), sb(8, 8), nisa.engine.gpsimd), 25, "trn2"),
    "vector > 32": (lambda: nisa.nc_transpose(sb(33, 8), sb(8, 33), nisa.engine.vector), 25, "trn2"),
    "fp8 words": (
        lambda: nisa.nc_transpose(psum(8, 8, dtype="float8_e5m2"), sb(8, 8, dtype="float8_e5m2"), nisa.engine.tensor),
        25,
        "trn2",
    ),
}


@pytest.mark.parametrize("case", BAD_PRODUCTS)
def test_a_documented_constraint_is_refused(case):
    statement, rule, target = BAD_PRODUCTS[case]

    def kernel():
        statement()

    refusal(kernel, rule=rule, target=target)


@pytest.mark.parametrize("accumulate", [True, None])
@pytest.mark.parametrize("first", ["memset", "tensor_copy", "nc_transpose"])
def test_accumulating_onto_another_instruction_is_refused(accumulate, first):
    def kernel():
        dst = psum(8, 8)
        if first == "memset":
            nisa.memset(dst=dst, value=0.0)
        elif first == "tensor_copy":
            nisa.tensor_copy(dst=dst, src=sb(8, 8))
        else:
            nisa.nc_transpose(dst=dst, data=sb(8, 8))
        nisa.nc_matmul(dst=dst, stationary=sb(16, 8), moving=sb(16, 8), accumulate=accumulate)

    refusal(kernel, rule=24)


def test_a_memset_between_products_is_refused_too():
    def kernel():
        dst = psum(8, 8)
        nisa.nc_matmul(dst=dst, stationary=sb(16, 8), moving=sb(16, 8))
        nisa.memset(dst=dst[:, 0:4], value=0.0)
        nisa.nc_matmul(dst=dst, stationary=sb(16, 8), moving=sb(16, 8), accumulate=True)

    refusal(kernel, rule=24)


def test_operands_on_different_partitions_are_noted():
    def kernel(a, b):
        dst = psum(8, 16)
        nisa.nc_matmul(dst=dst, stationary=on_chip(a)[64:128], moving=on_chip(b))
        return to_hbm(dst)

    a, b = values((128, 8)), values((64, 16), seed=1)
    result = simulate(kernel).run(a, b)
    np.testing.assert_array_equal(result.outputs, a[64:].T @ b)
    assert [n.rule for n in result.trace.notes] == [13]
