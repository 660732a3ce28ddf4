"""Bad input is the reference's to judge: same exception, same message, same warning, inputs unchanged."""

# ruff: noqa: E501 (tables of options, a row each)
import copy
import sys
import warnings

import numpy as np
import pytest
import scipy.linalg
from doubles import RecordingEngine
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import trnpy
from trnpy._call.dispatch import accelerated
from trnpy._call.rows import rows as rows_of
from trnpy._einsum.rows import OPS as NUMPY_PRODUCTS
from trnpy._engine.engines import engine

NUMPY_OPS = rows_of("numpy.linalg")
SCIPY_LINALG = rows_of("scipy.linalg")

ROWS = {op.name: (accelerated(op), op.reference) for op in NUMPY_PRODUCTS + SCIPY_LINALG + NUMPY_OPS}
OPERANDS = {"numpy.einsum": 2, "numpy.matmul": 2, "numpy.dot": 2, "numpy.inner": 2, "numpy.tensordot": 2}
OPERANDS |= {"scipy.linalg.solve": 2, "numpy.linalg.solve": 2, "scipy.linalg.lstsq": 2, "numpy.linalg.lstsq": 2}
OPERANDS |= {"scipy.linalg.solve_triangular": 2, "scipy.linalg.cho_solve": 2, "scipy.linalg.lu_solve": 2}
OPERANDS |= {"numpy.linalg.multi_dot": 2, "scipy.linalg.khatri_rao": 2, "numpy.kron": 2}
# Results that are a basis: what it spans is unique, up to phases of its columns.
BASES = ("scipy.linalg.orth", "scipy.linalg.null_space")
# Where the arguments are not just the operands.
ARGUMENTS = {
    "numpy.einsum": lambda *operands: ("ij,jk->ik", *operands),
    "numpy.linalg.multi_dot": lambda *operands: (list(operands),),
    "scipy.linalg.cho_solve": lambda c, b: ((c, True), b),
    "scipy.linalg.lu_solve": lambda lu, b: (
        (lu, np.arange((getattr(lu, "shape", None) or (2,))[-1], dtype=np.int32)),
        b,
    ),
}

ENDLESS = "scipy.linalg.logm"  # SciPy 1.17's takes square roots of infinity, one by one, until they are near 1

# NumPy's einsum rounds sums of halves more than once; conditions of stacks' matrices reach 1e14.
CLOSE = {"e": 2e-3, "f": 1e-5}


class Duck:
    """Has its own idea of every NumPy function."""

    def __array_function__(self, function, types, args, kwargs):
        return function.__name__, len(args)

    def __array_ufunc__(self, ufunc, method, *args, **kwargs):
        return ufunc.__name__, len(args)


class Arraylike:
    def __init__(self, a):
        self.a = a

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.a, dtype)


class Subclass(np.ndarray):
    pass


def outcome(function, args, kwargs):
    """What a call does: its result or its exception, and its warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = function(*args, **kwargs)
        except Exception as why:
            result = why
    return result, sorted((w.category.__name__, str(w.message)) for w in caught)


def misread(name):
    """Whether the installed reference takes the other byte order for its own: then there are no right numbers."""
    operands = [np.array([[2.0, 1.0], [1.0, 3.0]]), np.ones((2, 1))][: OPERANDS.get(name, 1)]
    arguments, options = ARGUMENTS.get(name, lambda *operands: operands), {"t": 0.5} if "power" in name else {}
    hook, sys.unraisablehook = sys.unraisablehook, lambda ignored: None  # Cython's lu complains on stderr only
    try:
        plain, other = (
            outcome(ROWS[name][1], arguments(*(x.astype(order) for x in operands)), options)[0]
            for order in ("<f8", ">f8")
        )
    finally:
        sys.unraisablehook = hook
    if isinstance(other, Exception):
        return False  # an answer
    parts = [x if isinstance(x, (tuple, list)) else (x,) for x in (plain, other)]
    return not all(np.allclose(x, y, rtol=1e-13) for x, y in zip(*parts, strict=True) if np.ndim(x))


def same(ours, theirs, single=False):
    """``single``: of operands in single precision, of which SciPy's determinants are double."""
    if isinstance(theirs, Exception):
        assert type(ours) is type(theirs), (ours, theirs)
        assert str(ours) == str(theirs)
        return
    assert type(ours) is type(theirs), (ours, theirs)
    if isinstance(theirs, (tuple, list)):
        assert len(ours) == len(theirs)
        assert [getattr(x, "shape", None) for x in ours] == [getattr(x, "shape", None) for x in theirs]
        assert [getattr(x, "dtype", None) for x in ours] == [getattr(x, "dtype", None) for x in theirs]
        # Vectors are unique up to a phase and within clusters: tests/linalg checks them by identities.
        values = 1 if len(theirs) == 3 else 0  # of a singular value decomposition, or the first of all others
        same(ours[values], theirs[values], single)
        return
    if hasattr(theirs, "dtype") and theirs.dtype.kind in "biufc":
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        scale = np.abs(np.asarray(theirs)[np.isfinite(theirs)]).max(initial=1.0)
        close = CLOSE.get(theirs.real.dtype.char, CLOSE["f"] if single else 1e-12)
        np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), rtol=close, atol=close * scale)


