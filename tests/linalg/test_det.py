"""Determinants on the device path."""

import numpy as np
import pytest
import scipy.linalg

import trnpy.linalg
from linalg.rows import DTYPES, both, eps, general, norm
from trnpy._engine.engines import HOST
from trnpy.linalg import _det, _lu


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [2, 129, 200])
def test_determinants_agree_with_the_sum_of_logarithms(n, dtype):
    a = general(n, n, dtype, 10.0)
    for scaled in (a, a[::-1]):
        sign, logarithm = both("numpy", "slogdet", scaled)[0]
        w = np.linalg.svd(scaled.astype("c16"), compute_uv=False)
        assert abs(logarithm - np.log(w).sum()) <= 100 * n * eps(dtype)
        expected = sign * np.exp(logarithm)
        for library in ("scipy", "numpy"):
            determinant = both(library, "det", scaled)[0]
            if np.abs(expected) > np.finfo(a.dtype).tiny * 1e3:
                assert abs(determinant - expected) <= 200 * n * eps(dtype) * abs(expected)


def test_singular_determinants_are_zero_and_their_factors_lapacks():
    a = general(200, 200, "f8", 10.0)
    a[:, 150] = 0
    assert both("scipy", "det", a)[0] == both("numpy", "det", a)[0] == 0
    assert both("numpy", "slogdet", a)[0][1] == -np.inf
    p, l, u = both("scipy", "lu", a)[0]
    assert norm(p @ l @ u - a) <= 1e-13 and u[150, 150] == 0
    with pytest.warns(scipy.linalg.LinAlgWarning, match="Diagonal number 151"), trnpy.policy(force=True):
        trnpy.linalg.lu_factor(a)


@pytest.mark.parametrize("dtype", ["f8", "c16"])
@pytest.mark.parametrize("n", [130, 600])
def test_pivots_whose_partial_products_overflow_have_a_determinant(n, dtype):
    q = np.linalg.qr(general(n, n, dtype, 10.0))[0]
    graded = np.geomspace(1e-150, 1e150, n)  # whose product is 1
    for rows in (graded, graded[::-1]):
        assert abs(abs(both("scipy", "det", rows[:, np.newaxis] * q)[0]) - 1) <= 200 * n * eps(dtype)


@pytest.mark.parametrize("factor, expected", [(1e200, np.inf), (1e-200, 0.0)])
def test_scipys_determinant_beyond_the_range_gives_no_warning(factor, expected):
    ours, theirs = both("scipy", "det", factor * np.eye(3))
    assert ours == theirs == expected


@pytest.mark.parametrize("dtype", ["f8", "c16"])
@pytest.mark.parametrize("n", [129, 300])
def test_determinants_of_rows_graded_by_twenty_decades_do_not_overflow(n, dtype):
    """Where the installed SciPy multiplies pivots in an order that overflows, theirs do."""
    a = 10.0 ** np.random.default_rng(n).uniform(-10, 10, (n, 1)) * general(n, n, dtype, 10.0)
    sign, logarithm = np.linalg.slogdet(a)
    ours, theirs = both("scipy", "det", a)
    for expected in (sign * np.exp(logarithm), *([theirs] if np.isfinite(theirs) else ())):
        assert np.isfinite(expected) and abs(ours - expected) <= (200 * n + abs(logarithm)) * eps(dtype) * abs(expected)


@pytest.mark.parametrize("dtype", ["f8", "c16"])
def test_factors_of_a_stack_give_the_determinant_of_each_matrix(dtype):
    a = np.stack([general(20, 20, dtype, 10.0), general(20, 20, dtype, 10.0)[::-1]])
    signs, logarithms = _det._slogdet(_lu.Factored(*_lu.factor(a, HOST, 8)))
    expected = np.linalg.slogdet(a)
    np.testing.assert_allclose(signs, expected[0], rtol=0, atol=1e3 * eps(dtype))
    np.testing.assert_allclose(logarithms, expected[1], rtol=0, atol=1e3 * eps(dtype))
