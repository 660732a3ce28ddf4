"""What is a view and what a copy: as with NumPy's arrays, whether operations are recorded or computed at once."""

import copy
import sys

import numpy as np
import pytest

import trnpy
from trnpy import xp
from trnpy.xp import _array, _evaluate
from trnpy.xp._evaluate import write
from trnpy.xp._nodes import Small

RNG = np.random.default_rng(0)
A = RNG.standard_normal((2, 4, 4))

# Calls that take the namespace and an array of shape (2, 4, 4).
VIEWS = {
    "element of the first axis": lambda n, x: x[1, ...],
    "slice": lambda n, x: x[:, 1:3, :],
    "steps": lambda n, x: x[::-1, :, ::2],
    "new axis": lambda n, x: x[:, None, ...],
    "ellipsis": lambda n, x: x[..., 2],
    "one element with an ellipsis": lambda n, x: x[0, 1, 2, ...],
    "slice of a slice": lambda n, x: x[1:, ...][0, ::2, :][:, 1:],
    "mT": lambda n, x: x.mT,
    "T of a slice": lambda n, x: x[0, ...].T,
    "row of a transpose": lambda n, x: x.mT[1, 2, :],
    "matrix_transpose": lambda n, x: n.matrix_transpose(x),
    "permute_dims": lambda n, x: n.permute_dims(x, (2, 0, 1)),
    "moveaxis": lambda n, x: n.moveaxis(x, 0, -1),
    "expand_dims": lambda n, x: n.expand_dims(x, axis=1),
    "squeeze": lambda n, x: n.squeeze(x[:1, ...], axis=0),
    "flip": lambda n, x: n.flip(x, axis=1),
    "reshape": lambda n, x: n.reshape(x, (8, 4)),
    "reshape of a slice": lambda n, x: n.reshape(x[1, ...], (-1,)),
    "unstack": lambda n, x: (n.unstack(x) if hasattr(n, "unstack") else x)[1],  # NumPy 2.0 has none
    "broadcast_to": lambda n, x: n.broadcast_to(x, (3, 2, 4, 4)),
    "diagonal": lambda n, x: n.linalg.diagonal(x),
}
COPIES = {
    "one element": lambda n, x: x[0, 1, 2],
    "mask": lambda n, x: x[x > 0],
    "indices": lambda n, x: n.take(x, n.asarray([0, 1]), axis=1),
    "reshape of a transpose": lambda n, x: n.reshape(x.mT, (8, 4)),
    "sum": lambda n, x: n.sum(x, axis=0),
    "real values": lambda n, x: n.astype(x, n.float64),
    "positive": lambda n, x: +x,
    "concat of one": lambda n, x: n.concat([x]),
    "asarray with copy": lambda n, x: n.asarray(x, copy=True),
    "tril": lambda n, x: n.tril(x),
    "where": lambda n, x: n.where(x > 9, x + 1, x),
    "sort": lambda n, x: n.sort(x),
    "roll": lambda n, x: n.roll(x, 0),
    "repeat": lambda n, x: n.repeat(x, 1),
    "unique_values": lambda n, x: n.unique_values(x),
    "clip": lambda n, x: n.clip(x),
}
READ_ONLY = ("broadcast_to", "diagonal")


@pytest.fixture(params=["recorded", "at once"])
def how(request, monkeypatch):
    """Whether operations on the small arrays of a test are recorded."""
    if request.param == "recorded":
        monkeypatch.setattr(Small, "elements", -1)
    return request.param


def states(made):
    """The same numbers as an Array of known values, and as one whose values wait if it is recorded."""
    known = xp.asarray(made)
    return {"known": known, "waiting": xp.asarray(made - 1.0) + 1.0}