@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16"])
def test_a_result_off_by_2e_5_is_noticed(dtype):
    theirs = matrix(3, np.random.default_rng(0)).astype(dtype)
    with pytest.raises(AssertionError):
        same(theirs * theirs.dtype.type(1 + 2e-5), theirs)


def compare(name, args, kwargs):
    """Both functions on equal inputs; a call that raises leaves them as they were."""
    ours, theirs = ROWS[name]
    mine, plain = copy.deepcopy((args, kwargs)), copy.deepcopy((args, kwargs))
    expected = outcome(theirs, *plain)
    with engine(RecordingEngine()), trnpy.policy(force=True):
        got = outcome(ours, *mine)
    if name in BASES and all(isinstance(x, np.ndarray) and x.ndim == 2 for x in (got[0], expected[0])):
        same(*(np.asarray(q) @ np.asarray(q).conj().T for q in (got[0], expected[0])))
    else:
        same(got[0], expected[0], any(getattr(x, "dtype", None) in ("f4", "c8") for x in args))
    assert got[1] == expected[1]
    if isinstance(got[0], Exception):
        for a, b in zip((*mine[0], *mine[1].values()), (*args, *kwargs.values()), strict=True):
            if isinstance(a, np.ndarray):
                np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def matrix(n, rng):
    a = rng.standard_normal((n, n))
    return a @ a.T + n * np.eye(n)


