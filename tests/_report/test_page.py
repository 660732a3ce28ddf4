"""The HTML report: self-contained, escaped, the ledger's figures, and what a browser makes of it."""

import html
import html.parser
import os
import re
import shutil
import subprocess

import ledgers
import pytest

from trnpy._call.dispatch import Decision, Reason
from trnpy._report.ledger import Ledger
from trnpy._report.page import LANES, ROWS, page, ticks
from trnpy._report.units import duration, place

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
VOID = {"meta", "br", "wbr"}


class Reader(html.parser.HTMLParser):
    """Elements with their attributes, the text of table cells, and whether every tag is closed in order."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.open, self.rows, self.cell = [], [], {}, None
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self.table = self.rows[dict(attributes)["id"]] = []
        if tag == "tr":
            self.table.append([])
        if tag in ("td", "th"):
            self.cell = []

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        if tag in ("td", "th"):
            self.table[-1].append("".join(self.cell))
            self.cell = None

    def handle_data(self, text):
        if self.cell is not None:
            self.cell.append(text)


def all_ledgers():
    several = Ledger("threads", opened=0.0)
    for thread in range(LANES + 3):
        call = ledgers.decision("numpy.dot", 1.0, 0.2)
        several._pending.append((call, float(thread), 1.5, several._sites.elsewhere, thread, 1.5, 1.5))
    several.closed = 12.0
    return {
        "small": ledgers.small(),
        "losing": ledgers.losing(),
        "none": ledgers.chemistry(),
        "null": ledgers.chemistry("null"),
        "neuron": ledgers.chemistry("neuron"),
        "empty": Ledger("", opened=0.0),
        "threads": several,
    }


@pytest.mark.parametrize("name", all_ledgers())
def test_page_is_well_formed_and_needs_no_other_file(name):
    text = page(all_ledgers()[name])
    read = Reader(text)
    outside = {"src", "href", "srcset", "data", "action"}
    assert not [e for e in read.elements if outside & set(e[1])]
    assert not [e for e in read.elements if e[0] in ("link", "img", "iframe", "object", "embed", "form")]
    assert "://" not in text and "@import" not in text
    assert set(re.findall(r"url\([^)]*\)", text)) == {"url(#hatch)"}
    assert "default-src 'none'" in text


def test_hostile_names_stay_text():
    evil = "/tmp/<script>alert(1)</script>&\"'.py"
    ledger = Ledger("<b onload=x>&", opened=0.0)
    d = Decision("numpy.dot", False, Reason.PARAM, "<img src=x onerror=alert(2)> & 'more'")
    ledger.add(d, 0.0, 1.0, ledgers.frame(evil, 3))
    priced = ledgers.decision("<i>op</i>", 1.0, 0.1, detail='"><svg onload=alert(3)>')
    ledger.add(priced, 2.0, 1.0, ledgers.frame(evil, 4))
    ledger.closed = 4.0
    read = Reader(page(ledger))
    tags = [tag for tag, _ in read.elements]
    assert tags.count("script") == 1 and "img" not in tags and tags.count("svg") == 1
    assert not [a for _, attributes in read.elements for a in attributes if a.startswith("on")]
    cells = {cell for row in read.rows["lines"] for cell in row}
    assert {f"{evil}:3", f"{evil}:4", "<i>op</i>"} <= cells
    assert any("<img src=x onerror=alert(2)> & 'more'" in cell for cell in cells)


def test_table_has_the_figures_of_every_line():
    ledger = ledgers.chemistry("neuron")
    head, *rows = Reader(page(ledger)).rows["lines"]
    assert head[:6] == ["line", "function", "ran on", "why", "calls", "measured"]
    assert head[7:9] == ["trn2modelled", "gainmodelled"] and "predicteduncalibrated" in head[6]
    assert [(r[0], r[1], r[2], r[4], r[5]) for r in rows] == [
        (place(t.file, t.line), t.op, t.ran_on, f"{t.calls:,}", duration(t.seconds)) for t in ledger.by_line()
    ]


def test_long_tables_say_what_they_leave_out():
    ledger = Ledger("", opened=0.0)
    for i in range(ROWS + 5):
        ledger.add(ledgers.decision("numpy.dot", 1.0, 0.1), 2.0 * i, 1.0, ledgers.frame("x.py", i + 1))
    text = page(ledger)
    assert len(Reader(text).rows["lines"]) == 1 + ROWS
    assert f"The {ROWS} longest of {ROWS + 5}" in text


def test_timeline_says_how_many_calls_it_leaves_out():
    ledger = ledgers.chemistry()
    text = page(ledger)
    drawn = [a for tag, a in Reader(text).elements if tag == "rect" and a.get("class") == "host"]
    assert len(drawn) == len(ledger.calls) == 1000
    assert "The 1,000 longest calls of 16,401" in text


def test_device_lane_has_the_modelled_wins_only():
    def lane(ledger, look):
        return sum(a.get("class") == look for tag, a in Reader(page(ledger)).elements if tag == "rect")

    assert lane(ledgers.small(), "modelled") == 1
    assert lane(ledgers.losing(), "modelled") == 0
    assert "no call would be faster on a trn2 (modelled)" in page(ledgers.losing())
    neuron = ledgers.chemistry("neuron")
    assert lane(neuron, "modelled") == 0
    assert lane(neuron, "device") == sum(t.calls for t in neuron.tallies if t.ran_on == "neuron")


def test_headlines_are_honest():
    pages = {name: page(ledger) for name, ledger in all_ledgers().items()}
    headline = {name: re.sub("<[^>]+>", "", re.search("<h1>(.*?)</h1>", text)[1]) for name, text in pages.items()}
    assert headline["none"] == "One core of a trn2 would make this run 2.46 to 3.33&times; faster modelled"
    assert headline["losing"] == "One core of a trn2 would make no difference to this run modelled"
    assert headline["neuron"] == "The trn2 made this run 3.29&times; faster host predicted, uncalibrated"
    assert headline["empty"] == "No accelerated function was called"


@pytest.mark.parametrize("name", ["small", "losing", "none", "null", "neuron", "threads"])
def test_every_bar_says_whether_it_is_measured_predicted_or_modelled(name):
    text = page(all_ledgers()[name])
    bars = re.findall(r'<i class="([^"]*)" style="[^"]*" title="([^"]*)">', text)
    assert bars
    for look, says in bars:
        assert ("hatched" in look) == bool(re.search("modelled|predicted", says)), says
        assert "modelled" not in says or re.search(r"\d-\d| to |not modelled", says), says
    for value in re.findall(r'<span class="value">(.*?)</span>', text):
        assert re.search("measured|predicted|modelled|other", value), value
        assert "</b> modelled" not in value or name == "losing" or re.search(r"\d-\d| to ", value), value


@pytest.mark.parametrize("elapsed_s", [3e-5, 0.0017, 1.0, 7.3, 34.0, 5000.0])
def test_time_axis_has_few_round_ticks(elapsed_s):
    marks = ticks(elapsed_s)
    assert 2 <= len(marks) <= 10 and marks[0] == 0 and marks[-1] <= elapsed_s
    assert re.fullmatch(r"[125]0*(e[-+]\d+)?|25", f"{marks[1]:.3g}".replace("0.", "").lstrip("0"))


def test_notebooks_get_the_page_in_a_frame():
    ledger = ledgers.small()
    (frame,) = (a for tag, a in Reader(ledger._repr_html_()).elements if tag == "iframe")
    assert frame["srcdoc"] == page(ledger)
    assert frame["sandbox"] == "allow-scripts"


def browse(tmp_path, ledger, *options, script="", width=1200):
    """The page as headless Chromium has it after loading, ``script`` run at its end."""
    path = tmp_path / "page.html"
    ledger.to_html(path)
    if script:
        path.write_text(path.read_text().replace("</body>", f"<script>{script}</script></body>"))
    quiet = ("gpu", "quic", "background-networking", "component-update", "sync")
    command = [CHROMIUM, "--headless", "--no-sandbox", "--no-first-run", *(f"--disable-{what}" for what in quiet)]
    command += [f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={width},1600", *options, f"file://{path}"]
    return subprocess.run(command, capture_output=True, timeout=60, check=True, text=True).stdout


browser = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium, chromium-browser or google-chrome on the path"),
]


class TestInChromium:
    pytestmark = browser

    def test_the_table_reads_as_the_ledger_and_sorts(self, tmp_path):
        ledger = ledgers.chemistry()
        want = [place(t.file, t.line) for t in ledger.by_line()]
        _, *rows = Reader(browse(tmp_path, ledger, "--dump-dom")).rows["lines"]
        assert [row[0] for row in rows] == want
        click = "document.querySelectorAll('#lines th')[4].click();"
        _, *rows = Reader(browse(tmp_path, ledger, "--dump-dom", script=click)).rows["lines"]
        counts = [int(row[4].replace(",", "")) for row in rows]
        assert counts == sorted(counts, reverse=True) and counts[0] == 8000

    @pytest.mark.parametrize("width", [400, 768, 1200])
    def test_nothing_is_wider_than_the_window(self, tmp_path, width):
        script = "document.title = [document.documentElement.scrollWidth, innerWidth].join(' ');"
        for ledger in (ledgers.chemistry("neuron"), ledgers.losing()):
            text = browse(tmp_path, ledger, "--dump-dom", script=script, width=width)
            scroll, inner = map(int, re.search(r"<title>(\d+) (\d+)</title>", text).groups())
            assert scroll <= inner <= max(width, 500)  # Chromium has no window below 500 on some platforms

    def test_it_is_dark_where_the_reader_wants_dark(self, tmp_path):
        script = "document.title = getComputedStyle(document.body).backgroundColor;"
        light = browse(tmp_path, ledgers.small(), "--dump-dom", script=script)
        dark = browse(tmp_path, ledgers.small(), "--dump-dom", "--force-dark-mode", script=script)
        assert "<title>rgb(252, 252, 251)</title>" in light
        assert "<title>rgb(21, 24, 27)</title>" in dark

    def test_no_error_reaches_the_console_and_a_picture_is_made(self, tmp_path):
        picture = tmp_path / "page.png"
        script = "document.title = document.querySelectorAll('svg rect.modelled').length;"
        assert "<title>1</title>" in browse(tmp_path, ledgers.small(), "--dump-dom", script=script)
        browse(tmp_path, ledgers.small(), f"--screenshot={picture}")
        assert os.path.getsize(picture) > 20_000
