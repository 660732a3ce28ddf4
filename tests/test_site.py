"""Every example on the pages of docs/ runs: a page's Python in one process, its commands between."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
from test_docstrings import own_names

ROOT = pathlib.Path(__file__).parents[1]
BLOCK = re.compile(r"^```(python|sh|\{code-block\} sh\n:class: fails\n)\n(.*?)^```", re.M | re.S)
BUILT = ("_build", "generated")


def pages():
    found = [p for p in sorted((ROOT / "docs").rglob("*.md")) if p.relative_to(ROOT / "docs").parts[0] not in BUILT]
    return [p for p in found if BLOCK.search(p.read_text())]


def program(page):
    """The page's blocks in order; a command must succeed, or fail where the page says so."""
    lines = ["import subprocess"]
    for kind, text in BLOCK.findall(page.read_text()):
        if kind == "python":
            lines.append(text)
            continue
        expected = "!= 0" if "fails" in kind else "== 0"
        for command in filter(None, text.splitlines()):
            lines.append(f"assert subprocess.run({command!r}, shell=True).returncode {expected}, {command!r}")
    return "\n".join(lines)


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.stem)
def test_examples_of_a_page_run(page, tmp_path):
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    path = os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "2"}
    command = [sys.executable, "-c", program(page)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr


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