WRECKS = {
    "plain": lambda a, rng: a,
    "list": lambda a, rng: a.tolist(),
    "tuple": lambda a, rng: tuple(map(tuple, a.tolist())),
    "matrix": lambda a, rng: a.view(np.matrix),
    "masked": lambda a, rng: np.ma.masked_array(a, rng.uniform(size=a.shape) < 0.1),
    "subclass": lambda a, rng: a.view(Subclass),
    "memory map": lambda a, rng: a.view(np.memmap),
    "arraylike": lambda a, rng: Arraylike(a),
    "duck": lambda a, rng: Duck(),
    "object": lambda a, rng: a.astype(object),
    "strings": lambda a, rng: a.astype(str),
    "int": lambda a, rng: a.astype(int),
    "bool": lambda a, rng: a > 0,
    "half": lambda a, rng: a.astype("f2"),
    "long double": lambda a, rng: a.astype(np.longdouble),
    "complex": lambda a, rng: a + 0j,
    "big-endian": lambda a, rng: a.astype(">f8"),
    "single": lambda a, rng: a.astype("f4"),
    "read-only": lambda a, rng: np.broadcast_to(a, a.shape),
    "nan": lambda a, rng: np.where(rng.uniform(size=a.shape) < 0.2, np.nan, a),
    "inf": lambda a, rng: np.where(rng.uniform(size=a.shape) < 0.2, np.inf, a),
    "indefinite": lambda a, rng: a - 3 * len(a) * np.eye(len(a)),
    "singular": lambda a, rng: np.zeros_like(a),
    "vector": lambda a, rng: a[0],
    "scalar": lambda a, rng: a[0, 0],
    "float": lambda a, rng: float(a[0, 0]),
    "none": lambda a, rng: None,
    "wide": lambda a, rng: np.hstack([a, a]),
    "tall": lambda a, rng: np.vstack([a, a]),
    "stack": lambda a, rng: np.stack([a, 2 * a]),
    "empty": lambda a, rng: a[:0],
    "nothing": lambda a, rng: np.empty((0, 0)),
    "ragged": lambda a, rng: [[1.0, 2.0], [3.0]],
}
OPTIONS = {
    "numpy.einsum": [{}, {"optimize": True}, {"optimize": "no such"}, {"optimize": ["einsum_path", (0, 7)]}, {"order": "F"},
                     {"order": "Q"}, {"dtype": "f4"}, {"dtype": "c16"}, {"casting": "no"}, {"nonsense": 1}],
    "numpy.matmul": [{}, {"axes": [(0, 1), (0, 1), (0, 1)]}, {"dtype": "f4"}, {"casting": "no"}, {"order": "F"}, {"nonsense": 1}],
    "numpy.dot": [{}, {"nonsense": 1}],
    "numpy.kron": [{}, {"nonsense": 1}],
    "numpy.inner": [{}, {"nonsense": 1}],
    "numpy.tensordot": [{}, {"axes": 0}, {"axes": 1}, {"axes": 9}, {"axes": -1}, {"axes": ([0], [5])}, {"axes": ([0, 0], [1, 1])},
                        {"axes": "no"}, {"axes": 1.5}],
    "scipy.linalg.cholesky": [{}, {"lower": True}, {"check_finite": False}, {"overwrite_a": True}, {"nonsense": 1}],
    "scipy.linalg.eigh": [{}, {"lower": False}, {"eigvals_only": True}, {"type": 4}, {"type": "x"}, {"driver": "ev"}, {"driver": "gvd"},
                          {"driver": 3}, {"subset_by_index": [0, 0]}, {"subset_by_index": [0, 99]}, {"subset_by_index": [2, 1]},
                          {"subset_by_index": "ab"}, {"subset_by_value": [0.0, 1e9]}, {"subset_by_value": [1.0, 0.0]},
                          {"subset_by_index": [0, 0], "subset_by_value": [0, 1]}, {"driver": "evd", "subset_by_index": [0, 0]},
                          {"check_finite": False}, {"nonsense": 1}],
    "scipy.linalg.eigvalsh": [{}, {"lower": False}, {"type": 4}, {"driver": "ev"}, {"subset_by_index": [0, 99]}, {"eigvals_only": True}],
    "scipy.linalg.solve": [{}, {"assume_a": "gen"}, {"assume_a": "pos"}, {"assume_a": "sym"}, {"assume_a": "her"}, {"assume_a": "no such"},
                           {"assume_a": "banded"}, {"assume_a": "diagonal"}, {"assume_a": "tridiagonal"}, {"assume_a": "upper triangular"},
                           {"assume_a": "lower triangular", "transposed": True}, {"assume_a": ["gen"]}, {"transposed": True}, {"lower": True, "assume_a": "sym"}, {"overwrite_a": True}],
    "scipy.linalg.solve_triangular": [{}, {"lower": True}, {"trans": 1}, {"trans": "C"}, {"trans": "X"}, {"trans": [1]}, {"unit_diagonal": True},
                                      {"check_finite": False}, {"overwrite_b": True}, {"nonsense": 1}],
    "scipy.linalg.cho_factor": [{}, {"lower": True}, {"check_finite": False}, {"overwrite_a": True}, {"nonsense": 1}],
    "scipy.linalg.cho_solve": [{}, {"check_finite": False}, {"overwrite_b": True}, {"nonsense": 1}],
    "scipy.linalg.lu": [{}, {"permute_l": True}, {"p_indices": True}, {"check_finite": False}, {"overwrite_a": True}, {"nonsense": 1}],
    "scipy.linalg.lu_factor": [{}, {"check_finite": False}, {"overwrite_a": True}, {"nonsense": 1}],
    "scipy.linalg.lu_solve": [{}, {"trans": 1}, {"trans": 2}, {"trans": 3}, {"trans": "T"}, {"check_finite": False}, {"nonsense": 1}],
    "scipy.linalg.det": [{}, {"check_finite": False}, {"overwrite_a": True}, {"nonsense": 1}],
    "numpy.linalg.inv": [{}, {"nonsense": 1}],
    "numpy.linalg.det": [{}, {"nonsense": 1}],
    "numpy.linalg.slogdet": [{}, {"nonsense": 1}],
    "numpy.linalg.qr": [{}, {"mode": "complete"}, {"mode": "r"}, {"mode": "raw"}, {"mode": "full"}, {"mode": 3}, {"nonsense": 1}],
    "numpy.linalg.lstsq": [{}, {"rcond": -1}, {"rcond": 0.5}, {"rcond": "x"}, {"rcond": -2}, {"nonsense": 1}],
    "numpy.linalg.cholesky": [{}, {"upper": True}, {"nonsense": 1}],
    "numpy.linalg.eigh": [{}, {"UPLO": "U"}, {"UPLO": "X"}, {"UPLO": 3}],
    "numpy.linalg.eigvalsh": [{}, {"UPLO": "U"}, {"UPLO": "X"}],
    "numpy.linalg.solve": [{}, {"nonsense": 1}],
    "scipy.linalg.qr": [{}, {"mode": "r"}, {"mode": "economic"}, {"mode": "raw"}, {"mode": "no such"}, {"mode": 3}, {"pivoting": True},
                        {"lwork": 100}, {"check_finite": False}, {"nonsense": 1}],
    "scipy.linalg.inv": [{}, {"assume_a": "pos"}, {"assume_a": "sym", "lower": True}, {"assume_a": "her"}, {"assume_a": "upper triangular"},
                         {"assume_a": "lower triangular"}, {"assume_a": "diagonal"}, {"assume_a": "symmetric"}, {"assume_a": ["gen"]}, {"assume_a": "no such"}, {"check_finite": False}, {"overwrite_a": True}, {"nonsense": 1}],
    "scipy.linalg.svd": [{}, {"full_matrices": False}, {"compute_uv": False}, {"lapack_driver": "gesvd"}, {"lapack_driver": "no"},
                         {"lapack_driver": 3}, {"nonsense": 1}],
    "scipy.linalg.svdvals": [{}, {"check_finite": False}, {"nonsense": 1}],
    "numpy.linalg.cond": [{}, {"p": 2}, {"p": -2}, {"p": "fro"}, {"p": 1}, {"p": "x"}, {"p": True}, {"p": [2]}, {"nonsense": 1}],
    "numpy.linalg.matrix_rank": [{}, {"tol": 0.5}, {"tol": 0}, {"tol": "x"}, {"rtol": 0.1}, {"tol": 1, "rtol": 1}, {"hermitian": True}, {"tol": [0.1]}, {"nonsense": 1}],
    "numpy.linalg.norm": [{"ord": 2}, {"ord": -2}, {"ord": "nuc"}, {}, {"ord": 2, "axis": (1, 0)}, {"ord": 2, "axis": (0, 0)}, {"ord": 2, "axis": 0}, {"ord": 2, "axis": (0, 5)},
                          {"ord": "nuc", "keepdims": True}, {"ord": "x"}, {"ord": 2.0}, {"ord": [2]}, {"ord": "fro"}, {"nonsense": 1}],
    "scipy.linalg.norm": [{"ord": 2}, {"ord": -2}, {"ord": "nuc"}, {}, {"ord": 2, "axis": [1, 0]}, {"ord": 2, "keepdims": True}, {"ord": "x"}, {"ord": 2, "check_finite": False},
                          {"nonsense": 1}],
    "scipy.linalg.pinv": [{}, {"rtol": 0.5}, {"atol": -1}, {"atol": "x"}, {"rtol": np.inf}, {"nonsense": 1}],
    "scipy.linalg.pinvh": [{}, {"lower": False}, {"rtol": 0.5}, {"atol": -1}, {"rtol": [0.1]}, {"nonsense": 1}],
    "scipy.linalg.lstsq": [{}, {"cond": 0.5}, {"cond": -1}, {"lapack_driver": "gelsy"}, {"lapack_driver": "gelss"}, {"lapack_driver": "no"}, {"nonsense": 1}],
    "scipy.linalg.sqrtm": [{}, {"disp": False}, {"blocksize": 2}, {"nonsense": 1}],
    "scipy.linalg.logm": [{}, {"disp": False}, {"nonsense": 1}],
    "scipy.linalg.polar": [{}, {"side": "left"}, {"side": "up"}, {"side": 3}, {"nonsense": 1}],
    "scipy.linalg.orth": [{}, {"rcond": 0.5}, {"rcond": -1}, {"rcond": "x"}, {"nonsense": 1}],
    "scipy.linalg.null_space": [{}, {"rcond": 0.5}, {"check_finite": False}, {"lapack_driver": "gesvd"}, {"lapack_driver": "no"},
                                {"nonsense": 1}],
    "numpy.linalg.svd": [{}, {"full_matrices": False}, {"compute_uv": False}, {"hermitian": True}, {"nonsense": 1}],
    "numpy.linalg.svdvals": [{}, {"nonsense": 1}],
    "numpy.linalg.pinv": [{}, {"rcond": 0.5}, {"rtol": 0.5}, {"rcond": 1, "rtol": 1}, {"hermitian": True}, {"rtol": "x"}, {"nonsense": 1}],
    "numpy.linalg.matrix_power": [{"n": 2}, {"n": 5}, {"n": 0}, {"n": 1}, {"n": -2}, {"n": 1.5}, {"n": "x"}, {}],
    "numpy.linalg.multi_dot": [{}, {"out": 3}, {"nonsense": 1}],
    "scipy.linalg.expm": [{}, {"nonsense": 1}],
    "scipy.linalg.eig": [{}, {"left": True}, {"right": False}, {"left": 2}, {"right": "x"}, {"homogeneous_eigvals": True}, {"check_finite": False},
                         {"nonsense": 1}],
    "scipy.linalg.eigvals": [{}, {"homogeneous_eigvals": True}, {"overwrite_a": True}, {"nonsense": 1}],
    "scipy.linalg.khatri_rao": [{}, {"nonsense": 1}],
    "scipy.linalg.fractional_matrix_power": [{"t": 0.5}, {"t": -0.3}, {"t": 2}, {"t": "x"}, {"t": 1j}, {"t": np.nan}, {}],
}  # fmt: skip

