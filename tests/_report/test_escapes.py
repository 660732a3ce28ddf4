"""Every text that reaches the HTML report is escaped, wherever it stands."""

import re

import ledgers
import pytest

from trnpy._call.dispatch import Decision, Reason
from trnpy._report import html_table
from trnpy._report.ledger import Ledger
from trnpy._report.page import lead, page, sections_of
from trnpy._report.units import Table

EVIL = "<b>&\"'"
SAFE = "&lt;b&gt;&amp;&quot;&#x27;"


class Said:
    """A what-if whose sentence names something hostile."""

    def __str__(self):
        return f"verdict: {EVIL}"


def test_the_sentence_below_the_headline_is_escaped():
    assert lead(Said()) == f"{SAFE}."


def test_titles_headers_and_cells_of_tables_are_escaped():
    table = Table(f"t{EVIL} x", (f"h{EVIL}",), [(f"c{EVIL}",)], 1)
    text = "".join(sections_of([table]))
    for part in ("t", "h", "c"):
        assert f"{part.upper() if part == 't' else part}{SAFE}" in text
    # The id is the first word of a title, which is trnpy's own.
    assert EVIL not in re.sub(r' id="[^>]*>', "", text.replace(f'id="t{EVIL}0"', ""))


@pytest.mark.parametrize("where", ["file", "folder", "function", "detail", "title", "route", "engine"])
def test_a_hostile_name_is_text_wherever_it_comes_from(where):
    """Each alone, so that none hides behind another; the tag must not reach the page."""

    def named(kind, usual):
        return f"{usual}<u>{kind}</u>" if kind == where else usual

    file = (
        f"/tmp/{named('folder', 'd')}/{named('file', 'f')}.py".replace("</", "<\\")
        if where in ("file", "folder")
        else "/tmp/d/f.py"
    )
    ledger = Ledger(named("title", "run"), opened=0.0)
    op = named("function", "numpy.dot")
    ledger.add(
        Decision(
            op, False, Reason.ROUTE if where == "route" else Reason.PARAM, named("detail", "why"), dtype="float64",
            flops=1e9, moved_bytes=10**6, host_s=1.0, device_s=0.1, machine="trn2",
            route=named("route", "way") if where == "route" else "", engine=named("engine", "host"),
        ),
        0.0, 1.0, ledgers.frame(file, 3),
    )  # fmt: skip
    ledger.add(ledgers.decision(op, 1.0, 0.1, detail=named("detail", "why")), 2.0, 1.0, ledgers.frame(file, 4))
    ledger.closed = 4.0
    text = page(ledger)
    assert "<u>" not in text
    if where not in ("engine", "route"):  # which the page need not show
        assert "&lt;u&gt;" in text


def test_the_table_of_a_notebook_is_escaped():
    functions = [
        f for f in vars(html_table).values() if callable(f) and getattr(f, "__module__", "") == html_table.__name__
    ]
    assert functions
    ledger = Ledger(f"run{EVIL}", opened=0.0)
    ledger.add(
        Decision(f"numpy.dot{EVIL}", False, Reason.PARAM, f"why{EVIL}"), 0.0, 1.0, ledgers.frame(f"/tmp/f{EVIL}.py", 3)
    )
    ledger.closed = 2.0
    text = ledger._repr_html_()
    assert EVIL not in text and "&lt;b&gt;" in text
