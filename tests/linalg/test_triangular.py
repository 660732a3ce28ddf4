"""Triangular systems on the device path."""

import numpy as np
import pytest

from linalg.rows import CONDITIONS, both, general, no_worse, residual


@pytest.mark.parametrize("dtype, condition", CONDITIONS)
@pytest.mark.parametrize("n", [1, 127, 128, 129, 261])
def test_backward_errors_are_lapacks(n, dtype, condition):
    a, b = np.triu(general(n, n, dtype, condition)), general(n, 3, dtype, 1.0)
    a += np.diag(np.linspace(1, 2, n)).astype(dtype)
    no_worse(residual(a, b), both("scipy", "solve_triangular", a, b), dtype)
