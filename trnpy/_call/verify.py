"""``policy(verify=...)``: compares a device's result with the original function's, element by element."""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from trnpy._call.decisions import Op, Problem
from trnpy._engine.precision import norms

# Two results may differ by NEAR eps of their norm, plus MOVED times the change that a perturbation by one eps causes.
NEAR, MOVED = 16.0, 50.0


class Verified:
    """The original function's result of one call, to compare with results of ``problem`` in units of ``unit`` x norm.

    ``deliver`` converts a result to the caller's form. It gets copies, so the caller's arrays do not change. If no part
    of a result is unique, the original is not called, because a solver's callback would be called twice as often.
    """

    def __init__(
        self, op: Op, problem: Problem, deliver: Callable[[Problem, Any], Any], args: tuple[Any, ...],
        kwargs: dict[str, Any], unit: float,
    ) -> None:  # fmt: skip
        self._op, self._problem, self._deliver, self._given = op, problem, deliver, (args, kwargs)
        self._computed_in = unit

    @functools.cached_property
    def _theirs(self) -> list[Any]:
        return self._reference(0.0)

    @functools.cached_property
    def _unit(self) -> float:
        known = [x.dtype for x in map(np.asarray, self._theirs) if x.dtype.kind in "fc"]
        # A result may have a narrower dtype.
        return max([self._computed_in, *[float(np.finfo(dtype).eps) for dtype in known]])

    def _reference(self, moved_by: float) -> list[Any]:
        args, kwargs = copy.deepcopy(self._given)
        if moved_by:
            for array in _arrays((args, kwargs)):
                signs = 2 * np.random.default_rng().integers(0, 2, array.shape) - 1
                array *= (1 + moved_by * signs).astype(array.real.dtype)
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return _members(self._problem.unique(self._op.reference(*args, **kwargs)))

    def apart(self, result: Any) -> float:
        """The distance of a result from the original function's, for the parts that are unique."""
        with np.errstate(all="ignore"):
            ours = _members(self._problem.unique(self._deliver(copy.deepcopy(self._problem), result)))
            return _difference(ours, self._theirs) / self._unit if ours else 0.0

    def wrong(self, apart: float) -> str:
        """A sentence about a result at the distance ``apart`` from the original's; "" if that is acceptable."""
        if apart <= NEAR:
            return ""
        try:
            with np.errstate(all="ignore"):
                change = _difference(self._reference(self._unit), self._theirs) / self._unit
        except np.linalg.LinAlgError:  # perturbed data have no result
            return ""
        if apart <= NEAR + MOVED * change:
            return ""
        return f"differs from the host's result by {apart:.3g} eps; data that move by one eps move it by {change:.3g}"


def _arrays(given: Any) -> Iterator[np.ndarray]:
    """The floating-point arrays among arguments."""
    if isinstance(given, np.ndarray):
        if given.dtype.kind in "fc" and given.flags.writeable:
            yield given
    elif isinstance(given, dict):
        yield from _arrays(list(given.values()))
    elif isinstance(given, (tuple, list)):
        for x in given:
            yield from _arrays(x)


def _members(result: Any) -> list[Any]:
    return list(result) if isinstance(result, (tuple, list)) else [result]


def _difference(ours: list[Any], theirs: list[Any]) -> float:
    """The largest difference of two members over the norm of the second; infinity if shapes differ."""
    return max((_apart(np.asarray(x), np.asarray(y)) for x, y in zip(ours, theirs, strict=True)), default=0.0)


def _apart(x: np.ndarray, y: np.ndarray) -> float:
    if x.shape != y.shape:
        return np.inf
    if y.dtype.kind not in "fc" or not np.isfinite(y).all():
        return 0.0 if np.array_equal(x, y, equal_nan=y.dtype.kind in "fc") else np.inf
    wide = np.complex128 if y.dtype.kind == "c" else np.float64
    size, distance = float(norms(y.astype(wide))), float(norms(x.astype(wide) - y))
    return distance / size if size else distance
