"""Screening: bounds hold, the mask is that of exact arithmetic, no element larger than the threshold is dropped."""

import math
from fractions import Fraction

import numpy as np
import pytest
from doubles import FaultyEngine, RecordingEngine
from dry_runs import assert_dry_is_the_run
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from pyscf import gto

import trnpy.chem
from trnpy import Reason, policy, trace
from trnpy._engine.engines import engine
from trnpy.chem import schwarz
from trnpy.chem._ao2mo import unpacked
from trnpy.chem.schwarz import (
    ROWS,
    _kept,
    _screened_pairs_naive,
    _screened_spmm_naive,
    schwarz_bounds,
    screened_pairs,
    screened_spmm,
)

BOUND = st.floats(0, 1e200) | st.sampled_from([0.0, 5e-324, 1e-170, 0.1, 0.3, 1.0, 3.0, 1 / 3, 1e-5, 1e160])
BOUNDS = st.lists(BOUND, max_size=8).map(np.array)
THRESHOLD = BOUND


@settings(deadline=None, max_examples=200)
@given(BOUNDS, BOUNDS, THRESHOLD, st.data())
def test_pairs_are_those_of_exact_arithmetic(left, right, threshold, data):
    if len(left) and len(right) and data.draw(st.booleans()):
        # A threshold that some products round to, where floating point cannot tell.
        threshold = float(data.draw(st.sampled_from(list(left)))) * float(data.draw(st.sampled_from(list(right))))
        threshold = threshold if math.isfinite(threshold) else 1.0
    i, j = screened_pairs(left, right, threshold)
    assert list(zip(i.tolist(), j.tolist(), strict=True)) == _screened_pairs_naive(left, right, threshold)


def test_products_that_round_to_the_threshold_are_told_apart():
    x, y = 1 / 3, 3.0  # x y = 1 - 2^-54 rounds to 1
    assert x * y == 1.0 and Fraction(x) * Fraction(y) < 1
    assert not len(screened_pairs([x], [y], 1.0)[0])
    above = 1 + 2.0**-52
    assert above * above == 1 + 2.0**-51 and len(screened_pairs([above], [above], above * above)[0]) == 1
    assert len(screened_pairs([1e-200], [1e-200], 0.0)[0]) == 1  # the product underflows to the threshold
    assert not len(screened_pairs([0.0], [1.0], 0.0)[0])
    assert len(screened_pairs([1e200], [1e200], 1e300)[0]) == 1


@pytest.mark.parametrize("memory", [1, 200, 2**20])
def test_any_budget_gives_the_same_pairs(memory):
    rng = np.random.default_rng(0)
    left, right = rng.random(23), rng.random(9)
    i, j = screened_pairs(left, right, 0.3, memory=memory)
    expected = np.nonzero(np.outer(left, right) > 0.3)
    np.testing.assert_array_equal(i, expected[0])
    np.testing.assert_array_equal(j, expected[1])


def test_the_bounds_of_a_molecule_hold_for_every_integral():
    mol = gto.M(atom="O 0 0 0; H 0 0.757 0.587; H 0 -0.757 3.5", basis="6-31g", verbose=0)
    eri = mol.intor("int2e")
    q = schwarz_bounds(eri)
    np.testing.assert_allclose(q, np.sqrt(np.einsum("mnmn->mn", eri).clip(0)), rtol=1e-15, atol=1e-300)
    assert (np.abs(eri) <= np.multiply.outer(q, q) * (1 + 1e-12)).all()


def test_the_bounds_of_fitted_integrals_hold_whatever_their_form():
    b = np.random.default_rng(0).standard_normal((7, 10)) * 10.0 ** -np.arange(10)
    full = unpacked(b)
    eri = np.einsum("Lmn,Lrs->mnrs", full, full)
    for q in (schwarz_bounds(b), schwarz_bounds(full)):
        assert q.shape == (4, 4)
        assert (np.abs(eri) <= np.multiply.outer(q, q)).all()
        np.testing.assert_allclose(q, schwarz_bounds(eri), rtol=1e-14)


def test_a_negative_diagonal_is_no_table_of_integrals():
    with pytest.raises(ValueError, match=r"a diagonal integral \(mn\|mn\) is -1"):
        schwarz_bounds(-np.ones((2, 2, 2, 2)))
    with pytest.raises(ValueError, match="expected four equal extents"):
        schwarz_bounds(np.ones((2, 3, 2, 3)))
    with pytest.raises(ValueError, match=r"shape \(5, 3, 4\): expected \(naux, nao, nao\)"):
        schwarz_bounds(np.ones((5, 3, 4)))


ELEMENT = st.floats(-1e100, 1e100) | st.sampled_from([0.0, 1e-10, -1e-10, 1e-5, 1e-300, 1.0])


