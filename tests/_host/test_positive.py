"""Functions of positive-definite matrices through eigenvectors err no more than twice as much as SciPy's."""

import warnings

import numpy as np
import pytest
import scipy

from trnpy._host.positive import through_eigh

LONG = np.longdouble
FUNCTIONS = {
    "sqrtm": (np.sqrt, scipy.linalg.sqrtm),
    "logm": (np.log, scipy.linalg.logm),
    "power 0.3": (lambda w: w ** w.dtype.type(0.3), lambda a: scipy.linalg.fractional_matrix_power(a, 0.3)),
    "power -0.5": (lambda w: w ** w.dtype.type(-0.5), lambda a: scipy.linalg.fractional_matrix_power(a, -0.5)),
}
SPECTRA = {
    "geometric": lambda n, c: np.geomspace(1, 1 / c, n),
    "one small": lambda n, c: np.append(np.ones(n - 1), 1 / c),
    "one large": lambda n, c: np.append(np.full(n - 1, 1 / c), 1),
}


def eigenpairs(a):
    """Eigenvalues and vectors of symmetric a by Jacobi's rotations, in extended precision."""
    a, v = a.astype(LONG), np.eye(len(a), dtype=LONG)
    for _ in range(12):
        for p in range(len(a)):
            for q in range(p + 1, len(a)):
                if not a[p, q]:
                    continue
                cot = (a[q, q] - a[p, p]) / (2 * a[p, q])
                t = np.copysign(1, cot) / (abs(cot) + np.sqrt(1 + cot * cot))
                turn = np.array([[1, t], [-t, 1]], LONG) / np.sqrt(1 + t * t)
                a[:, [p, q]] = a[:, [p, q]] @ turn
                a[[p, q]] = turn.T @ a[[p, q]]
                v[:, [p, q]] = v[:, [p, q]] @ turn
                a[p, q] = a[q, p] = 0
    return a.diagonal(), v


@pytest.mark.skipif(np.finfo(LONG).eps > 1e-18, reason="long double is no wider than double on this processor")
@pytest.mark.parametrize("condition", [1e1, 1e3, 1e6])
@pytest.mark.parametrize("spectrum", SPECTRA)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_error_is_at_most_twice_scipys(name, spectrum, condition):
    function, reference = FUNCTIONS[name]
    n, rng = 14, np.random.default_rng(0)
    q = np.linalg.qr(rng.standard_normal((n, n)))[0]
    a = (q * SPECTRA[spectrum](n, condition)) @ q.T
    a = (a + a.T) / 2
    with np.errstate(over="ignore"):
        w, v = eigenpairs(a)
    exact = (v * function(w)) @ v.T
    unit = np.finfo(float).eps / 2 * np.linalg.norm(exact.astype(float))
    with warnings.catch_warnings(action="ignore"):
        theirs = np.linalg.norm((reference(a) - exact).astype(float)) / unit
    ours = np.linalg.norm((through_eigh(a, function, (0.0, np.inf)) - exact).astype(float)) / unit
    assert ours <= 2 * theirs + 2


@pytest.mark.parametrize("dtype", ["f4", "f8", "F", "D"])
@pytest.mark.parametrize("stack", [(), (3,)])
def test_square_roots_that_are_known_exactly(dtype, stack):
    """X of integers so small that A = X X is exact."""
    n, rng = 40, np.random.default_rng(1)
    single = dtype in "f4F"
    g = rng.standard_normal((*stack, n, n)) + 1j * rng.standard_normal((*stack, n, n)) * (dtype in "FD")
    q = np.linalg.qr(g)[0]
    bits, condition = (9, 4) if single else (21, 2000)
    x = np.rint((q * np.geomspace(1, 1 / condition, n)) @ q.conj().swapaxes(-1, -2) * 2**bits)
    x = np.triu(x) + np.triu(x, 1).conj().swapaxes(-1, -2)
    if not g.imag.any():
        x = x.real
    a = (x @ x).astype(dtype)
    found = through_eigh(a, np.sqrt, (0.0, np.inf))
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, found.conj().swapaxes(-1, -2))
    error = np.linalg.norm(found - x, axis=(-2, -1)) / np.linalg.norm(x, axis=(-2, -1))
    assert error.max() <= 20 * np.finfo(dtype).eps
