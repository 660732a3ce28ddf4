"""bsr_spmm.py and bsr_transpose_spmm.py against their twins: any length of rows, digits, limits, lint."""

import ml_dtypes
import numpy as np
import pytest

from trnpy._nki.hardware import FLOAT64_PASSES, TRN2
from trnpy._nki.kernels import source
from trnpy._nki.kernels.products.digits_matmul_reference import longest_k, words_for
from trnpy._nki.kernels.sparse import bsr_spmm_reference as reference
from trnpy._nki.simulator.lint.linter import errors, lint_file, lint_launch
from trnpy._nki.simulator.price.cost import price
from trnpy._nki.simulator.run.launch import Specification, run
from trnpy._nki.simulator.run.loader import load_kernel

KERNELS = {name: load_kernel(source(name), name) for name in ("bsr_spmm", "bsr_transpose_spmm")}
BF16 = np.dtype(ml_dtypes.bfloat16)
SINGLE = 2.0**-24
MOST_INSTRUCTIONS = 20_000
TILE = 128


def operands(lengths, n, unit=4, digits=0, dtype="f4", x_blocks=5, seed=0):
    """Rows of ``lengths`` tiles, which are used in a random order, and blocks of X that are met more than once."""
    rng = np.random.default_rng([seed, n, *lengths])
    count, planes = sum(lengths), max(digits, 1)
    shapes = (count * TILE, planes * TILE), (x_blocks * TILE, planes * n)
    if digits:
        tiles, x = (rng.integers(-128, 128, shape).astype(BF16) for shape in shapes)
    else:
        tiles, x = (rng.standard_normal(shape).astype(dtype) for shape in shapes)
    left = rng.permutation(count).astype(np.int32) * TILE * shapes[0][1]
    right = rng.integers(0, x_blocks, count).astype(np.int32) * TILE * shapes[1][1]
    pointer = np.concatenate([[0], np.cumsum(lengths)])
    return tiles, x, left[np.newaxis], right[np.newaxis], reference.bounds_of(pointer, unit)


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
    arrays = operands((3, 0, 2), 16, dtype="f8")
    wide = twin("bsr_spmm", arrays)
    single = twin("bsr_spmm", (*(a.astype("f4") for a in arrays[:2]), *arrays[2:]))
    assert wide.dtype == "f8" and single.dtype == "f4"
    assert 0 < np.abs(wide - single).max() <= 1e-5 * np.abs(wide).max()


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("dtype", ["f4", BF16], ids=str)
@pytest.mark.parametrize("unit", [1, 4])
@pytest.mark.parametrize("lengths, n", [((1,), 16), ((3, 0, 17, 1), 40), ((0, 7), 513), ((2, 2, 2), 1100)])
def test_rows_of_any_length(name, lengths, n, unit, dtype):
    agree(name, operands(lengths, n, unit, dtype=dtype), unit=unit)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize(
    "digits, unit, lengths, n", [(7, 1, (1, 0, 3), 16), (7, 4, (9, 15), 40), (9, 2, (7, 2), 130), (12, 4, (9,), 20)]
)
def test_digits_are_summed_exactly(name, lengths, n, unit, digits):
    arrays = operands(lengths, n, unit, digits)
    agree(name, arrays, unit=unit, digits=digits, words=words_for(digits))


def test_the_largest_digits_sum_exactly_in_the_longest_row():
    digits, length = 7, longest_k(7) // TILE
    tiles, x, left, right, bounds = operands((length,), 16, 4, digits, x_blocks=1)
    tiles[:], x[:] = -128, -128
    keywords = {"digits": digits, "words": 3}
    got = run(KERNELS["bsr_spmm"], (tiles, x, left, right, bounds), keywords).outputs
    # The two groups of lowest weight may round beyond 2^24; all terms are multiples of 2^14, so here they do not.
    np.testing.assert_array_equal(got, twin("bsr_spmm", (tiles, x, left, right, bounds), **keywords))
    longer = operands((length + 1,), 16, 4, digits, x_blocks=1)
    with pytest.raises(ValueError, match=f"at most {length} sum in int32"):
        twin("bsr_spmm", longer, **keywords)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("digits", [0, 7])
@pytest.mark.parametrize("length", [1, 3, 9])
def test_rows_of_one_length_need_no_pointer(name, length, digits):
    arrays = operands((length,) * 3, 40, digits=digits)
    keywords = {"digits": digits, "words": 3}
    with_pointer = run(KERNELS[name], arrays, keywords).outputs
    without = run(KERNELS[name], arrays[:4], {**keywords, "length": length}).outputs
    np.testing.assert_array_equal(without, with_pointer)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("digits", [0, 7])
@pytest.mark.parametrize("unit", [1, 4])
def test_tiles_that_lie_side_by_side_come_in_one_transfer(name, digits, unit):
    tiles, x, left, right, bounds = operands((15, 0, 6, 1), 40, unit, digits)
    arrays = tiles, x, np.sort(left), right, bounds
    keywords = {"unit": unit, "digits": digits, "words": 3}
    straight = run(KERNELS[name], arrays, keywords)
    together = run(KERNELS[name], arrays, {**keywords, "ordered": True})
    np.testing.assert_array_equal(together.outputs, straight.outputs)
    assert unit == 1 or len(together.trace.instructions) < len(straight.trace.instructions)


