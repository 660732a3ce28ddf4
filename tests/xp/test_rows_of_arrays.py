"""trnpy's functions with SciPy's names take Arrays and return Arrays; so do SciPy's under a patch."""

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse

import trnpy
import trnpy.linalg
import trnpy.sparse.linalg

A = np.random.default_rng(0).standard_normal((20, 20))
POSITIVE = A @ A.T + np.eye(20)
CALLS = {
    "inv": lambda f, x: f(x), "cholesky": lambda f, x: f(x, lower=True), "expm": lambda f, x: f(x),
    "eigh": lambda f, x: f(x), "svd": lambda f, x: f(x, full_matrices=False), "lstsq": lambda f, x: f(x, x[:, :2]),
    "solve": lambda f, x: f(a=x, b=x[:, 0], assume_a="pos"), "lu_factor": lambda f, x: f(x, overwrite_a=True),
    "det": lambda f, x: f(x), "gemm": lambda f, x: f(1.0, x, x),
}  # fmt: skip


def compare(ours, theirs):
    if isinstance(theirs, tuple):
        for x, y in zip(ours, theirs, strict=True):
            compare(x, y)
    else:
        assert isinstance(theirs, int) or isinstance(ours, trnpy.Array)
        np.testing.assert_array_equal(np.asarray(ours), theirs)


@pytest.mark.parametrize("name", CALLS)
def test_the_results_are_those_of_plain_arrays(name):
    function, call = getattr(trnpy.linalg, name), CALLS[name]
    compare(call(function, trnpy.asarray(POSITIVE)), call(function, POSITIVE.copy()))


def test_on_a_device():
    with trnpy.policy(device="simulator", force=True), trnpy.trace() as log:
        x = trnpy.linalg.inv(trnpy.asarray(POSITIVE))
    assert isinstance(x, trnpy.Array) and [d.op for d in log] == ["scipy.linalg.inv"] and log[0].on_device


def test_under_a_patch():
    trnpy.patch()
    try:
        assert isinstance(scipy.linalg.inv(trnpy.asarray(POSITIVE)), trnpy.Array)
        assert type(scipy.linalg.inv(POSITIVE)) is np.ndarray
    finally:
        trnpy.unpatch()


def test_of_a_sparse_matrix():
    a = scipy.sparse.csr_array(POSITIVE)
    x, info = trnpy.sparse.linalg.cg(a, trnpy.asarray(POSITIVE[0]), rtol=1e-8)
    assert isinstance(x, trnpy.Array) and info == 0
    np.testing.assert_allclose(POSITIVE @ np.asarray(x), POSITIVE[0], rtol=1e-6, atol=1e-6)
