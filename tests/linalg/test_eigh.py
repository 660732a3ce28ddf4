"""Eigenproblems on the device path: identities and LAPACK-grade errors, on spectra that break others."""

import itertools

import numpy as np
import pytest
import scipy.linalg
from doubles import FaultyEngine, Float32Engine, RecordingEngine
from hypothesis import given, settings
from hypothesis import strategies as st

import trnpy.linalg
from linalg.matrices import FAMILIES, TO_SINGLE, hermitian, positive
from nkisim.hardware import TRN2
from trnpy._call.decisions import _tally, work_of
from trnpy._call.dispatch import Reason
from trnpy._engine.engines import engine
from trnpy._report.instance_cost import REDUCED_CORES
from trnpy._settings.host_rates import DEFAULT_COPY, DEFAULT_CURVES, HostRates
from trnpy._settings.policy import Policy
from trnpy.linalg import _eigh, _matrices

U = 2.0**-53


def forced(*args, name="eigh", runs=True, **kwargs):
    with engine(RecordingEngine()) as e, trnpy.policy(force=True), trnpy.trace() as log:
        result = getattr(trnpy.linalg, name)(*args, **kwargs)
    assert [d.by_device_path for d in log] == [runs], log
    assert bool(e.shapes) == runs
    return result


def check(a, w, x):
    """Eigenvalues within 10 u |A|, orthogonality 4 u sqrt n (n at least 16), residual 100 u sqrt n |A|."""
    n, u = len(a), np.finfo(a.dtype).eps / 2
    a, x, w = (m.astype(np.result_type(m, np.float64)) for m in (a, x, w))
    norm = np.linalg.norm(a, 2)
    wide = x.astype(np.clongdouble if a.dtype.kind == "c" else np.longdouble)
    exact = np.sort(((wide.conj() * (a @ wide)).sum(axis=0) / (wide.conj() * wide).sum(axis=0)).real)
    assert (np.diff(w) >= 0).all()
    assert np.abs(w - exact).max() <= 10 * u * norm
    assert np.linalg.norm(x.conj().T @ x - np.eye(n), 2) <= 4 * u * max(np.sqrt(n), 4)
    assert np.linalg.norm(a @ x - x * w, 2) <= 100 * u * np.sqrt(n) * norm


@pytest.mark.parametrize("dtype", ["f8", "c16", "f4", "c8"])
@pytest.mark.parametrize("n", [1, 2, 127, 128, 129])
@pytest.mark.parametrize("family", FAMILIES)
def test_eigh_is_as_good_as_lapack(family, n, dtype):
    a = hermitian(family, n, dtype)
    if dtype in ("f4", "c8"):
        a = (a * TO_SINGLE.get(family, 1.0)).astype(dtype)
    with engine(RecordingEngine()), trnpy.policy(force=True), trnpy.trace() as log:
        w, x = trnpy.linalg.eigh(a)
    assert (w.dtype, x.dtype) == (a.real.dtype, dtype)
    if not log[0].by_device_path:  # refused by its own acceptance test: then the answer is LAPACK's
        assert log[0].reason is Reason.ACCURACY and family == "hilbert"
        return
    check(a, w, x)


def test_most_families_take_the_device_path():
    with engine(RecordingEngine()), trnpy.policy(force=True), trnpy.trace() as log:
        for family in FAMILIES:
            trnpy.linalg.eigh(hermitian(family, 128, "f8"))
    assert sum(d.on_device for d in log) >= len(FAMILIES) - 2


@pytest.mark.parametrize("seed", [528, 559, 662, 743])
def test_entries_over_400_decades(seed):
    """Eigenvalues of every size down to rounding: vectors of a cluster are made orthogonal, and keep their values."""
    rng = np.random.default_rng(seed)
    a = rng.standard_normal((33, 33)) * 10.0 ** rng.uniform(-300, 100, (33, 33))
    a = a + a.T
    w, x = forced(a)
    scale = np.abs(a).max()
    check(a / scale, w / scale, x)


def test_zero_and_repeated_eigenvalues():
    with engine(RecordingEngine()), trnpy.policy(force=True), trnpy.trace() as log:
        w, x = trnpy.linalg.eigh(np.zeros((5, 5)))
    assert log[0].reason is Reason.NO_LAUNCH and not w.any() and (x.T @ x == np.eye(5)).all()
    w, x = forced(np.eye(40))
    np.testing.assert_array_equal(w, np.ones(40))
    assert np.linalg.norm(x.T @ x - np.eye(40)) < 1e-14


