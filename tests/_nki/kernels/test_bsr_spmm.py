"""bsr_spmm.py and bsr_transpose_spmm.py against their twins: any length of rows, digits, limits, lint."""

import ml_dtypes
import numpy as np
import pytest

from nkisim.hardware import FLOAT64_PASSES, TRN2
from nkisim.lint.linter import errors, lint_file, lint_launch
from nkisim.price.cost import price
from nkisim.run.launch import Specification, run
from nkisim.run.loader import load_kernel
from trnpy._nki.kernels import source
from trnpy._nki.kernels.products.float64_matmul_reference import longest_k
from trnpy._nki.kernels.shared.parameters import words_for
from trnpy._nki.kernels.sparse import bsr_spmm_reference as reference

KERNELS = {name: load_kernel(source(name), name) for name in ("bsr_spmm", "bsr_transpose_spmm")}
BF16 = np.dtype(ml_dtypes.bfloat16)
SINGLE = 2.0**-24
MOST_INSTRUCTIONS = 44_000
TILE = 128


def operands(rows, length, n, digits=0, dtype="f4", x_blocks=5, beside=False, seed=0):
    """Rows of ``length`` tiles, which are used in a random order, and blocks of X that are met more than once."""
    rng = np.random.default_rng([seed, n, rows, length])
    count, planes = rows * length, max(digits, 1)
    shapes = (count * TILE, planes * TILE), (x_blocks * TILE, planes * n)
    if digits:
        tiles, x = (rng.integers(-128, 128, shape).astype(BF16) for shape in shapes)
    else:
        tiles, x = (rng.standard_normal(shape).astype(dtype) for shape in shapes)
    order = rng.integers(0, count - length + 1, rows) if beside else rng.permutation(count)
    left = order.astype(np.int32) * TILE * shapes[0][1]
    right = rng.integers(0, x_blocks, count).astype(np.int32) * TILE * shapes[1][1]
    return tiles, x, left[np.newaxis], right[np.newaxis]


def twin(name, arrays, **keywords):
    return reference.bsr_spmm(*arrays, **keywords, turned=name == "bsr_transpose_spmm")


def agree(name, arrays, **keywords):
    ours = run(KERNELS[name], arrays, keywords).outputs
    if keywords.get("digits"):
        np.testing.assert_array_equal(ours, twin(name, arrays, **keywords))
        return ours
    wide = (*(a.astype("f4") for a in arrays[:2]), *arrays[2:])
    bound = twin(name, (*(np.abs(a) for a in wide[:2]), *wide[2:]), **keywords)
    longest = TILE * max(arrays[2].shape[1], 1)
    assert (np.abs(ours - twin(name, wide, **keywords)) <= longest * SINGLE * bound).all()
    return ours


def test_the_twin_multiplies_float64_as_it_is():
    """For engines on the host: what it differs by in float32 is rounding."""
    arrays = operands(2, 3, 16, dtype="f8")
    wide = twin("bsr_spmm", arrays, length=3)
    single = twin("bsr_spmm", (*(a.astype("f4") for a in arrays[:2]), *arrays[2:]), length=3)
    assert wide.dtype == "f8" and single.dtype == "f4"
    assert 0 < np.abs(wide - single).max() <= 1e-5 * np.abs(wide).max()


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("dtype", ["f4", BF16], ids=str)
@pytest.mark.parametrize("beside", [False, True], ids=["anywhere", "side by side"])
@pytest.mark.parametrize("rows, length, n, unit", [(1, 1, 16, 1), (3, 17, 40, 4), (2, 7, 513, 2), (3, 2, 1100, 4)])
def test_rows_of_one_length(name, rows, length, n, unit, beside, dtype):
    agree(name, operands(rows, length, n, dtype=dtype, beside=beside), length=length, unit=unit)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("beside", [False, True], ids=["anywhere", "side by side"])
@pytest.mark.parametrize(
    "digits, unit, rows, length, n", [(7, 1, 2, 3, 16), (7, 4, 2, 9, 40), (9, 2, 1, 7, 130), (12, 4, 1, 9, 20)]
)
def test_digits_are_summed_exactly(name, rows, length, n, unit, digits, beside):
    arrays = operands(rows, length, n, digits, beside=beside)
    agree(name, arrays, length=length, unit=unit, digits=digits, words=words_for(digits))


def test_the_largest_digits_sum_exactly_in_the_longest_row():
    digits, length = 7, reference.LONGEST
    tiles, x, left, right = operands(1, length, 16, digits, x_blocks=1)
    tiles[:], x[:] = -128, -128
    keywords = {"length": length, "digits": digits, "words": 3}
    got = run(KERNELS["bsr_spmm"], (tiles, x, left, right), keywords).outputs
    # The two groups of lowest weight may round beyond 2^24; all terms are multiples of 2^14, so here they do not.
    np.testing.assert_array_equal(got, twin("bsr_spmm", (tiles, x, left, right), **keywords))


def test_tiles_that_lie_side_by_side_come_in_fewer_transfers():
    tiles, x, left, right = operands(3, 6, 40)
    left = np.sort(left)
    anywhere = run(KERNELS["bsr_spmm"], (tiles, x, left, right), {"length": 6})
    beside = run(KERNELS["bsr_spmm"], (tiles, x, left[:, ::6].copy(), right), {"length": 6})
    np.testing.assert_array_equal(beside.outputs, anywhere.outputs)
    assert len(beside.trace.instructions) < len(anywhere.trace.instructions)


