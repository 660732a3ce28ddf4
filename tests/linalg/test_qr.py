"""QR factors on the device path: every mode, and Cholesky factors of tall matrices."""

import numpy as np
import pytest
import scipy.linalg
from doubles import RecordingEngine

import trnpy.linalg
from linalg.rows import CONDITIONS, DTYPES, both, eps, general, no_worse, norm, t
from trnpy._call.dispatch import Reason
from trnpy._engine.engines import HOST, engine
from trnpy.linalg import _qr


@pytest.mark.parametrize("library", ["scipy", "numpy"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(140, 140), (200, 130), (130, 200), (560, 130), (300, 3)])
def test_qr_in_every_mode(shape, dtype, library):
    a = general(*shape, dtype, 1e2)
    k, allowed = min(shape), 30 * max(shape) * eps(dtype)
    for mode in {"scipy": ("full", "qr", "economic"), "numpy": ("complete", "reduced")}[library]:
        (q, r), _ = both(library, "qr", a, mode=mode)
        assert norm(q @ r - a) <= allowed * norm(a)
        assert norm(t(q) @ q - np.eye(q.shape[1])) <= allowed
        assert not np.tril(r, -1).any()
    r, theirs = both(library, "qr", a, mode="r")
    r, theirs = (r[0], theirs[0]) if library == "scipy" else (r, theirs)
    np.testing.assert_allclose(np.abs(r[:k]), np.abs(theirs[:k]), rtol=0, atol=100 * allowed * norm(a))
    raw, theirs = both(library, "qr", a, mode="raw")
    (packed, tau), (h, _) = (raw[0], theirs[0]) if library == "scipy" else (raw, theirs)
    assert packed.strides == h.strides  # LAPACK's, so that it takes them without a copy
    packed = packed if library == "scipy" else packed.T
    (orgqr,) = scipy.linalg.get_lapack_funcs(("orgqr",), (a,))
    q = orgqr(np.asfortranarray(packed[:, :k]), tau)[0]
    assert norm(q @ np.triu(packed[:k]) - a) <= allowed * norm(a)


@pytest.mark.parametrize("condition", [1.0, 1e7, 1e8, 1e12, 1e15])
@pytest.mark.parametrize("dtype", ["f8", "c16"])
def test_cholesky_qr_is_as_orthogonal_as_householders(condition, dtype):
    a = general(600, 100, dtype, condition)
    (q, r), (q0, r0) = both("scipy", "qr", a, mode="economic")
    assert norm(t(q) @ q - np.eye(100)) <= 3 * norm(t(q0) @ q0 - np.eye(100))
    assert norm(q @ r - a) <= 3 * norm(q0 @ r0 - a)
    graded = a * np.geomspace(1, 1e-200, 100)  # columns of any size: scaled by powers of two
    (q, r), _ = both("scipy", "qr", graded, mode="economic")
    assert norm(t(q) @ q - np.eye(100)) <= 1e-13
    np.testing.assert_allclose(q @ r / np.geomspace(1, 1e-200, 100), a, rtol=0, atol=1e-13)


def test_cholesky_qr_gives_up_on_what_is_singular():
    a = general(500, 60, "f8", 1e3)
    a[:, 7] = a[:, 3] + a[:, 5]
    with pytest.raises(_qr.NotOrthogonal):
        _qr.cholesky_qr(np.hstack([a, np.zeros((500, 1))]), HOST)
    (q, _), (q0, _) = both("scipy", "qr", np.hstack([a, np.zeros((500, 1))]), mode="economic", runs=False)
    np.testing.assert_array_equal(q, q0)
    with engine(RecordingEngine()), trnpy.policy(force=True), trnpy.trace() as log:
        trnpy.linalg.lstsq(a, np.ones(500))
    assert log[0].reason in (Reason.VALUE, Reason.ACCURACY)


@pytest.mark.parametrize("dtype, condition", CONDITIONS)
@pytest.mark.parametrize("n", [1, 127, 128, 129, 261])
def test_backward_errors_are_lapacks(n, dtype, condition):
    a = general(n, n, dtype, condition)
    pair = both("scipy", "qr", a)
    no_worse(lambda f: norm(f[0] @ f[1] - a) / norm(a), pair, dtype)
    no_worse(lambda f: norm(t(f[0]) @ f[0] - np.eye(n, dtype=dtype)), pair, dtype)


LAYOUTS = [np.ascontiguousarray, np.asfortranarray, lambda a: np.repeat(a, 2, axis=-1)[..., ::2]]


@pytest.mark.parametrize("mode", ["raw", "r", "reduced", "complete"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(140, 130), (560, 130), (3, 140, 130)])
def test_numpys_factors_lie_in_the_order_that_numpy_gives_them(shape, layout, mode):
    """Reflectors and R in that of the operand: NumPy factors a copy of it."""
    for dtype in ("f4", "f8", "c16"):
        a = layout(np.broadcast_to(general(*shape[-2:], dtype, 10), shape))
        ours, theirs = both("numpy", "qr", a, mode=mode, runs=mode != "raw" or a.ndim == 2)
        for mine, other in zip(*[x if isinstance(x, tuple) else (x,) for x in (ours, theirs)], strict=True):
            assert mine.strides == other.strides