PAIRS = [*itertools.product(["f8", "c16"], [1e1, 1e6, 1e12]), *itertools.product(["f4", "c8"], [1e1, 1e4])]


@pytest.mark.parametrize("dtype, condition", PAIRS)
@pytest.mark.parametrize("kind", [1, 2, 3])
def test_generalized(kind, dtype, condition):
    n, u = 129, np.finfo(dtype).eps / 2
    a, b = hermitian("random", n, dtype).astype(dtype), positive(n, dtype, condition).astype(dtype)
    w, x = forced(a, b, type=kind)
    theirs, y = scipy.linalg.eigh(a, b, type=kind)
    a, b = (m.astype(np.result_type(m, np.float64)) for m in (a, b))

    def errors(w, x):
        left, right = {1: (a @ x, b @ x * w), 2: (a @ b @ x, x * w), 3: (b @ a @ x, x * w)}[kind]
        metric = np.linalg.inv(b) if kind == 3 else b
        scale = np.linalg.norm(a) * np.linalg.norm(b) * np.linalg.norm(x) + np.linalg.norm(right)
        return np.linalg.norm(left - right) / scale, np.linalg.norm(x.conj().T @ metric @ x - np.eye(n))

    ours, lapack = errors(w, x), errors(theirs, y)
    assert ours[0] <= max(10 * n * u, 3 * lapack[0])
    assert ours[1] <= max(10 * n * u * condition, 3 * lapack[1])
    assert np.abs(w - theirs).max() <= 100 * n * u * max(condition, 1) * np.abs(theirs).max()


def test_one_triangle_is_read():
    a = hermitian("random", 60, "c16")
    lower, upper = np.tril(a), np.triu(a)
    lower[np.triu_indices(60, 1)] = upper[np.tril_indices(60, -1)] = 77.0
    np.testing.assert_allclose(forced(lower)[0], scipy.linalg.eigvalsh(a), rtol=0, atol=1e-13)
    np.testing.assert_allclose(forced(upper, lower=False)[0], scipy.linalg.eigvalsh(a), rtol=0, atol=1e-13)


def test_subsets_are_scipys():
    a = hermitian("random", 50, "f8")
    w, x = forced(a, subset_by_index=[3, 9])
    theirs = scipy.linalg.eigh(a, subset_by_index=[3, 9])[0]
    np.testing.assert_allclose(w, theirs, rtol=0, atol=1e-13)
    assert x.shape == (50, 7) and np.linalg.norm(a @ x - x * w) < 1e-12
    inside = forced(a, subset_by_value=(-1.0, 2.0), eigvals_only=True)
    np.testing.assert_allclose(
        inside, scipy.linalg.eigh(a, subset_by_value=(-1.0, 2.0), eigvals_only=True), rtol=0, atol=1e-13
    )
    empty = forced(a, subset_by_value=(1e3, 2e3))
    assert empty[0].shape == (0,) and empty[1].shape == scipy.linalg.eigh(a, subset_by_value=(1e3, 2e3))[1].shape


def test_few_pairs_are_predicted_at_lapacks_time_for_values():
    a = np.zeros((1500, 1500))
    with trnpy.policy(device="null"):
        few, values, some = (
            trnpy.explain(trnpy.linalg.eigh, a, **options).host_s
            for options in ({"subset_by_index": [0, 74]}, {"eigvals_only": True}, {"subset_by_index": [0, 75]})
        )
    assert few == values < 0.8 * some


def test_eigvalsh_is_eighs_values():
    a = hermitian("random", 129, "f8")
    np.testing.assert_array_equal(forced(a, name="eigvalsh"), forced(a)[0])  # the same products by the same library


@pytest.mark.parametrize("uplo", ["L", "U", "l"])
def test_numpy_rows(uplo):
    from trnpy._call.dispatch import accelerated
    from trnpy._call.rows import rows as rows_of

    NUMPY_OPS = rows_of("numpy.linalg")

    rows = {op.name: accelerated(op) for op in NUMPY_OPS}
    a = hermitian("random", 70, "c16")
    with engine(RecordingEngine()), trnpy.policy(force=True), trnpy.trace() as log:
        result = rows["numpy.linalg.eigh"](a, uplo)
        values = rows["numpy.linalg.eigvalsh"](a, uplo)
    assert all(d.on_device for d in log)
    assert type(result) is type(np.linalg.eigh(a))
    check(a, result.eigenvalues, result.eigenvectors)
    np.testing.assert_array_equal(values, result.eigenvalues)  # the same products


