"""Least squares of matrices of any shape on the device path."""

import numpy as np
import pytest
from doubles import RecordingEngine

import trnpy
from linalg.rows import DTYPES, both, eps, forced, general
from trnpy.linalg import _lstsq


@pytest.mark.parametrize("driver", ["gelsd", "gelss", "gelsy"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", [(), (1,), (3,)])
def test_tall_least_squares(columns, dtype, driver):
    a = general(600, 132, dtype, 1e2)
    b = np.random.default_rng(1).standard_normal((600, *columns)).astype(dtype)
    ours, theirs = both("scipy", "lstsq", a, b, lapack_driver=driver)
    for mine, other in zip(ours, theirs, strict=True):
        if other is not None:
            np.testing.assert_allclose(mine, other, rtol=1e5 * eps(dtype), atol=1e4 * eps(dtype))
    if driver == "gelsd":
        ours, theirs = both("numpy", "lstsq", a, b)
        np.testing.assert_allclose(ours[0], theirs[0], rtol=0, atol=1e4 * eps(dtype))
        np.testing.assert_allclose(ours[1], theirs[1], rtol=1e3 * eps(dtype))


def agree(ours, theirs, dtype, condition):
    """Members that both have: x to the condition, singular values and residues to the size of their largest."""
    for i, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
        if i == 2 or other is None:
            assert mine == other
            continue
        scale = np.abs(other).max(initial=0) * (condition if i == 0 else 1)
        np.testing.assert_allclose(mine, other, rtol=0, atol=1e3 * eps(dtype) * scale)


@pytest.mark.parametrize("driver", ["gelsd", "gelss", "gelsy"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(132, 600), (150, 150), (260, 150), (150, 260)], ids=str)
def test_any_shape_of_full_rank(shape, dtype, driver):
    a = general(*shape, dtype, 1e2)
    for columns in ((), (1,), (3,)):
        b = np.random.default_rng(1).standard_normal((shape[0], *columns)).astype(dtype)
        agree(*both("scipy", "lstsq", a, b, lapack_driver=driver), dtype, 1e2)
        if driver == "gelsd":
            agree(*both("numpy", "lstsq", a, b), dtype, 1e2)


@pytest.mark.parametrize("dtype", ["f8", "c16"])
@pytest.mark.parametrize("shape", [(150, 150), (260, 150), (150, 260)], ids=str)
def test_of_low_rank_the_shortest_minimum(shape, dtype):
    rng = np.random.default_rng(3)
    a = (rng.standard_normal((shape[0], 40)) @ rng.standard_normal((40, shape[1]))).astype(dtype)
    a = a * (1 + 0.5j) if dtype == "c16" else a
    b = rng.standard_normal((shape[0], 2)).astype(dtype)
    agree(*both("numpy", "lstsq", a, b), dtype, 1e2)
    agree(*both("scipy", "lstsq", a, b, 1e-8), dtype, 1e2)
    x, residues, rank, s = forced("lstsq", a, b, 1e-8)
    assert rank == 40 and len(s) == 150 and np.isnan(residues).all()  # SciPy 1.17 has none
    assert np.linalg.norm(x) < 1.001 * np.linalg.norm(np.linalg.pinv(a, rcond=1e-8) @ b)


def test_a_rank_that_rounding_decides_is_the_hosts():
    rng = np.random.default_rng(3)
    a = rng.standard_normal((150, 40)) @ rng.standard_normal((40, 150))
    both("scipy", "lstsq", a, np.ones(150), runs=False)  # SciPy's threshold is one eps
    wide = rng.standard_normal((40, 20)) @ rng.standard_normal((20, 400))
    both("numpy", "lstsq", wide, np.ones(40), runs=False)


@pytest.mark.parametrize("kinds", [("f8", "c16"), ("c16", "f8"), ("f4", "c16"), ("f4", "f8"), ("i4", "f8")], ids=str)
@pytest.mark.parametrize("shape", [(600, 132), (132, 600), (150, 150)], ids=str)
def test_operands_of_two_dtypes(shape, kinds):
    a = (8 * general(*shape, "f8", 1e2)).astype(kinds[0])
    a[np.diag_indices(min(shape))] += 16  # integers, too, are of full rank
    b = general(shape[0], 3, kinds[1], 10)
    runs = kinds[0] != "i4"
    agree(*both("scipy", "lstsq", a, b, runs=runs), np.result_type(*kinds), 1e2)


def test_gelsy_with_a_cut_that_shows_is_the_hosts():
    """It cuts the factor of a pivoted QR factorization: another x than that of the largest singular values."""
    rng = np.random.default_rng(0)
    u, v = (np.linalg.qr(rng.standard_normal((20, 20)))[0] for _ in range(2))
    b = rng.standard_normal(20)
    for least, runs in ((1e-2, False), (1e-6, False), (1e-16, True)):
        a = (u * np.where(np.arange(20) < 17, 1.0, least)) @ v.T
        ours, theirs = both("scipy", "lstsq", a, b, 3e-2, lapack_driver="gelsy", runs=runs)
        agree(ours, theirs, "f8", 1.0)


@pytest.mark.parametrize("shape", [(40, 40), (60, 40), (40, 60)], ids=str)
@pytest.mark.parametrize("axis", [0, 1])
def test_scaled_systems_of_known_solution_are_as_accurate_as_lapacks(shape, axis):
    """Integers times powers of two, multiplied exactly; the geometric mean of twenty errors. Wide: x = A^T y."""
    rng, errors = np.random.default_rng(0), []
    for _ in range(20):
        scale = np.array([2 ** int(p) for p in rng.integers(0, 40, shape[axis])], object)
        a = rng.integers(-50, 50, shape).astype(object) * (scale if axis else scale[:, np.newaxis])
        y = rng.integers(1, 50, min(shape)).astype(object)
        x = a.T @ y if shape[0] < shape[1] else y
        found = both("scipy", "lstsq", a.astype(float), (a @ x).astype(float), runs=None)
        x = x.astype(float)
        errors.append([max(np.abs(z[0] - x).max() / np.abs(x).max(), 1e-17) for z in found])
    ours, lapacks = np.exp(np.log(errors).mean(axis=0))
    assert ours <= 1.5 * lapacks


def test_solutions_near_the_least_numbers_are_checked_as_others_are():
    """Right-hand sides are 1e300 times as long as solutions, of which combinations underflowed."""
    rng = np.random.default_rng(1)
    a = np.concatenate((general(40, 40, "f8", 1e3), 1e-310 * rng.standard_normal((40, 40))))
    b = np.concatenate((1e-303 * rng.standard_normal((40, 7)), 1e9 * rng.standard_normal((40, 7))))
    problem = _lstsq.prepare_lstsq(a, b)
    result = problem.run(RecordingEngine())
    assert problem.error(result) < 200 * eps("f8")
    assert problem.error(result._replace(x=result.x + 1)) > 1e4 * eps("f8")


def test_squares_of_residuals_that_overflow_are_scipys_warning():
    a, b = np.vstack([np.eye(2)] * 5), np.arange(10.0) * 1e200
    for policy in ({}, {"force": True}):
        with trnpy.policy(**policy), pytest.warns(RuntimeWarning, match="overflow encountered in (square|multiply)"):
            trnpy.linalg.lstsq(a, b)
