"""matmul.py against its twin: sizes around every tile edge, layouts, dtypes, limits, lint, model."""

import ml_dtypes
import numpy as np
import pytest

from nkisim.hardware import TRN1, TRN2, TRN3
from nkisim.lint.linter import lint_file, lint_launch
from nkisim.price.cost import price
from nkisim.run.launch import Specification, run
from nkisim.run.loader import load_kernel
from tests._nki.kernels.budget import kept
from trnpy._nki.kernels import source
from trnpy._nki.kernels.products import matmul_reference
from trnpy._nki.kernels.shared.parameters import for_numbers, for_unturned

FILE = source("matmul")
KERNEL = load_kernel(FILE, "matmul")
BF16 = np.dtype(ml_dtypes.bfloat16)
SMALL_TILES = {"m_tiles": 2, "n_tiles": 1, "k_tiles": 2}  # so that small operands have several blocks and chunks


def operands(m, k, n, dtype, a_rows, b_rows, seed=0):
    rng = np.random.default_rng([seed, m, k, n])
    a, b = rng.standard_normal((m, k)).astype(dtype), rng.standard_normal((k, n)).astype(dtype)
    return (a if a_rows else a.T.copy()), (b if b_rows else b.T.copy())


def agree(ours, theirs, k):
    """Within k eps of float32, of the sums of magnitudes: products are exact, sums are not."""
    assert (ours.dtype, ours.shape) == (np.float32, theirs.shape)
    assert np.abs(ours - theirs).max() <= 2 * k * 2.0**-23 * max(np.abs(theirs).max(), np.sqrt(k))


SHAPES = [(1, 1, 1), (5, 7, 9), (127, 128, 511), (128, 127, 512), (129, 257, 513), (256, 512, 512), (300, 1300, 700)]


@pytest.mark.parametrize("dtype", ["f4", BF16, "f2"], ids=str)
@pytest.mark.parametrize("a_rows", [True, False])
@pytest.mark.parametrize("b_rows", [True, False])
@pytest.mark.parametrize("m, k, n", SHAPES)
def test_every_edge_and_layout(m, k, n, dtype, a_rows, b_rows):
    a, b = operands(m, k, n, dtype, a_rows, b_rows)
    ours = run(KERNEL, (a, b), {"a_rows": a_rows, "b_rows": b_rows, **SMALL_TILES}).outputs
    agree(ours, matmul_reference.matmul(a, b, a_rows=a_rows, b_rows=b_rows), k)


def test_alpha_and_beta():
    a, b = operands(200, 300, 600, "f4", True, True)
    c0 = np.random.default_rng(1).standard_normal((200, 600)).astype("f4")
    alpha, beta = np.array([[1.5]], "f4"), np.array([[-0.25]], "f4")
    ours = run(KERNEL, (a, b, alpha, c0, beta), SMALL_TILES).outputs
    agree(ours, matmul_reference.matmul(a, b, alpha, c0, beta), 300)


@pytest.mark.parametrize("seed", range(3))
def test_any_legal_order_gives_the_same(seed):
    a, b = operands(260, 600, 530, "f4", True, True)
    straight = run(KERNEL, (a, b), SMALL_TILES).outputs
    np.testing.assert_array_equal(run(KERNEL, (a, b), SMALL_TILES, mode="reorder", seed=seed).outputs, straight)


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("a_rows", [True, False])
def test_lint_finds_no_error(target, a_rows):
    a, b = operands(260, 600, 530, "f4", a_rows, True)
    findings = lint_launch(KERNEL, (a, b), {"a_rows": a_rows, **SMALL_TILES}, target=target)
    assert not [f for f in (*findings, *lint_file(FILE)) if f.severity == "E"]


@pytest.mark.parametrize("n", [512, 4096])
def test_up_to_4096_there_is_no_device_loop(n):
    s = Specification((n, n), BF16)
    trace = run(KERNEL, (s, s), {}, mode="trace").trace
    assert kept(trace) and not trace.loops


