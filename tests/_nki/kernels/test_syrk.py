"""syrk.py against its twin: sizes, layouts, both meanings of the upper triangle, limits, lint, model."""

import ml_dtypes
import numpy as np
import pytest

from nkisim.lint.linter import errors, lint_file, lint_launch
from nkisim.price.cost import price
from nkisim.run.launch import Specification, run
from nkisim.run.loader import load_kernel
from tests._nki.kernels.budget import kept
from trnpy._nki.kernels import source
from trnpy._nki.kernels.products import syrk_reference

KERNEL = load_kernel(source("syrk"), "syrk")
MATMUL = load_kernel(source("matmul"), "matmul")
BF16 = np.dtype(ml_dtypes.bfloat16)
SMALL_TILES = {"tiles": 2, "k_tiles": 2}  # so that small operands have several blocks and chunks
ALPHA, BETA = np.array([[1.5]], "f4"), np.array([[-0.25]], "f4")


def operand(n, k, dtype, a_rows):
    return np.random.default_rng([n, k]).standard_normal((n, k) if a_rows else (k, n)).astype(dtype)


def agree(ours, a, a_rows, mirrored=True, c0=None):
    """Within 2 k eps of float32 of |A| |A^T|, of the product in float64; the upper triangle exactly as promised."""
    x = a.astype("f8") if a_rows else a.astype("f8").T
    theirs, size = x @ x.T, np.abs(x) @ np.abs(x).T
    if c0 is not None:
        theirs, size = 1.5 * theirs - 0.25 * c0, 1.5 * size + np.abs(c0)
    assert (ours.dtype, ours.shape) == (np.float32, theirs.shape)
    assert (np.abs(np.tril(ours - theirs)) <= 2 * (x.shape[1] + 2) * 2.0**-23 * size).all()
    np.testing.assert_array_equal(np.triu(ours, 1), np.triu(ours.T if mirrored else c0, 1))


SHAPES = [(1, 1), (5, 9), (127, 128), (128, 127), (129, 257), (511, 40), (513, 520), (770, 300), (1300, 1100)]


@pytest.mark.parametrize("dtype", ["f4", BF16, "f2"], ids=str)
@pytest.mark.parametrize("a_rows", [True, False])
@pytest.mark.parametrize("n, k", SHAPES)
def test_every_edge_and_layout(n, k, dtype, a_rows):
    a = operand(n, k, dtype, a_rows)
    agree(run(KERNEL, (a,), {"a_rows": a_rows, **SMALL_TILES}).outputs, a, a_rows)


@pytest.mark.parametrize("a_rows", [True, False])
def test_a_long_k_of_which_no_operand_stays_on_the_chip(a_rows):
    a = operand(400, 8300, "f4", a_rows)
    agree(run(KERNEL, (a,), {"a_rows": a_rows, **SMALL_TILES}).outputs, a, a_rows)


@pytest.mark.parametrize("mirrored", [True, False])
@pytest.mark.parametrize("n, k", SHAPES)
def test_only_the_lower_triangle_of_c0_is_in_the_product(n, k, mirrored):
    a = operand(n, k, "f4", False)
    c0 = np.random.default_rng(n).standard_normal((n, n)).astype("f4")
    given = np.where(np.tri(n, dtype=bool), c0, np.float32(np.nan)) if mirrored else c0
    settings = {"a_rows": False, "mirrored": mirrored, **SMALL_TILES}
    agree(run(KERNEL, (a, ALPHA, given, BETA), settings).outputs, a, False, mirrored, c0)


@pytest.mark.parametrize("mirrored", [True, False])
def test_the_twin_is_the_definition(mirrored):
    a, c0 = operand(40, 30, "f4", True), np.random.default_rng(2).standard_normal((40, 40)).astype("f4")
    agree(syrk_reference.syrk(a, ALPHA, c0, BETA, True, mirrored), a, True, mirrored, c0)


@pytest.mark.parametrize("count", range(2, 8))
def test_every_pair_of_blocks_comes_once(count):
    """Even and odd numbers of blocks: whether some pair is left out shows in the result."""
    a = operand(count * 128 + 3, 20, "f4", False)
    agree(run(KERNEL, (a,), {"a_rows": False, "tiles": 1}).outputs, a, False)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("mirrored", [True, False])
