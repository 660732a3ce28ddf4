"""float64_matmul.py against its twin: edges, digits, words, exactness at the limits, lint, model."""

import ml_dtypes
import numpy as np
import pytest

from nkisim.hardware import FLOAT64_PASSES, MACHINES, TRN1, TRN2
from nkisim.lint.linter import lint_file, lint_launch
from nkisim.price.cost import price
from nkisim.run.launch import Specification, run
from nkisim.run.loader import load_kernel
from tests._nki.kernels.budget import kept
from trnpy._engine.tuning import FINE
from trnpy._nki.kernels import source
from trnpy._nki.kernels.products import float64_matmul_reference as reference
from trnpy._nki.kernels.shared.parameters import (
    DIGIT_TILES,
    Parameters,
    for_bounds,
    for_digits,
    lower_blocks,
    words_for,
)

KERNEL = load_kernel(source("float64_matmul"), "float64_matmul")
SPLIT, BOUND = (load_kernel(source(name), name) for name in ("digits_split", "abs_bound"))
BF16 = np.dtype(ml_dtypes.bfloat16)


def digits_of(shape, bits=8, seed=0):
    half = 2 ** (bits - 1)
    return np.random.default_rng([seed, *shape]).integers(-half, half, shape).astype(BF16)


def parameters(s, wrap=False, bits=8, m_tiles=1, k_tiles=1):
    """The smallest tiles, so that small operands have several blocks, turns and chunks."""
    return Parameters(m_tiles, 1, k_tiles, s, bits, wrap).of_digits()


def as_integers(words):
    """Two's complement words, lowest first, as Python integers."""
    total = words[-1].astype(object)
    for w in range(len(words) - 2, -1, -1):
        total = total * 2**32 + words[w].view(np.uint32).astype(object)
    return total


SHAPES = [(1, 1, 1), (5, 7, 9), (127, 128, 511), (129, 257, 513), (130, 640, 40), (256, 96, 1030), (30, 769, 30)]


@pytest.mark.parametrize("s, wrap", [(7, False), (8, True), (9, False), (4, True), (2, True), (1, True)])
@pytest.mark.parametrize("m, k, n", SHAPES)
def test_every_edge(m, k, n, s, wrap):
    a, b = digits_of((s, k, m)), digits_of((s, k, n), seed=1)
    keywords = parameters(s, wrap)
    ours = run(KERNEL, (a, b), keywords).outputs
    np.testing.assert_array_equal(ours, reference.float64_matmul(a, b, **keywords))


@pytest.mark.parametrize("s", range(7, 13))
@pytest.mark.parametrize("tiles", DIGIT_TILES)
def test_every_number_of_digits_in_every_tile_shape(s, tiles):
    a, b = digits_of((s, 300, 70)), digits_of((s, 300, 40), seed=1)
    keywords = parameters(s, m_tiles=min(tiles[0], 2), k_tiles=tiles[1])
    np.testing.assert_array_equal(run(KERNEL, (a, b), keywords).outputs, reference.float64_matmul(a, b, **keywords))


@pytest.mark.parametrize("s, wrap", [(7, False), (4, True)])
@pytest.mark.parametrize("batch, m, k, n", [(1, 30, 20, 10), (5, 16, 32, 16), (3, 130, 300, 520), (70, 1, 3, 2)])
def test_stacks_of_matrices(batch, m, k, n, s, wrap):
    a, b = digits_of((s, batch * k, m)), digits_of((s, batch * k, n), seed=1)
    keywords = parameters(s, wrap) | {"batch": batch}
    ours = run(KERNEL, (a, b), keywords).outputs
    np.testing.assert_array_equal(ours, reference.float64_matmul(a, b, **keywords))
    for i in range(batch):
        rows, alone = slice(i * k, (i + 1) * k), parameters(s, wrap)
        one = reference.float64_matmul(a[:, rows], b[:, rows], **alone)
        np.testing.assert_array_equal(ours[:, i * m : (i + 1) * m], one)


@pytest.mark.parametrize("batch, m, k, n", [(1, 30, 20, 10), (5, 16, 32, 16), (3, 130, 300, 520)])
def test_left_matrices_may_lie_side_by_side(batch, m, k, n):
    a, b = digits_of((7, batch * k, m)), digits_of((7, batch * k, n), seed=1)
    wide = np.moveaxis(a.reshape(7, batch, k, m), 1, 2).reshape(7, k, batch * m)
    keywords = parameters(7) | {"batch": batch}
    expected = reference.float64_matmul(a, b, **keywords)
    np.testing.assert_array_equal(reference.float64_matmul(wide, b, beside=True, **keywords), expected)
    np.testing.assert_array_equal(run(KERNEL, (wide, b), {"beside": True, **keywords}).outputs, expected)
    with pytest.raises(ValueError, match="columns of 7 matrices"):
        reference.check(wide[:, :, : 7 * m - 1], b, False, 3, batch=7, beside=True)


