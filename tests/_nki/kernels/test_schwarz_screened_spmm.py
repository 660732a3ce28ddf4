"""schwarz_screened_spmm.py against its twin: edges, counts, rows of K that are not read, lint, order, model."""

import ml_dtypes
import numpy as np
import pytest

from nkisim.hardware import FLOAT64_PASSES, MACHINES, PSUM_BANKS, TRN2
from nkisim.lint.linter import errors, lint_file, lint_launch
from nkisim.price.cost import price
from nkisim.run.launch import Specification, run
from nkisim.run.loader import load_kernel
from trnpy._nki.kernels import source
from trnpy._nki.kernels.chem import schwarz_screened_spmm_reference as reference
from trnpy._nki.kernels.shared.parameters import words_for

FILE = source("schwarz_screened_spmm")
KERNEL = load_kernel(FILE, "schwarz_screened_spmm")
BF16 = np.dtype(ml_dtypes.bfloat16)


def operands(digits, m, k, n, seed=0):
    rng = np.random.default_rng([digits, m, k, n, seed])
    if digits:
        a, b = (rng.integers(-128, 128, (digits, k, x)).astype(BF16) for x in (m, n))
    else:
        a, b = (rng.standard_normal((k, x)).astype(np.float32) for x in (m, n))
    counts = rng.integers(0, k + 1, (1, m)).astype(np.float32)
    counts[0, 0] = k if seed == 0 else 1
    counts[0, -1] = min(counts[0, -1], 0 if m > 1 else k)
    return a, b, counts


def keywords(digits, m_tiles=1, k_tiles=1):
    return {"words": words_for(digits) if digits else 3, "m_tiles": m_tiles, "k_tiles": k_tiles}


def agree(a, b, counts, options):
    ours = run(KERNEL, (a, b, counts), options).outputs
    theirs = reference.schwarz_screened_spmm(a, b, counts, options["words"])
    if a.ndim == 3:
        np.testing.assert_array_equal(ours, theirs)
        return
    size = np.abs(a).astype("f8").T @ np.abs(b[: len(a)])
    assert (np.abs(ours - theirs) <= 2 * len(a) * 2.0**-24 * size).all()


SHAPES = [(1, 256, 1), (5, 128, 9), (127, 512, 40), (150, 384, 600), (300, 768, 513)]


@pytest.mark.parametrize("digits", [0, 7])
@pytest.mark.parametrize("m, k, n", SHAPES)
@pytest.mark.parametrize("seed", [0, 1])
def test_every_edge(m, k, n, digits, seed):
    a, b, counts = operands(digits, m, k, n, seed)
    agree(a, b, counts, keywords(digits))


@pytest.mark.parametrize("digits", [0, 8])
def test_larger_tiles(digits):
    a, b, counts = operands(digits, 600, 1024, 70)
    agree(a, b, counts, keywords(digits, 4, 2))


@pytest.mark.parametrize("digits", [0, 7])
def test_rows_of_b_beyond_those_of_a_are_not_read(digits):
    a, b, counts = operands(digits, 130, 512, 60)
    longer = np.concatenate([b, np.full_like(b, np.nan)], axis=-2)
    ours, same = (run(KERNEL, (a, x, counts), keywords(digits)).outputs for x in (longer, b))
    np.testing.assert_array_equal(ours, same)
    agree(a, longer, counts, keywords(digits))


@pytest.mark.parametrize("digits", [0, 7])
def test_any_legal_order_gives_the_same(digits):
    a, b, counts = operands(digits, 150, 512, 40)
    straight = run(KERNEL, (a, b, counts), keywords(digits)).outputs
    again = run(KERNEL, (a, b, counts), keywords(digits), mode="reorder", seed=1).outputs
    np.testing.assert_array_equal(again, straight)


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("digits", [0, 7])
def test_lint_finds_no_error(target, digits):
    a, b, counts = operands(digits, 150, 512, 64)
    assert not errors((*lint_launch(KERNEL, (a, b, counts), keywords(digits), target=target), *lint_file(FILE)))


def traced(digits, m, k, n, machine="trn2"):
    shapes = [(digits, k, x) if digits else (k, x) for x in (m, n)]
    call = [Specification(shape, BF16 if digits else np.float32) for shape in shapes]
    options = keywords(digits, 4, 2)
    return run(KERNEL, (*call, Specification((1, m))), options, mode="trace", target=machine).trace


@pytest.mark.parametrize("machine", ["trn1", "trn2"])
def test_every_size_fits_and_is_one_short_program(machine):
    for m, k, n in ((16, 512, 16), (513, 1024, 1000), (8192, 8192, 8192)):
        for digits in (0, 7):
            trace = traced(digits, m, k, n, machine)
            assert len(trace.instructions) < 50_000 and len(trace.loops) <= 1
            assert trace.psum_peak_banks <= PSUM_BANKS
            assert trace.sbuf_peak_bytes <= MACHINES[machine].sbuf_bytes_per_partition


def test_modelled_masks_cost_less_than_a_quarter():
    """Nothing screened, the worst case: 89 % of TensorE's peak at 4096^3, VectorE 30 % of the time."""
    n = 4096
    cost = price(traced(7, n, n, n))
    ideal = 2 * n**3 * FLOAT64_PASSES / TRN2.flops_per_s["bfloat16"]
    print(f"modelled: {ideal / cost.device_s:.3f} of peak, {cost.busy_s}")
    assert ideal / cost.device_s >= 0.85
    assert cost.busy_s["vector"] <= 0.3 * cost.device_s
    elements = 7 * 2 * n * n * 2 * (n // 512)  # each operand once for each block of 512 it meets
    assert cost.hbm_bytes <= 1.3 * (elements + 3 * 4 * n * n)  # no mask among them


def test_what_it_refuses():
    a, b, counts = operands(7, 5, 256, 9)
    reference.check(a, b, counts, 3)
    for bad in (
        (a, b[:6], counts, 3), (a, b[:, :128], counts, 3), (a[:, :100], b, counts, 3), (a, b, counts[:, :4], 3),
        (a, b, counts.astype("f8"), 3), (a.astype("f4"), b, counts, 3), (a[:, :0], b[:, :0], counts, 3),
        (a, b, counts, 2),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="expected"):
            reference.check(*bad)
