"""Factorizations on the device path: backward errors of LAPACK's size, SciPy's errors and warnings."""

import inspect
import re
import warnings

import numpy as np
import pytest
import scipy.linalg
from doubles import Float32Engine, RecordingEngine
from hypothesis import given, settings
from hypothesis import strategies as st

import trnpy.linalg
from linalg.matrices import positive
from trnpy._call.decisions import work_of
from trnpy._call.dispatch import Reason, accelerated
from trnpy._engine.engines import HOST, engine
from trnpy._nki.hardware import MACHINES
from trnpy.linalg import _qr
from trnpy.linalg._ops import NUMPY_OPS

DTYPES = ("f4", "f8", "c8", "c16")
SIZES = (1, 2, 127, 128, 129, 300)


def forced(name, *args, runs=True, **kwargs):
    with engine(RecordingEngine()), trnpy.policy(force=True), trnpy.trace() as log:
        result = getattr(trnpy.linalg, name)(*args, **kwargs)
    assert [d.on_device for d in log] == [runs], log
    return result


def eps(dtype):
    return np.finfo(dtype).eps


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("lower", [False, True])
def test_cholesky_reproduces_a(n, dtype, lower):
    a = positive(n, dtype, 1e3).astype(dtype)
    l = forced("cholesky", a, lower=lower)
    assert l.dtype == dtype
    assert not np.triu(l, 1).any() if lower else not np.tril(l, -1).any()
    back = l @ l.conj().T if lower else l.conj().T @ l
    assert np.abs(back - a).max() <= 10 * n * eps(dtype) * np.abs(a).max()


@pytest.mark.parametrize("condition", [1e2, 1e8, 1e14])
def test_cholesky_backward_error_is_lapacks(condition):
    a = positive(300, "f8", condition)

    def error(l):
        return np.linalg.norm(l @ l.T - a) / np.linalg.norm(a)

    assert error(forced("cholesky", a, lower=True)) <= 3 * error(scipy.linalg.cholesky(a, lower=True))


def test_cholesky_products_are_most_of_the_work():
    n = 600
    with engine(RecordingEngine()) as e, trnpy.policy(force=True):
        trnpy.linalg.cholesky(positive(n, "f8", 1e3))
    assert sum(2 * m * k * c for m, k, c in e.shapes) > 0.5 * 2 * n**3 / 3


def test_cholesky_reads_one_triangle():
    a = positive(200, "c16", 10.0)
    lower = np.tril(a) + np.triu(np.full((200, 200), 5.0), 1)
    np.testing.assert_allclose(forced("cholesky", lower, lower=True), scipy.linalg.cholesky(a, lower=True), atol=1e-13)


def test_not_positive_definite_is_scipys_error():
    a = positive(200, "f8", 10.0)
    a[150, 150] = -1
    after = a.copy()
    with pytest.raises(scipy.linalg.LinAlgError) as theirs:
        scipy.linalg.cholesky(after, overwrite_a=True)
    with pytest.raises(scipy.linalg.LinAlgError) as ours, engine(RecordingEngine()), trnpy.policy(force=True):
        trnpy.linalg.cholesky(a, overwrite_a=True)
    assert str(ours.value) == str(theirs.value)
    np.testing.assert_array_equal(a, after)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [2, 127, 128, 129, 300])
@pytest.mark.parametrize("assume_a", [None, "gen", "pos", "sym", "her"])
def test_solve_has_a_small_residual(n, dtype, assume_a):
    rng = np.random.default_rng(n)
    a = (
        positive(n, dtype, 1e2).astype(dtype)
        if assume_a in ("pos", "her")
        else rng.standard_normal((n, n)).astype(dtype)
    )
    if assume_a == "sym":
        a = a + a.T
    b = rng.standard_normal((n, 3)).astype(dtype)
    if assume_a is None and n == 2:
        return  # two by two is tridiagonal: the host's
    x = forced("solve", a, b, assume_a=assume_a)
    theirs = scipy.linalg.solve(a, b, assume_a=assume_a)
    assert (x.dtype, x.shape) == (theirs.dtype, theirs.shape)

    def error(x):
        return np.linalg.norm(a @ x - b) / (np.linalg.norm(a) * np.linalg.norm(x) + np.linalg.norm(b))

    assert error(x) <= max(3 * error(theirs), 10 * eps(dtype))


def test_solve_reads_one_triangle_when_told_so():
    a = positive(150, "f8", 1e2)
    b = np.ones(150)
    for lower in (True, False):
        half = (np.tril(a) if lower else np.triu(a)) + 0.0
        for kind in ("sym", "her", "pos"):
            x = forced("solve", half, b, assume_a=kind, lower=lower)
            np.testing.assert_allclose(x, scipy.linalg.solve(half, b, assume_a=kind, lower=lower), rtol=1e-11)