def test_any_legal_order_gives_the_same(mirrored, seed):
    a, c0 = operand(800, 600, "f4", True), np.ones((800, 800), "f4")
    settings = {"mirrored": mirrored, **SMALL_TILES}
    straight = run(KERNEL, (a, ALPHA, c0, BETA), settings).outputs
    other = run(KERNEL, (a, ALPHA, c0, BETA), settings, mode="reorder", seed=seed).outputs
    np.testing.assert_array_equal(other, straight)


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("mirrored", [True, False])
def test_lint_finds_no_error(target, mirrored):
    a, c0 = operand(800, 300, "f4", mirrored), np.ones((800, 800), "f4")
    settings = {"a_rows": mirrored, "mirrored": mirrored, **SMALL_TILES}
    found = lint_launch(KERNEL, (a, ALPHA, c0, BETA), settings, target=target)
    assert not errors((*found, *lint_file(source("syrk"))))


@pytest.mark.parametrize("n, k", [(1024, 512), (4100, 5000)])
@pytest.mark.parametrize("dtype", ["f4", BF16], ids=str)
@pytest.mark.parametrize("a_rows", [True, False])
def test_the_program_has_no_device_loop(n, k, dtype, a_rows):
    s = Specification((n, k) if a_rows else (k, n), np.dtype(dtype))
    c0, scale = Specification((n, n)), Specification((1, 1))
    trace = run(KERNEL, (s, scale, c0, scale), {"a_rows": a_rows}, mode="trace").trace
    assert kept(trace) and not trace.loops


@pytest.mark.parametrize(
    "dtype, a_rows, share", [("f4", True, 0.49), ("f4", False, 0.55), (BF16, True, 0.56), (BF16, False, 0.61)], ids=str
)
def test_modelled_gain_over_matmul_on_trn2(dtype, a_rows, share):
    """At 4096^3, by the model: at most 0.56 of the time from rows, with at most 1 / 1.6 of the multiplications."""
    s = Specification((4096, 4096), np.dtype(dtype))
    half = price(run(KERNEL, (s,), {"a_rows": a_rows}, mode="trace").trace)
    whole = price(run(MATMUL, (s, s), {"a_rows": a_rows, "b_rows": not a_rows}, mode="trace").trace)
    print(f"syrk 4096^3 {s.dtype}, modelled: {half.device_s * 1e6:.0f} us, matmul {whole.device_s * 1e6:.0f} us")
    assert whole.flops >= 1.6 * half.flops and half.device_s <= share * whole.device_s
    rows = 8  # of blocks of 512: each reads itself and all before it
    assert half.hbm_bytes <= 1.3 * (rows * (rows + 1) // 2 * 512 * 4096 * s.dtype.itemsize + 4 * 4096**2)


def test_modelled_gain_over_matmul_on_trn1():
    """From rows of bfloat16, where transfers take nearly as long as products."""
    s = Specification((4096, 4096), BF16)
    half = price(run(KERNEL, (s,), {}, mode="trace", target="trn1").trace)
    whole = price(run(MATMUL, (s, s), {"b_rows": False}, mode="trace", target="trn1").trace)
    print(f"syrk 4096^3 {s.dtype}, modelled: {half.device_s * 1e6:.0f} us, matmul {whole.device_s * 1e6:.0f} us")
    assert half.device_s <= 0.56 * whole.device_s


@pytest.mark.parametrize("k", [1100, 2048])
@pytest.mark.parametrize("dtype", ["f4", BF16], ids=str)
def test_rows_of_any_length_fit_on_trn1(dtype, k):
    s, c0, scale = Specification((2048, k), np.dtype(dtype)), Specification((2048, 2048)), Specification((1, 1))
    assert kept(run(KERNEL, (s, scale, c0, scale), {"k_tiles": 8}, mode="trace", target="trn1").trace)


def test_what_it_refuses():
    a, c0 = np.ones((4, 4), "f4"), np.ones((4, 4), "f4")
    bads = [
        (a.astype("f8"), True, True, None, None), (a[:0], True, True, None, None), (a[0], True, True, None, None),
        (a, True, False, None, None), (a, True, True, c0, None), (a, True, True, c0[:2], BETA),
        (np.broadcast_to(np.float32(0), (46341, 1)), True, True, None, None),
    ]  # fmt: skip
    for bad in bads:
        with pytest.raises(ValueError, match="expected"):
            syrk_reference.check(*bad)
