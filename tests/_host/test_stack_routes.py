"""Other routes on the host give SciPy's results: its conventions, backward errors of LAPACK's size, its complaints."""

import re
import subprocess
import sys
import types
import warnings

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st
from linalg.matrices import FAMILIES, hermitian, positive
from stack_calls import COUNT, SQUARE, definite, every_route_pays, ill_conditioned, run, stack, t, untraced  # noqa: F401

import trnpy.linalg
from trnpy._call.dispatch import Reason, accelerated
from trnpy._call.rows import rows as rows_of
from trnpy._engine import lapack
from trnpy._host import eigenpairs, stack_routes, stacks
from trnpy._settings.host_rates import HostRates, current_rates

NUMPY_OPS = rows_of("numpy.linalg")

DTYPES = ("f4", "f8", "c8", "c16")
DOUBLE = ("f8", "c16")  # NumPy's gufuncs have no single precision
VECTORS = {"eigh", "svd", "qr"}  # results that are unique up to phases: checked by identities alone


def eps(dtype):
    return float(np.finfo(dtype).eps)


def size(a):
    return np.sqrt((np.abs(a.astype("c16")) ** 2).sum(axis=(-2, -1)))


def identities(name, a, result, options):
    """Errors that are small in units of eps for every matrix of the stack, whatever the phases of vectors."""
    if name == "cholesky":
        l = result if options.get("lower") else t(result)
        assert not np.triu(l, 1).any()
        return [size(l @ t(l) - a) / size(a)]
    if name == "qr":
        q, r = result
        return [size(q @ r - a) / size(a), size(t(q) @ q - np.eye(q.shape[-1])), size(np.tril(r, -1)) / eps(a.dtype)]
    if name in ("eigh", "svd"):
        (w, v), u = (result, result[1]) if name == "eigh" else ((result[1], t(result[2])), result[0])
        assert (np.diff(w) >= 0).all() if name == "eigh" else (np.diff(w) <= 0).all() and (w >= 0).all()
        k = w.shape[-1]
        orthogonal = [size(t(x) @ x - np.eye(x.shape[-1])) for x in (u, v)]
        return [size((u[..., :k] * w[..., np.newaxis, :]) @ t(v[..., :k]) - a) / size(a), *orthogonal]
    if name == "inv":
        return [size(result @ a - np.eye(a.shape[-1])) / (size(a) * size(result))]
    if name in ("pinv", "pinvh"):
        return [size(a @ result @ a - a) / (size(a) ** 2 * size(result))]
    raise AssertionError(name)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 16])
@pytest.mark.parametrize(
    "name, options",
    [("cholesky", {}), ("cholesky", {"lower": True}), ("qr", {}), ("qr", {"mode": "economic"}), ("eigh", {}),
     ("eigh", {"lower": False}), ("svd", {}), ("svd", {"full_matrices": False}), ("inv", {}), ("pinv", {}),
     ("pinvh", {})],
)  # fmt: skip
def test_stacks_satisfy_the_identities_as_scipys_do(name, options, n, dtype):
    a = definite(n, dtype) if name in ("cholesky", "eigh", "pinvh") else stack(n, n, dtype)
    ours, theirs = run(name, a, route=dtype in DOUBLE and stack_routes.STACKED[name].worth_a_look(a), **options)
    for mine, other in zip(identities(name, a, ours, options), identities(name, a, theirs, options), strict=True):
        assert mine.max() <= 3 * other.max() + eps(dtype)


@pytest.mark.parametrize(
    "name, options", [("qr", {}), ("qr", {"mode": "r"}), ("qr", {"mode": "economic"}), ("svd", {}),
                      ("svd", {"full_matrices": False}), ("svdvals", {}), ("pinv", {})]
)  # fmt: skip
@pytest.mark.parametrize("shape", [(5, 2), (2, 5), (1, 6), (6, 1)])
@pytest.mark.parametrize("dtype", DOUBLE)
def test_stacks_of_rectangles(name, options, shape, dtype):
    a = stack(*shape, dtype)
    ours, theirs = run(name, a, **options)
    if name == "svdvals":
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=30 * eps(dtype))
    elif options.get("mode") == "r":
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=100 * eps(dtype))  # phases are LAPACK's own
    else:
        for error in identities(name, a, ours, options):
            assert error.max() <= 50 * eps(dtype)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", DOUBLE)
