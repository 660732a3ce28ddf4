"""Inverses and systems by the structure of their matrices."""

import re

import numpy as np
import pytest
import scipy.linalg

import trnpy.linalg
from linalg.matrices import positive
from linalg.rows import CONDITIONS, PLAIN_INV, both, general, no_worse, norm, t


@pytest.mark.parametrize("assume_a", ["upper triangular", "lower triangular", "sym", "her", "pos", "gen", None])
@pytest.mark.parametrize("dtype", ["f8", "c16"])
def test_structures_of_inverses_and_transposed_systems(dtype, assume_a):
    n = 200
    rng = np.random.default_rng(0)
    if not PLAIN_INV:
        with pytest.raises(TypeError, match="assume_a") as ours, trnpy.policy(force=True):
            trnpy.linalg.inv(np.eye(n), assume_a=assume_a)
        with pytest.raises(TypeError, match=re.escape(str(ours.value))):
            scipy.linalg.inv(np.eye(n), assume_a=assume_a)
        return
    a = general(n, n, dtype, 1e2) + (n * np.eye(n) if assume_a and "triangular" in assume_a else 0)
    a = {"sym": a + a.T, "her": a + t(a), "pos": positive(n, dtype, 1e2)}.get(assume_a, a).astype(dtype)
    for lower in (True, False):
        x, theirs = both("scipy", "inv", a, assume_a=assume_a, lower=lower)
        np.testing.assert_allclose(x, theirs, rtol=0, atol=1e-10 * np.abs(theirs).max())
        if dtype == "f8":
            b = rng.standard_normal((n, 2))
            x, theirs = both("scipy", "solve", a, b, assume_a=assume_a, lower=lower, transposed=True)
            np.testing.assert_allclose(x, theirs, rtol=0, atol=1e-10 * np.abs(theirs).max())
    if assume_a in ("sym", "her", "pos"):
        np.testing.assert_array_equal(*(lambda x: (x, x.T if assume_a == "sym" else t(x)))(trnpy_inverse(a, assume_a)))


def trnpy_inverse(a, assume_a):
    return both("scipy", "inv", a, assume_a=assume_a)[0]


@pytest.mark.filterwarnings("ignore::scipy.linalg.LinAlgWarning")  # SciPy's, where trnpy leaves the call to it
@pytest.mark.parametrize("dtype, condition", CONDITIONS)
@pytest.mark.parametrize("n", [127, 128, 129, 261])
def test_backward_errors_are_lapacks(n, dtype, condition):
    a, one = general(n, n, dtype, condition), np.eye(n, dtype=dtype)
    pair = both("scipy", "inv", a, **PLAIN_INV, runs=True if condition < 1e10 else None)
    no_worse(lambda x: norm(x @ a - one) / (norm(a) * norm(x)), pair, dtype)
    no_worse(lambda x: norm(a @ x - one) / (norm(a) * norm(x)), pair, dtype)
