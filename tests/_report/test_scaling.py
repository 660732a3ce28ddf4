"""The what-if of many chips: the curves of a run over ranks and what its transfers cost."""

from types import SimpleNamespace

import ledgers
import numpy as np
import pytest

from trnpy import dist
from trnpy._nki.instances import INSTANCES
from trnpy._report import scaling
from trnpy._report.page import page
from trnpy._report.run_record import Rank
from trnpy._report.text import plain
from trnpy._report.units import modelled
from trnpy.chem._mp2_ranks import _visitors
from trnpy.dist._collectives import even
from trnpy.dist._grids import grids, moved, pieces


def four():
    """Ranks of which the last works twice as long as the others, who wait for it."""
    ranks = []
    for number in range(4):
        works = 2.0 if number == 3 else 1.0
        ranks.append(
            Rank(
                f"host{number // 2}", 100.0, 2.5, works,
                [{"file": "/x/a.py", "line": 3, "op": "numpy.matmul", "calls": 2, "seconds": works}],
                [{"operation": "allreduce", "where": "/x/a.py:4", "calls": 1, "sent": 1000, "waited_s": 2 - works,
                  "moved_s": 0.25}],
                [
                    (100.0, works, "host", "numpy.matmul at /x/a.py:3", -1),
                    (102.0, 0.25, "moves", "allreduce at /x/a.py:4", -1),
                ],
            )
        )  # fmt: skip
    return ranks


def test_transfers_cost_more_between_instances_and_nothing_alone():
    instance = INSTANCES["trn2.48xlarge"]
    assert scaling.moved_s(instance, 1, 1e9, 5) == 0
    inside, outside = (scaling.moved_s(instance, ranks, 1e9, 1) for ranks in (128, 256))
    assert inside == pytest.approx(0.15e-3 + 6 * 0.6e-3 + 1e9 / 22.2e9, rel=1e-12)  # docs/hardware.md#generations
    assert outside == pytest.approx(0.15e-3 + 6 * 0.6e-3 + 2 * 15e-6 + 1e9 / (3.2e12 / 8 / 128), rel=1e-12)
    assert scaling.chips(instance) == [1, 2, 4, 8, 16, 32, 64, 128, 256]
    # An all_gather of 32 MiB by 32 cores of a trn1, its copies and the barrier included, took 6.14 ms (kiln).
    gathered = scaling.moved_s(INSTANCES["trn1.32xlarge"], 32, 2**25 * 31 / 32, 1)
    assert gathered == pytest.approx(6.14e-3, rel=0.05)


def test_a_run_over_ranks_has_curves_of_more_chips():
    ledger = ledgers.small()
    assert scaling.curve(ledger) is None
    ledger.ranks = four()
    found = scaling.curve(ledger)
    assert [p.chips for p in found.strong] == scaling.chips(INSTANCES["trn2.48xlarge"])
    # Each of 4 ranks sent 1000 bytes of an allreduce, 2 (p - 1) / p of its array.
    ranks = 64 * 8
    sent = 1000 * (ranks - 1) / ranks / (3 / 4)
    moved = scaling.moved_s(INSTANCES["trn2.48xlarge"], ranks, sent, 1)
    at = next(p for p in found.strong if p.chips == 64)
    assert at.moved_s == pytest.approx(moved, rel=1e-12) and at.instances == 4
    assert at.seconds <= found.strong[0].seconds and found.weak[0].work_s == found.weak[-1].work_s
    assert "; 16 chips " in plain(ledger) and "256 chips" in plain(ledger) and "(modelled)" in plain(ledger)
    assert f"; 16 chips {modelled(found.strong[4].seconds)}, " in plain(ledger)  # an interval
    assert 'class="curves"' in page(ledger) and "; 16 chips " in page(ledger)
    assert len(ledger.to_dict()["scaling"]["weak"]) == 9
    picture = scaling.picture([found], 16)
    assert picture.count("<polyline") == picture.count(">chips<") == 2


@pytest.mark.parametrize("operation", ["grid", "visit", "alltoall"])
def test_bytes_of_grids_and_visits_grow_as_those_of_the_operation(operation):
    """Of 4 ranks and of 16, counted: square operands on a grid, DF-MP2's visitors, arrays cut along another axis."""
    n, nocc = 64, 16

    def program():
        c = dist.comm()
        if operation == "grid":
            a, b = dist.scatter(np.ones((n, n))), dist.scatter(np.ones((n, n)), 1)
            part = grids(["ij", "jk"], "ik", {x: even(n, c.size) for x in "ik"}, c.size)
            square = next(grid for grid in part if grid.shape[0] == grid.shape[1])
            needs = [square.blocks(labels, (n, n), dict.fromkeys("ijk", n)) for labels in ("ij", "jk", "ik")]
            a.part(needs[0], "grid"), b.part(needs[1], "grid")
            result = np.ones([last - first for first, last in needs[2][c.rank]])
            moved(result, needs[2], pieces((n, n), 0, a.edges), c, "grid")
        elif operation == "visit":
            share = SimpleNamespace(nvir=3, naux=5, read=lambda i, j: np.ones((j - i, 3, 5)))
            for turn in range(1, c.size // 2 + 1):
                _visitors(share, c, even(nocc, c.size), (turn, 0), nocc)()
        else:
            dist.scatter(np.ones((n, n))).along(1)
        return [line.sent for line in c.traffic.lines.values() if line.operation == operation]

    few, many = (sum(map(sum, dist.threads(ranks, program))) / ranks for ranks in (4, 16))
    scale = scaling.SENT[operation][0]
    assert many / few == pytest.approx(scale(16) / scale(4), rel=0.01)
