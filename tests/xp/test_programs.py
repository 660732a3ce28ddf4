"""Random programs of Arrays and of NumPy's arrays have the same bits, whatever is computed when."""

import gc

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from trnpy import xp
from trnpy.xp import _blocks
from trnpy.xp._graph import GraphCounters, Node
from trnpy.xp._nodes import Small

N = 6
LINALG = {
    "inv": (lambda x: xp.linalg.inv(x + 9 * xp.eye(N)), lambda a: np.linalg.inv(a + 9 * np.eye(N))),
    "eigvalsh": (lambda x: xp.linalg.eigvalsh(x + x.T), lambda a: np.linalg.eigvalsh(a + a.T)),
    "qr": (lambda x: xp.linalg.qr(x).R, lambda a: np.linalg.qr(a).R),
}


def floor(a):
    """NumPy 2.0 makes floats of integers."""
    return +a if a.dtype.kind in "iu" else np.floor(a)


ONE = {
    "sin": (xp.sin, np.sin), "negative": (xp.negative, np.negative), "floor": (xp.floor, floor),
    "isfinite": (xp.isfinite, np.isfinite), "T": (lambda x: xp.permute_dims(x, range(x.ndim)[::-1]), np.transpose),
    "row": (lambda x: x[1], lambda a: a[1]), "sum": (lambda x: xp.sum(x, axis=0), lambda a: a.sum(0)),
    "reversed": (lambda x: x[::-1, 1:], lambda a: a[::-1, 1:]),
    "max": (lambda x: xp.max(x, axis=-1, keepdims=True), lambda a: a.max(-1, keepdims=True)),
    "ravel": (lambda x: xp.reshape(x, (-1,)), lambda a: a.reshape(-1)), "sort": (xp.sort, np.sort),
    "float32": (lambda x: xp.astype(x, xp.float32), lambda a: a.astype("f4")),
    "integers": (lambda x: xp.astype(xp.clip(x, -9.0, 9.0), xp.int8), lambda a: np.clip(a, -9.0, 9.0).astype("i1")),
    "column": (lambda x: x[..., 1:2], lambda a: a[..., 1:2]), "flip": (xp.flip, np.flip),
    "pairs": (lambda x: xp.reshape(x, (2, -1)), lambda a: a.reshape(2, -1)),
    "new axis": (lambda x: xp.expand_dims(x, axis=0), lambda a: a[None]),
    "diagonal": (xp.linalg.diagonal, np.linalg.diagonal),
    "double": (lambda x: 2 * x, lambda a: 2 * a), "half": (lambda x: x / 2.0, lambda a: a / 2.0),
}  # fmt: skip
TWO = {
    "+": (lambda x, y: x + y, lambda a, b: a + b), "*": (lambda x, y: x * y, lambda a, b: a * b),
    "-": (lambda x, y: x - y, lambda a, b: a - b), "<": (lambda x, y: x < y, lambda a, b: a < b),
    "@": (lambda x, y: x @ y, lambda a, b: a @ b), "maximum": (xp.maximum, np.maximum),
    "concat": (lambda x, y: xp.concat([x, y]), lambda a, b: np.concatenate([a, b])),
    "where": (lambda x, y: xp.where(x > 0, x, y), lambda a, b: np.where(a > 0, a, b)),
    "tensordot": (lambda x, y: xp.tensordot(x, y, axes=1), lambda a, b: np.tensordot(a, b, axes=1)),
}  # fmt: skip