MISREAD = {name for name in ROWS if name.startswith("scipy.linalg.") and misread(name)}
CASES = [(name, i) for name in ROWS for i in range(len(OPTIONS[name]))]


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(sorted(WRECKS)), st.sampled_from(sorted(WRECKS)), st.sampled_from([1, 2, 5]), st.integers(0, 9))
@pytest.mark.parametrize("name, option", CASES)
def test_as_the_reference(name, option, first, second, n, seed):
    rng = np.random.default_rng(seed)
    operands = [WRECKS[w](matrix(n, rng), rng) for w in (first, second)][: OPERANDS.get(name, 1)]
    args = ARGUMENTS[name](*operands) if name in ARGUMENTS else tuple(operands)
    # Not finite and not checked: LAPACK's own answer differs from run to run.
    if OPTIONS[name][option].get("check_finite") is False and {first, second} & {"nan", "inf"}:
        return
    if ("big-endian" in (first, second) and name in MISREAD) or (name == ENDLESS and n == 1 and first == "inf"):
        return
    compare(name, args, OPTIONS[name][option])


# What one matrix of a stack of sound ones may be.
SPOILT = {
    "sound": lambda a: a,
    "nan": lambda a: a * np.nan,
    "inf": lambda a: np.where(np.eye(len(a)), np.inf, a),
    "zero": lambda a: 0 * a,
    "indefinite": lambda a: a - 30 * np.eye(len(a)),
    "singular": lambda a: np.ones_like(a),
    "nearly singular": lambda a: np.ones_like(a) + 1e-16 * a,
    "ill-conditioned": lambda a: np.ones_like(a) + 1e-14 * a,
    "upper triangular": np.triu,
    "lower triangular": np.tril,
    "diagonal": lambda a: np.diag(np.diag(a)),
    "not symmetric": lambda a: a + np.triu(a),
    "huge": lambda a: 1e200 * a,
    "tiny": lambda a: 1e-200 * a,
}


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from(sorted(SPOILT)), st.sampled_from(["f4", "f8", "c8", "c16", ">f8", "i8", "O"]), st.sampled_from([1, 2, 3, 5]),
    st.sampled_from([(200,), (7, 30), (1, 200), (0, 5)]), st.integers(0, 9),
)  # fmt: skip
@pytest.mark.parametrize("name", [name for name in ROWS if name.startswith("scipy.linalg.")])
@pytest.mark.filterwarnings("ignore:overflow encountered in cast")  # of 1e200 to float32, here
def test_stacks_with_one_spoilt_matrix_as_the_reference(name, spoilt, dtype, n, batch, seed):
    """Without a device and without force: stacks go to NumPy's gufuncs, what SciPy would complain of to SciPy."""
    if dtype == ">f8" and name in MISREAD:
        return
    rng = np.random.default_rng(seed)
    a = np.broadcast_to(matrix(n, rng), (*batch, n, n)).copy()
    a += 0.1 * (g := rng.standard_normal(a.shape)) + 0.1 * g.swapaxes(-1, -2)
    if a.size:
        a.reshape(-1, n, n)[-1] = SPOILT[spoilt](a.reshape(-1, n, n)[-1])
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of casting what is huge, and what is not finite
        a = a.astype(dtype)
    if name == ENDLESS and n == 1 and np.isinf(a.astype(complex)).any():
        return
    second = (a[..., :1].copy(),) if OPERANDS.get(name) == 2 else ()
    options = {"t": 0.5} if "power" in name else {}
    ours, theirs = ROWS[name]
    with np.errstate(all="ignore"):
        make = ARGUMENTS.get(name, lambda *operands: operands)
        expected = outcome(theirs, make(a.copy(), *second), options)
        got = outcome(ours, make(a.copy(), *second), options)
    same(got[0], expected[0], dtype in ("f4", "c8"))
    assert got[1] == expected[1]