def test_eigenproblems_of_the_families_that_break_solvers(family, dtype):
    a = np.stack([hermitian(family, 8, dtype, seed) for seed in range(40)])
    (w, v), (w0, v0) = run("eigh", a)
    scale = np.maximum(size(a), np.finfo(w.dtype).tiny)

    def errors(w, v):
        return size((a @ v - v * w[..., np.newaxis, :]) / scale[:, None, None]), size(t(v) @ v - np.eye(8))

    for mine, other in zip(errors(w, v), errors(w0, v0), strict=True):
        assert mine.max() <= 3 * max(other.max(), 2 * eps(dtype))
    values, values0 = run("eigvalsh", a, lower=False)
    assert np.abs(values - values0).max() <= 30 * eps(dtype) * scale.max()


@pytest.mark.parametrize("batch", [(COUNT,), (1, COUNT), (8, 125), (2, 4, 125)])
@pytest.mark.parametrize("name", [*SQUARE, "qr", "svd", "svdvals", "pinv", "lstsq"])
def test_batch_dimensions_come_first(name, batch):
    a = definite(4, "f8", batch)
    args = (a, stack(4, 2, "f8", batch)) if name == "lstsq" else (a,)
    ours, theirs = run(name, *args)
    if name not in VECTORS:
        for mine, other in zip(*((x if isinstance(x, (list, tuple)) else [x]) for x in (ours, theirs)), strict=True):
            np.testing.assert_allclose(mine, other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", [*SQUARE, "qr", "svd", "svdvals", "pinv", "lstsq", "logm", "sqrtm"])
@pytest.mark.parametrize("batch", [(0,), (1,), (0, 3), (2,)])
def test_few_and_no_matrices_are_scipys(name, batch):
    a = np.broadcast_to(2 * np.eye(4) + 1, (*batch, 4, 4))
    args = (a, a) if name == "lstsq" else (a,)

    def outcome(function):
        try:
            result = function(*args)
        except ValueError as why:
            return str(why)
        return [x.shape for x in (result if isinstance(result, (list, tuple)) else [result])]

    assert outcome(getattr(trnpy.linalg, name)) == outcome(getattr(scipy.linalg, name))


LAYOUTS = {
    "F": lambda a: np.asarray(a.T.copy().T),
    "strided": lambda a: np.repeat(np.repeat(a, 2, axis=0), 2, axis=2)[::2, :, ::2],
    "backward": lambda a: a[::-1, ::-1, ::-1][::-1, ::-1, ::-1].copy()[::-1][::-1],
    "negative": lambda a: a[:, ::-1, ::-1].copy()[:, ::-1, ::-1],
    "read-only": lambda a: np.broadcast_to(a, a.shape),
    "one matrix over and over": lambda a: np.broadcast_to(a[0], a.shape),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", [*SQUARE, "qr", "svdvals", "pinv"])
def test_memory_layouts(name, layout):
    plain = definite(4, "c16")
    a = LAYOUTS[layout](plain)
    kept = a.copy()
    ours, theirs = run(name, a)
    if name not in VECTORS:
        np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-12)
    np.testing.assert_array_equal(a, kept)


@pytest.mark.parametrize("shape", [(4, 4), (7, 3), (3, 7)])
@pytest.mark.parametrize("b", [(), (2,), (COUNT, 2)])
@pytest.mark.parametrize("dtype", DOUBLE)
def test_lstsq_is_gelsds(shape, b, dtype):
    m, n = shape
    a = stack(m, n, dtype)
    right = stack(m, 2, dtype)[0, :, 0].copy() if b == () else stack(m, 2, dtype, b[:-1])
    (x, residues, rank, s), theirs = run("lstsq", a, right)
    np.testing.assert_array_equal(rank, theirs[2])
    # To eps of the largest: gelsd and NumPy's gesdd each have the smallest of a matrix to that.
    np.testing.assert_allclose(s, theirs[3], rtol=200 * eps(dtype), atol=20 * eps(dtype) * s.max())
    np.testing.assert_allclose(residues, theirs[1], rtol=1e5 * eps(dtype), atol=100 * eps(dtype))
    column, y, y0 = (v[..., None] if b == () else v for v in (right, x, theirs[0]))
    mine, other = (size(t(a) @ (a @ z - column)) / (size(a) ** 2 * size(z)) for z in (y, y0))
    assert mine.max() <= 3 * other.max() + 2 * eps(dtype)


@pytest.mark.parametrize("name", ["pinv", "pinvh"])
def test_rank(name):
    a = definite(4, "f8")
    (_, rank), (_, theirs) = run(name, a, return_rank=True)
    np.testing.assert_array_equal(rank, theirs)
    run(name, a, atol=1e-3)  # far from any singular value
    low = a.copy()
    low[7] = np.ones((4, 4))
    (x, rank), (x0, theirs) = run(name, low, return_rank=True)
    assert rank[7] == theirs[7] == 1
    np.testing.assert_allclose(x, x0, rtol=1e-10, atol=1e-12)
    low[7] = np.diag([1, 1, 1, 5 * eps("f8")])  # rounding might tell it from the threshold, or not
    x, x0 = run(name, low)
    np.testing.assert_array_equal(x[7], x0[7])  # so that one is SciPy's own


@pytest.mark.parametrize("name", ["inv", "pinv", "lstsq"])
@pytest.mark.parametrize("share", [1e-3, 0.1])
def test_ill_conditioned_matrices_among_others_are_scipys_own(name, share):
    a = ill_conditioned(COUNT, 1e10, share)
    few = int(np.ceil(share * COUNT))
    ours, theirs = run(name, *((a, a[..., :1]) if name == "lstsq" else (a,)))
    ours, theirs = (x[0] if name == "lstsq" else x for x in (ours, theirs))
    np.testing.assert_array_equal(ours[-few:], theirs[-few:])
    np.testing.assert_allclose(ours[:-few], theirs[:-few], rtol=1e-6, atol=1e-6)


def complaints(function, a):
    """The result, or the error, and all warnings of a call."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = function(a)
        except ValueError as why:  # LinAlgError is one
            result = str(why)
    return result, [(w.category, str(w.message)) for w in caught]


@pytest.mark.parametrize("dtype", DOUBLE)
@pytest.mark.parametrize("batch", [(2 * COUNT,), (16, 125)])
@pytest.mark.parametrize("n", [4, 3])
def test_scipy_warns_of_the_same_matrices_of_a_stack(n, batch, dtype):
    a = stack(n, n, dtype, batch)
    flat = a.reshape(-1, n, n)
    for i in (3, 501, 998):
        flat[i, -1] *= 1e-20
    flat[700] = np.triu(flat[700])
    (ours, warned), (theirs, expected) = (complaints(m.inv, a) for m in (trnpy.linalg, scipy.linalg))
    assert warned == expected
    if isinstance(theirs, str):  # no stacks
        assert ours == theirs
        return
    assert len(warned) == 1
    chosen = [3, 501, 700, 998]
    np.testing.assert_array_equal(ours.reshape(-1, n, n)[chosen], theirs.reshape(-1, n, n)[chosen])
    assert not np.tril(ours.reshape(-1, n, n)[700], -1).any()
    rest = np.delete(np.arange(len(flat)), chosen)
    np.testing.assert_allclose(ours.reshape(-1, n, n)[rest], theirs.reshape(-1, n, n)[rest], rtol=1e-6, atol=1e-6)
    flat[600] = 0
    (ours, warned), (theirs, expected) = (complaints(m.inv, a) for m in (trnpy.linalg, scipy.linalg))
    assert "singular" in ours and (ours, warned) == (theirs, expected)


@pytest.mark.parametrize("kind", ["definite", "indefinite"])
@pytest.mark.parametrize("dtype", DOUBLE)
@pytest.mark.parametrize("n", [512, 557])
def test_numpys_inverse_of_hermitian_matrices(n, dtype, kind):
    inv = next(accelerated(op) for op in NUMPY_OPS if op.name == "numpy.linalg.inv")
    a = positive(n, dtype, 1e6) if kind == "definite" else hermitian("random", n, dtype)
    np.fill_diagonal(a, np.abs(a.diagonal()))
    for b in (a, np.asfortranarray(a)):
        with trnpy.trace() as log:
            x = inv(b)
        assert log[0].route == "potri" and x.flags.c_contiguous and x.dtype == dtype
        theirs = np.linalg.inv(b)
        mine, other = (size(a @ y - np.eye(n)) / (size(a) * size(y)) for y in (x, theirs))
        assert mine <= 3 * other
        assert (x == t(x)).all() or kind == "indefinite"
    general, singular = a.copy(), np.ones_like(a)
    general[3, 5] += 1
    with trnpy.trace() as log:
        np.testing.assert_array_equal(inv(general), np.linalg.inv(general))
        with pytest.raises(np.linalg.LinAlgError, match="Singular"):
            inv(singular)
    assert not log[0].route


def test_an_inverse_of_hermitian_matrices_is_exactly_hermitian():
    for dtype in ("f8", "c16"):
        a = definite(4, dtype)
        x, theirs = run("inv", a)
        np.testing.assert_array_equal(theirs, t(theirs))
        np.testing.assert_array_equal(x, t(x))


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("lower", [True, False])
def test_whole_real_spectra_by_divide_and_conquer(family, dtype, lower):
    if family in ("tiny", "huge") and dtype == "f4":
        return
    n = eigenpairs.EVD_LEAST + 1
    a = hermitian(family, n, dtype).astype(dtype)
    half = np.tril(a) if lower else np.triu(a)  # the other triangle is not read
    (w, x), (w0, x0) = run("eigh", half, lower=lower)
    norm = max(np.abs(a).max() * n, np.finfo(dtype).tiny)

    def errors(w, x):
        return np.abs(a @ x - x * w).max() / norm, np.abs(x.T @ x - np.eye(n)).max()

    for mine, other in zip(errors(w, x), errors(w0, x0), strict=True):
        # On graded spectra MRRR leaves orthogonality at several n eps, by chance: SciPy's own 9 n eps at n = 202.
        assert mine <= max(3 * other, (10 if family.startswith("graded") else 1) * n * eps(dtype))
    assert np.abs(w - w0).max() <= 30 * eps(dtype) * norm


@pytest.mark.parametrize(
    "options", [{"driver": "evr"}, {"driver": "ev"}, {"subset_by_index": [0, 3]}, {"subset_by_value": [0.0, 1.0]},
                {"eigvals_only": True}, {"b": np.eye(eigenpairs.EVD_LEAST)}]
)  # fmt: skip
def test_what_was_asked_for_is_done_as_asked(options):
    a = hermitian("random", eigenpairs.EVD_LEAST, "f8")
    with trnpy.trace() as log:
        trnpy.linalg.eigh(a, **options)
    assert not log[0].route


def test_complex_and_small_spectra_stay_with_scipys_driver():
    for a in (hermitian("random", eigenpairs.EVD_LEAST, "c16"), hermitian("random", eigenpairs.EVD_LEAST - 1, "f8")):
        with trnpy.trace() as log:
            trnpy.linalg.eigh(a)
        assert not log[0].route


# --- Functions of positive-definite matrices --------------------------------------------------------------------------

FUNCTIONS = [("sqrtm", ()), ("logm", ()), ("fractional_matrix_power", (0.3,)), ("fractional_matrix_power", (-0.7,)),
             ("fractional_matrix_power", (2.4,))]  # fmt: skip


def function_error(name, options, a, f):
    """Backward: the inverse function of f against a."""
    if name == "logm":
        back = np.stack([scipy.linalg.expm(m) for m in f.reshape(-1, *f.shape[-2:])]).reshape(a.shape)
        return (size(back - a) / size(a)).max()
    p = options[0] if options else 0.5
    w, v = np.linalg.eigh(a.astype("c16"))
    expected = (v * w[..., np.newaxis, :] ** p) @ t(v)
    return (size(f - expected) / size(expected)).max()


@pytest.mark.parametrize("name, options", FUNCTIONS)
@pytest.mark.parametrize("condition", [1e1, 1e4, 1e8])
@pytest.mark.parametrize("dtype", ["f8", "c16"])
def test_functions_of_positive_matrices(name, options, condition, dtype):
    a = positive(128, dtype, condition)
    ours, theirs = run(name, a, *options)
    # SciPy's and the oracle here differ by the condition of the function: each is right to that.
    allowed = 3 * function_error(name, options, a, theirs) + 100 * eps(dtype)
    assert function_error(name, options, a, ours) <= allowed
    assert np.abs(ours - theirs).max() <= 10 * condition * eps(dtype) * np.abs(theirs).max()


@pytest.mark.parametrize("dtype", ["f4", "c8"])
def test_single_precision_keeps_its_dtype_where_scipys_does(dtype):
    a = definite(128, dtype, ())
    x, theirs = run("sqrtm", a)
    assert x.dtype == dtype
    # Both promise errors of n eps; which is the smaller changes with the number of BLAS' threads.
    assert size(x @ x - a) <= max(3 * size(theirs @ theirs - a), 2 * len(a) * eps(dtype) * size(a))
    with pytest.warns(RuntimeWarning, match="inaccurate"), trnpy.trace() as log:
        trnpy.linalg.logm(a)  # SciPy warns of every logarithm in single precision
    assert not log[0].route


@pytest.mark.parametrize("name, options", FUNCTIONS[1:])
def test_functions_of_stacks(name, options):
    a = definite(4, "f8", (3, 5))
    a /= 20  # norm near one
    ours, theirs = run(name, a, *options)
    np.testing.assert_allclose(ours, theirs, rtol=1e-11, atol=1e-12)


@pytest.mark.filterwarnings("ignore:logm result may be inaccurate")
@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_logarithms_of_which_scipy_may_warn_are_scipys(scale):
    a = positive(40, "f8", 10.0) * scale
    with trnpy.trace() as log:
        np.testing.assert_array_equal(trnpy.linalg.logm(a), scipy.linalg.logm(a))
    assert not log[0].route


@pytest.mark.filterwarnings("ignore:logm result may be inaccurate")
@pytest.mark.parametrize("name, options", FUNCTIONS)
def test_other_matrices_are_scipys(name, options):
    good = definite(128, "f8", ())
    rng = np.random.default_rng(0)
    indefinite = good.copy()
    indefinite[3, 3] = -1
    skew = good.copy()
    skew[3, 5] += 1e-12
    for a in (rng.standard_normal((128, 128)), indefinite, skew, positive(128, "f8", 1e13)):
        with trnpy.trace() as log:
            ours = getattr(trnpy.linalg, name)(a, *options)
        assert not log[0].route
        np.testing.assert_array_equal(ours, getattr(scipy.linalg, name)(a, *options))


@settings(max_examples=40, deadline=None)
@given(st.integers(3, 8), st.floats(-3, 3), st.integers(0, 9))
def test_powers(n, power, seed):
    a = definite(n, "f8", (), seed)
    ours, theirs = (m.fractional_matrix_power(a, power) for m in (trnpy.linalg, scipy.linalg))
    np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-11 * np.abs(theirs).max())


# --- Decisions --------------------------------------------------------------------------------------------------------


def test_a_host_on_which_the_route_loses_does_not_take_it(monkeypatch):
    slow = {k: tuple((n, r / 1e4) for n, r in c) if k.startswith(("gufunc", "eigh")) else c
            for k, c in current_rates().curves.items()}  # fmt: skip
    slow["eigh"] = current_rates().curves["eigh"]
    rates = HostRates(slow, 1e10, True, "a test")
    for module in ("decision_cache", "dispatch"):
        monkeypatch.setattr(f"trnpy._call.{module}.current_rates", lambda: rates)
    with trnpy.trace() as log:
        trnpy.linalg.eigh(hermitian("random", 130, "f8"))
        for name in ("qr", "eigh", "svd", "logm"):
            untraced(name, definite(4, "f8") / 20)
    assert [bool(d.route) for d in log] == [False] * 5
    assert {d.reason for d in log[1:4]} == {Reason.LAYOUT}


def test_a_route_waits_for_the_import_of_scipy_until_doing_without_has_cost_as_much(monkeypatch):
    monkeypatch.setattr(lapack, "sys", types.SimpleNamespace(modules={}))  # scipy.linalg is not imported
    monkeypatch.setattr(lapack, "IMPORT_S", 0.05)
    monkeypatch.setattr(lapack.Scipy, "lost_s", 0.0)
    n = 512
    a = positive(n, "f8", 1e3)
    inv = accelerated(next(op for op in NUMPY_OPS if op.name == "numpy.linalg.inv"))
    with trnpy.trace() as log:
        for _ in range(1000):
            np.testing.assert_allclose(inv(a) @ a, np.eye(n), rtol=0, atol=1e-10)
            if log[-1].route:
                break
    waited, (taken,) = log[:-1], log[-1:]
    assert taken.route == "potri" and taken.waiting_s == 0 and {d.reason for d in waited} == {Reason.NO_DEVICE}
    assert "potri needs SciPy, whose import, 0.05 s, would not pay yet" in waited[0].detail
    saved = waited[0].waiting_s
    assert saved > 0 and 0.05 - 2 * saved <= sum(d.waiting_s for d in waited) <= 0.05


def test_explain_says_which_route():
    decision = trnpy.explain(trnpy.linalg.qr, definite(4, "f8"))
    if decision.reason is Reason.PARAM:
        with pytest.raises(ValueError, match=re.escape(decision.detail.rpartition(": ")[2])):
            scipy.linalg.qr(definite(4, "f8"))
        return
    assert decision.route == "numpy.linalg over the stack" and "host by numpy.linalg over the stack" in str(decision)


DEADLY = """
import inspect, itertools, warnings
import numpy as np, scipy.linalg, trnpy, trnpy.linalg
warnings.simplefilter("ignore")
symmetric = {"assume_a": "sym"} if "assume_a" in inspect.signature(scipy.linalg.inv).parameters else {}
def calls(n, dtype):
    g = np.random.default_rng(n).integers(-9, 9, (n, n))
    a, b = (g + g.T).astype(dtype), np.eye(n)[:, :1]
    turned = lambda: np.asfortranarray(a)
    for over in (False, True):
        if over or np.dtype(dtype).kind == "i":
            yield a, lambda m: m.inv(turned(), overwrite_a=over), np.eye(n)
            yield a, lambda m: m.inv(a=turned(), overwrite_a=over), np.eye(n)
            yield a, lambda m: m.inv(turned().view(np.matrix), overwrite_a=over), np.eye(n)
            yield a, lambda m: m.inv(turned(), over, **symmetric), np.eye(n)
            yield a, lambda m: (m.inv(a.copy(), over), m.inv(turned(), over))[1], np.eye(n)
        yield a, lambda m: m.solve(turned(), b, overwrite_a=over), b
        yield a, lambda m: m.solve(turned(), b, False, over), b
for n, dtype, settings in itertools.product((2, 3, 80), ("i8", "i4", "f8", "c16"), ({}, {"device": "null"})):
    with trnpy.policy(**settings):
        for a, call, right in calls(n, dtype):
            found = [call(trnpy.linalg)]
            with trnpy.patched():
                found.append(call(scipy.linalg))
                with trnpy.profile():
                    found.append(call(scipy.linalg))
            for x in found:
                assert np.linalg.norm(a @ x - right) < 1e-9 * np.linalg.norm(a) * np.linalg.norm(x), (n, dtype)
print("alive")
"""


def test_matrices_that_scipy_overwrites_do_not_end_the_process():
    run = subprocess.run([sys.executable, "-c", DEADLY], capture_output=True, text=True, check=False)
    assert run.stdout == "alive\n", (run.returncode, run.stderr[-2000:])


@pytest.mark.parametrize("name", [name for name in stacks.SAMPLED if name in stack_routes.STACKED])
def test_stacks_of_which_a_sample_is_read_are_looked_at_in_every_call(name, monkeypatch):
    monkeypatch.setattr(stack_routes, "own", lambda name: False)
    monkeypatch.setattr(stack_routes, "pays", lambda name: True)
    reads_none, many = stack_routes.fixed(name), np.ones((4000, 4, 4))
    assert not reads_none((many,), {}) and not reads_none((), {"a": many}) and not reads_none((many[None],), {})
    for other in (many[0], many.astype("f4"), many[:1], many.tolist()):
        assert reads_none((other,), {})
