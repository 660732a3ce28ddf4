"""What a row of the table is, and how one case is judged."""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse
from doubles import RecordingEngine

import trnpy
from parity.cases import FLOATS, Case
from trnpy._call.decision_cache import prepared
from trnpy._call.dispatch import Decision, Op, Unsupported, accelerated
from trnpy._engine.engines import engine

TIMES = 3.0  # the reference's own error, which a result may have
NUMBER = re.compile(r"[-+]?\d+(\.\d*)?(e[-+]?\d+)?")


@dataclass(frozen=True)
class Call:
    """One call of a row: a case's arguments, and the reference that they are for."""

    row: str
    case: Case
    reference: Callable[..., Any]
    args: tuple[Any, ...]
    options: dict[str, Any]


@dataclass(frozen=True)
class Row:
    """A generator of arguments, and the errors of a result in eps; each may be ``times`` the reference's, and ``most``.

    ``most`` is in eps times the square root of the longest extent of an operand.
    """

    make: Callable[[Case], tuple[tuple[Any, ...], dict[str, Any]]]
    errors: Callable[[Call, Any, Any], dict[str, float]]
    most: float = 4.0
    times: float = TIMES
    dtypes: tuple[str, ...] = FLOATS
    engines: tuple[str, ...] = ("host", "forced")
    warns: bool = True  # whether the reference's warnings depend on its arguments alone, not on rounding


def outcome(function, args, options):
    """What a call does: its result or exception, and its warnings without their numbers."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = function(*args, **options)
        except Exception as why:
            result = why
    return result, sorted({(w.category.__name__, NUMBER.sub("#", str(w.message))) for w in caught})


@contextlib.contextmanager
def on(name):
    """The engine of a case: the host, an engine of host products, or the simulator."""
    if name == "host":
        with trnpy.policy(device="none"):
            yield
    elif name == "forced":
        with engine(RecordingEngine()), trnpy.policy(force=True):
            yield
    else:
        with trnpy.policy(device="simulator", force=True):
            yield


def by_route(op: Op, args, options):
    """The result of the host's own route, whatever it costs; None where there is none."""
    if op.look is None or op.look(args, options) is not True:
        return None
    ready = prepared(op, True, args, options)
    if isinstance(ready, Decision) or ready[0].route is None:
        return None
    problem, form = ready
    try:
        result = problem.route.run()
    except Unsupported:
        return None
    return (result if form is None else form(result),)


def judge(row: Row, op: Op, case: Case) -> dict[str, float]:
    """The errors of a case's result by what each may be: up to 1 is right. AssertionError where forms differ."""

    def given():
        return row.make(replace(case))

    args, options = given()
    call = Call(op.name, case, op.reference, args, options)
    expected = outcome(op.reference, *given())
    with on(case.engine):
        results = [outcome(accelerated(op), *given())]
    if case.engine == "host" and (found := by_route(op, *given())) is not None:
        results.append((found[0], expected[1]))
    largest: dict[str, float] = {}
    for result, said in results:
        assert said == expected[1] or (not row.warns and not any("Nki" in category for category, _ in said))
        for name, error in compared(row, call, result, expected[0]).items():
            largest[name] = max(error, largest.get(name, 0.0))
    return largest


def compared(row: Row, call: Call, result, theirs) -> dict[str, float]:
    if isinstance(theirs, Exception):
        assert type(result) is type(theirs), (result, theirs)
        assert NUMBER.sub("#", str(result)) == NUMBER.sub("#", str(theirs))
        return {}
    same_form(call.row, result, theirs)
    if ".linalg." in call.row and any(getattr(x, "size", 1) == 0 for x in call.args):
        return {}  # of an empty matrix there is a form only
    extent = longest(call.args)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        errors, own = row.errors(call, result, theirs), row.errors(call, theirs, theirs)
    shares = {}
    for name, error in errors.items():
        allowed = row.times * own.get(name, np.inf) + row.most * extent**0.5
        shares[name] = error / allowed if np.isfinite(allowed) else 0.0
    return shares


def longest(args) -> int:
    """The longest extent of an operand among arguments, also of those in lists and tuples; at least 1."""
    nested = [longest(x) for x in args if isinstance(x, (list, tuple))]
    return max([1, *nested, *(max(x.shape, default=1) for x in args if hasattr(x, "shape"))])


def same_form(name, ours, theirs):
    """Equal types, shapes, dtypes, and order where docs/limits.md promises it."""
    if isinstance(theirs, (tuple, list)):
        assert type(ours) is type(theirs), (type(ours), type(theirs))
        assert len(ours) == len(theirs)
        for x, y in zip(ours, theirs, strict=True):
            same_form(name, x, y)
        return
    if scipy.sparse.issparse(theirs):
        assert ours.format == theirs.format
    elif theirs is not None:
        assert type(ours) is type(theirs), (type(ours), type(theirs))
    assert getattr(ours, "shape", None) == getattr(theirs, "shape", None)
    assert getattr(ours, "dtype", None) == getattr(theirs, "dtype", None)
    if isinstance(theirs, np.ndarray):
        assert ours.flags.writeable == theirs.flags.writeable
        if name.startswith(("numpy.linalg", "scipy.linalg.blas", "scipy.linalg.lapack")):
            assert ours.flags.f_contiguous == theirs.flags.f_contiguous
            assert ours.flags.c_contiguous == theirs.flags.c_contiguous
