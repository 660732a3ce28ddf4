"""words_sum.py against its twin: words and bytes at different places, exactness, lint, budget."""

import numpy as np
import pytest

from nkisim.hardware import MACHINES
from nkisim.lint.linter import lint_file, lint_launch
from nkisim.run.launch import Specification, run
from nkisim.run.loader import load_kernel
from tests._nki.kernels.budget import kept
from tests._nki.kernels.test_words_matmul import product
from trnpy._nki.kernels import source
from trnpy._nki.kernels.products import words_sum_reference as reference
from trnpy._nki.kernels.shared.parameters import words_for

FILE = source("words_sum")
KERNEL = load_kernel(FILE, "words_sum")
NINE, AHEAD, BEHIND = tuple(range(9)), (-1, *range(9)), (*range(9), -1)


def value(words, places):
    """The integers of words that have half a digit at each of their lowest places."""
    total = sum(words[w].view(np.uint32).astype(object) * 2 ** (32 * w) for w in range(len(words)))
    return total - sum(128 * 256**p for p in range(places))


def compare(x, y, factors, places):
    options = {"factors": factors, "places": places, "words": words_for(len(places[0]))}
    ours = run(KERNEL, (x, y), options).outputs
    words, magnitudes, extremes = reference.words_sum(x, y, **options)
    np.testing.assert_array_equal(ours[0], words)
    np.testing.assert_array_equal(ours[1].astype("f4"), magnitudes.astype("f4"))
    assert (ours[2][:, 0].max(), ours[2][:, 1].min()) == (extremes[0, 0], extremes[0, 1])
    return words


@pytest.mark.parametrize("m, n", [(1, 1), (130, 600), (257, 40)])
@pytest.mark.parametrize("factors", [(1, 1), (3, -80), (-255 * 128, 1)])
def test_sums_of_words_are_exact(m, n, factors):
    x, y = product(m, n, 40), product(m, n, 41)
    words = compare(x, y, factors, (AHEAD, BEHIND))
    exact = factors[0] * 256 * value(x, 9) + factors[1] * value(y, 9)
    np.testing.assert_array_equal(value(words, 12), exact)


def test_sums_of_words_and_bytes():
    x, y = product(130, 70), np.random.default_rng(0).integers(0, 256, (130, 70 * 16), np.uint8)
    compare(x, y, (1, -1), (AHEAD, (9, 10, 11, 0, 1, 2, 3, 4, 5, 6)))
    compare(y, x, (5, 2), ((9, 10, 11, 0, 1, 2, 3, 4, 5, 6), AHEAD))


def test_any_legal_order_gives_the_same():
    x, options = product(200, 200), {"factors": (3, -1), "places": (AHEAD, BEHIND), "words": 4}
    options["words"] = words_for(10)
    straight = run(KERNEL, (x, x), options).outputs
    for ours, same in zip(run(KERNEL, (x, x), options, mode="reorder", seed=1).outputs, straight, strict=True):
        np.testing.assert_array_equal(ours.astype("f8"), same.astype("f8"))


@pytest.mark.parametrize("target", sorted(MACHINES))
def test_lint_finds_no_error(target):
    x, options = np.zeros((3, 256, 640), np.int32), {"factors": (3, -1), "places": (NINE, NINE), "words": 3}
    findings = lint_launch(KERNEL, (x, x), options, target=target)
    assert not [f for f in (*findings, *lint_file(FILE)) if f.severity == "E"]


def test_the_largest_sum_compiles_within_its_budget():
    x, y = Specification((4, 8192, 8192), np.dtype(np.int32)), Specification((8192, 16 * 8192), np.dtype(np.uint8))
    options = {"factors": (3, -1), "places": (tuple(range(13)), tuple(range(13))), "words": 4}
    assert kept(run(KERNEL, (x, y), options, mode="trace").trace)


def test_what_it_refuses():
    x = product(4, 4)
    for bad, why in (
        ((x, x, (1, 1), (NINE, AHEAD), 3), "digits"), ((x, x[:, :3], (1, 1), (NINE, NINE), 3), "one matrix"),
        ((x, x, (1, 2**15), (NINE, NINE), 3), "integers below"),
        ((x, x.astype("f4"), (1, 1), (NINE, NINE), 3), "int32"),
        ((x, x, (1, 1), (NINE, (*range(8), 12)), 3), "places"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=why):
            reference.check(*bad)
