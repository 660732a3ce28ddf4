"""float64_digits.py against its twin and the host's digits: scales, special values, edges, lint, budget, model."""

import numpy as np
import pytest

from nkisim.hardware import MACHINES
from nkisim.lint.linter import lint_file, lint_launch
from nkisim.price.cost import price
from nkisim.run.launch import Specification, run
from nkisim.run.loader import load_kernel
from tests._nki.kernels.budget import kept
from trnpy._engine import digits as _digits
from trnpy._engine.cost_model import NUMBER_S
from trnpy._engine.float64_products import shift_of
from trnpy._nki.kernels import source
from trnpy._nki.kernels.products import float64_digits_reference as reference

FILE = source("float64_digits")
KERNEL = load_kernel(FILE, "float64_digits")
FAMILIES = {
    "normal": lambda g, shape: g.standard_normal(shape),
    "of 60 decades": lambda g, shape: g.standard_normal(shape) * 10.0 ** g.integers(-30, 30, shape),
    "rows of 400 decades": lambda g, shape: g.standard_normal(shape) * 10.0 ** g.integers(-200, 200, (shape[0], 1)),
    "zeros": lambda g, shape: g.standard_normal(shape) * (g.random(shape) < 0.5) * (np.arange(shape[1]) % 3 > 0),
    "ties": lambda g, shape: g.integers(-5, 6, shape) / 2.0 ** g.integers(0, 110, shape),
    "at the limit": lambda g, shape: 127.0 + g.integers(-3, 4, shape) * 2.0 ** -g.integers(1, 40, shape),
    "powers of two": lambda g, shape: np.ldexp(g.choice([-1.0, 1.0], shape), g.integers(-300, 300, shape)),
    "the largest": lambda g, shape: np.finfo("f8").max * g.uniform(-1, 1, shape),
}  # fmt: skip


def family(kind, shape):
    return FAMILIES[kind](np.random.default_rng([len(kind), *shape]), shape)


def words_of(x):
    return np.ascontiguousarray(x).view(np.int32)


def compare(x, by_rows, digits, top=(), batch=1, **how):
    operands, options = (words_of(x), *top), {"by_rows": by_rows, "digits": digits, "batch": batch}
    ours = run(KERNEL, operands, options, **how).outputs
    for mine, twin in zip(ours, reference.float64_digits(*operands, **options), strict=True):
        assert mine.shape == twin.shape and mine.dtype == twin.dtype
        np.testing.assert_array_equal(mine.view(f"u{mine.itemsize}"), twin.view(f"u{mine.itemsize}"))


def planes(x, by_rows, digits):
    """The twin's digits, (digits, rows, columns)."""
    found = reference.float64_digits(words_of(x), by_rows=by_rows, digits=digits)[0].astype("f4").astype(np.int8)
    return found.transpose(0, 2, 1) if by_rows else found


@pytest.mark.parametrize("by_rows", [False, True])
@pytest.mark.parametrize("rows, columns", [(1, 1), (127, 513), (130, 600), (257, 40)])
def test_every_edge(rows, columns, by_rows):
    compare(family("of 60 decades", (rows, columns)), by_rows, 7)


@pytest.mark.parametrize("by_rows", [False, True])
@pytest.mark.parametrize("kind", FAMILIES)
def test_every_family(kind, by_rows):
    for digits in (7, 9):
        compare(family(kind, (40, 60)), by_rows, digits)


@pytest.mark.parametrize("digits", range(reference.FEWEST, reference.DIGITS + 1))
def test_every_number_of_digits(digits):
    for by_rows in (False, True):
        compare(family("of 60 decades", (40, 60)), by_rows, digits)


@pytest.mark.parametrize("digits", range(reference.FEWEST, reference.DIGITS + 1))
@pytest.mark.parametrize("kind", FAMILIES)
def test_the_digits_are_those_of_the_host(kind, digits):
    x = family(kind, (60, 80))
    for by_rows in (False, True):
        np.testing.assert_array_equal(planes(x, by_rows, digits), _digits.split(x, digits, int(by_rows)).planes())


def top_of(x):
    """The exponent of one scale for all of x, (1, 1), of half of what its digits reach."""
    return shift_of(_digits.WORD, _digits.shift_for(np.abs(x).max(keepdims=True))).astype(np.float32)


