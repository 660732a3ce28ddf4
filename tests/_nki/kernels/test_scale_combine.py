"""scale_combine.py against its twin: words of either sign and any size, edges, lint."""

import numpy as np
import pytest

from nkisim.lint.linter import lint_file, lint_launch
from nkisim.price.cost import price
from nkisim.run.launch import Specification, run
from nkisim.run.loader import load_kernel
from tests._nki.kernels.budget import kept
from trnpy._engine.tuning import FINE
from trnpy._nki.kernels import source
from trnpy._nki.kernels.products import scale_combine_reference as reference
from trnpy._nki.kernels.products.digits_matmul_reference import to_words

FILE = source("scale_combine")
KERNEL = load_kernel(FILE, "scale_combine")
EPS = 2.0**-24


def operands(words, m, n, seed=0):
    """Words of every number of leading zeros, row exponents that bring them into range."""
    rng = np.random.default_rng([seed, words, m, n])
    x = rng.integers(-(2**31), 2**31, (words, m, n)).astype("i4")
    x[-1] >>= rng.integers(0, 32, (m, n))
    rows = np.ldexp(1.0, -rng.integers(10, 32 * words - 10, (m, 1))).astype("f4")
    return x, rows, np.ldexp(1.0, rng.integers(-10, 10, (1, n))).astype("f4")


@pytest.mark.parametrize("words", [1, 2, 3, 4])
@pytest.mark.parametrize("m, n", [(1, 1), (127, 2047), (130, 30), (128, 2048), (300, 2100)])
def test_every_edge(words, m, n):
    x, rows, columns = operands(words, m, n)
    ours, theirs = run(KERNEL, (x, rows, columns)).outputs, reference.scale_combine(x, rows, columns)
    assert (np.abs(ours - theirs) <= 2 * EPS * np.abs(theirs)).all()


def test_small_negative_integers_do_not_cancel():
    small = np.array([[-1, 0, 1, -5, 2**24 + 2, -(2**24) - 2, 7, -300]])
    x = to_words([small.astype(np.int64)], 3)
    ours = run(KERNEL, (x, np.ones((1, 1), "f4"), np.ones((1, 8), "f4"))).outputs
    np.testing.assert_array_equal(ours, small.astype("f4"))


def test_any_legal_order_gives_the_same():
    given = operands(3, 300, 2100)
    straight = run(KERNEL, given).outputs
    for seed in range(2):
        np.testing.assert_array_equal(run(KERNEL, given, mode="reorder", seed=seed).outputs, straight)


@pytest.mark.parametrize("target", ["trn2", "trn3"])
def test_lint_finds_no_error(target):
    findings = lint_launch(KERNEL, operands(3, 200, 300), target=target)
    assert not [f for f in (*findings, *lint_file(FILE)) if f.severity == "E"]


def test_every_bucket_fits_and_the_program_stays_short():
    for n in FINE[::8]:
        given = Specification((4, n, n), np.int32), Specification((n, 1)), Specification((1, n))
        assert kept(run(KERNEL, given, mode="trace").trace)


def test_modelled_time_on_trn2():
    """Below what the three words would take on the link instead of one float32: 134 MB at 5.3 GB/s."""
    n = 4096
    cost = price(
        run(
            KERNEL, (Specification((3, n, n), np.int32), Specification((n, 1)), Specification((1, n))), mode="trace"
        ).trace
    )
    print(f"modelled: {cost.device_s * 1e3:.1f} ms")
    assert cost.device_s < 8 * n * n / 5.3e9


def test_what_it_refuses():
    x, rows, columns = operands(2, 4, 5)
    for bad in ((x.astype("i8"), rows, columns), (x, rows.T, columns), (np.zeros((5, 4, 5), "i4"), rows, columns)):
        with pytest.raises(ValueError, match="expected"):
            reference.check(*bad)
