"""Verdicts: what they rest on, and when they stay open."""

from dataclasses import replace

import ledgers
import numpy as np
import pytest
from scipy import sparse

import trnpy
from trnpy._call.dispatch import Reason
from trnpy._nki.instances import INSTANCES
from trnpy._report.ledger import Ledger
from trnpy._report.page import page
from trnpy._report.text import plain


def test_what_a_call_takes_beyond_the_fastest_of_its_size_is_no_gain_of_a_device():
    """Without calibration nothing else says that the slow ones were disturbed."""
    verdicts, dot = [], ledgers.decision("numpy.dot", 9.9, 0.1, calibrated=False)
    for fastest_s in (4.0, 0.1):
        ledger = Ledger("", opened=0.0)
        for i, seconds in enumerate((4.0, 4.0, fastest_s)):
            ledger.add(dot, 5.0 * i, seconds, ledgers.frame("x.py", 5))
        ledger.closed = 20.0
        (missed,) = ledger.missed()
        assert missed.won + missed.doubted == (3 if fastest_s == 4.0 else 2)
        verdicts.append(ledger.what_if().verdict)
    assert verdicts == ["faster", "no difference"]


@pytest.mark.parametrize(("host_s", "verdict"), [(0.4, "no difference"), (0.6, "not enough data")])
def test_calls_that_only_an_engine_models_leave_the_verdict_open(host_s, verdict):
    ledger = Ledger("", opened=0.0)
    unpriced = replace(ledgers.decision("scipy.sparse.matmul", 1.0, None), model_reason=Reason.NO_DEVICE)
    ledger.add(unpriced, 0.0, host_s, ledgers.frame("x.py", 5))
    ledger.add(ledgers.decision("numpy.dot", 1.0, 3.0), 2.0, 1.0, ledgers.frame("x.py", 6))
    ledger.closed = 10.0
    found = ledger.what_if()
    assert (found.verdict, found.unmodelled) == (verdict, 1)
    said = "1 call with sparse matrices took 600 ms (measured), and --device null models them"
    assert (said in plain(ledger), "stay on the CPU" in plain(ledger)) == (host_s == 0.6, host_s == 0.4)
    assert "1 with sparse matrices not modelled" in page(ledger)
    assert "modelled, sparse matrices on the host" in page(ledger)
    ledger.instance = INSTANCES["trn2.48xlarge"]
    saved = "what its NeuronCores save with sparse matrices --device null models"
    assert (saved in plain(ledger), "NeuronCores make no difference" in plain(ledger)) == (host_s == 0.6, host_s == 0.4)


def test_a_program_of_sparse_products_is_modelled_by_the_null_engine():
    a, x = sparse.bsr_array(np.ones((256, 256)), blocksize=(64, 64)), np.ones((256, 64))
    verdicts = []
    for device in ("none", "null"):
        with trnpy.patched(device=device), trnpy.profile() as ledger:
            for _ in range(50):
                a @ x
        calls = [t for t in ledger.tallies if t.op == "scipy.sparse.matmul"]
        verdicts.append((ledger.what_if().verdict, sum(t.unmodelled for t in calls), sum(t.calls for t in calls)))
    assert verdicts[0] == ("not enough data", 50, 50) and verdicts[1][1:] == (0, 50)