def test_the_smallest_positive_element():
    arrays = operands((2, 0, 5), 40, dtype=BF16)
    arrays = (*(np.abs(a) for a in arrays[:2]), *arrays[2:])
    arrays[1][:, 3] = 0
    least = run(KERNELS["bsr_spmm"], arrays, {"least": True}).outputs
    np.testing.assert_allclose(least.min(), twin("bsr_spmm", arrays, least=True), rtol=1e-5)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("digits, seed", [(0, 0), (0, 1), (7, 0)])
def test_any_legal_order_gives_the_same(name, digits, seed):
    arrays = operands((11, 0, 5), 40, 2, digits)
    keywords = {"unit": 2, "digits": digits, "words": 3}
    straight = run(KERNELS[name], arrays, keywords).outputs
    np.testing.assert_array_equal(run(KERNELS[name], arrays, keywords, mode="reorder", seed=seed).outputs, straight)


@pytest.mark.parametrize("target, digits", [("trn1", 0), ("trn2", 0), ("trn2", 7), ("trn3", 0)])
@pytest.mark.parametrize("name", KERNELS)
def test_lint_finds_no_error(name, target, digits):
    arrays, keywords = operands((15, 3), 40, 4, digits), {"digits": digits, "words": 3}
    for operands_of_one, more in ((arrays, {}), (arrays[:4], {"length": 6})):
        found = lint_launch(KERNELS[name], operands_of_one, {**keywords, **more}, target=target)
        assert not errors((*found, *lint_file(source(name))))


def specified(slots, blocks, n, digits=0, dtype=BF16):
    planes = max(digits, 1)
    shapes = (slots * TILE, planes * TILE), (blocks * TILE, planes * n)
    return (*(Specification(s, dtype) for s in shapes), *(Specification((1, slots), np.int32),) * 2)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("digits, n, unit", [(0, 2048, 4), (7, 512, 4), (9, 512, 2), (12, 512, 2)])
def test_the_largest_launch_fits_and_the_program_is_short(name, digits, n, unit):
    arrays = specified(reference.SLOTS, 2048 if digits < 9 else 1024, n, digits, BF16 if digits else np.float32)
    bounds = Specification((len(reference.turns(unit)) + 1, reference.ROWS), np.int32)
    keywords = {"unit": unit, "digits": digits, "words": words_for(digits) if digits else 3}
    for more in ((bounds,), ()):
        settings = keywords if more else {**keywords, "length": reference.LONGEST}
        trace = run(KERNELS[name], (*arrays, *more), settings, mode="trace").trace
        print(f"{name}, {digits} digits, {'pointer' if more else 'length'}: {len(trace.instructions)} instructions")
        assert len(trace.instructions) < MOST_INSTRUCTIONS
        assert trace.sbuf_peak_bytes <= TRN2.sbuf_bytes_per_partition and trace.psum_peak_banks <= 8


def modelled_tile_s(n, digits=0, dtype=np.float32):
    """Seconds for one more tile in each of eight rows, and the TensorE peak's."""
    keywords = {"digits": digits, "words": 3, "ordered": True}

    def modelled(length):
        arrays = specified(8 * length, 64, n, digits, dtype)
        return price(run(KERNELS["bsr_spmm"], arrays, {**keywords, "length": length}, mode="trace").trace).device_s

    passes, rate = (FLOAT64_PASSES, "bfloat16") if digits else (1, "float32")
    return (modelled(32) - modelled(16)) / 128, 2 * TILE * TILE * n * passes / TRN2.flops_per_s[rate]


@pytest.mark.parametrize("n, digits, share", [(2048, 0, 0.95), (512, 0, 0.55), (512, 7, 0.91), (128, 7, 0.73)])
def test_modelled_seconds_of_a_tile_on_trn2(n, digits, share):
    tile_s, ideal_s = modelled_tile_s(n, digits, BF16 if digits else np.float32)
    print(f"{n} columns, {digits} digits, modelled: {tile_s * 1e6:.2f} us a tile, {ideal_s / tile_s:.0%} of peak")
    assert ideal_s / tile_s >= share


def test_what_it_refuses():
    tiles, x, left, right, _ = operands((2,), 16)
    for bad in ((tiles[:, :64], x, 0), (tiles[:100], x, 0), (tiles, x[:100], 0), (tiles, x.astype("f8"), 0),
                (tiles, x, 7), (tiles.astype("f2"), x.astype("f2"), 0), (tiles, np.tile(x, 200), 0)):  # fmt: skip
        with pytest.raises(ValueError, match="expected"):
            reference.check(*bad[:2], left, right, bad[2])
    with pytest.raises(ValueError, match="expected"):
        reference.check(tiles, x, left, right[:, :1], 0)
