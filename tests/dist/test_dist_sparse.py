"""Sparse matrices in block rows: products, the rows that they fetch, and what is refused."""

import numpy as np
import pytest
from scipy import sparse

from trnpy import dist

RNG = np.random.default_rng(11)


def matrix(kind, n=60, m=48, dtype="f8"):
    """Integers, whose sums are exact in any order; a band and a few blocks far from it."""
    a = RNG.integers(-4, 5, (n, m)) * (RNG.random((n, m)) < 0.05)
    a += np.where(np.abs(np.subtract.outer(np.arange(n), np.arange(m))) < 3, 1, 0)
    a = a.astype(dtype)
    return sparse.csr_array(a) if kind == "csr" else sparse.bsr_array(a, blocksize=kind)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", ["f4", "f8", "c16", "i8"])
@pytest.mark.parametrize("kind", ["csr", (4, 4), (3, 2), (12, 16)], ids=str)
def test_products_are_those_of_one_rank(kind, dtype, ranks):
    a = matrix(kind, dtype=dtype)
    x = RNG.integers(-4, 5, (48, 5)).astype(dtype)

    def program():
        s = dist.scatter_rows(a)
        for axis in (0, 1):
            found = s @ dist.scatter(x, axis)
            assert (found.axis, found.shape, found.edges) == (0, (60, 5), s.edges) and found.dtype == (a @ x).dtype
            np.testing.assert_array_equal(dist.gather(found), a @ x)
        np.testing.assert_array_equal(dist.gather(s @ dist.scatter(x[:, 0])), a @ x[:, 0])
        np.testing.assert_array_equal(dist.gather(s @ x), a @ x)

    dist.threads(ranks, program)


def test_each_row_is_fetched_once_and_no_other():
    a = matrix((4, 4))
    x = RNG.standard_normal((48, 3))

    def program():
        s, pieces = dist.scatter_rows(a), dist.scatter(x)
        first, last = pieces.range
        blocks = np.unique(s.local.indices)
        outside = [r for b in blocks for r in range(4 * b, 4 * b + 4) if not first <= r < last]
        s @ pieces  # finds the halo
        before = s.comm.sent
        s @ pieces
        sent = s.comm.allgather(s.comm.sent - before).sum()
        assert s.halo == len(outside)
        assert sent == s.comm.allgather(s.halo).sum() * 3 * 8
        return s.halo

    assert max(dist.threads(3, program)) > 0


def test_ragged_pieces_and_ranks_without_rows():
    a = matrix((4, 4))
    x = RNG.integers(-4, 5, 48).astype(float)
    rows, edges = [0, 8, 8, 60], [0, 1, 40, 48]  # the second rank has no rows; x is cut within blocks

    def program():
        c = dist.comm()
        mine = sparse.bsr_array(a.toarray()[rows[c.rank] : rows[c.rank + 1]], blocksize=(4, 4))
        s = dist.SparseRows(mine, (60, 48), c)
        pieces = dist.Sharded(x[edges[c.rank] : edges[c.rank + 1]], 0, (48,), c)
        np.testing.assert_array_equal(dist.gather(s @ pieces), a @ x)

    dist.threads(3, program)


def test_more_ranks_than_block_rows():
    a = sparse.bsr_array(np.arange(16.0).reshape(4, 4), blocksize=(2, 2))

    def program():
        found = dist.scatter_rows(a) @ dist.scatter(np.arange(4.0))
        np.testing.assert_array_equal(dist.gather(found), a @ np.arange(4.0))

    dist.threads(4, program)


def test_power_iteration_fetches_its_halo_again_and_again():
    """The program that such a matrix is for: products in a loop, none of which gathers the vector."""
    n = 40
    a = sparse.diags_array([-np.ones(n - 1), 2 * np.ones(n), -np.ones(n - 1)], offsets=[-1, 0, 1], format="csr")
    start = RNG.standard_normal(n)

    def program():
        s, v = dist.scatter_rows(a), dist.scatter(start)
        for _ in range(3000):
            w = s @ v
            norm = float(np.sqrt(s.comm.allreduce(np.sum(w.local**2))))
            v = dist.Sharded(w.local / norm, 0, (n,), s.comm, w.edges)
        assert s.halo <= 2
        return norm

    largest = np.linalg.eigvalsh(a.toarray())[-1]
    np.testing.assert_allclose(dist.threads(4, program), largest, rtol=1e-6)


def test_what_does_not_fit_is_refused():
    a = matrix("csr")
    with pytest.raises(TypeError, match="coo_array: expected a sparse matrix in bsr or csr format"):
        dist.scatter_rows(a.tocoo())
    with pytest.raises(TypeError, match="ndarray: expected a sparse matrix"):
        dist.SparseRows(a.toarray(), a.shape, dist.comm())
    with pytest.raises(TypeError, match="SparseRows.* is not on one rank"):
        dist.gather(dist.scatter_rows(a))
    with pytest.raises(ValueError, match="expected rows of"):
        dist.SparseRows(a, (61, 48), dist.comm())
    with pytest.raises(ValueError, match=r"shapes \(60, 48\) and \(60, 2\) do not fit"):
        dist.scatter_rows(a) @ dist.scatter(np.ones((60, 2)))

    def program():
        s = dist.scatter_rows(a if dist.comm().rank else a.astype("f4"))
        return s

    with pytest.raises(dist.MismatchedCalls, match="SparseRows of <f4"):
        dist.threads(2, program)


@pytest.mark.mpi
def test_the_same_over_mpi():
    a = matrix((4, 4))
    x = np.random.default_rng(2).integers(-4, 5, (48, 3)).astype(float)
    a.data = np.random.default_rng(1).integers(-4, 5, a.data.shape).astype(float)  # alike on all ranks
    s = dist.scatter_rows(a)
    for _ in range(2):
        np.testing.assert_array_equal(dist.gather(s @ dist.scatter(x)), a @ x)


def test_a_piece_that_is_reordered_keeps_its_products():
    a = sparse.csr_array((np.array([1.0, 2, 3, 4]), np.array([2, 0, 3, 1]), np.array([0, 2, 4, 4, 4])), shape=(4, 4))
    x, s = np.arange(1.0, 5), dist.scatter_rows(a)
    for _ in range(2):
        np.testing.assert_array_equal(dist.gather(s @ dist.scatter(x)), a @ x)
        s.local.sort_indices()
    with pytest.raises(TypeError, match="expected a sparse matrix"):
        dist.scatter_rows(sparse.csr_array(np.array([1.0, 0, 2])))
