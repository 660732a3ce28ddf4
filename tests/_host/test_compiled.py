"""The compiled loops over stacks give SciPy's results: its conventions, its accuracy, its complaints."""

import warnings

import numpy as np
import pytest
import scipy.linalg
from host_routes import takes_stacks

import trnpy.linalg
from trnpy._call.dispatch import Reason
from trnpy._host import compiled, stack_routes

NAMES = [name for name in compiled.RUN if takes_stacks(name) and stack_routes.bounds(name)]  # with the installed SciPy
DTYPES = ("f8", "c16")
COUNT = 400  # matrices: every function's stack is worth its route
SIZES = (2, 3, 4, 5, 16, 21, 40)  # with loops of known length, with others, and by LAPACK

pytestmark = pytest.mark.skipif(compiled.loops() is None, reason="the loops are not compiled here")


def eps(dtype):
    return float(np.finfo(dtype).eps)


def size(a):
    return np.sqrt((np.abs(a) ** 2).sum(axis=(-2, -1)))


def t(a):
    return a.conj().swapaxes(-2, -1)


def stack(n, dtype, batch=(COUNT,), m=None):
    rng = np.random.default_rng([n, len(batch)])
    a = rng.standard_normal((*batch, m or n, n))
    return (a + 1j * rng.standard_normal(a.shape) if np.dtype(dtype).kind == "c" else a).astype(dtype)


def definite(n, dtype, batch=(COUNT,)):
    a = stack(n, dtype, batch)
    a = a @ t(a) + n * np.eye(n)
    return (a + t(a)) / 2


def operands(name, n, dtype, batch=(COUNT,)):
    if name == "cholesky":
        return (definite(n, dtype, batch),)
    a = stack(n, dtype, batch)
    return (a / np.sqrt(n),) if name == "expm" else (a, stack(2, dtype, batch, m=n)) if name == "solve" else (a,)


def members(result):
    return result if isinstance(result, (tuple, list)) else (result,)


def run(name, *args, **options):
    """Both results, of equal types, shapes, dtypes and flags. The route has run unless SciPy's loop is as fast."""
    with trnpy.trace() as log:
        ours = getattr(trnpy.linalg, name)(*args, **options)
    worth = stack_routes.bounds(name).worth_a_look(args[0])
    assert [d.reason is Reason.ROUTE for d in log] == [worth] or log[0].reason is Reason.NO_DEVICE, log
    theirs = getattr(scipy.linalg, name)(*args, **options)
    assert type(ours) is type(theirs)
    for mine, other in zip(members(ours), members(theirs), strict=True):
        assert type(mine) is type(other)
        assert (mine.dtype, mine.shape, mine.flags.writeable) == (other.dtype, other.shape, other.flags.writeable)
        assert mine.flags.c_contiguous == other.flags.c_contiguous
    return ours, theirs


def errors(name, args, result):
    """Backward errors, in which LAPACK has a few eps times n."""
    a = args[0]
    if name == "cholesky":
        assert not np.tril(result, -1).any()
        return size(t(result) @ result - a) / size(a)
    if name == "solve":
        return size(a @ result - args[1]) / (size(a) * size(result))
    if name == "inv":
        return size(result @ a - np.eye(a.shape[-1])) / (size(a) * size(result))
    if name == "lu":
        p, l, u = result
        assert not np.triu(l, 1).any() and not np.tril(u, -1).any()
        assert (np.diagonal(l, axis1=-2, axis2=-1) == 1).all() and np.abs(l).max() <= np.sqrt(2) + 1e-9
        return size(p @ l @ u - a) / size(a)
    raise AssertionError(name)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("det", "expm", "eig", "eigvals")])
def test_backward_errors_are_lapacks(name, n, dtype):
    args = operands(name, n, dtype)
    ours, theirs = run(name, *args)
    mine, other = errors(name, args, ours).max(), errors(name, args, theirs).max()
    assert mine <= 3 * other + n * eps(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", SIZES)
def test_determinants(n, dtype):
    a = stack(n, dtype)
    ours, theirs = run("det", a)
    # The error of a determinant is that of the factors, n eps |A|, times the derivative, |det| |A^-1|.
    allowed = 4 * n * eps(dtype) * size(a) * size(np.linalg.inv(a)) * np.abs(theirs)
    assert (np.abs(ours - theirs) <= allowed).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 20.0])