@pytest.mark.parametrize(
    "args",
    [
        (), ("ij",), ("ij,jk", np.ones((2, 2))), ("ij,jk->iz", np.ones((2, 2)), np.ones((2, 2))), ("ij->ii", np.ones((2, 2))),
        ("ij,jk->ik->", np.ones((2, 2)), np.ones((2, 2))), ("i.j,jk", np.ones((2, 2)), np.ones((2, 2))),
        ("i1,1k", np.ones((2, 2)), np.ones((2, 2))), ("é,é", np.ones(2), np.ones(2)), ("ijk,jk", np.ones((2, 2)), np.ones((2, 2))),
        ("ij,jk", np.ones((2, 3)), np.ones((2, 2))), ("...i,i->", np.ones((2, 3)), np.ones(3)), (np.ones(2), [0], np.ones(2), [99]),
        (np.ones(2), [0], np.ones(2), ["a"]), (np.ones(2), [0], np.ones(2)), ("ii,i", np.ones((1, 3)), np.ones(3)), (None, None),
        ("ij,jk", [[1, 2]], [[1], [2]]),
    ],
)  # fmt: skip
def test_malformed_subscripts(args):
    compare("numpy.einsum", args, {})


@pytest.mark.parametrize("name", ["numpy.matmul", "numpy.dot", "numpy.einsum"])
@pytest.mark.parametrize(
    "make",
    [lambda: np.empty((2, 3)), lambda: np.empty((3, 3), "f4"), lambda: np.empty((3, 3), "c16"), lambda: np.empty((3, 3), int),
     lambda: np.empty((3, 3), order="F"), lambda: np.empty((3, 6))[:, ::2], lambda: np.empty((3, 3)).view(np.matrix), lambda: [[0.0] * 3] * 3,
     lambda: np.broadcast_to(np.zeros((3, 3)), (3, 3))],
)  # fmt: skip
def test_awkward_out(name, make):
    a = np.random.default_rng(0).standard_normal((3, 3))
    compare(name, (("ij,jk->ik",) if name == "numpy.einsum" else ()) + (a, a.T.copy()), {"out": make()})