@pytest.mark.parametrize("dtype", ["f4", BF16], ids=str)
@pytest.mark.parametrize("b_rows", [True, False])
@pytest.mark.parametrize("n", [1024, 4096])
def test_all_operands_fit_on_the_chip(n, dtype, b_rows):
    s, c0, scale = Specification((n, n), np.dtype(dtype)), Specification((n, n)), Specification((1, 1))
    assert kept(run(KERNEL, (s, s, scale, c0, scale), {"b_rows": b_rows}, mode="trace").trace)


@pytest.mark.parametrize("dtype, least", [("f4", 0.98), (BF16, 0.95)], ids=["float32", "bfloat16"])
def test_modelled_utilisation_on_trn2(dtype, least):
    """The share of TensorEngine's peak at 4096^3 when A arrives with K on its rows."""
    s = Specification((4096, 4096), np.dtype(dtype))
    cost = price(run(KERNEL, (s, s), {"a_rows": False}, mode="trace").trace)
    assert cost.tensor_utilisation >= least
    assert cost.hbm_bytes <= 1.3 * least_bytes(s.dtype.itemsize)


def least_bytes(itemsize):
    """A and C once, and B for each row of blocks of which all of K fits into 64 KiB of a partition."""
    rows = 64 * 1024 * 128 // (4096 * itemsize)
    return (4096**2 + 4096**3 / min(rows, 1024)) * itemsize + 4 * 4096**2


@pytest.mark.parametrize("machine", [TRN1, TRN2, TRN3], ids=lambda m: m.name)
@pytest.mark.parametrize("dtype", ["f4", BF16], ids=str)
@pytest.mark.parametrize("a_rows, b_rows", [(True, True), (True, False), (False, False)])
def test_the_tiles_of_operands_to_turn_fit_every_machine(machine, dtype, a_rows, b_rows):
    s, scale = Specification((4096, 4096), np.dtype(dtype)), Specification((1, 1))
    keywords = {"a_rows": a_rows, "b_rows": b_rows, **for_numbers(np.dtype(dtype).itemsize).of_numbers()}
    trace = run(KERNEL, (s, s, scale), keywords, mode="trace", target=machine.name).trace
    assert kept(trace)


@pytest.mark.parametrize("machine", [TRN1, TRN2], ids=lambda m: m.name)
@pytest.mark.parametrize("dtype", ["f4", BF16], ids=str)
def test_transfers_write_what_is_counted_and_on_trn1_less_than_what_slows_them_down(machine, dtype):
    """If neither operand is turned: a panel of A and two chunks of B."""
    s, best = Specification((2048, 2048), np.dtype(dtype)), for_unturned(np.dtype(dtype).itemsize, machine)
    trace = run(KERNEL, (s, s), {"a_rows": False, **best.of_numbers()}, mode="trace", target=machine.name).trace
    moved = {o.region.storage for x in trace.instructions if x.engine == "dma" for o in x.writes}
    written = sum(a.bytes_per_partition for a in trace.allocations if a.buffer == "sbuf" and a.storage in moved)
    held = 2048 // 128 * 1024 * s.dtype.itemsize  # all of K, of 1024 rows
    assert written == best.loaded_bytes(s.dtype.itemsize) - 64 * 1024 + held
    limit = machine.timing.dma_written_bytes
    assert best == for_numbers(s.dtype.itemsize) if not limit else best.loaded_bytes(s.dtype.itemsize) < limit


@pytest.mark.parametrize("dtype, least", [("f4", 0.97), (BF16, 0.92)], ids=["float32", "bfloat16"])
def test_modelled_utilisation_of_rows_as_numpy_has_them(dtype, least):
    """A as C-ordered arrays are: TensorE turns it, once."""
    s = Specification((4096, 4096), np.dtype(dtype))
    cost = price(run(KERNEL, (s, s), {}, mode="trace").trace)
    assert cost.tensor_utilisation >= least
    assert cost.hbm_bytes <= 1.3 * least_bytes(s.dtype.itemsize)


def test_what_it_refuses():
    a = np.ones((4, 4), "f4")
    for bad in ((a, np.ones((5, 4), "f4")), (a, a.astype("f8")), (a.astype("i4"), a.astype("i4")), (a[:0], a)):
        with pytest.raises(ValueError, match="expected"):
            matmul_reference.check(*bad, True, True)
