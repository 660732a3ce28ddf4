"""``%load_ext trnpy`` in a Jupyter kernel, what it displays, and what a browser makes of it."""

import os
import pathlib
import re
import shutil
import subprocess

import pytest

nbclient = pytest.importorskip("nbclient", reason="needs nbclient: pip install trnpy-nki[notebook]")
pytest.importorskip("ipykernel", reason="needs ipykernel: pip install trnpy-nki[notebook]")
nbformat = pytest.importorskip("nbformat", reason="needs nbformat: pip install trnpy-nki[notebook]")

ROOT = pathlib.Path(__file__).parents[2]
CELL = re.compile(r"^```\{code-block\} text\n:class: cell\n(.*?)^```", re.M | re.S)
PAGE = CELL.findall((ROOT / "docs/notebook.md").read_text())
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

FITS = """addEventListener("load", () => {
  const fits = root => root.querySelector("svg") && root.scrollWidth <= root.ownerDocument.defaultView.innerWidth;
  document.title = [...document.querySelectorAll("iframe")].map(f => fits(f.contentDocument.documentElement)).join(" ");
});"""


@pytest.fixture(scope="module", autouse=True)
def environment():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.setenv("IPYTHONDIR", "/nonexistent")  # no profile of the user's
        for name in [name for name in os.environ if name.startswith("TRNPY_")]:
            patch.delenv(name)
        yield


def run(*cells):
    """The cells of a notebook, executed by a kernel of this Python."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in cells])
    nbclient.NotebookClient(notebook, timeout=120, allow_errors=True, kernel_name="python3").execute()
    return notebook.cells


def shown(cell, kind):
    """Everything of one kind that a cell shows."""
    return [out.data[kind] for out in cell.outputs if "data" in out and kind in out.data]


def errors(cells):
    return [out for cell in cells for out in cell.outputs if out.output_type == "error" or out.get("name") == "stderr"]


@pytest.fixture(scope="module")
def page():
    return run(*PAGE)


def test_the_cells_of_the_documentation_run(page):
    assert len(page) == 6
    assert not [out for cell in page for out in cell.outputs if out.output_type == "error"]


def test_a_cell_shows_its_value_and_its_report_with_lines_of_the_cell(page):
    value, report = shown(page[1], "text/plain")
    assert value == "(400, 400)"
    assert "Cell In[2]:2" in report and "Cell In[2]:3" in report
    (drawn,) = shown(page[1], "text/html")
    assert drawn.startswith("<iframe") and "Cell In[2]:2" in drawn
    assert "ipykernel" not in report + drawn  # temporary files
    assert "scipy.linalg.eigh" in report and "numpy.einsum" in report


def test_options_of_a_cell_are_settings_of_that_cell_alone(page):
    assert "trn3" in shown(page[2], "text/plain")[0]
    assert "trn2" in shown(page[3], "text/plain")[0]


def test_an_instance_named_by_an_option_is_in_the_report():
    *_, cell = run(
        "%load_ext trnpy\nimport numpy as np",
        "%%trnpy --machine trn1.32xlarge\nnp.matmul(np.ones((400, 400)), np.ones((400, 400))).sum()",
    )
    report = " ".join(shown(cell, "text/plain")[-1].split())
    assert " trn1 " in report and "trn2" not in report


def test_decisions_plans_and_blocks_are_displayed_and_print_readably(page):
    decision, plan, blocks = ((shown(cell, "text/plain")[0], shown(cell, "text/html")[0]) for cell in page[3:])
    assert decision[0].startswith("numpy.matmul: host") and decision[1].startswith("<table><caption")
    assert plan[0].startswith("ij,jk,kl->il:")
    assert plan[1].count("<tr>") == 3
    assert "blocks 128 x 128" in blocks[0] and "&lt;svg" in blocks[1]


def test_errors_and_wrong_options_are_those_of_the_cell():
    setup, *wrong, fails, later, nothing, unload, gone = run(
        "%load_ext trnpy\nimport numpy as np, trnpy\na = np.ones((200, 200))",
        "%%trnpy --machin trn3\n1",
        "%%trnpy --machine trn9\n1",
        "%%trnpy\nnp.matmul(a, a)\n\n1 / 0",
        "with trnpy.patched(), trnpy.profile() as run:\n    b = np.matmul(a, a)\nprint(run.details())",
        "%%trnpy\n1",
        "%unload_ext trnpy",
        "%%trnpy\n1",
    )
    assert not errors([setup, later, nothing, unload])
    assert "script" not in shown(nothing, "text/plain")[-1]  # no advice for programs
    assert "No accelerated function was called" in shown(nothing, "text/plain")[-1]
    assert "Cell magic `%%trnpy` not found" in str(gone.outputs)
    said = ["".join(out.get("text", "") for out in cell.outputs) for cell in wrong]
    assert "%%trnpy: unrecognized arguments: --machin trn3" in said[0] and "machine='trn9'" in said[1]
    assert "1 call took" in shown(fails, "text/plain")[-1]
    (error,) = errors([fails])
    trace = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(error.traceback))
    assert error.ename == "ZeroDivisionError" and "Cell In[4], line 4" in trace
    assert "notebook.py" not in trace
    assert "Cell In[5]:2" in later.outputs[-1].text  # profiled without the magic


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium, chromium-browser or google-chrome on the path")
@pytest.mark.parametrize("width", [500, 1100])
def test_a_browser_fits_the_displays_into_its_window(page, width, tmp_path):
    drawn = "".join(text for cell in page for text in shown(cell, "text/html"))
    drawn = drawn.replace('sandbox="allow-scripts"', "")  # so that the script sees into the frames
    file = tmp_path / "outputs.html"
    file.write_text(f"<!doctype html><meta charset=utf-8>{drawn}<script>{FITS}</script>")
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    command += [f"--window-size={width},2600", "--dump-dom", file.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "<title>true true true</title>" in done.stdout
