"""Matrices that linalg's rows make of their operands."""

import numpy as np
import pytest
import scipy.linalg

from linalg.matrices import hermitian as random_hermitian
from linalg.rows import LAYOUTS
from trnpy._report.reasons import Unsupported
from trnpy.linalg._matrices import MIRROR, form, hermitian


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16"])
@pytest.mark.parametrize("n", [1, MIRROR - 1, MIRROR, 2 * MIRROR + 1])
def test_a_hermitian_matrix_is_one_triangle_and_the_real_diagonal(n, dtype, lower, layout):
    """Whatever the other triangle and the imaginary parts of the diagonal hold; the operand stays as it is."""
    exact = random_hermitian("random", n, "c16" if dtype[0] == "c" else "f8").astype(dtype)
    a = exact.copy()
    a[np.triu_indices(n, 1) if lower else np.tril_indices(n, -1)] = np.nan
    if dtype[0] == "c":
        a[np.diag_indices(n)] += np.array(1j, dtype)
    a = LAYOUTS[layout](a)
    before = a.tobytes()
    np.testing.assert_array_equal(hermitian(a, lower, np.dtype(dtype)), exact)
    assert a.tobytes() == before


def test_a_call_that_scipy_rejects_has_no_form():
    with pytest.raises(Unsupported, match="det has the parameters"):
        form(scipy.linalg.det, (np.eye(3),), {"nonsense": 1})