@settings(deadline=None, max_examples=100)
@given(st.data(), st.integers(1, 7), st.integers(1, 7), st.booleans())
def test_no_element_larger_than_the_threshold_is_dropped(data, m, k, force):
    a = data.draw(arrays.arrays(float, (m, k), elements=ELEMENT))
    threshold = data.draw(st.sampled_from([0.0, 1e-10, 1e-5, 1.0]) | st.sampled_from(np.abs(a).ravel().tolist()))
    # Times the identity each element is seen by itself.
    with policy(force=force):
        kept = screened_spmm(a, np.eye(k), threshold)
    assert ((kept == a) | (kept == 0)).all()
    assert (kept == a)[np.abs(a) > threshold].all()


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 5, 2), (ROWS, 40, 7), (2 * ROWS + 3, 33, 5)])
@pytest.mark.parametrize("force", [False, True])
def test_products_are_those_of_the_exact_mask(shape, force):
    m, k, n = shape
    rng = np.random.default_rng(m)
    q_left, q_right = 10.0 ** -rng.uniform(0, 6, m), 10.0 ** -rng.uniform(0, 6, k)
    a, b = rng.uniform(-1, 1, (m, k)) * np.outer(q_left, q_right), rng.standard_normal((k, n))
    threshold = np.median(np.outer(q_left, q_right)) * 0.999
    with policy(force=force), trace() as decisions:
        result = screened_spmm(a, b, threshold, q_left=q_left, q_right=q_right)
    expected = _screened_spmm_naive(a, b, threshold, q_left, q_right)
    np.testing.assert_allclose(result, expected, rtol=1e-12, atol=1e-14 * np.abs(expected).max())
    assert decisions[0].on_device == force


@settings(deadline=None, max_examples=200)
@given(BOUNDS, BOUNDS, THRESHOLD, st.data())
def test_the_columns_a_row_keeps_are_counted_exactly(left, right, threshold, data):
    if len(left) and len(right) and data.draw(st.booleans()):
        threshold = float(data.draw(st.sampled_from(list(left)))) * float(data.draw(st.sampled_from(list(right))))
        threshold = threshold if math.isfinite(threshold) else 1.0
    descending = np.sort(right)[::-1]
    pairs = _screened_pairs_naive(left, descending, threshold)
    expected = [sum(i == row for i, _ in pairs) for row in range(len(left))]
    assert _kept(left, descending, threshold).tolist() == expected


@settings(deadline=None, max_examples=15)
@given(st.data(), st.integers(1, 40), st.integers(1, 40))
def test_the_kernel_drops_no_element_larger_than_the_threshold(data, m, k):
    seed = data.draw(st.integers(0, 2**32))
    rng = np.random.default_rng(seed)
    a, b = rng.standard_normal((m, k)) * 10.0 ** rng.integers(-4, 4, (m, 1)), rng.standard_normal((k, 3))
    threshold = data.draw(st.sampled_from([0.0, 1e-3, 0.1, float(np.abs(a).max()), float(np.median(np.abs(a)))]))
    kept = (np.abs(a) > threshold).any()  # where nothing is, there may be nothing to launch
    with policy(device="simulator", force=True, fallback="raise" if kept else "log"), trace() as decisions:
        ours = screened_spmm(a, b, threshold)
    exact = screened_spmm(a, b, threshold)
    np.testing.assert_allclose(ours, exact, rtol=0, atol=1e-14 * np.abs(a).max() * k)
    if kept:
        assert dict(decisions[0].launches)["schwarz_screened_spmm"] == 1


@pytest.mark.parametrize("precision", ["matched", "fp32"])
@pytest.mark.parametrize("shape", [(1, 1, 1), (40, 530, 7), (520, 20, 5)])
def test_products_by_the_kernel_are_those_of_the_exact_mask(shape, precision):
    m, k, n = shape
    rng = np.random.default_rng(m)
    left, right = 10.0 ** rng.uniform(-6, 0, m), 10.0 ** rng.uniform(-6, 0, k)
    a, b = left[:, None] * right * rng.uniform(-1, 1, (m, k)), rng.standard_normal((k, n))
    options = {"q_left": left, "q_right": right}
    with policy(device="simulator", force=True, precision=precision, fallback="raise"), trace() as decisions:
        ours = screened_spmm(a, b, 1e-6, **options)
    launches = dict(decisions[0].launches)
    assert launches["schwarz_screened_spmm"] == 1 and (precision == "fp32" or launches["digits_split"] == 2)
    exact = _screened_spmm_naive(a, b, 1e-6, left, right)
    unit = 2.0**-50 if precision == "matched" else 2.0**-22
    scale = left[:, None] * np.linalg.norm(right) * np.linalg.norm(b, axis=0)
    assert (np.abs(ours - exact) <= unit * scale).all()


@pytest.mark.parametrize("precision", ["matched", "fp32"])
def test_a_dry_run_is_the_run(precision):
    a, b = np.random.default_rng(0).standard_normal((2, 40, 40))
    with policy(precision=precision):
        assert_dry_is_the_run(schwarz._prepare(a, b, 1e-6))


