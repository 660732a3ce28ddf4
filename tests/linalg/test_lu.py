"""LU and Cholesky factors solve systems on the device path."""

import numpy as np
import pytest

from linalg.matrices import positive
from linalg.rows import CONDITIONS, DTYPES, both, eps, general, no_worse, norm, t
from trnpy._engine.engines import HOST
from trnpy.linalg import _lu


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lower", [True, False])
def test_factors_solve(dtype, lower):
    n = 200
    p, a = positive(n, dtype, 1e2).astype(dtype), general(n, n, dtype, 1e2)
    c, theirs = both("scipy", "cho_factor", p, lower=lower)
    np.testing.assert_allclose(c[0], theirs[0], rtol=0, atol=100 * n * eps(dtype))  # the other triangle, too
    lu, _ = both("scipy", "lu_factor", a)
    for b in (general(n, 3, dtype, 1.0), np.ones(n, dtype)):
        x, _ = both("scipy", "cho_solve", c, b)
        assert norm(p @ x - b) <= 10 * n * eps(dtype) * norm(x)
        for trans, op in enumerate((a, a.T, t(a))):
            x, _ = both("scipy", "lu_solve", lu, b, trans=trans)
            assert norm(op @ x - b) <= 10 * n * eps(dtype) * norm(x)


@pytest.mark.parametrize("dtype, condition", CONDITIONS)
@pytest.mark.parametrize("n", [127, 128, 129, 261])
def test_backward_errors_are_lapacks(n, dtype, condition):
    a = general(n, n, dtype, condition)
    no_worse(lambda f: norm(f[0] @ f[1] @ f[2] - a) / norm(a), both("scipy", "lu", a), dtype)


@pytest.mark.parametrize("trans", ["N", "T"])
def test_factors_of_a_stack_solve_its_systems(trans):
    a, b = np.random.default_rng(0).standard_normal((2, 3, 20, 20))
    lu, pivots = _lu.factor(a, HOST, 8)
    x = _lu.solve(lu, pivots, b, HOST, trans)
    np.testing.assert_allclose((a if trans == "N" else t(a)) @ x, b, rtol=0, atol=1e4 * eps("f8"))
