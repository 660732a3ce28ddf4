"""The short report: a verdict in plain words, at most five rows within 100 columns, and what was not seen."""

import re

import ledgers
import pytest
from ledgers import OPENED, decision, frame

from trnpy import Reason
from trnpy._report.brief import COLUMNS, ROWS, brief, faster, verdict
from trnpy._report.elsewhere import IMPORTS, LIBRARIES, NATIVE, NUMBA, PYTHON
from trnpy._report.ledger import Ledger, print_report
from trnpy._report.sampler import PRODUCT, Unrouted
from trnpy._report.what_if import predicted

SMALL = """\
trnpy: One trn2 core would make this run 22 to 42 % faster (modelled).
trnpy: 10.0 s, 10.0 s of processor time: 55 % accelerated functions, 45 % Python code.

line                   function           calls    time   CPU  on one trn2 core (modelled)
/home/ada/small.py:12  numpy.einsum           1  4.00 s  40 %  saves 1.83-2.97 s
/home/ada/small.py:14  numpy.einsum           1  1.25 s  12 %  no device
/home/ada/small.py:31  scipy.linalg.eigh      1  250 ms   2 %  no device path for its options

trnpy: not seen: 4.50 s of Python code (sampled)
trnpy: more: -v or print(run.details()); as a page: --html FILE or run.to_html(FILE)"""


def sampled(ledger, **seconds):
    ledger.samples.elsewhere.seconds |= {kind.replace("_", " "): s for kind, s in seconds.items()}
    return ledger


def test_text_of_a_small_run(capsys):
    ledger = sampled(ledgers.small(), Python_code=1.0)
    assert brief(ledger) == repr(ledger) == SMALL
    print_report(ledger)
    assert capsys.readouterr() == ("", SMALL + "\n")


def one(op, host_s, device_s, took_s, file="/home/ada/script.py", cpu_s=None, elapsed_s=10.0, **more):
    ledger = Ledger("", opened=OPENED)
    ledger.add(decision(op, host_s, device_s, **more), OPENED + 1, took_s, frame(file, 3), cpu_s=cpu_s)
    return ledgers.closed(ledger, OPENED + elapsed_s)


@pytest.mark.parametrize(
    ("gains", "expected"),
    [
        ((1.04, 1.11), "4 to 11 % faster"),
        ((1.0, 1.11), "up to 11 % faster"),
        ((1.102, 1.104), "10 % faster"),
        ((2.13, 3.42), "2.1 to 3.4 times faster"),
    ],
)
def test_gains_in_words(gains, expected):
    assert faster(*gains) == expected


@pytest.mark.parametrize(
    ("device_s", "expected"),
    [
        (0.5, r"One trn2 core would make this run \d+ to \d+ % faster \(modelled\)\."),
        (1.2, r"One trn2 core might make this run (up to \d+|\d+ to \d+) % faster \(modelled\): too close to call\."),
        (9.0, r"One trn2 core would not make this run noticeably faster \(modelled\): no call is faster there\."),
    ],
)
def test_the_verdict_is_a_sentence(device_s, expected):
    assert re.fullmatch(expected, verdict(predicted(one("numpy.dot", 2.0, device_s, 2.0))))


@pytest.mark.parametrize("took_s", [2.0, 5.9, 6.1, 60.0])
def test_a_row_whose_prediction_is_off_says_so_and_gives_no_gain(took_s):
    ledger = one("numpy.dot", 2.0, 0.2, took_s, elapsed_s=100.0)
    (row,) = [line for line in brief(ledger).splitlines() if "numpy.dot" in line]
    off = took_s > 6
    assert ("its prediction" in row, "saves" in row) == (off, not off)
    assert bool(predicted(ledger).most_s) == (not off)
    assert ledger.by_line()[0].doubted == off


def test_a_host_far_faster_than_predicted_gets_no_gain_either():
    ledger = one("numpy.dot", 2.0, 0.001, 0.4, calibrated=False, elapsed_s=1.0)
    assert "took 20.0% of its prediction" in brief(ledger) and not predicted(ledger).most_s


def test_shares_are_of_processor_time_without_imports():
    """Under load, calls wait for a processor: 8 s on the clock of 10, but 2 of 5 s of processor time."""
    ledger = one("numpy.dot", 2.0, 1.9, 8.0, cpu_s=2.0)
    ledger._cpu.seconds = 5.0
    sampled(ledger, imports=1.0, Python_code=2.0)
    text = brief(ledger)
    assert "10.0 s, 5.00 s of processor time, 1.00 s of it imports; of the rest 50 % accelerated" in text
    assert re.search(r"numpy\.dot +1  8\.00 s  50 %", text)


def test_time_spent_waiting_for_a_processor_does_not_hide_a_gain():
    ledger = one("numpy.dot", 2.0, 0.5, 2.0, elapsed_s=20.0)
    alone = predicted(ledger).speedups
    ledger._cpu.waited_s = 16.0
    least, most = predicted(ledger).speedups
    assert 1 < alone[0] < alone[1] < least < most
    assert predicted(ledger).steady_s == pytest.approx(4.0, rel=1e-12)