@pytest.mark.parametrize("state", ["known", "waiting"])
@pytest.mark.parametrize("name", VIEWS)
def test_a_view_writes_through_and_sees_writes(name, state, how):
    a = A - 1.0 + 1.0
    x = states(A)[state] if state == "waiting" else xp.asarray(a)
    y, b = VIEWS[name](xp, x), VIEWS[name](np, a)
    x[1, 2, :] = 7.0
    a[1, 2, :] = 7.0
    np.testing.assert_array_equal(np.asarray(y), b)
    if name in READ_ONLY:
        with pytest.raises(ValueError, match="read-only"):
            y[...] = 0.0
        return
    y += 1.0
    b += 1.0
    np.testing.assert_array_equal(np.asarray(x), a)
    y[...] = xp.asarray(3.0) * y
    b[...] = 3.0 * b
    x *= 2.0
    a *= 2.0
    np.testing.assert_array_equal(np.asarray(y), b)
    np.testing.assert_array_equal(np.asarray(x), a)


@pytest.mark.parametrize("state", ["known", "waiting"])
@pytest.mark.parametrize("name", COPIES)
def test_a_copy_does_not(name, state, how):
    x = states(A)[state]
    y = COPIES[name](xp, x)
    before = np.array(y)
    x += 1.0
    np.testing.assert_array_equal(np.asarray(y), before)
    y[...] = 5.0
    np.testing.assert_array_equal(np.asarray(x), A - 1.0 + 1.0 + 1.0 if state == "waiting" else A + 1.0)


@pytest.mark.parametrize("name", [n for n in VIEWS if n not in READ_ONLY] + list(COPIES))
def test_writes_as_with_array_api_strict(name, how):
    strict = pytest.importorskip("array_api_strict", reason="array_api_strict is not installed")
    call = {**VIEWS, **COPIES}[name]
    x, s = xp.asarray(A), strict.asarray(A.copy())
    y, t = call(xp, x), call(strict, s)
    y[...] = xp.astype(y, y.dtype) + 2.0
    t[...] = strict.astype(t, t.dtype) + 2.0
    np.testing.assert_array_equal(np.asarray(y), np.asarray(t))
    np.testing.assert_array_equal(np.asarray(x), np.asarray(s))


def test_scikit_learns_diagonal_of_a_slice(how):
    c = xp.zeros((2, 3, 3))
    d = c[0, :, :]
    for i in range(3):
        d[i, i] += 1.0
    np.testing.assert_array_equal(np.asarray(c), [np.eye(3), np.zeros((3, 3))])


def test_a_write_changes_no_result_that_was_recorded_before(how):
    a = RNG.standard_normal((6, 6))
    x = xp.asarray(a)
    view = x[1:, :]
    y, z, total = x * 2.0, view + 1.0, xp.sum(view)
    view[:, 0] = 9.0
    x += 1.0
    np.testing.assert_array_equal(np.asarray(y), a * 2.0)
    np.testing.assert_array_equal(np.asarray(z), a[1:] + 1.0)
    np.testing.assert_array_equal(np.asarray(total), np.sum(a[1:]))


def test_parts_of_complex_numbers_are_views(how):
    a = A[0] + 1j * A[1]
    x = xp.asarray(a)
    x.real[0] = 1.0
    x.imag[:, 1] += 2.0
    a.real[0] = 1.0
    a.imag[:, 1] += 2.0
    np.testing.assert_array_equal(np.asarray(x), a)
    np.testing.assert_array_equal(np.asarray(xp.asarray(A).imag), np.zeros_like(A))


def test_overlapping_parts_are_written_as_by_numpy(how):
    a = np.arange(10.0)
    x = xp.asarray(a)
    x[1:] = x[:-1]
    a[1:] = a[:-1]
    x[:-1] += x[1:]
    a[:-1] += a[1:]
    x[::-1] -= x
    a[::-1] -= a
    np.testing.assert_array_equal(np.asarray(x), a)


def test_an_update_of_a_part_writes_once(how, monkeypatch):
    writes = []
    monkeypatch.setattr(_evaluate, "write", lambda *args: writes.append(args[2]) or write(*args))
    monkeypatch.setattr(_array, "write", _evaluate.write)
    x, a = xp.asarray(np.arange(10.0)), np.arange(10.0)
    for v in (x, a):
        v[1:-1] += 2.0 * v[:-2]
        v[2:][::2] *= 3.0
        v[3] -= 1.0
    np.testing.assert_array_equal(np.asarray(x), a)
    # NumPy itself updates parts of computed values; without a C compiler one element is written.
    assert len(writes) == 3 if how == "recorded" else len(writes) <= 1


