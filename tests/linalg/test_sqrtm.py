"""Square roots of positive-definite matrices on the device path; of all others they are SciPy's."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import trnpy.linalg
from linalg.matrices import hermitian, positive
from linalg.rows import LAYOUTS, of_positive_matrices, scipys_unless_positive, scipys_where_products_are_wrong
from trnpy._engine.engines import HOST, engine


@pytest.mark.parametrize("condition", [1e1, 1e4, 1e8])
@pytest.mark.parametrize("dtype", ["f8", "c16"])
def test_sqrtm_of_positive_matrices(dtype, condition):
    of_positive_matrices("sqrtm", lambda x: x @ x, dtype, condition)


def test_what_is_not_positive_definite_beyond_doubt_is_scipys():
    scipys_unless_positive("sqrtm")


def test_a_wrong_product_is_never_returned():
    scipys_where_products_are_wrong("sqrtm", positive(60, "f8", 100.0))


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 20), st.sampled_from(["f8", "c16"]), st.sampled_from(sorted(LAYOUTS)), st.integers(0, 99))
def test_any_layout(n, dtype, layout, seed):
    a = hermitian("random", n, dtype, seed)
    a = LAYOUTS[layout](a / np.linalg.norm(a) + 2 * np.eye(n))
    kept = a.copy()
    a.flags.writeable = False
    with engine(HOST), trnpy.policy(force=True), trnpy.trace() as log:
        root = trnpy.linalg.sqrtm(a)
    assert log[0].on_device, log
    np.testing.assert_allclose(root @ root, kept, rtol=0, atol=1e-12 * np.linalg.norm(kept))
