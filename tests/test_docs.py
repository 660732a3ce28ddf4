"""The pages of docs/: every citation leads to a section, every name that the glossary explains exists."""

import ast
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

import trnpy
from trnpy._call.rows import rows
from trnpy.linalg import _blas_rows, _lapack_rows

ROOT = pathlib.Path(__file__).parents[1]
PAGES = sorted(path.name for path in (ROOT / "docs").glob("*.md"))
WRITTEN = sorted(str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md"))
WRITTEN = [name for name in WRITTEN if not name.startswith(("_build", "generated"))]
WORDS = 2500  # of a page, so that it has one reader and one subject
CITED = re.compile(r"(?:docs/|\]\()((?:" + "|".join(p.removesuffix(".md") for p in PAGES) + r")\.md)(#[a-z0-9-]+)?")
TEXTS = (".py", ".md", ".toml", ".yaml")


def anchors(page):
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", (ROOT / "docs" / page).read_text(), re.M)
    return {"#" + re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def sources():
    """Every text file of the project; of a checkout without git those under the folders that may cite."""
    folders = ("trnpy", "nkisim", "tests", "benchmarks", "conformance", "examples", "docs")
    paths = [p for folder in folders for p in (ROOT / folder).rglob("*") if p.suffix in TEXTS]
    return [*paths, *ROOT.glob("*.md")]


def test_every_citation_leads_to_a_section():
    found = {page: anchors(page) for page in PAGES}
    cited, broken = 0, []
    for path in sources():
        for page, anchor in CITED.findall(path.read_text()):
            cited += 1
            if anchor and anchor not in found[page]:
                broken.append(f"{path.relative_to(ROOT)}: {page}{anchor}")
    assert not broken
    assert cited > 40


@pytest.mark.parametrize("page", WRITTEN)
def test_a_page_is_short(page):
    assert len((ROOT / "docs" / page).read_text().replace("|", " ").split()) <= WORDS


@pytest.mark.parametrize("page", PAGES)
def test_headings_of_a_page_have_anchors_of_their_own(page):
    headings = re.findall(r"^#+ (.+)$", (ROOT / "docs" / page).read_text(), re.M)
    assert len(anchors(page)) == len(headings)


def test_names_of_the_glossary_exist():
    """A name in parentheses after a term is a class or a module of trnpy."""
    names = set()
    for package, path in ((ROOT / p, f) for p in ("trnpy", "nkisim") for f in (ROOT / p).rglob("*.py")):
        names |= {path.stem, str(path.relative_to(package).with_suffix(""))}
        names |= {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)}
    entries = re.findall(r"^- (\*\*.+?\*\*[^:(]*)(?:\(([^)]*)\))?[^:]*:", (ROOT / "docs/glossary.md").read_text(), re.M)
    terms = [name for _, listed in entries for name in re.findall(r"`([^`]+)`", listed)]
    assert 50 < len(entries) < 60 and len(terms) > 30
    bold = [term for entry, _ in entries for term in re.findall(r"\*\*(.+?)\*\*", entry)]
    assert len(bold) == len(set(bold))  # one meaning each
    assert [name for name in terms if name not in names] == []


@pytest.mark.parametrize("page", PAGES)
def test_a_page_names_no_path_of_one_machine(page):
    assert re.findall(r"(?:^|[\s`(])(/[a-z]+/\S*)", (ROOT / "docs" / page).read_text(), re.M) == []


def test_every_page_gives_the_same_threshold_of_float64():
    """The pages round the modelled size from which a float64 product runs on one core of a trn2."""
    pattern = r"float64`? from about ([\d,]+)\s+rows"
    stated = [n for page in WRITTEN for n in re.findall(pattern, (ROOT / "docs" / page).read_text())]
    assert len(stated) >= 2 and set(stated) == {"700"}
    with trnpy.policy(device="null", machine="trn2"):
        least = next(n for n in range(256, 2048, 32) if trnpy.explain(trnpy.matmul, np.eye(n), np.eye(n)).on_device)
    assert 500 <= least <= 980


def test_the_docs_have_few_habits_that_readers_stumble_over():
    """At most a tenth of commit 9d55df8, where .ci/habits.py counted 0.95 to 4.84 places per 1,000 words."""
    said = subprocess.run([sys.executable, ROOT / ".ci/habits.py"], capture_output=True, text=True, check=True).stdout
    rates = {key: float(rate) for key, rate in re.findall(r"^([a-h])  .*?([\d.]+)  \(", said, re.M)}
    limits = {"a": 0.095, "b": 0.484, "f": 0.317, "g": 0.330, "h": 0.303}
    assert rates.keys() == limits.keys()
    assert {key: rate for key, rate in rates.items() if rate > limits[key]} == {}


def test_the_page_of_functions_has_a_call_for_each_row():
    """A new row of a sparse function, of BLAS, LAPACK or PySCF needs a line in docs/functions_page.py."""
    pytest.importorskip("pyscf")
    import functions_page as page

    sparse = [op.name for namespace in ("scipy.sparse", "scipy.sparse.linalg") for op in rows(namespace)]
    assert page.SOLVER_CALLS.keys() == set(sparse)
    routines = [op.name.rpartition(".")[2][1:] for op in (*_blas_rows.OPS, *_lapack_rows.OPS)]
    assert page.ROUTINES.keys() == set(routines)
    assert page.PYSCF.keys() == page.pyscf_patch.rows().keys()
