"""The name of trnpy's distribution on PyPI, and the check that no other project's files are mixed with trnpy's."""

from __future__ import annotations

import glob
import os
import re
import sys
from pathlib import Path

NAME = "trnpy-nki"  # PyPI's ``trnpy`` is another project, for TRNSYS
FOLDER = Path(__file__).resolve().parents[1]
OUR_SUMMARY = "AWS Trainium"  # in the summary of every version of trnpy, including those before the name trnpy-nki


def version() -> str:
    """The version of trnpy; unknown if another project has replaced ``trnpy/__init__.py``."""
    return str(vars(sys.modules["trnpy"]).get("__version__", "of unknown version"))


def install(extra: str) -> str:
    """The command that installs trnpy with ``extra``."""
    return f"pip install '{NAME}[{extra}]'"


def conflict() -> str:
    """One line about another project's ``trnpy`` that is installed or has replaced our ``__init__.py``; "" if none.

    Without a conflict the check takes 0.4 ms (Python 3.12, five entries of sys.path, a busy EPYC).
    """
    if not any(glob.glob(os.path.join(glob.escape(folder), "trnpy[-.]*info")) for folder in sys.path):
        return _replaced()  # without importing importlib.metadata, which takes 20 ms
    import importlib.metadata

    for found in importlib.metadata.distributions(name="trnpy"):
        text = found.read_text("METADATA") or found.read_text("PKG-INFO") or ""  # empty if pip was interrupted
        header = dict(re.findall(r"^(Version|Summary): (.*)$", text, re.MULTILINE))
        if not text or OUR_SUMMARY in header.get("Summary", ""):
            continue
        other = f"another project's trnpy {header.get('Version')} ({header.get('Summary', 'no summary')})"
        where = Path(str(found.locate_file("trnpy"))).resolve()
        if where == FOLDER:
            return f"{other} and {NAME} overwrite each other in {FOLDER}: pip uninstall trnpy, then reinstall {NAME}"
        return f"{other} is in {where}; Python imports it or {FOLDER}, by sys.path: pip uninstall trnpy"
    return _replaced()


def _replaced() -> str:
    if "__version__" not in vars(sys.modules["trnpy"]):
        return f"{FOLDER / '__init__.py'} is missing or another project's: reinstall {NAME}"
    return ""