def test_overwrite_is_permission_only():
    """A call that succeeds down the device path leaves what it was allowed to overwrite."""
    rng = np.random.default_rng(0)
    a, b = matrix(150, rng), rng.standard_normal((150, 2))
    kept = a.copy(), b.copy()
    with engine(RecordingEngine()), trnpy.policy(force=True), trnpy.trace() as log:
        ROWS["scipy.linalg.solve"][0](a, b, overwrite_a=True, overwrite_b=True, assume_a="gen")
        ROWS["scipy.linalg.eigh"][0](a, overwrite_a=True)
    assert all(d.on_device for d in log)
    np.testing.assert_array_equal(a, kept[0])
    np.testing.assert_array_equal(b, kept[1])


@pytest.mark.parametrize("name, option", [case for case in CASES if case[0].startswith("numpy.linalg.")])
def test_results_of_numpy_linalg_lie_in_c_order_as_numpys(name, option):
    rng = np.random.default_rng(0)
    operands = tuple(matrix(9, rng) for _ in range(OPERANDS.get(name, 1)))
    args = ARGUMENTS[name](*operands) if name in ARGUMENTS else operands
    ours, theirs = ROWS[name]
    expected, _ = outcome(theirs, args, OPTIONS[name][option])
    with engine(RecordingEngine()), trnpy.policy(force=True):
        got, _ = outcome(ours, args, OPTIONS[name][option])
    several = isinstance(expected, tuple)
    for x, y in zip(got if several else (got,), expected if several else (expected,), strict=True):
        if isinstance(y, np.ndarray):
            assert x.flags.c_contiguous == y.flags.c_contiguous and x.flags.writeable == y.flags.writeable


def test_linalg_errors_are_scipys_class():
    with pytest.raises(scipy.linalg.LinAlgError), trnpy.policy(force=True):
        ROWS["scipy.linalg.cholesky"][0](-np.eye(3))
