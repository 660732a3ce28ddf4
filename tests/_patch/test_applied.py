"""Functions that NumPy applies to parts of an array for a program: their calls are the program's."""

import numpy as np
import pytest

import trnpy

STACK = np.random.default_rng(7).normal(size=(3, 60, 40))
ROWS = np.random.default_rng(8).normal(size=(5, 64))
APPLIED = {
    "vectorize with a signature": (
        "numpy.linalg.qr",
        lambda: np.vectorize(np.linalg.qr, signature="(m,n)->(m,k),(k,n)")(STACK),
    ),
    "vectorize": ("numpy.dot", lambda: np.vectorize(np.dot, signature="(n),(n)->()")(ROWS, ROWS)),
    "apply_along_axis": ("numpy.dot", lambda: np.apply_along_axis(np.dot, 1, ROWS, ROWS[0])),
}


@pytest.mark.parametrize("name", APPLIED)
@pytest.mark.parametrize("repeated", [1, 60])
def test_their_calls_are_not_those_of_an_excluded_caller(name, repeated):
    op, apply = APPLIED[name]
    expected = apply()
    with trnpy.patched(), trnpy.profile() as ledger:
        for _ in range(repeated):
            found = apply()
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=64 * np.finfo(float).eps)
    tallies = [t for t in ledger.tallies if t.op == op]
    assert tallies and not [t for t in tallies if t.reason == "excluded_caller"]
    assert {t.file for t in tallies} == {__file__}
    assert sum(t.calls for t in tallies) >= 3 * repeated


def test_calls_that_numpy_makes_itself_stay_excluded():
    with trnpy.patched(), trnpy.profile() as ledger:
        np.linalg.matrix_rank(np.eye(90))  # calls svd
        np.vectorize(lambda a: a, signature="(n)->(n)")(ROWS)
    assert {t.reason for t in ledger.tallies if t.op == "numpy.linalg.svd"} <= {"excluded_caller"}


def test_a_package_that_is_excluded_stays_so_when_numpy_applies_its_function():
    space = {"__name__": "excluded_here", "np": np, "rows": ROWS}
    exec("def run(): return np.apply_along_axis(np.dot, 1, rows, rows[0])", space)
    with trnpy.patched(exclude=["excluded_here"]), trnpy.profile() as ledger:
        space["run"]()
    assert {t.reason for t in ledger.tallies if t.op == "numpy.dot"} == {"excluded_caller"}