@pytest.mark.parametrize(("rows_in_memory", "launches"), [(400, 3), (1100, 2)])
def test_a_launch_has_as_many_rows_as_fit_the_memory(rows_in_memory, launches, monkeypatch):
    monkeypatch.setattr(schwarz, "MEMORY", rows_in_memory * schwarz.WORKSPACE * schwarz.KERNEL_STEP)
    rng = np.random.default_rng(2)
    a, b = rng.standard_normal((1300, 20)), rng.standard_normal((20, 5))
    a[::13] = 0  # rows of which nothing is kept
    with policy(device="simulator", force=True, precision="fp32", fallback="raise"), trace() as decisions:
        ours = screened_spmm(a, b, 0.0)
    assert dict(decisions[0].launches)["schwarz_screened_spmm"] == launches
    np.testing.assert_allclose(ours, a @ b, rtol=0, atol=1e-4)


def test_what_is_too_large_for_one_operand_is_multiplied_in_steps(monkeypatch):
    monkeypatch.setattr(schwarz, "LARGEST", 512 * 16 * schwarz.WORD_BYTES - 1)
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((30, 20)), rng.standard_normal((20, 5))
    with policy(device="simulator", force=True, fallback="raise"), trace() as decisions:
        ours = screened_spmm(a, b, 0.0)
    launches = dict(decisions[0].launches)
    assert "schwarz_screened_spmm" not in launches and launches["float64_matmul"] == 1
    np.testing.assert_allclose(ours, a @ b, rtol=0, atol=1e-13)


def test_screened_rows_cost_nothing():
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((4 * ROWS, 50)), rng.standard_normal((50, 3))
    a[: 3 * ROWS] *= 1e-9
    recording = RecordingEngine()
    with engine(recording), policy(force=True), trace() as decisions:
        result = screened_spmm(a, b, 1e-3)
    assert recording.shapes == [(ROWS, 50, 3)]
    assert decisions[0].flops == 2 * ROWS * 50 * 3
    np.testing.assert_allclose(result[3 * ROWS :], a[3 * ROWS :] @ b, rtol=1e-12, atol=1e-12)
    assert not result[: 3 * ROWS].any()


@pytest.mark.parametrize("fault", FaultyEngine.FAULTS)
def test_a_faulty_engine_leaves_the_host_s_product(fault):
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((30, 20)), rng.standard_normal((20, 10))
    with engine(FaultyEngine(fault)), policy(force=True, fallback="log", time_limit=0.02), trace() as decisions:
        result = screened_spmm(a, b, 0.5)
    np.testing.assert_array_equal(result, screened_spmm(a, b, 0.5))
    assert decisions[0].reason in (Reason.ERROR, Reason.OOM, Reason.ACCURACY)


def test_nothing_kept_and_nothing_given_are_zeros():
    with policy(force=True), trace() as decisions:
        assert not screened_spmm(np.ones((3, 4)), np.ones((4, 2)), 2.0).any()
        assert screened_spmm(np.ones((0, 4)), np.ones((4, 2)), 0.0).shape == (0, 2)
        assert not screened_spmm(np.ones((3, 0)), np.ones((0, 2)), 0.0).any()
    assert [d.reason for d in decisions] == [Reason.VALUE, Reason.LAYOUT, Reason.LAYOUT]


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((np.ones((2, 3)), np.ones((2, 3)), 0.1), {}, ValueError, r"a \(2, 3\) and b \(2, 3\): expected"),
        ((np.ones(3), np.ones((3, 3)), 0.1), {}, ValueError, r"a has shape \(3,\): expected \(m, k\)"),
        ((np.full((2, 3), np.nan), np.ones((3, 3)), 0.1), {}, ValueError, "a or b has infs or NaNs"),
        ((np.ones((2, 3)), np.ones((3, 3)), -1.0), {}, ValueError, r"threshold=-1\.0: expected a finite number"),
        ((np.ones((2, 3)), np.ones((3, 3)), 0.1), {"q_left": np.ones(2)}, ValueError, "one of q_left and q_right"),
        (
            (np.ones((2, 3)), np.ones((3, 3)), 0.1),
            {"q_left": np.ones(3), "q_right": np.ones(3)},
            ValueError,
            r"3 q_left and 3 q_right for a \(2, 3\)",
        ),
        (
            (np.ones((2, 3)), np.ones((3, 3)), 0.1),
            {"q_left": -np.ones(2), "q_right": np.ones(3)},
            ValueError,
            "q_left has values from -1",
        ),
        ((np.ones((2, 3), complex), np.ones((3, 3)), 0.1), {}, TypeError, "a is complex128"),
    ],
)
@pytest.mark.parametrize("force", [False, True])
def test_arguments_that_do_not_fit_are_said_so(arguments, options, error, message, force):
    with policy(force=force), pytest.raises(error, match=message):
        screened_spmm(*arguments, **options)


def test_the_public_names():
    for function in (schwarz_bounds, screened_pairs, screened_spmm):
        assert getattr(trnpy.chem, function.__name__) is function
