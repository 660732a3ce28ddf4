"""Products on a grid of ranks, each with a block of the result: values, bytes, and where the model takes them."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.dist.test_dist_sharded_products import CALLS, SIZES, cut, layouts, operands
from trnpy import dist
from trnpy.dist import _grids, _plans

GRIDS = {1: 0, 2: 0, 3: 0, 4: 1, 6: 2, 8: 2, 9: 1, 12: 4}  # grids of so many ranks that are neither a row nor a column


@pytest.fixture(autouse=True)
def only_blocks_are_cheap(request, monkeypatch):
    """Whatever can be computed in blocks is: all other transfers take years, unless the test is of the model."""
    if "model" not in request.node.name:
        monkeypatch.setattr(_plans, "BYTES_PER_S", dict.fromkeys(_plans.BYTES_PER_S, 1e-3) | {"reshard": 1e9})
    _plans.planned.cache_clear()
    yield
    _plans.planned.cache_clear()


def check(subscripts, arrays, parts, whole, axis):
    """Compare one product with that of one rank, and the bytes that all ranks send with the plan's; whether a grid."""
    comm = dist.comm()
    plan = dist.einsum_plan(subscripts, *parts, axis=axis)
    before = comm.sent
    found = dist.einsum(subscripts, *parts, axis=axis)
    sent = int(comm.allreduce(comm.sent - before))
    np.testing.assert_array_equal(dist.gather(found), whole, err_msg=str(plan))
    if plan.grid is not None:
        assert sent == pytest.approx(plan.bytes * comm.size, rel=1e-12)
        assert axis == "kept" or getattr(found, "axis", None) == axis
    return plan.grid is not None


def every_cut(subscripts):
    """Products of all layouts and results; how many on grids."""
    arrays = operands(subscripts)
    whole, taken = np.einsum(subscripts, *arrays), 0
    for axes in layouts(subscripts):
        for axis in ("kept", None, *range(whole.ndim)):
            taken += check(subscripts, arrays, cut(arrays, axes), whole, axis)
    return taken


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("subscripts", [*CALLS[:6], "Pia,Pjb->iajb", "ij,jk,kl->il"])
def test_blocks_have_the_result_of_one_rank_and_send_the_bytes_of_the_plan(subscripts, ranks):
    assert bool(min(dist.threads(ranks, every_cut, subscripts))) == bool(GRIDS[ranks])


@pytest.mark.mpi
@pytest.mark.parametrize("subscripts", ["ij,jk->ik", "ij,jk->ki", "bij,bjk->bik"])
def test_blocks_over_mpi_have_the_result_of_one_rank_and_send_the_bytes_of_the_plan(subscripts):
    assert bool(every_cut(subscripts)) == bool(GRIDS[dist.comm().size])


@settings(deadline=None)
@given(
    st.sampled_from([4, 6, 8, 9]), st.sampled_from(["ij,jk->ik", "bij,bjk->bik", "i,j->ij"]), st.data(),
    st.sampled_from(["?", "i8", "f4", "c16", ">f8"]),
)  # fmt: skip
def test_blocks_of_ragged_pieces_and_any_dtype(ranks, subscripts, data, dtype):
    sizes = {c: data.draw(st.integers(0, 7)) for c in SIZES}
    arrays = operands(subscripts, dtype, sizes)
    axes = [data.draw(st.integers(0, a.ndim - 1)) for a in arrays]
    edges = [
        [0, *sorted(data.draw(st.integers(0, a.shape[axis])) for _ in range(ranks - 1)), a.shape[axis]]
        for a, axis in zip(arrays, axes, strict=True)
    ]
    whole = np.einsum(subscripts, *arrays)

    def program():
        c = dist.comm()
        parts = [
            dist.Sharded(np.take(a, range(*e[c.rank : c.rank + 2]), axis), axis, a.shape, c)
            for a, axis, e in zip(arrays, axes, edges, strict=True)
        ]
        check(subscripts, arrays, parts, whole, "kept")

    dist.threads(ranks, program)


@pytest.mark.parametrize("ranks", GRIDS)
def test_all_grids_of_two_labels_are_tried(ranks):
    edges = {c: [n * i // ranks for i in range(ranks + 1)] for c, n in zip("ik", (9, 20), strict=True)}
    found = list(_grids.grids(["ij", "jk"], "ik", edges, ranks))
    assert len(found) == 2 * GRIDS[ranks]  # either label in rows
    for grid in found:
        cells = {
            cell
            for rows, columns in grid.blocks("ik", (9, 20), {"i": 9, "k": 20})
            for cell in itertools.product(range(*rows), range(*columns))
        }
        assert len(cells) == 180
    assert not list(_grids.grids(["ij", "j"], "i", edges, ranks))


def test_the_model_takes_a_grid_where_it_sends_less_and_the_blocks_fit():
    """At 4 ranks a square product sends as much on a grid as by rows; at 64 a fourth, which brings more than 10 %."""
    assert taken(4, 2048)[0] is None and taken(64, 8192, 8)[0] is None
    grid, gain = taken(64, 2048)
    assert grid == (8, 8) and gain > 1.1
    assert (
        taken(64, 2048, memory=2048 * 2048 - 1)[0] is None
    )  # a row of blocks takes a byte more: pieces pass in a ring


def taken(ranks, n, columns=None, memory=1e12):
    """The grid of the plan of A B for n x n and n x ``columns`` or n, and the time of the best other plan over it."""
    k = columns or n
    edges = tuple(n * i // ranks for i in range(ranks + 1))
    pieces = (
        _plans.Piece((n, n), 8 * n * n, 0, edges),
        _plans.Piece((n, k), 8 * n * k, 1, tuple(k * i // ranks for i in range(ranks + 1))),
    )
    plan = _plans.planned(("ij", "jk"), "ik", pieces, "kept", 8, ranks, memory, False)
    return plan.grid and plan.grid.shape, plan.others[0].seconds / plan.seconds
