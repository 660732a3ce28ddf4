"""Underflow that a program asks NumPy to report is reported, also when calls are forced onto a device."""

import warnings

import numpy as np
import pytest
from doubles import RecordingEngine

import trnpy
from trnpy import Reason
from trnpy._engine.engines import engine

N = 70
SMALL, ONES = np.full((N, N), 1e-200), np.ones((N, N))
CALLS = {
    "matmul": lambda m, a, b: m.matmul(a, b),
    "dot": lambda m, a, b: m.dot(a, b),
    "inner": lambda m, a, b: m.inner(a, b),
    "kron": lambda m, a, b: m.kron(a, b[:3, :3]),
    "tensordot": lambda m, a, b: m.tensordot(a, b, 1),
    "einsum": lambda m, a, b: m.einsum("ij,jk->ik", a, b, optimize=True),
    "multi_dot": lambda m, a, b: m.linalg.multi_dot([a, b, b]),
    "matrix_power": lambda m, a, b: m.linalg.matrix_power(a, 3),
}


def heard(module, name, a, b, under):
    """The warnings, or the exception, of a call under ``np.errstate(under=under)``."""
    with warnings.catch_warnings(record=True) as caught, np.errstate(under=under):
        warnings.simplefilter("always")
        try:
            CALLS[name](module, a, b)
        except FloatingPointError as why:
            return str(why)
    return [str(w.message) for w in caught]


@pytest.mark.parametrize("under", ["ignore", "warn", "raise"])
@pytest.mark.parametrize("name", CALLS)
def test_underflow_is_reported_as_by_numpy(name, under):
    for a in (SMALL, SMALL * 1j):
        expected = heard(np, name, a, a, under)
        with engine(RecordingEngine()), trnpy.policy(force=True), trnpy.trace() as log:
            assert heard(trnpy, name, a, a, under) == expected
        assert (expected == []) == (under == "ignore")
        if under != "raise":  # a call that raises is not recorded
            assert (under == "ignore") == (log[0].reason is not Reason.VALUE)


@pytest.mark.parametrize("name", [name for name in CALLS if name not in ("multi_dot", "matrix_power")])
@pytest.mark.parametrize("scale", [1.0, 1e-100, 0.0])
def test_products_that_cannot_underflow_still_run_on_a_device(name, scale):
    a = scale * np.triu(ONES)
    with engine(RecordingEngine()), trnpy.policy(force=True), trnpy.trace() as log, np.errstate(all="raise"):
        CALLS[name](trnpy, a, ONES)
        CALLS[name](trnpy, a.astype(complex), 1j * ONES)
    assert [d.on_device for d in log] == [True, True], log


def test_the_limit_is_the_least_normal_number_of_the_result():
    tiny = float(np.finfo(np.float32).tiny)
    for b, on_device in ((tiny, True), (tiny / 2, False)):
        x, y = np.ones((N, N), np.float32), np.full((N, N), b, np.float32)
        with engine(RecordingEngine()), trnpy.policy(force=True), trnpy.trace() as log, np.errstate(under="warn"):
            trnpy.dot(x, y)
            trnpy.dot(x.astype(float), y)
        assert [d.reason is not Reason.VALUE for d in log] == [on_device, True]