@pytest.mark.parametrize("shape", [(150,), (150, 1), (150, 150)])
def test_solve_keeps_the_shape_of_b(shape):
    a = np.random.default_rng(0).standard_normal((150, 150))
    assert forced("solve", a, np.ones(shape), assume_a="gen").shape == shape


def test_singular_and_ill_conditioned_are_scipys():
    rng = np.random.default_rng(0)
    a = rng.standard_normal((150, 150))
    a[:, 3] = 0
    with pytest.raises(scipy.linalg.LinAlgError, match="singular"), trnpy.policy(force=True):
        trnpy.linalg.solve(a, np.ones(150), assume_a="gen")
    a[:, 3] = a[:, 4] * (1 + 1e-16) + 1e-18
    with pytest.warns(scipy.linalg.LinAlgWarning, match="[Ii]ll-conditioned"), trnpy.policy(force=True):
        trnpy.linalg.solve(a, np.ones(150), assume_a="gen")


@pytest.mark.parametrize(
    "structured", [np.diag(np.arange(1.0, 100)), np.tri(99) + np.eye(99), np.eye(99) + np.eye(99, k=1)]
)
def test_structured_matrices_are_the_hosts(structured):
    with engine(RecordingEngine()), trnpy.policy(force=True), trnpy.trace() as log:
        trnpy.linalg.solve(structured, np.ones(99))
    assert log[0].reason is Reason.LAYOUT and "bandwidths" in log[0].detail


# --- All of them ------------------------------------------------------------------------------------------------------

NUMPY = {op.name.rpartition(".")[2]: accelerated(op) for op in NUMPY_OPS}
ROWS = {"scipy": trnpy.linalg, "numpy": type("numpy.linalg", (), {k: staticmethod(v) for k, v in NUMPY.items()})}
REFERENCE = {"scipy": scipy.linalg, "numpy": np.linalg}


def both(library, name, *args, runs=True, **kwargs):
    """The device path's result and the reference's, of equal types, shapes and dtypes."""
    with engine(RecordingEngine()), trnpy.policy(force=True), trnpy.trace() as log:
        ours = getattr(ROWS[library], name)(*args, **kwargs)
    assert runs is None or [d.on_device for d in log] == [runs], log
    theirs = getattr(REFERENCE[library], name)(*args, **kwargs)
    assert forms(ours) == forms(theirs)
    return ours, theirs


# SciPy before 1.17 has no structures of inverses.
PLAIN_INV = {"assume_a": "gen"} if "assume_a" in inspect.signature(scipy.linalg.inv).parameters else {}


def takes(library, name, *args):
    """Whether the installed reference takes the call; where it does not, trnpy raises what it raises."""
    try:
        getattr(REFERENCE[library], name)(*args)
    except ValueError as why:
        with pytest.raises(type(why), match=f"^{re.escape(str(why))}$"), trnpy.policy(force=True):
            getattr(ROWS[library], name)(*args)
        return False
    return True


def forms(result):
    if isinstance(result, (tuple, list)):
        return type(result), [forms(x) for x in result]
    return type(result), getattr(result, "dtype", None), getattr(result, "shape", None)


def norm(a):
    return np.linalg.norm(a)


def t(a):
    return a.conj().swapaxes(-1, -2)


def general(m, n, dtype, condition, seed=0):
    """(m, n) with that condition number, its singular values in geometric progression."""
    rng, k = np.random.default_rng([seed, m, n]), min(m, n)
    s = np.geomspace(1, 1 / condition, k) if k > 1 else np.ones(k)
    phase = 1j if np.dtype(dtype).kind == "c" else 0
    u, v = (np.linalg.qr(rng.standard_normal((e, k)) + phase * rng.standard_normal((e, k)))[0] for e in (m, n))
    return ((u * s) @ v.conj().T).real.astype(dtype) if phase == 0 else ((u * s) @ v.conj().T).astype(dtype)


CONDITIONS = [(d, c) for d in ("f8", "c16") for c in (1e2, 1e8, 1e14)] + [("f4", 1e2), ("c8", 1e5)]


