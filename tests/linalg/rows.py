"""Rows of both libraries against their references, and matrices of a given condition."""

import inspect
import re

import numpy as np
import pytest
import scipy.linalg
from doubles import RecordingEngine

import trnpy.linalg
from trnpy._call.dispatch import accelerated
from trnpy._engine.engines import engine
from trnpy.linalg._ops import NUMPY_OPS

DTYPES = ("f4", "f8", "c8", "c16")
NUMPY = {op.name.rpartition(".")[2]: accelerated(op) for op in NUMPY_OPS}
ROWS = {"scipy": trnpy.linalg, "numpy": type("numpy.linalg", (), {k: staticmethod(v) for k, v in NUMPY.items()})}
REFERENCE = {"scipy": scipy.linalg, "numpy": np.linalg}
# SciPy before 1.17 has no structures of inverses.
PLAIN_INV = {"assume_a": "gen"} if "assume_a" in inspect.signature(scipy.linalg.inv).parameters else {}


def forced(name, *args, runs=True, **kwargs):
    with engine(RecordingEngine()), trnpy.policy(force=True), trnpy.trace() as log:
        result = getattr(trnpy.linalg, name)(*args, **kwargs)
    assert [d.on_device for d in log] == [runs], log
    return result


def both(library, name, *args, runs=True, **kwargs):
    """The device path's result and the reference's, of equal types, shapes and dtypes."""
    with engine(RecordingEngine()), trnpy.policy(force=True), trnpy.trace() as log:
        ours = getattr(ROWS[library], name)(*args, **kwargs)
    assert runs is None or [d.on_device for d in log] == [runs], log
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
