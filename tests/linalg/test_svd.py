"""Singular values and vectors on the device path: identities and LAPACK-grade errors, on spectra that break others."""

import numpy as np
import pytest
import scipy.linalg
from doubles import FaultyEngine, Float32Engine, RecordingEngine, RoundingEngine
from hypothesis import given, settings
from hypothesis import strategies as st

import trnpy.linalg
from linalg.matrices import hermitian, orthogonal, positive, with_spectrum
from trnpy._call.dispatch import Reason, accelerated
from trnpy._engine.engines import HOST, engine
from trnpy.linalg import _pinv, _svd
from trnpy.linalg._ops import NUMPY_OPS

U = 2.0**-53
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


def rectangle(m, n, dtype, seed=0):
    rng = np.random.default_rng([seed, m, n])
    g = rng.standard_normal((m, n))
    return g + 1j * rng.standard_normal((m, n)) if np.dtype(dtype).kind == "c" else g


def t(a):
    return a.conj().T


def check(a, u, s, vh, known=None):
    """Values within 10 u s_1, orthogonality 4 u sqrt n (n at least 16), reconstruction 100 u sqrt n s_1."""
    k, largest = len(s), max(s[0], np.finfo(float).tiny)
    wide = np.clongdouble if a.dtype.kind == "c" else np.longdouble
    x, y = u[:, :k].astype(wide), t(vh)[:, :k].astype(wide)
    lengths = (np.abs(x) ** 2).sum(axis=0) * (np.abs(y) ** 2).sum(axis=0)
    exact = np.sort(np.abs((x.conj() * ((a / largest) @ y)).sum(axis=0)) / np.sqrt(lengths))[::-1].astype(float)
    assert (np.diff(s) <= 0).all() and (s >= 0).all()
    assert np.abs(s / largest - exact).max() <= 10 * U
    if known is not None:  # itself known to what making the matrix took
        assert np.abs(s - known).max() <= 10 * U * np.sqrt(max(k, 4)) * largest
    for q in (u, t(vh)):
        assert np.linalg.norm(t(q) @ q - np.eye(q.shape[1]), 2) <= 4 * U * max(np.sqrt(len(q)), 4)
    assert np.linalg.norm((u[:, :k] * (s / largest)) @ vh[:k] - a / largest, 2) <= 100 * U * np.sqrt(max(k, 4))


@pytest.mark.parametrize("dtype", ["f8", "c16"])
@pytest.mark.parametrize("n", [1, 2, 127, 128, 129])
@pytest.mark.parametrize("family", FAMILIES)
def test_svd_is_as_good_as_lapack(family, n, dtype):
    a, known = general(family, n, dtype)
    with engine(RecordingEngine()), trnpy.policy(force=True, method="start"), trnpy.trace() as log:
        u, s, vh = trnpy.linalg.svd(a)
    assert log[0].on_device and log[0].method == "start", log
    assert (u.dtype, s.dtype, vh.dtype) == (dtype, "f8", dtype)
    check(a, u, s, vh, known)