def test_kinds_of_unseen_work_have_a_line_each():
    ledger = one("numpy.dot", 0.02, 0.2, 0.02)
    sampled(ledger, **{IMPORTS: 1.0, PYTHON.replace(" ", "_"): 3.0, NUMBA: 5.0, NATIVE.replace(" ", "_"): 0.01})
    said = [line for line in brief(ledger).splitlines() if "not seen" in line]
    assert len(said) == 2 and "5.5" in said[0] + said[1]
    assert any(re.search(r"not seen: 5\.\d+ s of numba \(sampled\)", line) for line in said)


@pytest.mark.parametrize("through", ["", "/lib/site-packages/solver.py:9"])
def test_products_by_a_method_get_advice_where_the_program_makes_them(through, monkeypatch):
    ledger = one("numpy.dot", 2.0, 9.0, 2.0)
    found = [Unrouted(PRODUCT, "a.dot", "/home/ada/script.py", 7, 3.0, through)]
    monkeypatch.setattr(type(ledger), "unrouted", lambda self: found)
    (line,) = [line for line in " ".join(brief(ledger).split()).split("trnpy: ") if "a.dot" in line]
    assert line.startswith("not seen: 3.00 s of a.dot (sampled), most at /home/ada/script.py:7")
    assert ("use a @ b" in line, "through solver.py:9" in line) == (not through, bool(through))


def test_sampled_lines_of_a_run_that_waited_are_in_processor_time(monkeypatch):
    ledger = one("numpy.dot", 2.0, 9.0, 2.0)
    monkeypatch.setattr(type(ledger), "unrouted", lambda self: [Unrouted(PRODUCT, "a.dot", "/home/ada/a.py", 7, 3.0)])
    monkeypatch.setattr(type(ledger), "cpu_s", ledger.elapsed_s / 4)
    assert "not seen: 750 ms of a.dot (sampled), most at /home/ada/a.py:7" in brief(ledger)


def test_lines_below_a_hundredth_of_the_processor_time_are_not_shown():
    ledger = Ledger("", opened=OPENED)
    for line, seconds in ((3, 97.0), (4, 1.2), (5, 0.8)):
        ledger.add(decision("numpy.dot", seconds, None), OPENED + line, seconds, frame("/home/ada/a.py", line))
    assert re.findall(r"a\.py:(\d) ", brief(ledgers.closed(ledger, OPENED + 100.0))) == ["3", "4"]


def test_a_run_with_nothing_large_is_two_lines():
    ledger = Ledger("", opened=OPENED)
    for i in range(30):
        ledger.add(decision("numpy.dot", None, None), OPENED + i, 1e-3, frame("/home/ada/script.py", i + 1))
    assert brief(ledgers.closed(ledger, OPENED + 40)).splitlines() == [
        "trnpy: Nothing is large enough for a trn2: 30 calls took 30.0 ms of 40.0 s CPU time (measured).",
        "trnpy: more: -v or print(run.details()); as a page: --html FILE or run.to_html(FILE)",
    ]
    sampled(ledger, Python_code=2.0, imports=1.0)
    second = brief(ledger).splitlines()[1]
    assert second == "trnpy: Sampled: 26.6 s Python code, 13.3 s imports; more: -v, --html FILE"
    sampled(ledger, Python_code=2.0, imports=1.0, **{LIBRARIES.replace(" ", "_"): 2.0})
    lines = brief(ledger).splitlines()
    assert len(lines) == 2 and re.search(r"16\.0 s other NumPy and SciPy.*; more: -v$", lines[1])


@pytest.mark.parametrize("device", ["none", "null", "neuron"])
def test_the_report_is_narrow_and_short(device):
    lines = brief(ledgers.chemistry(device)).splitlines()
    assert max(map(len, lines)) <= COLUMNS
    table = lines[lines.index("") + 1 :]
    assert len(table[1 : table.index("")]) == ROWS


def test_long_names_lose_their_beginning():
    file = f"/home/ada/{'very_' * 20}long.py"
    lines = brief(one("scipy.sparse.linalg.expm_multiply", 2.0, 0.2, 2.0, file=file)).splitlines()
    assert max(map(len, lines)) <= COLUMNS
    assert any(re.search(r"…\S*long\.py:3 +\S*linalg\.expm_multiply ", line) for line in lines)


def test_lines_with_one_function_are_one_row():
    ledger, at = Ledger("", opened=OPENED), frame("/home/ada/script.py", 7)
    ledger.add(decision("numpy.dot", 1.0, 0.2), OPENED, 1.0, at)
    ledger.add(decision("numpy.dot", None, None), OPENED + 1, 1.0, at)
    text = brief(ledgers.closed(ledger, OPENED + 4))
    assert re.search(r"script\.py:7  numpy\.dot +2  2\.00 s  50 %  saves ", text)


def test_faults_and_devices_are_told():
    text = brief(ledgers.chemistry("neuron"))
    assert "The trn2 " in text.splitlines()[0] and re.search(r"trnpy: neuron: \d+ calls took", text)
    ledger = one("numpy.dot", 2.0, 1.0, 2.0, reason=Reason.ERROR, detail="DeviceTimeout: 60 s")
    assert "numpy.dot fell back to the host in 1 call" in brief(ledger)
