"""LAPACK rows mean what f2py's drivers mean: results, info codes and matrices of several panels."""

import itertools

import numpy as np
import pytest
from doubles import RecordingEngine
from scipy.linalg import lapack

import trnpy.linalg
from tests.linalg.test_blas_rows import BOTH, PREFIXES, N, close, definite, random, same
from trnpy._engine.engines import engine


@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("prefix", PREFIXES)
def test_drivers_of_lapack(prefix, order):
    a, s, b = random(N, N, prefix, order), definite(N, prefix, order), random(N, 3, prefix, order)
    for lower, clean, overwrite in itertools.product((0, 1), (0, 1), (0, 1)):
        same(f"{prefix}potrf", s, lower, clean, overwrite)
        same(f"{prefix}posv", s, b, lower=lower, overwrite_a=overwrite, overwrite_b=clean)
        same(f"{prefix}gesv", a, b, overwrite, clean)
    for shape in ((N, N), (9, 5), (5, 9)):
        same(f"{prefix}getrf", random(*shape, prefix, order), overwrite_a=1)


@pytest.mark.parametrize("name", ["dsyevd", "zheevd", "dsygvd", "zhegvd"])
@pytest.mark.parametrize("lower", [0, 1])
def test_eigenproblems(name, lower):
    n = 140
    a, s = random(n, n, name[0]), definite(n, name[0], "F")
    a = a + a.conj().T
    args = (a,) if name.endswith("evd") else (a, s)
    options = {"lower": lower} if name.endswith("evd") else {"uplo": "UL"[lower]}
    with engine(RecordingEngine()), trnpy.policy(force=True), trnpy.trace() as log:
        w, v, info = getattr(trnpy.linalg.lapack, name)(*args, **options)
    assert log[0].on_device
    w0, v0, info0 = getattr(lapack, name)(*args, **options)
    assert info == info0 == 0 and (w.dtype, v.dtype, v.shape) == (w0.dtype, v0.dtype, v0.shape)
    close(w, w0)
    right = v * w if len(args) == 1 else s @ v * w
    assert np.abs(a @ v - right).max() < 1e-9 and v.flags.f_contiguous


def test_info_is_lapacks():
    indefinite = np.diag([1.0, 2.0, -1.0, 3.0])
    singular = np.diag([1.0, 0.0, 1.0])
    same("dpotrf", indefinite, runs=False)
    same("dposv", indefinite, np.ones((4, 1)), runs=False)
    same("dgetrf", singular, runs=False)
    ours, theirs = (module.dgesv(singular, np.ones((3, 1))) for module in BOTH["lapack"])
    assert ours[3] == theirs[3] == 2


def test_matrices_of_several_panels():
    rng = np.random.default_rng(0)
    a = np.asfortranarray(rng.standard_normal((300, 300)))
    s, b = np.asfortranarray(a @ a.T + 300 * np.eye(300)), np.asfortranarray(rng.standard_normal((300, 40)))
    same("dpotrf", s, 1)
    same("dtrsm", 1.0, s, b)
    same("dposv", s, b)
    with engine(RecordingEngine()), trnpy.policy(force=True):
        lu, piv, x, info = trnpy.linalg.lapack.dgesv(a, b)
    assert info == 0 and np.linalg.norm(a @ x - b) < 1e-12 * np.linalg.norm(a) * np.linalg.norm(x)
    l, u = np.tril(lu, -1) + np.eye(300), np.triu(lu)
    rows = a.copy()
    for i, swap in enumerate(piv):
        rows[[i, swap]] = rows[[swap, i]]
    close(l @ u, rows)
