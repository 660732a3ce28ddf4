"""Functions of matrices on the device path: their identities, SciPy's conventions, and what they leave to SciPy."""

import numpy as np
import pytest
import scipy.linalg
from doubles import FaultyEngine, Float32Engine, RecordingEngine
from hypothesis import given, settings
from hypothesis import strategies as st

import trnpy.linalg
from linalg.matrices import hermitian, positive
from trnpy._call.dispatch import Reason, accelerated
from trnpy._engine.engines import HOST, engine
from trnpy.linalg import _expm
from trnpy.linalg._ops import NUMPY_OPS

U = 2.0**-53
ROWS = {op.name: accelerated(op) for op in NUMPY_OPS}


def forced(name, *args, runs=True, e=None, **kwargs):
    function = ROWS[name] if name in ROWS else getattr(trnpy.linalg, name)
    with engine(e or RecordingEngine()), trnpy.policy(force=True), trnpy.trace() as log:
        result = function(*args, **kwargs)
    assert log[0].on_device is runs, log
    return result


def general(n, dtype, seed=0, batch=()):
    rng = np.random.default_rng([seed, n])
    g = rng.standard_normal((*batch, n, n))
    return g + 1j * rng.standard_normal(g.shape) if np.dtype(dtype).kind == "c" else g


def exact_exponential(a):
    """Taylor in long double with eight bits to spare, squared."""
    wide = np.clongdouble if a.dtype.kind == "c" else np.longdouble
    halvings = max(int(np.ceil(np.log2(np.abs(a).sum(axis=0).max() + 1e-300))), 0) + 3
    b = a.astype(wide) / 2**halvings
    x = term = np.eye(len(a), dtype=wide)
    for k in range(1, 40):
        term = term @ b / k
        x = x + term
    for _ in range(halvings):
        x = x @ x
    return x.astype(a.dtype)


EXPONENTS = {
    "normal": lambda n, g: g / np.sqrt(n),
    "norm 30": lambda n, g: 30 * g / np.linalg.norm(g, 2),
    "skew": lambda n, g: g - g.conj().T,
    "negative Laplacian": lambda n, g: -10 * (2 * np.eye(n) - np.eye(n, k=1) - np.eye(n, k=-1)).astype(g.dtype),
    "far from normal": lambda n, g: np.triu(g, 1) + 1e-3 * g,
    "tiny": lambda n, g: 1e-200 * g,
    "graded": lambda n, g: g * 10.0 ** -np.linspace(0, 8, n)[:, np.newaxis],
}


@pytest.mark.parametrize("dtype", ["f8", "c16"])
@pytest.mark.parametrize("family", EXPONENTS)
def test_exponentials(family, dtype):
    """Twice as many squarings as Pade's approximation of degree 13 takes; each doubles what came before."""
    a = EXPONENTS[family](60, general(60, dtype))
    x, exact = forced("expm", a), exact_exponential(a)
    size, theirs = np.linalg.norm(exact), np.linalg.norm(scipy.linalg.expm(a) - exact)
    assert x.dtype == dtype
    assert np.linalg.norm(x - exact) <= 4 * theirs + 20 * U * size


def test_exponentials_take_seven_products_and_their_squarings():
    e = RecordingEngine()
    forced("expm", general(60, "f8") / 60, e=e)
    assert len(e.shapes) == _expm.PRODUCTS
    e = RecordingEngine()
    forced("expm", 8 * np.eye(60) + np.eye(60, k=1) + np.eye(60, k=-1), e=e)
    assert len(e.shapes) == _expm.PRODUCTS + 4  # 8 to 10 is within 16 times what the polynomial reaches


@pytest.mark.parametrize("batch", [(3,), (2, 3), (1, 1, 2)])
def test_stacks_of_exponentials_are_scaled_one_by_one(batch):
    a = general(8, "f8", batch=batch)
    a.reshape(-1, 8, 8)[0] *= 40
    a.reshape(-1, 8, 8)[-1] *= 1e-3
    x = forced("expm", a)
    assert x.shape == a.shape
    for mine, one in zip(x.reshape(-1, 8, 8), a.reshape(-1, 8, 8), strict=True):
        exact = exact_exponential(one)
        theirs = np.linalg.norm(scipy.linalg.expm(one) - exact)
        assert np.linalg.norm(mine - exact) <= 4 * theirs + 20 * U * np.linalg.norm(exact)


@pytest.mark.parametrize(
    "a", [np.eye(5), np.triu(np.ones((5, 5))), np.full((5, 5), 1e200), np.ones((1, 1)), np.full((5, 5), np.inf),
          800.0 * np.ones((5, 5))],
)  # fmt: skip
def test_exponentials_that_stay_with_scipy(a):
    """Diagonals and triangles, which SciPy treats apart, and what overflows."""
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(forced("expm", a, runs=False), scipy.linalg.expm(a))


