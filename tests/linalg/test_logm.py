"""Logarithms of positive-definite matrices on the device path; of all others they are SciPy's."""

import pytest
import scipy.linalg

from linalg.matrices import positive
from linalg.rows import of_positive_matrices, scipys_unless_positive, scipys_where_products_are_wrong


@pytest.mark.parametrize("condition", [1e1, 1e4, 1e8])
@pytest.mark.parametrize("dtype", ["f8", "c16"])
def test_logm_of_positive_matrices(dtype, condition):
    of_positive_matrices("logm", scipy.linalg.expm, dtype, condition)


@pytest.mark.filterwarnings("ignore:.*logm")
def test_what_is_not_positive_definite_beyond_doubt_is_scipys():
    scipys_unless_positive("logm")


def test_a_wrong_product_is_never_returned():
    scipys_where_products_are_wrong("logm", positive(60, "f8", 100.0))
