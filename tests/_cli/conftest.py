"""What tests of the runner and its commands share: a folder of programs, and an environment without variables."""

import os
import sys

import pytest
from programs import FACE, FAILS, INTERRUPTED, PROGRAM, SPAWNS


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "fails.py").write_text(FAILS)
    (tmp_path / "spawns.py").write_text(SPAWNS)
    (tmp_path / "interrupted.py").write_text(INTERRUPTED)
    (tmp_path / "broken.py").write_text("x = 1\ndef f(:\n")
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "directory").mkdir()
    (tmp_path / "directory" / "__main__.py").write_text(FAILS)
    (tmp_path / "package" / "sub").mkdir(parents=True)
    (tmp_path / "package" / "__init__.py").write_text("import sys; print('package sees', sys.argv)")
    (tmp_path / "package" / "sub" / "__main__.py").write_text(FACE)
    (tmp_path / "package" / "sub" / "__init__.py").write_text("")
    (tmp_path / "package" / "needs.py").write_text("import no_such_module")
    (tmp_path / "link.py").symlink_to("directory/__main__.py")
    return tmp_path


@pytest.fixture
def importable(tmp_path, monkeypatch):
    """A package that can be imported, and whose import is undone."""
    (tmp_path / "imported_once").mkdir()
    (tmp_path / "imported_once" / "__init__.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield "imported_once"
    sys.modules.pop("imported_once", None)


@pytest.fixture
def variables(monkeypatch):
    for name in [n for n in os.environ if n.startswith("TRNPY_")]:
        monkeypatch.delenv(name)
    return monkeypatch
