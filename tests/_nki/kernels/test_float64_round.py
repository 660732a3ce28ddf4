"""float64_round.py against its twin and exact rationals: sizes, signs, ties, exponents, lint, budget, model."""

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from nkisim.hardware import MACHINES
from nkisim.lint.linter import lint_file, lint_launch
from nkisim.price.cost import price
from nkisim.run.launch import Specification, run
from nkisim.run.loader import load_kernel
from tests._nki.kernels.budget import kept
from trnpy._engine.cost_model import RESULT_S
from trnpy._nki.kernels import source
from trnpy._nki.kernels.products import float64_round_reference as reference

FILE = source("float64_round")
KERNEL = load_kernel(FILE, "float64_round")
BF16 = np.dtype(ml_dtypes.bfloat16)


def words_of(integers, words):
    """Integers of Python (M, N) as int32 (words, M, N), lower ones first."""
    return np.stack([(integers >> 32 * w & 0xFFFFFFFF).astype(np.uint32).view(np.int32) for w in range(words)])


def integers_of(shape, words, seed=0):
    """Of every number of bits and both signs, some of them powers of two, the largest of their size, or zero."""
    g, most = np.random.default_rng([seed, words, *shape]), 32 * words - 1
    found = np.empty(shape, object)
    for at in np.ndindex(shape):
        bits = int(g.integers(0, most + 1))
        size = int.from_bytes(g.bytes(16), "little") & ((1 << bits) - 1)
        size = (size, size, (1 << bits) >> 1, (1 << bits) - 1, 0)[g.integers(5)]
        found[at] = -size if g.random() < 0.5 else size
    return found


def exponents(m, n, most=300):
    g = np.random.default_rng([m, n])
    return (
        g.integers(-most, most, (m, 1)).astype(np.float32),
        g.integers(-most, most, (1, n)).astype(np.float32),
    )


def numbers(integers, words, rows, columns):
    return reference.float64_round(words_of(integers, words), rows, columns).view(np.float64)


@pytest.mark.parametrize("words", [2, 3, 4])
@pytest.mark.parametrize("m, n", [(1, 1), (127, 513), (130, 40)])
def test_every_edge(m, n, words):
    operands = words_of(integers_of((m, n), words), words), *exponents(m, n)
    np.testing.assert_array_equal(run(KERNEL, operands, {}).outputs, reference.float64_round(*operands))


@pytest.mark.parametrize("words, places", [(2, 6), (2, 7), (3, 9), (3, 11), (4, 13), (4, 15)])
def test_halves_of_digits_are_taken_off(words, places):
    """Of integers that have half a digit at each of their lowest bytes, as products that stay have."""
    v, (rows, columns) = integers_of((130, 40), words) // 4, exponents(130, 40)
    operands = words_of(v + sum(128 << 8 * p for p in range(places)), words), rows, columns
    found = reference.float64_round(*operands, places=places)
    np.testing.assert_array_equal(found.view("f8"), numbers(v, words, rows, columns))
    np.testing.assert_array_equal(run(KERNEL, operands, {"places": places}).outputs, found)


@pytest.mark.parametrize("words", [2, 3, 4])
def test_results_are_the_nearest_numbers(words):
    """Half a unit in the last place at most, and the nearest even one but for ties, which the docstring states."""
    v, (rows, columns) = integers_of((40, 50), words), exponents(40, 50)
    found = numbers(v, words, rows, columns)
    for at in np.ndindex(v.shape):
        exponent = int(rows[at[0], 0] + columns[0, at[1]])
        nearest = math.ldexp(float(v[at]), exponent)
        if found[at] != nearest:
            exact = Fraction(v[at]) * Fraction(2) ** exponent
            unit = np.spacing(min(abs(nearest), abs(found[at])))
            assert abs(Fraction(found[at]) - exact) == Fraction(unit) / 2


def stacked(batch, m, n, words):
    """Integers of a stack, and exponents that differ from matrix to matrix."""
    rows = exponents(batch * m, 1)[0]
    columns = np.random.default_rng([batch, n]).integers(-600, 600, (batch, n))
    return words_of(integers_of((batch * m, n), words), words), rows, columns


@pytest.mark.parametrize("batch, m, n, words", [(2, 1, 1, 2), (3, 130, 40, 3), (2, 3, 512, 4), (600, 1, 2, 3)])
def test_each_matrix_of_a_stack_has_exponents_of_its_own(batch, m, n, words):
    v, rows, columns = stacked(batch, m, n, words)
    options = {"batch": batch, "places": 4 * words - 3}
    operands = v, rows, reference.in_parts(columns)
    found = run(KERNEL, operands, options).outputs
    if batch > 500:
        assert run(KERNEL, tuple(Specification(x.shape, x.dtype) for x in operands), options, mode="trace").trace.loops
    np.testing.assert_array_equal(found, reference.float64_round(*operands, **options))
    for i in range(batch):
        here = slice(i * m, (i + 1) * m)
        alone = reference.float64_round(v[:, here], rows[here], columns[i : i + 1].astype("f4"), options["places"])
        np.testing.assert_array_equal(found[here], alone)