@pytest.mark.parametrize("dtype", ["f8", "c16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_started_from_products_it_is_as_good(family, dtype):
    """The polar factor, divide and conquer, and the refinement: nothing of LAPACK's but leaves and small clusters."""
    a, known = general(family, 129, dtype)
    with engine(RecordingEngine()), trnpy.policy(force=True, method="divide"), trnpy.trace() as log:
        u, s, vh = trnpy.linalg.svd(a)
    assert log[0].on_device and log[0].method == "divide", log
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


@pytest.mark.parametrize("dtype", ["f8", "c16"])
@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("shape", [(1, 7), (7, 1), (130, 129), (129, 130), (300, 40), (40, 300), (200, 150)])
def test_rectangles(shape, full, dtype):
    a = rectangle(*shape, dtype)
    with engine(RecordingEngine()), trnpy.policy(force=True), trnpy.trace() as log:
        u, s, vh = trnpy.linalg.svd(a, full_matrices=full)
    assert log[0].on_device
    theirs = scipy.linalg.svd(a, full_matrices=full)
    assert [x.shape for x in (u, s, vh)] == [x.shape for x in theirs]
    check(a, u, s, vh)
    with engine(RecordingEngine()), trnpy.policy(force=True):  # to the bit: the same products by the same library
        np.testing.assert_array_equal(trnpy.linalg.svd(a, compute_uv=False), trnpy.linalg.svdvals(a))
        np.testing.assert_allclose(trnpy.linalg.svdvals(a), theirs[1], atol=40 * U * s[0])


def test_a_tall_matrix_of_low_rank():
    a = rectangle(300, 20, "f8") @ rectangle(20, 50, "f8")
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


ROWS = {op.name: accelerated(op) for op in NUMPY_OPS}


def forced(name, *args, **kwargs):
    function = ROWS[name] if name in ROWS else getattr(trnpy.linalg, name)
    with engine(RecordingEngine()) as e, trnpy.policy(force=True), trnpy.trace() as log:
        result = function(*args, **kwargs)
    assert log[0].on_device and e.shapes, log
    return result


@pytest.mark.parametrize("dtype", ["f8", "c16"])
@pytest.mark.parametrize("shape", [(60, 60), (90, 40), (40, 90)])
@pytest.mark.parametrize("rank", [40, 15])
def test_pseudo_inverses_satisfy_penrose(shape, rank, dtype):
    m, n = shape
    a = rectangle(m, rank, dtype) @ rectangle(rank, n, dtype, 1)
    size = np.linalg.norm(a, 2)
    x, found = forced("pinv", a, return_rank=True)
    theirs, expected = scipy.linalg.pinv(a, return_rank=True)
    assert found == expected == rank and type(found) is type(expected)
    condition = size * np.linalg.norm(x, 2)
    for residual, scale in (
        (a @ x @ a - a, size), (x @ a @ x - x, np.linalg.norm(x, 2)), (t(a @ x) - a @ x, 1), (t(x @ a) - x @ a, 1),
    ):  # fmt: skip
        assert np.linalg.norm(residual, 2) <= 100 * U * np.sqrt(max(shape)) * condition * scale
    np.testing.assert_allclose(x, theirs, atol=1e3 * U * condition * np.linalg.norm(x, 2))
    np.testing.assert_allclose(forced("numpy.linalg.pinv", a), x, atol=1e3 * U * condition * np.linalg.norm(x, 2))


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("dtype", ["f8", "c16"])
def test_pseudo_inverses_of_hermitian_matrices_read_one_triangle(dtype, lower):
    a = positive(60, dtype, 1e3)
    half = np.tril(a) if lower else np.triu(a)
    x, rank = forced("pinvh", half, lower=lower, return_rank=True)
    assert rank == 60
    np.testing.assert_allclose(a @ x, np.eye(60), atol=1e5 * U)


@pytest.mark.parametrize("tolerance", [{"rtol": 0.01}, {"atol": 0.01}, {"atol": 0.005, "rtol": 0.005}])
@pytest.mark.parametrize("name", ["pinv", "pinvh"])
def test_what_a_tolerance_cuts_is_no_error(name, tolerance):
    """Half of the spectrum goes; the second of Penrose's conditions holds as it does of all of it."""
    spectrum = np.append(np.linspace(1, 2, 30), np.linspace(1e-4, 2e-4, 30))
    a = with_spectrum(spectrum, np.random.default_rng(0), "f8")
    x, rank = forced(name, a, **tolerance, return_rank=True)
    theirs, expected = getattr(scipy.linalg, name)(a, **tolerance, return_rank=True)
    assert rank == expected == 30
    np.testing.assert_allclose(x, theirs, atol=1e4 * U)
    np.testing.assert_allclose(x @ a @ x, x, atol=1e4 * U)
    prepare = {"pinv": _pinv.prepare_pinv, "pinvh": _pinv.prepare_pinvh}[name]
    assert prepare(a, **tolerance).error(1.001 * x) > 1e-6  # and what is wrong is


def test_a_rank_that_rounding_decides_is_scipys():
    a = np.diag([1.0, 1.0, 1.0, 4 * np.finfo(float).eps])
    for name in ("pinv", "pinvh", "orth", "null_space"):
        with engine(RecordingEngine()), trnpy.policy(force=True), trnpy.trace() as log:
            ours = getattr(trnpy.linalg, name)(a)
        assert log[0].reason is Reason.VALUE and "threshold" in log[0].detail
        np.testing.assert_array_equal(ours, getattr(scipy.linalg, name)(a))


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("shape", [(50, 50), (70, 40), (40, 70)])
@pytest.mark.parametrize("dtype", ["f8", "c16"])
def test_polar_factors(side, shape, dtype):
    a = rectangle(*shape, dtype)
    u, p = forced("polar", a, side)
    theirs = scipy.linalg.polar(a, side)
    size = np.linalg.norm(a, 2)
    assert [x.shape for x in (u, p)] == [x.shape for x in theirs]
    assert np.linalg.norm((u @ p if side == "right" else p @ u) - a, 2) <= 100 * U * 9 * size
    gram = t(u) @ u if shape[0] >= shape[1] else u @ t(u)
    assert np.linalg.norm(gram - np.eye(len(gram)), 2) <= 8 * U * 9
    assert np.linalg.norm(p - t(p), 2) <= 10 * U * size and np.linalg.eigvalsh(p).min() >= -100 * U * size


@pytest.mark.parametrize("dtype", ["f8", "c16"])
@pytest.mark.parametrize("shape", [(60, 90), (90, 60)])
def test_ranges_and_null_spaces(shape, dtype):
    a = rectangle(shape[0], 25, dtype) @ rectangle(25, shape[1], dtype, 1)
    q, z = forced("orth", a), forced("null_space", a)
    assert q.shape == (shape[0], 25) and z.shape == (shape[1], shape[1] - 25)
    for x in (q, z):
        assert np.linalg.norm(t(x) @ x - np.eye(x.shape[1]), 2) <= 8 * U * np.sqrt(90)
    size = np.linalg.norm(a, 2)
    assert np.linalg.norm(a @ z, 2) <= 100 * U * size
    assert np.linalg.norm(a - q @ (t(q) @ a), 2) <= 100 * U * size


def test_numpys_rows_have_numpys_types():
    a = rectangle(70, 50, "c16")
    result = forced("numpy.linalg.svd", a)
    assert type(result) is type(np.linalg.svd(a))
    check(a, result.U, result.S, result.Vh)
    values = forced("numpy.linalg.svdvals", a)  # perhaps by another method
    np.testing.assert_allclose(values, result.S, rtol=16 * np.finfo(float).eps)


LAYOUTS = {
    "F": np.asfortranarray,
    "strided": lambda a: np.repeat(np.repeat(a, 2, axis=0), 3, axis=1)[::2, ::3],
    "negative": lambda a: a[::-1, ::-1].copy()[::-1, ::-1],
}


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 30), st.integers(1, 30), st.sampled_from(["f8", "c16"]), st.sampled_from(sorted(LAYOUTS)),
    st.booleans(), st.integers(0, 99),
)  # fmt: skip
def test_any_shape_and_layout(m, n, dtype, layout, full, seed):
    a = LAYOUTS[layout](rectangle(m, n, dtype, seed))
    kept = a.copy()
    a.flags.writeable = False
    with engine(HOST), trnpy.policy(force=True), trnpy.trace() as log:
        u, s, vh = trnpy.linalg.svd(a, full_matrices=full)
    assert log[0].on_device
    check(kept, u, s, vh)


