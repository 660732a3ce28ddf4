"""Routes of sparse products by BLAS: blocks below the limit go to SciPy, and non-finite results are its to give."""

import numpy as np
import pytest
import scipy.sparse

from trnpy._host import sparse_products
from trnpy._report.reasons import Unsupported


@pytest.mark.parametrize("block", [14, 16])
def test_small_blocks_are_multiplied_by_scipys_loop(block):
    a = scipy.sparse.bsr_array(np.ones((20 * block, 20 * block)), blocksize=(block, block))
    assert sparse_products._may_block((a, a), {}) == (block >= 16)


@pytest.mark.parametrize("layout", ["csr", "csc"])
@pytest.mark.parametrize("apart", [False, True])
def test_rows_that_share_columns_are_one_product_each(layout, apart):
    """Groups of ten rows up to the last element of the matrix, with columns that are consecutive or not."""
    block = np.zeros((10, 24))
    block[:, :: 2 if apart else 1] = np.arange(1.0, 11.0)[:, np.newaxis]
    dense = np.kron(np.eye(3), block)
    a = scipy.sparse.csr_array(dense) if layout == "csr" else scipy.sparse.csc_array(dense.T)
    x = np.random.default_rng(0).standard_normal((a.shape[1], 6))
    route = sparse_products._group_route(a, x, 1)
    assert route is not None
    np.testing.assert_allclose(route.run(), a @ x, rtol=0, atol=1e-11)


def test_results_that_are_not_finite_and_columns_out_of_order_are_scipys():
    a = scipy.sparse.csr_array(np.kron(np.eye(2), np.ones((10, 12))))
    x = np.ones((a.shape[1], 6))
    x[3, 2] = np.inf
    with pytest.raises(Unsupported, match="infs or NaNs"):
        sparse_products._group_route(a, x, 1).run()
    turned = scipy.sparse.csc_array(a.T.toarray())
    for first, after in zip(turned.indptr[:-1], turned.indptr[1:], strict=True):
        turned.indices[first:after] = turned.indices[first:after][::-1].copy()
    with pytest.raises(Unsupported, match="a column has its rows out of order or twice"):
        sparse_products._group_route(turned, np.ones((turned.shape[1], 6)), 1).run()
