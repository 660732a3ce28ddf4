"""pinvh of one matrix through divide and conquer gives SciPy's results, ranks and errors."""

import numpy as np
import pytest
import scipy.linalg

import trnpy.linalg
from trnpy._call.dispatch import Reason
from trnpy._host import positive, tridiagonal
from trnpy._host.pseudo_inverse import LEAST

BY_STEPS = 401


def hermitian(n, dtype, rank=None):
    """A matrix whose eigenvalues have either sign and sizes from 1 to 50, or are zero."""
    rng = np.random.default_rng(n)
    g = rng.standard_normal((n, rank or n))
    q = np.linalg.qr(g + 1j * rng.standard_normal(g.shape) if np.dtype(dtype).kind == "c" else g)[0]
    w = np.geomspace(1, 50, q.shape[1]) * np.where(np.arange(q.shape[1]) % 3, 1, -1)
    a = ((q * w) @ q.conj().T).astype(dtype)
    return (a + a.conj().T) / 2


def run(*args, route=True, **options):
    with trnpy.trace() as log:
        ours = trnpy.linalg.pinvh(*args, **options)
    assert bool(log[0].route) is route, log
    return ours, scipy.linalg.pinvh(*args, **options)


@pytest.mark.parametrize("rank", [None, 30])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("n, dtype", [(LEAST, "f4"), (LEAST, "f8"), (LEAST, "c8"), (LEAST, "c16"), (BY_STEPS, "f8")])
def test_pseudo_inverses_are_scipys(n, dtype, lower, order, rank):
    whole = hermitian(n, dtype, rank)
    a = np.asarray(np.tril(whole) if lower else np.triu(whole), order=order)
    kept = a.copy()
    cut = {"rtol": 1e-4} if dtype in ("f4", "c8") and rank else {"rtol": 1e-9} if rank else {}
    (x, ours), (y, theirs) = run(a, lower=lower, return_rank=True, **cut)
    assert (type(x), x.dtype, x.shape, x.flags.writeable, ours) == (
        type(y),
        y.dtype,
        y.shape,
        y.flags.writeable,
        theirs,
    )
    assert type(ours) is type(theirs) and x.flags.c_contiguous
    np.testing.assert_array_equal(a, kept)
    norm = np.linalg.norm
    mine, other = (norm(whole @ z @ whole - whole) / (norm(whole) ** 2 * norm(z)) for z in (x, y))
    assert mine <= 3 * other + n * np.finfo(dtype).eps
    assert norm(x - y) <= 100 * n * np.finfo(dtype).eps * norm(y) * norm(y, 2) * norm(whole, 2)


def test_the_rank_near_the_threshold_is_scipys():
    w = np.ones(LEAST)
    w[0] = 1.2 * LEAST * np.finfo(float).eps
    q = np.linalg.qr(np.random.default_rng(0).standard_normal((LEAST, LEAST)))[0]
    a = (q * w) @ q.T
    ours, theirs = run(a, route=False)
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_errors_are_scipys(value):
    a = hermitian(LEAST, "f8")
    a[3, 2] = value
    outcomes = []
    for function in (trnpy.linalg.pinvh, scipy.linalg.pinvh):
        with pytest.raises(ValueError) as caught:
            function(a)
        outcomes.append(str(caught.value))
    assert outcomes[0] == outcomes[1]
    with trnpy.trace() as log:
        np.testing.assert_array_equal(trnpy.linalg.pinvh(np.zeros((LEAST, LEAST))), np.zeros((LEAST, LEAST)))
    assert log[0].reason is Reason.VALUE


@pytest.mark.parametrize("dtype", ["f8", "c16"])
def test_only_real_matrices_go_in_separate_steps(dtype, monkeypatch):
    steps, eigh = [], tridiagonal.eigh
    monkeypatch.setattr(tridiagonal, "eigh", lambda *args: steps.append(args) or eigh(*args))
    monkeypatch.setattr(positive, "BY_STEPS", LEAST)
    ours, theirs = run(hermitian(LEAST, dtype))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=LEAST * np.finfo(dtype).eps)
    assert len(steps) == (dtype == "f8")
