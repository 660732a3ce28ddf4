"""abs_bound.py against its twin: the smallest positive element wherever it lies, lint, model."""

import ml_dtypes
import numpy as np
import pytest

from nkisim.lint.linter import lint_file, lint_launch
from nkisim.price.cost import price
from nkisim.run.launch import Specification, run
from nkisim.run.loader import load_kernel
from tests._nki.kernels.budget import kept
from trnpy._engine.tuning import FINE
from trnpy._nki.kernels import source
from trnpy._nki.kernels.products import abs_bound_reference as reference
from trnpy._nki.kernels.shared.parameters import for_bounds

FILE = source("abs_bound")
KERNEL = load_kernel(FILE, "abs_bound")
BF16 = np.dtype(ml_dtypes.bfloat16)
SMALL_TILES = {"m_tiles": 2, "n_tiles": 1, "k_tiles": 2}


def operands(m, k, n, a_rows=True, b_rows=True):
    rng = np.random.default_rng([m, k, n])
    a, b = (np.abs(rng.standard_normal(shape)).astype(BF16) for shape in ((m, k), (k, n)))
    return (a if a_rows else a.T.copy()), (b if b_rows else b.T.copy())


@pytest.mark.parametrize("a_rows, b_rows", [(True, True), (False, True), (True, False)])
@pytest.mark.parametrize("m, k, n", [(1, 1, 1), (127, 129, 511), (130, 300, 530), (257, 64, 1100)])
def test_every_edge_and_layout(m, k, n, a_rows, b_rows):
    a, b = operands(m, k, n, a_rows, b_rows)
    ours = run(KERNEL, (a, b), {"a_rows": a_rows, "b_rows": b_rows, **SMALL_TILES}).outputs
    assert ours.min() == pytest.approx(reference.abs_bound(a, b, a_rows, b_rows)[0, 0], rel=k * 2.0**-24)


@pytest.mark.parametrize("row, column", [(0, 0), (299, 0), (0, 1029), (299, 1029), (128, 512), (256, 1024)])
def test_the_smallest_is_found_wherever_it_lies(row, column):
    a, b = np.ones((300, 2), BF16), np.ones((2, 1030), BF16)
    a[row], b[:, column] = (0, 2.0**-60), (1, 2.0**-60)
    assert run(KERNEL, (a, b), SMALL_TILES).outputs.min() == 2.0**-120


@pytest.mark.parametrize("batch, m, k, n", [(2, 1, 1, 1), (3, 130, 70, 40), (60, 140, 20, 9)])
def test_the_smallest_of_a_stack(batch, m, k, n):
    a, b = operands(batch * m, k, 1)[0], operands(1, batch * k, n)[1]
    a[m - 1], b[-1] = a[m - 1] * 2.0**-20, 0
    ours = run(KERNEL, (a, b), {"batch": batch, **SMALL_TILES}).outputs.min()
    alone = min(reference.abs_bound(a[i * m : i * m + m], b[i * k : i * k + k])[0, 0] for i in range(batch))
    assert ours == pytest.approx(alone, rel=k * 2.0**-24) and reference.abs_bound(a, b, batch=batch)[0, 0] == alone
    with pytest.raises(ValueError, match="matrices"):
        reference.check(a, b, True, True, 7)


def test_zeros_do_not_count():
    a, b = operands(140, 60, 530)
    a[3], b[:, 7] = 0, 0
    assert run(KERNEL, (a, b), SMALL_TILES).outputs.min() == pytest.approx(reference.abs_bound(a, b)[0, 0], rel=1e-5)
    assert run(KERNEL, (0 * a, b), SMALL_TILES).outputs.min() == reference.NOTHING


def test_any_legal_order_gives_the_same():
    a, b = operands(300, 700, 530)
    straight = run(KERNEL, (a, b), SMALL_TILES).outputs
    for seed in range(3):
        np.testing.assert_array_equal(run(KERNEL, (a, b), SMALL_TILES, mode="reorder", seed=seed).outputs, straight)


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_lint_finds_no_error(target):
    findings = lint_launch(KERNEL, operands(300, 700, 530), SMALL_TILES, target=target)
    assert not [f for f in (*findings, *lint_file(FILE)) if f.severity == "E"]


def test_every_bucket_fits_and_the_program_stays_short():
    for n in FINE[::8]:
        s = Specification((n, n), BF16)
        for b_rows in (True, False):
            trace = run(KERNEL, (s, s), {**for_bounds().of_numbers(), "b_rows": b_rows}, mode="trace").trace
            assert kept(trace)


def test_modelled_cost_on_trn2():
    """One bf16 pass at 4096^3, which is a sixteenth of the product it certifies."""
    s = Specification((4096, 4096), BF16)
    cost = price(run(KERNEL, (s, s), for_bounds().of_numbers(), mode="trace").trace)
    print(f"modelled: {cost.tensor_utilisation:.2f} of bf16 peak")
    assert cost.tensor_utilisation >= 0.50
    tiles = for_bounds()
    blocks = 1 / (128 * tiles.m_tiles) + 1 / (512 * tiles.n_tiles)
    assert cost.hbm_bytes <= 1.3 * 4096**3 * blocks * 2


def test_what_it_refuses():
    a = np.ones((4, 4), BF16)
    for bad in ((a, a[:3]), (a.astype("f4"), a), (a, a.astype("f4"))):
        with pytest.raises(ValueError, match="expected"):
            reference.check(*bad, True, True)