def test_a_wrong_product_is_never_returned():
    a = rectangle(100, 80, "f8")
    for e in (Float32Engine(), FaultyEngine("wrong"), FaultyEngine("nan")):
        with engine(e), trnpy.policy(force=True, fallback="log"), trnpy.trace() as log:
            s = trnpy.linalg.svdvals(a)
        assert not log[0].on_device
        np.testing.assert_array_equal(s, scipy.linalg.svdvals(a))


def test_bases_beyond_lapacks_integers_are_scipys_to_refuse():
    a = np.broadcast_to(np.zeros(1), (2, 50000))
    with engine(RecordingEngine()), trnpy.policy(force=True):
        decision = trnpy.explain(trnpy.linalg.svd, a)
    assert decision.reason is Reason.LAYOUT and not decision.on_device
    with engine(RecordingEngine()), trnpy.policy(force=True), pytest.raises(ValueError, match="integer overflow"):
        trnpy.linalg.svd(a)


def test_products_are_counted():
    """Six products an iteration, two or three iterations for a separated spectrum, and one for the values."""
    with engine(RecordingEngine()) as e, trnpy.policy(force=True, method="start"):
        trnpy.linalg.svd(rectangle(129, 129, "f8"))
    assert 13 <= len([s for s in e.shapes if s == (129, 129, 129)]) <= 25


def test_the_model_prefers_the_device_for_large_matrices_only():
    with trnpy.policy(device="null"):
        small = trnpy.explain(trnpy.linalg.svd, np.broadcast_to(0.0, (100, 100)).copy())
        large = trnpy.explain(trnpy.linalg.svd, np.zeros((4096, 4096)))
    assert not small.on_device and large.on_device and large.method == "divide"
    assert "modelled" in str(large)
