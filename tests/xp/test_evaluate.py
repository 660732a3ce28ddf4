"""Evaluation of recorded operations: which are equal, and whose memory the next result may take."""

import numpy as np
import pytest

from trnpy import xp
from trnpy.xp._evaluate import _lend
from trnpy.xp._graph import GraphCounters
from trnpy.xp._nodes import Node, Small, leaf

N = 40
A = np.random.default_rng(0).standard_normal((N, N))


@pytest.fixture(autouse=True)
def recorded_from_few_elements_on(monkeypatch):
    """Operations of smaller arrays are computed at once."""
    monkeypatch.setattr(Small, "elements", 16)


# Operations of one operand that differ in an option, in a scalar or in its type only.
ALIKE = [
    lambda n, x: n.sum(x, axis=0), lambda n, x: n.sum(x, axis=1), lambda n, x: n.sum(x, axis=0, keepdims=True),
    lambda n, x: n.max(x, axis=0), lambda n, x: n.max(x, axis=1), lambda n, x: n.std(x, correction=0),
    lambda n, x: n.std(x, correction=1), lambda n, x: getattr(n, "cumulative_sum", np.cumsum)(x, axis=0),
    lambda n, x: getattr(n, "cumulative_sum", np.cumsum)(x, axis=1),
    lambda n, x: n.clip(x, -1, 1), lambda n, x: n.clip(x, -1, 2),
    lambda n, x: n.astype(x, n.float32), lambda n, x: n.astype(x, n.float64), lambda n, x: n.tril(x),
    lambda n, x: n.tril(x, k=1), lambda n, x: n.triu(x, k=-2), lambda n, x: n.roll(x, 1), lambda n, x: n.roll(x, 2),
    lambda n, x: n.roll(x, 1, axis=0), lambda n, x: n.flip(x, axis=0), lambda n, x: n.flip(x, axis=1),
    lambda n, x: x + 1, lambda n, x: x + 2, lambda n, x: x - 1, lambda n, x: 1 - x,
    lambda n, x: n.expand_dims(x, axis=0),
    lambda n, x: n.expand_dims(x, axis=2), lambda n, x: n.argmax(x, axis=0), lambda n, x: n.argmax(x, axis=1),
]  # fmt: skip


def test_operations_that_differ_in_an_option_are_not_taken_for_equal():
    """All are recorded before any is computed, and computed in one evaluation."""
    x = xp.asarray(A) * 2.0
    recorded = [make(xp, x) for make in ALIKE]
    total = sum((xp.sum(xp.astype(one, xp.float64)) for one in recorded), xp.asarray(0.0))
    float(total)
    for found, make in zip(recorded, ALIKE, strict=True):
        expected = make(np, A * 2.0)
        assert found.shape == expected.shape and found.dtype == expected.dtype
        np.testing.assert_allclose(np.asarray(found), expected, rtol=4 * N * np.finfo("f4").eps)


VIEWS = {
    "transpose": lambda n, x: n.permute_dims(x, (1, 0)), "slice": lambda n, x: x[1:, :-1], "row": lambda n, x: x[3, :],
    "reshaped": lambda n, x: n.reshape(x, (-1,)), "broadcast": lambda n, x: n.broadcast_to(x, (2, N, N)),
    "new axis": lambda n, x: x[None, ...], "itself": lambda n, x: x,
}  # fmt: skip


@pytest.mark.parametrize("computed", ["before", "together", "in one evaluation"])
@pytest.mark.parametrize("name", VIEWS)
def test_no_result_takes_memory_that_a_view_shows(name, computed):
    """The base is needed for the last time by an operation whose result would fit its memory, while a view lives."""
    view = VIEWS[name]
    base = xp.asarray(A) + 1.0
    seen = view(xp, base)
    if computed == "before":
        np.asarray(base), np.asarray(seen)
    if computed == "together":  # in one evaluation, which finds that they share memory
        float(xp.sum(base) + xp.sum(seen))
    over = base * 3.0
    if computed == "in one evaluation":
        again = seen * 5.0
    del base
    last = over - 1.0
    del over
    np.asarray(last)
    if computed != "in one evaluation":
        again = seen * 5.0
    np.testing.assert_array_equal(np.asarray(last), (A + 1.0) * 3.0 - 1.0)
    np.testing.assert_array_equal(np.asarray(again), view(np, A + 1.0) * 5.0)
    np.testing.assert_array_equal(np.asarray(seen), view(np, A + 1.0))


def test_an_operand_that_a_program_holds_is_not_overwritten():
    host = A.copy()
    x = xp.asarray(host)
    y = x + 1.0
    held = np.asarray(y)
    z = (y * 2.0) + 1.0
    del y
    np.testing.assert_array_equal(np.asarray(z), (A + 1.0) * 2.0 + 1.0)
    np.testing.assert_array_equal(held, A + 1.0)
    np.testing.assert_array_equal(host, A)


@pytest.mark.parametrize("computed", ["before", "alone"])
def test_a_result_in_the_memory_of_another_one_is_not_overwritten(computed):
    """NumPy's real part of a real array is that array: neither may be written while the other one is needed."""
    x = xp.asarray(A)
    base = x @ x
    if computed == "alone":
        float(base[0, 0])
    part = xp.real(base)
    over = (base * 2.0) @ x
    if computed == "alone":
        np.asarray(part)
    float(xp.sum(part))
    del base
    expected = A @ A
    np.testing.assert_allclose(np.asarray(over), expected * 2.0 @ A, rtol=0, atol=N * N * np.finfo(float).eps * 100)
    np.testing.assert_allclose(np.asarray(part), expected, rtol=0, atol=N * np.finfo(float).eps * 100)


def test_equal_operations_are_computed_once():
    x, before = xp.asarray(A) * 2.0, GraphCounters.shared
    twice = xp.sum(x, axis=0) + xp.sum(x, axis=0)
    np.testing.assert_array_equal(np.asarray(twice), 2 * np.sum(A * 2.0, axis=0))
    assert GraphCounters.shared == before + 1


def test_writes_whose_keys_are_arrays_are_not_compared():
    x, even = xp.asarray(A) * 2.0, np.arange(N) % 2 == 0
    a, b = x * 3.0, x * 3.0
    a[even], b[~even] = 0.0, 0.0
    np.testing.assert_array_equal(np.asarray(a + b), A * 2.0 * 3.0)


def test_an_operand_whose_memory_a_result_shares_is_not_overwritten():
    x, other = leaf(A.copy()), leaf(A.copy())
    node = Node(np.flip, (x, other), {}, A.shape, A.dtype)
    node.value = np.flip(x.value)
    _lend([node])
    assert (node.lent, x.lent, other.lent) == (True, True, False)