@pytest.mark.parametrize("by_rows", [False, True])
@pytest.mark.parametrize("kind", FAMILIES)
def test_one_scale_for_a_whole_matrix(kind, by_rows):
    """Digits as if the matrix were a single row; magnitudes relative to half of what they reach."""
    x = family(kind, (140, 50))
    for digits in (7, 9):
        compare(x, by_rows, digits, (top_of(x),))
        found, sizes = reference.float64_digits(words_of(x), top_of(x), by_rows, digits)
        row, _, _ = reference.float64_digits(words_of(x.reshape(1, -1)), digits=digits)
        expected = row.astype("f4").reshape(digits, *x.shape).transpose(0, 2, 1)
        np.testing.assert_array_equal(found.astype("f4"), expected if by_rows else expected.transpose(0, 2, 1))
        below_and_near(sizes, x, np.ldexp(np.abs(x), reference.ONE - int(top_of(x)[0, 0])), 2.0**-7)


@pytest.mark.parametrize("by_rows", [False, True])
@pytest.mark.parametrize("rows", [2, 140, 300])
def test_rows_with_given_scales(rows, by_rows):
    """Digits as if each row were a matrix with one scale."""
    x = family("rows of 400 decades", (rows, 50))
    tops = np.concatenate([top_of(row) for row in x[:, np.newaxis]])
    tops[1] += 3
    for digits in (4, 7):
        compare(x, by_rows, digits, (tops,))
        found, sizes = reference.float64_digits(words_of(x), tops, by_rows, digits)
        for i in range(0, rows, 37):
            alone, size = reference.float64_digits(words_of(x[i : i + 1]), tops[i : i + 1], by_rows, digits)
            here = found[:, :, i : i + 1] if by_rows else found[:, i : i + 1]
            np.testing.assert_array_equal(here.view("u2"), alone.view("u2"))
            np.testing.assert_array_equal(sizes[i : i + 1].view("u2"), size.view("u2"))


def below_and_near(found, x, exact, loss):
    """Magnitudes: at most ``loss`` below the exact ones, or close below or above 2^-60, and zero only of zeros."""
    found, some = found.astype("f8"), exact > 2.0**-59
    assert (found[some] <= exact[some]).all() and (found[some] >= exact[some] * (1 - loss)).all()
    np.testing.assert_array_equal(found > 0, x != 0)
    rest = found[~some & (x != 0)]
    assert ((rest >= 2.0**-61) & (rest <= 2.0**-58)).all()


@pytest.mark.parametrize("by_rows", [False, True])
@pytest.mark.parametrize("kind", FAMILIES)
def test_magnitudes_are_below_and_near_the_quotients_by_the_largest(kind, by_rows):
    x = family(kind, (60, 80))
    _, found, _ = reference.float64_digits(words_of(x), by_rows=by_rows)
    largest = np.abs(x).max(axis=int(by_rows), keepdims=True)
    below_and_near(found, x, np.abs(x) / np.where(largest > 0, largest, 1), 2.0**-6)


def test_numbers_below_normal_are_zero_beside_others_but_not_to_the_certificate():
    x = np.array([[1.0, 5e-324, -2e-310, 0.0, -0.0, 1e-300]])
    digits, magnitudes, exponents = reference.float64_digits(words_of(x), digits=12)
    assert not digits.astype("f4")[:, 1:].any() and digits.astype("f4")[0, 0]
    below_and_near(magnitudes, x, np.abs(x), 2.0**-6)
    assert exponents == reference.ONE
    compare(x, True, 12)


def test_exponents_show_what_is_not_finite_and_what_is_near_underflow():
    x = np.ones((4, 3))
    x[0, 1], x[1, 2], x[2] = np.nan, -np.inf, 2.0**-900
    exponents = reference.float64_digits(words_of(x))[2][:, 0]
    assert (exponents >= reference.NOT_FINITE).tolist() == [True, True, False, False]
    assert (exponents < reference.FAINTEST).tolist() == [False, False, True, False]
    compare(np.where(np.isfinite(x), x, 1.0), False, 7)


@pytest.mark.parametrize("kind", FAMILIES)
def test_exponents_are_those_of_the_hosts_scales(kind):
    x = family(kind, (60, 80))
    for by_rows in (False, True):
        _, _, exponents = reference.float64_digits(words_of(x), by_rows=by_rows)
        largest = np.abs(x).max(axis=int(by_rows), keepdims=True)
        some = largest > 0
        expected = shift_of(_digits.WORD, _digits.shift_for(largest))
        np.testing.assert_array_equal(exponents[some], expected[some])
        assert not exponents[~some].any()