@pytest.mark.parametrize("dtype, condition", CONDITIONS)
@pytest.mark.parametrize("n", [1, 127, 128, 129, 261])
def test_backward_errors_are_lapacks(n, dtype, condition):
    a, p, b = general(n, n, dtype, condition), positive(n, dtype, condition).astype(dtype), general(n, 3, dtype, 1.0)
    one, floor = np.eye(n, dtype=dtype), 3 * eps(dtype)

    def compare(error, pair):
        ours, theirs = map(error, pair)
        assert np.max(ours) <= np.max(3 * np.asarray(theirs)) + floor, (ours, theirs)

    def residual(a, b):
        return lambda x: norm(a @ x - b) / (norm(a) * norm(x) + norm(b))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", scipy.linalg.LinAlgWarning)  # of what is refused and left to SciPy
        compare(lambda l: norm(l @ t(l) - p) / norm(p), both("scipy", "cholesky", p, lower=True))
        if n > 1:
            compare(lambda f: norm(f[0] @ f[1] @ f[2] - a) / norm(a), both("scipy", "lu", a))
            systems = both("scipy", "solve", a, b, assume_a="gen", runs=True if condition < 1e10 else None)
            compare(residual(a, b), systems)
            inverses = both("scipy", "inv", a, **PLAIN_INV, runs=True if condition < 1e10 else None)
            compare(lambda x: norm(x @ a - one) / (norm(a) * norm(x)), inverses)
            compare(lambda x: norm(a @ x - one) / (norm(a) * norm(x)), inverses)
        compare(lambda f: norm(f[0] @ f[1] - a) / norm(a), qr := both("scipy", "qr", a))
        compare(lambda f: norm(t(f[0]) @ f[0] - one), qr)
        triangle = np.triu(a) + np.diag(np.linspace(1, 2, n)).astype(dtype)
        compare(residual(triangle, b), both("scipy", "solve_triangular", triangle, b))


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
    np.testing.assert_allclose(np.abs(r[:k]), np.abs(theirs[:k]), atol=100 * allowed * norm(a))
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
    np.testing.assert_allclose(q @ r / np.geomspace(1, 1e-200, 100), a, atol=1e-13)


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


