"""Stacks of small matrices, and calls of trnpy and SciPy with them, for the tests of NumPy's functions over stacks."""

import re

import numpy as np
import pytest
import scipy.linalg

import trnpy.linalg
from trnpy._call.decision_cache import Verdicts
from trnpy._call.dispatch import Reason
from trnpy._host import stack_routes

COUNT = 1000  # matrices: enough that every row's stack is worth its route
SQUARE = ("cholesky", "eigh", "eigvalsh", "inv", "pinvh")


@pytest.fixture(autouse=True)
def every_route_pays(monkeypatch):
    """Also where the installed SciPy's loop over a stack is compiled, and would be left alone.

    The compiled loops of trnpy have tests of their own (test_compiled.py); here NumPy's functions compute.
    """
    monkeypatch.setattr(stack_routes, "pays", lambda name: True)
    monkeypatch.setattr(stack_routes, "own", lambda name: False)
    Verdicts.known.verdicts.clear()  # decisions of calls of the same kind
    yield
    Verdicts.known.verdicts.clear()


def untraced(name, *args, **kwargs):
    """trnpy's result and SciPy's.

    Where the installed SciPy takes no such call, trnpy raises what it raises, and the rest of a test is skipped.
    """
    try:
        theirs = getattr(scipy.linalg, name)(*args, **kwargs)
    except ValueError as why:
        with pytest.raises(type(why), match=f"^{re.escape(str(why))}$"):
            getattr(trnpy.linalg, name)(*args, **kwargs)
        pytest.skip(f"the installed SciPy takes no stacks, and trnpy says so, too: {why}")
    return getattr(trnpy.linalg, name)(*args, **kwargs), theirs


def run(name, *args, route=True, **kwargs):
    """Both results, of equal types, shapes and dtypes; the route ran (or did not)."""
    with trnpy.trace() as log:
        ours, theirs = untraced(name, *args, **kwargs)
    assert [d.reason is Reason.ROUTE for d in log] == [route], log
    assert bool(log[0].route) is route and not log[0].on_device
    if route:
        assert "times faster than the reference" in log[0].detail
    assert type(ours) is type(theirs)
    for mine, other in zip(*((x if isinstance(x, (list, tuple)) else (x,)) for x in (ours, theirs)), strict=True):
        assert type(mine) is type(other)
        assert (mine.dtype, mine.shape) == (other.dtype, other.shape)
        assert mine.flags.writeable
    return ours, theirs


def t(a):
    return a.conj().swapaxes(-2, -1)


def stack(m, n, dtype, batch=(COUNT,), seed=0):
    rng = np.random.default_rng([seed, m, n])
    a = rng.standard_normal((*batch, m, n))
    return (a + 1j * rng.standard_normal(a.shape) if np.dtype(dtype).kind == "c" else a).astype(dtype)


def definite(n, dtype, batch=(COUNT,), seed=0):
    a = stack(n, n, dtype, batch, seed)
    return (a @ t(a) + n * np.eye(n)).astype(dtype)


def ill_conditioned(count, condition, share, seed=0):
    """A stack (count, 4, 4) of which that share, the last ones, has that condition number."""
    a = stack(4, 4, "f8", (count,), seed)
    q, r = np.linalg.qr(a)
    few = int(np.ceil(share * count))
    a[-few:] = ((q * np.geomspace(1, 1 / condition, 4)) @ np.linalg.qr(t(r))[0])[-few:]
    return a
