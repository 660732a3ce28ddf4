"""Rows of both libraries against their references, and the matrices and comparisons that tests of rows share."""

import inspect
import re

import numpy as np
import pytest
import scipy.linalg
from doubles import FaultyEngine, Float32Engine, RecordingEngine

import trnpy.linalg
from linalg.matrices import positive
from trnpy._call.dispatch import Reason, accelerated
from trnpy._call.rows import rows as rows_of
from trnpy._engine.engines import engine

NUMPY_OPS = rows_of("numpy.linalg")

U = 2.0**-53  # half of float64's eps
DTYPES = ("f4", "f8", "c8", "c16")
CONDITIONS = [(d, c) for d in ("f8", "c16") for c in (1e2, 1e8, 1e14)] + [("f4", 1e2), ("c8", 1e5)]
LAYOUTS = {
    "C": np.ascontiguousarray,
    "F": np.asfortranarray,
    "strided": lambda a: np.repeat(np.repeat(a, 2, axis=-2), 3, axis=-1)[..., ::2, ::3],
    "negative": lambda a: a[..., ::-1, ::-1].copy()[..., ::-1, ::-1],
}
NUMPY = {op.name.rpartition(".")[2]: accelerated(op) for op in NUMPY_OPS}
ROWS = {"scipy": trnpy.linalg, "numpy": type("numpy.linalg", (), {k: staticmethod(v) for k, v in NUMPY.items()})}
REFERENCE = {"scipy": scipy.linalg, "numpy": np.linalg}
# SciPy before 1.17 has no structures of inverses.
PLAIN_INV = {"assume_a": "gen"} if "assume_a" in inspect.signature(scipy.linalg.inv).parameters else {}


def forced(name, *args, runs=True, e=None, **kwargs):
    """The device path's result, on ``e``; ``name`` is a name of trnpy.linalg, or a row's that starts with "numpy."."""
    function = NUMPY[name.rpartition(".")[2]] if name.startswith("numpy.") else getattr(trnpy.linalg, name)
    e = RecordingEngine() if e is None else e
    with engine(e), trnpy.policy(force=True), trnpy.trace() as log:
        result = function(*args, **kwargs)
    assert [d.by_device_path for d in log] == [runs], log
    return result


def both(library, name, *args, runs=True, **kwargs):
    """The device path's result and the reference's, of equal types, shapes and dtypes."""
    with engine(RecordingEngine()), trnpy.policy(force=True), trnpy.trace() as log:
        ours = getattr(ROWS[library], name)(*args, **kwargs)
    assert runs is None or [d.by_device_path for d in log] == [runs], log
    theirs = getattr(REFERENCE[library], name)(*args, **kwargs)
    assert forms(ours) == forms(theirs)
    return ours, theirs


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


def eps(dtype):
    return np.finfo(dtype).eps


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


def gaussian(shape, dtype, seed=0):
    """Normally distributed elements, in float64 or complex128 by the kind of dtype."""
    rng = np.random.default_rng([seed, *shape])
    g = rng.standard_normal(shape)
    return g + 1j * rng.standard_normal(shape) if np.dtype(dtype).kind == "c" else g


def no_worse(error, pair, dtype):
    """At most three times the reference's error, and three eps: error(result) of ours and of theirs."""
    ours, theirs = map(error, pair)
    assert np.max(ours) <= np.max(3 * np.asarray(theirs)) + 3 * eps(dtype), (ours, theirs)


def residual(a, b):
    return lambda x: norm(a @ x - b) / (norm(a) * norm(x) + norm(b))


def near_threshold(name):
    """SciPy decides which singular values count where rounding could change the answer."""
    a = np.diag([1.0, 1.0, 1.0, 4 * np.finfo(float).eps])
    with engine(RecordingEngine()), trnpy.policy(force=True), trnpy.trace() as log:
        ours = getattr(trnpy.linalg, name)(a)
    assert log[0].reason is Reason.VALUE and "threshold" in log[0].detail
    np.testing.assert_array_equal(ours, getattr(scipy.linalg, name)(a))


def of_positive_matrices(name, back, dtype, condition, *options):
    """The function's inverse, ``back``, returns to a: within three times SciPy's error on the same matrix."""
    a = positive(90, dtype, condition).astype(dtype)
    x, theirs = forced(name, a, *options), getattr(scipy.linalg, name)(a, *options)
    assert (x.dtype, x.shape) == (theirs.dtype, theirs.shape)
    u, (a, x, theirs) = eps(dtype) / 2, (m.astype(np.result_type(m, np.float64)) for m in (a, x, theirs))
    assert norm(back(x) - a) <= 3 * norm(back(theirs) - a) + 100 * u * condition**0.5


def scipys_unless_positive(name, *options):
    """The call is SciPy's where a matrix is not Hermitian, nearly indefinite, or far from 1 in size."""
    good = positive(20, "f8", 10.0)
    skew, indefinite = good.copy(), good - 0.5 * np.eye(20)
    skew[3, 5] += 1e-12
    for a in (skew, indefinite, positive(20, "f8", 1e13), gaussian((20, 20), "f8"), 1e200 * good, 1e-200 * good):
        ours = forced(name, a, *options, runs=False)
        np.testing.assert_array_equal(ours, getattr(scipy.linalg, name)(a, *options))


def scipys_where_products_are_wrong(name, a):
    for e in (Float32Engine(), FaultyEngine("wrong"), FaultyEngine("nan")):
        with engine(e), trnpy.policy(force=True, fallback="log"), trnpy.trace() as log:
            x = getattr(trnpy.linalg, name)(a)
        assert not log[0].on_device and log[0].reason in (Reason.ACCURACY, Reason.VALUE, Reason.ERROR)
        np.testing.assert_array_equal(x, getattr(scipy.linalg, name)(a))
