"""One report for all ranks of a program: figures of each, of each line, and a row of the timeline."""

import json

import ledgers
import numpy as np
from test_page import Reader

import trnpy
from trnpy import dist
from trnpy._report.page import page
from trnpy._report.ranks import by_line, imbalance, parsed, payload
from trnpy._report.run_record import Rank
from trnpy._report.text import plain
from trnpy.dist._collectives import report


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


def test_lines_are_added_up_over_ranks():
    product, sums = by_line(four())
    assert (product.where, product.calls, product.seconds) == ("/x/a.py:3", 8, [1.0, 1.0, 1.0, 2.0])
    assert product.imbalance == 1.6
    assert (sums.what, sums.sent, sums.waited_s) == ("allreduce", 4000, [1.0, 1.0, 1.0, 0.0])
    assert imbalance(four()) == 2.25 / 1.5


def test_text_and_page_say_what_each_rank_did():
    ledger = ledgers.small()
    ledger.ranks = four()
    said = plain(ledger)
    assert "4 ranks: 2.50 s, 30% of it waiting and 10% transfers of 4.00 kB; the busiest rank works 1.50 times" in said
    assert "by rank (measured)\nrank  host   run time" in said
    assert "/x/a.py:4  allreduce         4" in said
    text = page(ledger)
    read = Reader(text)
    assert len(read.rows["by0"]) == 5 and read.rows["by0"][4][:2] == ["3", "host1"]
    assert text.count("rank 3: ") == 2 and 'class="moves"' in text
    assert [r["waited_s"] for r in ledger.to_dict()["ranks"]] == [1.0, 1.0, 1.0, 0.0]
    assert "rank" not in plain(ledgers.small())


def test_ranks_send_their_ledger_and_their_traffic():
    def program():
        c = dist.comm()
        with trnpy.profile() as ledger:
            c.allreduce(np.ones(10))
        report(c, ledger)
        return ledger

    first, *others = dist.threads(3, program)
    assert [ledger.ranks for ledger in others] == [[], []]
    assert len(first.ranks) == 3
    for rank in first.ranks:
        (line,) = rank.collectives
        assert line["operation"] == "allreduce" and line["where"].partition(":")[0] == __file__ and line["sent"] == 160
    assert parsed([payload(first)])[0].collectives == []
    json.dumps(first.to_dict())


def run_on(*calls):
    """A ledger of calls: seconds on two NeuronCores where ``engine`` is neuron, on the host else."""
    ledger = ledgers.Ledger("cores.py", opened=ledgers.OPENED)
    at = ledgers.frame("/x/a.py", 3)
    for engine, cores in calls:
        d = ledgers.decision("numpy.matmul", 4.5, 1.5, on_device=engine == "neuron", engine=engine, cores=cores)
        ledger.add(d, ledgers.OPENED + 1, 4.0, at)
    ledger.closed = ledgers.OPENED + 10
    return ledger


def test_a_rank_has_a_row_for_each_of_its_cores():
    measured, unused = run_on(("neuron", 2), ("host", 1)), run_on(("host", 2), ("host", 1))
    ranks = parsed([payload(measured), payload(unused)])
    kinds = [sorted((kind, core) for _, _, kind, _, core in r.events) for r in ranks]
    assert kinds[0] == [("device", 0), ("device", 1), ("host", -1)]
    assert kinds[1] == [("host", -1), ("host", -1), ("modelled", 0), ("modelled", 0), ("modelled", 1)]
    assert {e[1] for e in ranks[1].events if e[2] == "modelled"} == {1.5}
    measured.ranks = ranks
    text = page(measured)
    rows = [f"<span>rank {r}{where}</span>" for r in (0, 1) for where in ("", ", core 0", ", core 1")]
    assert "".join(rows) in text and 'style="height:132px"' in text
    assert text.count("<title>rank 0, core 1: ") == 1 and text.count("<title>rank 1, core 1: ") == 1
    assert "on a NeuronCore, if it had one (modelled)" in text and "waiting for other ranks" not in text


def test_one_process_has_a_lane_for_each_core():
    text = page(run_on(("neuron", 2), ("host", 1)))
    assert "<span>host</span><span>trn2, core 0, measured</span><span>trn2, core 1, measured</span>" in text
    assert "<span>trn2, measured</span>" in page(run_on(("neuron", 1)))