LAYOUTS = {
    "F": np.asfortranarray,
    "strided": lambda a: np.repeat(np.repeat(a, 2, axis=0), 3, axis=1)[::2, ::3],
    "negative": lambda a: a[::-1, ::-1].copy()[::-1, ::-1],
}


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 40),
    st.sampled_from(["f8", "c16", "f4", "c8"]),
    st.sampled_from(sorted(LAYOUTS)),
    st.booleans(),
    st.integers(0, 99),
)
def test_any_layout(n, dtype, layout, lower, seed):
    a = LAYOUTS[layout](hermitian("random", n, dtype, seed).astype(dtype))
    a.flags.writeable = False
    check(np.asarray(a), *forced(a, lower=lower))


def test_a_wrong_product_is_never_returned():
    a = hermitian("random", 100, "f8")
    for e in (Float32Engine(), FaultyEngine("wrong")):
        warned = pytest.warns(trnpy.NkiFallbackWarning, match="wrong by|backward error|known answer wrong")
        with engine(e), trnpy.policy(force=True), trnpy.trace() as log, warned:
            w, _ = trnpy.linalg.eigh(a)
        assert not log[0].on_device and log[0].reason is Reason.ACCURACY
        np.testing.assert_array_equal(w, scipy.linalg.eigh(a)[0])


@pytest.mark.parametrize("dtype, iterations", [("f8", 3), ("f4", 2)])
def test_products_are_counted(dtype, iterations):
    """Four products an iteration for a separated spectrum, and one for the values."""
    with engine(RecordingEngine()) as e, trnpy.policy(force=True):
        trnpy.linalg.eigh(hermitian("random", 129, "f8").astype(dtype))
    assert len([s for s in e.shapes if s == (129, 129, 129)]) <= 4 * iterations + 1


@pytest.mark.parametrize("count", [1, REDUCED_CORES])
def test_eigh_of_4096_rows_is_faster_than_lapack_on_two_processors_and_slower_than_on_four(count, monkeypatch):
    """Modelled: one NeuronCore with one thread of the host, or as many as LAPACK has, against LAPACK."""
    monkeypatch.setattr(_matrices, "threads", lambda: count)
    rates, n = HostRates(DEFAULT_CURVES, DEFAULT_COPY, False, ""), 4096
    problem = trnpy.linalg.eigh.__trnpy_op__.prepare(np.broadcast_to(0.0, (n, n)))
    device_s = _tally.__wrapped__(work_of(problem)._replace(method="divide"), TRN2, Policy()).seconds(TRN2, rates)
    one_thread_s = rates.seconds("eigh evd", n, problem.cost.flops, np.dtype(float))
    assert one_thread_s / REDUCED_CORES < device_s < one_thread_s / 2


@pytest.mark.parametrize("dtype", ["f4", "c8"])
def test_float32_is_computed_with_four_digits(dtype):
    """On the simulator, whose products of four digits are those of the chip; the start is what the host returns."""
    a = hermitian("random", 60, dtype).astype(dtype)
    with trnpy.policy(device="simulator", force=True), trnpy.trace() as log:
        w, x = trnpy.linalg.eigh(a)
    assert log[0].on_device and dict(log[0].launches)["float64_matmul"] >= 8, log
    check(a, w, x)
    assert not np.array_equal(w, scipy.linalg.eigh(a, driver="evd")[0])


@pytest.mark.parametrize("fault", ["wrong", "nan"])
@pytest.mark.parametrize("name", ["eigh", "svd", "expm", "polar"])
def test_a_fault_in_float32_leaves_the_hosts_result(name, fault):
    a = hermitian("random", 60, "f4").astype("f4")
    with engine(FaultyEngine(fault)), trnpy.policy(force=True, fallback="log"), trnpy.trace() as log:
        ours = getattr(trnpy.linalg, name)(a)
    assert not log[0].on_device
    for x, y in zip(ours, getattr(scipy.linalg, name)(a), strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16"])
def test_eigenpairs_have_the_precision_of_the_matrix(dtype):
    w, x = _eigh.eigh(np.eye(5).astype(dtype), RecordingEngine())
    assert (w.dtype, x.dtype) == (np.zeros((), dtype).real.dtype, np.dtype(dtype))


def test_values_alone_are_compared_because_vectors_have_any_phase():
    w, x = np.linalg.eigh(np.diag([1.0, 2.0]))
    problem = _eigh.prepare_eigh(np.diag([1.0, 2.0]))
    assert problem.unique((w, x)) is w and problem.unique(w) is w
