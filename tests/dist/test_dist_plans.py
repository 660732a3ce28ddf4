"""Plans of contractions of sharded arrays: what each rank computes, what is sent, and what other plans would cost."""

from tests.dist.test_dist_grids import GRIDS, only_blocks_are_cheap, taken

import itertools

import numpy as np
import pytest

import trnpy
from trnpy import dist
from trnpy.dist import _grids, _plans


def test_one_rank_may_ask_for_a_plan_alone():
    def program():
        s = dist.scatter(np.ones((6, 4)))
        plan = dist.einsum_plan("ij,ik->jk", s, s).label if dist.comm().rank == 0 else "i"
        return plan, float(dist.comm().allreduce(1.0))

    assert dist.threads(3, program) == [("i", 3.0)] * 3


@pytest.mark.parametrize("ranks", [1, 3])
def test_trnpys_einsum_plan_plans_pieces(ranks):
    def program():
        a = dist.scatter(np.ones((60, 40)))
        for call in (
            ("ij,jk->ik", a, np.ones((40, 9))),
            ("jk,ij->ik", np.ones((40, 9)), a),
            (a, [0, 1], a, [2, 1], [0, 2]),
        ):
            assert trnpy.einsum_plan(*call, axis=None) == dist.einsum_plan(*call, axis=None)

    dist.threads(ranks, program)


def test_a_plan_shows_intervals_and_what_the_other_plans_cost():
    a, b = np.ones((400, 300)), np.ones((300, 200))

    def program():
        return dist.einsum_plan("ij,jk->ik", dist.scatter(a, 0), dist.scatter(b, 1))

    plan = dist.threads(4, program)[0]
    (other,) = (p for p in plan.others if p.grid is None)
    assert (plan.label, other.label) == ("i", "k") and plan.seconds < other.seconds
    assert [(s.action, s.what, s.bytes) for s in other.steps] == [
        ("gather", "ij", a.nbytes * 3 / 4), ("product", "ik", 0.0), ("reshard", "ik", 400 * 200 * 8 * 3 / 16),
    ]  # fmt: skip
    shown = str(plan).splitlines()
    for row, s in zip(shown[1:], (*plan.steps, *plan.others), strict=True):
        assert row.endswith(f"{s.bytes:.3g} bytes   {s.seconds / 3:.2g} to {s.seconds * 3:.2g} s")
    assert shown[0].endswith(f"{plan.seconds / 3:.2g} to {plan.seconds * 3:.2g} s modelled")
    assert sorted(row[:38].strip() for row in shown[-2:]) == [
        "not taken: ranges of 'ik' on 2 x 2", "not taken: ranges of 'k'",
    ]  # fmt: skip


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
