"""The table of rows: all modules with rows are in it, with the names of all their rows and no others."""

import importlib
from pathlib import Path

import pytest

import trnpy.linalg
from trnpy.linalg import _rows

FILES = Path(trnpy.linalg.__file__).parent.glob("_*.py")
WITH_ROWS = [f.stem for f in FILES if any(f"\n{mark}" in f.read_text() for mark in ("def scipy_ops(", "NUMPY_OPS = "))]


@pytest.mark.parametrize("module", WITH_ROWS)
def test_a_module_with_rows_is_listed_with_their_names(module):
    loaded = importlib.import_module(f"trnpy.linalg.{module}")
    scipys = [op.name for op in getattr(loaded, "scipy_ops", tuple)()]
    numpys = [op.name for op in getattr(loaded, "NUMPY_OPS", ())]
    listed = [[f"{_rows.SCIPY}.{n}" for n in _rows.MODULES[module][0].split()]]
    listed += [[f"{_rows.NUMPY}.{n}" for n in _rows.MODULES[module][1].split()]]
    assert [scipys, numpys] == listed


def test_no_other_module_is_listed():
    assert sorted(WITH_ROWS) == sorted(_rows.MODULES)


def test_a_row_is_one_object():
    assert all(_rows.row(op.name) is op for op in (*_rows.OPS, *_rows.NUMPY_OPS))