def test_an_exponential_on_the_simulator():
    a = general(24, "f8")
    with trnpy.policy(device="simulator", force=True), trnpy.trace() as log:
        x = trnpy.linalg.expm(a)
    assert log[0].on_device and log[0].engine == "simulator"
    exact = exact_exponential(a)
    assert np.linalg.norm(x - exact) <= 100 * U * np.linalg.norm(exact)


@pytest.mark.parametrize("condition", [1e1, 1e4, 1e8])
@pytest.mark.parametrize("dtype", ["f8", "c16"])
def test_functions_of_positive_matrices(dtype, condition):
    """Identities of each function, errors of the condition number: SciPy's own on the same matrices, times three."""
    a = positive(90, dtype, condition)
    for name, options, back in (
        ("sqrtm", (), lambda x: x @ x), ("logm", (), scipy.linalg.expm),
        ("fractional_matrix_power", (0.25,), lambda x: x @ x @ x @ x),
        ("fractional_matrix_power", (-0.5,), lambda x: np.linalg.inv(x @ x)),
    ):  # fmt: skip
        x = forced(name, a, *options)
        theirs = getattr(scipy.linalg, name)(a, *options)
        assert (x.dtype, x.shape) == (theirs.dtype, theirs.shape)
        assert np.linalg.norm(back(x) - a) <= 3 * np.linalg.norm(back(theirs) - a) + 100 * U * condition**0.5


@pytest.mark.filterwarnings("ignore:.*logm")
@pytest.mark.parametrize("name, options", [("sqrtm", ()), ("logm", ()), ("fractional_matrix_power", (0.3,))])
def test_what_is_not_positive_definite_beyond_doubt_is_scipys(name, options):
    good = positive(20, "f8", 10.0)
    skew, indefinite = good.copy(), good - 0.5 * np.eye(20)
    skew[3, 5] += 1e-12
    for a in (skew, indefinite, positive(20, "f8", 1e13), general(20, "f8"), 1e200 * good, 1e-200 * good):
        ours = forced(name, a, *options, runs=False)
        np.testing.assert_array_equal(ours, getattr(scipy.linalg, name)(a, *options))


@pytest.mark.parametrize("method", ["eigh", "newton-schulz"])
@pytest.mark.parametrize("condition", [1.0, 1e3, 1e8])
@pytest.mark.parametrize("dtype", ["f8", "c16"])
def test_inverse_square_roots(dtype, condition, method):
    a = positive(60, dtype, condition)
    for x in (forced("inv_sqrtm", a, method), trnpy.linalg.inv_sqrtm(a, method)):
        assert x.dtype == dtype and np.linalg.norm(x - x.conj().T) <= 1e3 * U * np.linalg.norm(x)
        assert np.linalg.norm(x @ a @ x - np.eye(60)) <= 1e3 * U * condition


@pytest.mark.parametrize("method", ["eigh", "newton-schulz"])
def test_inverse_square_roots_report_how_they_ended(method):
    a = positive(30, "f8", 1e4)
    for x, how in (
        forced("inv_sqrtm", a, method, full_output=True),
        trnpy.linalg.inv_sqrtm(a, method, full_output=True),
    ):
        assert how.converged and how.steps >= 1
        residual = np.linalg.norm(x @ a @ x - np.eye(30)) / np.sqrt(30)
        assert how.residual <= 1e-10 and residual <= 1e-10
    indefinite = a - 0.5 * np.eye(30)
    with pytest.raises(np.linalg.LinAlgError, match="positive definite"):
        trnpy.linalg.inv_sqrtm(indefinite, method)
    with pytest.raises(ValueError, match="expected one of eigh, newton-schulz"):
        trnpy.linalg.inv_sqrtm(a, "no such")
    _, how = trnpy.linalg.inv_sqrtm(indefinite, "newton-schulz", full_output=True)
    assert not how.converged


@pytest.mark.parametrize("bad", [np.ones(3), np.ones((2, 3)), np.empty((0, 0)), np.full((2, 2), np.nan)])
def test_inverse_square_roots_say_what_came(bad):
    with pytest.raises(ValueError, match=r"expected one square matrix|infs or NaNs"):
        trnpy.linalg.inv_sqrtm(bad)


@pytest.mark.parametrize("dtype", ["f4", "f8", "c16"])
@pytest.mark.parametrize("n", [2, 3, 7, 64, 100])
def test_powers(n, dtype):
    a = (general(30, dtype) / 8).astype(dtype)
    x, theirs = forced("numpy.linalg.matrix_power", a, n), np.linalg.matrix_power(a, n)
    assert x.dtype == dtype
    assert np.linalg.norm(x - theirs) <= 1e3 * n * float(np.finfo(dtype).eps) * np.linalg.norm(theirs)


