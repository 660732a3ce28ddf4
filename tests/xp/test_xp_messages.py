"""What an Array refuses, in its own words or in NumPy's, with small arrays and with ones that are computed later."""

import numpy as np
import pytest

import trnpy
from trnpy import xp
from trnpy.xp import linalg
from trnpy.xp._nodes import Small

SMALL, LARGE = (2, 3), (20, 30)


@pytest.fixture(autouse=True)
def recorded_from_few_elements_on(monkeypatch):
    """Operations of smaller arrays are computed at once."""
    monkeypatch.setattr(Small, "elements", 16)


def ones(shape):
    return trnpy.asarray(np.ones(shape))


def assigned(a, value):
    a[...] = value


def added(a, value):
    a += value


def multiplied(a, value):
    a @= value


def read_only(a):
    view = xp.broadcast_to(a[:1], a.shape)
    view[...] = 0.0


CALLS = {
    "a constructor": (lambda a: xp.Array() if hasattr(xp, "Array") else type(a)(), TypeError, "use trnpy.asarray"),
    "text": (lambda a: trnpy.asarray(["x"]), TypeError, "Unsupported dtype <U1: an Array has booleans or numbers"),
    "objects": (lambda a: trnpy.asarray(np.array([None])), TypeError, "Unsupported dtype object"),
    "another dtype": (lambda a: trnpy.asarray(a, dtype="f4", copy=False), ValueError, "a copy is needed for another"),
    "another dtype of NumPy": (lambda a: a.__array__("f4", False), ValueError, "a copy is needed for another dtype"),
    "memory": (lambda a: trnpy.asarray(np.ones(9), copy=False), ValueError, "an array that may change is copied"),
    "a device": (lambda a: trnpy.asarray([1], device="gpu"), ValueError, "device 'gpu': expected"),
    "another device": (lambda a: a.to_device("gpu"), ValueError, "device 'gpu', stream None: expected"),
    "a stream": (lambda a: a.to_device(a.device, stream=1), ValueError, "stream 1: expected"),
    "a stream of DLPack": (lambda a: a.__dlpack__(stream=1), ValueError, "stream: the values are on the host, which"),
    "T": (lambda a: xp.reshape(a, (1, *a.shape)).T, ValueError, "T needs two dimensions; use mT for a stack"),
    "a version": (lambda a: a.__array_namespace__(api_version="2019.1"), ValueError, "array API version '2019.1'"),
    "the length of a number": (lambda a: len(xp.sum(a)), TypeError, "of unsized object"),
    "elements of a number": (lambda a: iter(xp.sum(a)), TypeError, "iteration over a 0-d array"),
    "pieces of a number": (lambda a: xp.unstack(xp.sum(a)), ValueError, "an array without dimensions has no pieces"),
    "places in a number": (lambda a: xp.nonzero(xp.sum(a)), ValueError, "Calling nonzero on 0d arrays is not allowed"),
    "out": (lambda a: np.add(np.ones(a.shape), a, out=a), TypeError, "out is an Array, which is not written in place"),
    "out of sum": (lambda a: np.sum(a, out=xp.sum(a)), TypeError, "out is an Array, which is not written in place"),
    "a view": (read_only, ValueError, "assignment destination is read-only"),
    "too many rows": (lambda a: assigned(a, np.ones((3, *a.shape))), ValueError, "could not broadcast input array"),
    "too few columns": (lambda a: assigned(a, a[:, :2] + 1.0), ValueError, "could not broadcast input array from"),
    "a longer result": (lambda a: added(a, xp.stack([a, a])), ValueError, "non-broadcastable output operand with"),
    "a complex sum": (lambda a: added(a, 1j * a), TypeError, "Cannot cast ufunc 'i?add' output from"),
    "a wide product": (lambda a: multiplied(a, xp.ones((a.shape[1], 5))), ValueError, "5"),
    "a shape": (lambda a: a.reshape(7, 11), ValueError, r"cannot reshape array of size \d+ into shape \(7, *11\)"),
    "two unknown sizes": (lambda a: a.reshape(-1, -1), ValueError, "can only specify one unknown dimension"),
    "a negative size": (lambda a: a.reshape(-2, -a.size // 2), ValueError, "can only specify|cannot reshape"),
    "a shape without a copy": (lambda a: xp.reshape(a.T, (-1,), copy=False), ValueError, "this shape needs a copy"),
    "a positive axis": (lambda a: xp.vecdot(a, a, axis=1), ValueError, "axis 1 must be negative"),
    "the real part": (lambda a: xp.astype(a * 1j, xp.float64), ValueError, "complex128 has no float64: take the real"),
    "no axis": (lambda a: xp.cumulative_sum(a), ValueError, "axis is needed for more than one dimension"),
    "no axis of products": (lambda a: xp.cumulative_prod(a), ValueError, "axis is needed for more than one dimension"),
    "raw factors": (lambda a: linalg.qr(a, mode="raw"), ValueError, "mode 'raw': expected 'reduced' or 'complete'"),
    "stacks of other lengths": (
        lambda a: xp.matmul(xp.stack([a, a]), xp.ones((3, a.shape[1], 2))), ValueError, "mismatch|not be broadcast",
    ),
    "an operand": (lambda a: xp.add("x", a), TypeError, "str is neither an Array nor an array of numbers"),
    "text of sums": (lambda a: xp.sum("x"), TypeError, "str is neither an Array nor an array of numbers"),
}  # fmt: skip


@pytest.mark.parametrize("make", [lambda: ones(SMALL), lambda: ones(LARGE), lambda: ones(LARGE) * 1.0])
@pytest.mark.parametrize("name", CALLS)
def test_a_call_is_refused_in_these_words(name, make):
    call, error, words = CALLS[name]
    a = make()
    with pytest.raises(error, match=words):
        call(a)
    np.testing.assert_array_equal(np.asarray(a), np.ones(a.shape))  # as before the call
