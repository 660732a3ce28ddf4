"""Products of many matrices on the device path."""

import numpy as np
import pytest
from doubles import RecordingEngine

from linalg.rows import forced

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
