"""Plans of contractions of sharded arrays: what each rank computes, what is sent, and what other plans would cost."""

import numpy as np
import pytest

import trnpy
from trnpy import dist


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


@pytest.mark.parametrize("reproducible", [False, True])
def test_plans_that_are_not_taken_are_in_the_order_of_their_times(reproducible):
    def program():
        a, b = dist.scatter(np.ones((400, 300)), 1), dist.scatter(np.ones((300, 20)), 1)
        return dist.einsum_plan("ij,jk->ik", a, b, axis=0, reproducible=reproducible)

    plan = dist.threads(4, program)[0]
    assert {p.label for p in (plan, *plan.others)} >= {"i", "j", "k"}
    times = [p.seconds for p in plan.others]
    assert times == sorted(times) and len(set(times)) > 1
