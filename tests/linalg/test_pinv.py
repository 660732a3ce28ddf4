"""Pseudo-inverses on the device path: Penrose's conditions, ranks and tolerances as SciPy counts them."""

import numpy as np
import pytest
import scipy.linalg

from linalg.matrices import positive, with_spectrum
from linalg.rows import DTYPES, U, eps, forced, gaussian, near_threshold, t
from trnpy.linalg import _pinv


@pytest.mark.parametrize("dtype", ["f8", "c16"])
@pytest.mark.parametrize("shape", [(60, 60), (90, 40), (40, 90)])
@pytest.mark.parametrize("rank", [40, 15])
def test_pseudo_inverses_satisfy_penrose(shape, rank, dtype):
    m, n = shape
    a = gaussian((m, rank), dtype) @ gaussian((rank, n), dtype, 1)
    size = np.linalg.norm(a, 2)
    x, found = forced("pinv", a, return_rank=True)
    theirs, expected = scipy.linalg.pinv(a, return_rank=True)
    assert found == expected == rank and type(found) is type(expected)
    condition = size * np.linalg.norm(x, 2)
    for residual, scale in (
        (a @ x @ a - a, size), (x @ a @ x - x, np.linalg.norm(x, 2)), (t(a @ x) - a @ x, 1), (t(x @ a) - x @ a, 1),
    ):  # fmt: skip
        assert np.linalg.norm(residual, 2) <= 100 * U * np.sqrt(max(shape)) * condition * scale
    np.testing.assert_allclose(x, theirs, rtol=0, atol=1e3 * U * condition * np.linalg.norm(x, 2))
    np.testing.assert_allclose(
        forced("numpy.linalg.pinv", a), x, rtol=0, atol=1e3 * U * condition * np.linalg.norm(x, 2)
    )


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_pseudo_inverses_of_hermitian_matrices_read_one_triangle(dtype, lower):
    a = positive(60, dtype, 1e3).astype(dtype)
    half = np.tril(a) if lower else np.triu(a)
    x, rank = forced("pinvh", half, lower=lower, return_rank=True)
    assert rank == 60 and x.dtype == dtype
    np.testing.assert_allclose(a @ x.astype(np.result_type(x, "f8")), np.eye(60), rtol=0, atol=5e4 * eps(dtype))


@pytest.mark.parametrize("tolerance", [{"rtol": 0.01}, {"atol": 0.01}, {"atol": 0.005, "rtol": 0.005}])
@pytest.mark.parametrize("name", ["pinv", "pinvh"])
def test_what_a_tolerance_cuts_is_no_error(name, tolerance):
    """Half of the spectrum goes; the second of Penrose's conditions holds as it does of all of it."""
    spectrum = np.append(np.linspace(1, 2, 30), np.linspace(1e-4, 2e-4, 30))
    a = with_spectrum(spectrum, np.random.default_rng(0), "f8")
    x, rank = forced(name, a, **tolerance, return_rank=True)
    theirs, expected = getattr(scipy.linalg, name)(a, **tolerance, return_rank=True)
    assert rank == expected == 30
    np.testing.assert_allclose(x, theirs, rtol=0, atol=1e4 * U)
    np.testing.assert_allclose(x @ a @ x, x, rtol=0, atol=1e4 * U)
    prepare = {"pinv": _pinv.prepare_pinv, "pinvh": _pinv.prepare_pinvh}[name]
    assert prepare(a, **tolerance).error(1.001 * x) > 1e-6  # and what is wrong is


@pytest.mark.parametrize("name", ["pinv", "pinvh"])
def test_a_rank_that_rounding_decides_is_scipys(name):
    near_threshold(name)
