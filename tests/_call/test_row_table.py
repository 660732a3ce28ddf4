"""The table of rows: every module with rows is in it, with the names of its rows and no others."""

import importlib
import pathlib

import pytest

import trnpy
from trnpy._call.rows import TABLE, row

ROOT = pathlib.Path(trnpy.__file__).parent
# Rows of functions that no patch replaces: BLAS and LAPACK by name, functions of trnpy's own, and PySCF's.
OWN = {"trnpy.linalg._blas_rows", "trnpy.linalg._lapack_rows", "trnpy.linalg._inv_sqrtm"}
LISTED = {module for modules in TABLE.values() for module in modules}


def test_every_module_with_rows_is_listed():
    found = {
        ".".join(("trnpy", *path.relative_to(ROOT).with_suffix("").parts))
        for path in ROOT.rglob("*.py")
        if "\nOPS = " in path.read_text()
    }
    assert found - OWN == LISTED


@pytest.mark.parametrize("module", sorted(LISTED))
def test_a_module_has_the_rows_that_the_table_names(module):
    listed = {f"{ns}.{name}" for ns, modules in TABLE.items() for name in modules.get(module, "").split()}
    ops = {op.name for op in importlib.import_module(module).OPS}
    assert ops - {"scipy.sparse.multiply"} == listed  # a method of its own in each of SciPy's formats


def test_a_row_is_one_object():
    assert row("scipy.linalg.eigh") is row("scipy.linalg.eigh")


def test_the_original_is_numpys_or_scipys_function_also_while_it_is_patched():
    import scipy.linalg

    original = scipy.linalg.polar
    with trnpy.patched("scipy.linalg.polar"):
        assert row("scipy.linalg.polar").reference is original
