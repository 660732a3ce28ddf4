"""The report as text: the same words by rich and plain, what fits a terminal, and every modelled figure marked."""

import importlib.util
import io
import re

import ledgers
import pytest

from trnpy._report.ledger import Ledger, print_report
from trnpy._report.text import plain

GOLDEN = """\
trnpy: 10.0 s, of which 5.50 s in 1,503 calls of 3 accelerated functions (measured; 55% of the processor time)
trnpy: one core of a trn2 would make this run 1.22 to 1.42 times faster: 7.03 s to 8.17 s instead of 10.0 s (modelled; 1 of 1,503 calls)

by function
                                                          host        trn2         gain
function           ran on: why      calls  measured  predicted    modelled     modelled    moved       work
numpy.einsum       host: no_device      2    5.25 s     5.50 s  3.1-6.52 s  1.83-2.97 s  1.10 GB  220 Gflop
scipy.linalg.eigh  host: param          1    250 ms          -           -            -        -          -
numpy.matmul       host: small      1,500   3.00 ms          -           -            -        -          -

by line
                                                                                 host         trn2         gain
line                   function           ran on: why      calls  measured  predicted     modelled     modelled   moved        work
/home/ada/small.py:12  numpy.einsum       host: no_device      1    4.00 s     4.50 s  1.03-2.17 s  1.83-2.97 s  900 MB   180 Gflop
/home/ada/small.py:14  numpy.einsum       host: no_device      1    1.25 s     1.00 s  2.07-4.35 s            -  200 MB  40.0 Gflop
/home/ada/small.py:31  scipy.linalg.eigh  host: param          1    250 ms          -            -            -       -           -
/home/ada/small.py:20  numpy.matmul       host: small      1,500   3.00 ms          -            -            -       -           -

no_device, for example numpy.einsum at /home/ada/small.py:12: no device
param, for example scipy.linalg.eigh at /home/ada/small.py:31: driver='evx' has no device path
small, for example numpy.matmul at /home/ada/small.py:20: at most 4096 elements"""  # noqa: E501


def test_text_of_a_small_run():
    assert plain(ledgers.small()) == ledgers.small().details() == GOLDEN


class Terminal(io.StringIO):
    def isatty(self):
        return True


def words(text):
    return sorted(re.sub(r"[^\x20-\x7e\n]", " ", re.sub("\x1b\\[[0-9;]*m", "", text)).split())


def test_rich_prints_the_same_words_as_plain_text(monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    with_rich, without, file = Terminal(), Terminal(), io.StringIO()
    print_report(ledgers.chemistry(), with_rich, verbose=True)
    print_report(ledgers.chemistry(), file, verbose=True)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    print_report(ledgers.chemistry(), without, verbose=True)
    assert file.getvalue() == without.getvalue() == plain(ledgers.chemistry()) + "\n"
    assert with_rich.getvalue() != without.getvalue()
    assert words(with_rich.getvalue()) == words(without.getvalue())


@pytest.mark.parametrize("columns", [80, 100, 120, 160])
def test_a_terminal_gets_what_fits_and_is_told_what_does_not(columns):
    lines = plain(ledgers.chemistry("neuron"), columns).splitlines()
    tables = lines[lines.index(next(line for line in lines if line.startswith("by function"))) :]
    body = tables[: tables.index("", tables.index("") + 1)]
    assert max(map(len, body)) <= columns
    text = "\n".join(body)
    for name in ("host", "moved", "work"):  # a column, or named in the title as left out
        assert re.search(rf"\b{name}\b", text)
    assert all(
        re.search(rf"\b{name}\b", text)
        for name in ("calls", "measured", "modelled", "memory_bound", "scipy.linalg.eigh")
    )


def test_rich_and_plain_agree_in_a_narrow_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "84")
    monkeypatch.setenv("TERM", "dumb")
    with_rich, without = Terminal(), Terminal()
    print_report(ledgers.chemistry("null"), with_rich, verbose=True)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    print_report(ledgers.chemistry("null"), without, verbose=True)
    printed = re.sub("\x1b\\[[0-9;]*m", "", with_rich.getvalue())
    assert words(printed) == words(without.getvalue())
    assert max(map(len, printed.splitlines())) <= 84


def test_cells_of_fewer_lines_end_in_the_line_of_the_longest(monkeypatch):
    monkeypatch.setenv("COLUMNS", "84")
    print_report(ledgers.chemistry("null"), printed := Terminal(), verbose=True)
    lines = re.sub("\x1b\\[[0-9;]*m", "", printed.getvalue()).splitlines()
    headings = [line.split() for line in lines if line.startswith("  ran on: why")]
    assert headings and all(h == ["ran", "on:", "why", "calls", "measured", "modelled", "modelled"] for h in headings)
    first = lines[: next(i for i, line in enumerate(lines) if line.startswith("by line"))]
    assert "numpy.einsum" in map(str.strip, first)  # the numbers are beside the reason, in the line below


def test_report_goes_to_standard_error_by_default(capsys):
    print_report(ledgers.small())
    out, err = capsys.readouterr()
    assert out == "" and "numpy.einsum" in err


def test_rich_does_not_read_markup_in_names():
    ledger = Ledger("", opened=0.0)
    ledger.add(ledgers.decision("numpy.einsum", 1.0, 2.0), 0.0, 1.0, ledgers.frame("/tmp/[bold]x[/nonsense].py", 3))
    out = Terminal()
    print_report(ledger, out, verbose=True)
    assert "/tmp/[bold]x[/nonsense].py:3" in out.getvalue()


def test_everything_said_of_a_device_is_marked():
    """Each column, sentence and page label that carries device seconds says whether they are modelled."""
    for device in ("none", "null", "neuron"):
        ledger = ledgers.chemistry(device)
        for sentence in plain(ledger).splitlines():
            if sentence.startswith("trnpy:") and re.search(r"trn2|neuron", sentence):
                assert re.search(r"modelled|measured", sentence), sentence
        assert re.search(r"trn2 .*\n.*modelled", plain(ledger))
