"""One report for all ranks of a program: figures of each, of each line, and a row of the timeline."""

import json

import ledgers
import numpy as np
from test_page import Reader

import trnpy
from trnpy import dist
from trnpy._report.page import page
from trnpy._report.ranks import Rank, by_line, imbalance, parsed, payload
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
                [(100.0, works, "host", "numpy.matmul at /x/a.py:3"), (102.0, 0.25, "moves", "allreduce at /x/a.py:4")],
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
