"""Rows that look like the next: what is told of one, of all and of a sample agrees."""

import numpy as np
import pytest
import scipy.sparse

from trnpy._host import spmm


@pytest.mark.parametrize("seed", range(4))
def test_a_row_is_told_like_all_rows_are(seed):
    rng = np.random.default_rng(seed)
    pattern = np.repeat(rng.random((40, 12)) < 0.3, rng.integers(1, 4, 40), axis=0)
    pattern[10:14] = False
    a = scipy.sparse.csr_array(pattern)
    rows = np.arange(a.shape[0] - 1)
    alike = spmm._like_the_next(a.indptr, a.indices, rows)
    assert 0 < alike.sum() < len(rows)
    assert [spmm._is_like_the_next(a.indptr, a.indices, i) for i in rows.tolist()] == alike.tolist()


@pytest.mark.parametrize("rows", (2, 3, 17, 31, 32, 33, 1024, 1000))
def test_a_sample_tells_groups_from_rows_that_differ(rows):
    together = scipy.sparse.csr_array(np.kron(np.eye(-(-rows // 8)), np.ones((8, 8)))[:rows])
    assert spmm.may_group(together.indptr, together.indices) is True
    apart = scipy.sparse.csr_array(np.tri(rows))
    assert spmm.may_group(apart.indptr, apart.indices) is False


@pytest.mark.parametrize("rows", (0, 1))
def test_fewer_than_two_rows_have_no_next(rows):
    assert spmm.may_group(np.zeros(rows + 1, int), np.zeros(0, int)) is False


def test_half_of_the_rows_are_enough_and_fewer_are_not():
    """Row 2 i is like row 2 i + 1, and that is not like row 2 i + 2: half of 14 pairs, 6 of 13."""
    alternating = scipy.sparse.csr_array(np.repeat(np.tri(8), 2, axis=0))
    even, odd = alternating[1:], alternating[1:15]
    assert spmm.may_group(even.indptr, even.indices) is True
    assert spmm.may_group(odd.indptr, odd.indices) is False
    assert spmm.may_group(alternating.indptr, alternating.indices) is True
