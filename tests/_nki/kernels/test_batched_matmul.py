"""batched_matmul.py against its twin: sizes, layouts, broadcast batches, limits, lint, model."""

import ml_dtypes
import numpy as np
import pytest

from nkisim.hardware import TRN2
from nkisim.lint.linter import errors, lint_file, lint_launch
from nkisim.price.cost import price
from nkisim.run.launch import Specification, run
from nkisim.run.loader import load_kernel
from tests._nki.kernels.budget import kept
from trnpy._nki.kernels import source
from trnpy._nki.kernels.products import batched_matmul_reference

FILE = source("batched_matmul")
KERNEL = load_kernel(FILE, "batched_matmul")
BF16 = np.dtype(ml_dtypes.bfloat16)


def operands(batches, m, k, n, dtype, a_rows=True, b_rows=True):
    rng = np.random.default_rng([*batches, m, k, n])
    a = rng.standard_normal((batches[0], m, k)).astype(dtype)
    b = rng.standard_normal((batches[1], k, n)).astype(dtype)
    a = a if a_rows else np.ascontiguousarray(a.transpose(0, 2, 1))
    return a, (b if b_rows else np.ascontiguousarray(b.transpose(0, 2, 1)))


def agree(a, b, a_rows, b_rows, ours):
    """Within 2 k eps of float32 of |A| |B|, of the twin in float64."""
    left, right = a.astype("f8"), b.astype("f8")
    left, right = left if a_rows else left.transpose(0, 2, 1), right if b_rows else right.transpose(0, 2, 1)
    theirs = left @ right
    assert (ours.dtype, ours.shape) == (np.float32, theirs.shape)
    assert (np.abs(ours - theirs) <= 2 * left.shape[2] * 2.0**-23 * (np.abs(left) @ np.abs(right))).all()


SHAPES = [
    (5, 1, 1, 1), (40, 5, 7, 9), (70, 8, 9, 10), (6, 127, 129, 128), (5, 129, 200, 300), (9, 256, 256, 256),
    (3, 511, 512, 512), (3, 257, 384, 511), (2, 513, 130, 70), (2, 600, 700, 1030),
]  # fmt: skip


@pytest.mark.parametrize("dtype", ["f4", BF16, "f2"], ids=str)
@pytest.mark.parametrize("a_rows", [True, False])
@pytest.mark.parametrize("b_rows", [True, False])
@pytest.mark.parametrize("batch, m, k, n", SHAPES)
def test_every_edge_and_layout(batch, m, k, n, dtype, a_rows, b_rows):
    a, b = operands((batch, batch), m, k, n, dtype, a_rows, b_rows)
    agree(a, b, a_rows, b_rows, run(KERNEL, (a, b), {"a_rows": a_rows, "b_rows": b_rows}).outputs)


@pytest.mark.parametrize("batches", [(1, 37), (37, 1), (1, 1)])
@pytest.mark.parametrize("a_rows", [True, False])
@pytest.mark.parametrize("m, k, n", [(5, 7, 9), (130, 256, 30), (513, 20, 40)])
def test_an_operand_of_batch_one_serves_all(batches, a_rows, m, k, n):
    a, b = operands(batches, m, k, n, "f4", a_rows)
    agree(a, b, a_rows, True, run(KERNEL, (a, b), {"a_rows": a_rows}).outputs)


def test_the_twin_is_numpy():
    a, b = operands((3, 1), 4, 5, 6, "f4", False, False)
    np.testing.assert_allclose(
        batched_matmul_reference.batched_matmul(a, b, False, False), np.einsum("bkm,nk->bmn", a, b[0]), rtol=1e-5
    )


def test_nan_stays_in_its_matrix():
    a, b = operands((9, 9), 30, 30, 30, "f4")
    a[4, 3, 2] = np.nan
    ours = run(KERNEL, (a, b)).outputs
    assert np.isnan(ours[4, 3]).all() and np.isnan(ours).sum() == 30


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("shape", [(9, 130, 140, 30), (2, 600, 520, 30)])
def test_any_legal_order_gives_the_same(shape, seed):
    a, b = operands((shape[0], shape[0]), *shape[1:], "f4")
    straight = run(KERNEL, (a, b)).outputs
    np.testing.assert_array_equal(run(KERNEL, (a, b), mode="reorder", seed=seed).outputs, straight)


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("a_rows", [True, False])
def test_lint_finds_no_error(target, a_rows):
    a, b = operands((9, 9), 256, 130, 30, "f4", a_rows)
    assert not errors((*lint_launch(KERNEL, (a, b), {"a_rows": a_rows}, target=target), *lint_file(FILE)))


@pytest.mark.parametrize(
    "a, b",
    [
        ((512, 256, 256), (512, 256, 256)), ((100_000, 16, 16), (1, 16, 16)), ((100_000, 16, 16), (100_000, 16, 16)),
        ((500, 512, 512), (500, 512, 512)), ((16, 4096, 4096), (16, 4096, 4096)), ((1, 512, 300), (999, 300, 512)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("dtype", ["f4", BF16], ids=str)
def test_the_program_does_not_grow_with_the_batch(a, b, dtype):
    specifications = Specification(a, np.dtype(dtype)), Specification(b, np.dtype(dtype))
    trace = run(KERNEL, specifications, mode="trace").trace
    assert kept(trace)


@pytest.mark.parametrize("dtype", ["f4", BF16], ids=str)
@pytest.mark.parametrize("a_rows", [True, False])
def test_modelled_share_of_the_hbm_bandwidth_on_trn2(dtype, a_rows):
    """512 products of 256^3 in one launch read and write every element once; moving them takes most of the time."""
    s = Specification((512, 256, 256), np.dtype(dtype))
    cost = price(run(KERNEL, (s, s), {"a_rows": a_rows}, mode="trace").trace)
    moved = 512 * 256**2 * (2 * s.dtype.itemsize + 4)
    print(f"512 x 256^3 {s.dtype}, modelled: {cost.device_s * 1e6:.0f} us, {100 * cost.tensor_utilisation:.0f} % of PE")
    assert cost.hbm_bytes == moved
    assert moved / cost.device_s >= 0.79 * TRN2.hbm_bytes_per_s


def test_what_it_refuses():
    a = np.ones((2, 4, 4), "f4")
    wide = np.broadcast_to(np.float32(0), (2100, 513, 4))
    other_k, other_batch = np.ones((2, 5, 4), "f4"), np.ones((3, 4, 4), "f4")
    bads = [(a, other_k), (a, a.astype("f8")), (a[:0], a[:0]), (a[0], a[0]), (a, other_batch)]
    for bad in (*bads, (wide, wide[:, :4])):
        with pytest.raises(ValueError, match="expected"):
            batched_matmul_reference.check(*bad, True, True)