@pytest.mark.parametrize("n", [2, 3, 4, 7])
def test_exponentials_are_at_least_as_accurate_as_scipys(n, scale, dtype):
    a = stack(n, dtype) * scale
    ours, theirs = run("expm", a)
    exact = squared(a)
    mine, other = (np.max(size(x - exact) / size(exact)) for x in (ours, theirs))
    assert mine <= 3 * other + 10 * n * eps(dtype)


def squared(a):
    """e^A in extended precision, by Taylor's series of A / 2^s and s squarings."""
    b = a.astype(np.clongdouble if a.dtype.kind == "c" else np.longdouble)
    steps = max(int(np.ceil(np.log2(np.abs(a).sum(axis=-1).max() + 1))), 0) + 4
    b = b / 2**steps
    term = total = np.broadcast_to(np.eye(a.shape[-1], dtype=b.dtype), b.shape)
    for k in range(1, 24):
        term = term @ b / k
        total = total + term
    for _ in range(steps):
        total = total @ total
    return total


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", [{}, {"permute_l": True}, {"p_indices": True}])
@pytest.mark.parametrize("shape", [(3, 7), (7, 3), (4, 4), (30, 25), (25, 30)])
def test_lu_of_all_shapes_and_forms(shape, options, dtype):
    a = stack(shape[1], dtype, m=shape[0])
    for mine, other in zip(*run("lu", a, **options), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e5 * eps(dtype), atol=1e5 * eps(dtype))


@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", SIZES)
def test_cholesky_reads_one_triangle(n, dtype, lower):
    if "cholesky" not in NAMES:
        pytest.skip("the installed SciPy's cholesky takes no stacks, or ends as soon as the loop")
    a = definite(n, dtype)
    a = np.tril(a) if lower else np.triu(a)
    ours, theirs = run("cholesky", a, lower=lower)
    np.testing.assert_allclose(ours, theirs, rtol=100 * n * eps(dtype), atol=100 * eps(dtype))


def real_and_other(n, dtype):
    """Matrices with real spectra among others, with equal eigenvalues and of zeros."""
    a = stack(n, dtype)
    a[::3] += t(a[::3])
    a[4], a[5], a[6] = np.triu(a[4]), 0, np.eye(n)
    return a


EIG_OPTIONS = [{}, {"left": True}, {"left": True, "right": False}, {"left": 0, "right": 0}, {"check_finite": False}]