@pytest.mark.parametrize("s", [7, 12])
def test_the_largest_stack_fits_and_its_program_is_no_longer(s):
    batch = reference.BLOCKS
    operands = (Specification((s, batch * 32, 32), BF16),) * 2
    trace = run(KERNEL, operands, parameters(s) | {"batch": batch}, mode="trace").trace
    print(f"stack of {batch} products of 32 x 32, {s} digits: {len(trace.instructions)} compiled instructions; "
          f"modelled {price(trace).device_s * 1e3:.1f} ms")  # fmt: skip
    assert kept(trace) and trace.sbuf_peak_bytes <= min(m.sbuf_bytes_per_partition for m in MACHINES.values())


def test_digits_of_seven_bits():
    a, b = digits_of((8, 300, 30), 7), digits_of((8, 300, 40), 7, seed=1)
    keywords = parameters(8, bits=7, k_tiles=4)
    np.testing.assert_array_equal(run(KERNEL, (a, b), keywords).outputs, reference.float64_matmul(a, b, **keywords))


def test_the_twin_is_the_definition():
    a, b = digits_of((3, 9, 2)), digits_of((3, 9, 4), seed=1)
    x, y = a.astype(int).astype(object), b.astype(int).astype(object)
    pairs = [(i, j) for i in range(3) for j in range(3) if i + j < 3]
    whole = sum(x[i].T @ y[j] * 256 ** (2 - i - j) for i, j in pairs)
    np.testing.assert_array_equal(as_integers(reference.float64_matmul(a, b, words=words_for(3))), whole)
    wrapped = sum(x[i].T @ y[j] * 256 ** (i + j) for i, j in pairs)
    low = reference.float64_matmul(a, b, wrap=True, words=1)[0]
    np.testing.assert_array_equal(low.view(np.uint32).astype(object), wrapped % 2**32)


@pytest.mark.parametrize("value", [-128, -127, 127])
@pytest.mark.parametrize("k_tiles", [1, 2, 4])
def test_the_largest_digits_sum_exactly(value, k_tiles):
    """Odd products: one more in a bank than it holds, and a sum would be rounded."""
    a = np.full((8, 1024, 3), value, BF16)
    keywords = parameters(8, wrap=True, k_tiles=k_tiles)
    np.testing.assert_array_equal(run(KERNEL, (a, a), keywords).outputs, reference.float64_matmul(a, a, **keywords))


def test_the_longest_k_stays_inside_int32():
    k = reference.longest_k(8)
    a = np.full((8, k, 1), -128, BF16)
    keywords = parameters(8, wrap=True, k_tiles=4)
    np.testing.assert_array_equal(run(KERNEL, (a, a), keywords).outputs, reference.float64_matmul(a, a, **keywords))
    with pytest.raises(ValueError, match=f"K = {k + 1}: at most {k} rows"):
        reference.check(np.zeros((8, k + 1, 1), BF16), np.zeros((8, k + 1, 1), BF16), True, 2)


def test_relaxed_groups_lose_less_than_their_bits():
    """All products 127^2 in banks of four times the exact length: the two lowest groups round, no other does."""
    k, s = 1024, 7
    a = np.full((s, k, 2), 127, BF16)
    keywords = parameters(s, k_tiles=4)
    difference = as_integers(run(KERNEL, (a, a), keywords).outputs) - as_integers(
        reference.float64_matmul(a, a, **keywords)
    )
    additions = k // 128 * np.array([s, s - 1])
    assert np.abs(difference).max() <= 2 * (additions @ [1, 256])  # half of 4, the unit of float32 below 2^26


@pytest.mark.parametrize("halved", [False, True])
@pytest.mark.parametrize("n, k, tiles", [(100, 40, 1), (300, 100, 1), (1100, 50, 2), (640, 64, 4), (800, 130, 3)])
def test_one_triangle_of_a_symmetric_product(n, k, tiles, halved):
    """V below the diagonal; on it V, or 16 of the 28 products, whose sum with their transpose is 2 V."""
    a = digits_of((7, k, n))
    keywords = {**parameters(7, m_tiles=tiles), "halved": halved}
    ours = run(KERNEL, (a,), keywords).outputs
    np.testing.assert_array_equal(ours, reference.float64_matmul(a, **keywords))
    full = as_integers(reference.float64_matmul(a, a, **parameters(7)))
    blocks = lower_blocks(n, 128 * tiles, halved)
    twice = np.full((n, n), None)
    for row, rows, column, columns, start in blocks:
        block = as_integers(ours[:, start : start + rows * columns]).reshape(rows, columns)
        half = halved and row < column + columns
        twice[row : row + rows, column : column + columns] = block if half else 2 * block
    for left, right in {(column, column + q) for row, _, column, q, _ in blocks if halved and row < column + q}:
        twice[left:right, left:right] += twice[left:right, left:right].T.copy()
    np.testing.assert_array_equal(twice[np.tril_indices(n)], 2 * full[np.tril_indices(n)])


