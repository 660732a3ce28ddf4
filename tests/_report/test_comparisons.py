"""``measure_routes``: the reference beside a sample of the calls by other routes, and the work of a route."""

from dataclasses import replace

import ledgers
import numpy as np
import pytest

import trnpy
from trnpy._report.comparisons import FIRST, STRIDE, Comparisons
from trnpy._report.ledger import Ledger
from trnpy._report.text import device_sentences

ROUTED = replace(ledgers.decision("numpy.einsum", 1e-3, 2e-3), route="pairwise products", detail="predicted")
LEFT, RIGHT = np.ones((60, 70, 30)), np.ones((70, 30, 40))


def einsum(**options):
    return trnpy.einsum("ijk,jkl->il", LEFT, RIGHT, **options)


def test_the_first_calls_and_a_sample_of_the_later_ones_are_made_again():
    calls = []
    compared = Comparisons(wanted=True)
    for i in range(2 * STRIDE):
        compared.compare(ROUTED, 1.0, lambda *args, i=i, **kwargs: calls.append((i, args, kwargs)), (1,), {"axes": 2})
    (found,) = compared.found.values()
    assert [i + 1 for i, *_ in calls] == [*range(1, FIRST + 1), STRIDE, 2 * STRIDE]
    assert calls[0][1:] == ((1,), {"axes": 2})
    assert (found.calls, found.compared, found.route_s) == (2 * STRIDE, FIRST + 2, FIRST + 2.0)
    assert found.reference_s == compared.seconds > 0


@pytest.mark.parametrize("options", [{"out": LEFT}, {"overwrite_a": True}])
def test_a_call_that_writes_into_its_operands_is_not_made_again(options):
    compared = Comparisons(wanted=True)
    compared.compare(ROUTED, 1.0, lambda *args, **kwargs: pytest.fail("made again"), (), options)
    compared.compare(ROUTED, 1.0, lambda *args, **kwargs: None, (), {"out": None, "overwrite_a": False})
    assert [c.compared for c in compared.found.values()] == [1]


def test_the_report_says_what_was_measured_and_else_what_was_predicted():
    ledger = Ledger("run", opened=ledgers.OPENED, measure_routes=True)
    ledger.closed = ledgers.OPENED + 10.0
    ledger.add(ROUTED, ledgers.OPENED + 1, 2e-3, ledgers.frame("run.py", 3))
    assert device_sentences(ledger) == ["numpy.einsum host by pairwise products: 1 call, 2.00 ms (measured), predicted"]
    ledger.comparisons.compare(ROUTED, 2e-3, lambda: None, (), {})
    (found,) = ledger.comparisons.found.values()
    found.reference_s = 5e-3
    assert device_sentences(ledger) == [
        "numpy.einsum host by pairwise products: 1 call, 2.00 ms (measured), "
        "2.5 times faster than the reference (measured on 1 call)"
    ]
    assert ledger.elapsed_s == pytest.approx(10.0 - 5e-3, rel=1e-12)
    assert ledger.to_dict()["routes"][0]["reference_s"] == 5e-3


def test_a_profile_compares_only_if_asked_to():
    with trnpy.profile() as plain:
        einsum()
    assert plain.comparisons.found == {}
    with trnpy.profile() as outer, trnpy.profile(measure_routes=True) as inner:
        einsum()
        einsum(out=np.empty((60, 40)))
    for ledger in (outer, inner):
        assert [(c.function, c.route, c.compared) for c in ledger.comparisons.found.values()] == [
            ("numpy.einsum", "pairwise products", 1)
        ]


def test_the_work_of_a_call_is_that_of_its_route():
    products = 2 * 60 * 70 * 30 * 40
    decision = trnpy.explain(trnpy.einsum, "ijk,jkl->il", LEFT, RIGHT)
    assert (decision.route, decision.flops) == ("pairwise products", products)
    three = trnpy.explain(trnpy.einsum, "ij,jk,kl->il", *np.ones((3, 60, 60)))
    assert (three.route, three.flops) == ("pairwise products", 2 * 2 * 60**3)
