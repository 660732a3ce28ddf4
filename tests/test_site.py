"""Every example on the pages of docs/ runs: a page's Python in one process, its commands between."""

import pathlib
import re

import outputs
import pytest
from test_docstrings import own_names

ROOT = pathlib.Path(__file__).parents[1]
BUILT = ("_build", "generated")


def pages():
    found = [p for p in sorted((ROOT / "docs").rglob("*.md")) if p.relative_to(ROOT / "docs").parts[0] not in BUILT]
    return [p for p in found if outputs.blocks(p.read_text())]


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT / "docs").with_suffix("")))
def test_examples_of_a_page_run(page, tmp_path):
    text = page.read_text()
    printed = outputs.run(text, tmp_path)
    assert len(printed) == len(outputs.blocks(text))
    shown = outputs.with_outputs(text, printed)
    assert all(one in shown for one in printed)


def test_each_kind_of_reader_has_a_page_with_examples():
    assert {"trainium", "chemist", "scipy", "kernels", "buying", "maintainer"} <= {p.stem for p in pages()}


def test_every_page_is_reached_from_the_index():
    listed = re.findall(r"^[\w/]+$", (ROOT / "docs/index.md").read_text(), re.M)
    written = {str(p.relative_to(ROOT / "docs").with_suffix("")) for p in (ROOT / "docs").rglob("*.md")}
    assert {p for p in written if p.split("/")[0] not in BUILT} - {"index"} == set(listed) - {"generated/functions"}


def test_every_own_name_is_in_the_reference():
    listed = re.findall(r"auto\w+:: (?:trnpy\.)?([\w.]+)$", (ROOT / "docs/reference.md").read_text(), re.M)
    own = {name.removeprefix("trnpy.") for name in own_names() if "torch_bridge" not in name}
    assert own == set(listed)