@pytest.mark.parametrize("n", [0, 1, -1, 1000])
def test_powers_without_products_are_numpys(n):
    a = np.diag([0.5, 1.0, 0.25])
    with np.errstate(all="ignore"):
        ours = forced("numpy.linalg.matrix_power", a, n, runs=False)
        np.testing.assert_array_equal(ours, np.linalg.matrix_power(a, n))


CHAINS = [((40, 5), (5, 60), (60, 3)), ((40,), (40, 60), (60, 7)), ((7, 40), (40, 9), (9,)), ((40,), (40, 9), (9,)),
          ((30, 20), (20, 30)), ((50, 2), (2, 50), (50, 2), (2, 50))]  # fmt: skip


@pytest.mark.parametrize("dtype", ["f4", "f8", "c16"])
@pytest.mark.parametrize("shapes", CHAINS)
def test_products_of_many(shapes, dtype):
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape).astype(dtype) for shape in shapes]
    ours, theirs = forced("numpy.linalg.multi_dot", arrays), np.linalg.multi_dot(arrays)
    assert type(ours) is type(theirs) and np.shape(ours) == np.shape(theirs) and ours.dtype == theirs.dtype
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e3 * float(np.finfo(dtype).eps) * np.abs(theirs).max())
    if np.ndim(theirs) == 2:
        out = np.empty_like(theirs)
        assert forced("numpy.linalg.multi_dot", arrays, out=out) is out
        np.testing.assert_array_equal(out, ours)  # the same products


def test_a_badly_ordered_chain_takes_the_short_way():
    e = RecordingEngine()
    forced("numpy.linalg.multi_dot", [np.ones((50, 2)), np.ones((2, 50)), np.ones((50, 2))], e=e)
    assert sum(2 * np.prod(s) for s in e.shapes) == 2 * (2 * 50 * 2 + 50 * 2 * 2)


@pytest.mark.parametrize("dtype", ["f8", "c16"])
def test_khatri_rao_products(dtype):
    a, b = general(8, dtype)[:5], general(8, dtype, 1)
    np.testing.assert_allclose(forced("khatri_rao", a, b), scipy.linalg.khatri_rao(a, b), rtol=1e-14)


def test_a_wrong_product_is_never_returned():
    a = positive(60, "f8", 100.0)
    for name in ("expm", "sqrtm", "logm"):
        for e in (Float32Engine(), FaultyEngine("wrong"), FaultyEngine("nan")):
            with engine(e), trnpy.policy(force=True, fallback="log"), trnpy.trace() as log:
                x = getattr(trnpy.linalg, name)(a)
            assert not log[0].on_device and log[0].reason in (Reason.ACCURACY, Reason.VALUE, Reason.ERROR)
            np.testing.assert_array_equal(x, getattr(scipy.linalg, name)(a))


LAYOUTS = {
    "F": np.asfortranarray,
    "strided": lambda a: np.repeat(np.repeat(a, 2, axis=0), 3, axis=1)[::2, ::3],
    "negative": lambda a: a[::-1, ::-1].copy()[::-1, ::-1],
}


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 20), st.sampled_from(["f8", "c16"]), st.sampled_from(sorted(LAYOUTS)), st.integers(0, 99))
def test_any_layout(n, dtype, layout, seed):
    a = hermitian("random", n, dtype, seed)
    a = LAYOUTS[layout](a / np.linalg.norm(a) + 2 * np.eye(n))
    kept = a.copy()
    a.flags.writeable = False
    with engine(HOST), trnpy.policy(force=True), trnpy.trace() as log:
        root, x = trnpy.linalg.sqrtm(a), trnpy.linalg.expm(a / np.linalg.norm(a))
    assert all(d.on_device for d in log), log
    np.testing.assert_allclose(root @ root, kept, atol=1e-12 * np.linalg.norm(kept))
    np.testing.assert_allclose(x, scipy.linalg.expm(kept / np.linalg.norm(kept)), atol=1e-13)


@pytest.mark.parametrize("dtype", ["f4", "f8", "c16"])
def test_kronecker_products(dtype):
    a, b = general(6, dtype)[:4].astype(dtype), general(5, dtype, 1)[:, :3].astype(dtype)
    with engine(RecordingEngine()) as e, trnpy.policy(force=True), trnpy.trace() as log:
        ours = trnpy.kron(a, b)
    assert log[0].on_device and e.shapes
    assert ours.dtype == dtype and ours.flags.c_contiguous
    np.testing.assert_allclose(ours, np.kron(a, b), rtol=4 * float(np.finfo(dtype).eps))
