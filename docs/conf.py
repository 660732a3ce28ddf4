"""Sphinx's settings; ``nox -s docs`` builds the site, and every warning is an error."""

import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp()  # default rates, whatever this host is calibrated to
sys.path.insert(0, str(Path(__file__).parent))

import generate
import outputs

import trnpy

HERE = Path(__file__).parent

project = "trnpy"
author = "trnpy developers"
copyright = author
version = release = trnpy.__version__

extensions = [
    "myst_parser", "numpydoc",
    *(f"sphinx.ext.{name}" for name in ("autodoc", "autosummary", "mathjax", "viewcode")),
]  # fmt: skip
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_dmath_double_inline = True
myst_heading_anchors = 3
exclude_patterns = ["_build"]
autosummary_generate = False
numpydoc_show_class_members = False
nitpicky = False

html_theme = "furo"
html_title = f"trnpy {version}"
html_show_sphinx = False
html_extra_path = ["generated/pages"]
html_static_path = ["static"]
html_css_files = ["site.css"]

generate.write(HERE / "generated")

PAGES = {
    str(path.relative_to(HERE).with_suffix("")): path.read_text()
    for path in sorted(HERE.rglob("*.md"))
    if path.relative_to(HERE).parts[0] not in ("_build", "generated") and outputs.blocks(path.read_text())
}


def printed(name: str) -> list[str]:
    """What the examples of a page print. Pictures that they save are kept for the page."""
    with tempfile.TemporaryDirectory() as folder:
        found = outputs.run(PAGES[name], Path(folder))
        for picture in Path(folder).glob("*.svg"):
            picture.replace(HERE / "generated" / "gallery" / picture.name)
    return found


(HERE / "generated" / "gallery").mkdir(exist_ok=True)
with ThreadPoolExecutor(2) as pool:
    PRINTED = dict(zip(PAGES, pool.map(printed, PAGES), strict=True))


def setup(app):
    def insert(app, name, source):
        if name in PRINTED:
            source[0] = outputs.with_outputs(source[0], PRINTED[name])

    app.connect("source-read", insert)
    # Outputs are new in every build, although the pages are not: Sphinx reads their pages again.
    app.connect("env-get-outdated", lambda app, env, added, changed, removed: list(PRINTED))