@pytest.mark.parametrize("target", MACHINES)
def test_stacks_keep_the_budget_and_pass_the_lint(target):
    m, n = 512 * 256, 256
    shapes = Specification((3, m, n), np.int32), Specification((m, 1)), Specification((2, 512 * n), BF16)
    assert kept(run(KERNEL, shapes, {"batch": 512}, mode="trace", target=target).trace)
    v, rows, columns = stacked(3, 200, 60, 3)
    operands = v, rows, reference.in_parts(columns)
    assert not [f for f in lint_launch(KERNEL, operands, {"batch": 3}, target=target) if f.severity == "E"]
    again = run(KERNEL, operands, {"batch": 3}, mode="reorder", seed=1, target=target).outputs
    np.testing.assert_array_equal(again, reference.float64_round(*operands, batch=3))


def test_exponents_in_parts_are_exact():
    columns = np.arange(-2100, 2100).reshape(2, -1)
    found = reference.in_parts(columns)
    np.testing.assert_array_equal(found.astype("f8").sum(axis=0), columns.reshape(-1))
    assert (found.astype("f8")[0] % reference.PART == 0).all()


def test_ties_go_away_from_zero_and_of_negative_numbers_to_zero():
    v = np.array([[2**53 + 1, -(2**53) - 1, 2**54 + 6, -(2**54) - 6]], object)
    expected = [[2.0**53 + 2, -(2.0**53), 2.0**54 + 8, -(2.0**54) - 4]]
    np.testing.assert_array_equal(numbers(v, 2, np.zeros((1, 1), "f4"), np.zeros((1, 4), "f4")), expected)


@pytest.mark.parametrize("words", [2, 3, 4])
def test_small_integers_are_exact(words):
    v = np.array([[0, 1, -1, 2, -2, 255, -256, 2**31, -(2**31), 2**32, -(2**32), 2**53, -(2**53)]], object)
    rows, columns = np.float32([[-7]]), np.zeros((1, v.size), "f4")
    found = numbers(v, words, rows, columns)
    np.testing.assert_array_equal(found, v.astype("f8") / 128)
    assert not np.signbit(found[0, 0])
    np.testing.assert_array_equal(run(KERNEL, (words_of(v, words), rows, columns), {}).outputs.view("f8"), found)


@pytest.mark.parametrize("words", [2, 3, 4])
def test_the_stated_limits_of_exponents_suffice(words):
    v = np.array([[1, -1, 2 ** (32 * words - 1) - 1, -(2 ** (32 * words - 1))]], object)
    for exponent in (reference.LOWEST, reference.HIGHEST - 32 * words):
        found = numbers(v, words, np.float32([[exponent]]), np.zeros((1, 4), "f4"))
        expected = [[math.ldexp(float(x), exponent) for x in v[0]]]
        np.testing.assert_array_equal(found, expected)


def test_any_legal_order_gives_the_same():
    operands = words_of(integers_of((200, 140), 3), 3), *exponents(200, 140)
    for options in ({}, {"places": 9}):
        again = run(KERNEL, operands, options, mode="reorder", seed=1).outputs
        np.testing.assert_array_equal(again, run(KERNEL, operands, options).outputs)


@pytest.mark.parametrize("target", MACHINES)
def test_lint_finds_no_error_and_it_runs_on_every_machine(target):
    operands = words_of(integers_of((130, 140), 3), 3), *exponents(130, 140)
    assert not [f for f in (*lint_launch(KERNEL, operands, {}, target=target), *lint_file(FILE)) if f.severity == "E"]
    np.testing.assert_array_equal(run(KERNEL, operands, {}, target=target).outputs, reference.float64_round(*operands))


def specified(words, n):
    return Specification((words, n, n), np.int32), Specification((n, 1)), Specification((1, n))


@pytest.mark.parametrize("target", MACHINES)
@pytest.mark.parametrize("words", [2, 3, 4])
def test_the_budget_and_the_memory_of_each_machine_are_kept(words, target):
    for n in (512, 8192):
        for places in (0, 4 * words):
            assert kept(run(KERNEL, specified(words, n), {"places": places}, mode="trace", target=target).trace)


def test_dry_runs_count_the_modelled_time():
    for n in (1024, 4096):
        modelled = price(run(KERNEL, specified(3, n), {}, mode="trace").trace).device_s
        print(f"{n}: {modelled * 1e3:.2f} ms modelled on trn2, {1e9 * modelled / n**2:.2f} ns a result")
        assert modelled == pytest.approx(RESULT_S * n * n, rel=0.15)


def test_what_it_refuses():
    v, rows, columns = np.zeros((3, 4, 5), np.int32), np.zeros((4, 1), "f4"), np.zeros((1, 5), "f4")
    for wrong in (
        (v, rows, columns, 13), (v.astype("i8"), rows, columns), (v[0], rows, columns), (v[:1], rows, columns),
        (v, rows[:3], columns),
        (v, rows, columns[:, :4]), (v, rows.astype("f8"), columns), (v[:, :0], rows[:0], columns),
    ):  # fmt: skip
        with pytest.raises(ValueError):
            reference.check(*wrong)
    parts = reference.in_parts(np.zeros((2, 5), int))
    reference.check(v, rows, parts, 0, 2)
    for wrong in ((v, rows, columns, 0, 2), (v, rows, parts[:, :9], 0, 2), (v[:, :3], rows[:3], parts, 0, 2)):
        with pytest.raises(ValueError):
            reference.check(*wrong)
