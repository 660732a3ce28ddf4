"""Advice: changes with their modelled gain, largest first, or to stay on the CPU."""

import ledgers
import pytest

from nkisim.hardware import ERROR_FACTOR
from trnpy._engine.time_parts import Parts
from trnpy._report.ledger import Ledger
from trnpy._report.page import page
from trnpy._report.text import plain
from trnpy._report.what_if import BOTH, KEEP, STACKED, priced

SLOW_LINK = Parts(launch_s=0.4, send_s=1.0, fetch_s=0.1, to_digits_s=1.0, from_digits_s=0.1, engine_s=0.1)


def run(parts, calls=4, host_s=2.0, single_s=None, on_device=False):
    ledger = Ledger("run.py", opened=0.0)
    more = {"parts": parts, "single_s": single_s, "engine": "neuron" if on_device else "host"}
    d = ledgers.decision("numpy.matmul", host_s, sum(parts), on_device=on_device, **more)
    for i in range(calls):
        ledger.add(d, i * host_s, host_s, ledgers.frame("/home/ada/run.py", 3))
    ledger.closed = calls * host_s
    return ledger


def test_each_change_takes_its_part_of_the_modelled_time():
    ledger = run(SLOW_LINK, single_s=0.5)
    gains = {a.change: (a.least_s, a.most_s) for a in priced(ledger)}
    left_s = {KEEP: 0.7, STACKED: 2.4, BOTH: 0.4, 'set precision="fp32"': 0.5}
    for change, seconds in left_s.items():
        expected = []
        for error in (ERROR_FACTOR, 1 / ERROR_FACTOR):
            now, after = (2.0 - s * error if s * error * 1.2 <= 2.0 else 0.0 for s in (2.7, seconds))
            expected.append(4 * max(after - now, 0.0))
        assert gains[change] == pytest.approx(expected, rel=1e-9)
    assert [a.most_s for a in priced(ledger)] == sorted((most for _, most in gains.values()), reverse=True)


def test_the_report_gives_advice_with_its_gain_and_condition():
    ledger = run(SLOW_LINK, single_s=0.5)
    text = plain(ledger)
    said = (
        'advice: set precision="fp32": saves 5.10 s to 6.62 s more on one core of a trn2, if float32\'s accuracy is '
        "enough; most at /home/ada/run.py:3 (modelled)"
    )
    assert said in text and "advice: keep operands on the device (trnpy.resident): saves" in text
    assert "saves 5.10 s to 6.62 s more on one core of a trn2" in page(ledger)
    assert [a["change"] for a in ledger.to_dict()["advice"]] == [a.change for a in priced(ledger)]
    assert "advice" not in plain(run(SLOW_LINK, on_device=True))


def test_where_no_change_saves_much_the_advice_is_to_stay_on_the_cpu():
    slow = Parts(engine_s=10.0, launch_s=0.1)
    assert "advice: stay on the CPU: no change would let one core of a trn2 save more (modelled)" in plain(
        run(slow, single_s=9.0)
    )


def test_without_modelled_calls_there_is_no_advice():
    ledger = Ledger("", opened=0.0)
    ledger.add(ledgers.decision("numpy.dot", None, None), 0.0, 1.0, None)
    assert priced(ledger) == [] and "advice" not in plain(ledger)
