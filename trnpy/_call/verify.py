"""``policy(verify=...)``: a device's result beside the reference's, element by element."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from trnpy._call.decisions import Op, Problem
from trnpy._engine.precision import norms

# Two results may differ by so many eps of their norm, and by so many times what data that move by one eps change.
NEAR, MOVED = 16.0, 50.0


def disagreement(
    op: Op, problem: Problem, deliver: Callable[[Problem], Any], args: tuple[Any, ...], kwargs: dict[str, Any],
    unit: float,
) -> str:  # fmt: skip
    """How a result differs from the reference's; "" if they agree, as far as results of this kind are unique.

    ``deliver`` gives the result in the caller's form. The caller's arrays are not touched: copies are passed on.
    """

    def reference(moved_by: float) -> list[Any]:
        given = copy.deepcopy((args, kwargs))
        if moved_by:
            for array in _arrays(given):
                signs = 2 * np.random.default_rng().integers(0, 2, array.shape) - 1
                array *= (1 + moved_by * signs).astype(array.real.dtype)
        return _members(problem.unique(op.reference(*given[0], **given[1])))

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        theirs = reference(0.0)
        known = [x.dtype for x in map(np.asarray, theirs) if x.dtype.kind in "fc"]
        unit = max([unit, *[float(np.finfo(dtype).eps) for dtype in known]])  # a result may be rounded to fewer digits
        difference = _difference(_members(problem.unique(deliver(copy.deepcopy(problem)))), theirs) / unit
        if difference <= NEAR:
            return ""
        try:
            change = _difference(reference(unit), theirs) / unit
        except np.linalg.LinAlgError:  # there is no result so near to these data
            return ""
    if difference <= NEAR + MOVED * change:
        return ""
    return f"differs from the host's result by {difference:.3g} eps; data that move by one eps move it by {change:.3g}"


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
    """The largest difference of two members over the norm of the second; infinity for another shape."""
    return max((_apart(np.asarray(x), np.asarray(y)) for x, y in zip(ours, theirs, strict=True)), default=0.0)


def _apart(x: np.ndarray, y: np.ndarray) -> float:
    if x.shape != y.shape:
        return np.inf
    if y.dtype.kind not in "fc" or not np.isfinite(y).all():
        return 0.0 if np.array_equal(x, y, equal_nan=y.dtype.kind in "fc") else np.inf
    wide = np.complex128 if y.dtype.kind == "c" else np.float64
    size, distance = float(norms(y.astype(wide))), float(norms(x.astype(wide) - y))
    return distance / size if size else distance
