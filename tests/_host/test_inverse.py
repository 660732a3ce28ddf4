"""Inverses of one matrix: NumPy's through LAPACK's getri, and those that end the process in SciPy 1.17."""

import numpy as np
import pytest
import scipy.linalg

import trnpy.linalg
from trnpy._call.dispatch import accelerated
from trnpy._call.rows import rows as rows_of
from trnpy._host import inverse

N = inverse.FACTORS_LEAST
assert scipy.linalg  # imported: a route waits until the program has done so


def numpys_inv():
    return next(accelerated(op) for op in rows_of("numpy.linalg") if op.name == "numpy.linalg.inv")


def general(n, dtype):
    rng = np.random.default_rng(n)
    a = rng.standard_normal((n, n)) + (1j * rng.standard_normal((n, n)) if dtype == "c16" else 0)
    return a.astype(dtype)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["f8", "c16"])
def test_inverses_of_any_matrices(dtype, order, threads, monkeypatch):
    monkeypatch.setattr(inverse, "threads", lambda: threads)
    a = np.asarray(general(N, dtype), order=order)
    kept = a.copy()
    with trnpy.trace() as log:
        x = numpys_inv()(a)
    assert log[0].route == ("getri" if threads == 1 else "")
    y = np.linalg.inv(a)
    assert (x.dtype, x.flags.c_contiguous, x.flags.writeable) == (y.dtype, y.flags.c_contiguous, y.flags.writeable)
    np.testing.assert_array_equal(a, kept)
    norm, eye = np.linalg.norm, np.eye(N)
    for side in (lambda z: a @ z, lambda z: z @ a):
        mine, other = (norm(side(z) - eye) / (norm(a) * norm(z)) for z in (x, y))
        assert mine <= 3 * other + np.finfo(float).eps


@pytest.mark.parametrize("shift", [0.0, 100.0], ids=["indefinite", "definite"])
@pytest.mark.parametrize("dtype", ["f8", "c16"])
def test_inverses_of_hermitian_matrices(dtype, shift):
    a = general(60, dtype)
    a = a + a.conj().T + shift * np.eye(60)
    x, y = inverse._hermitian_inverse(a), np.linalg.inv(a)
    norm, eye = np.linalg.norm, np.eye(60)
    for side in (lambda z: a @ z, lambda z: z @ a):
        mine, other = (norm(side(z) - eye) / (norm(a) * norm(z)) for z in (x, y))
        assert mine <= 3 * other + np.finfo(float).eps


@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0])
def test_errors_and_values_are_numpys(value, monkeypatch):
    monkeypatch.setattr(inverse, "threads", lambda: 1)
    a = general(N, "f8")
    a[:, 5] = value
    outcomes = []
    for function in (numpys_inv(), np.linalg.inv):
        try:
            outcomes.append(function(a))
        except np.linalg.LinAlgError as why:
            outcomes.append(str(why))
    if isinstance(outcomes[1], str):
        assert outcomes[0] == outcomes[1]
    else:
        np.testing.assert_array_equal(*outcomes)


@pytest.mark.parametrize("a", [2.0, np.array(2.0), None], ids=repr)
def test_what_has_no_rows_raises_numpys_error(a):
    with pytest.raises(np.linalg.LinAlgError) as theirs:
        np.linalg.inv(a)
    with pytest.raises(np.linalg.LinAlgError) as ours:
        numpys_inv()(a)
    assert str(ours.value) == str(theirs.value)


@pytest.mark.parametrize("n", [2, 10, 60])
@pytest.mark.parametrize("dtype", ["i8", "f2", "f8", "c16"])
@pytest.mark.filterwarnings("ignore:Calling linalg.inv with arguments of dtype=float16")  # by SciPy from 1.18
def test_matrices_that_scipy_would_overwrite_in_fortran_order(dtype, n):
    """SciPy's own inv ends the process for these, so there is nothing to compare with."""
    rng = np.random.default_rng(n)
    a = rng.integers(-9, 9, (n, n))
    a = np.asfortranarray((a + a.T + np.diag(np.arange(n) % 2 * 40 - 20)).astype(dtype))
    for given in (a, np.asfortranarray(np.repeat(a, 2, axis=0))[::2]):
        x = trnpy.linalg.inv(given, overwrite_a=True)
        single = dtype == "f2"
        eps = np.finfo(np.float32 if single else float).eps
        wide = a.astype("c16")
        assert np.abs(wide @ x - np.eye(n)).max() <= 100 * n * eps * np.linalg.cond(wide)
