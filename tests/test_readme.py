"""README.md: its length, its modelled figures, and the page that has its settings."""

import json
import os
import pathlib
import re
import subprocess
import sys

import trnpy
from benchmarks import readme

ROOT = pathlib.Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text()


def test_the_readme_is_short_and_has_one_picture():
    assert len(TEXT.splitlines()) <= 90
    (picture,) = re.findall(r"!\[[^]]+\]\(([^)]+)\)", TEXT)
    assert (ROOT / picture) == readme.PICTURE and readme.PICTURE.exists()


def test_the_table_of_the_readme_is_what_its_command_writes(tmp_path):
    """Its measured rows are those of the benchmark, and its modelled figures are the model's of today."""
    before, _, rest = TEXT.partition(readme.BEGIN)
    written = rest.partition(readme.END)[0]
    assert before and written
    rows = dict(re.findall(r"^\| (.+?) \| .+? \| (.+?) \|$", written, re.M))
    assert {name for (name, *_), _ in readme.measured_pairs()} <= rows.keys()
    command = [sys.executable, "-c", "import json; from benchmarks import readme; print(json.dumps(readme.modelled()))"]
    one_thread = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(tmp_path)}
    environment = {**os.environ, **one_thread, "PYTHONPATH": str(ROOT)}
    said = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout
    for name, text in json.loads(said).items():
        assert rows[name] == f"{text} (**modelled**)"


def test_every_setting_has_a_row_with_all_its_values():
    page = (ROOT / "docs/settings.md").read_text()
    for name in trnpy.Policy.__annotations__:
        assert f"| `{name}` |" in page
    for name, values in (("device", "null"), ("fallback", "log"), ("precision", "bf16"), ("method", "start")):
        assert f"`{values}`" in page, name