@pytest.mark.parametrize("by_rows", [False, True])
def test_any_legal_order_gives_the_same(by_rows):
    compare(family("of 60 decades", (200, 1100)), by_rows, 7, mode="reorder", seed=1)


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("by_rows", [False, True])
def test_lint_finds_no_error(by_rows, target):
    findings = lint_launch(KERNEL, (words_of(np.ones((300, 1024))),), {"by_rows": by_rows}, target=target)
    assert not [f for f in (*findings, *lint_file(FILE)) if f.severity == "E"]


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("digits", [7, 12])
@pytest.mark.parametrize("by_rows", [False, True])
def test_the_budget_and_the_memory_of_each_machine_are_kept(by_rows, digits, target):
    for n in (512, 8192):
        x = Specification((n, 2 * n), np.int32)
        assert kept(run(KERNEL, (x,), {"by_rows": by_rows, "digits": digits}, mode="trace", target=target).trace)


@pytest.mark.parametrize("by_rows", [False, True])
def test_dry_runs_count_the_modelled_time(by_rows):
    for n in (1024, 4096):
        trace = run(KERNEL, (Specification((n, 2 * n), np.int32),), {"by_rows": by_rows}, mode="trace").trace
        modelled = price(trace).device_s
        print(f"{n}: {modelled * 1e3:.2f} ms modelled on trn2, {1e9 * modelled / n**2:.2f} ns an element")
        assert modelled == pytest.approx(NUMBER_S * n * n, rel=0.15)


def test_what_it_refuses():
    x = words_of(np.ones((4, 8)))
    for wrong, digits in ((x.view("f4"), 7), (x[:, :3], 7), (x[0], 7), (x[:0], 7), (x, 1), (x, 13)):
        with pytest.raises(ValueError):
            reference.check(wrong, digits)
    with pytest.raises(ValueError, match="exponent"):
        reference.check(x, 7, np.zeros((1, 1)))
    with pytest.raises(ValueError, match="8192"):
        reference.check(np.zeros((1, 2 * 8193), np.int32), 7)
    for rows, columns, top in ((5, 8, None), (6, 2 * 513, None), (6, 8, np.zeros((1, 1), np.float32))):
        with pytest.raises(ValueError, match="of 3 matrices"):
            reference.check(np.zeros((rows, columns), np.int32), 7, top, 3)


def stack(batch, rows, columns):
    """A matrix of each family, one below the other; columns of one are far larger than the same of another."""
    kinds = [kind for kind in FAMILIES if kind != "the largest"]
    return np.concatenate([family(kinds[i % len(kinds)], (rows, columns)) * 2.0 ** (9 * (i % 8)) for i in range(batch)])


@pytest.mark.parametrize("batch, rows, columns", [(1, 5, 3), (2, 1, 1), (3, 130, 40), (4, 128, 129), (2, 300, 512)])
def test_each_matrix_of_a_stack_has_scales_of_its_own(batch, rows, columns):
    for digits in (7, 9):
        compare(stack(batch, rows, columns), False, digits, batch=batch)


def test_a_stack_in_a_device_loop_gives_the_same_in_any_legal_order():
    x, batch = stack(170, 129, 6), 170
    shape = Specification((x.shape[0], 2 * x.shape[1]), np.int32)
    assert run(KERNEL, (shape,), {"by_rows": False, "batch": batch}, mode="trace").trace.loops
    compare(x, False, 7, batch=batch, mode="reorder", seed=1)


@pytest.mark.parametrize("target", MACHINES)
@pytest.mark.parametrize("digits", [7, 12])
def test_stacks_keep_the_budget_and_pass_the_lint(digits, target):
    options = {"by_rows": False, "digits": digits}
    for batch, n in ((512, 256), (64, 512)):
        x = Specification((batch * n, 2 * n), np.int32)
        assert kept(run(KERNEL, (x,), {**options, "batch": batch}, mode="trace", target=target).trace)
    findings = lint_launch(KERNEL, (words_of(stack(3, 200, 60)),), {**options, "batch": 3}, target=target)
    assert not [f for f in findings if f.severity == "E"]


def test_it_runs_on_every_machine():
    for machine in MACHINES:
        compare(family("of 60 decades", (130, 70)), True, 7, target=machine)
