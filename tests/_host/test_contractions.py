"""Routes of NumPy's products: which operands are looked at, and which calls stay with NumPy."""

import numpy as np
import pytest

import trnpy
from trnpy._call.dispatch import Reason
from trnpy._host import contractions


@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 1.0])
@pytest.mark.parametrize("order", ["C", "F"])
def test_bools_of_which_many_are_true_stay_numpys_whose_loop_stops_at_the_first_pair(share, order):
    rng = np.random.default_rng(0)
    a, b = (np.asarray(rng.random((600, 600)) < share, order=order) for _ in range(2))
    with trnpy.trace() as log:
        np.testing.assert_array_equal(trnpy.matmul(a, b), np.matmul(a, b))
    seen = share < 0.5  # by the look, before anything is decided
    expected = (Reason.ROUTE, True) if share < 0.1 else (Reason.VALUE if seen else Reason.NO_DEVICE, False)
    assert contractions._look((a, b), {}) == seen
    assert [(d.reason, bool(d.route)) for d in log] == [expected]


def test_small_and_skipped_calls_stay_numpys():
    a = np.arange(36).reshape(6, 6)
    with trnpy.trace() as log:
        np.testing.assert_array_equal(trnpy.matmul(a, a), a @ a)
        np.testing.assert_array_equal(trnpy.matmul(a, a, out=np.empty_like(a)), a @ a)
    assert not any(d.route for d in log)
