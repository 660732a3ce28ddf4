"""Each row of every table beside the installed NumPy and SciPy, on cases that hypothesis draws and on stored ones.

``--hypothesis-profile search`` draws new cases, of larger sizes and on the simulator, too; ``nightly`` 10,000 a row,
of which every sixteenth seed has these two.
"""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings, target

import trnpy
from parity import factor_rows, fortran_rows, product_rows, sparse_rows, spectral_rows, system_rows
from parity.cases import Case, cases
from parity.corpus import CASES
from parity.row import judge
from trnpy._call.rows import rows as rows_of
from trnpy._einsum import multi_einsum
from trnpy._einsum.rows import OPS as PRODUCTS
from trnpy.linalg._blas_rows import OPS as BLAS_OPS
from trnpy.linalg._inv_sqrtm import OPS as OWN_OPS
from trnpy.linalg._lapack_rows import OPS as LAPACK_OPS
from trnpy.sparse._matmul import OPS as SPARSE_PRODUCTS

NUMPY_OPS = rows_of("numpy.linalg")
SOLVERS = rows_of("scipy.sparse.linalg")
SCIPY_LINALG = rows_of("scipy.linalg")

TABLES = (
    PRODUCTS, (multi_einsum.OP,), SCIPY_LINALG, NUMPY_OPS, OWN_OPS, BLAS_OPS, LAPACK_OPS, SPARSE_PRODUCTS, SOLVERS,
)  # fmt: skip
OPS = {op.name: op for table in TABLES for op in table}
GENERATORS = factor_rows, fortran_rows, product_rows, sparse_rows, spectral_rows, system_rows
ROWS = {name: row for table in GENERATORS for name, row in table.ROWS.items()}
HOSTS = ("scipy.sparse.multiply", "scipy.linalg.eig", "scipy.linalg.eigvals")  # rows without a device path
# Fields of a row's case, where the plain one has no device path (a power of 0, a value near the threshold), or asks for
# a residual that a wrong result may have, too.
OTHERWISE = {
    "numpy.linalg.matrix_power": {"option": 3},
    "scipy.linalg.pinvh": {"family": 3},
    "scipy.sparse.linalg.cg": {"option": 1},
    "scipy.sparse.linalg.gmres": {"option": 1},
}
SEARCH = not settings.default.derandomize
EXAMPLES = settings.default.max_examples if SEARCH else 8
DEAR = 0 if not SEARCH else 1 if EXAMPLES <= 1000 else 16  # one in so many seeds has cases that take long


def test_every_row_has_a_generator():
    assert ROWS.keys() == OPS.keys()


@pytest.mark.parametrize("name", ROWS)
def test_parity(name, record_property):
    row, largest = ROWS[name], {}
    engines = [e for e in row.engines if SEARCH or e != "simulator"]

    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
    @given(cases(name, row.dtypes, engines, DEAR))
    def right(case):
        shares = judge(row, OPS[name], case)
        for error, share in shares.items():
            largest[error] = max(share, largest.get(error, 0.0))
        if DEAR == 1:  # climbing takes time that grows with the square of the number of examples
            target(min(max(shares.values(), default=0.0), 1e9))  # hypothesis takes finite numbers only
        assert all(share <= 1 for share in shares.values()), shares

    try:
        right()
    finally:
        record_property("shares", largest)


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if "forced" in row.engines and name not in HOSTS])
def test_parity_where_matrices_have_several_blocks(name):
    """One plain case of each row, large enough for a device path to launch something; most drawn cases are not."""
    row = ROWS[name]
    dtype = "f8" if "f8" in row.dtypes else row.dtypes[0]
    case = Case(name, "forced", (132, 131, 130), (), (dtype, dtype), ("C", "C"), 0, (0, 0), 0, 0)
    case = replace(case, **OTHERWISE.get(name, {}))
    with trnpy.trace() as log:
        shares = judge(row, OPS[name], case)
    assert any(d.op == name and d.by_device_path for d in log), log
    assert all(share <= 1 for share in shares.values()), shares


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.row)
def test_what_a_search_found(case):
    shares = judge(ROWS[case.row], OPS[case.row], case)
    assert all(share <= 1 for share in shares.values()), shares
