"""Sphinx's settings; ``nox -s docs`` builds the site, and every warning is an error."""

import os
import sys
import tempfile
from pathlib import Path

os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp()  # default rates, whatever this host is calibrated to
sys.path.insert(0, str(Path(__file__).parent))

import generate

import trnpy

project = "trnpy"
author = "trnpy developers"
copyright = author
version = release = trnpy.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "numpydoc"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]
autosummary_generate = False
numpydoc_show_class_members = False
nitpicky = False

html_theme = "furo"
html_title = f"trnpy {version}"
html_show_sphinx = False
html_extra_path = ["generated/pages"]

generate.write(Path(__file__).parent / "generated")
