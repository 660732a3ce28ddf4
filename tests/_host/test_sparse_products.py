"""Routes of sparse products by BLAS: blocks below the limit go to SciPy, and non-finite results are its to give."""

import numpy as np
import pytest
import scipy.sparse

from trnpy._host import sparse_products


@pytest.mark.parametrize("block", [14, 16])
def test_small_blocks_are_multiplied_by_scipys_loop(block):
    a = scipy.sparse.bsr_array(np.ones((20 * block, 20 * block)), blocksize=(block, block))
    assert sparse_products._may_block((a, a), {}) == (block >= 16)