class Programs(RuleBasedStateMachine):
    """Pairs of an Array and NumPy's array. What is a view of what in NumPy is so here."""

    small = -1  # the most elements of an array whose operations are computed at once
    least = 8  # elements of arrays whose chains are computed in blocks, of 3

    @initialize(seed=st.integers(0, 99))
    def start(self, seed):
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(Small, "elements", self.small)
        self.patch.setattr(_blocks, "LEAST", self.least)
        self.patch.setattr(_blocks, "BLOCK", 3)
        first = np.random.default_rng(seed).standard_normal((3, N, N))
        self.pairs = [(xp.asarray(a), a.copy()) for a in first]

    def chosen(self, i):
        return self.pairs[i % len(self.pairs)]

    def add(self, call, theirs, *given):
        """Both results, or the same class of error from both."""
        arrays = [a for _, a in given]
        with np.errstate(all="ignore"):
            try:
                expected = theirs(*arrays)
            except Exception as error:
                with pytest.raises(type(error)):
                    np.asarray(call(*[x for x, _ in given]))
                return
            result = call(*[x for x, _ in given])
        assert (result.shape, result.dtype) == (np.shape(expected), np.asarray(expected).dtype)
        if result.size < 500:
            self.pairs.append((result, np.asarray(expected)))

    @rule(name=st.sampled_from(sorted(ONE)), i=st.integers(0, 99))
    def one(self, name, i):
        self.add(*ONE[name], self.chosen(i))

    @rule(name=st.sampled_from(sorted(TWO)), i=st.integers(0, 99), j=st.integers(0, 99))
    def two(self, name, i, j):
        self.add(*TWO[name], self.chosen(i), self.chosen(j))

    @rule(name=st.sampled_from(sorted(LINALG)), i=st.integers(0, 2))
    def factored(self, name, i):
        self.add(*LINALG[name], self.pairs[i])

    @rule(i=st.integers(0, 99), value=st.sampled_from([0, 1, 5]))
    def assigned(self, i, value):
        x, a = self.chosen(i)
        if not a.flags.writeable:
            with pytest.raises(ValueError, match="read-only"):
                x[..., :1] = value
        elif a.ndim:
            x[..., :1] = value
            a[..., :1] = value

    @rule(i=st.integers(0, 99), j=st.integers(0, 99))
    def assigned_from(self, i, j):
        (x, a), (y, b) = self.chosen(i), self.chosen(j)
        if a.ndim and b.ndim and a.flags.writeable:
            x[..., -1:] = y[..., :1] if b.shape[:-1] == a.shape[:-1] else y[(0,) * b.ndim]
            with np.errstate(all="ignore"):
                a[..., -1:] = b[..., :1] if b.shape[:-1] == a.shape[:-1] else b[(0,) * b.ndim]

    @rule(i=st.integers(0, 99))
    def added_to(self, i):
        x, a = self.chosen(i)
        if a.dtype.kind == "f" and a.flags.writeable:
            place = x
            x += 0.5
            a += np.asarray(0.5, a.dtype)
            assert place is x

    @rule(i=st.integers(0, 99))
    def read(self, i):
        x, a = self.chosen(i)
        np.testing.assert_array_equal(np.asarray(x), a)

    @precondition(lambda self: len(self.pairs) > 8)
    @rule(i=st.integers(3, 99))
    def dropped(self, i):
        del self.pairs[3 + i % (len(self.pairs) - 3)]

    @invariant()
    def shapes_are_known(self):
        assert all(x.shape == a.shape for x, a in getattr(self, "pairs", ()))

    def teardown(self):
        for x, a in getattr(self, "pairs", ()):
            with np.errstate(all="ignore"):
                np.testing.assert_array_equal(np.asarray(x), a)
        if hasattr(self, "patch"):
            self.patch.undo()


class SomeSmall(Programs):
    small = 2 * N


class AllSmall(Programs):
    small = Small.elements


TestPrograms, TestSomeSmall, TestAllSmall = Programs.TestCase, SomeSmall.TestCase, AllSmall.TestCase


def test_nothing_is_left_of_arrays_that_are_gone(monkeypatch):
    def made():
        x = xp.asarray(np.ones((N, N)))
        y = (x @ x + x) * 2.0
        return float(xp.sum(y[1:] + y[:-1]))

    monkeypatch.setattr(Small, "elements", -1)
    made()
    gc.collect()
    nodes, copied = sum(isinstance(o, Node) for o in gc.get_objects()), GraphCounters.copied
    for _ in range(10):
        made()
    gc.collect()
    assert sum(isinstance(o, Node) for o in gc.get_objects()) == nodes and GraphCounters.copied == copied
