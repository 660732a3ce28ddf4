"""words_matmul.py against its twin: words and digits in every layout, what it measures, lint, budget."""

import ml_dtypes
import numpy as np
import pytest

from nkisim.hardware import EFFICIENCY, MACHINES
from nkisim.lint.linter import lint_file, lint_launch
from nkisim.price.cost import price
from nkisim.run.launch import Specification, run
from nkisim.run.loader import load_kernel
from tests._nki.kernels.budget import kept
from trnpy._engine import cost_model
from trnpy._nki.kernels import source
from trnpy._nki.kernels.products import words_matmul_reference as reference
from trnpy._nki.kernels.shared.parameters import for_digits, words_for

FILE = source("words_matmul")
KERNEL = load_kernel(FILE, "words_matmul")
BF16, INT32 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.int32)
TILES = {"m_tiles": 1, "k_tiles": 1}


def digits_of(*shape):
    return np.random.default_rng(shape).integers(-128, 128, shape).astype(BF16)


def magnitudes_of(*shape):
    """Some are zero, so that sums are, too."""
    x = np.abs(np.random.default_rng([*shape, 1]).standard_normal(shape))
    x[: shape[0] // 2] = 0
    return x.astype(BF16)


def product(m, n, k=40):
    """The words of a product of seven digits, (3, m, n)."""
    return reference.words_matmul(digits_of(7, k, m), digits_of(7, k, n), magnitudes_of(m, k), magnitudes_of(k, n))[0]


def compare(a, b, extents, rows=(True, True), **options):
    """``extents``: m, k, n of the product."""
    m, k, n = extents
    x, y = (magnitudes_of(*(size if kept else size[::-1])) for size, kept in zip(((m, k), (k, n)), rows, strict=True))
    options = {"words": words_for(options["digits"]), "rows": rows, **options}
    ours = run(KERNEL, (a, b, x, y), {**options, **TILES}).outputs
    words, magnitudes, extremes = reference.words_matmul(a, b, x, y, **options)
    np.testing.assert_array_equal(ours[0], words)
    np.testing.assert_array_equal(ours[1].astype("f4"), magnitudes.astype("f4"))
    assert (ours[2][:, 0].max(), ours[2][:, 1].min()) == (extremes[0, 0], extremes[0, 1])
    assert ours[2][:, 2].min() == pytest.approx(extremes[0, 2], rel=k * 2.0**-24)


@pytest.mark.parametrize("rows", [(True, True), (True, False), (False, True), (False, False)])
@pytest.mark.parametrize("m, k, n", [(1, 1, 1), (127, 129, 511), (130, 140, 600)])
def test_products_of_digits(m, k, n, rows):
    compare(digits_of(7, k, m), digits_of(7, k, n), (m, k, n), rows, digits=7)


@pytest.mark.parametrize("digits, top", [(7, 9), (8, 8), (10, 9), (11, 9)])
@pytest.mark.parametrize("turned", [(False, False), (True, False), (False, True), (True, True)])
def test_products_of_words(turned, digits, top):
    """Ten digits of an integer of nine: those below its lowest are zero."""
    (m, k), n = (130, 150), 140
    a, b = product(*((k, m) if turned[0] else (m, k))), product(*((n, k) if turned[1] else (k, n)))
    compare(a, b, (m, k, n), tops=(top, top), turned=turned, digits=digits)


@pytest.mark.parametrize("turned", [False, True])
def test_a_product_of_words_and_digits(turned):
    a, b = product(*((150, 130) if turned else (130, 150))), digits_of(8, 150, 140)
    compare(a, b, (130, 150, 140), tops=(9, 0), turned=(turned, False), digits=8)
    b, c = product(140, 150) if turned else product(150, 140), digits_of(8, 150, 140)
    compare(c, b, (140, 150, 140), tops=(0, 9), turned=(False, turned), digits=8)


def test_words_are_the_integers_and_their_extremes():
    a, b = digits_of(7, 30, 20), digits_of(7, 30, 10)
    a[:, :, 3] = 0
    x, y = magnitudes_of(20, 30), magnitudes_of(30, 10)
    words, magnitudes, extremes = reference.words_matmul(a, b, x, y)
    exact = sum(
        a[i].astype(int).astype(object).T @ b[d - i].astype(int).astype(object) * 256 ** (6 - d)
        for d in range(7) for i in range(d + 1)
    )  # fmt: skip
    found = sum(words[w].view(np.uint32).astype(object) * 2 ** (32 * w) for w in range(3))
    np.testing.assert_array_equal(found - sum(128 * 256**p for p in range(9)), exact)
    assert not magnitudes[3].astype("f4").any() and extremes[0, 1] > 0
    sums = x.astype("f8") @ y.astype("f8")
    np.testing.assert_allclose(extremes[:, 2], sums[sums > 0].min(), rtol=30 * 2.0**-24)
    np.testing.assert_allclose(reference.integers(words, 7), exact.astype("f8"), rtol=2.0**-22)


def test_any_legal_order_gives_the_same():
    a, x = product(200, 200), magnitudes_of(200, 200)
    options = {"tops": (9, 9), "digits": 8, "words": 3, **TILES}
    straight = run(KERNEL, (a, a, x, x), options).outputs
    for ours, same in zip(run(KERNEL, (a, a, x, x), options, mode="reorder", seed=1).outputs, straight, strict=True):
        np.testing.assert_array_equal(ours.astype("f8"), same.astype("f8"))


@pytest.mark.parametrize("target", sorted(MACHINES))
def test_lint_finds_no_error(target):
    a = np.zeros((3, 300, 300), np.int32)
    options = {"tops": (9, 9), "digits": 8, "words": 3, **TILES}
    findings = lint_launch(KERNEL, (a, a, *(magnitudes_of(300, 300),) * 2), options, target=target)
    assert not [f for f in (*findings, *lint_file(FILE)) if f.severity == "E"]


@pytest.mark.parametrize("machine", ["trn1", "trn2"])
@pytest.mark.parametrize("digits", [7, 9, 12])
def test_every_number_of_digits_fits(digits, machine):
    best = for_digits(digits, MACHINES[machine])
    a, x = Specification((best.words, 640, 640), INT32), Specification((640, 640), BF16)
    options = {"tops": (9, 9), "digits": digits, "words": best.words, "m_tiles": best.m_tiles, "k_tiles": best.k_tiles}
    assert kept(run(KERNEL, (a, a, x, x), options, target=machine, mode="trace").trace)


@pytest.mark.parametrize("m, k, n", [(32, 1440, 1440), (128, 1440, 1440), (224, 1440, 2048)])
def test_products_of_few_rows_take_as_long_as_dry_runs_say(m, k, n):
    """TensorE takes as long for a tile with few rows as for a whole one."""
    best = for_digits(7, MACHINES["trn2"])
    operands = tuple(Specification(shape, BF16) for shape in ((7, k, m), (7, k, n), (m, k), (k, n)))
    options = {"digits": 7, "words": best.words, "m_tiles": best.m_tiles, "k_tiles": best.k_tiles}
    priced_s = price(run(KERNEL, operands, options, target="trn2", mode="trace").trace).device_s
    form, flops = cost_model.KERNELS["words_matmul"](*operands, **options)
    assert 0.5 < flops / (MACHINES["trn2"].flops_per_s[form] * EFFICIENCY) / priced_s < 1.5


def test_what_it_refuses():
    a, b, x = product(4, 4), digits_of(7, 4, 4), magnitudes_of(4, 4)
    rest = (x, x, (9, 0), (False, False), (True, True), 7, 3)
    for bad, why in (
        ((a, b[:, :3], *rest), "one K"), ((a, b, x, x, (9, 0), (False, True), *rest[4:]), "with K"),
        ((a, b, x, x, (0, 0), *rest[3:]), "bytes"), ((a, a, x, x, (9, 9), *rest[3:5], 13, 5), "digits"),
        ((a.astype("f4"), b, *rest), "expected words"), ((a, b, x[:3], *rest[1:]), "magnitudes"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=why):
            reference.check(*bad)
