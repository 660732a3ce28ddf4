"""Products of many matrices on the device path."""

import itertools
from typing import ClassVar

import numpy as np
import pytest
from doubles import RecordingEngine

import trnpy.linalg
from linalg.rows import forced
from trnpy.linalg import _multi_dot
from trnpy.linalg._multi_dot import order_of

CHAINS = [((40, 5), (5, 60), (60, 3)), ((40,), (40, 60), (60, 7)), ((7, 40), (40, 9), (9,)), ((40,), (40, 9), (9,)),
          ((30, 20), (20, 30)), ((50, 2), (2, 50), (50, 2), (2, 50))]  # fmt: skip


@pytest.mark.parametrize("dtype", ["f4", "f8", "c16"])
@pytest.mark.parametrize("shapes", CHAINS)
def test_products_of_many(shapes, dtype):
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape).astype(dtype) for shape in shapes]
    ours, theirs = forced("numpy.linalg.multi_dot", arrays), np.linalg.multi_dot(arrays)
    assert type(ours) is type(theirs) and np.shape(ours) == np.shape(theirs) and ours.dtype == theirs.dtype
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e3 * float(np.finfo(dtype).eps) * np.abs(theirs).max())
    if np.ndim(theirs) == 2:
        out = np.empty_like(theirs)
        assert forced("numpy.linalg.multi_dot", arrays, out=out) is out
        np.testing.assert_array_equal(out, ours)  # the same products


def test_a_badly_ordered_chain_takes_the_short_way():
    e = RecordingEngine()
    forced("numpy.linalg.multi_dot", [np.ones((50, 2)), np.ones((2, 50)), np.ones((50, 2))], e=e)
    assert sum(2 * np.prod(s) for s in e.shapes) == 2 * (2 * 50 * 2 + 50 * 2 * 2)


class Multiplied(np.ndarray):
    """A matrix that notes the shapes of products in ``shapes``."""

    shapes: ClassVar[list] = []

    def __array_function__(self, function, types, args, kwargs):
        if function is np.dot:
            self.shapes.append(tuple(a.shape for a in args))
        return super().__array_function__(function, types, args, kwargs)


def test_the_order_is_numpys_also_of_orders_that_cost_the_same():
    rng = np.random.default_rng(0)
    for _ in range(300):
        extents = [int(x) for x in rng.integers(1, 5, int(rng.integers(4, 9)))]
        Multiplied.shapes.clear()
        arrays = [np.ones(pair) for pair in itertools.pairwise(extents)]
        np.linalg.multi_dot([a.view(Multiplied) for a in arrays])
        left, found = [a.shape for a in arrays], []
        for i, j in order_of(extents):
            a, b = left[i], left[j]
            found.append((a, b))
            left = [x for k, x in enumerate(left) if k not in (i, j)] + [(a[0], b[1])]
        assert found == Multiplied.shapes, extents


def test_what_overflows_on_the_way_is_numpys():
    rng = np.random.default_rng(0)
    scales = (1e-4, 1e157, 1e-2, 1e154)
    shapes = ((16, 3), (3, 16), (16, 3), (3, 16))
    arrays = [scale * rng.random(shape) for scale, shape in zip(scales, shapes, strict=True)]
    with pytest.warns(RuntimeWarning, match="overflow"):
        theirs = np.linalg.multi_dot(arrays)
    with pytest.warns(RuntimeWarning, match="overflow"):
        ours = forced("numpy.linalg.multi_dot", arrays, runs=False)
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("left, right", [(False, False), (False, True), (True, False), (True, True)])
def test_a_vector_is_one_row_or_column_to_the_order(left, right, monkeypatch):
    seen = []
    monkeypatch.setattr(_multi_dot, "order_of", lambda extents: seen.append(extents) or order_of(extents))
    operands = [*[np.ones(3)] * left, np.ones((3, 4)), np.ones((4, 5)), *[np.ones(5)] * right]
    trnpy.linalg.multi_dot.__trnpy_op__.prepare(operands)
    assert seen == [[*[1] * left, 3, 4, 5, *[1] * right]]
