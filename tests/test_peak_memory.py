"""Peak memory of each call with a route on the host, as Python and NumPy allocate it, is that of the call without."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
from host_routes import ROWS

HERE = pathlib.Path(__file__).parent
ALLOWED, SMALL = 1.1, 100_000  # times the peak without routes; bytes that do not count
# Rows whose route needs more, the most that it needs, and why.
COPIES = "operands are converted to floats, of which NumPy's loop needs none"
BETWEEN = "a product between is stored, and NumPy's loop stores none"
WORKSPACE = "divide and conquer has a workspace of two matrices, MRRR of some vectors"
VECTORS = "eigenvectors, and their products with the eigenvalues"
MORE = {
    "csc of blocks x dense": (1.2, "the rows of X that a block multiplies are gathered"),
    "einsum of three": (2.1, BETWEEN),
    "einsum of complex matrices": (1.8, COPIES),
    **{f"matmul of {dtype}": (most, COPIES) for dtype, most in (("int64", 2.1), ("int8", 14), ("float16", 7.1))},
    "eigh": (1.6, WORKSPACE),
    "eigh by products": (1.6, WORKSPACE),
    **{f"logm {dtype}": (1.4, VECTORS) for dtype in ("float64 210", "float64 420", "complex128 300")},
    "logm of a stack": (2.4, VECTORS),
    **{f"numpy.inv {dtype}": (1.3, "the Cholesky factor is a copy") for dtype in ("float64", "complex128")},
    **{f"numpy.inv indefinite {dtype}": (4.3, "LU, L^-1 and U^-1") for dtype in ("float64", "complex128")},
}
# SciPy's loops in C allocate memory that Python does not see.
UNSEEN = ("sqrtm float64 210", "sqrtm float64 420", "sqrtm complex128 300")


def peaks(*options):
    given = os.environ | {"PYTHONPATH": os.pathsep.join([str(HERE.parent), str(HERE)]), "OPENBLAS_NUM_THREADS": "1"}
    run = subprocess.run(
        [sys.executable, HERE / "peaks.py", *options], env=given, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


@pytest.mark.slow
def test_routes_need_no_more_memory_than_the_reference_but_for_those_listed():
    routed, plain = peaks(), peaks("--without")
    excess = {
        name: (peak, plain[name])
        for name, peak in routed.items()
        if name not in UNSEEN and peak > MORE.get(name, (ALLOWED, ""))[0] * plain[name] + SMALL
    }
    assert excess == {}


def test_listed_rows_exist():
    assert {*MORE, *UNSEEN} <= {*ROWS}