@pytest.mark.parametrize("driver", ["gelsd", "gelss", "gelsy"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", [(), (1,), (3,)])
def test_tall_least_squares(columns, dtype, driver):
    a = general(600, 132, dtype, 1e2)
    b = np.random.default_rng(1).standard_normal((600, *columns)).astype(dtype)
    ours, theirs = both("scipy", "lstsq", a, b, lapack_driver=driver)
    for mine, other in zip(ours, theirs, strict=True):
        if other is not None:
            np.testing.assert_allclose(mine, other, rtol=1e5 * eps(dtype), atol=1e4 * eps(dtype))
    if driver == "gelsd":
        ours, theirs = both("numpy", "lstsq", a, b)
        np.testing.assert_allclose(ours[0], theirs[0], atol=1e4 * eps(dtype))
        np.testing.assert_allclose(ours[1], theirs[1], rtol=1e3 * eps(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [2, 129, 200])
def test_determinants_agree_with_the_sum_of_logarithms(n, dtype):
    a = general(n, n, dtype, 10.0)
    for scaled in (a, a[::-1]):
        sign, logarithm = both("numpy", "slogdet", scaled)[0]
        w = np.linalg.svd(scaled.astype("c16"), compute_uv=False)
        assert abs(logarithm - np.log(w).sum()) <= 100 * n * eps(dtype)
        expected = sign * np.exp(logarithm)
        for library in ("scipy", "numpy"):
            determinant = both(library, "det", scaled)[0]
            if np.abs(expected) > np.finfo(a.dtype).tiny * 1e3:
                assert abs(determinant - expected) <= 200 * n * eps(dtype) * abs(expected)


def test_singular_determinants_are_zero_and_their_factors_lapacks():
    a = general(200, 200, "f8", 10.0)
    a[:, 150] = 0
    assert both("scipy", "det", a)[0] == both("numpy", "det", a)[0] == 0
    assert both("numpy", "slogdet", a)[0][1] == -np.inf
    p, l, u = both("scipy", "lu", a)[0]
    assert norm(p @ l @ u - a) <= 1e-13 and u[150, 150] == 0
    with pytest.warns(scipy.linalg.LinAlgWarning, match="Diagonal number 151"), trnpy.policy(force=True):
        trnpy.linalg.lu_factor(a)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lower", [True, False])
def test_factors_solve(dtype, lower):
    n = 200
    p, a = positive(n, dtype, 1e2).astype(dtype), general(n, n, dtype, 1e2)
    c, theirs = both("scipy", "cho_factor", p, lower=lower)
    np.testing.assert_allclose(c[0], theirs[0], atol=100 * n * eps(dtype))  # the other triangle, too
    lu, _ = both("scipy", "lu_factor", a)
    for b in (general(n, 3, dtype, 1.0), np.ones(n, dtype)):
        x, _ = both("scipy", "cho_solve", c, b)
        assert norm(p @ x - b) <= 10 * n * eps(dtype) * norm(x)
        for trans, op in enumerate((a, a.T, t(a))):
            x, _ = both("scipy", "lu_solve", lu, b, trans=trans)
            assert norm(op @ x - b) <= 10 * n * eps(dtype) * norm(x)


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
        np.testing.assert_allclose(x, theirs, atol=1e-10 * np.abs(theirs).max())
        if dtype == "f8":
            b = rng.standard_normal((n, 2))
            x, theirs = both("scipy", "solve", a, b, assume_a=assume_a, lower=lower, transposed=True)
            np.testing.assert_allclose(x, theirs, atol=1e-10 * np.abs(theirs).max())
    if assume_a in ("sym", "her", "pos"):
        np.testing.assert_array_equal(*(lambda x: (x, x.T if assume_a == "sym" else t(x)))(trnpy_inverse(a, assume_a)))


def trnpy_inverse(a, assume_a):
    return both("scipy", "inv", a, assume_a=assume_a)[0]


@pytest.mark.parametrize("assume_a", ["diagonal", "tridiagonal", "banded"])
def test_what_the_host_solves_in_linear_time_is_its_own(assume_a):
    a = np.diag(np.arange(1.0, 100))
    with engine(RecordingEngine()), trnpy.policy(force=True), trnpy.trace() as log:
        trnpy.linalg.solve(a, np.ones(99), assume_a=assume_a)
    assert log[0].reason is Reason.PARAM and "O(n)" in log[0].detail


@pytest.mark.parametrize("dtype", DTYPES)
def test_stacks_share_launches(dtype):
    a, p = (
        np.stack([f(136, s) for s in range(4)]).reshape(2, 2, 136, 136).astype(dtype)
        for f in (lambda n, s: general(n, n, dtype, 1e2, s), lambda n, s: positive(n, dtype, 1e2, s))
    )
    b = a[..., :2].copy()
    for library in ("scipy", "numpy"):
        for name, args in (("cholesky", (p,)), ("inv", (a,)), ("det", (a,)), ("solve", (a, b)), ("qr", (a,))):
            if not takes(library, name, *args):
                continue
            with engine(RecordingEngine()) as e, trnpy.policy(force=True):
                getattr(ROWS[library], name)(*args)
            assert e.shapes and all(shape[:2] == (2, 2) for shape in e.shapes)  # of all matrices at once
            ours, theirs = both(library, name, *args)
            if name != "qr":
                # SciPy from 1.18 on multiplies the pivots of a determinant in the precision of a.
                least = max(2e4 * eps(dtype) * np.abs(theirs).max(), np.finfo(dtype).tiny)
                np.testing.assert_allclose(ours, theirs, rtol=1e-7, atol=least)
            else:
                assert norm(ours[0] @ ours[1] - a) <= 1e3 * eps(dtype) * norm(a)
    pl, u = both("scipy", "lu", a, permute_l=True)[0]
    assert norm(pl @ u - a) <= 1e3 * eps(dtype) * norm(a)
    if takes("scipy", "cholesky", p):  # a SciPy that does not gives pivots of no matrix here
        both("scipy", "lu_factor", a)


@pytest.mark.parametrize("name, launches", [("cholesky", 1), ("det", 1), ("inv", 3), ("qr", 9)])
def test_stacks_and_large_matrices_go_where_the_model_says_they_pay(name, launches):
    """Modelled on trn2: large float32 matrices pay; of a stack all matrices are multiplied in one launch."""

    def decision(shape, dtype):
        with trnpy.policy(device="null", machine="trn2"):
            return trnpy.explain(getattr(trnpy.linalg, name), np.broadcast_to(np.zeros((), dtype), shape))

    assert not decision((64, 256, 256), "f8").on_device and not decision((512, 512), "f8").on_device
    assert decision((8192, 8192), "f4").on_device
    op = getattr(trnpy.linalg, name).__trnpy_op__
    work = work_of(op, op.prepare(np.broadcast_to(np.float32(0), (64, 256, 256))))
    assert work.tally(MACHINES["trn2"], trnpy.Policy()).launched == launches  # for all matrices together


def test_stacks_of_panels_are_the_hosts():
    with engine(RecordingEngine()), trnpy.policy(force=True), trnpy.trace() as log:
        trnpy.linalg.det(np.ones((3, 100, 100)) + np.eye(100))
        NUMPY["cholesky"](np.ones((3, 100, 100)) + np.eye(100))
    assert all(d.reason is Reason.LAYOUT and "panels" in d.detail for d in log)


def test_less_crosses_the_link_than_the_whole_trailing_matrix_at_every_panel():
    n, panels = 4096, 4096 // 128
    a = np.broadcast_to(0.0, (n, n))
    for name, share in (("cholesky", 5), ("lu_factor", 3)):
        op = getattr(trnpy.linalg, name).__trnpy_op__
        tally = work_of(op, op.prepare(a)).tally(MACHINES["trn2"], trnpy.Policy())
        words = 12 * n * n * panels / 3  # of a product of digits, for each element
        assert tally.bytes_out < words / share


LAYOUTS = {
    "C": np.ascontiguousarray,
    "F": np.asfortranarray,
    "strided": lambda a: np.repeat(np.repeat(a, 2, axis=-2), 3, axis=-1)[..., ::2, ::3],
    "negative": lambda a: a[..., ::-1, ::-1].copy()[..., ::-1, ::-1],
}


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["cholesky", "cho_factor", "lu", "qr", "solve", "inv", "solve_triangular", "det"]),
    st.integers(2, 140), st.sampled_from(DTYPES), st.sampled_from(sorted(LAYOUTS)), st.booleans(), st.integers(0, 9),
)  # fmt: skip
def test_any_shape_dtype_and_layout(name, n, dtype, layout, lower, seed):
    a = general(n, n, dtype, 10.0, seed) + 0
    if name.startswith("cho"):
        a = positive(n, dtype, 10.0, seed).astype(dtype)
    a = LAYOUTS[layout](a)
    a.flags.writeable = False
    b = LAYOUTS[layout](general(n, 3, dtype, 1.0, seed))
    options = {"lower": lower} if name in ("cholesky", "cho_factor", "solve_triangular") else {}
    if name in ("solve", "inv"):
        options |= {"assume_a": "gen"} if name == "solve" else PLAIN_INV
    if name == "solve_triangular":
        a = a + 2 * np.eye(n, dtype=dtype)
    runs = None if name == "inv" and not options else True  # banded ones are the host's where nothing is said of them
    ours, theirs = both("scipy", name, a, *((b,) if name.startswith("solve") else ()), runs=runs, **options)
    allowed = 1e3 * n * eps(dtype)
    if name == "lu":
        assert norm(ours[0] @ ours[1] @ ours[2] - a) <= allowed * norm(a)
    elif name == "qr":
        assert norm(ours[0] @ ours[1] - a) <= allowed * norm(a)
    else:
        ours, theirs = (x[0] if isinstance(x, tuple) else x for x in (ours, theirs))
        # SciPy from 1.18 on multiplies the pivots of a determinant in the precision of a: what is tiny there, is lost.
        assert norm(ours - theirs) <= 10 * allowed * norm(theirs) + (np.finfo(dtype).tiny if name == "det" else 0)


def test_a_product_of_less_accuracy_is_not_accepted():
    a, p = general(300, 300, "f8", 10.0), positive(300, "f8", 10.0)
    tall = general(600, 132, "f8", 10.0)
    calls = (
        lambda: trnpy.linalg.lu(a),
        lambda: trnpy.linalg.inv(a),
        lambda: trnpy.linalg.qr(a),
        lambda: trnpy.linalg.qr(tall, mode="economic"),
        lambda: trnpy.linalg.det(a),
        lambda: trnpy.linalg.cho_factor(p),
        lambda: trnpy.linalg.solve_triangular(a + 2 * np.eye(300), a),
    )
    for call in calls:
        warned = pytest.warns(trnpy.NkiFallbackWarning, match="backward error|known answer wrong")
        with engine(Float32Engine()), trnpy.policy(force=True), trnpy.trace() as log, warned:
            call()
        assert [d.reason for d in log] == [Reason.ACCURACY]


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_on_the_simulator(dtype):
    n = 140
    a, p = general(n, n, dtype, 10.0), positive(n, dtype, 10.0).astype(dtype)
    with trnpy.policy(device="simulator", force=True, fallback="raise"), trnpy.trace() as log:
        l = trnpy.linalg.cholesky(p, lower=True)
        x = trnpy.linalg.solve(a, p[:, :3], assume_a="gen")
    assert all(d.on_device and d.launches for d in log), log
    assert norm(l @ l.T - p) <= 10 * eps(dtype) * norm(p)
    # Sums of n terms round by sqrt(n) eps of them at random, in factors and in solutions; |a| = 1.
    assert norm(a @ x - p[:, :3]) <= 2 * np.sqrt(n) * eps(dtype) * norm(x)
