"""Subclasses of numpy.ndarray that change nothing are routed, and their class comes back."""

import warnings

import numpy as np
import pytest
import scipy.linalg

import trnpy
import trnpy.linalg
from trnpy import Reason, policy, trace
from trnpy._call.array_subclasses import as_plain

EPS = np.finfo(float).eps


class Thin(np.ndarray):
    """As quimb's qarray: methods of its own and its own display."""

    def __new__(cls, data):
        return np.asarray(data).view(cls)

    def __and__(self, other):
        return np.kron(self, other)

    def __str__(self):
        return "thin"


class Loud(np.ndarray):
    """Overrides functions of linear algebra."""

    def __array_function__(self, func, types, args, kwargs):
        found = super().__array_function__(func, types, args, kwargs)
        return -found if func.__name__ == "inv" else found


class Picky(np.ndarray):
    """Warns of each call, and refuses small arrays."""

    def __array_function__(self, func, types, args, kwargs):
        warnings.warn("called", stacklevel=1)
        if min(a.size for a in args if isinstance(a, np.ndarray)) < 100:
            raise RuntimeError("too small")
        return super().__array_function__(func, types, args, kwargs)


class Unit(np.ndarray):
    """Has state, which NumPy's functions pass on."""

    def __array_finalize__(self, obj):
        self.unit = getattr(obj, "unit", "m")


def spd(n):
    a = np.random.default_rng(n).normal(size=(n, n))
    return a @ a.T + n * np.eye(n)


CALLS = {
    "numpy.linalg.inv": lambda a: np.linalg.inv(a),
    "numpy.linalg.eigh": lambda a: np.linalg.eigh(a),
    "numpy.linalg.cholesky": lambda a: np.linalg.cholesky(a),
    "numpy.matmul": lambda a: np.matmul(a, a),
    "numpy.dot": lambda a: np.dot(a, a),
    "numpy.einsum": lambda a: np.einsum("ij,jk->ik", a, a),
    "scipy.linalg.eigh": lambda a: scipy.linalg.eigh(a),
    "scipy.linalg.cholesky": lambda a: scipy.linalg.cholesky(a),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_class_that_changes_nothing_is_routed_and_comes_back(name):
    call, a = CALLS[name], Thin(spd(96))
    expected = call(a)
    with trnpy.patched(), policy(device="simulator", force=True), trace() as decisions:
        found = call(a)
    taken = [d for d in decisions if d.op == name]
    assert taken and all(d.by_device_path for d in taken), taken
    pairs = zip(found, expected, strict=True) if isinstance(expected, tuple) else [(found, expected)]
    assert type(found) is type(expected)
    for ours, theirs in pairs:
        assert type(ours) is type(theirs) and ours.dtype == theirs.dtype
    first = (found[0], expected[0]) if isinstance(expected, tuple) else (found, expected)
    np.testing.assert_allclose(*map(np.asarray, first), rtol=0, atol=1e3 * EPS * np.abs(np.asarray(first[1])).max())


def test_a_host_route_is_used_recorded_or_not():
    a = Thin(np.ones((200, 200)))
    with policy(device="none"), trace() as decisions:
        found = trnpy.einsum("ij,jk", a, a)
    (decision,) = decisions
    expected = np.einsum("ij,jk", a, a)
    assert decision.reason is Reason.ROUTE and type(found) is type(expected)
    with policy(device="none"):
        again = trnpy.einsum("ij,jk", a, a)
        assert trnpy.explain(trnpy.einsum, "ij,jk", a, a).reason is Reason.ROUTE
    assert type(again) is type(expected)
    np.testing.assert_array_equal(np.asarray(again), np.asarray(found))


@pytest.mark.parametrize(
    "a",
    [
        spd(40).view(Loud),
        spd(40).view(Unit),
        spd(40).view(np.matrix),
        np.ma.masked_array(spd(40), mask=np.eye(40)),
    ],
    ids=["overrides", "state", "matrix", "masked"],
)
def test_other_classes_stay_with_the_original(a):
    assert as_plain(np.linalg.inv, (a,), {}) is None
    expected = np.linalg.inv(a)
    with trnpy.patched(), policy(device="simulator", force=True), trace() as decisions:
        found = np.linalg.inv(a)
    assert not [d for d in decisions if d.on_device]
    assert type(found) is type(expected)
    np.testing.assert_array_equal(np.asarray(found), np.asarray(expected))


def test_a_class_with_a_method_for_functions_sees_no_call_but_the_programs():
    a = spd(40).view(Picky)
    with trnpy.patched(), policy(device="simulator", force=True), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        np.dot(a, a), np.linalg.inv(a)
    assert [str(w.message) for w in caught] == ["called"] * 2


def test_an_instance_with_attributes_and_an_out_stay_with_the_original():
    a = Thin(spd(40))
    a.name = "h"
    assert as_plain(np.linalg.inv, (a,), {}) is None
    b, out = Thin(spd(40)), Thin(np.empty((40, 40)))
    assert as_plain(np.matmul, (b, b), {"out": out}) is None
    assert as_plain(np.linalg.inv, (b, Thin(spd(40)).view(Loud)), {}) is None


def test_options_that_small_operands_do_not_suit_stay_with_the_original():
    a = Thin(spd(40))
    assert as_plain(scipy.linalg.eigh, (a,), {"subset_by_index": [0, 30]}) is None
    assert as_plain(np.linalg.inv, (a,), {}) is not None


def test_a_function_that_warns_is_not_asked_aloud():
    def deprecated(a):
        warnings.warn("deprecated", DeprecationWarning, stacklevel=2)
        return a

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert as_plain(deprecated, (Thin(spd(4)),), {}) is None
