"""Arrays in pieces: gathered, cut anew, and refused on every rank where the pieces are wrong."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.dist.test_dist_collectives import DTYPES, RANKS, values
from trnpy import dist


@given(
    st.integers(1, 6), st.lists(st.integers(0, 9), min_size=1, max_size=3), st.data(), st.sampled_from(DTYPES)
)  # fmt: skip
def test_pieces_of_any_lengths_are_gathered_and_cut_anew(ranks, shape, data, dtype):
    axis = data.draw(st.integers(0, len(shape) - 1))
    other = data.draw(st.integers(0, len(shape) - 1))
    n = shape[axis]
    edges = sorted(data.draw(st.lists(st.integers(0, n), min_size=ranks - 1, max_size=ranks - 1)))
    edges = [0, *edges, n]
    whole = values(shape, dtype, 0)

    def program():
        c = dist.comm()
        piece = np.take(whole, range(edges[c.rank], edges[c.rank + 1]), axis)
        s = dist.Sharded(piece, axis, shape, c)
        assert s.edges == tuple(edges)
        for x in (s, s.along(other), s.along(other).along(axis, edges), dist.scatter(whole, other)):
            np.testing.assert_array_equal(dist.gather(x), whole)
            assert x.dtype == whole.dtype

    dist.threads(ranks, program)


def test_arrays_with_fields_are_not_sent_without_them():
    a = np.zeros(3, [("x", "f8"), ("y", "i4")])
    for call in (lambda: dist.comm().bcast(a), lambda: dist.scatter(a, root=0)):
        with pytest.raises(TypeError, match="expected no fields"):
            dist.threads(2, call)


def test_wrong_pieces_are_refused_on_every_rank():
    def program():
        c = dist.comm()
        with pytest.raises(ValueError, match=r"lengths \[2, 2, 2\] along axis 0: expected pieces of \(5, 3\)"):
            dist.Sharded(np.zeros((2, 3)), 0, (5, 3), c)
        with pytest.raises(ValueError, match=r"rank 1 has \(2, 4\)"):
            dist.Sharded(np.zeros((2, 4 if c.rank == 1 else 3)), 0, (6, 3), c)
        with pytest.raises(ValueError, match="axis=2 of shape"):
            dist.scatter(np.zeros((2, 3)), 2)
        with pytest.raises(TypeError, match="dtype object"):
            c.allreduce(np.array([None]))
        with pytest.raises(TypeError, match=r"trnpy\.dist\.gather returns the whole array"):
            np.asarray(dist.scatter(np.zeros(4)))

    dist.threads(3, program)


@pytest.mark.parametrize("ranks", RANKS)
def test_one_rank_cuts_what_only_it_has(ranks):
    whole = np.arange(24.0, dtype="f4").reshape(4, 6)

    def program():
        for root in range(ranks):
            s = dist.scatter(whole if dist.comm().rank == root else None, 1, root)
            assert s.dtype == whole.dtype
            np.testing.assert_array_equal(dist.gather(s), whole)

    dist.threads(ranks, program)