def test_a_part_that_is_assigned_to_another_one_is_written(how):
    x, a = xp.asarray(A[0]), A[0].copy()
    for v in (x, a):
        v[1] = v[2]
        v[True] = v[1]
        v[:] = v[::-1]
        v[[0, 1]] = v[[1, 2]]
        v[0:2] = v[0:2]
    np.testing.assert_array_equal(np.asarray(x), a)


def test_a_part_of_an_array_that_cannot_be_written_is_refused(how):
    x = xp.broadcast_to(xp.asarray(np.arange(4.0)), (3, 4))
    with pytest.raises(ValueError, match="read-only"):
        x[1] = x[1]


def test_copies_and_exported_values_do_not_change(how):
    x = xp.asarray(A)
    exported, taken = np.from_dlpack(x), np.array(x)
    other, deep = copy.copy(x), copy.deepcopy(x)
    x[0] = 5.0
    x.mT[1] = 4.0
    for before in (taken, exported, other, deep):
        np.testing.assert_array_equal(np.asarray(before), A)
    taken[...] = 0.0
    assert float(x[0, 0, 0]) == 5.0


def test_trusted_memory_is_never_written(how):
    a = A.copy()
    a.flags.writeable = False
    x = xp.asarray(a)
    y = x[0]
    y += 1.0
    x[1] = 0.0
    np.testing.assert_array_equal(a, A)
    np.testing.assert_array_equal(np.asarray(y), A[0] + 1.0)


BAD = {
    "shape": lambda n, x: x.__setitem__(0, n.ones(3)),
    "in place": lambda n, x: x[0].__iadd__(n.ones((5, 4, 4))),
    "index": lambda n, x: x[0].__setitem__((9, 1), 1.0),
    "of a view": lambda n, x: x[0][1:].__setitem__(..., n.ones((4, 4))),
}


@pytest.mark.parametrize("name", BAD)
def test_a_wrong_write_raises_as_numpy_and_leaves_the_array(name, how):
    x = xp.asarray(A)
    with pytest.raises((ValueError, IndexError)) as theirs:
        BAD[name](np, A.copy())
    with pytest.raises(type(theirs.value)):
        BAD[name](xp, x)
    np.testing.assert_array_equal(np.asarray(x), A)


def test_ownership_does_not_rest_on_the_interpreters_counts(monkeypatch, how):
    """Python 3.14 does not count what a local variable lends: one reference less, as here, or none at all."""
    counts = sys.getrefcount
    for less in (1, 100):
        monkeypatch.setattr(sys, "getrefcount", lambda x, less=less: counts(x) - less)
        x = trnpy.asarray(np.arange(6.0))
        y = x + 1
        np.asarray(y)
        w = (y * 2) + 1
        np.asarray(w)
        v = (w - y) * w
        v += y
        a = np.arange(6.0)
        expected = {"v": (a + 2) * (2 * a + 3) + (a + 1), "y": a + 1, "w": 2 * a + 3, "x": a}
        for name, found in {"v": v, "y": y, "w": w, "x": x}.items():
            np.testing.assert_array_equal(np.asarray(found), expected[name], err_msg=name)


def test_element_after_element_copies_no_array(how):
    """Writes of single elements into a large array would else take a copy each."""
    x = xp.asarray(np.zeros(1000))
    memory = x._ready()
    for i in range(1, 1000):
        x[i] = x[i - 1] + 1.0
    assert np.shares_memory(x._ready(), memory) or how == "recorded"
    np.testing.assert_array_equal(np.asarray(x), np.arange(1000.0))


def test_broadcast_arrays_of_one_shape_are_the_arrays():
    x, y = xp.asarray(A), xp.asarray(A)
    first, _ = xp.broadcast_arrays(x, y)
    first[0] = 1.0
    assert float(xp.sum(x[0])) == A[0].size