@pytest.mark.parametrize("options", EIG_OPTIONS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", SIZES)
def test_eigenvalues_and_vectors_are_scipys_own_bits(n, dtype, options):
    if "eig" not in NAMES:
        pytest.skip("the installed SciPy's eig takes no stacks, or ends as soon as the loop")
    for a in (real_and_other(n, dtype), definite(n, dtype), real_and_other(n, dtype).reshape(20, -1, n, n)):
        for mine, other in zip(*map(members, run("eig", a, **options)), strict=True):
            assert mine.tobytes() == other.tobytes() and mine.strides == other.strides
    ours, theirs = run("eigvals", a)
    assert ours.tobytes() == theirs.tobytes()


def test_general_eigenproblems_and_homogeneous_eigenvalues_are_scipys():
    if "eig" not in NAMES:
        pytest.skip("the installed SciPy's eig takes no stacks, or ends as soon as the loop")
    a = stack(4, "f8")
    for options in ({"b": definite(4, "f8")}, {"homogeneous_eigvals": True}):
        with trnpy.trace() as log:
            ours = trnpy.linalg.eig(a, **options)
        assert not log[0].route
        for mine, other in zip(ours, scipy.linalg.eig(a, **options), strict=True):
            np.testing.assert_array_equal(mine, other)


LAYOUTS = {
    "F": lambda a: np.asarray(a.T.copy().T),
    "strided": lambda a: np.repeat(np.repeat(a, 2, axis=0), 2, axis=2)[::2, :, ::2],
    "negative": lambda a: a[:, ::-1, ::-1].copy()[:, ::-1, ::-1],
    "one matrix over and over": lambda a: np.broadcast_to(a[0], a.shape),
    "batches": lambda a: a.reshape(20, -1, *a.shape[1:]),
    "batches in another order": lambda a: a.reshape(20, -1, *a.shape[1:]).swapaxes(0, 1).copy().swapaxes(0, 1),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", NAMES)
def test_memory_layouts(name, layout):
    args = tuple(LAYOUTS[layout](x) for x in operands(name, 4, "c16"))
    kept = [x.copy() for x in args]
    for mine, other in zip(*map(members, run(name, *args)), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e6 * eps("f8"), atol=1e4 * eps("f8"))
    for x, before in zip(args, kept, strict=True):
        np.testing.assert_array_equal(x, before)


@pytest.mark.parametrize("shape", [(4,), (4, 1), (4, 3), (COUNT, 4, 1), (COUNT, 4, 30)])
@pytest.mark.parametrize("dtypes", [("f8", "f8"), ("f8", "c16"), ("c16", "f8")])
def test_right_hand_sides(shape, dtypes):
    if "solve" not in NAMES:
        pytest.skip("the installed SciPy's solve takes no stacks, or ends as soon as the loop")
    a = stack(4, dtypes[0])
    b = stack(shape[-1], dtypes[1], shape[:-2], m=shape[-2] if len(shape) > 1 else 1)
    ours, theirs = run("solve", a, b[0] if len(shape) == 1 else b)
    np.testing.assert_allclose(ours, theirs, rtol=1e6 * eps("f8"), atol=1e5 * eps("f8"))


# --- Values that SciPy decides ----------------------------------------------------------------------------------------


def outcome(function, args):
    """The result or the error of a call, and all warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = members(function(*args))
        except (ValueError, np.linalg.LinAlgError) as why:
            result = (type(why), str(why))
    return result, [(w.category, str(w.message)) for w in caught]


def changed(kind, a):
    a = a.copy()
    if kind == "singular":
        a[7] = np.ones_like(a[7])
    elif kind == "zero":
        a[7] = 0
    elif kind == "ill-conditioned":
        a[[7, 30], -1] = a[[7, 30], 0] * (1 + 1e-15)
    elif kind == "scaled":
        a[7, -1] *= 1e-20
    elif kind in ("nan", "inf"):
        a[7, 1, 1] = float(kind)
    elif kind == "overflow":
        a[7] *= 1e200
    elif kind == "underflow":
        a[7] *= 1e-200
    elif kind == "triangular":
        a[7] = np.triu(a[7])
    elif kind == "symmetric":
        a[7] = a[7] + a[7].T
    elif kind == "definite":
        a[7] = a[7] @ a[7].T + np.eye(len(a[7]))
    elif kind == "indefinite":
        a[7] = -np.eye(a.shape[-1]) + 1e-3 * a[7]
    return a


KINDS = ("singular", "zero", "ill-conditioned", "scaled", "nan", "inf", "overflow", "underflow", "triangular",
         "symmetric", "definite", "indefinite")  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [4, 24])
@pytest.mark.parametrize("name", NAMES)
def test_errors_and_warnings_are_scipys(name, n, kind):
    first, *others = operands(name, n, "f8")
    args = changed(kind, first), *others
    (ours, warned), (theirs, expected) = (outcome(getattr(m, name), args) for m in (trnpy.linalg, scipy.linalg))
    assert warned == expected
    if isinstance(theirs[0], type):
        assert ours == theirs
        return
    clear = [i for i in range(COUNT) if i not in (7, 30)]
    for mine, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine[clear], other[clear], rtol=1e7 * eps("f8"), atol=1e5 * eps("f8"))
        np.testing.assert_array_equal(np.isfinite(mine), np.isfinite(other))
    if name in ("inv", "solve") and kind in ("ill-conditioned", "scaled", "triangular"):
        np.testing.assert_array_equal(ours[0][7], theirs[0][7])  # SciPy's own


@pytest.mark.parametrize("name", ["inv", "solve"])
def test_stacks_of_scipys_matrices_are_left_to_it_after_a_few(name, monkeypatch):
    if name not in NAMES:
        pytest.skip("the installed SciPy's function takes no stacks, or ends as soon as the loop")
    first, *others = operands(name, 4, "f8")
    seen = []

    class Counted:
        def __getattr__(self, attribute):
            return lambda a, *rest: seen.append(len(a)) or getattr(found, attribute)(a, *rest)

    found = compiled.loops()
    monkeypatch.setattr(compiled, "loops", Counted)
    ours, theirs = run_by_scipy(name, np.triu(first), *others)
    assert seen == [compiled.FIRST]
    np.testing.assert_array_equal(ours, theirs)


def run_by_scipy(name, *args):
    with trnpy.trace() as log:
        ours = getattr(trnpy.linalg, name)(*args)
    assert log[0].reason is Reason.VALUE and not log[0].route
    return ours, getattr(scipy.linalg, name)(*args)


def test_an_inverse_of_hermitian_matrices_is_exactly_hermitian():
    if "inv" not in NAMES:
        pytest.skip("the installed SciPy's inv takes no stacks, or ends as soon as the loop")
    for dtype in DTYPES:
        for n in (4, 30):
            x, theirs = run("inv", definite(n, dtype))
            np.testing.assert_array_equal(theirs, t(theirs))
            np.testing.assert_array_equal(x, t(x))


@pytest.mark.parametrize("name", NAMES)
def test_other_dtypes_are_scipys(name):
    for dtype in ("f4", "c8", "i8", ">f8")[: 3 if name == "lu" else 4]:  # SciPy's lu fails of other byte orders
        args = tuple((4 * x).astype(dtype) if dtype == "i8" else x.astype(dtype) for x in operands(name, 4, "f8"))
        (ours, warned), (theirs, expected) = (outcome(getattr(m, name), args) for m in (trnpy.linalg, scipy.linalg))
        assert warned == expected
        for mine, other in zip(ours, theirs, strict=True):
            if isinstance(other, np.ndarray):
                assert mine.dtype == other.dtype
                np.testing.assert_allclose(mine, other, rtol=1e6 * eps("f8"), atol=1e4 * eps("f8"))


def test_wrong_arrays_are_refused():
    loops, a = compiled.loops(), stack(4, "f8")
    marks, out = np.empty(COUNT, bool), np.empty_like(a)
    for call in (
        lambda: loops.inv(a[0], out, marks),
        lambda: loops.inv(a.astype("f4"), out, marks),
        lambda: loops.inv(a.astype(">f8"), out, marks),
        lambda: loops.inv(a[:, :3], out[:, :3].copy(), marks),
        lambda: loops.inv(a, out[:-1], marks),
        lambda: loops.inv(a, out, marks[:-1]),
        lambda: loops.inv(a, np.asfortranarray(out), marks),
        lambda: loops.solve(a, a[:, :3], out, marks),
        lambda: loops.solve(a, a[:-1], out, marks),
        lambda: loops.lu(a, np.empty((COUNT, 4)), out, out),
        lambda: loops.det(a, np.empty(COUNT, "c16")),
        lambda: loops.eig(a, np.empty((COUNT, 4)), None, None),
        lambda: loops.eig(a, np.empty((COUNT, 4), "c16"), out[1:], None),
        lambda: loops.eig(a[:, :3], np.empty((COUNT, 4), "c16"), None, None),
        lambda: loops.paired(out, np.empty((COUNT, 4), "c16"), out),
    ):
        with pytest.raises(ValueError):
            call()
    with pytest.raises(TypeError):
        loops.det(a, [0.0])
    with pytest.raises(TypeError):
        loops.eig(a, np.empty((COUNT, 4), "c16"), [0.0], None)


def test_without_the_compiled_part_scipy_or_numpy_computes(monkeypatch):
    monkeypatch.setattr(compiled, "loops", lambda: None)
    stack_routes.own.cache_clear()
    try:
        a = stack(4, "f8")
        assert not any(stack_routes.own(name) for name in compiled.RUN)
        np.testing.assert_array_equal(trnpy.linalg.det(a), scipy.linalg.det(a))
    finally:
        stack_routes.own.cache_clear()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [name for name in NAMES if name not in stack_routes.STACKED])
def test_stacks_of_numbers_are_scipys(name, dtype):
    args = operands(name, 1, dtype, (4000,))
    with trnpy.trace() as log:
        ours = getattr(trnpy.linalg, name)(*args)
    assert log[0].reason is Reason.LAYOUT
    for mine, other in zip(members(ours), members(getattr(scipy.linalg, name)(*args)), strict=True):
        np.testing.assert_array_equal(mine, other)