def test_a_symmetric_product_takes_16_of_28_products_on_the_diagonal():
    a = Specification((7, 512, 512), BF16)
    products = [
        sum(x.opcode == "nc_matmul" for x in run(KERNEL, (a,), {"halved": halved}, mode="trace").trace.instructions)
        for halved in (False, True)
    ]
    assert products == [16 * 28, 16 * 16]  # tiles times products


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("lower, halved", [(False, False), (True, False), (True, True)])
def test_any_legal_order_gives_the_same(seed, lower, halved):
    operands = (digits_of((7, 700, 200)),) if lower else (digits_of((7, 700, 200)), digits_of((7, 700, 530), seed=1))
    keywords = {**parameters(7), "halved": halved}
    straight = run(KERNEL, operands, keywords).outputs
    np.testing.assert_array_equal(run(KERNEL, operands, keywords, mode="reorder", seed=seed).outputs, straight)


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("wrap", [False, True])
def test_lint_finds_no_error(target, wrap):
    a, b = digits_of((7, 700, 200)), digits_of((7, 700, 530), seed=1)
    findings = [
        *lint_launch(KERNEL, (a, b), parameters(7, wrap), target=target),
        *lint_launch(KERNEL, (a,), {**parameters(7), "halved": True}, target=target),
        *lint_file(source("float64_matmul")),
    ]
    assert not [f for f in findings if f.severity == "E"]


@pytest.mark.parametrize("machine", ["trn1", "trn2"])
@pytest.mark.parametrize("s", range(7, 13))
def test_every_bucket_fits_and_compiles_to_few_instructions(machine, s):
    for n in FINE[::8] if s in (7, 12) else FINE[-1:]:  # the fewest and the most digits in each size
        a = Specification((s, n, n), BF16)
        keywords = for_digits(s, MACHINES[machine]).of_digits()
        for operands, halved in (((a, a), False), ((a,), True)):
            settings = {**keywords, "halved": halved}
            trace = run(KERNEL, operands, settings, mode="trace", target=machine).trace
            assert kept(trace)


@pytest.mark.parametrize("s", [*range(1, 13), 15])
def test_transfers_write_64_kib_of_a_partition_at_most_on_trn1(s):
    """From 96 KiB on they take four times as long (docs/hardware.md#memory)."""
    a, keywords = Specification((s, 640, 640), BF16), for_digits(s, TRN1).of_digits()
    trace = run(KERNEL, (a, a), keywords, mode="trace", target="trn1").trace
    written = {w.region.storage for x in trace.instructions if x.engine == "dma" for w in x.writes}
    found = [x.bytes_per_partition for x in trace.allocations if x.buffer == "sbuf" and x.storage in written]
    assert sum(found) <= 64 * 1024


def modelled(kernel, operands, keywords):
    return price(run(kernel, operands, keywords, mode="trace").trace)


def test_modelled_float64_on_trn2():
    """86 % of bf16's peak / 28 at 4096^3, splits, certificate and carries included; A A^T in 1 / 1.6 of the time."""
    n, s = 4096, 7
    digits, words = Specification((s, n, n), BF16), Specification((n, 8 * n), np.uint8)
    magnitudes = Specification((n, n), BF16)
    keywords = for_digits(s, TRN2).of_digits()
    product = modelled(KERNEL, (digits, digits), keywords)
    syrk = modelled(KERNEL, (digits,), {**keywords, "halved": True})
    split = {"width": 8, "places": (6, 5, 4, 3, 2, 1, 0)}
    before = sum(modelled(SPLIT, (words,), {**split, "turned": turned}).device_s for turned in (True, False))
    bound = modelled(BOUND, (magnitudes, magnitudes), for_bounds().of_numbers()).device_s
    ideal = 2 * n**3 * FLOAT64_PASSES / TRN2.flops_per_s["bfloat16"]
    print(f"modelled: {ideal / product.device_s:.3f} of peak, {ideal / (product.device_s + before + bound):.3f} with")
    print(f"digits and certificate; A A^T {product.device_s / syrk.device_s:.2f} times faster than A B")
    assert ideal / product.device_s >= 0.94
    assert ideal / (product.device_s + before + bound) >= 0.86
    assert product.device_s / syrk.device_s >= 1.6
    least = 2 * s * n * n * 2 * (n // 512) + 3 * 4 * n * n  # each operand once for each block of 512 it meets
    assert product.hbm_bytes <= 1.3 * least


def test_what_it_refuses():
    a = digits_of((7, 8, 4))
    for bad in ((a, a[:6]), (a, a[:, :5]), (a[:, :0], a[:, :0]), (a.astype("f4"), a.astype("f4"))):
        with pytest.raises(ValueError, match="expected"):
            reference.check(*bad, False, 3)
    with pytest.raises(ValueError, match="2 words for 7 digits: expected 3"):
        reference.check(a, a, False, 2)


def test_digits_that_fit_no_tile_shape():
    with pytest.raises(ValueError, match="60 digits: no tile shape fits"):
        for_digits(60, TRN2)
