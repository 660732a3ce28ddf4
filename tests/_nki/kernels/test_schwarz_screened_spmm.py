"""schwarz_screened_spmm.py against its twin: edges, counts, turns read on the device, lint, order, model."""

import ml_dtypes
import numpy as np
import pytest

from trnpy._nki.hardware import FLOAT64_PASSES, MACHINES, PSUM_BANKS, TRN2
from trnpy._nki.kernels import source
from trnpy._nki.kernels.chem import schwarz_screened_spmm_reference as reference
from trnpy._nki.kernels.products.digits_matmul_reference import words_for
from trnpy._nki.simulator.lint.linter import errors, lint_file, lint_launch
from trnpy._nki.simulator.price.cost import price
from trnpy._nki.simulator.run.launch import Specification, run
from trnpy._nki.simulator.run.loader import load_kernel

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


def agree(a, b, counts, turns, options):
    ours = run(KERNEL, (a, b, counts) if turns is None else (a, b, counts, turns), options).outputs
    theirs = reference.schwarz_screened_spmm(a, b, counts, turns, options["words"])
    if a.ndim == 3:
        np.testing.assert_array_equal(ours, theirs)
        return
    size = np.abs(a).astype("f8").T @ np.abs(b)
    assert (np.abs(ours - theirs) <= 2 * len(a) * 2.0**-24 * size).all()


SHAPES = [(1, 256, 1), (5, 256, 9), (127, 512, 40), (150, 512, 600), (300, 768, 513)]


@pytest.mark.parametrize("digits", [0, 7])
@pytest.mark.parametrize("m, k, n", SHAPES)
@pytest.mark.parametrize("seed", [0, 1])
def test_every_edge_with_turns_and_without(m, k, n, digits, seed):
    a, b, counts = operands(digits, m, k, n, seed)
    options = keywords(digits)
    agree(a, b, counts, None, options)
    agree(a, b, counts, reference.turns_of(counts, n, 1, 1), options)


@pytest.mark.parametrize("digits", [0, 8])
def test_larger_tiles(digits):
    a, b, counts = operands(digits, 600, 1024, 70)
    agree(a, b, counts, reference.turns_of(counts, 70, 4, 2), keywords(digits, 4, 2))


def test_turns_end_a_block_where_its_rows_end():
    counts = np.array([[700.0, 3.0] + [0.0] * 126 + [256.0, 257.0]], np.float32)
    np.testing.assert_array_equal(reference.turns_of(counts, 600, 1, 1), [[3, 3, 2, 2]])
    a, b, _ = operands(0, 130, 768, 600)
    a[257:, 128:], a[700:, 0] = np.inf, np.inf  # what no row keeps is not even looked at in later turns
    a[256:, 128], a[3:512, 1] = 0.0, 0.0
    assert np.isinf(a[:, 129]).any()
    a[257:512, 129], a[700:768, 0] = 0.0, 0.0
    ours = run(KERNEL, (a, b, counts, reference.turns_of(counts, 600, 1, 1)), keywords(0)).outputs
    assert np.isfinite(ours[128:]).all()


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
    call = (a, b, counts, reference.turns_of(counts, 64, 1, 1))
    assert not errors((*lint_launch(KERNEL, call, keywords(digits), target=target), *lint_file(FILE)))


def traced(digits, m, k, n, machine="trn2"):
    shapes = [(digits, k, x) if digits else (k, x) for x in (m, n)]
    call = [Specification(shape, BF16 if digits else np.float32) for shape in shapes]
    options = keywords(digits, 4, 2)
    return run(KERNEL, (*call, Specification((1, m))), options, mode="trace", target=machine).trace


@pytest.mark.parametrize("machine", ["trn1", "trn2"])
def test_every_size_fits_and_compiles_to_few_instructions(machine):
    for m, k, n in ((16, 512, 16), (513, 1024, 1000), (8192, 8192, 8192)):
        for digits in (0, 7):
            trace = traced(digits, m, k, n, machine)
            assert len(trace.instructions) < 20_000 and trace.psum_peak_banks <= PSUM_BANKS
            assert trace.sbuf_peak_bytes <= MACHINES[machine].sbuf_bytes_per_partition


def test_modelled_masks_cost_less_than_a_quarter():
    """Nothing screened, the worst case: 63 % of TensorE's peak at 4096^3, VectorE a quarter of the time."""
    n = 4096
    cost = price(traced(7, n, n, n))
    ideal = 2 * n**3 * FLOAT64_PASSES / TRN2.flops_per_s["bfloat16"]
    print(f"modelled: {ideal / cost.device_s:.3f} of peak, {cost.busy_s}")
    assert ideal / cost.device_s >= 0.63
    assert cost.busy_s["vector"] <= 0.3 * cost.device_s
    elements = 7 * 2 * n * n * 2 * (n // 512)  # each operand once for each block of 512 it meets
    assert cost.hbm_bytes <= 1.3 * (elements + 3 * 4 * n * n)  # no mask among them


def test_what_it_refuses():
    a, b, counts = operands(7, 5, 256, 9)
    reference.check(a, b, counts, 3, 1)
    for bad in (
        (a, b[:6], counts, 3, 1), (a, b, counts, 3, 2), (a, b, counts[:, :4], 3, 1), (a, b, counts.astype("f8"), 3, 1),
        (a.astype("f4"), b, counts, 3, 1), (a[:, :0], b[:, :0], counts, 3, 1), (a, b, counts, 2, 1),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="expected"):
            reference.check(*bad)
