"""The docstrings of accelerated functions: those of NumPy and SciPy, with a paragraph of trnpy's."""

import inspect

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse.linalg

import trnpy
import trnpy.linalg
import trnpy.sparse.linalg

PAIRS = {
    "logm": (trnpy.linalg.logm, scipy.linalg.logm, "of float64 and complex128 if"),
    "solve": (trnpy.linalg.solve, scipy.linalg.solve, "float32, float64, complex64 and complex128 if"),
    "slogdet": (trnpy.linalg.slogdet, np.linalg.slogdet, "float32, float64, complex64 and complex128 if"),
    "matmul": (trnpy.matmul, np.matmul, "integers, bool, float16, float32, float64, complex64 and complex128 if"),
    "cg": (
        trnpy.sparse.linalg.cg,
        scipy.sparse.linalg.cg,
        "operands of float32, float64, complex64 and complex128 if",
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_a_paragraph_stands_at_the_end_of_the_description(name):
    ours, theirs, dtypes = PAIRS[name]
    before, _, after = ours.__doc__.partition("In trnpy ")
    paragraph, _, rest = after.partition("\n\n")
    assert before.rstrip() + "\n\n" + rest == inspect.cleandoc(theirs.__doc__)
    assert rest.startswith("Parameters\n---")
    assert dtypes in " ".join(paragraph.split()) and name in paragraph


def test_lapacks_docstrings_and_those_of_patched_functions_stay():
    assert trnpy.linalg.lapack.dpotrf.__doc__ == scipy.linalg.lapack.dpotrf.__doc__
    before = scipy.linalg.eigh.__doc__
    with trnpy.patched():
        assert scipy.linalg.eigh.__doc__ == before
