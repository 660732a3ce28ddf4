"""Singular values and vectors on the device path: identities and LAPACK-grade errors, on spectra that break others."""

import numpy as np
import pytest
import scipy.linalg
from doubles import FaultyEngine, Float32Engine, RecordingEngine, RoundingEngine

import trnpy.linalg
from linalg.matrices import TO_SINGLE, hermitian, orthogonal
from linalg.rows import eps, forced, gaussian, norm, t
from trnpy._call.dispatch import Reason
from trnpy._engine.engines import HOST, engine
from trnpy.linalg import _svd

SPECTRA = {
    "geometric to 1e-4": lambda n, rng: np.geomspace(1, 1e-4, n),
    "geometric to 1e-8": lambda n, rng: np.geomspace(1, 1e-8, n),
    "geometric to 1e-12": lambda n, rng: np.geomspace(1, 1e-12, n),
    "half of full rank": lambda n, rng: np.where(np.arange(n) < (n + 1) // 2, rng.uniform(1, 2, n), 0),
    "rank one": lambda n, rng: np.where(np.arange(n) < 1, 3.0, 0),
    "orthogonal": lambda n, rng: np.ones(n),
    "two-valued": lambda n, rng: np.where(np.arange(n) < n // 2, 2.0, 1.0),
    "clustered": lambda n, rng: np.where(np.arange(n) < n // 2, 1 + 1e-10 * rng.uniform(-1, 1, n), rng.uniform(size=n)),
    "clusters of 4": lambda n, rng: np.repeat(rng.uniform(0, 1, -(-n // 4)), 4)[:n] + 1e-7 * rng.uniform(0, 1, n),
    "tiny": lambda n, rng: 1e-140 * rng.uniform(0, 1, n),
    "huge": lambda n, rng: 1e140 * rng.uniform(0, 1, n),
}  # fmt: skip
SHAPED = ("random", "hilbert", "triangular", "identity", "zero")
FAMILIES = (*SPECTRA, *SHAPED)
HARD = ("hilbert",)  # most of its singular values are rounding errors: refused where they would be most of the work


def general(family, n, dtype, seed=0):
    """The (n, n) matrix of a family, and its singular values where they are known to rounding."""
    rng = np.random.default_rng([seed, n])
    if family in SPECTRA:
        s = SPECTRA[family](n, rng)
        return (orthogonal(n, rng, dtype) * s) @ orthogonal(n, rng, dtype), np.sort(s)[::-1]
    g = rng.standard_normal((n, n)) + (1j * rng.standard_normal((n, n)) if np.dtype(dtype).kind == "c" else 0)
    return {
        "random": lambda: (g, None),
        "hilbert": lambda: (hermitian("hilbert", n, dtype), None),
        "triangular": lambda: (np.tril(g), None),
        "identity": lambda: (np.eye(n, dtype=dtype), np.ones(n)),
        "zero": lambda: (np.zeros((n, n), dtype), np.zeros(n)),
    }[family]()


def check(a, u, s, vh, known=None):
    """Values within 10 u s_1, orthogonality 4 u sqrt n (n at least 16), reconstruction 100 u sqrt n s_1."""
    k, unit = len(s), np.finfo(a.dtype).eps / 2
    a, u, s, vh = (m.astype(np.result_type(m, np.float64)) for m in (a, u, s, vh))
    largest = max(s[0], np.finfo(float).tiny)
    wide = np.clongdouble if a.dtype.kind == "c" else np.longdouble
    x, y = u[:, :k].astype(wide), t(vh)[:, :k].astype(wide)
    lengths = (np.abs(x) ** 2).sum(axis=0) * (np.abs(y) ** 2).sum(axis=0)
    exact = np.sort(np.abs((x.conj() * ((a / largest) @ y)).sum(axis=0)) / np.sqrt(lengths))[::-1].astype(float)
    assert (np.diff(s) <= 0).all() and (s >= 0).all()
    assert np.abs(s / largest - exact).max() <= 10 * unit
    if known is not None:  # itself known to what making the matrix took
        assert np.abs(s - known).max() <= 10 * unit * np.sqrt(max(k, 4)) * largest
    for q in (u, t(vh)):
        assert np.linalg.norm(t(q) @ q - np.eye(q.shape[1]), 2) <= 4 * unit * max(np.sqrt(len(q)), 4)
    assert np.linalg.norm((u[:, :k] * (s / largest)) @ vh[:k] - a / largest, 2) <= 100 * unit * np.sqrt(max(k, 4))


@pytest.mark.parametrize("dtype", ["f8", "c16"])
@pytest.mark.parametrize("n", [1, 2, 127, 128, 129])
@pytest.mark.parametrize("family", FAMILIES)
def test_svd_is_as_good_as_lapack(family, n, dtype):
    a, known = general(family, n, dtype)
    with engine(RecordingEngine()), trnpy.policy(force=True, method="start"), trnpy.trace() as log:
        u, s, vh = trnpy.linalg.svd(a)
    assert log[0].by_device_path and log[0].method == "start", log
    assert (u.dtype, s.dtype, vh.dtype) == (dtype, "f8", dtype)
    check(a, u, s, vh, known)


@pytest.mark.parametrize("dtype", ["f8", "c16", "f4", "c8"])
@pytest.mark.parametrize("family", FAMILIES)
def test_started_from_products_it_is_as_good(family, dtype):
    """The polar factor, divide and conquer, and the refinement: nothing of LAPACK's but leaves and small clusters."""
    a, known = general(family, 129, dtype)
    if dtype in ("f4", "c8"):
        a, known = (a * TO_SINGLE.get(family, 1.0)).astype(dtype), None  # rounded to float32 it has other values
    with engine(RecordingEngine()), trnpy.policy(force=True, method="divide"), trnpy.trace() as log:
        u, s, vh = trnpy.linalg.svd(a)
    assert log[0].by_device_path and log[0].method == "divide", log
    assert (u.dtype, s.dtype, vh.dtype) == (dtype, a.real.dtype, dtype)
    check(a, u, s, vh, known)


@pytest.mark.parametrize("dtype", ["f8", "c16"])
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("family", ["tiny", "half of full rank"])
def test_however_products_are_rounded_it_is_as_good(family, seed, dtype):
    """Neighbouring values at random: the gaps that corrections are divided by are down to 1e-6."""
    a, known = general(family, 129, dtype, seed)
    with engine(RoundingEngine()), trnpy.policy(force=True), trnpy.trace() as log:
        u, s, vh = trnpy.linalg.svd(a)
    assert log[0].on_device, log
    check(a, u, s, vh, known)


@pytest.mark.parametrize("method", ["start", "divide"])
@pytest.mark.parametrize("family", ["random", "geometric to 1e-12", "rank one", "two-valued", "hilbert"])
def test_clusters_beyond_a_leaf(family, method, monkeypatch):
    """Clusters larger than LEAF are problems of their own: polar factors away from zero, the same again near it."""
    monkeypatch.setattr(_svd, "LEAF", 20)
    a, known = general(family, 129, "f8")
    with engine(RecordingEngine()), trnpy.policy(force=True, method=method), trnpy.trace() as log:
        u, s, vh = trnpy.linalg.svd(a)
    if not log[0].on_device:
        # Values from 1e-12 down to a leaf of 20: how BLAS rounds decides whether they come apart.
        assert family in (*HARD, "geometric to 1e-12")
        assert log[0].reason is Reason.ACCURACY and "near zero" in log[0].detail
        return
    check(a, u, s, vh, known)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f8", "c16"])
@pytest.mark.parametrize("n", [384, 512])
@pytest.mark.parametrize("family", FAMILIES)
def test_large_ones(family, n, dtype):
    a, known = general(family, n, dtype)
    for method in _svd.METHODS:
        with engine(RecordingEngine()), trnpy.policy(force=True, method=method), trnpy.trace() as log:
            u, s, vh = trnpy.linalg.svd(a)
        if not log[0].on_device:
            assert family in HARD and log[0].reason is Reason.ACCURACY
            continue
        check(a, u, s, vh, known)


@pytest.mark.parametrize("dtype", ["f8", "c16", "f4", "c8"])
@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("shape", [(1, 7), (7, 1), (130, 129), (129, 130), (300, 40), (40, 300), (200, 150)])
def test_rectangles(shape, full, dtype):
    a = gaussian(shape, dtype).astype(dtype)
    with engine(RecordingEngine()), trnpy.policy(force=True), trnpy.trace() as log:
        u, s, vh = trnpy.linalg.svd(a, full_matrices=full)
    assert log[0].on_device
    theirs = scipy.linalg.svd(a, full_matrices=full)
    assert [(x.shape, x.dtype) for x in (u, s, vh)] == [(x.shape, x.dtype) for x in theirs]
    check(a, u, s, vh)
    with engine(RecordingEngine()), trnpy.policy(force=True):  # to the bit: the same products by the same library
        np.testing.assert_array_equal(trnpy.linalg.svd(a, compute_uv=False), trnpy.linalg.svdvals(a))
        np.testing.assert_allclose(trnpy.linalg.svdvals(a), theirs[1], rtol=0, atol=20 * eps(dtype) * s[0])


def test_a_tall_matrix_of_low_rank():
    a = gaussian((300, 20), "f8") @ gaussian((20, 50), "f8")
    with engine(RecordingEngine()), trnpy.policy(force=True), trnpy.trace() as log:
        u, s, vh = trnpy.linalg.svd(a, full_matrices=False)
    assert log[0].on_device
    check(a, u, s, vh)


@pytest.mark.parametrize("family", ["random", "half of full rank", "clustered"])
def test_on_the_simulator(family):
    """float64 by digits of bf16, as the device multiplies them: errors of LAPACK's size from 8-bit operands."""
    a, known = general(family, 20, "f8")
    with trnpy.policy(device="simulator", force=True), trnpy.trace() as log:
        u, s, vh = trnpy.linalg.svd(a)
    assert log[0].on_device and log[0].engine == "simulator", log
    check(a, u, s, vh, known)


def test_a_wrong_product_is_never_returned():
    a = gaussian((100, 80), "f8")
    for e in (Float32Engine(), FaultyEngine("wrong"), FaultyEngine("nan")):
        with engine(e), trnpy.policy(force=True, fallback="log"), trnpy.trace() as log:
            s = trnpy.linalg.svdvals(a)
        assert not log[0].on_device
        np.testing.assert_array_equal(s, scipy.linalg.svdvals(a))


def test_products_are_counted():
    """Six products an iteration, two or three iterations for a separated spectrum, and one for the values."""
    with engine(RecordingEngine()) as e, trnpy.policy(force=True, method="start"):
        trnpy.linalg.svd(gaussian((129, 129), "f8"))
    assert 13 <= len([s for s in e.shapes if s == (129, 129, 129)]) <= 25


def test_the_model_prefers_the_device_for_large_matrices_only():
    with trnpy.policy(device="null"):
        small = trnpy.explain(trnpy.linalg.svd, np.broadcast_to(0.0, (100, 100)).copy())
        large = trnpy.explain(trnpy.linalg.svd, np.zeros((4096, 4096)))
    assert not small.on_device and large.on_device and large.method == "divide"
    assert "modelled" in str(large)


@pytest.mark.parametrize("dtype", ["f8", "c16"])
def test_nearly_orthonormal_columns_are_polished_quadratically(dtype):
    q = np.linalg.qr(gaussian((60, 40), dtype))[0] + 1e-7 * gaussian((60, 40), dtype, seed=1)
    before, after = (norm(t(x) @ x - np.eye(40)) for x in (q, _svd._polished(q, HOST)))
    assert before > 1e-6 and after < before**2


@pytest.mark.parametrize("dtype", ["f8", "c16"])
def test_a_cluster_near_a_multiple_of_a_unitary_matrix_has_its_own_factors(dtype):
    """Which is all of a block whose singular values nearly agree: P diag(s) Q^H to rounding."""
    b = 3.0 * np.eye(30) + 1e-6 * gaussian((30, 30), dtype)
    p, s, q = _svd._near_unitary(b, 3.0, "start", HOST)
    assert norm(t(p) @ p - np.eye(30)) < 1e-13 and norm(t(q) @ q - np.eye(30)) < 1e-13
    assert norm((p * s) @ t(q) - b) < 1e-13 * norm(b) and (np.diff(s) <= 0).all()
    np.testing.assert_allclose(s, np.linalg.svd(b, compute_uv=False), rtol=1e-14)


@pytest.mark.parametrize("dtype", ["f4", "c8"])
@pytest.mark.parametrize("shape", [(65, 127), (127, 65), (130, 130), (300, 64)])
@pytest.mark.parametrize("exponent", [-129, -128, 120])
def test_single_precision_at_the_ends_of_its_range(shape, exponent, dtype):
    """Of the matrix as it is: its own rounding to subnormal numbers is no error of the decomposition."""
    g = gaussian(shape, dtype)
    a = (g / np.abs(g).max() * 0.9 * 2.0**exponent).astype(dtype)
    u, s, vh = forced("svd", a, full_matrices=False)
    wide = a.astype(np.result_type(dtype, "f8")) * 2.0**-exponent
    s = s.astype(float) * 2.0**-exponent
    known = np.linalg.svd(wide, compute_uv=False)
    np.testing.assert_allclose(s, known, rtol=0, atol=4 * eps(dtype) * known[0])
    assert norm((u * s) @ vh - wide) <= 20 * eps(dtype) * norm(wide)
    for q in (u, t(vh)):
        assert norm(t(q) @ q - np.eye(len(s))) <= 4 * eps(dtype) * len(s)


@pytest.mark.parametrize("dtype", ["f8", "c16"])
def test_vectors_of_the_polar_factor_are_a_start_to_the_accuracy_of_float32(dtype):
    rng = np.random.default_rng(0)
    a = rng.standard_normal((40, 40)) + (1j * rng.standard_normal((40, 40)) if dtype == "c16" else 0)
    a /= np.linalg.norm(a, 2)
    u, v = _svd._divide_and_conquer(a, HOST)
    turned = u.conj().T @ a @ v
    assert np.linalg.norm(turned - np.diag(turned.diagonal())) <= 100 * 40 * np.finfo("f4").eps
    for x in (u, v):
        assert np.linalg.norm(x.conj().T @ x - np.eye(40)) <= 100 * 40 * np.finfo("f4").eps
