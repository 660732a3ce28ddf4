"""Measured gains of CPU fast paths: the original function repeats a sample of the calls, and both are timed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from trnpy._base.records import record

if TYPE_CHECKING:
    from trnpy._report.reasons import Decision

FIRST = 3  # the first calls of a function through one fast path are all compared
STRIDE = 61  # of later ones every STRIDE-th


@record(frozen=False)
class Comparison:
    """The calls of one function through one CPU fast path ("route")."""

    function: str
    route: str
    calls: int = 0
    compared: int = 0
    route_s: float = 0.0  # measured time of the compared calls
    reference_s: float = 0.0

    @property
    def gain(self) -> float:
        """The speed-up of the fast path over the original function."""
        return self.reference_s / self.route_s if self.route_s > 0 else 1.0


class Comparisons:
    """The comparisons of a ledger. ``wanted``: whether it compares at all."""

    def __init__(self, wanted: bool) -> None:
        self.wanted = wanted
        self.found: dict[tuple[str, str], Comparison] = {}

    @property
    def seconds(self) -> float:
        """The time of the original functions in all comparisons."""
        return sum(c.reference_s for c in self.found.values())

    def compare(
        self, decision: Decision, seconds: float, reference: Callable[..., Any], args: Any, kwargs: Mapping[str, Any]
    ) -> None:
        """If a fast-path call that took ``seconds`` is in the sample, repeat it with the original and time that."""
        key = decision.op, decision.route
        comparison = self.found.setdefault(key, Comparison(*key))
        comparison.calls += 1
        if (comparison.calls > FIRST and comparison.calls % STRIDE) or _writes(kwargs):
            return
        started = time.perf_counter()
        reference(*args, **kwargs)
        comparison.reference_s += time.perf_counter() - started
        comparison.route_s += seconds
        comparison.compared += 1

    def absorb(self, other: Comparisons) -> None:
        """Add the comparisons of ``other``."""
        for key, theirs in other.found.items():
            ours = self.found.setdefault(key, Comparison(*key))
            for name in ("calls", "compared", "route_s", "reference_s"):
                setattr(ours, name, getattr(ours, name) + getattr(theirs, name))


def _writes(kwargs: Mapping[str, Any]) -> bool:
    """Whether the call may write into the caller's arrays, so that a second call would find other operands."""
    return any(value is not None and value is not False for name, value in kwargs.items() if _overwrites(name))


def _overwrites(name: str) -> bool:
    return name == "out" or name.startswith("overwrite")