def test_the_smallest_positive_element():
    arrays = operands(2, 5, 40, dtype=BF16)
    arrays = (*(np.abs(a) for a in arrays[:2]), *arrays[2:])
    arrays[1][:, 3] = 0
    least = run(KERNELS["bsr_spmm"], arrays, {"length": 5, "least": True}).outputs
    np.testing.assert_allclose(least.min(), twin("bsr_spmm", arrays, length=5, least=True), rtol=1e-5)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("digits, seed", [(0, 0), (0, 1), (7, 0)])
def test_any_legal_order_gives_the_same(name, digits, seed):
    arrays = operands(2, 9, 40, digits)
    keywords = {"length": 9, "unit": 2, "digits": digits, "words": 3}
    straight = run(KERNELS[name], arrays, keywords).outputs
    np.testing.assert_array_equal(run(KERNELS[name], arrays, keywords, mode="reorder", seed=seed).outputs, straight)


@pytest.mark.parametrize("target, digits", [("trn1", 0), ("trn2", 0), ("trn2", 7), ("trn3", 0)])
@pytest.mark.parametrize("name", KERNELS)
def test_lint_finds_no_error(name, target, digits):
    for beside in (False, True):
        arrays = operands(3, 6, 40, digits, beside=beside)
        found = lint_launch(KERNELS[name], arrays, {"length": 6, "digits": digits, "words": 3}, target=target)
        assert not errors((*found, *lint_file(source(name))))


def specified(rows, length, blocks, n, digits=0, dtype=BF16, beside=True):
    planes, slots = max(digits, 1), rows * length
    shapes = (slots * TILE, planes * TILE), (blocks * TILE, planes * n)
    places = (rows if beside else slots), slots
    return (*(Specification(s, dtype) for s in shapes), *(Specification((1, p), np.int32) for p in places))


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("digits, n, unit", [(0, 2048, 4), (7, 512, 4), (9, 512, 2), (12, 512, 2)])
def test_the_largest_launch_fits_and_the_program_is_short(name, digits, n, unit):
    keywords = {"unit": unit, "digits": digits, "words": words_for(digits) if digits else 3}
    for length in (1, 64 if digits < 12 else 32):
        rows = min(reference.SLOTS // length, reference.ROWS)
        dtype = BF16 if digits else np.float32
        arrays = specified(rows, length, 1024, n, digits, dtype, beside=name == "bsr_spmm")
        trace = run(KERNELS[name], arrays, {**keywords, "length": length}, mode="trace").trace
        print(f"{name}, {digits} digits, rows of {length}: {len(trace.instructions)} instructions, {trace.loops}")
        assert len(trace.instructions) <= MOST_INSTRUCTIONS and len(trace.loops) <= 1
        assert trace.sbuf_peak_bytes <= TRN2.sbuf_bytes_per_partition and trace.psum_peak_banks <= 8


def modelled_tile_s(n, digits=0, dtype=np.float32):
    """Seconds for one more tile in each of eight rows, and the TensorE peak's."""
    keywords = {"digits": digits, "words": 3}

    def modelled(length):
        arrays = specified(8, length, 64, n, digits, dtype)
        return price(run(KERNELS["bsr_spmm"], arrays, {**keywords, "length": length}, mode="trace").trace).device_s

    passes, rate = (FLOAT64_PASSES, "bfloat16") if digits else (1, "float32")
    return (modelled(32) - modelled(16)) / 128, 2 * TILE * TILE * n * passes / TRN2.flops_per_s[rate]


@pytest.mark.parametrize("n, digits, share", [(2048, 0, 0.95), (512, 0, 0.55), (512, 7, 0.91), (128, 7, 0.73)])
def test_modelled_seconds_of_a_tile_on_trn2(n, digits, share):
    tile_s, ideal_s = modelled_tile_s(n, digits, BF16 if digits else np.float32)
    print(f"{n} columns, {digits} digits, modelled: {tile_s * 1e6:.2f} us a tile, {ideal_s / tile_s:.0%} of peak")
    assert ideal_s / tile_s >= share


def test_what_it_refuses():
    tiles, x, left, right = operands(1, 2, 16)
    for bad in ((tiles[:, :64], x, 0), (tiles[:100], x, 0), (tiles, x[:100], 0), (tiles, x.astype("f8"), 0),
                (tiles, x, 7), (tiles.astype("f2"), x.astype("f2"), 0), (tiles, np.tile(x, 200), 0)):  # fmt: skip
        with pytest.raises(ValueError, match="expected"):
            reference.check(*bad[:2], left, right, 2, bad[2])
    for length in (0, 3, 128):
        with pytest.raises(ValueError, match="expected"):
            reference.check(tiles, x, left, right, length, 0)
    with pytest.raises(ValueError, match="expected"):
        reference.check(tiles, x, left[:, :0], right, 2, 0)
    assert all(longest_k(d) // TILE >= reference.LONGEST for d in range(1, 13))  # sums of digits in int32 are exact
